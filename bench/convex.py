"""Deleting against retraining: ``python -m bench.convex [--quick]``.

Prints ``name<TAB>value<TAB>unit`` lines. Times are wall seconds of this process on whatever cores
it has; compare the ratios, which are taken within one run. scikit-learn is given its best case: the
rows it retrains on are prepared before the clock starts.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
from scipy.special import expit
from sklearn import linear_model

from expunge.datasets import fashion_mnist, rand_health
from expunge.errors import DataMissing
from expunge.folder.encoding import Encoding
from expunge.folder.labels import LabelEncoding
from expunge.folder.table import from_arrow
from expunge.guarantee import epsilon_of
from expunge.linear import LogisticRegression
from expunge.linear.engine import unlearn
from expunge.linear.lineage import Lineage
from expunge.linear.rows import Rows


@dataclass(frozen=True)
class Case:
    """A binary problem: training rows, test rows, and the noise it is published with."""

    name: str
    X: np.ndarray
    y: np.ndarray
    X_test: np.ndarray
    y_test: np.ndarray
    sigma: float


def fashion() -> Case:
    """Fashion-MNIST pullover against shirt, rows normalised."""
    data = fashion_mnist()
    found = []
    for X, y in ((data.X, data.y), (data.X_test, data.y_test)):
        keep = (y == 2) | (y == 6)
        rows = X[keep].reshape(keep.sum(), -1).astype(float)
        found += [rows / np.linalg.norm(rows, axis=1, keepdims=True), (y[keep] == 6).astype(int)]
    return Case("fashion", *found, sigma=0.01)


def people() -> Case:
    """The demo's data: the RAND Health Insurance Experiment, one tenth of the people held out."""
    data = rand_health()
    table = from_arrow(data.table, label=data.label, identifier=data.identifier, source="RAND")
    encoding = Encoding.declared(data.schema)
    X, y = encoding.encode(table), LabelEncoding.declared(data.schema["label"]).encode(table)
    ids = np.asarray(table.ids.to_pylist())
    test = np.isin(ids, np.unique(ids)[::10])
    return Case("people", X[~test], y[~test], X[test], y[test], sigma=0.01)


def synthetic(n: int) -> Case:
    """Gaussian features, labels from a logistic model."""
    rng = np.random.default_rng(0)
    d = 100
    X = rng.standard_normal((n + n // 10, d))
    y = (rng.random(len(X)) < expit(X @ (2 * rng.standard_normal(d) / d**0.5))).astype(int)
    return Case("synthetic", X[:n], y[:n], X[n:], y[n:], sigma=0.01)


def cases(quick: bool) -> Iterator[Case]:
    """Yield the cases whose data are here; name the others on stderr."""
    makers: list[Callable[[], Case]] = [fashion, people]
    for make in (*makers, lambda: synthetic(100_000 if quick else 1_000_000)):
        try:
            yield make()
        except DataMissing as error:
            print(error, file=sys.stderr)


def timed(work: Callable[[], object], repeat: int = 1) -> float:
    """Return the best wall time of ``repeat`` runs."""
    best = float("inf")
    for _ in range(repeat):
        start = time.perf_counter()
        work()
        best = min(best, time.perf_counter() - start)
    return best


def show(*name: str, value: float, unit: str) -> None:
    """Print one line of the result."""
    print(f"{'.'.join(name)}\t{value:.6g}\t{unit}", flush=True)


def residual(model: object, X: np.ndarray, y: np.ndarray) -> float:
    """Return ‖∇F‖ of the sum objective, the intercept included."""
    w, b = model.coef_[0], model.intercept_[0]  # type: ignore[attr-defined]
    c = expit(X @ w + b) - y
    return float(np.hypot(np.linalg.norm(X.T @ c + w), c.sum()))


def retrains(case: Case, keep: np.ndarray, start: object, target: float) -> dict[str, float]:
    """Time scikit-learn's retrain on ``keep``: default, and to a residual of ``target``."""
    X, y = case.X[keep], case.y[keep]
    times = {"default": timed(lambda: linear_model.LogisticRegression().fit(X, y))}
    tight = {"solver": "newton-cholesky", "tol": target / len(y) / X.shape[1] ** 0.5}
    tight |= {"max_iter": 100}
    cold = linear_model.LogisticRegression(**tight)
    times["cold"] = timed(lambda: cold.fit(X, y))
    warm = linear_model.LogisticRegression(**tight, warm_start=True)
    warm.classes_ = np.unique(y)
    warm.coef_, warm.intercept_ = start.coef_.copy(), start.intercept_.copy()  # type: ignore[attr-defined]
    times["warm"] = timed(lambda: warm.fit(X, y))
    show(case.name, "sklearn_default_residual", value=residual(_default(X, y), X, y), unit="sum")
    show(case.name, "sklearn_tight_residual", value=residual(cold, X, y), unit="sum")
    return times


def _default(X: np.ndarray, y: np.ndarray) -> linear_model.LogisticRegression:
    return linear_model.LogisticRegression().fit(X, y)


def singles(case: Case, model: LogisticRegression, live: Rows, count: int) -> tuple[float, float]:
    """Delete ``count`` rows one by one; return seconds each, with and without the release."""
    state, bare = model._lineage.state, 0.0
    start = time.perf_counter()
    for i in range(count):
        live.drop(np.array([i]))
        model.unlearn(case.X[i : i + 1], case.y[i : i + 1], retained=live)
    full = time.perf_counter() - start
    again = model.rows(case.X, case.y)
    for i in range(count):
        row = again.take(np.array([i]))
        again.drop(np.array([i]))
        start = time.perf_counter()
        state, _ = unlearn(state, row, again)
        bare += time.perf_counter() - start
    return full / count, bare / count


def realised(lineage: Lineage, truth: np.ndarray) -> float:
    """Return the ε that the last release really had, at the policy's δ (auditor's knowledge)."""
    moved = float(np.linalg.norm(lineage.state.weights - truth))
    return epsilon_of(moved / lineage.policy.sigma, lineage.policy.delta)


def run(case: Case, count: int) -> None:
    """Measure one case."""
    name = case.name
    show(name, "rows", value=len(case.y), unit="rows")
    show(name, "features", value=case.X.shape[1], unit="columns")
    model = LogisticRegression(sigma=case.sigma)
    show(name, "fit", value=timed(lambda: model.fit(case.X, case.y)), unit="s")
    show(name, "accuracy_before", value=model.score(case.X_test, case.y_test), unit="fraction")
    before = linear_model.LogisticRegression(solver="newton-cholesky", tol=1e-10)
    before.fit(case.X, case.y)
    live = model.rows(case.X, case.y)
    show(name, "match_rows_once", value=timed(lambda: model._lineage.match(live)), unit="s")
    full, bare = singles(case, model, live, count)
    show(name, "single_with_release", value=full, unit="s")
    show(name, "single_without_release", value=bare, unit="s")
    size = len(case.y) // 100
    gone = np.arange(count, count + size)
    keep = np.arange(count + size, len(case.y))
    live.drop(gone)
    batch = timed(lambda: model.unlearn(case.X[gone], case.y[gone], retained=live))
    show(name, "batch_1_percent", value=batch, unit="s")
    found = residual(_noiseless(model), case.X[keep], case.y[keep])
    show(name, "our_residual", value=found, unit="sum")
    times = retrains(case, keep, before, found)
    for kind, seconds in times.items():
        show(name, f"sklearn_retrain_{kind}", value=seconds, unit="s")
    show(name, "single_speedup_default", value=times["default"] / full, unit="times")
    show(name, "single_speedup_default_bare", value=times["default"] / bare, unit="times")
    show(name, "batch_speedup_cold", value=times["cold"] / batch, unit="times")
    show(name, "batch_speedup_warm", value=times["warm"] / batch, unit="times")
    again = LogisticRegression(sigma=case.sigma).fit(case.X[keep], case.y[keep])
    show(name, "accuracy_after", value=model.score(case.X_test, case.y_test), unit="fraction")
    show(name, "accuracy_retrained", value=again.score(case.X_test, case.y_test), unit="fraction")
    truth = again._lineage.state.weights
    show(name, "epsilon_certified", value=model.policy_.epsilon, unit="epsilon, all releases")
    one = epsilon_of(model.policy_.mu_per_release, model.policy_.delta)
    show(name, "epsilon_certified_one", value=one, unit="epsilon, one release")
    show(name, "epsilon_realised", value=realised(model._lineage, truth), unit="epsilon")
    mu = float(np.linalg.norm(model._lineage.state.weights - truth)) / case.sigma
    show(name, "mu_certified_one", value=model.policy_.mu_per_release, unit="mu")
    show(name, "mu_realised", value=mu, unit="mu")


def _noiseless(model: LogisticRegression) -> object:
    weights = model._lineage.state.weights

    class Weights:
        coef_, intercept_ = weights[:-1].T, weights[-1]

    return Weights


def main() -> None:
    """Run all cases."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="a tenth of the synthetic rows")
    quick = parser.parse_args().quick
    for case in cases(quick):
        run(case, 20 if quick else 100)


if __name__ == "__main__":
    main()
