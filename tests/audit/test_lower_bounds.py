"""Clopper–Pearson bounds of ε and μ: vectors, tables, confidence, power, and what is no bound."""

from __future__ import annotations

import math

import mpmath as mp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import betainc, ndtr
from scipy.stats import beta

from expunge.audit.intervals import clopper_pearson
from expunge.audit.lower_bounds import (
    MOST_THRESHOLDS,
    Threshold,
    bound,
    ceiling,
    count_errors,
    degenerate,
    grid_bound,
    mu_limit,
    select,
    split_bound,
    upper_limits,
)
from expunge.audit.power import detectable_mu, power
from expunge.errors import InvalidInput
from expunge.guarantee import epsilon_of

DELTA = 1e-5


@pytest.mark.parametrize(
    ("runs", "fp", "fn", "limits", "epsilon", "mu"),
    [
        (1000, 50, 400, (0.06539049, 0.43112155), 2.163272, 1.684549),
        (500, 5, 30, (0.02318139, 0.08454855), 3.676057, 3.367186),
        (100, 0, 0, None, 3.281, 3.593),
    ],
)
def test_vectors(runs, fp, fn, limits, epsilon, mu):
    found = bound(fp, fn, runs, delta=DELTA)
    assert found.epsilon == pytest.approx(epsilon, abs=5e-4 if limits is None else 5e-7)
    assert found.mu == pytest.approx(mu, abs=5e-4 if limits is None else 5e-7)
    if limits:
        assert found.limits == pytest.approx(limits, abs=5e-9)


def test_limits_are_those_of_the_binomial_tail():
    for runs, j in ((10, 0), (10, 3), (500, 77), (1000, 999)):
        u = upper_limits([j], runs)[0]
        assert mp.betainc(j + 1, runs - j, 0, u, regularized=True) == pytest.approx(0.975, 1e-9)
        assert u == pytest.approx(beta.ppf(0.975, j + 1, runs - j), rel=1e-12)
        assert u == pytest.approx(clopper_pearson(j, runs)[1], rel=1e-12)
    assert upper_limits([10], 10)[0] == 1


CEILINGS = {
    10: (0.81, 1.00),
    50: (2.57, 2.94),
    100: (3.28, 3.59),
    500: (4.91, 4.88),
    1000: (5.60, 5.36),
    2000: (6.30, 5.81),
    5000: (7.21, 6.36),
    10**4: (7.91, 6.75),
}


@pytest.mark.parametrize("runs", CEILINGS)
def test_table_of_ceilings(runs):
    found = ceiling(runs, delta=DELTA)
    assert (found.epsilon, found.mu) == pytest.approx(CEILINGS[runs], abs=0.011)


@pytest.mark.parametrize(
    ("runs", "mu", "epsilon"),
    [
        (100, 0.99, 1.59),
        (200, 0.79, 1.28),
        (500, 0.61, 1.01),
        (1000, 0.52, 0.86),
        pytest.param(2000, 0.46, 0.75, marks=pytest.mark.slow),
        pytest.param(5000, 0.40, 0.64, marks=pytest.mark.slow),
    ],
)
def test_table_of_what_is_detectable(runs, mu, epsilon):
    assert detectable_mu(runs, claim_mu=0.3139) == pytest.approx(mu, abs=0.0101)
    found = detectable_mu(runs, claim_epsilon=1.0, delta=DELTA)
    assert found == pytest.approx(epsilon, abs=0.0101)


def test_power_is_that_of_simulated_audits():
    rng = np.random.default_rng(3)
    mu, runs, claim = 1.0, 100, 0.3139
    hits = 0
    for _ in range(2000):
        fp, fn = rng.binomial(runs, ndtr(-0.5), size=2)
        hits += bound(int(fp), int(fn), runs, delta=DELTA).mu > claim
    low, high = clopper_pearson(hits, 2000, 1e-3)
    assert low <= power(mu, runs, claim_mu=claim) <= high


def test_what_no_sample_can_see_is_not_detectable():
    assert detectable_mu(10, claim_epsilon=1.0, delta=DELTA) == math.inf
    assert detectable_mu(50, claim_mu=3.5) == math.inf


def scores(rng, mu, n):
    return rng.normal(size=n), rng.normal(loc=mu, size=n)


@pytest.mark.parametrize("mu", [0.0, 0.5, 2.0])
def test_bounds_lie_below_the_truth(mu):
    """Split and grid: the true ε and μ are exceeded in at most 5 % of 600 audits."""
    rng = np.random.default_rng(int(10 * mu))
    truth = epsilon_of(mu, DELTA) if mu else 0.0
    grid = [Threshold(t, s) for t in np.linspace(-2, 3, 6) for s in (1, -1)]
    over = np.zeros(4)
    for _ in range(600):
        x, y = scores(rng, mu, 150)
        split = split_bound(x, y, selection=50, delta=DELTA)
        fixed = grid_bound(x, y, grid, delta=DELTA)
        over += [split.mu > mu, split.epsilon > truth, fixed.mu > mu, fixed.epsilon > truth]
    for count in over.astype(int):
        assert clopper_pearson(int(count), 600, 0.01)[0] <= 0.05


def test_the_maximum_over_all_thresholds_is_no_bound():
    """Negative control: on two samples of one law it exceeds 0 far more often than 5 %."""
    rng, n, over, fair = np.random.default_rng(5), 1000, 0, 0
    for _ in range(400):
        x, y = scores(rng, 0.0, n)
        over += every_threshold(x, y) > 0
        fair += split_bound(x, y, selection=n // 3, delta=DELTA).mu > 0
    assert clopper_pearson(over, 400, 1e-3)[0] > 0.05
    assert clopper_pearson(fair, 400, 1e-3)[0] <= 0.05


def every_threshold(x, y):
    best = 0.0
    for sign in (1, -1):
        t = np.sort(sign * np.concatenate([x, y]))
        fp = len(x) - np.searchsorted(np.sort(sign * x), t)
        fn = np.searchsorted(np.sort(sign * y), t)
        best = max(best, mu_limit(upper_limits(fp, len(x)), upper_limits(fn, len(x))).max())
    return best


def test_the_sign_is_part_of_the_selection():
    rng = np.random.default_rng(7)
    x, y = scores(rng, -3.0, 300)
    assert select(x, y, delta=None).sign == -1
    assert split_bound(x, y, selection=100, delta=DELTA).mu > 1.5


@settings(max_examples=100, deadline=None)
@given(
    st.lists(st.integers(-3, 3), min_size=4, max_size=30),
    st.lists(st.integers(-3, 3), min_size=4, max_size=30),
    st.sampled_from([None, 1e-5]),
)
def test_select_finds_the_best_of_all_thresholds(x, y, delta):
    n = min(len(x), len(y))
    x, y = np.array(x[:n], float), np.array(y[:n], float)
    chosen = select(x, y, delta=delta)

    def value(t):
        found = bound(*count_errors(x, y, t), n, delta=delta or 0.0)
        return found.mu if delta is None else found.epsilon

    every = [Threshold(t, s) for t in np.arange(-4, 4.5, 0.5) for s in (1, -1)]
    assert value(chosen) == pytest.approx(max(map(value, every)), abs=1e-12)


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 300), st.data())
def test_bounds_fall_with_errors(runs, data):
    fp, fn = (data.draw(st.integers(0, runs - 1)) for _ in range(2))
    here, more = (bound(fp + k, fn, runs, delta=DELTA) for k in (0, 1))
    assert more.mu <= here.mu + 1e-12
    assert here.mu <= ceiling(runs, delta=DELTA).mu
    if fp + fn < runs / 2:
        assert more.epsilon <= here.epsilon + 1e-12
    assert betainc(fp + 1, runs - fp, here.limits[0]) == pytest.approx(0.975)


def test_degenerate_noise():
    rng = np.random.default_rng(0)
    fresh = [rng.normal(size=(8, 1)) for _ in range(50)]
    assert not degenerate(fresh)
    assert degenerate([*fresh, fresh[3].copy()])
    coarse = [np.rint(r) for r in rng.normal(size=(300, 2))]
    assert not degenerate(coarse, cell=1.0)


def test_what_is_refused():
    with pytest.raises(InvalidInput, match=r"0\.\.10 errors"):
        bound(11, 0, 10, delta=0.0)
    with pytest.raises(InvalidInput, match="alpha"):
        bound(1, 0, 10, delta=0.0, alpha=0.0)
    with pytest.raises(InvalidInput, match="as many"):
        select([1.0], [1.0, 2.0], delta=None)
    with pytest.raises(InvalidInput, match="more than 4"):
        split_bound(np.ones(4), np.ones(4), selection=4, delta=0.0)
    with pytest.raises(InvalidInput, match="thresholds"):
        grid_bound([1.0], [2.0], [Threshold(0.0, 1)] * (MOST_THRESHOLDS + 1), delta=0.0)
