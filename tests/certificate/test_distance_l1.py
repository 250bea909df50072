"""The elastic net: gap and local norm bound the distance, the Newton correction does not."""

from __future__ import annotations

import math
from typing import Any

import mpmath
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from sklearn.datasets import load_diabetes
from sklearn.linear_model import ElasticNet

from expunge.certificate import distance
from expunge.certificate.curvature import factor
from expunge.certificate.distance import distance_bound
from expunge.certificate.residual import Rows, gradient
from expunge.errors import InvalidInput
from oracles import minimiser

Array = NDArray[np.float64]


def problem(rng: np.random.Generator, n: int, d: int, outputs: int = 2, scale: float = 1.0) -> Rows:
    X = scale * (rng.normal(size=(n, d)) + rng.normal(size=(n, 1))) * rng.uniform(0.1, 2, size=d)
    sparse = rng.normal(size=(d, outputs)) * (rng.random((d, outputs)) < 0.5)
    target = X @ sparse + rng.normal(size=(n, outputs)) + 0.5
    return Rows(X, target, np.where(rng.random(n) < 0.2, 0.0, rng.uniform(0.5, 2, n)))


def best(rows: Rows, l2: float, l1: float, intercept: bool) -> Array:
    parts = (rows.features, rows.target, rows.weight)
    found: Array = minimiser(*parts, "squared", l2, intercept, l1)
    return found


def elastic(rows: Rows, W: Array, l2: float, l1: float, intercept: bool) -> distance.Distance:
    return distance_bound(rows, W, "squared", l2, intercept, l1=l1)


@settings(max_examples=150, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    intercept=st.booleans(),
    n=st.integers(2, 40),
    d=st.integers(1, 5),
    l2=st.sampled_from([0.1, 1.0, 30.0]),
    l1=st.sampled_from([0.01, 1.0, 20.0, 1e4]),
    step=st.sampled_from([0.0, 1e-12, 1e-6, 1e-2, 1.0]),
    moved=st.sampled_from(["all", "support", "zeros"]),
)
def test_bound_is_never_below_the_true_distance(
    seed: int, intercept: bool, n: int, d: int, l2: float, l1: float, step: float, moved: str
) -> None:
    rng = np.random.default_rng(seed)
    rows = problem(rng, n, d)
    rows.weight[:2] = 1.0
    optimum = best(rows, l2, l1, intercept)
    which = {"all": optimum == optimum, "support": optimum != 0, "zeros": optimum == 0}[moved]
    W = optimum + step * rng.normal(size=optimum.shape) * which
    found = elastic(rows, W, l2, l1, intercept)
    assert np.linalg.norm(W - optimum) <= found.bound + 1e-14 * (1 + np.linalg.norm(W))


@pytest.mark.parametrize("intercept", [False, True])
def test_bound_is_tight_near_the_optimum(intercept: bool) -> None:
    rng = np.random.default_rng(3)
    rows = problem(rng, 300, 8)
    optimum = best(rows, 1.0, 40.0, intercept)
    assert 2 <= (optimum == 0).sum() <= 12
    assert elastic(rows, optimum, 1.0, 40.0, intercept).bound < 1e-12
    W = optimum + 1e-6 * rng.normal(size=optimum.shape) * (optimum != 0)
    truth = float(np.linalg.norm(W - optimum))
    assert truth <= elastic(rows, W, 1.0, 40.0, intercept).bound <= 20 * truth


def test_a_coordinate_off_zero_costs_a_root_and_not_the_threshold() -> None:
    """At w_j = 1e-8 where 0 is best, the subgradient jumps by ν; the duality gap hardly moves."""
    rows = problem(np.random.default_rng(3), 300, 8)
    optimum = best(rows, 1.0, 40.0, False)
    W = optimum + 1e-8 * (optimum == 0)
    g = gradient(rows, W, "squared", 1.0, False, 40.0)
    assert np.linalg.norm(g.value) > 1.0
    assert elastic(rows, W, 1.0, 40.0, False).bound < 0.01


def test_gap_residual_is_the_duality_gap_and_below_the_subgradient() -> None:
    rng = np.random.default_rng(4)
    for _ in range(30):
        rows = problem(rng, 20, 4, outputs=1)
        l2, l1 = 10.0 ** rng.uniform(-1, 1, 2)
        w = rng.normal(size=4) * (rng.random(4) < 0.7)
        g = gradient(rows, w[:, None], "squared", l2, False, l1)
        s, y, u = rows.weight, rows.target[:, 0], rows.features @ w
        primal = s @ (u - y) ** 2 / 2 + l2 * w @ w / 2 + l1 * np.abs(w).sum()
        c = rows.features.T @ (s * (u - y))
        conjugate = (np.maximum(np.abs(c) - l1, 0) ** 2).sum() / (2 * l2)
        dual = -(s @ ((u - y) ** 2 / 2 + y * (u - y))) - conjugate
        assert g.residual**2 == pytest.approx(2 * l2 * (primal - dual), rel=1e-9)
        assert g.residual <= np.linalg.norm(g.value) * (1 + 1e-12)


def test_gap_residual_and_subgradient_are_lipschitz_in_the_loss_part() -> None:
    """The targets move c by Xᵀ(s·change): the residual may change by the norm of that, not more."""
    rng = np.random.default_rng(5)
    for _ in range(200):
        rows = problem(rng, 10, 3, outputs=1)
        change = 10.0 ** rng.uniform(-6, 1) * rng.normal(size=rows.target.shape)
        other = Rows(rows.features, rows.target + change, rows.weight)
        W = rng.normal(size=(3, 1)) * (rng.random((3, 1)) < 0.6)
        a, b = (gradient(it, W, "squared", 0.5, False, 2.0) for it in (rows, other))
        c = np.abs(rows.features.T @ (rows.weight[:, None] * change))
        assert abs(a.residual - b.residual) <= np.linalg.norm(c) * (1 + 1e-9)
        assert (np.abs(a.value - b.value) <= c * (1 + 1e-9) + 1e-12).all()


def test_no_penalty_is_the_plain_gradient() -> None:
    rows = problem(np.random.default_rng(6), 40, 3)
    W = np.random.default_rng(7).normal(size=(3, 2))
    plain, zero = (distance_bound(rows, W, "squared", 1.0, False, **it) for it in ({}, {"l1": 0.0}))
    assert plain == zero
    tiny = elastic(rows, W, 1.0, 1e-12, False)
    assert tiny.residual == pytest.approx(plain.residual, rel=1e-9)
    assert tiny.bound >= plain.bound


@pytest.mark.parametrize("scale", [1e-6, 1.0, 1e4])
@pytest.mark.parametrize("intercept", [False, True])
def test_rounding_bound_covers_the_error_against_fifty_digits(
    scale: float, intercept: bool
) -> None:
    rng = np.random.default_rng(8)
    rows = problem(rng, 15, 4, scale=scale)
    W = rng.normal(size=(4 + intercept, 2)) / scale
    W[1] = 0.0
    l1 = 0.3 * scale**2
    found = gradient(rows, W, "squared", 0.5, intercept, l1)
    with mpmath.workdps(50):
        value, residual = _exact(rows, W, 0.5, l1, intercept)
        error = mpmath.sqrt(sum((value[i] - found.value[i]) ** 2 for i in np.ndindex(W.shape)))
        if intercept:
            residual = mpmath.sqrt(sum(v**2 for v in value.values()))
        off, size = abs(residual - mpmath.mpf(found.residual)), float(residual)
    assert float(error) <= found.error
    assert float(off) <= found.error + 1e-9 * size
    assert found.error <= 1e-12 * (1 + np.linalg.norm(found.value) + np.linalg.norm(W))


def _exact(rows: Rows, W: Array, l2: float, l1: float, intercept: bool) -> tuple[Any, Any]:
    mp = mpmath.mpf
    features = np.asarray(rows.features)
    X = np.column_stack([features, np.ones(len(features))]) if intercept else features
    value, squares = {}, mp(0)
    for j, k in np.ndindex(W.shape):
        c = mp(0)
        for x, t, s in zip(X, rows.target, rows.weight, strict=True):
            m = mpmath.fsum(mp(x[i]) * mp(W[i, k]) for i in range(len(W)))
            c += mp(s) * (m - mp(t[k])) * mp(x[j])
        w, free = mp(W[j, k]), intercept and j == len(W) - 1
        nu, ridge = (mp(0), mp(0)) if free else (mp(l1), mp(l2))
        soft = mpmath.sign(c) * max(abs(c) - nu, 0)
        value[j, k] = soft if w == 0 else c + ridge * w + nu * mpmath.sign(w)
        clip = max(-nu, min(nu, c))
        squares += (ridge * w + soft) ** 2 + 2 * ridge * (nu * abs(w) + w * clip)
    return value, mpmath.sqrt(squares)


def test_newton_correction_is_violated() -> None:
    """Negative control: ‖H⁻¹s‖ says nothing with an L1 penalty, ‖s‖_{H⁻¹}/√κ holds."""
    rng = np.random.default_rng(9)
    violated = 0
    for _ in range(300):
        rows = problem(rng, 20, 3, outputs=1)
        optimum = best(rows, 0.1, 5.0, False)
        W = optimum + 0.3 * rng.normal(size=optimum.shape)
        g = gradient(rows, W, "squared", 0.1, False, 5.0)
        X = np.asarray(rows.features)
        found = factor((X.T * rows.weight) @ X + 0.1 * np.eye(3), 1e-13, 0.1)
        assert found is not None
        truth = float(np.linalg.norm(W - optimum))
        with_step = found.convert(g.value, g.error, g.errors, 0.0, smooth=True)
        without = found.convert(g.value, g.error, g.errors, 0.0, smooth=False)
        assert truth <= without
        assert truth <= elastic(rows, W, 0.1, 5.0, False).bound
        violated += with_step < truth * (1 - 1e-6)
    assert violated > 0


def test_gradient_without_the_l1_part_is_violated() -> None:
    """Negative control: at the ridge solution, far from that of the elastic net."""
    rows = problem(np.random.default_rng(10), 50, 4)
    ridge, optimum = best(rows, 1.0, 0.0, False), best(rows, 1.0, 20.0, False)
    truth = np.linalg.norm(ridge - optimum)
    assert distance_bound(rows, ridge, "squared", 1.0, False).bound < 1e-10 < 1e-3 < truth
    assert truth <= elastic(rows, ridge, 1.0, 20.0, False).bound


def test_residual_over_penalty_is_violated_with_a_free_intercept() -> None:
    """Negative control: the intercept is held by the few rows only."""
    rng = np.random.default_rng(11)
    violated = 0
    for _ in range(40):
        rows = problem(rng, 5, 2, outputs=1)
        optimum = best(rows, 30.0, 1.0, True)
        W = optimum + np.array([[0.0], [0.0], [0.1]])
        found = elastic(rows, W, 30.0, 1.0, True)
        truth = np.linalg.norm(W - optimum)
        assert truth <= found.bound
        violated += bool(found.residual / 30.0 < truth * (1 - 1e-6))
    assert violated > 0


def test_theory_vector_and_scikit_learn() -> None:
    """convex.md T3: ElasticNet(0.01, 0.5) on diabetes is Λ = ν = nα/2 = 2.21."""
    X, y = load_diabetes(return_X_y=True)
    rows = Rows(X, y[:, None], np.ones(len(X)))
    penalty = len(X) * 0.01 * 0.5
    optimum = best(rows, penalty, penalty, False)
    model = ElasticNet(0.01, l1_ratio=0.5, fit_intercept=False, tol=1e-14, max_iter=10**6)
    np.testing.assert_allclose(optimum[:, 0], model.fit(X, y).coef_, atol=1e-5)
    assert gradient(rows, optimum, "squared", penalty, False, penalty).residual <= 1e-11
    assert elastic(rows, optimum, penalty, penalty, False).bound < 1e-10


@pytest.mark.parametrize(("loss", "l1"), [("squared", -1.0), ("squared", math.nan), ("huber", 1.0)])
def test_what_cannot_be_bounded_is_refused(loss: str, l1: float) -> None:
    rows = Rows(np.ones((4, 2)), np.ones((4, 1)), np.ones(4))
    with pytest.raises(InvalidInput):
        distance_bound(rows, np.zeros((2, 1)), loss, 1.0, False, l1=l1)
