"""Exact p-values from fair coins, and what a p-value says about ε and μ of a set-level claim.

The auditor's coins b are fair and independent. Given a release under the comparator, which never
saw them, they are fair coins still, so ``p ≤ t`` with probability t at most, whatever the release.
Under a claim about all sets that probability is at most ``e^ε t + δ``, or ``Φ(Φ⁻¹(t) + μ)``: a
small p is a lower bound of ε and of μ.

A p-value must be exact. A normal approximation errs in the tail, where the bounds come from.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import betaincinv, ndtri, ndtri_exp

from expunge.audit.intervals import ALPHA, Array, two_sided, vector
from expunge.audit.lower_bounds import epsilon_limit, require_levels
from expunge.errors import InvalidInput

MOST_PAIRS = 1000
HIT_LEVEL = 0.01
_POWER = 0.8


@dataclass(frozen=True)
class Coins:
    """What coins that were kept secret from a model say about it.

    Attributes
    ----------
    p : float
        P[at least so large], the registered side: the model remembers.
    p_below : float
        P[at most so large]: it remembers the opposite.
    p_above : float
        P[larger], so that ``p_above + U·(p − p_above)``, U uniform, is uniform itself.
    statistic, pairs : int
    """

    p: float
    p_below: float
    p_above: float
    statistic: int
    pairs: int

    @property
    def both(self) -> float:
        """The two-sided p-value."""
        return two_sided(self.p_below, self.p)

    def randomised(self, uniform: float) -> float:
        """Return a p-value that is uniform for fair coins."""
        return self.p_above + uniform * (self.p - self.p_above)


def signed_rank(contrasts: ArrayLike, rng: np.random.Generator) -> Coins:
    """Wilcoxon's signed-rank test, exact: W is the sum of the ranks of |v| with v > 0.

    Parameters
    ----------
    contrasts : (k,) array_like
        ``v_j = b_j(c_{2j−1} − c_{2j})``, k ≤ 1000. A contrast of 0 says nothing and counts against.
    rng : Generator
        The auditor's coin, for ties.

    Examples
    --------
    >>> found = signed_rank([1, -2, 3, 4, -5, 6, 7, 8, 9, 10], np.random.default_rng(0))
    >>> found.p * 1024
    19.0
    """
    v = vector("contrasts", contrasts)
    if len(v) > MOST_PAIRS:
        raise InvalidInput(f"expected at most {MOST_PAIRS} pairs, got {len(v)}")
    order = np.lexsort((rng.random(len(v)), np.abs(v)))
    ranks = np.empty(len(v), dtype=np.int64)
    ranks[order] = np.arange(1, len(v) + 1)
    return _coins(rank_sums(len(v)), int(ranks[v > 0].sum()), len(v))


def rank_sums(pairs: int) -> Array:
    """Return the probabilities of the sums of ranks 1..pairs, each taken by a fair coin.

    >>> (rank_sums(3) * 8).tolist()
    [1.0, 1.0, 1.0, 2.0, 1.0, 1.0, 1.0]
    """
    chance = np.ones(1)
    for i in range(1, pairs + 1):
        longer = np.zeros(len(chance) + i)
        longer[: len(chance)] = chance / 2
        longer[i:] += chance / 2
        chance = longer
    return chance


def sign_test(contrasts: ArrayLike, largest: int, rng: np.random.Generator) -> Coins:
    """Count positive signs among the ``largest`` contrasts; exactly binomial.

    ``largest`` is fixed before the run. Ties are broken by the auditor's coin.
    """
    v = vector("contrasts", contrasts)
    if not 1 <= largest <= len(v):
        raise InvalidInput(f"expected 1..{len(v)} pairs to count, got {largest}")
    order = np.lexsort((rng.random(len(v)), -np.abs(v)))
    hits = int((v[order[:largest]] > 0).sum())
    chance = np.array([math.comb(largest, i) / 2**largest for i in range(largest + 1)])
    return _coins(chance, hits, largest)


def _coins(chance: Array, statistic: int, pairs: int) -> Coins:
    above = float(chance[statistic + 1 :].sum())
    below = float(chance[: statistic + 1].sum())
    return Coins(min(1.0, above + float(chance[statistic])), below, above, statistic, pairs)


def monte_carlo(statistic: float, others: ArrayLike) -> float:
    """Return ``(1 + #{others ≥ statistic})/(N + 1)`` for statistics of N other draws of the coins.

    >>> monte_carlo(2.0, [1.0, 3.0, 0.0])
    0.5
    """
    drawn = vector("other statistics", others)
    return (1 + int((drawn >= statistic).sum())) / (len(drawn) + 1)


# --- one run -------------------------------------------------------------------------------------


def epsilon_of_p(p: float, *, delta: float, alpha: float = ALPHA) -> float:
    """Return ``ln((α − δ)/p)``, the lower bound of ε at confidence 1 − alpha; at least 0.

    >>> round(epsilon_of_p(1e-3, delta=1e-5), 6)
    3.911823
    """
    _require_p([p])
    require_levels(delta, alpha)
    if not 0 < p < alpha - delta:
        return 0.0 if p else math.inf
    return math.log((alpha - delta) / p)


def mu_of_p(p: float, *, alpha: float = ALPHA) -> float:
    """Return ``Φ⁻¹(1 − p) − Φ⁻¹(1 − α)``, the lower bound of μ; at least 0.

    >>> round(mu_of_p(1e-3), 6)
    1.445379
    """
    _require_p([p])
    require_levels(0.0, alpha)
    return max(0.0, float(ndtri(alpha) - ndtri(p)))


def detectable_mu(
    *,
    runs: int = 1,
    claim_mu: float | None = None,
    claim_epsilon: float = 0.0,
    delta: float = 0.0,
    alpha: float = ALPHA,
) -> float:
    """Return the smallest true μ of the contrasts that refutes a claim with probability 0.8.

    ``μ + (z_{1−α} + z_{0.8})/√R`` for a claim of μ; for one of (ε, δ) and a single run
    ``z_{0.8} + Φ⁻¹(1 − (α − δ)e^{−ε})``, for several the μ at which L exceeds the claim.

    >>> round(detectable_mu(claim_epsilon=1), 2), round(detectable_mu(runs=25, claim_mu=0.3139), 2)
    (2.93, 0.81)
    """
    reach = float(ndtri(_POWER))
    if claim_mu is not None:
        return claim_mu + (reach - float(ndtri(alpha))) / math.sqrt(runs)
    if runs == 1:
        log_p = math.log(max(alpha - delta, 1e-300)) - claim_epsilon
        return reach - float(ndtri_exp(log_p))
    hits = _hits_needed(runs, claim_epsilon, delta, alpha)
    if hits is None:
        return math.inf
    rate = float(betaincinv(hits, runs - hits + 1, _POWER))
    return float(ndtri(rate) - ndtri(HIT_LEVEL))


def _hits_needed(runs: int, claim: float, delta: float, alpha: float) -> int | None:
    for hits in range(1, runs + 1):
        if hits_bound(hits, runs, delta=delta, alpha=alpha) > claim:
            return hits
    return None


def ceiling(pairs: int, *, delta: float, alpha: float = ALPHA) -> tuple[float, float]:
    """Return ε and μ that one run shows when all signs are right.

    >>> tuple(round(value, 2) for value in ceiling(25, delta=1e-4))
    (14.33, 3.78)
    """
    least = 2.0**-pairs
    return epsilon_of_p(least, delta=delta, alpha=alpha), mu_of_p(least, alpha=alpha)


# --- repeats -------------------------------------------------------------------------------------


def pooled_mu(randomised: Sequence[float], *, alpha: float = ALPHA) -> float:
    """Return ``(Σz_j/√R − z_{1−α})/√R``, z_j = Φ⁻¹(1 − p_j): R independent runs are √R·μ-GDP.

    >>> round(pooled_mu([0.01, 0.2, 0.03, 0.5]), 6)
    0.439764
    """
    _require_p(randomised)
    require_levels(0.0, alpha)
    p = np.clip(np.asarray(randomised, dtype=np.float64), 1e-300, 1 - 2.0**-53)
    root = math.sqrt(len(p))
    return max(0.0, float((-ndtri(p).sum() / root + ndtri(alpha)) / root))


def hits_bound(hits: int, runs: int, *, delta: float, alpha: float = ALPHA) -> float:
    """Return the lower bound of ε from how many of R runs had p ≤ 0.01.

    >>> round(hits_bound(20, 20, delta=1e-5), 2)
    4.46
    """
    if not 0 <= hits <= runs or runs < 1:
        raise InvalidInput(f"expected 0..{runs} hits, got {hits}")
    require_levels(delta, alpha)
    least = float(betaincinv(hits, runs - hits + 1, alpha)) if hits else 0.0
    return float(epsilon_limit(HIT_LEVEL, 1 - least, delta))


def _require_p(values: Sequence[float]) -> None:
    if not len(values) or not all(0 <= p <= 1 for p in values):
        raise InvalidInput(f"p-values lie in [0, 1], got {list(values)[:5]}")
