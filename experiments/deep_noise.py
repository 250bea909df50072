"""What enforced noise is worth in a network: ``-m experiments.deep_noise --out DIR [--quick]``.

Digits, MLP 64-32-32-10, 10 % deleted. Test accuracy after so many epochs of recovery, started from
the clipped and noised old model, from noise alone (the null control), and from a fresh
initialisation (retraining). Writes ``deep_noise.md`` and ``deep_noise.png``.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn

from expunge.deep.descent import Recipe
from expunge.deep.measure import accuracy
from expunge.deep.methods.noisy import ModelClipping, Noised, NoisyFineTune, OutputPerturbation
from expunge.deep.noisy_bounds import kept_share
from expunge.deep.problem import Problem
from expunge.deep.renewal import reinitialised
from expunge.deep.training import cross_entropy, train
from expunge.gaussian import mu_of

DELTA = 1e-5
RECIPE = Recipe(lr=2e-3, epochs=60, batch_size=128, weight_decay=1e-4)
NOTHING = replace(RECIPE, epochs=0)
Pair = tuple[Tensor, Tensor]


def method_of(epsilon: float) -> list[Noised]:
    """Return the methods compared at one ε: radii for it, not chosen by looking at results."""
    claim = {"epsilon": epsilon, "delta": DELTA}
    scale = mu_of(epsilon, DELTA) / mu_of(1.0, DELTA)
    return [
        OutputPerturbation(radius=0.03 * scale, **claim),
        NoisyFineTune(
            start_radius=0.02 * scale,
            step_radius=0.2 * scale,
            lr=0.05,
            weight_decay=1.0,
            steps=2,
            **claim,
        ),
        ModelClipping(radius=0.3, ratio=min(4.0, 2.0 * scale), **claim),
    ]


@dataclass(frozen=True)
class Plan:
    """How much is run."""

    epsilons: tuple[float, ...] = (1.0, 3.0, 10.0, 100.0)
    epochs: tuple[int, ...] = (5, 10, 20)
    seeds: int = 5


@dataclass(frozen=True)
class Line:
    """Mean test accuracy over seeds, by epochs of recovery, and the standard error of the last."""

    name: str
    epsilon: float | None
    start: str
    accuracy: tuple[float, ...]
    error: float


def data(seed: int) -> tuple[Pair, Pair, Pair]:
    """Return F, R and the test set of one split of the digits."""
    X, y = load_digits(return_X_y=True)
    order = np.random.default_rng(seed).permutation(len(y))
    x, t = torch.tensor(X[order] / 16.0, dtype=torch.float32), torch.tensor(y[order])
    return (x[:144], t[:144]), (x[144:1437], t[144:1437]), (x[1437:], t[1437:])


def network() -> nn.Module:
    """Return 64-32-32-10 with tanh."""
    return nn.Sequential(
        nn.Linear(64, 32), nn.Tanh(), nn.Linear(32, 32), nn.Tanh(), nn.Linear(32, 10)
    )


def problems(plan: Plan) -> list[tuple[Problem, Pair]]:
    """Return a trained model and its split for every seed."""
    found = []
    for seed in range(plan.seeds):
        forget, retain, test = data(seed)
        torch.manual_seed(seed)
        whole = (torch.cat([forget[0], retain[0]]), torch.cat([forget[1], retain[1]]))
        model = train(network(), whole, replace(RECIPE, seed=seed))
        problem = Problem(model, cross_entropy, forget, retain, train=RECIPE, seed=seed)
        found.append((problem, test))
    return found


def curve(
    cases: list[tuple[Problem, Pair]], plan: Plan, start: Callable[[Problem], nn.Module]
) -> np.ndarray:
    """Return test accuracies (seeds, epochs) of training from ``start`` on R."""
    rows = []
    for problem, test in cases:
        model = start(problem)
        recipe = replace(RECIPE, seed=problem.seed)
        rows.append(
            [
                accuracy(train(model, problem.retain, replace(recipe, epochs=count)), test)
                for count in plan.epochs
            ]
        )
    return np.array(rows)


def lines(plan: Plan) -> list[Line]:
    """Run everything."""
    cases, found = problems(plan), []

    def add(name: str, epsilon: float | None, start: str, values: np.ndarray) -> None:
        error = float(values[:, -1].std(ddof=1) / np.sqrt(len(values))) if len(values) > 1 else 0.0
        found.append(Line(name, epsilon, start, tuple(values.mean(0).tolist()), error))

    for epsilon in plan.epsilons:
        for method in method_of(epsilon):
            still = replace(method, recovery=NOTHING)
            for start, chosen in (("old model", still), ("zero", still.control())):
                values = curve(cases, plan, lambda p, m=chosen: seeded(m, p).unlearn(p).model)
                add(method.name, epsilon, start, values)
    add("retrain", None, "fresh", curve(cases, plan, lambda p: reinitialised(p.model, p.seed)))
    return found


def seeded(method: Noised, problem: Problem) -> Noised:
    """Return the method with repeatable noise, the same for both starts."""
    return replace(method, noise_seed=problem.seed)


def page(found: list[Line], plan: Plan) -> str:
    """Return the table, and what it says, as Markdown."""
    size = sum(p.numel() for p in network().parameters())
    head = " | ".join(f"{count} epochs" for count in plan.epochs)
    text = [
        "# Enforced noise in a network, and its null control",
        "",
        f"Digits, MLP with {size:,} parameters, 10 % deleted, δ = {DELTA:g}, mean of {plan.seeds} "
        "splits, test accuracy in percent after so many epochs of noiseless recovery on R (± "
        "standard error of the last).",
        "",
        f"| method | ε | kept share ϱ | start | {head} |",
        "|---|---|---|---|" + "---|" * len(plan.epochs),
    ]
    for line in found:
        share = (
            "–" if line.epsilon is None else f"{kept_share(mu_of(line.epsilon, DELTA), size):.2g}"
        )
        values = " | ".join(f"{100 * value:.1f}" for value in line.accuracy)
        epsilon = "–" if line.epsilon is None else f"{line.epsilon:g}"
        text.append(f"| {line.name} | {epsilon} | {share} | {line.start} | {values} |")
    pairs = [
        (old, zero)
        for old in found
        for zero in found
        if old.start == "old model"
        and zero.start == "zero"
        and (old.name, old.epsilon) == (zero.name, zero.epsilon)
    ]
    gains = [max(a - b for a, b in zip(o.accuracy, z.accuracy, strict=True)) for o, z in pairs]
    best = max(zip(gains, pairs, strict=True), key=lambda pair: pair[0])
    text += [
        "",
        f"The most that the old model adds to its null control, anywhere in this table: "
        f"{100 * best[0]:.1f} points ({best[1][0].name}, ε = {best[1][0].epsilon:g}).",
        "",
    ]
    return "\n".join(text)


def plot(found: list[Line], plan: Plan, path: Path) -> None:
    """Draw accuracy against epochs of recovery, one panel per ε."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(
        1, len(plan.epsilons), figsize=(3.2 * len(plan.epsilons), 3.2), sharey=True, squeeze=False
    )
    retrain = next(line for line in found if line.name == "retrain")
    colors = {"output-perturbation": "C0", "noisy-finetune": "C1", "model-clipping": "C2"}
    for axis, epsilon in zip(axes[0], plan.epsilons, strict=True):
        for line in found:
            if line.epsilon == epsilon:
                style = "-" if line.start == "old model" else "--"
                label = f"{line.name}, {line.start}"
                axis.plot(plan.epochs, line.accuracy, style, color=colors[line.name], label=label)
        axis.plot(plan.epochs, retrain.accuracy, "k:", label="retrain, fresh")
        axis.set_title(f"ε = {epsilon:g}")
        axis.set_xlabel("epochs of recovery")
    axes[0, 0].set_ylabel("test accuracy")
    axes[0, -1].legend(fontsize=6)
    figure.tight_layout()
    figure.savefig(path, dpi=150)
    pyplot.close(figure)


def main() -> None:
    """Run and write."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--quick", action="store_true")
    options = parser.parse_args()
    plan = Plan((1.0, 100.0), (1, 2), 1) if options.quick else Plan()
    options.out.mkdir(parents=True, exist_ok=True)
    found = lines(plan)
    text = page(found, plan)
    (options.out / "deep_noise.md").write_text(text)
    plot(found, plan, options.out / "deep_noise.png")
    print(text)


if __name__ == "__main__":
    main()
