"""Intervals and tests that the metrics share: exact binomial, areas under ROC curves, bootstraps.

All randomness is seeded by the caller; all arithmetic is float64.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import betaincinv, ndtr, ndtri
from scipy.stats import rankdata

from expunge.errors import InvalidInput

Array = NDArray[np.float64]
Interval = tuple[float, float]

ALPHA = 0.05
DRAWS = 1000
_CHUNK = 1 << 24


def vector(name: str, values: ArrayLike, *, least: int = 1) -> Array:
    """Return ``values`` as a finite (n,) float64 vector.

    Raises
    ------
    InvalidInput
        If it has another shape, fewer than ``least`` entries, or entries that are not finite.
    """
    try:
        found = np.asarray(values, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise InvalidInput(f"{name} must be numbers, got {type(values).__name__}") from error
    if found.ndim != 1 or len(found) < least:
        raise InvalidInput(
            f"{name} must be one row of at least {least} numbers, got the shape {found.shape}"
        )
    if not np.isfinite(found).all():
        raise InvalidInput(
            f"{name} must be finite, but {int((~np.isfinite(found)).sum())} entries are not: look "
            "for a model that diverged"
        )
    return found


def two_sided(low: float, high: float) -> float:
    """Return ``min(1, 2·min(p_low, p_high))``.

    >>> two_sided(0.01, 0.99)
    0.02
    """
    return min(1.0, 2.0 * min(low, high))


def clopper_pearson(hits: int, trials: int, alpha: float = ALPHA) -> Interval:
    """Return the exact two-sided interval of a proportion at level 1 − alpha.

    >>> low, high = clopper_pearson(5, 100)
    >>> round(low, 5), round(high, 5)
    (0.01643, 0.11283)
    """
    if not 0 <= hits <= trials or trials < 1:
        raise InvalidInput(f"expected 0 ≤ hits ≤ trials and trials ≥ 1, got {hits} of {trials}")
    low = float(betaincinv(hits, trials - hits + 1, alpha / 2)) if hits else 0.0
    high = float(betaincinv(hits + 1, trials - hits, 1 - alpha / 2)) if hits < trials else 1.0
    return low, high


@dataclass(frozen=True)
class Area:
    """An area under the ROC curve: the probability that a positive scores above a negative.

    Attributes
    ----------
    value : float
        Ties count one half.
    error : float
        DeLong's standard error; 0 at an area of 0 or 1.
    ci : (low, high)
        At level 1 − alpha, see `area`.
    p : float
        Two-sided p-value of "positives and negatives have one law", by ranks.
    step : float
        The smallest change that the sample sizes allow.
    """

    value: float
    error: float
    ci: Interval
    p: float
    step: float


def area(positive: ArrayLike, negative: ArrayLike, alpha: float = ALPHA) -> Area:
    """Return the area under the ROC curve with DeLong's interval and the rank test of one half.

    Parameters
    ----------
    positive, negative : (m,), (n,) array_like
        Scores; larger is said to be more positive.
    alpha : float

    Notes
    -----
    The interval is ``value ± z·s.e.`` within [0, 1]. Where all positives lie on one side of all
    negatives the standard error vanishes, DeLong's and Hanley and McNeil's alike. An area A gives
    ``min(m, n)`` disjoint independent pairs, all won with probability ``A^min(m, n)`` at most, so
    ``A ≥ (alpha/2)^(1/min(m, n))`` at an observed 1, and the mirror image at 0. The p-value uses
    the law under exchangeability, standard error ``√((m+n+1)/(12mn))`` corrected for ties.

    References
    ----------
    DeLong, DeLong, Clarke-Pearson 1988; Sun, Xu 2014 (ranks).

    Examples
    --------
    >>> found = area([0.9, 0.8, 0.7, 0.55, 0.4], [0.6, 0.5, 0.45, 0.3, 0.2, 0.1])
    >>> round(found.value, 6), round(found.error, 6)
    (0.866667, 0.117851)
    """
    x, y = vector("positive scores", positive), vector("negative scores", negative)
    m, n = len(x), len(y)
    ranks = rankdata(np.concatenate([x, y]))
    above = (ranks[:m] - rankdata(x)) / n
    below = 1.0 - (ranks[m:] - rankdata(y)) / m
    value = float(above.mean())
    spread = [float(v.var(ddof=1)) / len(v) if len(v) > 1 else 0.0 for v in (above, below)]
    error = math.sqrt(sum(spread))
    reach = -float(ndtri(alpha / 2)) * error
    low, high = max(0.0, value - reach), min(1.0, value + reach)
    separated = (alpha / 2) ** (1.0 / min(m, n))
    if value in (0.0, 1.0):
        low, high = (separated, 1.0) if value else (0.0, 1.0 - separated)
    deviation = (value - 0.5) / max(_null_error(ranks, m, n), 1e-300)
    p = two_sided(float(ndtr(deviation)), float(ndtr(-deviation)))
    return Area(value, error, (low, high), p, 1.0 / (m * n))


def _null_error(ranks: Array, m: int, n: int) -> float:
    """Return the standard error of the area under exchangeability, given the ranks."""
    total = m + n
    ties = np.unique(ranks, return_counts=True)[1].astype(float)
    lost = float(((ties**3 - ties) / (total * max(total - 1, 1))).sum())
    return math.sqrt(max(total + 1 - lost, 0.0) / (12 * m * n))


def hit_rate(positive: ArrayLike, negative: ArrayLike, rate: float) -> tuple[int, float] | None:
    """Return how many positives exceed the threshold with false alarms ≤ rate, and that rate.

    None if there are fewer than ``10/rate`` negatives: the rate could not be seen.

    >>> hit_rate([3.0, 1.0], range(1000), 0.01) is None, hit_rate([999.0, 0], range(1000), 0.01)
    (False, (1, 0.01))
    """
    x, y = vector("positive scores", positive), vector("negative scores", negative)
    if len(y) < math.ceil(10.0 / rate - 1e-9):
        return None
    allowed = math.floor(rate * len(y) + 1e-9)
    threshold = np.partition(y, len(y) - allowed - 1)[len(y) - allowed - 1]
    return int((x > threshold).sum()), float((y > threshold).mean())


def bootstrap(
    values: Array,
    statistic: Callable[[Array], Array],
    rng: np.random.Generator,
    *,
    clusters: NDArray[Any] | None = None,
    alpha: float = ALPHA,
    draws: int = DRAWS,
) -> Interval:
    """Return the percentile interval of a function of column means, rows drawn with replacement.

    Parameters
    ----------
    values : (n, q) array
    statistic : callable
        From the means (draws, q) of resamples to (draws,) values.
    rng : Generator
    clusters : (n,) array, optional
        Rows with one label (a user) are drawn together.
    """
    sums, sizes = _per_cluster(values, clusters)
    count = len(sizes)
    means = np.empty((draws, values.shape[1]))
    chunk = max(1, _CHUNK // max(count, 1))
    for start in range(0, draws, chunk):
        stop = min(start + chunk, draws)
        picks = rng.integers(count, size=(stop - start, count))
        weights = np.array([np.bincount(pick, minlength=count) for pick in picks], dtype=float)
        means[start:stop] = (weights @ sums) / (weights @ sizes)[:, None]
    return percentile(statistic(means), alpha)


def percentile(values: Array, alpha: float = ALPHA) -> Interval:
    """Return the central interval that holds a share 1 − alpha of the values."""
    low, high = np.quantile(values, [alpha / 2, 1 - alpha / 2])
    return float(low), float(high)


def _per_cluster(values: Array, clusters: NDArray[Any] | None) -> tuple[Array, Array]:
    """Return the sum of rows and the number of rows of each cluster."""
    if clusters is None:
        return values, np.ones(len(values))
    if len(clusters) != len(values):
        raise InvalidInput(f"there are {len(values)} rows and {len(clusters)} users: give one each")
    _, which = np.unique(clusters, return_inverse=True)
    sums = np.zeros((int(which.max()) + 1, values.shape[1]))
    np.add.at(sums, which, values)
    return sums, np.bincount(which).astype(float)


def clustered_area(
    positive: Array,
    negative: Array,
    users: tuple[NDArray[Any] | None, NDArray[Any] | None],
    rng: np.random.Generator,
    *,
    draws: int = DRAWS,
) -> Array:
    """Return areas (draws,) of resamples, users drawn with replacement on each side."""
    order = np.argsort(np.concatenate([positive, negative]), kind="stable")
    scores = np.concatenate([positive, negative])[order]
    start = np.flatnonzero(np.concatenate([[True], scores[1:] != scores[:-1]]))
    owners = [_owners(side, who) for side, who in zip((positive, negative), users, strict=True)]
    found = np.empty(draws)
    for k in range(draws):
        counts = [_drawn(rng, owner) for owner in owners]
        left = np.concatenate([counts[0], np.zeros(len(negative))])[order]
        right = np.concatenate([np.zeros(len(positive)), counts[1]])[order]
        wins, losses = np.add.reduceat(left, start), np.add.reduceat(right, start)
        below = np.cumsum(losses) - losses / 2
        found[k] = (wins * below).sum() / (wins.sum() * losses.sum())
    return found


def _owners(side: Array, users: NDArray[Any] | None) -> NDArray[np.intp]:
    if users is None:
        return np.arange(len(side))
    return np.unique(users, return_inverse=True)[1].astype(np.intp)


def _drawn(rng: np.random.Generator, owner: NDArray[np.intp]) -> Array:
    """Return how often each row is drawn when its owner is drawn with replacement."""
    count = int(owner.max()) + 1
    return np.bincount(rng.integers(count, size=count), minlength=count)[owner].astype(float)
