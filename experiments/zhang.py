"""Zhang et al. (ICML 2024), measured: ``python -m experiments.zhang --out DIR``.

Writes ``zhang.md`` and a plot of every ablation. Networks, losses and data sets are those of the
paper as far as they are here: the MLP in full on Fashion-MNIST and MNIST, the All-CNN and the
ResNet-18 narrow and on few images, unless ``--full``. GroupNorm stands for BatchNorm. Times are
wall times of this process on whatever cores it has; compare ratios.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from torch import nn

from experiments.cases import mnist_idx
from experiments.images import Images, cifar10_jpeg, flat, svhn
from experiments.nets import all_cnn, made, mlp, resnet18
from experiments.summary import mean, table
from experiments.zhang_ablations import Ablation, Extent, ablations
from experiments.zhang_trials import Case, Inverse, Row, Trial, inverse_times, prepare, rows
from expunge.datasets import fashion_mnist, mnist_small
from expunge.deep.descent import Recipe
from expunge.deep.inverse import lissa
from expunge.deep.zhang_bounds import Account
from expunge.errors import DataMissing

CLAIMS = (
    "Claimed in the paper (qualitatively; its tables are not quoted here, unverified): F1 closest "
    "to retraining, more than 10 times faster than retraining, LiSSA 470 times faster than an "
    "exact inverse on the MLP."
)
EXTENT = Extent()
SERIES = lissa(tol=0.9)
"""10 repeats of 1,000 steps on 10 records, as published."""

SHORT = lissa(repeats=5, depth=100, tol=0.9)


@dataclass(frozen=True)
class Plan:
    """How much is run; ``images`` and ``width`` are those of the convolutional networks."""

    seeds: int = 3
    rows: int | None = None
    epochs: int = 10
    forget: int = 1000
    images: int | None = 400
    width: tuple[int, int] = (8, 4)
    conv_epochs: int = 5
    conv_seeds: int = 2
    extent: Extent = EXTENT
    series: lissa = SHORT


FULL = Plan(5, None, 50, 1000, None, (96, 64), 50, 5, series=SERIES)
QUICK = Plan(
    seeds=2,
    rows=400,
    epochs=2,
    forget=40,
    images=40,
    width=(4, 2),
    conv_epochs=1,
    conv_seeds=1,
    extent=Extent((1, 2), (5, 20), (10, 40), 3, 10),
    series=lissa(repeats=2, depth=20, batch=5, tol=0.99),
)


def cases(options: argparse.Namespace, plan: Plan, notes: list[str]) -> Iterator[Case]:
    """Yield the cases whose data are here, add a note for each of the others."""
    recipe = Recipe(lr=1e-3, epochs=plan.epochs, weight_decay=5e-4, max_norm=20.0)
    conv = replace(recipe, epochs=plan.conv_epochs, batch_size=64 if plan.images else 128)
    mnist = (lambda: mnist_idx(options.mnist)) if options.mnist else mnist_small
    for name, load in (("Fashion-MNIST", fashion_mnist), ("MNIST", mnist)):
        label = f"MLP, {name}"
        images = _load(options, notes, label, lambda load=load: flat(load()).some(plan.rows))
        if images is not None:
            count = min(plan.forget, len(images.y) // 10)
            series = SERIES if plan.rows is None else plan.series
            yield Case(
                label, images, partial(made, mlp, device=options.device), recipe, count, series
            )
    digits = (lambda: svhn(options.svhn)) if options.svhn else partial(_cifar, options, plan)
    nets: list[tuple[str, Callable[[], Images], Callable[[], nn.Module]]] = [
        ("All-CNN, CIFAR-10", partial(_cifar, options, plan), partial(all_cnn, plan.width[0])),
        (
            f"ResNet-18, {'SVHN' if options.svhn else 'CIFAR-10 in place of SVHN'}",
            digits,
            partial(resnet18, plan.width[1]),
        ),
    ]
    for name, load, network in nets:
        images = _load(
            options, notes, name, lambda load=load: load().some(plan.images, plan.images)
        )
        if images is not None:
            count = max(1, min(plan.forget, len(images.y) // 10))
            yield Case(
                name,
                images,
                partial(made, network, device=options.device),
                conv,
                count,
                plan.series,
                20,
            )


def _cifar(options: argparse.Namespace, plan: Plan) -> Images:
    if options.cifar is None:
        raise DataMissing("give --cifar, the file cifar10-jpeg.npz")
    return cifar10_jpeg(options.cifar, plan.images, plan.images)


def _load(
    options: argparse.Namespace, notes: list[str], name: str, load: Callable[[], Images]
) -> Images | None:
    if options.only and not any(word.lower() in name.lower() for word in options.only):
        return None
    try:
        return load()
    except DataMissing as error:
        notes += [f"{name}: left out. {error}", ""]
        return None


HEAD = (
    "model",
    "F1 retain",
    "F1 forget",
    "F1 test",
    "attack accuracy",
    "AUC (95 %)",
    "relearn steps",
    "seconds",
    "with checks",
    "times cold retrain",
    "times warm retrain",
    "to before",
    "to retrain",
    "to other retrain",
    "implied ε",
)


def main_table(found: list[list[Row]]) -> list[str]:
    """Return the table of all seeds."""
    lines = []
    for each in zip(*found, strict=True):

        def cell(field: str, each: tuple[Row, ...] = each) -> str:
            values = [getattr(row, field) for row in each]
            return "" if any(math.isnan(value) for value in values) else mean(values)

        low, high = (sum(getattr(row, end) for row in each) / len(each) for end in ("low", "high"))
        auc = f"{cell('auc')} ({low:.2f} to {high:.2f})"
        cells = [each[0].name, *(cell(field) for field in ("retain", "forget", "test", "attack"))]
        cells += [auc, *(cell(field) for field in Row.__dataclass_fields__ if field in AFTER)]
        lines.append(cells)
    return table(HEAD, lines)


AFTER = (
    *("relearn", "seconds", "total", "cold", "warm", "moved", "to_same", "to_other", "implied"),
)


def claims(found: list[list[Row]], inverse: Inverse) -> list[str]:
    """Compare speeds with the paper's claims."""
    lines = [CLAIMS, ""]
    for index, row in enumerate(found[0]):
        if row.name.startswith("Zhang") and not math.isnan(row.cold):
            cold, warm = (mean([getattr(it[index], f) for it in found]) for f in ("cold", "warm"))
            lines.append(
                f"- {row.name}: {cold} times faster than a cold retrain, {warm} than a warm one."
            )
    how = (
        "measured"
        if inverse.columns == inverse.parameters
        else (f"extrapolated from {inverse.columns} columns and a smaller factor")
    )
    ratios = [inverse.exact / seconds for seconds in (inverse.series, inverse.conjugate)]
    return [
        *lines,
        f"- Exact inverse of {inverse.parameters:,} parameters: {inverse.exact:.3g} s ({how}); "
        f"LiSSA is {ratios[0]:.3g} times faster, conjugate gradients {ratios[1]:.3g} times.",
        "",
    ]


def report(case: Case, trials: list[Trial], found: list[list[Row]], inverse: Inverse) -> list[str]:
    """Return one case's part of the page."""
    trial = trials[0]
    size = sum(p.numel() for p in trial.trained.parameters())
    account = Account(math.inf, case.radius, 1e-3, 1.0, 1e-5)
    return [
        f"## {case.name}",
        "",
        f"{case.images.source}; n = {len(case.images.y):,}, m = {case.forget:,}, p = {size:,}; "
        f"Adam {case.recipe.lr:g}, {case.recipe.epochs} epochs, wd {case.recipe.weight_decay:g}, "
        f"C = {case.radius:g}, σ = 0.001, λ = {trial.damping:.3g} (λ_min ≈ {trial.ends[0]:.3g}, "
        f"λ_max ≈ {trial.ends[1]:.3g}, estimated, seed 0); {len(trials)} seeds, mean ± 95 %.",
        "",
        *main_table(found),
        "```",
        account.block(),
        "```",
        "",
        *claims(found, inverse),
    ]


def plot(path: Path, ablation: Ablation) -> None:
    """Draw an ablation's curves."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6.5, 4), layout="constrained")
    axis = figure.subplots()
    for name, values in ablation.curves.items():
        shown = [v if math.isfinite(v) else math.nan for v in values]
        axis.plot(ablation.x, shown, "o-", ms=3, label=name)
    if ablation.logarithmic:
        axis.set_xscale("log")
    percents = ablation.name != "lissa"
    axis.set(xlabel=ablation.label, ylabel="accuracy %" if percents else "relative residual")
    axis.set_yscale("linear" if percents else "log")
    axis.set_title(ablation.title, fontsize=10)
    axis.legend(fontsize=7)
    figure.savefig(path, dpi=110)


def run(case: Case, plan: Plan, out: Path, lines: list[str], *, vary: bool) -> None:
    """Add one case to the page, with ``vary`` also the ablations, and write it as it grows."""
    trials, found = [], []
    for seed in range(plan.conv_seeds if case.images.X.ndim == 4 else plan.seeds):
        trials.append(prepare(case, seed))
        found.append(rows(trials[-1]))
    lines += report(case, trials, found, inverse_times(trials[0]))
    save(out, lines)
    if not vary:
        return
    lines += [f"## Ablations: {case.name}, seed 0, no noise where σ is not varied", ""]
    for ablation in ablations(trials[0], plan.extent):
        lines += ablation.lines()
        plot(out / f"zhang_{ablation.name}.png", ablation)
        lines += [f"![{ablation.title}](zhang_{ablation.name}.png)", ""]
        save(out, lines)


def save(out: Path, lines: list[str]) -> None:
    """Write the page."""
    (out / "zhang.md").write_text("\n".join(lines), encoding="utf-8")


def main() -> None:
    """Run all cases and write the page after each."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True)
    size = parser.add_mutually_exclusive_group()
    size.add_argument("--quick", action="store_true", help="tiny: a smoke test")
    size.add_argument("--full", action="store_true", help="full sizes, 50 epochs, 5 seeds")
    parser.add_argument("--seeds", type=int, help="how many seeds")
    parser.add_argument("--mnist", type=Path, help="folder of the MNIST IDX files")
    parser.add_argument("--cifar", type=Path, help="cifar10-jpeg.npz")
    parser.add_argument(
        "--svhn", type=Path, help="folder of SVHN's train_32x32.mat, test_32x32.mat"
    )
    parser.add_argument("--device", default="cpu", help="where networks are trained")
    parser.add_argument("--only", nargs="*", help="words of the names of the cases to run")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    plan = QUICK if options.quick else FULL if options.full else Plan()
    if options.seeds:
        plan = replace(plan, seeds=options.seeds, conv_seeds=options.seeds)
    lines, varied = ["# Zhang et al. (2024), measured", ""], False
    for case in cases(options, plan, lines):
        vary = not varied and case.images.X.ndim == 2
        run(case, plan, options.out, lines, vary=vary)
        varied |= vary
    save(options.out, lines)
    print("\n".join(lines))


if __name__ == "__main__":
    main()
