"""Residual bounds and steps: the theory's vectors, and controls."""

from __future__ import annotations

import numpy as np
import pytest

from expunge.linear import guo
from expunge.linear.passes import evaluate
from expunge.linear.residuals import (
    LOGISTIC,
    density_slack,
    descend,
    gradient,
    gram_of,
    loss_hessian,
    residual_bounds,
    spectral_bound,
    steps,
)
from expunge.linear.rows import make_rows
from oracles import digits38, minimiser

SMOOTH = 64.19606056


def digits():
    X, y = digits38()
    return make_rows(X, y, intercept=False)


@pytest.mark.parametrize(
    ("ridge", "size", "r", "values"),
    [
        (10.0, 0.0808944, 3.574239e-3, (8.794888e-3, 2.237461e-2, 0.1162619, 5.261135e-2)),
        (1.0, 0.2047080, 9.665724e-3, (3.072796e-2, 0.1005161, 0.5222969, 0.1213758)),
        (0.1, 0.5420743, 8.373474e-3, (9.543376e-2, 0.4331085, 2.250498, 0.2010778)),
    ],
)
def test_bounds_of_a_batch(ridge, size, r, values):
    """T5, with a fixed penalty."""
    X, y = digits38()
    rows, gone = digits(), np.arange(10)
    w = minimiser(X, y, np.ones(357), "logistic", ridge, False)
    delta = steps(rows, gone, w, ridge)["full"] - w
    left = rows.without(gone)
    found = residual_bounds(left, w, delta, gram=gram_of(left), l2=ridge / 357, removed=10)
    got = (found.sharp, found.gram, found.corollary_paper, found.self_concordant)
    assert np.linalg.norm(delta) == pytest.approx(size, rel=1e-5)
    assert np.linalg.norm(gradient(left, w + delta, ridge)) == pytest.approx(r, rel=1e-5)
    assert got == pytest.approx(values, rel=1e-5)


def test_power_iteration_is_no_upper_bound():
    """N7."""
    rng = np.random.default_rng(3)
    X = rng.standard_normal((200, 100))
    gram = X.T @ X
    v = rng.standard_normal(100)
    for _ in range(20):
        v = gram @ (v / np.linalg.norm(v))
    top = np.linalg.eigvalsh(gram)[-1]
    assert np.linalg.norm(v) < 0.999 * top
    assert top <= spectral_bound(gram, 200) <= top * (1 + 1e-10)


def test_density_slack_is_small():
    """The proof's gap: ln det(I − ∂u/∂b) at λ = 0.01, σ = 1."""
    rows, first = digits(), np.array([0])
    forget, left = rows.take(first), rows.without(first)
    b = np.random.default_rng(0).standard_normal((64, 1))
    w, _ = guo.solve(rows, 0.01, b)
    gone = evaluate(forget, LOGISTIC, w).gradient + 0.01 * w
    delta = np.linalg.solve(loss_hessian(left, w) + 3.56 * np.eye(64), gone)
    slack = density_slack(forget, left, w, delta, 0.01)
    assert slack == pytest.approx(5e-7, rel=0.1)


def test_density_slack_matches_finite_differences():
    """The determinant formula, on a small problem where it is large."""
    rng = np.random.default_rng(1)
    X, y = rng.standard_normal((30, 3)), np.where(rng.random((30, 1)) < 0.5, 1.0, -1.0)
    rows, gone = make_rows(X, y, intercept=False), np.arange(4)
    forget, left = rows.take(gone), rows.without(gone)
    l2, b = 0.05, rng.standard_normal((3, 1))

    def image(b):
        w, _ = guo.solve(rows, l2, b)
        gone_gradient = residual_vector(X[:4], y[:4], w) + l2 * 4 * w
        H = hessian(X[4:], w) + l2 * 26 * np.eye(3)
        after = w + np.linalg.solve(H, gone_gradient)
        return w, after - w, -(residual_vector(X[4:], y[4:], after) + l2 * 26 * after)[:, 0]

    w, delta, _ = image(b)
    h = 1e-4
    jacobian = np.column_stack(
        [(image(b + h * e)[2] - image(b - h * e)[2]) / (2 * h) for e in np.eye(3)[:, :, None]]
    )
    expected = abs(np.linalg.slogdet(jacobian)[1])
    assert expected > 1e-4
    assert density_slack(forget, left, w, delta, l2) == pytest.approx(expected, rel=1e-4)


def residual_vector(X, y, w):
    return -X.T @ (y / (1 + np.exp(y * (X @ w))))


def hessian(X, w):
    p = 1 / (1 + np.exp(-X @ w))
    return (X * (p * (1 - p))).T @ X


@pytest.mark.parametrize(
    ("count", "expected", "tolerance"),
    [
        (20, (2.840139, 2.692374, 2.843176, 0.1274624, 0.1707892, 5.860591), 1e-4),
        (100, (4.510521e-2, 0.6665346, 4.631314e-2, 9.585008e-3, 4.670419e-2, 9.099609e-2), 1e-4),
    ],
)
def test_residual_gradient_vectors(count, expected, tolerance):
    """T8: what leaving out the residual gradient does to a model that is not at its optimum."""
    X, y = digits38()
    rows, gone = digits(), np.arange(10)
    w = descend(rows, np.zeros((64, 1)), 1.0, count, SMOOTH)
    left = rows.without(gone)
    found = steps(rows, gone, w, 1.0)
    sizes = [float(np.linalg.norm(gradient(left, point, 1.0))) for point in found.values()]
    sizes.insert(0, float(np.linalg.norm(gradient(rows, w, 1.0))))
    assert sizes == pytest.approx(expected, rel=tolerance)
    if count == 20:
        right = {k: float(np.mean((X[10:] @ v > 0) == (y[10:] > 0))) for k, v in found.items()}
        assert right["nothing"] == right["short"] == pytest.approx(0.976945, abs=1e-6)
        assert right["full"] == pytest.approx(0.991354, abs=1e-6)
        return
    after, smooth = found["short"], float(np.linalg.eigvalsh(left_gram(X))[-1]) / 4 + 1.0
    for extra, size in ((1, 4.371e-2), (10, 3.064e-2), (200, 3.056e-5)):
        point = descend(left, after, 1.0, extra, smooth)
        assert float(np.linalg.norm(gradient(left, point, 1.0))) == pytest.approx(size, rel=1e-2)


def left_gram(X):
    return X[10:].T @ X[10:]


def test_first_order_residuals():
    """Short leaves g, the wrong sign 2g, the full step nothing, to first order in the deletion."""
    rows, gone = digits(), np.array([3])
    w = descend(rows, np.zeros((64, 1)), 1.0, 300, SMOOTH)
    left, g = rows.without(gone), gradient(rows, w, 1.0)
    found = steps(rows, gone, w, 1.0)
    after = {name: gradient(left, point, 1.0) for name, point in found.items()}
    size = np.linalg.norm(after["full"])
    assert np.linalg.norm(after["short"] - g) < 3 * size + 1e-9
    assert np.linalg.norm(after["wrong sign"] - 2 * g) < 3 * size + 1e-9
    assert size < 0.01 * np.linalg.norm(gradient(left, w, 1.0))
