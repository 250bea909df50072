"""What an unlearn-versus-retrain audit could have seen: the smallest μ that it flags in 80 %.

The candidate is a Gaussian shift by μ, told apart by its likelihood ratio at the threshold that
serves best. The power is summed over all outcomes; nothing is simulated.
"""

from __future__ import annotations

import math
from functools import cache

import numpy as np
from scipy.optimize import brentq
from scipy.special import bdtr, gammaln, ndtr, ndtri, xlogy

from expunge.audit.intervals import ALPHA, Array
from expunge.audit.lower_bounds import upper_limits

POWER = 0.8
_LARGEST = 40.0
_GRID = 25


def power(
    mu: float,
    runs: int,
    *,
    claim_mu: float | None = None,
    claim_epsilon: float = 0.0,
    delta: float = 0.0,
    alpha: float = ALPHA,
) -> float:
    """Return how often a shift by ``mu`` refutes a claim at the best threshold.

    Parameters
    ----------
    mu : float
        Of the candidate.
    runs : int
        Evaluation runs of each side.
    claim_mu : float or None
        The claimed μ; None for a claim of (ε, δ).
    claim_epsilon, delta : float
        The claim of (ε, δ).
    """
    most = _allowed(runs, claim_mu, claim_epsilon, delta, alpha)
    low, high = -2.0, mu + 3.0
    best = 0.0
    for _ in range(3):
        thresholds = np.linspace(low, high, _GRID)
        found = [_at(float(t), mu, runs, most) for t in thresholds]
        top = int(np.argmax(found))
        best = max(best, found[top])
        low, high = thresholds[max(top - 1, 0)], thresholds[min(top + 1, _GRID - 1)]
    return best


@cache
def detectable_mu(
    runs: int,
    *,
    claim_mu: float | None = None,
    claim_epsilon: float = 0.0,
    delta: float = 0.0,
    alpha: float = ALPHA,
) -> float:
    """Return the smallest μ that refutes a claim with probability 0.8; inf if none does.

    >>> round(detectable_mu(100, claim_mu=0.3139), 2)
    0.99
    """

    def lacking(mu: float) -> float:
        reached = power(
            mu, runs, claim_mu=claim_mu, claim_epsilon=claim_epsilon, delta=delta, alpha=alpha
        )
        return reached - POWER

    if lacking(_LARGEST) < 0:
        return float("inf")
    return float(brentq(lacking, 1e-3, _LARGEST, xtol=1e-3))


def _allowed(
    runs: int, claim_mu: float | None, claim_epsilon: float, delta: float, alpha: float
) -> Array:
    """Return, for each number of false positives, the most false negatives that refute; or −1."""
    limits = upper_limits(np.arange(runs + 1), runs, alpha)
    if claim_mu is None:
        odds = math.exp(claim_epsilon)
        below = np.maximum((1 - delta - limits) / odds, 1 - delta - limits * odds)
    else:
        below = ndtr(-ndtri(limits) - claim_mu)
    return np.asarray(np.searchsorted(limits, below, side="left") - 1, dtype=np.float64)


def _at(threshold: float, mu: float, runs: int, most: Array) -> float:
    j = np.arange(runs + 1.0)
    ways = gammaln(runs + 1) - gammaln(j + 1) - gammaln(runs - j + 1)
    chance = np.exp(ways + xlogy(j, ndtr(-threshold)) + xlogy(runs - j, ndtr(threshold)))
    passed = bdtr(np.maximum(most, 0), runs, float(ndtr(threshold - mu)))
    return float(chance @ np.where(most >= 0, passed, 0.0))
