"""Where one more retrained model would lie, and the gate that retrained models pass first."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike
from scipy.optimize import brentq
from scipy.stats import binom, nct
from scipy.stats import t as student

from expunge.audit.intervals import ALPHA, Array, Interval, vector
from expunge.errors import InvalidInput

Scale = Literal["plain", "logit", "log"]

VOID = 0.01
"""Below this probability of so many failures among retrained models a test is void."""
POWER = 0.8
_TINY = 1e-12


@dataclass(frozen=True)
class Gate:
    """How often retrained models failed the test that the candidate is put to.

    Attributes
    ----------
    failures, runs : int
    probability : float
        Of at least so many failures if each has probability alpha.
    """

    failures: int
    runs: int
    probability: float

    @property
    def void(self) -> bool:
        """Whether the test cannot decide."""
        return self.probability < VOID


def prediction_factor(m: int, alpha: float = ALPHA) -> float:
    """Return ``c_m = t_{m−1, 1−α/2}·√(1 + 1/m)``.

    >>> [round(prediction_factor(m), 3) for m in (5, 10, 20)]
    [3.041, 2.373, 2.145]
    """
    if m < 2:
        raise InvalidInput(f"a band needs at least two retrained models, got {m}")
    return float(student.ppf(1 - alpha / 2, m - 1)) * math.sqrt(1 + 1 / m)


def prediction_band(
    values: ArrayLike, *, scale: Scale = "plain", step: float = 0.0, alpha: float = ALPHA
) -> Interval:
    """Return the Student prediction interval of one more value, rounded outward by one step.

    Parameters
    ----------
    values : (m,) array_like
        One a retrained model; none of them may have been used to make the attack.
    scale : {"plain", "logit", "log"}
        Where the interval is symmetric: "logit" for areas and rates, "log" for divergences and
        times.
    step : float
        The smallest change of the statistic. The band reaches at least so far on each side of the
        mean: models that agree on every row do not show that one row more is too many. Zeros (and
        ones) are moved inward by half of it on the logit and log scales.

    Examples
    --------
    >>> low, high = prediction_band([0.48, 0.5, 0.51, 0.5, 0.49], scale="logit")
    >>> round(low, 3), round(high, 3)
    (0.461, 0.531)
    """
    found = vector("oracle values", values, least=2)
    inner = _to_scale(found, scale, step)
    reach = prediction_factor(len(inner), alpha) * float(inner.std(ddof=1))
    centre = float(inner.mean())
    low, mean, high = (_from_scale(v, scale) for v in (centre - reach, centre, centre + reach))
    slack = max(step, abs(mean) * 1e-12)
    return _inside(min(low, mean - slack), max(high, mean + slack), scale)


def detectable_means(
    values: ArrayLike, *, scale: Scale = "plain", step: float = 0.0, alpha: float = ALPHA
) -> Interval:
    """Return the means, below and above, that the band of these oracles flags in 80 % of cases.

    On the scale of the band, for a candidate that varies as the oracles do.
    """
    inner = _to_scale(vector("oracle values", values, least=2), scale, step)
    m, centre = len(inner), float(inner.mean())
    shift = _detectable(m, alpha) * float(inner.std(ddof=1)) * math.sqrt(1 + 1 / m)
    low, high = _from_scale(centre - shift, scale), _from_scale(centre + shift, scale)
    mean = _from_scale(centre, scale)
    return _inside(min(low, mean - step), max(high, mean + step), scale)


def _inside(low: float, high: float, scale: Scale) -> Interval:
    """Cut an interval to what the scale is for."""
    if scale == "plain":
        return low, high
    return max(low, 0.0), min(high, 1.0) if scale == "logit" else high


@cache
def _detectable(m: int, alpha: float) -> float:
    """Return the non-centrality at which Student's test with m − 1 degrees has power 0.8."""
    limit = float(student.ppf(1 - alpha / 2, m - 1))
    return float(brentq(lambda d: nct.sf(limit, m - 1, d) - POWER, 0.0, 10.0 * limit))


def _to_scale(values: Array, scale: Scale, step: float) -> Array:
    least = max(step / 2, _TINY)
    if scale == "logit":
        if (values < 0).any() or (values > 1).any():
            raise InvalidInput("the logit scale is for values in [0, 1]")
        inside = np.clip(values, least, 1 - least)
        return np.asarray(np.log(inside) - np.log1p(-inside), dtype=np.float64)
    if scale == "log":
        if (values < 0).any():
            raise InvalidInput("the log scale is for values that are not negative")
        return np.log(np.maximum(values, least))
    return values


def _from_scale(value: float, scale: Scale) -> float:
    if scale == "logit":
        return 1 / (1 + math.exp(-value)) if value > -700 else 0.0
    if scale == "log":
        return math.exp(value) if value < 700 else math.inf
    return value


def within(value: float, band: Interval) -> bool:
    """Return whether a value lies in a closed band."""
    return bool(band[0] <= value <= band[1])


def gate(failed: Sequence[bool], alpha: float = ALPHA) -> Gate:
    """Return the gate of a test that so many retrained models failed.

    >>> [f for f in range(6) if not gate([True] * f + [False] * (5 - f)).void]
    [0, 1, 2]
    """
    failures, runs = sum(map(bool, failed)), len(failed)
    return Gate(failures, runs, float(binom.sf(failures - 1, runs, alpha)))


def leave_one_out(
    values: ArrayLike, *, scale: Scale = "plain", step: float = 0.0, alpha: float = ALPHA
) -> Gate:
    """Treat each oracle as the candidate, with the band of the others."""
    found = vector("oracle values", values, least=3)
    failed = [
        not within(
            float(value),
            prediction_band(np.delete(found, i), scale=scale, step=step, alpha=alpha),
        )
        for i, value in enumerate(found)
    ]
    return gate(failed, alpha)


def relabelled(
    statistic: Callable[[Array, Array], Array],
    candidate: Array,
    retrained: Array,
    rng: np.random.Generator,
    *,
    draws: int = 200,
) -> Array:
    """Return two-sample statistics as they would be if the candidate's runs were retrained ones.

    Runs of both are thrown together, and two groups as large as the candidate's are drawn. Groups
    of retrained runs alone would not do: they share their extremes, and a statistic that uses these
    lies outside of such a band twice as often as it should.

    Parameters
    ----------
    statistic : callable
        From two arrays of N runs (first axis) to numbers (q,).
    candidate, retrained : (N, ...), (M, ...) array
        M ≥ N.

    Returns
    -------
    (draws, q) array
    """
    count, pool = len(candidate), np.concatenate([candidate, retrained])
    if count < 2 or len(retrained) < count:
        raise InvalidInput(f"expected N ≥ 2 runs and as many retrained, got {pool.shape}")
    found = []
    for _ in range(draws):
        order = rng.permutation(len(pool))
        found.append(statistic(pool[order[:count]], pool[order[count : 2 * count]]))
    return np.array(found)


def rank_band(drawn: ArrayLike, alpha: float = ALPHA) -> Interval:
    """Return the band that a value leaves with probability alpha at most, exchangeable with these.

    >>> rank_band(range(200))
    (4.0, 195.0)
    """
    values = np.sort(vector("draws", drawn))
    k = math.floor(alpha * (len(values) + 1) / 2 + 1e-9)
    if k < 1:
        raise InvalidInput(f"{len(values)} draws are too few for the level {alpha:g}")
    return float(values[k - 1]), float(values[-k])
