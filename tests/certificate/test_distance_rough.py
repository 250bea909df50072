"""Losses whose curvature jumps, squared hinge and Huber: only the penalty bounds the distance."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy.optimize import minimize
from sklearn.svm import LinearSVC

from expunge.certificate.curvature import convert, factor
from expunge.certificate.distance import distance_bound
from expunge.certificate.residual import Rows
from oracles import digits38, minimiser

Array = NDArray[np.float64]
LOSSES = ["squared-hinge", "huber"]


def problem(
    rng: np.random.Generator, loss: str, n: int, d: int, outputs: int = 2, scale: float = 1.0
) -> Rows:
    X = scale * rng.normal(size=(n, d)) * rng.uniform(0.1, 2, size=d)
    target = X @ rng.normal(size=(d, outputs)) + rng.standard_cauchy(size=(n, outputs))
    if loss == "squared-hinge":
        target = np.where(target > 0, 1.0, -1.0)
    return Rows(X, target, np.where(rng.random(n) < 0.2, 0.0, rng.uniform(0.5, 2, n)))


def best(rows: Rows, loss: str, l2: float) -> Array:
    found: Array = minimiser(rows.features, rows.target, rows.weight, loss, l2, False)
    return found


def unsure(W: Array) -> float:
    """Rounding of the oracle's answer to float64."""
    return 1e-15 * float(np.linalg.norm(W))


@settings(max_examples=100, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    loss=st.sampled_from(LOSSES),
    n=st.integers(1, 60),
    d=st.integers(1, 6),
    l2=st.sampled_from([0.01, 1.0, 30.0]),
    scale=st.sampled_from([0.05, 1.0, 20.0]),
    step=st.sampled_from([0.0, 1e-12, 1e-6, 1e-2, 1.0]),
)
def test_bound_is_never_below_the_true_distance(
    seed: int, loss: str, n: int, d: int, l2: float, scale: float, step: float
) -> None:
    rng = np.random.default_rng(seed)
    rows = problem(rng, loss, n, d, scale=scale)
    optimum = best(rows, loss, l2)
    W = optimum + step * rng.normal(size=optimum.shape)
    found = distance_bound(rows, W, loss, l2, False)
    assert np.linalg.norm(W - optimum) <= found.bound + unsure(W)


@pytest.mark.parametrize("loss", LOSSES)
def test_bound_is_within_a_factor_where_the_penalty_dominates(loss: str) -> None:
    rng = np.random.default_rng(5)
    rows = problem(rng, loss, 200, 5)
    X = rows.features * np.sqrt(rows.weight)[:, None]
    l2 = 2 * float(np.linalg.norm(X, 2)) ** 2
    optimum = best(rows, loss, l2)
    for step in (1e-8, 1e-3):
        W = optimum + step * rng.normal(size=optimum.shape)
        truth = float(np.linalg.norm(W - optimum))
        found = distance_bound(rows, W, loss, l2, False)
        assert truth <= found.bound <= 2.1 * truth
    assert distance_bound(rows, optimum, loss, l2, False).bound < 1e-12


@pytest.mark.parametrize("loss", LOSSES)
def test_nothing_is_shown_with_a_free_intercept(loss: str) -> None:
    rng = np.random.default_rng(6)
    rows = problem(rng, loss, 100, 3)
    optimum = minimiser(rows.features, rows.target, rows.weight, loss, 1.0, True)
    assert distance_bound(rows, optimum, loss, 1.0, True).bound == math.inf
    assert distance_bound(rows, optimum, loss, 1.0, True).residual < 1e-10


@pytest.mark.parametrize("loss", LOSSES)
def test_residual_over_penalty_is_violated_with_a_free_intercept(loss: str) -> None:
    """Negative control: why the intercept must be a penalised constant feature."""
    X = np.random.default_rng(7).normal(size=(6, 2))
    y = np.array([[1.0], [1.0], [1.0], [-1.0], [-1.0], [1.0]])
    rows = Rows(X, y, np.ones(6))
    optimum = minimiser(X, y, rows.weight, loss, 30.0, True)
    W = optimum + np.array([[0.0], [0.0], [0.1]])
    found = distance_bound(rows, W, loss, 30.0, True)
    assert found.residual / 30.0 < 0.9 * np.linalg.norm(W - optimum)


def test_self_concordant_bound_is_violated_by_the_squared_hinge() -> None:
    """N14: active rows hold the Hessian up at w, and stop at once on the way to the minimiser."""
    x = np.r_[np.ones(1000), np.full(100, 0.01)][:, None]
    rows = Rows(x, np.ones((1100, 1)), np.ones(1100))
    W, l2 = np.array([[0.9999]]), 0.1
    truth = abs(float(W[0, 0] - best(rows, "squared-hinge", l2)[0, 0]))
    found = distance_bound(rows, W, "squared-hinge", l2, False)
    active = (x @ W < 1)[:, 0]
    hessian = 2 * x[active].T @ x[active] + l2
    wrong = factor(hessian, 1e-14, l2)
    assert wrong is not None
    nu = found.residual / math.sqrt(wrong.kappa)
    assert convert(1.0 / math.sqrt(wrong.kappa), nu, wrong.kappa) < 1e-3 * truth
    assert truth <= found.bound


def test_self_concordant_bound_is_violated_by_huber() -> None:
    """N14 for Huber: within the threshold at w, and beyond it on the way."""
    x = np.r_[np.ones(100), -np.ones(101)][:, None]
    y = np.r_[np.full(100, 1.0), np.full(101, 1000.0)][:, None]
    rows, W, l2 = Rows(x, y, np.ones(201)), np.array([[0.5]]), 1e-3
    truth = abs(float(W[0, 0] - best(rows, "huber", l2)[0, 0]))
    found = distance_bound(rows, W, "huber", l2, False)
    kappa = 100 + l2
    nu = found.residual / math.sqrt(kappa)
    assert convert(1.0 / math.sqrt(kappa), nu, kappa) < 0.1 * truth
    assert truth <= found.bound


def test_the_oracle_agrees_with_scikit_learn_and_scipy() -> None:
    X, y = digits38()
    W = minimiser(X, y, np.ones(len(X)), "squared-hinge", 1.0, False)
    model = LinearSVC(C=1.0, fit_intercept=False, tol=1e-12, max_iter=100_000).fit(X, y[:, 0])
    np.testing.assert_allclose(W[:, 0], model.coef_[0], atol=1e-5)
    rest = minimiser(X[10:], y[10:], np.ones(len(X) - 10), "squared-hinge", 1.0, False)
    norms = [np.linalg.norm(W), np.linalg.norm(rest), np.linalg.norm(W - rest)]
    np.testing.assert_allclose(norms, [6.16829015, 6.15591573, 0.214314945], rtol=1e-7)

    rows = problem(np.random.default_rng(8), "huber", 80, 3, outputs=1)

    def value(w: Array) -> float:
        far = np.abs(rows.features @ w - rows.target[:, 0])
        each = np.where(far <= 1, far**2 / 2, far - 0.5)
        return float(rows.weight @ each + w @ w / 2)

    options = {"xatol": 1e-10, "fatol": 1e-14, "maxiter": 20000}
    found = minimize(value, np.zeros(3), method="Nelder-Mead", options=options).x
    np.testing.assert_allclose(best(rows, "huber", 1.0)[:, 0], found, atol=1e-6)


@pytest.mark.parametrize("loss", LOSSES)
def test_rows_of_weight_zero_do_not_count(loss: str) -> None:
    rows = problem(np.random.default_rng(9), loss, 50, 3)
    kept = rows.weight > 0
    fewer = Rows(rows.features[kept], rows.target[kept], rows.weight[kept])
    W = np.full((3, 2), 0.1)
    one, other = (distance_bound(it, W, loss, 1.0, False) for it in (rows, fewer))
    assert one.bound == pytest.approx(other.bound, rel=1e-12)
    heavier = replace(fewer, weight=2 * fewer.weight)
    assert distance_bound(heavier, W, loss, 1.0, False).bound != pytest.approx(one.bound, rel=0.1)
