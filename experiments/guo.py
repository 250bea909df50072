"""Guo et al. (2020), Figures 1 and 2 and the timing table: ``python -m experiments.guo --out DIR``.

Writes ``guo.md`` and ``guo.png``. Every time is wall time of this process and on whatever cores it
has; compare ratios. Data that are not here are named and left out; full MNIST is read from IDX
files (``--mnist DIR``), features from the files given by ``--newsgroups`` and ``--cifar``.
"""

from __future__ import annotations

import argparse
import importlib.util
import time
from dataclasses import astuple, dataclass, fields, replace
from pathlib import Path

import numpy as np
from sklearn import linear_model

from experiments.cases import Case, cases
from expunge.guarantee import Guarantee, grade_of, tolerance_for
from expunge.linear import engine, guo
from expunge.linear.residuals import Bounds, gradient, residual_bounds
from expunge.linear.rows import Rows, make_rows
from expunge.noise import OsEntropy, Seeded

EPSILON, DELTA = 1.0, 1e-4
OURS_SIGMA = 0.01
DRAWS = 20
PUBLISHED = {"MNIST 3 against 8": "accuracy ≈ 0.949, ≈ 270 removals (λ = 1e-3, σ = 10)"}


def paper(l2: float, sigma: float) -> guo.Mechanism:
    """Return the paper's mechanism at the paper's (ε, δ)."""
    return guo.Mechanism(l2, sigma, EPSILON, DELTA)


@dataclass(frozen=True)
class Chain:
    """Single removals at one setting: bounds per removal (m, 7), joint over outputs; and truths."""

    accuracy: float
    bounds: np.ndarray
    true: np.ndarray
    seconds: float
    state: guo.State
    retained: Rows

    def supported(self, bound: str, budget: float) -> float:
        """Return how many removals fit the budget at the mean growth of a bound."""
        column = [field.name for field in fields(Bounds)].index(bound)
        return budget / float(self.bounds[:, column].mean())


def chain(case: Case, l2: float, sigma: float, count: int) -> Chain:
    """Train with a seeded b (an experiment, no certificate) and delete ``count`` rows singly.

    The budget is left open, so that the bounds can be measured beyond it.
    """
    open_budget = guo.Mechanism(l2, sigma, 1e9, DELTA, "library")
    state = guo.train(case.rows, open_budget, Seeded(0))
    accuracy = case.accuracy(state.weights)
    bounds, true, seconds = [], [], 0.0
    left = case.rows.without(np.zeros(0, dtype=int))
    for i in range(count):
        row = left.take(np.array([i]))
        left.drop(np.array([i]))
        old, start = state, time.perf_counter()
        state = guo.remove(state, row, left, Seeded(1))
        seconds += time.perf_counter() - start
        moved = state.weights - old.weights
        each = [
            astuple(
                residual_bounds(
                    left.outputs(k),
                    old.weights[:, k],
                    moved[:, k],
                    gram=state.gram,
                    l2=l2,
                    removed=1,
                )
            )
            for k in (slice(j, j + 1) for j in range(moved.shape[1]))
        ]
        bounds.append(np.linalg.norm(np.array(each), axis=0))
        slope = gradient(left, state.weights, l2 * left.count) + state.b
        true.append(float(np.linalg.norm(slope)))
    return Chain(accuracy, np.array(bounds), np.array(true), seconds / count, state, left)


def timings(case: Case, l2: float, found: Chain) -> list[tuple[str, float, str]]:
    """Time honest retrains on what is left after the chain: warm and cold, tight and default."""
    left, b = found.retained, found.state.b
    rows = []
    for name, start in (("cold", None), ("warm", found.state.weights)):
        began = time.perf_counter()
        _, gates = guo.solve(left, l2, b, start)
        spent = time.perf_counter() - began
        rows.append((f"retrain L_b, Newton, {name}", spent, f"{np.linalg.norm(gates):.1e}"))
    live = left.weight > 0
    X, T = np.asarray(left.X)[live], left.target[live]
    for name in ("cold", "warm"):
        spent, slopes = 0.0, []
        for k in range(T.shape[1]):
            model = linear_model.LogisticRegression(
                C=1 / (l2 * len(X)), fit_intercept=False, warm_start=name == "warm"
            )
            if name == "warm":
                model.fit(np.asarray(case.rows.X), case.rows.target[:, k])
            began = time.perf_counter()
            model.fit(X, T[:, k])
            spent += time.perf_counter() - began
            slopes.append(gradient(left.outputs(slice(k, k + 1)), model.coef_.T, l2 * len(X)))
        gate = float(np.linalg.norm(np.hstack(slopes)))
        rows.append((f"retrain, scikit-learn L-BFGS, {name} (b = 0)", spent, f"{gate:.1e}"))
    return rows


@dataclass(frozen=True)
class Ours:
    """The engine's removals at the same Λ = λn and (ε, δ), for the whole transcript."""

    count: int
    seconds: float
    passes: int
    refreshes: int
    before: float
    lost: float
    after: float
    retrained: float
    promise: Guarantee


def ours(case: Case, l2: float, count: int) -> Ours:
    """Delete ``count`` rows one by one, each with its own release, under one public tolerance."""
    loss = "logistic" if case.rows.target.shape[1] == 1 else "logistic-ovr"
    public = {
        "loss": loss,
        "l2": l2 * case.rows.count,
        "tolerance": tolerance_for(OURS_SIGMA, EPSILON, DELTA, count),
        "classes": True,
    }
    state, _ = engine.fit(case.rows, **public)
    source = OsEntropy()

    def release() -> np.ndarray:
        return state.weights + OURS_SIGMA * source.normal(state.weights.shape)

    before = case.accuracy(state.weights)
    lost = before - float(np.mean([case.accuracy(release()) for _ in range(DRAWS)]))
    left = case.rows.without(np.zeros(0, dtype=int))
    passes = refreshes = 0
    began = time.perf_counter()
    for i in range(count):
        row = left.take(np.array([i]))
        left.drop(np.array([i]))
        state, trace = engine.unlearn(state, row, left)
        passes, refreshes = passes + trace.passes, refreshes + trace.refreshes
        published = release()
    seconds = (time.perf_counter() - began) / count
    again, _ = engine.fit(left.take(left.weight > 0), **public)
    promise = Guarantee.for_transcript(EPSILON, DELTA, count, count)
    return Ours(
        count,
        seconds,
        passes,
        refreshes,
        before,
        lost,
        case.accuracy(published),
        case.accuracy(again.weights),
        promise,
    )


@dataclass(frozen=True)
class Plan:
    """How much is measured."""

    l2s: tuple[float, ...]
    sigmas: tuple[float, ...]
    cell: int
    chain: int
    ours: int


def grid(case: Case, plan: Plan) -> list[tuple[float, float, float, float, float]]:
    """Return (λ, σ, accuracy, removals by Corollary 1, removals by our bound and budget)."""
    found = []
    for l2 in plan.l2s:
        for sigma in plan.sigmas:
            cell = chain(case, l2, sigma, plan.cell)
            library = guo.Mechanism(l2, sigma, EPSILON, DELTA, "library")
            supported = [
                cell.supported("corollary_paper", paper(l2, sigma).budget),
                cell.supported("sharp", library.budget),
            ]
            found.append((l2, sigma, cell.accuracy, *supported))
    return found


def report(
    case: Case, l2: float, plan: Plan, found: Chain, cells: list[tuple[float, ...]]
) -> list[str]:
    """Return one case's part of the page."""
    n, d, outputs = case.rows.count, case.rows.width, case.rows.target.shape[1]
    lines = [f"## {case.name}", "", f"n = {n:,}, d = {d}, outputs = {outputs}.", ""]
    if case.name in PUBLISHED:
        lines += [f"Published (n = 11,982, as quoted, not verified): {PUBLISHED[case.name]}.", ""]
    if cells:
        lines += [
            "Figure 1: accuracy, and removals that the budget supports at the mean growth over "
            f"{plan.cell} removals.",
            "",
            "| λ | σ | accuracy | Cor. 1, σε/c (paper) | sharp, σμ(ε, δ) (ours) |",
            "|---|---|---|---|---|",
            *(f"| {a:g} | {s:g} | {acc:.4f} | {p:,.0f} | {o:,.0f} |" for a, s, acc, p, o in cells),
            "",
        ]
    total = found.bounds.sum(axis=0)
    names = [field.name for field in fields(Bounds)]
    lines += [
        f"Figure 2: residual after {len(found.bounds)} removals, λ = {l2:g}, σ = 10, sum units.",
        "",
        "| bound | cumulative |",
        "|---|---|",
        f"| true ‖∇L_b‖ | {found.true[-1]:.3e} |",
        *(f"| {name} | {value:.3e} |" for name, value in zip(names, total, strict=True)),
        "",
    ]
    mine = ours(case, l2, min(plan.ours, n - 2 * outputs - 100))
    lines += ["| operation | seconds | residual after | times Guo |", "|---|---|---|---|"]
    lines.append(f"| Guo, one removal | {found.seconds:.4f} | {found.true[-1]:.1e} | 1 |")
    lines += [
        f"| {name} | {spent:.4f} | {gate} | {spent / found.seconds:.2f} |"
        for name, spent, gate in timings(case, l2, found)
    ]
    lines += [
        f"| ours, one removal (mean of {mine.count:,}) | {mine.seconds:.5f} | within τ | "
        f"{mine.seconds / found.seconds:.4f} |",
        "",
        f"Ours: Λ = λn, noise σ = {OURS_SIGMA:g}, {mine.count:,} single deletions, each with its "
        f"own release, ({EPSILON:g}, {DELTA:g}) for all of them together. {mine.passes:,} passes "
        f"over what is retained, {mine.refreshes} new Hessians, no retrain. Accuracy before "
        f"noise {mine.before:.4f}; noise costs {100 * mine.lost:.3f} points (mean of {DRAWS} "
        f"draws). The last release has {mine.after:.4f}, a noiseless retrain on the "
        f"{n - mine.count:,} rows left {mine.retrained:.4f}. Guo's bound: one release, "
        f"{found.supported('corollary_paper', paper(l2, 10.0).budget):,.0f} removals at "
        f"σ = 10, accuracy {found.accuracy:.4f}.",
        "",
    ]
    return lines


def with_extractor(case: Case, plan: Plan) -> list[str]:
    """Return the part about a head on a network trained with differential privacy (Theorem 5)."""
    title = [f"### {case.name}, head on a differentially private extractor", ""]
    if not all(importlib.util.find_spec(name) for name in ("torch", "opacus")):
        return [*title, "Left out: pip install torch opacus", ""]
    from experiments.private_extractor import private_features

    X, labels = np.asarray(case.rows.X), (case.rows.target[:, 0] > 0).astype(np.int64)
    *features, claim = private_features(X, labels, case.X_test)
    X, X_test = (f / np.linalg.norm(f, axis=1, keepdims=True) for f in features)
    rows = make_rows(X, case.rows.target, intercept=False)
    found = chain(Case(case.name, rows, X_test, case.y_test), 1e-3, 10.0, plan.chain)
    mechanism = replace(paper(1e-3, 10.0), extractor=claim)
    source, index = OsEntropy(), np.array([0])
    state = guo.train(rows, mechanism, source)
    state = guo.remove(state, rows.take(index), rows.without(index), source)
    promise, needs = guo.promise(state)
    supported = found.supported("corollary_paper", mechanism.budget)
    ten = claim.group(10)
    return [
        *title,
        f"Extractor ({claim.epsilon:.3g}, {claim.delta:g}) by Opacus's accountant, taken as given. "
        f"Head: λ = 1e-3, σ = 10, accuracy {found.accuracy:.4f}, {supported:,.0f} removals in the "
        f"budget, {found.seconds:.4f} s per removal. One record: ({promise.epsilon:.3g}, "
        f"{promise.delta:.3g}), grade {grade_of(promise.kind, needs)}. Ten records: "
        f"({ten[0] + EPSILON:.3g}, {ten[1] + DELTA:.3g}), since the extractor saw all ten.",
        "",
    ]


def plot(path: Path, drawn: list[tuple[str, Chain, list[tuple[float, ...]]]]) -> None:
    """Draw Figure 1 (accuracy, supported removals) and Figure 2, one row per case."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(13, 3.6 * len(drawn)), layout="constrained")
    axes = figure.subplots(len(drawn), 3, squeeze=False)
    for (name, found, cells), (left, middle, right) in zip(drawn, axes, strict=True):
        for sigma in sorted({cell[1] for cell in cells}):
            l2s, _, accuracy, paper, library = zip(
                *(c for c in cells if c[1] == sigma), strict=True
            )
            left.semilogx(l2s, accuracy, "o-", label=f"σ = {sigma:g}")
            (line,) = middle.loglog(l2s, paper, "o-", label=f"Cor. 1, σ = {sigma:g}")
            middle.loglog(l2s, library, "o--", color=line.get_color(), label=f"ours, σ = {sigma:g}")
        right.set_title(name)
        left.set(xlabel="λ", ylabel="test accuracy")
        middle.set(xlabel="λ", ylabel="removals supported")
        count = np.arange(1, len(found.bounds) + 1)
        shown = ("theorem_paper", "corollary_paper", "self_concordant", "sharp")
        for index, field in enumerate(fields(Bounds)):
            if field.name in shown:
                label = field.name.replace("_", " ")
                right.semilogy(count, np.cumsum(found.bounds[:, index]), label=label)
        right.semilogy(count, found.true, "k", label="true")
        right.set(xlabel="removals", ylabel="gradient residual (sum)")
        for axis in (left, middle, right):
            axis.set_visible(bool(axis.lines))
            if axis.lines:
                axis.legend(fontsize=7)
    figure.savefig(path, dpi=110)


def main() -> None:
    """Run all cases and write the page."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--quick", action="store_true", help="2,000 rows a case, few removals")
    parser.add_argument("--mnist", type=Path, help="folder of the MNIST IDX files")
    parser.add_argument("--newsgroups", type=Path, help="newsgroups-minilm-384.npz")
    parser.add_argument("--cifar", type=Path, help="cifar10-efficientnet-512.npz")
    parser.add_argument("--only", nargs="*", help="words of the names of the cases to run")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    full = Plan((1e-4, 1e-3, 1e-2, 1e-1), (1.0, 10.0, 100.0), 4, 100, 10_000)
    plan = Plan((1e-3, 1e-2), (1.0, 10.0), 3, 10, 500) if options.quick else full
    lines: list[str] = ["# Certified removal, Guo et al. (2020), against the engine", ""]
    lines += [f"(ε, δ) = ({EPSILON:g}, {DELTA:g}), unit rows, wall times as they came.", ""]
    drawn = []
    for case in cases(options, lines):
        outputs = case.rows.target.shape[1]
        cells = grid(case, plan) if outputs == 1 else []
        found = chain(case, 1e-3, 10.0, plan.chain if outputs == 1 else 5)
        drawn.append((case.name, found, cells))
        lines += report(
            case, 1e-3, plan if outputs == 1 else replace(plan, ours=plan.ours // 20), found, cells
        )
        if case.rows.width == 784:
            lines += with_extractor(case, plan)
        (options.out / "guo.md").write_text("\n".join(lines), encoding="utf-8")
        plot(options.out / "guo.png", drawn)
    print("\n".join(lines))


if __name__ == "__main__":
    main()
