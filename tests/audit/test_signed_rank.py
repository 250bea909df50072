"""Exact p-values and the lemma: enumeration, vectors, tightness, and what must not be used."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import ndtr, ndtri
from scipy.stats import binom, kstest, wilcoxon

from expunge.audit import signed_rank as sr
from expunge.audit.intervals import clopper_pearson
from expunge.errors import InvalidInput

RNG = np.random.default_rng(0)


def test_vectors():
    v = [1, -2, 3, 4, -5, 6, 7, 8, 9, 10]
    assert sr.signed_rank(v, RNG).p == 19 / 1024
    assert sr.signed_rank(np.arange(1, 11), RNG).p == 1 / 1024
    assert sr.signed_rank(np.arange(1, 201), RNG).p == pytest.approx(6.223015e-61, rel=1e-6)
    assert sr.epsilon_of_p(1e-3, delta=1e-5) == pytest.approx(3.911823, abs=5e-7)
    assert sr.mu_of_p(1e-3) == pytest.approx(1.445379, abs=5e-7)
    assert sr.pooled_mu([0.01, 0.2, 0.03, 0.5]) == pytest.approx(0.439764, abs=5e-7)
    bits = float(binom.sf(599, 1000, 0.5))
    assert sr.epsilon_of_p(bits, delta=1e-5) == pytest.approx(19.719, abs=5e-4)
    assert sr.mu_of_p(bits) == pytest.approx(4.6686, abs=5e-5)
    assert sr.hits_bound(20, 20, delta=1e-5) == pytest.approx(4.46, abs=5e-3)


@pytest.mark.parametrize(
    ("pairs", "epsilon", "mu"), [(25, 14.33, 3.78), (50, 31.7, 6.31), (100, 66.3, 9.84)]
)
def test_ceilings(pairs, epsilon, mu):
    assert sr.ceiling(pairs, delta=1e-4) == pytest.approx((epsilon, mu), abs=0.05)
    assert sr.ceiling(pairs, delta=1e-4)[1] == pytest.approx(mu, abs=5e-3)


def test_what_is_detectable():
    for epsilon, z in ((1, 2.09), (4, 3.12), (8, 4.15)):
        found = sr.detectable_mu(claim_epsilon=epsilon) - ndtri(0.8)
        assert found == pytest.approx(z, abs=5e-3)
    for runs, mu in ((1, 2.80), (10, 1.10), (25, 0.81), (100, 0.56)):
        assert sr.detectable_mu(runs=runs, claim_mu=0.314) == pytest.approx(mu, abs=5e-3)
    assert sr.detectable_mu(runs=3, claim_epsilon=9.0, delta=1e-5) == math.inf


@pytest.mark.parametrize("runs", [1, 20])
def test_the_detectable_mu_is_detected_in_four_of_five(runs):
    rng, claim = np.random.default_rng(runs), 0.314
    for kind in ("mu", "epsilon"):
        args = {"claim_mu": claim} if kind == "mu" else {"claim_epsilon": 1.0, "delta": 1e-5}
        mu, hits = sr.detectable_mu(runs=runs, **args), 0
        for _ in range(1000):
            p = ndtr(-rng.normal(loc=mu, size=runs))
            if kind == "mu":
                hits += sr.pooled_mu(p) > claim
            elif runs == 1:
                hits += sr.epsilon_of_p(float(p[0]), delta=1e-5) > 1
            else:
                hits += sr.hits_bound(int((p <= 0.01).sum()), runs, delta=1e-5) > 1
        low, high = clopper_pearson(hits, 1000, 1e-3)
        assert low <= 0.8 <= high, kind


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(-9, 9).filter(bool), min_size=1, max_size=9))
def test_signed_rank_by_enumeration(values):
    """With ties broken by noise that the enumeration sees too."""
    v = np.array(values, float)
    found = sr.signed_rank(v, np.random.default_rng(3))
    order = np.lexsort((np.random.default_rng(3).random(len(v)), np.abs(v)))
    ranks = np.empty(len(v))
    ranks[order] = np.arange(1, len(v) + 1)
    own = ranks[v > 0].sum()
    sums = [ranks[np.array(s)].sum() for s in itertools.product([False, True], repeat=len(v))]
    assert found.p == pytest.approx(np.mean(np.array(sums) >= own))
    assert found.p_above == pytest.approx(np.mean(np.array(sums) > own))
    assert found.p_below == pytest.approx(np.mean(np.array(sums) <= own))


def test_signed_rank_against_scipy():
    rng = np.random.default_rng(4)
    for k in (8, 20, 40):
        v = rng.normal(loc=0.3, size=k)
        expected = wilcoxon(v, alternative="greater", method="exact").pvalue
        assert sr.signed_rank(v, rng).p == pytest.approx(expected, rel=1e-9)


def test_the_sign_test_counts_the_largest():
    v = [5, -4, 3, -0.2, -0.1]
    assert sr.sign_test(v, 3, RNG).p == pytest.approx(binom.sf(1, 3, 0.5))
    assert sr.sign_test(v, 5, RNG).p == pytest.approx(binom.sf(1, 5, 0.5))
    assert sr.monte_carlo(2.0, [1.0, 3.0, 2.0]) == 3 / 4


def test_contrasts_of_zero_say_nothing():
    assert sr.signed_rank(np.zeros(10), RNG).p == 1.0
    assert sr.sign_test(np.zeros(10), 5, RNG).p == 1.0


def test_fair_coins_give_valid_and_uniform_p_values():
    rng = np.random.default_rng(6)
    size = np.abs(rng.normal(size=12)).round(1) + 0.1
    found = [sr.signed_rank(rng.choice([-1, 1], size=12) * size, rng) for _ in range(3000)]
    for t in (0.001, 0.01, 0.05, 0.3):
        hits = sum(one.p <= t for one in found)
        assert clopper_pearson(hits, 3000, 1e-3)[0] <= t
        both = sum(one.both <= t for one in found)
        assert clopper_pearson(both, 3000, 1e-3)[0] <= t
    uniform = [one.randomised(rng.random()) for one in found]
    assert kstest(uniform, "uniform").pvalue > 1e-3


@pytest.mark.parametrize(("epsilon", "delta"), [(1.0, 0.0), (0.5, 0.01)])
def test_the_lemma_is_tight(epsilon, delta):
    """A mechanism with P[p ≤ t] = e^ε t + δ: exceeded in 5 %, no more and no less."""
    rng, n = np.random.default_rng(8), 40000
    u = rng.random(n)
    p = np.where(u < delta, 0.0, (u - delta) * np.exp(-epsilon))
    over = sum(sr.epsilon_of_p(float(x), delta=delta) > epsilon for x in p)
    low, high = clopper_pearson(over, n, 1e-3)
    assert low <= 0.05 <= high
    mu = 0.7
    over = sum(sr.mu_of_p(float(x)) > mu for x in ndtr(-rng.normal(loc=mu, size=n)))
    low, high = clopper_pearson(over, n, 1e-3)
    assert low <= 0.05 <= high


@pytest.mark.parametrize("mu", [0.0, 1.0, 3.0])
def test_bounds_of_a_set_level_mechanism(mu):
    """θ = ξ + μ·b/√k against Q = N(0, I): exactly μ-GDP for every b, 600 runs."""
    rng, k, over, pooled = np.random.default_rng(int(mu)), 25, 0, 0
    drawn = []
    for _ in range(600):
        b = rng.choice([-1, 1], size=k)
        theta = rng.normal(size=k) + mu * b / math.sqrt(k)
        drawn.append(sr.signed_rank(b * theta, rng))
    over = sum(sr.mu_of_p(one.p) > mu for one in drawn)
    assert clopper_pearson(over, 600, 0.01)[0] <= 0.05
    groups = np.array_split(np.array([one.randomised(rng.random()) for one in drawn]), 60)
    pooled = sum(sr.pooled_mu(group) > mu for group in groups)
    assert clopper_pearson(pooled, 60, 0.01)[0] <= 0.05
    if mu == 3.0:
        assert np.mean([sr.pooled_mu(group) for group in groups]) > 1.5


def test_a_normal_approximation_exceeds_its_level():
    """Negative control: perfect sorting of four, and signs of few pairs."""
    sorted_four = float(ndtr(-(2 - 1) / math.sqrt(1 / 3)))
    assert sorted_four == pytest.approx(0.042, abs=5e-4)
    assert sorted_four < 0.05 < 1 / 6
    assert float(ndtr(-(130 - 100) / math.sqrt(50))) < binom.sf(129, 200, 0.5)
    rng, k = np.random.default_rng(9), 4
    hits = rng.binomial(k, 0.5, size=20000)
    normal = ndtr(-(hits - k / 2) / math.sqrt(k / 4))
    assert clopper_pearson(int((normal <= 0.05).sum()), 20000, 1e-3)[0] > 0.05
    exact = binom.sf(hits - 1, k, 0.5)
    assert clopper_pearson(int((exact <= 0.05).sum()), 20000, 1e-3)[0] <= 0.05


def test_an_epsilon_of_its_own_for_each_run_exceeds_the_level():
    """Negative control, limit (i): half of the secrets have ε = 0, half ε = 3; use the maximum.

    The p-values are valid given each release: ε = 0 takes all the room below α that ε = 3 leaves.
    """
    rng, n, most = np.random.default_rng(10), 20000, 3.0
    truth = rng.choice([0.0, most], size=n)
    edge = 0.05 * math.exp(-most)
    small = rng.random(n) < np.where(truth > 0, 0.1, 0.1 - 2 * edge)
    low = np.where(truth > 0, 0.0, edge)
    p = np.where(small, low + rng.random(n) * (np.where(truth > 0, edge, 0.05) - low), 0.5)
    bounds = np.array([sr.epsilon_of_p(float(x), delta=0.0) for x in p])
    own, largest = int((bounds > truth).sum()), int((bounds > most).sum())
    assert clopper_pearson(own, n, 1e-3)[0] > 0.09
    assert clopper_pearson(largest, n, 1e-3)[0] <= 0.05


def test_what_is_refused():
    with pytest.raises(InvalidInput, match="1000 pairs"):
        sr.signed_rank(np.ones(1001), RNG)
    with pytest.raises(InvalidInput, match="pairs to count"):
        sr.sign_test(np.ones(3), 4, RNG)
    with pytest.raises(InvalidInput, match="p-values"):
        sr.mu_of_p(1.5)
    with pytest.raises(InvalidInput, match="p-values"):
        sr.pooled_mu([])
    with pytest.raises(InvalidInput, match="hits"):
        sr.hits_bound(3, 2, delta=0.0)
