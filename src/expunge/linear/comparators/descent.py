"""Gradient descent on what is retained: Descent-to-Delete, and noisy (Langevin) descent."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from expunge.errors import InvalidInput
from expunge.guarantee import Assumption, Guarantee, Tag, View, mu_of, sigma_for
from expunge.linear.comparators.problem import SLOPE, Problem, Result
from expunge.noise import NoiseSource

_NEEDS = (
    Assumption("minimiserWithinTolerance", Tag.measured),
    Assumption("constantsFixedBeforeRequests", Tag.assumed),
)


@dataclass(frozen=True)
class DescentToDelete:
    """Neel, Roth & Sharifi-Malvajerdi (2021): a fixed number of full gradient steps, then noise.

    Attributes
    ----------
    steps : int
        I, full-gradient steps of length 2/(L + Λ) per request.
    epsilon, delta : float
    source : NoiseSource
    calibration : str
        ``paper`` (:func:`neel_sigma`) or ``library`` (exact σ of twice the steady-state error).
    """

    steps: int
    epsilon: float
    delta: float
    source: NoiseSource
    calibration: Literal["paper", "library"] = "library"

    def unlearn(self, problem: Problem) -> Result:
        """Descend from the trained weights and add noise.

        Raises
        ------
        InvalidInput
            If the loss has unbounded slopes, or the training tolerance exceeds the steady state.
        """
        _require_logistic(problem)
        smooth = problem.smoothness
        rate = contraction(smooth, problem.ridge_after)
        error = problem.minimiser_shift * rate**self.steps / (1.0 - rate**self.steps)
        if problem.tolerance / problem.ridge > error:
            raise InvalidInput(
                f"the steady-state error is {error:.2e}; train to a residual of at most "
                f"{error * problem.ridge:.2e} first, or take fewer steps"
            )
        w = problem.weights
        for _ in range(self.steps):
            w = w - 2.0 / (smooth + problem.ridge_after) * problem.gradient(w)
        if self.calibration == "paper":
            n = problem.rows.count - problem.deletions
            slope = problem.minimiser_shift * problem.ridge_after
            sigma = neel_sigma(
                rate, slope, problem.ridge_after / n, n, self.steps, self.epsilon, self.delta
            )
        else:
            sigma = sigma_for(2.0 * error, self.epsilon, self.delta)
        noisy = w + sigma * self.source.normal(w.shape)
        promise = _promise(problem, self.epsilon, self.delta)
        return Result(noisy, w, sigma, error, "distance", promise, _NEEDS)


@dataclass(frozen=True)
class NoisyDescent:
    """Noisy fine-tuning (Chien et al., 2024): ``w ← w − η∇F_R(w) + s·z``, K times.

    The noise of the last steps is contracted least and hides the start; s follows from (ε, δ).
    """

    steps: int
    epsilon: float
    delta: float
    source: NoiseSource

    def unlearn(self, problem: Problem) -> Result:
        """Descend with noise from the trained weights."""
        _require_logistic(problem)
        smooth = problem.smoothness
        rate = contraction(smooth, problem.ridge_after)
        gap = problem.minimiser_shift
        gap += problem.tolerance / problem.ridge + problem.tolerance / problem.ridge_after
        noise = descent_mu(gap, 1.0, rate, self.steps) / mu_of(self.epsilon, self.delta)
        noise *= 1.0 + 1e-12
        w = problem.weights
        for _ in range(self.steps):
            w = w - 2.0 / (smooth + problem.ridge_after) * problem.gradient(w)
            w = w + noise * self.source.normal(w.shape)
        promise = _promise(problem, self.epsilon, self.delta)
        return Result(w, None, noise, math.inf, "distance", promise, _NEEDS)


def contraction(smooth: float, strong: float) -> float:
    """Return ``q = (L − m)/(L + m)``, the factor of a gradient step of length 2/(L + m)."""
    return (smooth - strong) / (smooth + strong)


def neel_sigma(
    rate: float, slope: float, strong: float, n: int, steps: int, epsilon: float, delta: float
) -> float:
    """Return the paper's σ for a mean objective over ``n`` rows. For reproduction.

    ``slope`` is the Lipschitz constant M of a record's loss, ``strong`` the strong convexity m.

    Examples
    --------
    >>> sigma = neel_sigma(contraction(1.25, 1.0), 1.0, 1.0, 10_000, 5, 1.0, 1e-4)
    >>> f"{sigma:.8e}"
    '5.96860641e-08'
    """
    log = math.log(1.0 / delta)
    budget = math.sqrt(log + epsilon) - math.sqrt(log)
    power = rate**steps
    return 4.0 * math.sqrt(2.0) * slope * power / (strong * n * (1.0 - power) * budget)


def descent_mu(gap: float, noise: float, rate: float, steps: int) -> float:
    """Return μ of the last of K noisy contractions whose starts are ``gap`` apart.

    ``μ = (Z/s)·q^K·√((1 − q²)/(1 − q^{2K}))``, attained on quadratics [Bok, Su & Altschuler, 2024].

    Examples
    --------
    >>> round(descent_mu(1.0, 0.2, 0.9, 30), 10)
    0.0924725119
    """
    spread = math.sqrt((1.0 - rate**2) / (1.0 - rate ** (2 * steps)))
    return gap / noise * rate**steps * spread


def _promise(problem: Problem, epsilon: float, delta: float) -> Guarantee:
    mu = mu_of(epsilon, delta)
    return Guarantee("muGdp", epsilon, delta, mu, "record", problem.deletions, 1, View.afterOnly)


def _require_logistic(problem: Problem) -> None:
    if problem.loss != "logistic":
        raise InvalidInput(
            f"the bound of the minimiser's shift needs bounded slopes (at most {SLOPE:g}), which "
            f"the {problem.loss} loss has not"
        )
