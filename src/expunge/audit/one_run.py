"""One-run audits of per-record claims: m fair coins, r guesses, v of them right.

m canaries are each included or not by a fair coin of its own; after one run the auditor guesses r
coins (r fixed before) and v guesses are right. This refutes a claim about *each record* of a
training; a deletion of k records has only k times that (group privacy). A set-level (ε, δ) claim
implies no more than (2ε, (1 + e^ε)δ) for a coin: use `expunge.audit.canaries` there.

References
----------
Steinke, Nasr, Jagielski. Privacy auditing with one (1) training run. NeurIPS 2023.
Mahloujifar, Melis, Chaudhuri. Auditing f-differential privacy in one run. 2024.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from scipy.special import expit, ndtr, ndtri
from scipy.stats import binom

from expunge.audit.intervals import ALPHA
from expunge.audit.lower_bounds import require_levels
from expunge.errors import InvalidInput

_LARGEST = 100.0
_STEPS = 60


def p_value(canaries: int, guesses: int, correct: int, epsilon: float, delta: float) -> float:
    """Return the p-value of "each record has (ε, δ)", at most 1.

    ``p = β + 2mδ·max_{1≤i≤v} (P[B ≥ v−i] − β)/i``, B ~ Bin(r, e^ε/(1+e^ε)), β = P[B ≥ v].

    Examples
    --------
    >>> round(p_value(1000, 1000, 750, 1.0, 1e-5), 7)
    0.0939862
    """
    _require(canaries, guesses, correct)
    require_levels(delta, 0.5)
    chance = float(expit(epsilon))
    tail = binom.sf(np.arange(correct + 1) - 1.0, guesses, chance)
    steps = np.arange(1, correct + 1)
    extra = (tail[correct - steps] - tail[correct]) / steps
    worst = float(extra.max(initial=0.0))
    return min(1.0, float(tail[correct]) + 2 * canaries * delta * worst)


def epsilon_bound(
    canaries: int, guesses: int, correct: int, *, delta: float, alpha: float = ALPHA
) -> float:
    """Return sup{ε : p(ε) ≤ alpha}: the lower bound of a record's ε at confidence 1 − alpha.

    >>> round(epsilon_bound(1000, 1000, 750, delta=1e-5), 4)
    0.9764
    """
    require_levels(delta, alpha)
    return _largest(lambda eps: p_value(canaries, guesses, correct, eps, delta) <= alpha)


def refutes_mu(
    canaries: int, guesses: int, correct: int, mu: float, *, alpha: float = ALPHA
) -> bool:
    """Whether so many right guesses refute "each record is μ-GDP" at level alpha.

    The recursion of Mahloujifar et al. on the curve of Gaussian differential privacy, which is
    conservative. Published code states the curve by (ε, δ); what is tested is a Gaussian claim all
    the same, so the bound is one of μ.
    """
    _require(canaries, guesses, correct)
    if not mu >= 0:
        raise InvalidInput(f"mu must be at least 0, got {mu!r}")
    right = alpha * correct / canaries
    wrong = alpha * (guesses - correct) / canaries
    for i in range(correct - 1, -1, -1):
        raised = max(wrong, float(ndtr(ndtri(right) - mu)))
        if raised == wrong:
            break
        right = min(1.0, right + i / (guesses - i) * (raised - wrong))
        wrong = raised
    return right + wrong > guesses / canaries


def mu_bound(canaries: int, guesses: int, correct: int, *, alpha: float = ALPHA) -> float:
    """Return the largest refuted μ: the lower bound of a record's μ at confidence 1 − alpha.

    >>> round(mu_bound(1000, 1000, 600), 6)
    0.16385
    """
    require_levels(0.0, alpha)
    return _largest(lambda mu: refutes_mu(canaries, guesses, correct, mu, alpha=alpha))


def group(epsilon: float, delta: float, records: int) -> tuple[float, float]:
    """Return the (ε, δ) of ``records`` records together, from the (ε₀, δ₀) of each.

    >>> group(0.5, 1e-6, 1)
    (0.5, 1e-06)
    """
    if records < 1 or epsilon < 0:
        raise InvalidInput(f"expected epsilon ≥ 0 and records ≥ 1, got {epsilon} and {records}")
    total = records * epsilon
    factor = np.expm1(total) / np.expm1(epsilon) if epsilon else float(records)
    return total, min(1.0, float(delta * factor))


def _largest(refuted: Callable[[float], bool]) -> float:
    """Return the end of the initial stretch of refuted values, 0 if there is none."""
    if not refuted(0.0):
        return 0.0
    low, high = 0.0, 1.0
    while refuted(high):
        low, high = high, 2 * high
        if high > _LARGEST:
            return low
    for _ in range(_STEPS):
        middle = (low + high) / 2
        low, high = (middle, high) if refuted(middle) else (low, middle)
    return low


def _require(canaries: int, guesses: int, correct: int) -> None:
    if not (1 <= guesses <= canaries and 0 <= correct <= guesses):
        raise InvalidInput(
            "expected correct ≤ guesses ≤ canaries and at least one guess, got "
            f"{correct}, {guesses} and {canaries}"
        )
