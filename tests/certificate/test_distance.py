"""The recomputed distance bound against optima found by SciPy and against the theory's vectors."""

from __future__ import annotations

import math
from typing import Any

import mpmath
import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy.optimize import minimize
from scipy.special import expit, log_softmax, softmax

from expunge.certificate.curvature import factor
from expunge.certificate.distance import distance_bound
from expunge.certificate.residual import UNIT, Rows, gradient
from expunge.errors import InvalidInput

Array = NDArray[np.float64]


def problem(rng: np.random.Generator, loss: str, n: int, d: int, scale: float = 1.0) -> Rows:
    outputs = {"logistic": 1, "softmax": 3, "logistic-ovr": 3}.get(loss, 2)
    X = scale * rng.normal(size=(n, d)) * rng.uniform(0.1, 2, size=d)
    scores = X @ rng.normal(size=(d, outputs)) + rng.normal(size=(n, outputs))
    if loss == "softmax":
        target = np.eye(outputs)[scores.argmax(axis=1)]
    else:
        real = loss in ("squared", "huber")
        target = scores if real else np.where(scores > 0, 1.0, -1.0)
    weight = np.where(rng.random(n) < 0.2, 0.0, rng.uniform(0.5, 2, n))
    return Rows(X, target, weight)


def derivatives(rows: Rows, W: Array, loss: str, l2: float, intercept: bool) -> tuple[Array, Array]:
    """Dense reference: gradient (pC,) and Hessian (pC, pC), class-major."""
    X = rows.features if isinstance(rows.features, np.ndarray) else rows.features.toarray()
    X = np.column_stack([X, np.ones(len(X))]) if intercept else X
    p, outputs = W.shape
    M, s = X @ W, rows.weight
    penalty = np.full(p, l2)
    penalty[p - intercept :] = 0
    H = np.zeros((p * outputs, p * outputs))
    if loss == "softmax":
        P = softmax(M, axis=1)
        first = P - rows.target
        for k in range(outputs):
            for j in range(outputs):
                h = s * P[:, k] * ((k == j) - P[:, j])
                H[k * p : k * p + p, j * p : j * p + p] = X.T @ (X * h[:, None])
    else:
        squared = loss == "squared"
        first = M - rows.target if squared else -rows.target * expit(-rows.target * M)
        second = np.ones_like(M) if squared else expit(M) * expit(-M)
        for k in range(outputs):
            h = s * second[:, k]
            H[k * p : k * p + p, k * p : k * p + p] = X.T @ (X * h[:, None])
    g = X.T @ (s[:, None] * first) + penalty[:, None] * W
    return g.T.ravel(), H + np.diag(np.tile(penalty, outputs))


def value(rows: Rows, W: Array, loss: str, l2: float, intercept: bool) -> float:
    X = np.column_stack([rows.features, np.ones(len(rows.weight))]) if intercept else rows.features
    M = X @ W
    if loss == "softmax":
        each = -(log_softmax(M, axis=1) * rows.target).sum(axis=1)
    elif loss == "squared":
        each = 0.5 * ((M - rows.target) ** 2).sum(axis=1)
    else:
        each = np.logaddexp(0, -rows.target * M).sum(axis=1)
    penalised = W[:-1] if intercept else W
    return float(rows.weight @ each + l2 / 2 * (penalised**2).sum())


def optimum(rows: Rows, loss: str, l2: float, intercept: bool) -> Array:
    """SciPy's minimiser, polished by Newton steps of the dense reference."""
    shape = (rows.features.shape[1] + intercept, rows.target.shape[1])

    def table(flat: Array) -> Array:
        return flat.reshape(shape[::-1]).T

    found = minimize(
        lambda flat: value(rows, table(flat), loss, l2, intercept),
        np.zeros(shape[0] * shape[1]),
        jac=lambda flat: derivatives(rows, table(flat), loss, l2, intercept)[0],
        method="L-BFGS-B",
        options={"maxiter": 5000, "ftol": 1e-14, "gtol": 1e-9},
    ).x
    for _ in range(6):
        g, H = derivatives(rows, table(found), loss, l2, intercept)
        found = found - np.linalg.lstsq(H, g, rcond=1e-13)[0]
    W = table(found)
    if loss == "softmax" and intercept:
        W[-1] -= W[-1].mean()
    return W


LOSSES = ["logistic", "softmax", "logistic-ovr", "squared"]


@settings(max_examples=120, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    loss=st.sampled_from(LOSSES),
    intercept=st.booleans(),
    n=st.integers(2, 60),
    d=st.integers(1, 6),
    l2=st.sampled_from([0.01, 1.0, 30.0]),
    scale=st.sampled_from([0.05, 1.0, 20.0]),
    step=st.sampled_from([0.0, 1e-9, 1e-4, 1e-2, 0.3]),
)
def test_bound_is_never_below_the_true_distance(
    seed: int, loss: str, intercept: bool, n: int, d: int, l2: float, scale: float, step: float
) -> None:
    rng = np.random.default_rng(seed)
    rows = problem(rng, loss, n, d, scale)
    rows.weight[0] = 1.0
    best = optimum(rows, loss, l2, intercept)
    W = best + step * rng.normal(size=best.shape)
    if loss == "softmax" and intercept:
        W[-1] -= W[-1].mean()
    found = distance_bound(rows, W, loss, l2, intercept)
    truth = float(np.linalg.norm(W - best))
    g, H = derivatives(rows, best, loss, l2, intercept)
    kept = np.linalg.eigvalsh(H)[1 if loss == "softmax" and intercept else 0]
    unsure = (np.linalg.norm(g) + 1e-13) / max(kept, 1e-300) if intercept else 1e-9
    assert truth <= found.bound * (1 + 1e-6) + unsure


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("intercept", [False, True])
def test_bound_is_tight_near_the_optimum(loss: str, intercept: bool) -> None:
    rng = np.random.default_rng(5)
    rows = problem(rng, loss, 400, 5)
    best = optimum(rows, loss, 1.0, intercept)
    step = 1e-6 * rng.normal(size=best.shape)
    if loss == "softmax" and intercept:
        step[-1] -= step[-1].mean()
    found = distance_bound(rows, best + step, loss, 1.0, intercept)
    truth = float(np.linalg.norm(step))
    assert truth <= found.bound <= 40 * truth
    assert found.rounding < 1e-10


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("intercept", [False, True])
def test_sparse_rows_give_the_same(loss: str, intercept: bool) -> None:
    rng = np.random.default_rng(6)
    rows = problem(rng, loss, 80, 4)
    rows.features[rng.random((80, 4)) < 0.5] = 0.0  # type: ignore[index]
    sparse = Rows(sp.csr_array(rows.features), rows.target, rows.weight)
    W = optimum(rows, loss, 1.0, intercept) + 1e-3
    if loss == "softmax" and intercept:
        W[-1] -= W[-1].mean()
    dense = distance_bound(rows, W, loss, 1.0, intercept)
    other = distance_bound(sparse, W, loss, 1.0, intercept)
    assert math.isfinite(dense.bound)
    assert other.bound == pytest.approx(dense.bound, rel=1e-9)
    assert other.residual == pytest.approx(dense.residual, rel=1e-12)


@pytest.mark.parametrize("loss", [*LOSSES, "squared-hinge", "huber"])
@pytest.mark.parametrize("scale", [1e-6, 1.0, 1e4])
def test_rounding_bound_covers_the_error_against_fifty_digits(loss: str, scale: float) -> None:
    rng = np.random.default_rng(7)
    rows = problem(rng, loss, 12, 3, scale)
    W = rng.normal(size=(4, rows.target.shape[1])) / scale
    found = gradient(rows, W, loss, 0.5, True)
    exact = _exact_gradient(rows, W, loss, 0.5)
    with mpmath.workdps(50):
        error = mpmath.sqrt(
            sum((exact[i][k] - mpmath.mpf(found.value[i, k])) ** 2 for i, k in np.ndindex(W.shape))
        )
    assert float(error) <= found.error
    assert found.error <= 1e-13 * (1 + np.linalg.norm(found.value) + np.linalg.norm(W))


@pytest.mark.parametrize("loss", [*LOSSES, "squared-hinge", "huber"])
def test_rounding_bound_covers_margins_that_cancel(loss: str) -> None:
    """Large opposite features, almost equal weights: the margins' error is all that counts."""
    rng = np.random.default_rng(11)
    rows = problem(rng, loss, 12, 1)
    large = 1e8 * rng.normal(size=(12, 1))
    target = rng.normal(size=rows.target.shape) / 9 if loss in ("squared", "huber") else rows.target
    rows = Rows(np.hstack([large, -large]), target, rows.weight)
    W = np.full((3, target.shape[1]), 1 / 3)
    W[1] += 1e-9 * rng.normal(size=target.shape[1])
    found = gradient(rows, W, loss, 0.5, True)
    exact = _exact_gradient(rows, W, loss, 0.5)
    with mpmath.workdps(50):
        errors = [abs(exact[i][k] - mpmath.mpf(found.value[i, k])) for i, k in np.ndindex(W.shape)]
    assert (np.array(errors, dtype=float) <= found.errors.ravel()).all()
    assert max(errors) > 100 * 2.0**-52 * np.abs(found.value).max()


def test_rounding_bound_covers_a_sum_that_cancels() -> None:
    """Many equal terms against one that takes all of them back: only the additions have errors."""
    n, x, y = 2**17, 1 / 3, 0.7
    rows = Rows(np.r_[np.full(n, x), -x][:, None], np.full((n + 1, 1), y), np.r_[np.ones(n), n])
    found = gradient(rows, np.zeros((1, 1)), "squared", 1.0, False)
    error = abs(float(found.value[0, 0]))
    assert 50 * UNIT * 2 * n * x * y < error <= found.error


def _exact_gradient(rows: Rows, W: Array, loss: str, l2: float) -> list[list[Any]]:
    with mpmath.workdps(50):
        mp = mpmath.mpf
        p, outputs = W.shape
        total = [
            [(mp(l2) if i < p - 1 else 0) * mp(float(W[i, k])) for k in range(outputs)]
            for i in range(p)
        ]
        for x, t, s in zip(rows.features, rows.target, rows.weight, strict=True):
            wide = [mp(float(v)) for v in x] + [mp(1)]
            m = [
                mpmath.fsum(wide[i] * mp(float(W[i, k])) for i in range(p)) for k in range(outputs)
            ]
            for k in range(outputs):
                y = mp(float(t[k]))
                if loss == "softmax":
                    c = mpmath.exp(m[k]) / mpmath.fsum(map(mpmath.exp, m)) - y
                elif loss == "squared":
                    c = m[k] - y
                elif loss == "huber":
                    c = max(mp(-1), min(mp(1), m[k] - y))
                elif loss == "squared-hinge":
                    c = -2 * y * max(mp(0), 1 - y * m[k])
                else:
                    c = -y / (1 + mpmath.exp(y * m[k]))
                for i in range(p):
                    total[i][k] += mp(float(s)) * c * wide[i]
        return total


def test_theory_vectors_digits38() -> None:
    """convex.md T5, Λ=1: one Newton step after deleting rows 0 to 9, bound 3.2."""
    datasets = pytest.importorskip("sklearn.datasets")
    data = datasets.load_digits()
    kept = np.isin(data.target, (3, 8))
    X = data.data[kept] / 16 - 0.5
    X /= np.linalg.norm(X, axis=1, keepdims=True)
    y = np.where(data.target[kept] == 3, 1.0, -1.0)[:, None]
    full = Rows(X, y, np.ones(len(X)))
    start = optimum(full, "logistic", 1.0, False)
    rest = Rows(X[10:], y[10:], np.ones(len(X) - 10))
    g, H = derivatives(rest, start, "logistic", 1.0, False)
    found = distance_bound(rest, start - np.linalg.solve(H, g)[:, None], "logistic", 1.0, False)
    assert found.residual == pytest.approx(9.665724e-3, rel=1e-5)
    assert 1.621042e-3 <= found.bound <= 3.011383e-3


def test_an_intercept_off_the_gauge_is_added() -> None:
    rng = np.random.default_rng(8)
    rows = problem(rng, "softmax", 200, 3)
    best = optimum(rows, "softmax", 1.0, True)
    shifted = best.copy()
    shifted[-1] += 0.01
    assert distance_bound(rows, shifted, "softmax", 1.0, True).bound >= 0.01 * math.sqrt(3)


def test_nothing_is_shown_far_away_or_without_curvature() -> None:
    rng = np.random.default_rng(9)
    rows = problem(rng, "logistic", 50, 3)
    assert distance_bound(rows, np.full((4, 1), 30.0), "logistic", 1.0, True).bound == math.inf
    none = Rows(np.zeros((5, 2)), np.ones((5, 1)), np.zeros(5))
    assert distance_bound(none, np.zeros((3, 1)), "logistic", 1.0, True).bound == math.inf
    assert distance_bound(none, np.zeros((2, 1)), "logistic", 1.0, False).bound < 1e-15


def test_enough_stops_early_and_stays_valid() -> None:
    rng = np.random.default_rng(10)
    rows = problem(rng, "logistic", 300, 3)
    W = optimum(rows, "logistic", 1.0, False) + 1e-6
    sharp = distance_bound(rows, W, "logistic", 1.0, False)
    quick = distance_bound(rows, W, "logistic", 1.0, False, enough=1.0)
    assert sharp.bound < quick.bound <= 1.0


@pytest.mark.parametrize(
    ("loss", "l2", "shape"),
    [("hinge", 1.0, (2, 1)), ("logistic", 0.0, (2, 1)), ("logistic", 1.0, (3, 1))],
)
def test_what_cannot_be_bounded_is_refused(loss: str, l2: float, shape: tuple[int, int]) -> None:
    rows = Rows(np.ones((4, 2)), np.ones((4, 1)), np.ones(4))
    with pytest.raises(InvalidInput):
        distance_bound(rows, np.zeros(shape), loss, l2, False)
    with pytest.raises(InvalidInput):
        Rows(np.ones((4, 2)), np.ones(4), np.ones(4))
    with pytest.raises(InvalidInput):
        Rows(np.ones((4, 2)), np.ones((4, 1)), -np.ones(4))


@pytest.mark.parametrize("seed", range(30))
def test_the_least_eigenvalue_does_not_suffer_from_scales(seed: int) -> None:
    """Two incomes that are nearly the same, beside flags: proved within a factor of the size."""
    rng = np.random.default_rng(seed)
    p = int(rng.integers(2, 8))
    half = rng.standard_normal((3 * p, p + 2))
    half[:, 1] = half[:, 0] + 1e-3 * half[:, 1]
    half *= 10.0 ** np.r_[6, 6, rng.uniform(-3, 0, p)]
    hessian = half.T @ half
    found = factor(hessian, 0.0, 0.0)
    assert found is not None
    with mpmath.workdps(60):
        truth = mpmath.eigsy(mpmath.matrix(hessian.tolist()), eigvals_only=True)[0]
        assert truth / (1.1 * (p + 2)) <= found.kappa <= truth
