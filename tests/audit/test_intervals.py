"""Areas, exact intervals and bootstraps against closed forms, brute force and coverage."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import binom, norm

from expunge.audit import intervals
from expunge.audit.intervals import area, bootstrap, clopper_pearson, clustered_area, hit_rate
from expunge.errors import InvalidInput

SCORES = st.lists(st.integers(0, 6), min_size=2, max_size=12)


@given(SCORES, SCORES)
@settings(max_examples=60, deadline=None)
def test_area_and_its_error_are_those_of_all_pairs(x, y):
    """DeLong's placements by brute force, ties included."""
    pairs = np.array([[(a > b) + (a == b) / 2 for b in y] for a in x])
    error = math.sqrt(
        pairs.mean(axis=1).var(ddof=1) / len(x) + pairs.mean(axis=0).var(ddof=1) / len(y)
    )
    found = area(x, y)
    assert found.value == pytest.approx(pairs.mean(), abs=1e-12)
    assert found.error == pytest.approx(error, abs=1e-12)
    mirrored = area(y, x)
    assert mirrored.value == pytest.approx(1 - found.value)
    assert mirrored.p == pytest.approx(found.p)


def test_the_known_area():
    """Scores N(1, 1) against N(0, 1); error against the bootstrap; null error of the sheet."""
    rng = np.random.default_rng(0)
    x, y = rng.normal(1, 1, 4000), rng.normal(0, 1, 6000)
    found = area(x, y)
    assert abs(found.value - norm.cdf(1 / math.sqrt(2))) < 4 * found.error
    drawn = clustered_area(x[:300], y[:300], (None, None), rng)
    assert drawn.std() == pytest.approx(area(x[:300], y[:300]).error, rel=0.1)
    assert intervals._null_error(np.arange(1, 1101.0), 100, 1000) == pytest.approx(0.0303, abs=5e-5)


def test_intervals_of_the_area_cover():
    """Nominal 95 %; nearer to 1 the normal interval of DeLong covers somewhat less."""
    rng = np.random.default_rng(1)
    for shift, least in ((1.0, 0.93), (2.5, 0.87)):
        truth, inside = norm.cdf(shift / math.sqrt(2)), 0
        for _ in range(400):
            low, high = area(rng.normal(shift, 1, 40), rng.normal(0, 1, 60)).ci
            inside += low <= truth <= high
        assert inside / 400 > least


def test_perfect_separation_has_an_interval():
    """DeLong's error is 0 there; the limit is the area that separates with probability α/2."""
    perfect = area([2.0, 3.0], [0.0, 1.0, 1.5])
    assert perfect.error == 0
    assert perfect.ci == pytest.approx((math.sqrt(0.025), 1.0))
    assert area([0.0, 1.0, 1.5], [2.0, 3.0]).ci == pytest.approx((0.0, 1 - math.sqrt(0.025)))
    rng = np.random.default_rng(5)
    a = perfect.ci[0]  # positives below all negatives with probability 1 − a: the worst case
    separated = [(rng.random(2) < a).all() for _ in range(4000)]
    assert np.mean(separated) == pytest.approx(0.025, abs=0.008)


def test_the_rank_test_holds_its_level_and_sees_both_sides():
    rng = np.random.default_rng(2)
    p = [area(rng.normal(size=30), rng.normal(size=50)).p for _ in range(2000)]
    assert (
        binom.ppf(0.001, 2000, 0.05) <= np.sum(np.array(p) <= 0.05) <= binom.ppf(0.999, 2000, 0.05)
    )
    coarse = [area(rng.integers(3, size=30), rng.integers(3, size=50)).p for _ in range(1000)]
    assert np.sum(np.array(coarse) <= 0.05) <= binom.ppf(0.999, 1000, 0.05)
    low, high = rng.normal(-1, 1, 50), rng.normal(1, 1, 50)
    assert area(low, np.zeros(50) + rng.normal(size=50)).p < 0.01
    assert area(high, rng.normal(size=50)).p < 0.01
    assert area([1, 1, 1], [1, 1]).p == 1.0


@given(st.integers(0, 60), st.integers(1, 60))
@settings(max_examples=60, deadline=None)
def test_exact_interval(hits, extra):
    trials = hits + extra - 1 if hits + extra > 1 else 1
    if hits > trials:
        return
    low, high = clopper_pearson(hits, trials)
    if hits:
        assert binom.sf(hits - 1, trials, low) == pytest.approx(0.025)
    if hits < trials:
        assert binom.cdf(hits, trials, high) == pytest.approx(0.025)
    assert low <= hits / trials <= high


def test_hit_rates():
    """N(1, 1) against N(0, 1): 0.092364 at 1 %, 0.018298 at 0.1 %."""
    rng = np.random.default_rng(3)
    x, y = rng.normal(1, 1, 200_000), rng.normal(0, 1, 200_000)
    for rate, truth in ((0.01, 0.092364), (0.001, 0.018298)):
        hits, real = hit_rate(x, y, rate)
        assert real <= rate
        assert hits / len(x) == pytest.approx(truth, rel=0.1)
        assert norm.sf(norm.isf(rate) - 1) == pytest.approx(truth, abs=5e-6)
    assert hit_rate(x, y[:999], 0.01) is None
    assert hit_rate([1.0], np.ones(1000), 0.01) == (0, 0.0)


def test_bootstraps():
    """Against the normal interval; clusters count, not rows."""
    rng = np.random.default_rng(4)
    users = np.repeat(np.arange(60), 10)
    values = rng.normal(size=60)[users][:, None] + 0.1 * rng.normal(size=(600, 1))
    rows = bootstrap(values, lambda m: m[:, 0], rng)
    whole = bootstrap(values, lambda m: m[:, 0], rng, clusters=users)
    assert rows[1] - rows[0] == pytest.approx(3.92 * values.std() / math.sqrt(600), rel=0.15)
    assert whole[1] - whole[0] == pytest.approx(3.92 * values.std() / math.sqrt(60), rel=0.2)
    with pytest.raises(InvalidInput, match="one each"):
        bootstrap(values, lambda m: m[:, 0], rng, clusters=users[:5])


@pytest.mark.parametrize("bad", [[np.nan, 1.0], [], [[1.0]], ["a"], [np.inf]])
def test_bad_scores_are_refused(bad):
    with pytest.raises(InvalidInput, match="positive scores"):
        area(bad, [1.0, 2.0])
    with pytest.raises(InvalidInput, match="hits"):
        clopper_pearson(3, 2)
