"""The algebra of (ε, δ), μ and σ against 60-digit arithmetic, dp_accounting, published numbers."""

from __future__ import annotations

import math
import sys

import mpmath
import pytest
from dp_accounting.pld.privacy_loss_mechanism import GaussianPrivacyLoss
from hypothesis import given, settings
from hypothesis import strategies as st

from expunge.errors import CertificateRefused, InvalidCalibration, InvalidInput
from expunge.guarantee import (
    classical_sigma,
    compose,
    delta_of,
    discrete_delta,
    discrete_sigma,
    epsilon_of,
    guo_sigma,
    log_delta,
    mu_of,
    sigma_for,
    success_probability,
    tolerance_for,
)


def exact_log_delta(epsilon: float, mu: float) -> mpmath.mpf:
    """Log δ by the defining formula, with 60 digits left after its cancellation."""
    z1 = epsilon / mu - mu / 2
    with mpmath.workdps(80 + (int(z1 * z1 / 4) if z1 > 0 else 0)):
        e, m = mpmath.mpf(epsilon), mpmath.mpf(mu)
        value = mpmath.ncdf(m / 2 - e / m) - mpmath.exp(e) * mpmath.ncdf(-m / 2 - e / m)
        return mpmath.log(value)


def log_uniform(low: float, high: float) -> st.SearchStrategy[float]:
    return st.floats(math.log(low), math.log(high)).map(math.exp)


def visible_pairs(mu_low: float, mu_high: float, z_high: float) -> st.SearchStrategy:
    """(ε, μ) with ε/μ − μ/2 between −5 and about z_high, so that δ does not vanish."""

    def pair(mu: float, fraction: float) -> tuple[float, float]:
        return mu * (max(0.0, mu / 2 - 5) + z_high * fraction), mu

    return st.builds(pair, log_uniform(mu_low, mu_high), st.floats(1e-9, 1))


EPSILONS = log_uniform(1e-6, 50)
MUS = log_uniform(1e-4, 30)
DELTAS = log_uniform(1e-250, 0.999)


# --- T1 -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("epsilon", "mu", "expected"),
    [
        (1, 0.3, 5.48874964461e-5),
        (1, 1, 0.126936737507),
        (0.1, 0.01, 7.85769277e-27),
        (0.5, 2, 0.599185618534),
        (4, 1, 4.71224120079e-5),
        (0, 1, 0.382924922548),
    ],
)
def test_published_delta(epsilon: float, mu: float, expected: float) -> None:
    assert math.exp(log_delta(epsilon, mu)) == pytest.approx(expected, rel=1e-9)
    assert expected < delta_of(epsilon, mu) <= expected * (1 + 1.1e-6)


@pytest.mark.parametrize(
    ("epsilon", "delta", "expected"),
    [
        (1, 1e-4, 0.313902458),
        (1, 1e-5, 0.268051123),
        (1, 1e-6, 0.236704381),
        (0.1, 1e-5, 0.032520784),
        (4, 1e-5, 0.924930898),
        (8, 1e-6, 1.531545118),
    ],
)
def test_published_mu(epsilon: float, delta: float, expected: float) -> None:
    value = mu_of(epsilon, delta)
    assert value == pytest.approx(expected, rel=1e-6)
    assert value < expected


@pytest.mark.parametrize(
    ("mu", "delta", "expected"),
    [
        (1, 1e-5, 4.377178096),
        (0.1, 1e-5, 0.340669365),
        (2, 1e-6, 10.997151214),
    ],
)
def test_published_epsilon(mu: float, delta: float, expected: float) -> None:
    value = epsilon_of(mu, delta)
    assert value == pytest.approx(expected, rel=1e-6)
    assert value > expected


def test_epsilon_is_zero_when_total_variation_is_below_delta() -> None:
    assert epsilon_of(1e-6, 1e-5) == 0


def test_guo_constants() -> None:
    assert guo_sigma(1.0, 1.0, 1e-4) == pytest.approx(4.385386, rel=1e-6)
    assert 10 / guo_sigma(1.0, 1.0, 1e-4) == pytest.approx(2.280301, rel=1e-6)
    assert 1 / classical_sigma(1.0, 1.0, 1e-4) == pytest.approx(0.2302, abs=5e-5)
    assert 1 / guo_sigma(1.0, 1.0, 1e-4) == pytest.approx(0.2280, abs=5e-5)


def test_zcdp_route() -> None:
    assert math.log10(discrete_delta(1, 0.3, 1)) == pytest.approx(-3.6984, abs=5e-5)


# --- accuracy -----------------------------------------------------------------------------------


def test_log_delta_on_the_grid() -> None:
    epsilons = [0.0] + [1e-6 * 5e7 ** (i / 24) for i in range(25)]
    mus = [1e-4 * 3e5 ** (i / 24) for i in range(25)] + [0.999999999, 1.0, 1.000000001]
    worst = 0.0
    for epsilon in epsilons:
        for mu in mus:
            value = log_delta(epsilon, mu)
            if value >= math.log(1e-250):
                error = abs(float(mpmath.mpf(value) - exact_log_delta(epsilon, mu)))
                worst = max(worst, error)
    assert worst <= 1e-11


@given(visible_pairs(1e-12, 1e4, 35))
@settings(max_examples=300, deadline=None)
def test_log_delta_anywhere(pair: tuple[float, float]) -> None:
    epsilon, mu = pair
    value = log_delta(epsilon, mu)
    assert abs(float(mpmath.mpf(value) - exact_log_delta(epsilon, mu))) <= 1e-9


@given(visible_pairs(0.05, 10, 10))
@settings(max_examples=100, deadline=None)
def test_dp_accounting_agrees(pair: tuple[float, float]) -> None:
    epsilon, mu = pair
    value = math.exp(log_delta(epsilon, mu))
    peer = GaussianPrivacyLoss(standard_deviation=1 / mu).get_delta_for_epsilon(epsilon)
    assert value == pytest.approx(peer, rel=1e-9)


@given(EPSILONS, MUS)
@settings(max_examples=200, deadline=None)
def test_issued_delta_is_never_below_the_truth(epsilon: float, mu: float) -> None:
    issued = delta_of(epsilon, mu)
    assert 0 < issued <= 1
    if issued > 1e-300:
        assert issued == 1 or mpmath.log(mpmath.mpf(issued)) > exact_log_delta(epsilon, mu)


def test_extremes_stay_outward() -> None:
    assert log_delta(1.0, 0.0) == -math.inf
    assert delta_of(1.0, 0.0) == 0
    assert delta_of(1.0, 1e-300) == sys.float_info.min
    assert log_delta(1.0, 1e-310) == -math.inf
    assert delta_of(0.0, 1e7) == 1
    assert epsilon_of(1e7, 1e-5) == math.inf
    assert epsilon_of(0.0, 1e-5) == 0
    assert math.isfinite(mu_of(1e300, 0.5))
    assert delta_of(1e11, mu_of(1e300, 0.5)) <= 0.5


# --- order and round trips ----------------------------------------------------------------------


@given(EPSILONS, MUS, st.floats(1.001, 10))
@settings(max_examples=200, deadline=None)
def test_delta_falls_in_epsilon_and_rises_in_mu(epsilon: float, mu: float, factor: float) -> None:
    slack = 1e-9
    assert log_delta(epsilon * factor, mu) <= log_delta(epsilon, mu) + slack
    assert log_delta(epsilon, mu * factor) >= log_delta(epsilon, mu) - slack


@given(EPSILONS, DELTAS)
@settings(max_examples=100, deadline=None)
def test_mu_is_the_largest_and_round_trips_outward(epsilon: float, delta: float) -> None:
    mu = mu_of(epsilon, delta)
    assert delta_of(epsilon, mu) <= delta
    assert delta_of(epsilon, mu * (1 + 1e-9)) > delta
    assert epsilon_of(mu, delta) <= epsilon * (1 + 1e-9)
    assert mpmath.log(mpmath.mpf(delta)) > exact_log_delta(epsilon, mu)


@given(MUS, DELTAS)
@settings(max_examples=100, deadline=None)
def test_epsilon_is_the_smallest_and_round_trips_outward(mu: float, delta: float) -> None:
    epsilon = epsilon_of(mu, delta)
    assert delta_of(epsilon, mu) <= delta
    if epsilon > 0:
        assert delta_of(epsilon * (1 - 1e-9), mu) > delta
        assert mu_of(epsilon, delta) >= mu * (1 - 1e-9)


@given(log_uniform(1e-12, 1e6), EPSILONS, log_uniform(1e-30, 0.5), st.integers(1, 10**6))
@settings(max_examples=100, deadline=None)
def test_sigma_and_tolerance_round_trip(
    shift: float, epsilon: float, delta: float, releases: int
) -> None:
    sigma = sigma_for(shift, epsilon, delta, releases)
    cap = mu_of(epsilon, delta)
    assert math.sqrt(releases) * (shift / sigma) <= cap
    assert shift / sigma * math.sqrt(releases) == pytest.approx(cap, rel=1e-9)
    tau = tolerance_for(sigma, epsilon, delta, releases)
    assert 2 * tau * math.sqrt(releases) / sigma <= cap
    assert 2 * tau == pytest.approx(shift, rel=1e-9)


def test_orders_of_calibration() -> None:
    base = sigma_for(1.0, 1.0, 1e-5, 10)
    assert sigma_for(2.0, 1.0, 1e-5, 10) > base
    assert sigma_for(1.0, 2.0, 1e-5, 10) < base
    assert sigma_for(1.0, 1.0, 1e-4, 10) < base
    assert sigma_for(1.0, 1.0, 1e-5, 11) > base
    assert sigma_for(1.0, 1.0, 1e-5, 1000) == pytest.approx(base * 10, rel=1e-9)


def test_flagship_numbers() -> None:
    """Numbers of T2: Λ = 1, τ = 1e-8."""
    assert sigma_for(2e-8, 1, 1e-5, 1000) == pytest.approx(2.35945862e-6, rel=1e-6)
    assert compose([2e-5] * 10_000) == pytest.approx(2e-3)
    assert delta_of(0.01, 2e-3) == pytest.approx(1.07e-10, rel=0.01)
    cap = mu_of(1, 1e-4) / (2e-9 / (10 * 1e-3))
    assert cap * cap == pytest.approx(2.4634e12, rel=1e-4)


def test_certificate_example() -> None:
    one = 2e-6 / 0.0002671922
    cap = compose([one] * 1000)
    assert one == pytest.approx(0.007485248447, rel=1e-9)
    assert cap == pytest.approx(0.236704339436, rel=1e-9)
    assert math.exp(log_delta(1, cap)) == pytest.approx(9.99996414e-7, rel=1e-8)
    assert delta_of(1, cap) <= 1e-6
    assert epsilon_of(cap, 1e-6) == pytest.approx(0.999999812, abs=1e-7)
    assert epsilon_of(one, 1e-6) == pytest.approx(0.024630, abs=1e-6)
    assert success_probability(one) == pytest.approx(0.5015, abs=5e-5)


@given(st.lists(log_uniform(1e-12, 1e3), min_size=1, max_size=50))
def test_composition_is_rounded_up(mus: list[float]) -> None:
    with mpmath.workdps(60):
        exact = mpmath.sqrt(sum(mpmath.mpf(mu) ** 2 for mu in mus))
        assert exact <= compose(mus) <= exact * (1 + 1e-14)


def test_composing_nothing_is_nothing() -> None:
    assert compose([]) == 0
    assert compose([0.0, 0.0]) == 0


@given(log_uniform(1e-12, 1e3))
def test_success_probability_is_rounded_up(mu: float) -> None:
    with mpmath.workdps(60):
        assert min(1, mpmath.ncdf(mpmath.mpf(mu) / 2)) <= success_probability(mu) <= 1


# --- published calibrations ---------------------------------------------------------------------

LIMITS = [
    (guo_sigma, 1e-2, 7.207),
    (guo_sigma, 1e-4, 8.376),
    (guo_sigma, 1e-5, 8.794),
    (guo_sigma, 1e-6, 9.148),
    (guo_sigma, 1e-8, 9.730),
    (guo_sigma, 1e-10, 10.200),
    (classical_sigma, 1e-2, 6.772),
    (classical_sigma, 1e-4, 7.991),
    (classical_sigma, 1e-5, 8.420),
    (classical_sigma, 1e-6, 8.782),
    (classical_sigma, 1e-8, 9.374),
    (classical_sigma, 1e-10, 9.850),
]


@pytest.mark.parametrize(("calibration", "delta", "limit"), LIMITS)
def test_published_calibrations_end_where_they_become_false(calibration, delta, limit) -> None:
    assert calibration(1.0, limit - 1e-3, delta) > 0
    with pytest.raises(InvalidCalibration):
        calibration(1.0, limit + 1e-3, delta)


@pytest.mark.parametrize(
    ("calibration", "exact"), [(guo_sigma, "0.000137584"), (classical_sigma, "0.000168055")]
)
def test_n1_published_calibration_is_refused_with_the_exact_delta(calibration, exact) -> None:
    with pytest.raises(InvalidCalibration, match=exact) as caught:
        calibration(1.0, 9.0, 1e-4)
    assert isinstance(caught.value, CertificateRefused)


@given(log_uniform(1e-2, 6), log_uniform(1e-12, 1e-2))
@settings(max_examples=50, deadline=None)
def test_published_calibrations_are_never_tighter_than_exact(epsilon: float, delta: float) -> None:
    exact = sigma_for(1.0, epsilon, delta)
    assert guo_sigma(1.0, epsilon, delta) > exact
    assert classical_sigma(1.0, epsilon, delta) > exact


# --- discrete noise -----------------------------------------------------------------------------


@given(visible_pairs(0.02, 5, 30))
@settings(max_examples=50, deadline=None)
def test_zcdp_delta_is_the_infimum_and_above_the_gaussian(pair: tuple[float, float]) -> None:
    epsilon, mu = pair
    value = discrete_delta(epsilon, mu, 1.0)
    rho = mu * mu / 2

    def at(x: float) -> float:
        log = x * ((1 + x) * rho - epsilon) + x * math.log(x) - (1 + x) * math.log1p(x)
        return math.exp(min(log, 0.0))

    best = min(at(1e-6 * 1e12 ** (i / 2000)) for i in range(2001))
    assert value == pytest.approx(best, rel=1e-3)
    assert value <= best * (1 + 1.1e-6)
    assert value >= min(1.0, math.exp(log_delta(epsilon, mu)))


def test_discrete_releases_add_rho() -> None:
    assert discrete_delta(1, 0.01, 1, releases=100) == pytest.approx(discrete_delta(1, 0.1, 1))
    assert discrete_delta(1, 0, 1) == 0


@pytest.mark.parametrize("releases", [1, 1000])
@pytest.mark.parametrize("dimension", [1, 1000])
def test_discrete_sigma_covers_the_grid(releases: int, dimension: int) -> None:
    sigma = discrete_sigma(2e-6, 1, 1e-6, releases, dimension)
    shift = 2e-6 + math.sqrt(dimension) * sigma * 2.0**-24
    assert discrete_delta(1, shift, sigma, releases) <= 1e-6 * (1 + 1e-9)
    assert discrete_delta(1, shift, sigma * 0.999, releases) > 1e-6
    assert sigma > sigma_for(2e-6, 1, 1e-6, releases)


def test_discrete_sigma_refuses_what_the_grid_cannot_carry() -> None:
    with pytest.raises(InvalidInput, match="fewer releases"):
        discrete_sigma(2e-6, 1, 1e-6, releases=10**12, dimension=1000)


# --- bad parameters -----------------------------------------------------------------------------


@pytest.mark.parametrize("bad", [-1.0, math.nan, math.inf])
def test_numbers_outside_their_range_are_refused(bad: float) -> None:
    calls = [
        lambda: log_delta(bad, 1.0),
        lambda: log_delta(1.0, bad),
        lambda: mu_of(bad, 1e-5),
        lambda: mu_of(1.0, bad),
        lambda: epsilon_of(bad, 1e-5),
        lambda: sigma_for(bad, 1.0, 1e-5),
        lambda: tolerance_for(bad, 1.0, 1e-5, 1),
        lambda: compose([1.0, bad]),
        lambda: success_probability(bad),
        lambda: discrete_delta(bad, 1.0, 1.0),
    ]
    for call in calls:
        with pytest.raises(InvalidInput, match="must be"):
            call()


@pytest.mark.parametrize("delta", [0.0, 1.0, 1e-310])
def test_delta_outside_its_range_is_refused(delta: float) -> None:
    with pytest.raises(InvalidInput, match="1e-300"):
        mu_of(1.0, delta)


@pytest.mark.parametrize("releases", [0, -1, 1.5, True])
def test_releases_must_be_counted(releases) -> None:
    with pytest.raises(InvalidInput, match="whole number"):
        sigma_for(1.0, 1.0, 1e-5, releases)
