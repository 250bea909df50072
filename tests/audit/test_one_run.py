"""One-run bounds: vectors, confidence in simulation, and an independent implementation."""

from __future__ import annotations

import importlib.util
import sys

import mpmath as mp
import numpy as np
import pytest
from scipy.special import expit

from expunge.audit.intervals import clopper_pearson
from expunge.audit.one_run import epsilon_bound, group, mu_bound, p_value, refutes_mu
from expunge.errors import InvalidInput
from expunge.guarantee import epsilon_of


@pytest.mark.parametrize(
    ("counts", "epsilon", "mu"),
    [
        ((1000, 1000, 750), 0.9764, 0.460625),
        ((1000, 1000, 600), 0.2972, 0.163850),
        ((1000, 200, 170), 1.3975, 0.555162),
    ],
)
def test_vectors(counts, epsilon, mu):
    assert epsilon_bound(*counts, delta=1e-5) == pytest.approx(epsilon, abs=5e-5)
    assert mu_bound(*counts) == pytest.approx(mu, abs=5e-7)


def test_more_vectors():
    assert p_value(1000, 1000, 750, 1.0, 1e-5) == pytest.approx(0.0939862, abs=5e-8)
    assert p_value(1000, 200, 170, 1.0, 1e-5) == pytest.approx(6.178603e-4, rel=1e-6)
    assert epsilon_bound(100, 100, 70, delta=0.0) == pytest.approx(0.4717, abs=5e-5)


def test_the_p_value_by_its_definition_in_many_digits():
    m, r, v, epsilon, delta = 60, 40, 31, 0.7, 1e-4
    with mp.workdps(40):
        q = mp.exp(epsilon) / (1 + mp.exp(epsilon))
        tail = [
            mp.fsum(mp.binomial(r, j) * q**j * (1 - q) ** (r - j) for j in range(a, r + 1))
            for a in range(v + 1)
        ]
        extra = max((tail[v - i] - tail[v]) / i for i in range(1, v + 1))
        expected = tail[v] + 2 * m * mp.mpf(delta) * extra
    assert p_value(m, r, v, epsilon, delta) == pytest.approx(float(expected), rel=1e-10)


def test_bounds_are_where_refutation_ends():
    counts = (500, 300, 210)
    epsilon, mu = epsilon_bound(*counts, delta=1e-6), mu_bound(*counts)
    assert p_value(*counts, epsilon - 1e-6, 1e-6) <= 0.05 < p_value(*counts, epsilon + 1e-6, 1e-6)
    assert refutes_mu(*counts, mu - 1e-6)
    assert not refutes_mu(*counts, mu + 1e-6)
    assert epsilon_bound(500, 300, 150, delta=0.0) == mu_bound(500, 300, 150) == 0
    assert epsilon_bound(2000, 2000, 2000, delta=0.0) > 6


def gaussian_guesses(rng, mu, m, r):
    """One Gaussian mechanism per coin: x = ±1, release x·μ/2 + N(0, 1); guess the r surest."""
    coins = rng.choice([-1, 1], size=m)
    seen = coins * mu / 2 + rng.normal(size=m)
    sure = np.argsort(-np.abs(seen))[:r]
    return int((np.sign(seen[sure]) == coins[sure]).sum())


@pytest.mark.parametrize("guesses", [200, 60])
def test_gaussian_bounds_lie_below_the_truth(guesses):
    rng, mu, over, positive = np.random.default_rng(guesses), 0.8, 0, 0
    for _ in range(300):
        found = mu_bound(200, guesses, gaussian_guesses(rng, mu, 200, guesses))
        over, positive = over + (found > mu), positive + (found > 0)
    assert clopper_pearson(over, 300, 0.01)[0] <= 0.05
    assert positive > 150


def test_randomised_response_reaches_the_bound_but_not_more_often():
    """ε-randomised response is the worst case: exceeded in at most 5 %, and not hardly ever."""
    rng, epsilon = np.random.default_rng(1), 1.0
    correct = rng.binomial(400, expit(epsilon), size=1000)
    known = {v: epsilon_bound(400, 400, v, delta=0.0) for v in np.unique(correct).tolist()}
    over = sum(known[v] > epsilon for v in correct.tolist())
    low, high = clopper_pearson(over, 1000, 0.01)
    assert low <= 0.05
    assert high > 0.02


def test_a_bound_that_drops_delta_is_no_bound():
    """Negative control: (0, δ) per record by publishing everything with probability δ."""
    rng, m, delta, over, naive = np.random.default_rng(2), 100, 0.15, 0, 0
    for _ in range(400):
        v = m if rng.random() < delta else int(rng.binomial(m, 0.5))
        over += epsilon_bound(m, m, v, delta=delta) > 0
        naive += epsilon_bound(m, m, v, delta=0.0) > 0
    assert clopper_pearson(over, 400, 0.01)[0] <= 0.05
    assert clopper_pearson(naive, 400, 0.01)[0] > 0.05


def peer():
    spec = importlib.util.find_spec("jax_privacy")
    if spec is None or not spec.submodule_search_locations:
        pytest.skip("jax-privacy is not installed")
    path = f"{spec.submodule_search_locations[0]}/auditing.py"
    found = importlib.util.spec_from_file_location("peer_auditing", path)
    module = importlib.util.module_from_spec(found)
    sys.modules["peer_auditing"] = module
    found.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    "counts", [(1000, 1000, 750), (1000, 200, 170), (300, 300, 160), (50, 20, 20), (80, 40, 15)]
)
def test_against_jax_privacy(counts):
    other = peer()
    m, r, v = counts
    theirs = other._epsilon_one_run(0.0, m, r, v, 0.05, 1e-5)
    assert epsilon_bound(m, r, v, delta=1e-5) == pytest.approx(theirs, abs=1e-5)
    gaussian = other._epsilon_one_run_fdp(0.0, m, r, v, 0.05, 1e-5)
    mu = mu_bound(m, r, v)
    assert (epsilon_of(mu, 1e-5) if mu else 0.0) == pytest.approx(gaussian, abs=1e-4)
    assert p_value(m, r, v, 0.4, 1e-5) == pytest.approx(
        min(1.0, other._one_run_p_value(m, r, v, 0.4, 1e-5)), rel=1e-8
    )


def test_group_privacy():
    epsilon, delta = group(0.1, 1e-7, 10)
    assert epsilon == pytest.approx(1.0)
    assert delta == pytest.approx(1e-7 * np.expm1(1.0) / np.expm1(0.1))
    assert group(0.0, 1e-7, 10) == (0.0, pytest.approx(1e-6))
    assert group(0.3, 0.7, 9)[1] == 1.0


def test_what_is_refused():
    for counts in ((10, 11, 5), (10, 5, 6), (10, 0, 0)):
        with pytest.raises(InvalidInput, match="guess"):
            p_value(*counts, 1.0, 0.0)
    with pytest.raises(InvalidInput, match="mu"):
        refutes_mu(10, 10, 5, -1.0)
    with pytest.raises(InvalidInput, match="records"):
        group(1.0, 0.0, 0)
