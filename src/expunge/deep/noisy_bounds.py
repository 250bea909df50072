"""Privacy of clipping and noising any network: pure functions of numbers that the code enforces.

Nothing is assumed of the loss, of F or of convergence. A noisy phase starts at ``w`` clipped to
``‖x_0‖ ≤ C0``; every step contracts by ``r = 1 − γλ``, moves by a direction of norm at most ``γC1``
and adds ``N(0, σ²I)``; only the last iterate is seen. Sources: Koloskova et al. (ICML 2025) for the
two methods; shifted interpolation [Bok, Su and Altschuler, 2024] for the bound, proved in
docs/deep-noisy.md; Balle et al. (2019) for the contraction of clipped Gaussian steps.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from expunge.errors import InvalidInput
from expunge.gaussian import (
    ROUNDING,
    delta_of,
    epsilon_of,
    mu_of,
    require_count,
    require_non_negative,
    require_positive,
    require_probability,
)

Reference = Literal["self", "exists"]
"""What is compared with: the same procedure on R from any other start, or noise then R only."""

MOST_STEPS = 10_000
"""Steps after which model clipping is given up."""

_UP = 1.0 + ROUNDING


@dataclass(frozen=True)
class Schedule:
    """Constants of a noisy phase, all fixed before the data are looked at.

    Attributes
    ----------
    start_radius : float
        C0 ≥ 0: the start is scaled to ``‖x_0‖ ≤ C0``; 0 forgets everything.
    step_radius : float
        C1 ≥ 0: every direction is scaled to at most that.
    lr : float
        γ > 0.
    weight_decay : float
        λ ≥ 0 with ``γλ < 1``.
    steps : int
        T ≥ 1.
    sigma : float
        Standard deviation of the noise of one step, per coordinate.

    Raises
    ------
    InvalidInput
        If a number is out of range.
    """

    start_radius: float
    step_radius: float
    lr: float
    weight_decay: float
    steps: int
    sigma: float

    def __post_init__(self) -> None:
        """Check every number."""
        require_non_negative("start_radius", self.start_radius)
        require_non_negative("step_radius", self.step_radius)
        require_positive("lr", self.lr)
        require_non_negative("weight_decay", self.weight_decay)
        require_count("steps", self.steps)
        require_positive("sigma", self.sigma)
        if not self.lr * self.weight_decay < 1.0:
            raise InvalidInput(
                f"lr times weight_decay must be below 1, not {self.lr * self.weight_decay:g}: the "
                "step would not contract"
            )

    @property
    def contraction(self) -> float:
        """``r = 1 − γλ``."""
        return 1.0 - self.lr * self.weight_decay

    @property
    def spread(self) -> float:
        """Standard deviation ν = σ√Σr^{2k} of the whole noise in the last iterate."""
        return self.sigma * math.sqrt(_geometric(self.contraction**2, self.steps))

    def mu(self, reference: Reference = "self") -> float:
        """Return μ of the last iterate, rounded up.

        ``μ = (2C0·r^T + 2γC1·Σr^k)/ν`` against ``self``, half of it against ``exists``.

        Examples
        --------
        >>> round(Schedule(0.01, 10.0, 1e-4, 750.0, 6, 0.007752).mu(), 5)
        1.41422
        """
        return _size(self) * _factor(reference) / self.spread * _UP

    def epsilon_at(self, delta: float, reference: Reference = "self") -> float:
        """Return ε at δ."""
        return epsilon_of(self.mu(reference), delta)


def schedule_for(
    epsilon: float,
    delta: float,
    *,
    start_radius: float,
    step_radius: float,
    lr: float,
    weight_decay: float,
    steps: int | None = None,
    reference: Reference = "self",
) -> Schedule:
    """Return the schedule with the least σ that meets (ε, δ); the best T if none is given.

    Examples
    --------
    >>> fixed = dict(start_radius=0.03, step_radius=1.0, lr=0.01, weight_decay=10.0)
    >>> found = schedule_for(1.0, 1e-5, **fixed)
    >>> found.steps, round(found.sigma, 4), found.epsilon_at(1e-5) <= 1.0
    (3, 0.2327, True)
    """
    count = steps or best_steps(start_radius, step_radius, lr, weight_decay)
    unit = Schedule(start_radius, step_radius, lr, weight_decay, count, 1.0)
    target = mu_of(epsilon, delta)
    sigma = unit.mu(reference) / target * _UP
    if not sigma > 0.0:
        raise InvalidInput("start_radius and step_radius are both 0: nothing is kept, nor noised")
    return Schedule(start_radius, step_radius, lr, weight_decay, count, sigma)


def best_steps(start_radius: float, step_radius: float, lr: float, weight_decay: float) -> int:
    """Return the T that minimises μσ, the noise of one step for a given μ.

    ``T* = ln(1 − λC0/C1)/ln(1 − γλ)`` or its limit ``C0/(γC1)``, and the better of its two
    neighbours. It is not the T of least noise in the last iterate: that is often the smallest.

    Raises
    ------
    InvalidInput
        If there is no such T: ``λC0 ≥ C1``, where more steps are always better.

    Examples
    --------
    >>> best_steps(0.03, 1.0, 0.01, 10.0), best_steps(1.0, 10.0, 0.01, 0.0)
    (3, 10)
    """
    unit = Schedule(start_radius, step_radius, lr, weight_decay, 1, 1.0)
    if not weight_decay * start_radius < step_radius:
        raise InvalidInput(
            f"weight_decay·start_radius ({weight_decay * start_radius:g}) is not below step_radius "
            f"({step_radius:g}): the noise falls with every step, so choose the steps yourself"
        )
    if weight_decay == 0.0:
        ideal = start_radius / (lr * step_radius)
    else:
        shrunk = math.log1p(-weight_decay * start_radius / step_radius)
        ideal = shrunk / math.log(unit.contraction)
    low = max(1, math.floor(ideal))

    def size(steps: int) -> float:
        return Schedule(start_radius, step_radius, lr, weight_decay, steps, 1.0).mu()

    return min((low, low + 1), key=size)


def kept_share(mu: float, parameters: int) -> float:
    """Return ϱ = μ/(2√p): all that a noisy phase keeps, over the norm of its noise.

    Below 0.05 what comes out cannot be told from a random initialisation.

    Examples
    --------
    >>> round(kept_share(0.268051, 3466), 6)
    0.002277
    """
    require_non_negative("mu", mu)
    require_count("parameters", parameters)
    return mu / (2.0 * math.sqrt(parameters))


# --- model clipping -------------------------------------------------------------------------------


def clipped_delta(epsilon: float, radius: float, sigma: float, steps: int) -> float:
    """Return δ_T after T rounds of clipping the model to C2 and adding ``N(0, σ²I)``, rounded up.

    ``δ_0 = 1`` and ``δ_{t+1} = δ_t·θ(ε̃)`` with ``θ`` the δ of one Gaussian of shift 2C2 at
    ``ε̃ = ln(1 + (e^ε − 1)/δ_t)``: what two laws do not share is mixed again by every round.

    Examples
    --------
    >>> round(clipped_delta(1.0, 1.0, 1.0, 1), 6), f"{clipped_delta(1.0, 1.0, 1.0, 6):.2e}"
    (0.509862, '2.65e-08')
    """
    require_non_negative("epsilon", epsilon)
    require_positive("radius", radius)
    require_positive("sigma", sigma)
    require_count("steps", steps)
    delta = 1.0
    for _ in range(steps):
        delta = _contracted(delta, epsilon, 2.0 * radius / sigma)
    return delta


def clipping_steps(epsilon: float, delta: float, radius: float, sigma: float) -> int:
    """Return the least number of rounds after which :func:`clipped_delta` is at most δ.

    Raises
    ------
    InvalidInput
        If it takes more than ten thousand.

    Examples
    --------
    >>> [clipping_steps(1.0, 1e-5, rho / 2.0, 1.0) for rho in (0.268, 0.5, 1.0, 2.0, 3.0, 4.0, 6.0)]
    [1, 2, 3, 6, 14, 40, 602]
    """
    require_probability("delta", delta)
    found = 1.0
    for step in range(1, MOST_STEPS + 1):
        found = _contracted(found, epsilon, 2.0 * radius / sigma)
        if found <= delta:
            return step
    raise InvalidInput(
        f"{MOST_STEPS} rounds do not reach delta = {delta:g} with 2·radius/sigma = "
        f"{2.0 * radius / sigma:g}: raise sigma or lower the radius"
    )


def _contracted(delta: float, epsilon: float, mu: float) -> float:
    if delta == 0.0:
        return 0.0
    inflated = math.log1p(math.expm1(epsilon) / delta)
    return min(1.0, delta * delta_of(inflated, mu) * _UP)


# --- differential privacy for groups --------------------------------------------------------------


def group_privacy(epsilon: float, delta: float, size: int) -> tuple[float, float]:
    """Return (kε, δ(e^{kε} − 1)/(e^ε − 1)), what (ε, δ) per record gives k records together.

    Examples
    --------
    >>> epsilon, delta = group_privacy(1.0, 1e-6, 2)
    >>> epsilon, round(delta * 1e6, 4)
    (2.0, 3.7183)
    """
    require_non_negative("epsilon", epsilon)
    require_probability("delta", delta)
    require_count("size", size)
    grown = float(size)
    if epsilon > 0.0:
        top = size * epsilon
        if top > 700.0:
            return top, 1.0
        grown = math.expm1(top) / math.expm1(epsilon)
    return size * epsilon, min(1.0, delta * grown * _UP)


def _geometric(ratio: float, count: int) -> float:
    """Return Σ_{k<count} ratio^k without cancellation."""
    if ratio == 1.0:
        return float(count)
    return -math.expm1(count * math.log(ratio)) / (1.0 - ratio) if ratio > 0.0 else 1.0


def _size(schedule: Schedule) -> float:
    """Return ``2C0·r^T + 2γC1·Σr^k``."""
    r, count = schedule.contraction, schedule.steps
    kept = 2.0 * schedule.start_radius * r**count
    return kept + 2.0 * schedule.lr * schedule.step_radius * _geometric(r, count)


def _factor(reference: Reference) -> float:
    if reference not in ("self", "exists"):
        raise InvalidInput(f"reference must be self or exists, not {reference!r}")
    return 1.0 if reference == "self" else 0.5
