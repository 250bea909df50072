"""Removing data from models that are not at their optimum: ``-m experiments.residual_gradient``.

A model stopped early has a residual gradient g = ∇F_D(w). It is often said that a removal step that
leaves out H⁻¹g ruins the model. For convex models it does not: accuracy stays, and what is lost is
the certificate. Both are measured, with three remedies. Writes ``residual_gradient.md`` and
``residual_gradient.png`` into ``--out``.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from sklearn.datasets import load_digits

from experiments.cases import Case, case_of
from expunge.datasets import fashion_mnist
from expunge.errors import DataMissing
from expunge.guarantee import epsilon_of, mu_of
from expunge.linear import guo
from expunge.linear.residuals import descend, gradient, gram_of, spectral_bound, steps
from expunge.linear.rows import Rows, make_rows
from expunge.linear.shards import chain_length

EPSILON, DELTA, SIGMA = 1.0, 1e-5, 0.01
TOLERANCE = SIGMA * mu_of(EPSILON, DELTA) / 2


@dataclass(frozen=True)
class Outcome:
    """One way to remove, from one model: what it leaves, sum units; and what a release is worth.

    ``proved`` is ``r/Λ``, which the gate compares with the public tolerance; ``epsilon`` is what
    the release, with the policy's noise, really has at δ against an exact retrain.
    """

    start: int
    remedy: str
    residual: float
    distance: float
    proved: float
    epsilon: float
    accuracy: float

    @property
    def certified(self) -> bool:
        """Whether the gate would open."""
        return self.proved <= TOLERANCE


def digits38() -> Case:
    """Digits 3 against 8; the test set is the training set, there is little of it."""
    X, y = load_digits(return_X_y=True)
    keep = (y == 3) | (y == 8)
    X = X[keep] / 16 - 0.5
    X /= np.linalg.norm(X, axis=1, keepdims=True)
    labels = (y[keep] == 3).astype(int)
    target = np.where(labels == 1, 1.0, -1.0)[:, None]
    return Case("digits 3 against 8", make_rows(X, target, intercept=False), X, labels)


def smoothness(rows: Rows, ridge: float) -> float:
    """Return an upper bound of the objective's curvature."""
    return spectral_bound(gram_of(rows), chain_length(rows.length)) / 4 + ridge


def early_stopped(
    rows: Rows, ridge: float, grid: tuple[int, ...]
) -> Iterator[tuple[int, np.ndarray]]:
    """Yield models after the numbers of gradient steps in ``grid``."""
    w, done, smooth = np.zeros((rows.width, 1)), 0, smoothness(rows, ridge)
    for count in grid:
        w, done = descend(rows, w, ridge, count - done, smooth), count
        yield count, w


def outcomes(case: Case, ridge: float, grid: tuple[int, ...], gone: np.ndarray) -> list[Outcome]:
    """Remove ``gone`` from every early-stopped model in every way."""
    left = case.rows.without(gone)
    optimum, _ = guo.solve(left, ridge / left.count, np.zeros((left.width, 1)))
    smooth, found = smoothness(left, ridge), []
    for start, w in early_stopped(case.rows, ridge, grid):
        points = steps(case.rows, gone, w, ridge)
        for extra in (10, 100):
            points[f"short + {extra} steps"] = descend(left, points["short"], ridge, extra, smooth)
        for remedy, point in points.items():
            r = float(np.linalg.norm(gradient(left, point, ridge)))
            distance = float(np.linalg.norm(point - optimum))
            epsilon = epsilon_of(distance / SIGMA, DELTA)
            accuracy = case.accuracy(point)
            found.append(Outcome(start, remedy, r, distance, r / ridge, epsilon, accuracy))
    return found


def table(title: str, found: list[Outcome]) -> list[str]:
    """Return a Markdown table."""
    head = "| stopped after | removal | ‖∇F_R‖ | distance to ŵ_R | r/Λ | gate | real ε | accuracy |"
    return [
        f"### {title}",
        "",
        head,
        "|---|---|---|---|---|---|---|---|",
        *(
            f"| {o.start} | {o.remedy} | {o.residual:.2e} | {o.distance:.2e} | {o.proved:.2e} | "
            f"{'opens' if o.certified else 'refuses'} | {o.epsilon:.3g} | {o.accuracy:.4f} |"
            for o in found
        ),
        "",
    ]


def plot(path: Path, drawn: list[tuple[str, list[Outcome]]]) -> None:
    """Draw accuracy and proved distance against how long the model was trained."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 3.8 * len(drawn)), layout="constrained")
    axes = figure.subplots(len(drawn), 2, squeeze=False)
    for (title, found), (left, right) in zip(drawn, axes, strict=True):
        for remedy in dict.fromkeys(o.remedy for o in found):
            chosen = [o for o in found if o.remedy == remedy]
            starts = [o.start for o in chosen]
            left.semilogx(starts, [o.accuracy for o in chosen], "o-", label=remedy)
            right.loglog(starts, [o.proved for o in chosen], "o-", label=remedy)
        right.axhline(TOLERANCE, color="k", ls=":", label="public tolerance")
        for axis in (left, right):
            axis.set_xticks(starts, [str(start) for start in starts], minor=False)
            axis.set_xticks([], minor=True)
        left.set(title=title, xlabel="gradient steps before removal", ylabel="accuracy")
        left.set_ylim(0.4, 1.0)
        right.set(xlabel="gradient steps before removal", ylabel="proved distance r/Λ")
        right.legend(fontsize=7)
    figure.savefig(path, dpi=110)


def main() -> None:
    """Run both data sets, weak and strong penalty, and write the page."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--quick", action="store_true", help="fewer rows and steps")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    grid = (20, 100, 300) if options.quick else (20, 100, 300, 1000, 3000)
    lines = [
        "# Residual gradients",
        "",
        f"σ = {SIGMA:g}, (ε, δ) = ({EPSILON:g}, {DELTA:g}), one release: the public tolerance is "
        f"{TOLERANCE:.2e}, a distance.",
        "",
    ]
    runs = [(digits38(), 1.0, 10), (digits38(), 30.0, 10)]
    try:
        limit = 2000 if options.quick else None
        clothes = case_of("Fashion pullover against shirt", fashion_mnist(), (2, 6), limit)
        runs += [(clothes, 1.0, 100), (clothes, 100.0, 100)]
    except DataMissing as error:
        lines += [str(error), ""]
    drawn = []
    for case, ridge, count in runs:
        title = f"{case.name}, Λ = {ridge:g}, {count} rows deleted"
        found = outcomes(case, ridge, grid, np.arange(count))
        drawn.append((title, found))
        lines += table(title, found)
    (options.out / "residual_gradient.md").write_text("\n".join(lines), encoding="utf-8")
    plot(options.out / "residual_gradient.png", drawn)
    print("\n".join(lines))


if __name__ == "__main__":
    main()
