"""The exact realised μ on the digits bed, on real engines, and the checks of the noise."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import expit, ndtr
from scipy.stats import chi2

from expunge.audit.noise_checks import (
    detectable_scale,
    noise_reuse,
    noise_size,
    repeated,
    twice_released,
)
from expunge.audit.realised import (
    Realised,
    before_and_after,
    minimiser_error,
    realised,
    transcript,
)
from expunge.certificate.residual import Rows as CheckedRows
from expunge.errors import InvalidInput
from expunge.guarantee import delta_of, epsilon_of, mu_of
from expunge.linear import engine
from expunge.linear.rows import make_rows
from oracles import digits38, iris, minimiser

L2, TAU, SIGMA, CLAIM = 3.57, 1e-6, 2.671922e-4, 0.00748525


def derivatives(X, y, w):
    a = expit(-y * (X @ w))
    return L2 * w - X.T @ (y * a), (X * (a * (1 - a))[:, None]).T @ X + L2 * np.eye(len(w))


def newton(X, y, w, steps, hessian_rows=None):
    for _ in range(steps):
        gradient, hessian = derivatives(X, y, w)
        if hessian_rows is not None:
            hessian = derivatives(*hessian_rows, w)[1]
        w = w - np.linalg.solve(hessian, gradient)
    return w


@pytest.fixture(scope="module")
def digits():
    X, y = digits38()
    y = y[:, 0]
    full = newton(X, y, np.zeros(64), 12)
    left = X[10:], y[10:]
    updates = {
        "none": full,
        "one": newton(*left, full, 1),
        "wrong": newton(*left, full, 1, (X, y)),
        "two": newton(*left, full, 2),
    }
    return X, y, full, newton(*left, full, 8), updates


def test_vectors_of_the_digits_bed(digits):
    X, y, full, retrained, updates = digits
    assert np.linalg.norm(full) == pytest.approx(4.8784050767, abs=5e-10)
    assert np.linalg.norm(retrained) == pytest.approx(4.8038987326, abs=5e-10)
    stated = {
        "none": (1.00619897, 0.127584234, 477.5),
        "one": (7.598919e-3, 5.270209e-4, 1.9724),
        "wrong": (4.751034e-2, 4.614200e-3, 17.269),
        "two": (3.479964e-7, 2.072932e-8, 7.758e-5),
    }
    for name, (residual, distance, mu) in stated.items():
        w = updates[name]
        assert np.linalg.norm(derivatives(X[10:], y[10:], w)[0]) == pytest.approx(residual, 1e-6)
        assert np.linalg.norm(w - retrained) == pytest.approx(distance, rel=1e-6)
        found = realised(w, retrained, SIGMA)
        assert found.low == found.high == pytest.approx(mu, rel=1e-4)
        assert found.refutes(CLAIM) == (name != "two")
    loose = realised(updates["wrong"], retrained, 1.49577e-2)
    assert loose.high == pytest.approx(0.308483, abs=1e-6)
    assert not loose.refutes(0.313902)


def test_the_interval_of_a_minimiser_that_is_not_exact(digits):
    X, y, _, retrained, updates = digits
    rows = CheckedRows(X[10:], y[10:, None], np.ones(len(y) - 10))
    for steps in (1, 2, 3):
        near = newton(X[10:], y[10:], np.zeros(64), steps + 2)
        error = minimiser_error(rows, near[:, None], "logistic", L2)
        assert error >= np.linalg.norm(near - retrained)
        found = realised(updates["one"], near, SIGMA, error=error)
        truth = np.linalg.norm(updates["one"] - retrained) / SIGMA
        assert found.low <= truth <= found.high
    assert not realised(updates["one"], retrained, SIGMA, error=1.0).refutes(CLAIM)


def test_it_is_the_exact_delta():
    """δ of two Gaussians by integration of max(0, p − e^ε q)."""
    found = realised([0.3, 0.4], [0.0, 0.0], 0.25)
    assert found.low == 2
    epsilon = found.epsilon(1e-5)[0]
    assert epsilon == pytest.approx(9.997256, abs=1e-6)
    grid = np.linspace(-12, 14, 2_000_001)
    p, q = np.exp(-((grid - 2) ** 2) / 2), np.exp(-(grid**2) / 2)
    delta = np.maximum(p - math.exp(1.0) * q, 0).sum() * (grid[1] - grid[0]) / math.sqrt(2 * np.pi)
    assert delta_of(1.0, 2.0) == pytest.approx(delta, rel=2e-6)


def test_the_vectors_of_the_trade_off():
    for mu, delta in ((0.313902458, 1e-4), (0.268051123, 1e-5), (0.236704381, 1e-6)):
        assert delta_of(1.0, mu) == pytest.approx(delta, rel=2e-6)
        assert mu_of(1.0, delta) == pytest.approx(mu, rel=1e-6)
    assert epsilon_of(1.0, 1e-5) == pytest.approx(4.377178, abs=1e-6)
    assert epsilon_of(2.0, 1e-5) == pytest.approx(9.997256, abs=1e-6)
    assert delta_of(1.0, 1.0) == pytest.approx(0.12693674, rel=2e-6)


def test_covariances_and_matrices():
    rng = np.random.default_rng(0)
    u, r = rng.normal(size=(3, 2)), rng.normal(size=(3, 2))
    A = rng.normal(size=(6, 6))
    cov = A @ A.T + np.eye(6)
    d = (u - r).ravel()
    found = realised(u, r, cov, error=0.01)
    exact = math.sqrt(d @ np.linalg.solve(cov, d))
    assert (found.low + found.high) / 2 == pytest.approx(exact)
    assert found.high - exact == pytest.approx(0.01 / math.sqrt(np.linalg.eigvalsh(cov)[0]))
    same = realised(u, r, 0.09 * np.eye(6)), realised(u, r, 0.3)
    assert same[0].low == pytest.approx(same[1].low)
    assert realised(u, r, 0.3).low == pytest.approx(np.linalg.norm(u - r) / 0.3)


@settings(max_examples=50, deadline=None)
@given(st.lists(st.tuples(st.floats(0, 5), st.floats(0, 1)), min_size=1, max_size=5))
def test_transcripts(pairs):
    each = [Realised(low, low + extra) for low, extra in pairs]
    found = transcript(each)
    assert found.low == pytest.approx(math.sqrt(sum(one.low**2 for one in each)))
    assert found.high == pytest.approx(math.sqrt(sum(one.high**2 for one in each)))


def test_before_and_after():
    after = Realised(3.0, 3.0)
    found = before_and_after([4.0], [0.0], 1.0, after)
    assert found.low == found.high == 5.0
    assert before_and_after([4.0], [0.0], 1.0, after, shared=True).low == math.inf


CASES = [
    (digits38, "logistic", False),
    (digits38, "logistic", True),
    (digits38, "squared", True),
    (iris, "softmax", False),
]


@pytest.mark.parametrize(("data", "loss", "intercept"), CASES)
def test_the_engine_realises_at_most_what_is_certified(data, loss, intercept):
    """Eight batches in a row, against an independent minimiser in extended precision."""
    X, target = data()
    rows, tau = make_rows(X, target, intercept=intercept), 1e-6
    sigma = 2 * tau / 0.3
    state, _ = engine.fit(rows, loss=loss, l2=1.0, tolerance=tau, classes=loss != "squared")
    gone = np.zeros(len(X), bool)
    rng = np.random.default_rng(1)
    for _ in range(8):
        batch = rng.choice(np.flatnonzero(~gone), 4, replace=False)
        gone[batch] = True
        state, _ = engine.unlearn(state, rows.take(batch), rows.take(~gone))
        truth = minimiser(X[~gone], target[~gone], np.ones((~gone).sum()), loss, 1.0, intercept)
        found = realised(state.weights, truth, sigma)
        assert found.high <= tau / sigma * (1 + 1e-6)
        assert not found.refutes(2 * tau / sigma)


def test_noise_of_the_right_size_is_not_flagged():
    rng = np.random.default_rng(2)
    for d in (1, 10, 64, 500):
        for _ in range(200):
            noise = 0.3 * rng.normal(size=d)
            assert not noise_size(noise + 2, np.full(d, 2.0), 0.3).refuted
            assert not twice_released(noise, 0.3 * rng.normal(size=d), 0.3).refuted
        found = noise_size(noise + 2, np.full(d, 2.0), 0.3)
        assert found.p == pytest.approx(
            2 * min(chi2.cdf(found.energy, d), chi2.sf(found.energy, d)), rel=1e-6
        )


@pytest.mark.parametrize(("dimension", "ratio"), [(10, 0.11), (64, 0.5), (5000, 0.93)])
def test_how_small_a_noise_is_seen(dimension, ratio):
    """The theory's ratios, at 98 % power; the 80 % limit by simulation."""
    limit = chi2.ppf(5e-7, dimension)
    assert chi2.cdf(limit / ratio**2, dimension) > 0.98
    least, rng = detectable_scale(dimension), np.random.default_rng(3)
    assert least > ratio
    seen = sum(
        noise_size(least * rng.normal(size=dimension), np.zeros(dimension), 1.0).refuted
        for _ in range(1000)
    )
    assert 0.75 < seen / 1000 < 0.85
    assert noise_size(6 * rng.normal(size=dimension), np.zeros(dimension), 1.0).refuted


def test_reused_noise():
    rng = np.random.default_rng(4)
    z = rng.normal(size=64)
    assert noise_reuse(z, z).same
    assert noise_reuse(z, z + 0.5 * rng.normal(size=64)).found
    assert noise_reuse(z, -z).found
    alike = [noise_reuse(rng.normal(size=64), rng.normal(size=64)).reach for _ in range(2000)]
    assert max(alike) < 5
    assert np.mean(np.array(alike) > 1.96) == pytest.approx(2 * ndtr(-1.96), abs=0.02)
    assert repeated(["a", "b", "a", "c", "b"]) == ("a", "b")


def test_what_is_refused():
    with pytest.raises(InvalidInput, match="one shape"):
        realised([1.0], [1.0, 2.0], 1.0)
    with pytest.raises(InvalidInput, match="finite"):
        realised([math.nan], [1.0], 1.0)
    with pytest.raises(InvalidInput, match="sigma"):
        realised([1.0], [1.0], 0.0)
    with pytest.raises(InvalidInput, match="positive definite"):
        realised([1.0, 2.0], [0.0, 0.0], np.diag([1.0, -1.0]))
    with pytest.raises(InvalidInput, match="covariance"):
        realised([1.0, 2.0], [0.0, 0.0], np.eye(3))
    with pytest.raises(InvalidInput, match="error"):
        realised([1.0], [1.0], 1.0, error=-1.0)
    with pytest.raises(InvalidInput, match="sigma"):
        noise_size([1.0], [0.0], -1.0)
    with pytest.raises(InvalidInput, match="shape"):
        noise_reuse([1.0], [0.0, 1.0])
    with pytest.raises(InvalidInput, match="one shape"):
        twice_released([1.0], [0.0, 1.0], 1.0)
