"""The algebra of (ε, δ), μ and σ: what Gaussian noise of a given size guarantees.

Everything here is a pure function on numbers; import it from :mod:`expunge.guarantee`. Releasing
N(a, σ²I) where the other world would have released N(b, σ²I), ‖a − b‖ ≤ shift, is μ-GDP with
μ = shift/σ in any dimension (Dong, Roth & Su 2022, Thm 2.7). What is issued is rounded outward:
ε, δ, μ and σ up, tolerances and the μ that an (ε, δ) allows down.

Shifts and tolerances are Euclidean distances in parameter space, in the units of σ.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterable

import numpy as np
from numpy.typing import NDArray
from scipy.special import erfcx, ndtr

from expunge.errors import InvalidCalibration, InvalidInput

DELTA_MARGIN = 1e-6
"""Relative amount by which every issued δ is rounded up (log_delta is accurate to 1e-9)."""

ROUNDING = 1e-12
"""Relative amount by which plain arithmetic is rounded outward."""

_MU_MAX = 1e6  # above it ε/μ − μ/2 is not accurate enough; issued values saturate outward
_EPSILON_MAX = 1e11
_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(10)
_LOG_SQRT_2PI = 0.5 * math.log(2 * math.pi)


# --- the exact Gaussian trade-off ---------------------------------------------------------------


def log_delta(epsilon: float, mu: float) -> float:
    """Return log δ(ε; μ) of a μ-GDP mechanism, accurate but not rounded outward.

    δ(ε; μ) = Φ(μ/2 − ε/μ) − e^ε Φ(−μ/2 − ε/μ)  (Balle & Wang 2018, Thm 8). With z₁ = ε/μ − μ/2,
    z₂ = z₁ + μ, Mills' ratio M = (1 − Φ)/φ and the identity e^ε φ(z₂) = φ(z₁) this is
    φ(z₁)(M(z₁) − M(z₂)), which never forms e^ε. For small μ the difference is integrated instead:
    −M'(t) = 1 − tM(t) is positive, so nothing cancels.

    Parameters
    ----------
    epsilon, mu : float
        Both finite and ≥ 0.

    Returns
    -------
    float
        ≤ 0; −∞ when μ = 0 (or when the logarithm itself overflows). Absolute error ≤ 1e-9 wherever
        δ ≥ 1e-250.

    Raises
    ------
    InvalidInput
        If ε or μ is negative or not finite.

    Examples
    --------
    >>> round(math.exp(log_delta(1.0, 1.0)), 12)
    0.126936737507
    """
    require_non_negative("epsilon", epsilon)
    require_non_negative("mu", mu)
    if mu == 0:
        return -math.inf
    z1 = epsilon / mu - mu / 2
    z2 = epsilon / mu + mu / 2
    log_density = -0.5 * z1 * z1 - _LOG_SQRT_2PI
    if math.isinf(log_density):
        return -math.inf
    if mu < 1:
        inside = z1 + mu * 0.5 * (_NODES + 1)
        slope = float(_WEIGHTS @ _mills_slope(inside)) / 2
        return log_density + math.log(mu) + math.log(slope)
    if z1 >= 0:
        return log_density + math.log(_mills(z1) - _mills(z2))
    return math.log(float(ndtr(-z1)) - math.exp(log_density) * _mills(z2))


def delta_of(epsilon: float, mu: float) -> float:
    """Return δ(ε; μ) rounded up by the relative :data:`DELTA_MARGIN`; at most 1.

    A δ that underflows is answered with the smallest normal number, never with 0, unless μ = 0;
    a μ above 1e6 with 1.

    Examples
    --------
    >>> f"{delta_of(1.0, 0.3):.4e}"
    '5.4888e-05'
    """
    value = log_delta(epsilon, mu)
    if mu == 0:
        return 0.0
    if mu > _MU_MAX:
        return 1.0
    return min(1.0, max(math.exp(value) * (1 + DELTA_MARGIN), sys.float_info.min))


def mu_of(epsilon: float, delta: float) -> float:
    """Return the largest μ whose :func:`delta_of` at ε does not exceed δ, rounded down.

    ``delta_of(epsilon, mu_of(epsilon, delta)) <= delta`` holds exactly.

    Raises
    ------
    InvalidInput
        If ε is negative or not finite, or δ is not in [1e-300, 1).

    Examples
    --------
    >>> f"{mu_of(1.0, 1e-4):.6f}"
    '0.313902'
    """
    require_non_negative("epsilon", epsilon)
    require_probability("delta", delta)
    epsilon = min(epsilon, _EPSILON_MAX)

    def holds(mu: float) -> bool:
        return delta_of(epsilon, mu) <= delta

    tail = math.sqrt(-2 * math.log(delta))
    chernoff = 2 * epsilon / (tail + math.sqrt(tail * tail + 2 * epsilon))
    good = 0.999 * max(chernoff, delta * math.sqrt(2 * math.pi))
    bad = 2 * good
    while holds(bad):
        good, bad = bad, 2 * bad
    return boundary(holds, good, bad)


def epsilon_of(mu: float, delta: float) -> float:
    """Return the smallest ε at which :func:`delta_of` does not exceed δ, rounded up.

    ``delta_of(epsilon_of(mu, delta), mu) <= delta`` holds exactly. Infinite for μ above 1e6.

    Raises
    ------
    InvalidInput
        If μ is negative or not finite, or δ is not in [1e-300, 1).

    Examples
    --------
    >>> f"{epsilon_of(1.0, 1e-5):.6f}"
    '4.377178'
    """
    require_non_negative("mu", mu)
    require_probability("delta", delta)

    if mu > _MU_MAX:
        return math.inf

    def holds(epsilon: float) -> bool:
        return delta_of(epsilon, mu) <= delta

    if holds(0.0):
        return 0.0
    chernoff = mu * (mu / 2 + math.sqrt(-2 * math.log(delta)))
    return boundary(holds, good=chernoff * (1 + DELTA_MARGIN), bad=0.0)


def compose(mus: Iterable[float]) -> float:
    """Return √Σμ², rounded up: the μ of several adaptive releases together.

    Source: Dong, Roth & Su 2022, Cor. 3.3. Epsilons are never added.

    Examples
    --------
    >>> round(compose([3.0, 4.0]), 9)
    5.0
    """
    values = list(mus)
    for mu in values:
        require_non_negative("mu", mu)
    total = math.hypot(*values)
    return math.nextafter(total * (1 + 4 * sys.float_info.epsilon), math.inf) if total else 0.0


def success_probability(mu: float) -> float:
    """Return Φ(μ/2), rounded up: how often the best test between two even worlds is right.

    Examples
    --------
    >>> f"{success_probability(0.2367044):.3f}"
    '0.547'
    """
    require_non_negative("mu", mu)
    return min(1.0, float(ndtr(mu / 2)) * (1 + ROUNDING))


# --- calibration --------------------------------------------------------------------------------


def sigma_for(shift: float, epsilon: float, delta: float, releases: int = 1) -> float:
    """Return the noise σ with which ``releases`` releases together are (ε, δ), rounded up.

    Parameters
    ----------
    shift : float
        Largest Euclidean distance between the two worlds' noiseless parameters, > 0.
    epsilon, delta : float
        The guarantee of all releases together.
    releases : int
        How many releases are covered, ≥ 1.

    Returns
    -------
    float
        √releases · shift / μ(ε, δ), per coordinate.

    Raises
    ------
    InvalidInput
        If a parameter is outside its range.

    Examples
    --------
    >>> f"{sigma_for(2e-8, 1.0, 1e-5, releases=1000):.5e}"
    '2.35946e-06'
    """
    require_positive("shift", shift)
    require_count("releases", releases)
    mu = mu_of(epsilon, delta)
    return math.sqrt(releases) * (shift / mu) * (1 + ROUNDING)


def tolerance_for(sigma: float, epsilon: float, delta: float, releases: int) -> float:
    """Return the largest public tolerance τ that σ can cover, rounded down.

    Both worlds are within τ of the optimum, so the shift is 2τ and 2τ√releases/σ ≤ μ(ε, δ).

    Raises
    ------
    InvalidInput
        If a parameter is outside its range.

    Examples
    --------
    >>> f"{tolerance_for(2.3594587e-06, 1.0, 1e-5, releases=1000):.5e}"
    '1.00000e-08'
    """
    require_positive("sigma", sigma)
    require_count("releases", releases)
    mu = mu_of(epsilon, delta)
    return 0.5 * sigma * (mu / math.sqrt(releases)) * (1 - ROUNDING)


def classical_sigma(shift: float, epsilon: float, delta: float) -> float:
    """Return the textbook σ = shift·√(2 ln(1.25/δ))/ε. For reproduction only.

    Source: Dwork & Roth 2014, Thm A.1, proved for ε < 1. Use :func:`sigma_for` for anything else.

    Raises
    ------
    InvalidCalibration
        If the exact δ of that σ exceeds the claimed one (large ε).
    InvalidInput
        If a parameter is outside its range.

    Examples
    --------
    >>> round(classical_sigma(1.0, 1.0, 1e-4), 6)
    4.343612
    """
    return _published_sigma("classical", 1.25, shift, epsilon, delta)


def guo_sigma(shift: float, epsilon: float, delta: float) -> float:
    """Return Guo's σ = c·shift/ε with δ = 1.5·e^(−c²/2). For reproduction only.

    Source: Guo et al. 2020, Thm 3. Use :func:`sigma_for` for anything else.

    Raises
    ------
    InvalidCalibration
        If the exact δ of that σ exceeds the claimed one (large ε).
    InvalidInput
        If a parameter is outside its range.

    Examples
    --------
    >>> round(guo_sigma(1.0, 1.0, 1e-4), 6)
    4.385386
    """
    return _published_sigma("Guo", 1.5, shift, epsilon, delta)


def _published_sigma(name: str, factor: float, shift: float, epsilon: float, delta: float) -> float:
    require_positive("shift", shift)
    require_positive("epsilon", epsilon)
    require_probability("delta", delta)
    c = math.sqrt(2 * math.log(factor / delta))
    if delta_of(epsilon, epsilon / c) > delta:
        exact = math.exp(log_delta(epsilon, epsilon / c))
        raise InvalidCalibration(
            f"the {name} calibration is false at epsilon={epsilon:g}: it claims delta={delta:g}, "
            f"the exact delta of its sigma is {exact:.6g}; use sigma_for instead"
        )
    return shift * c / epsilon


# --- helpers ------------------------------------------------------------------------------------


def _mills(t: float) -> float:
    """Return Mills' ratio (1 − Φ(t))/φ(t)."""
    return math.sqrt(math.pi / 2) * float(erfcx(t / math.sqrt(2)))


def _mills_slope(t: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return 1 − t·M(t), positive and decreasing; by its asymptotic series for t > 60."""
    near = np.minimum(t, 60.0)
    direct = 1 - near * math.sqrt(math.pi / 2) * erfcx(near / math.sqrt(2))
    inverse = 1 / np.clip(t, 60.0, 1e150) ** 2
    series = inverse * (1 - inverse * (3 - inverse * (15 - inverse * 105)))
    return np.where(t > 60.0, series, direct)


def boundary(holds: Callable[[float], bool], good: float, bad: float) -> float:
    """Bisect between a point that ``holds`` and one that does not; return the good end."""
    while abs(bad - good) > 1e-14 * good:
        middle = good + (bad - good) / 2
        if middle in (good, bad):
            break
        if holds(middle):
            good = middle
        else:
            bad = middle
    return good


def require_non_negative(name: str, value: float) -> None:
    """Refuse a negative or non-finite number."""
    if not (math.isfinite(value) and value >= 0):
        raise InvalidInput(f"{name} must be a finite number at least 0; got {value!r}")


def require_positive(name: str, value: float) -> None:
    """Refuse a non-finite number and anything not above 0."""
    if not (math.isfinite(value) and value > 0):
        raise InvalidInput(f"{name} must be a finite number above 0; got {value!r}")


def require_probability(name: str, value: float) -> None:
    """Refuse anything outside [1e-300, 1)."""
    if not 1e-300 <= value < 1:
        raise InvalidInput(f"{name} must be at least 1e-300 and below 1; got {value!r}")


def require_count(name: str, value: int) -> None:
    """Refuse anything but a whole number of at least 1."""
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise InvalidInput(f"{name} must be a whole number at least 1; got {value!r}")
