"""The accounting of discrete Gaussian noise, the hardened mode; import from ``guarantee``."""

from __future__ import annotations

import math
import sys

from expunge.errors import InvalidInput
from expunge.gaussian import (
    DELTA_MARGIN,
    ROUNDING,
    boundary,
    require_count,
    require_non_negative,
    require_positive,
    require_probability,
)

GRID_BITS = 24
"""Discrete noise lives on a grid 2^-j of at most σ/2^24 (:class:`expunge.noise.Discrete`)."""


def discrete_delta(epsilon: float, shift: float, sigma: float, releases: int = 1) -> float:
    """Return δ at ε of ``releases`` discrete Gaussian releases together, rounded up.

    Each is ρ-zCDP with ρ = (shift/σ)²/2 and ρ adds; δ = inf over α > 1 of
    exp((α−1)(αρ−ε))/(α−1)·(1−1/α)^α (Canonne, Kamath & Steinke 2020, Cor. 13). Every α gives a
    valid δ, so the search can only err upwards.

    Parameters
    ----------
    epsilon : float
        > 0: at ε = 0 the formula gives nothing better than 1.
    shift : float
        Distance between the two worlds' *gridded* parameters: 2τ + g√d on a grid g, ≥ 0.
    sigma : float
        Parameter of the noise in the units of ``shift``.
    releases : int
        How many, ≥ 1.

    Raises
    ------
    InvalidInput
        If a parameter is outside its range.

    Examples
    --------
    >>> round(math.log10(discrete_delta(1.0, 0.3, 1.0)), 4)
    -3.6984
    """
    require_positive("epsilon", epsilon)
    require_non_negative("shift", shift)
    require_positive("sigma", sigma)
    require_count("releases", releases)
    return _zcdp_delta(epsilon, 0.5 * releases * (shift / sigma) ** 2)


def discrete_sigma(
    shift: float, epsilon: float, delta: float, releases: int, dimension: int
) -> float:
    """Return the σ of discrete noise with which all releases together are (ε, δ), rounded up.

    ``shift`` is that before gridding (2τ); the g√d that the grid adds is accounted for here.

    Raises
    ------
    InvalidInput
        If a parameter is outside its range, or no σ suffices for so many dimensions.

    Examples
    --------
    >>> f"{discrete_sigma(0.3, 1.0, 10**-3.6984, releases=1, dimension=64):.4f}"
    '1.0000'
    """
    require_positive("shift", shift)
    require_positive("epsilon", epsilon)
    require_probability("delta", delta)
    require_count("releases", releases)
    require_count("dimension", dimension)
    root_two_rho = boundary(
        lambda ratio: _zcdp_delta(epsilon, 0.5 * ratio * ratio) <= delta,
        good=0.0,
        bad=math.sqrt(2 * epsilon) + 40.0,
    )
    room = root_two_rho / math.sqrt(releases) - math.ldexp(math.sqrt(dimension), -GRID_BITS)
    if room <= 0:
        raise InvalidInput(
            f"no discrete noise gives epsilon={epsilon:g}, delta={delta:g} for {releases} releases "
            f"of {dimension} parameters; use fewer releases or the continuous mode"
        )
    return shift / room * (1 + ROUNDING)


def discrete_tolerance(
    sigma: float, epsilon: float, delta: float, releases: int, dimension: int
) -> float:
    """Return the largest public tolerance τ that discrete noise of σ can cover, rounded down.

    Raises
    ------
    InvalidInput
        As :func:`discrete_sigma`.

    Examples
    --------
    >>> tau = discrete_tolerance(0.01, 1.0, 1e-6, releases=1000, dimension=10)
    >>> discrete_sigma(2 * tau, 1.0, 1e-6, releases=1000, dimension=10) <= 0.01
    True
    """
    require_positive("sigma", sigma)
    one = discrete_sigma(1.0, epsilon, delta, releases, dimension)
    return 0.5 * (sigma / one) * (1 - 4 * ROUNDING)


def _zcdp_delta(epsilon: float, rho: float) -> float:
    """Return δ at ε of ρ-zCDP, rounded up.

    Its logarithm is convex in x = α − 1, slope (2x+1)ρ − ε − ln(1+1/x).
    """
    if rho == 0:
        return 0.0
    x = boundary(
        lambda x: (2 * x + 1) * rho - epsilon - math.log1p(1 / x) <= 0,
        good=1e-300,
        bad=epsilon / rho + 1 / math.sqrt(rho),
    )
    log_value = x * ((1 + x) * rho - epsilon) + x * math.log(x) - (1 + x) * math.log1p(x)
    return max(min(1.0, math.exp(log_value) * (1 + DELTA_MARGIN)), sys.float_info.min)
