"""Residual gradients in networks: ``python -m experiments.deep_residual --out DIR``.

The exact local step is H_R⁻¹[(m/(n−m))∇L_F − (n/(n−m))∇L_D]. Its second term, the residual, is not
zero in a network whose training was stopped; it is often said that a step without it ruins the
model. Here it is left out and kept on nets stopped early and late, for damping λ on both sides of
|λ_min|, with three remedies: (R1) weight decay and polishing until the residual is gone, (R2) the
residual kept, (R3) calibration steps on 1 % of what is retained. Digits, 64-16-10 tanh, float64,
dense eigenvalues. Writes ``deep_residual.md`` and ``deep_residual.png``. Nothing here certifies.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path

import numpy as np

from experiments.deep_residual_steps import QUICK, SAFE, Outcome, Plan, Start, Strong, run
from experiments.summary import mean

COLLAPSE = 5.0
"""Points of test accuracy whose loss is called a collapse."""


EXPECTED = {5: (9.0, -0.18), 20: (6.1, -0.038), 100: (2.7, -0.0035), 400: (1.5, -0.0004)}
"""Ratio of the parts and λ_min, from an earlier run of the same protocol with one seed."""


def start_table(starts: list[Start]) -> list[str]:
    """Return the table of what the starts are like."""
    lines = [
        "| epochs | residual part | forget part | ratio | earlier | λ_min of H_R | earlier | λ_max "
        "| to same-schedule retrain | to retrain from elsewhere | to local retrain |",
        "|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for epochs in dict.fromkeys(at.epochs for at in starts):
        chosen = [at for at in starts if at.epochs == epochs]
        ratio, least = EXPECTED.get(epochs, ("", ""))
        sizes = [(float(at.residual.norm()), float(at.forget.norm())) for at in chosen]
        cells = [
            mean([a for a, _ in sizes]),
            mean([b for _, b in sizes]),
            mean([a / b for a, b in sizes]),
            str(ratio),
            mean([at.smallest for at in chosen]),
            str(least),
            mean([float(at.values[-1]) for at in chosen]),
            *(
                mean([float((getattr(at, to) - at.w).norm()) for at in chosen])
                for to in ("same", "other", "local")
            ),
        ]
        lines.append(f"| {epochs} | {' | '.join(cells)} |")
    return [*lines, ""]


def step_table(found: list[Outcome]) -> list[str]:
    """Return the table of all steps."""
    lines = [
        "| epochs | λ/\\|λ_min\\| | step | moved | ‖∇L_R‖ | test % | retain % | forget % "
        "| distance to local retrain (before = 1) | to same-schedule retrain (before = 1) |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for epochs, ratio, handling in dict.fromkeys((o.epochs, o.ratio, o.handling) for o in found):
        chosen = [o for o in found if (o.epochs, o.ratio, o.handling) == (epochs, ratio, handling)]
        cells = [
            mean([getattr(o, name) for o in chosen])
            for name in ("step", "slope", "test", "retain", "forget", "local", "same")
        ]
        shown = "" if handling == "before" else f"{ratio:g}"
        lines.append(f"| {epochs} | {shown} | {handling} | {' | '.join(cells)} |")
    return [*lines, ""]


def strong_table(found: list[Strong]) -> list[str]:
    """Return the table of R1."""
    lines = [
        "| wd | forgotten | ‖∇L_D‖ after Adam | polished | price, points | left, λ ≈ 0 "
        "| left, λ = 0.01 | left, λ = λ_max | own-initialisation retrain, times farther |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for s in found:
        left = " | ".join(f"{value:.1f} %" for value in s.left)
        lines.append(
            f"| {s.decay:g} | {s.forgotten} | {s.floor:.3f} | {s.polished:.1e} | {s.price:.1f} | "
            f"{left} | {s.other:.1f} |"
        )
    return [*lines, ""]


def verdict(found: list[Outcome]) -> list[str]:
    """Say where test accuracy collapses and where it does not."""
    before = {(o.seed, o.epochs): o.test for o in found if o.handling == "before"}
    starts = list(dict.fromkeys(o.epochs for o in found))
    head = " | ".join(f"{epochs} epochs" for epochs in starts)
    lines = [
        f"A collapse is a loss of more than {COLLAPSE:g} points of test accuracy. Collapses of all "
        "steps, and the worst loss in points:",
        "",
        f"| damping | residual | {head} |",
        "|---|---|" + "---|" * len(starts),
    ]
    for safe, words in ((False, "λ < \\|λ_min\\|"), (True, f"λ ≥ {SAFE:g}\\|λ_min\\|")):
        for handling in dict.fromkeys(o.handling for o in found if o.handling != "before"):
            cells = []
            for epochs in starts:
                lost = [
                    before[o.seed, epochs] - o.test
                    for o in found
                    if (o.epochs, o.handling) == (epochs, handling)
                    and (o.ratio >= SAFE if safe else o.ratio < 1)
                ]
                count = sum(loss > COLLAPSE for loss in lost)
                cells.append(f"{count} of {len(lost)}, {max(lost):.1f}" if lost else "")
            lines.append(f"| {words} | {handling} | {' | '.join(cells)} |")
    return [*lines, ""]


def plot(path: Path, found: list[Outcome]) -> None:
    """Draw accuracy, forget accuracy and distance against λ/|λ_min|, a column per start."""
    from matplotlib.figure import Figure

    rows = (("test", "test accuracy %"), ("forget", "accuracy on what is forgotten %"))
    rows += (("same", "distance to same-schedule\nretrain (before = 1)"),)
    rows += (("local", "distance to local retrain\n(before = 1)"),)
    columns = list(dict.fromkeys(o.epochs for o in found))
    figure = Figure(figsize=(3.4 * len(columns), 11), layout="constrained")
    grid = figure.subplots(len(rows), len(columns), squeeze=False, sharex=True, sharey="row")
    for (name, label), axes in zip(rows, grid, strict=True):
        for epochs, axis in zip(columns, axes, strict=True):
            here = [o for o in found if o.epochs == epochs]
            for handling in dict.fromkeys(o.handling for o in here):
                chosen = [o for o in here if o.handling == handling]
                ratios = sorted({o.ratio for o in chosen})
                values = [
                    np.mean([getattr(o, name) for o in chosen if o.ratio == r]) for r in ratios
                ]
                if handling == "before":
                    axis.axhline(values[0], color="k", ls=":", label="before the step")
                else:
                    axis.semilogx(ratios, values, "o-", ms=3, label=handling)
            axis.axvspan(min(o.ratio for o in here if o.ratio), 1.0, color="0.9", zorder=0)
            if name in ("local", "same"):
                axis.set_yscale("log")
            if name == "local":
                axis.set_xlabel("λ / |λ_min|")
        axes[0].set_ylabel(label)
    for epochs, axis in zip(columns, grid[0], strict=True):
        axis.set_title(f"{epochs} epochs", fontsize=10)
    grid[0][-1].legend(fontsize=7)
    figure.suptitle("Grey: the damped Hessian is indefinite (λ < |λ_min|)", fontsize=10)
    figure.savefig(path, dpi=110)


def page(starts: list[Start], found: list[Outcome], polished: list[Strong]) -> list[str]:
    """Return the Markdown page."""
    return [
        "# Residual gradients in networks",
        "",
        "Digits, 64-16-10 tanh, Adam 2e-3 in batches of 128, 10 % to forget, no weight decay, "
        "float64; means over seeds ± 95 %. Grade of everything here: heuristic.",
        "",
        "## The starts",
        "",
        *start_table(starts),
        "## When the model collapses",
        "",
        *verdict(found),
        "## R1: weight decay and polishing",
        "",
        *strong_table(polished),
        "## All steps",
        "",
        *step_table(found),
    ]


def main() -> None:
    """Run the protocol and write the page and the plot."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--quick", action="store_true", help="a tiny net, few epochs: a smoke test")
    parser.add_argument("--seeds", type=int, help="how many seeds")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    plan = QUICK if options.quick else Plan()
    if options.seeds:
        plan = replace(plan, seeds=tuple(range(options.seeds)))
    starts, found, polished = run(plan)
    lines = page(starts, found, polished)
    (options.out / "deep_residual.md").write_text("\n".join(lines), encoding="utf-8")
    plot(options.out / "deep_residual.png", found)
    print("\n".join(lines))


if __name__ == "__main__":
    main()
