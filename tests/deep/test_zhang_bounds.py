"""The bounds of Zhang et al.: published numbers, an oracle, vacuity, and what noise is worth."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from expunge.deep import zhang_bounds as bounds
from expunge.deep.zhang_bounds import Account
from expunge.errors import InvalidCalibration, InvalidInput
from expunge.guarantee import compose, delta_of, epsilon_of, mu_of

DELTA = 1e-5
EXAMPLE = (10.0, 200.0, 1.0, 0.0, 0.5946)
LISSA = {"gradient_lipschitz": 0.2065, "batch_norm": 1.0, "parameters": 136_386, "failure": 0.1}


@pytest.mark.parametrize(
    ("epsilon", "mu"),
    [(0.1, 0.032521), (0.5, 0.142211), (1, 0.268051), (2, 0.501552), (4, 0.924931), (10, 2.000446)],
)
def test_the_noise_that_an_epsilon_allows(epsilon, mu):
    assert mu_of(epsilon, DELTA) == pytest.approx(mu, rel=3e-5)
    assert bounds.sigma_needed(1.0, epsilon, DELTA) == pytest.approx(1 / mu, rel=3e-5)


@pytest.mark.parametrize(
    ("shift", "exact", "paper"), [(20, 74.6126, 96.9), (40, 149.2253, 193.8), (42, 156.6865, 203.5)]
)
def test_the_noise_of_a_ball(shift, exact, paper):
    assert bounds.sigma_needed(shift, 1.0, DELTA) == pytest.approx(exact, rel=1e-5)
    assert bounds.sigma_needed(shift, 1.0, DELTA, paper=True) == pytest.approx(paper, rel=1e-3)


@pytest.mark.parametrize(
    ("shift", "sigma", "epsilon"),
    [(40, 0.1, 8.1705e4), (40, 0.01, 8.0171e6), (40, 0.001, 8.0017e8), (20, 0.01, 2.0085e6)],
)
def test_what_the_published_noise_is_worth(shift, sigma, epsilon):
    assert bounds.implied_epsilon(shift, sigma, DELTA) == pytest.approx(epsilon, rel=1e-4)


def test_ten_releases_of_epsilon_one():
    sigma = bounds.sigma_needed(20.0, 1.0, DELTA)
    assert bounds.implied_epsilon(20.0, sigma, DELTA, 10) == pytest.approx(3.61859, rel=1e-5)
    again = epsilon_of(compose([20.0 / sigma] * 10), DELTA)
    assert bounds.implied_epsilon(20.0, sigma, DELTA, 10) == pytest.approx(again, rel=1e-9)
    ten = bounds.sigma_needed(20.0, 1.0, DELTA, 10)
    assert ten == pytest.approx(math.sqrt(10) * sigma)
    assert bounds.implied_epsilon(20.0, ten, DELTA, 10) <= 1.0


def test_no_noise_is_worth_nothing():
    assert bounds.implied_epsilon(40.0, 0.0, DELTA) == math.inf
    assert bounds.implied_epsilon(0.0, 0.0, DELTA) == 0.0


def test_the_papers_formula_only_where_it_is_proved():
    with pytest.raises(InvalidInput, match="ε ≤ 1"):
        bounds.sigma_needed(20.0, 1.5, DELTA, paper=True)
    with pytest.raises(InvalidInput, match="one release"):
        bounds.sigma_needed(20.0, 1.0, DELTA, 2, paper=True)
    from expunge.guarantee import classical_sigma

    with pytest.raises(InvalidCalibration):
        classical_sigma(1.0, 8.5, DELTA)  # what the formula would silently under-noise


def test_lissa_vector_and_the_variant_without_a_logarithm():
    known = bounds.lissa_bound(*EXAMPLE, **LISSA)
    assert known == pytest.approx(22.7188, rel=1e-5)
    assert bounds.vacuous(known, 10.0)
    spread = 16 * math.sqrt(LISSA["parameters"] / LISSA["failure"]) / 200 + 1 / 16
    wrong = bounds.newton_bound(*EXAMPLE) + spread * (2 * 0.2065 * 10 + 0.5946)
    assert wrong == pytest.approx(462.7, rel=1e-3)
    assert abs(wrong - known) > 400


def quartic(w):
    """Gradient and Hessian of ¼‖w‖⁴ − ½‖w‖², nonconvex; 6C-Lipschitz Hessian on the ball."""
    square = w @ w
    return (square - 1) * w, (square - 1) * np.eye(len(w)) + 2 * np.outer(w, w)


@pytest.mark.parametrize("seed", range(20))
def test_the_bound_holds_where_everything_is_known(seed):
    rng = np.random.default_rng(seed)
    radius = rng.uniform(0.3, 3.0)
    for _ in range(50):
        start, retrained = (
            v / np.linalg.norm(v) * radius * rng.random() for v in rng.normal(size=(2, 3))
        )
        gradient, hessian = quartic(start)
        smallest = np.linalg.eigvalsh(hessian)[0]
        damping = max(0.0, -smallest) + rng.exponential()
        step = start - np.linalg.solve(hessian + damping * np.eye(3), gradient)
        residual = np.linalg.norm(quartic(retrained)[0])
        bound = bounds.newton_bound(radius, damping, 6 * radius, smallest, residual)
        assert np.linalg.norm(step - retrained) <= bound


def test_it_is_vacuous_wherever_the_loss_is_not_convex():
    rng = np.random.default_rng(0)
    radius, lipschitz, damping, residual = rng.lognormal(0, 3, (4, 100_000))
    smallest = -damping * rng.random(100_000)
    smallest[::10] = 0.0
    draws = zip(radius, damping, lipschitz, smallest, residual, strict=True)
    assert all(
        bounds.vacuous(bounds.newton_bound(C, lam, M, low, G), C) for C, lam, M, low, G in draws
    )


@given(
    radius=st.floats(1e-2, 1e3),
    damping=st.floats(1e-6, 1e6),
    lipschitz=st.floats(0, 1e3),
    smallest=st.floats(0, 1e3),
)
def test_vacuous_exactly_up_to_mc(radius, damping, lipschitz, smallest):
    found = bounds.vacuous(bounds.newton_bound(radius, damping, lipschitz, smallest), radius)
    edge = lipschitz * radius
    if abs(smallest - edge) > 1e-6 * (edge + damping + smallest):
        assert found == (smallest < edge)


def test_damping_without_end_leaves_the_ball():
    assert bounds.newton_bound(10.0, 1e12, 1.0, -3.0) == pytest.approx(20.0)


@pytest.mark.parametrize("damping", [0.0, 0.5, 1.0])
def test_too_little_damping_is_refused(damping):
    with pytest.raises(InvalidInput, match="must exceed −λ_min = 1"):
        bounds.newton_bound(10.0, damping, 1.0, -1.0)


def test_sequential_bounds_do_not_grow():
    each = bounds.sequential_bounds(10.0, 200.0, 1.0, [(0.0, 0.5946)] * 3)
    assert each == (bounds.newton_bound(*EXAMPLE),) * 3


@pytest.mark.parametrize(
    "broken",
    [
        {"radius": 0.0},
        {"radius": math.nan},
        {"sigma": -1.0},
        {"delta": 0.0},
        {"epsilon": 0.0},
        {"bound": math.nan},
        {"bound": -1.0},
        {"releases": 0},
        {"failure": -0.1},
    ],
)
def test_an_account_checks_its_numbers(broken):
    good = {"bound": math.inf, "radius": 10.0, "sigma": 1.0, "epsilon": 1.0, "delta": DELTA}
    Account(**good)
    with pytest.raises(InvalidInput):
        Account(**good | broken)


def test_an_account_never_uses_more_than_the_ball():
    for bound in (math.inf, 22.7188, 20.0):
        account = Account(bound, 10.0, 0.01, 1.0, DELTA)
        assert account.shift == 20.0
        assert account.vacuous
        assert account.method == "output_perturbation"
        assert account.refused
        assert account.needed == pytest.approx(74.6126, rel=1e-5)
        assert "claim: REFUSED; implied ε=2.009e+06" in account.block()
    tight = Account(1.0, 10.0, 5.0, 1.0, DELTA)
    assert not tight.refused
    assert tight.method == "zhang"
    assert tight.shift == 1.0
    assert "vacuous" not in tight.block()


def test_the_failure_of_a_bound_comes_out_of_delta():
    surely = Account(1.0, 10.0, 5.0, 1.0, DELTA)
    mostly = Account(1.0, 10.0, 5.0, 1.0, DELTA, failure=DELTA / 2)
    assert mostly.needed > surely.needed
    assert delta_of(mostly.implied, mostly.mu) + DELTA / 2 <= DELTA * (1 + 1e-12)
    never = Account(1.0, 10.0, 1e9, 1.0, DELTA, failure=DELTA)
    assert never.refused
    assert never.implied == math.inf
    ball = Account(math.inf, 10.0, 75.0, 1.0, DELTA, failure=DELTA)
    assert not ball.refused  # the ball does not fail


def test_exactly_the_needed_noise_is_enough():
    for shift in (0.3, 20.0, 1e4):
        for epsilon in (0.1, 1.0, 7.0):
            sigma = bounds.sigma_needed(shift, epsilon, DELTA)
            account = Account(math.inf, shift / 2, sigma, epsilon, DELTA)
            assert not account.refused
            assert account.implied <= epsilon
            less = Account(math.inf, shift / 2, sigma * (1 - 1e-9), epsilon, DELTA)
            assert less.refused
