"""The robust membership attack (RMIA): likelihood ratios against references, compared in a crowd.

Everything is in logarithms of p_θ(y | x), so that probabilities near 0 lose nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from expunge.audit.intervals import ALPHA, Area, Array, Interval, area, clopper_pearson, hit_rate
from expunge.errors import InvalidInput

GAMMA = 1.0
A = 0.3
GRID = tuple(k / 10 for k in range(11))
RATES = (0.01, 0.001)


def log_ratios(
    log_p: ArrayLike,
    references: ArrayLike,
    *,
    a: float = A,
    left_out: NDArray[np.bool_] | None = None,
) -> Array:
    """Return ``ln f(x)`` (n,) with ``f = p_θ/p̄`` and ``p̄ = ½((1 + a)·mean_refs p + 1 − a)``.

    Parameters
    ----------
    log_p : (n,) array_like
        ``ln p_θ(y | x)``, that is minus the loss.
    references : (r, n) array_like
        The same for reference models.
    a : float
        In [0, 1]; the line by which the probability under models *with* the row is guessed from
        that without.
    left_out : (r, n) array of bool, optional
        Which references were trained without the row; all, by default.
    """
    own, refs = np.asarray(log_p, dtype=np.float64), np.asarray(references, dtype=np.float64)
    if refs.ndim != 2 or refs.shape[1:] != own.shape or not len(refs):
        raise InvalidInput(
            f"references must be (models, {own.shape[0] if own.ndim else '?'} rows), got "
            f"{refs.shape}"
        )
    if not 0.0 <= a <= 1.0:
        raise InvalidInput(f"a must be in [0, 1], got {a}")
    mask = np.ones(refs.shape, bool) if left_out is None else np.asarray(left_out, dtype=bool)
    if mask.shape != refs.shape or not mask.any(axis=0).all():
        raise InvalidInput(
            "every row needs a reference model that was trained without it: train more references"
        )
    masked = np.where(mask, refs, -np.inf)
    out = np.logaddexp.reduce(masked, axis=0) - np.log(mask.sum(axis=0))
    with np.errstate(divide="ignore"):
        weights = np.log1p(a), np.log(1.0 - a)
    mean = np.logaddexp(weights[0] + out, weights[1]) - np.log(2.0)
    return np.asarray(own - mean)


def scores(log_f: ArrayLike, log_f_population: ArrayLike, *, gamma: float = GAMMA) -> Array:
    """Return the share of population rows z with ``f(x)/f(z) ≥ γ`` (n,); larger: a member.

    Examples
    --------
    >>> x = log_ratios(np.log([0.9, 0.5]), np.log([[0.6, 0.5], [0.7, 0.4]]))
    >>> z = log_ratios(np.log([0.4, 0.8, 0.6]), np.log([[0.5, 0.7, 0.6], [0.5, 0.9, 0.7]]))
    >>> np.exp(x).round(8).tolist(), scores(x, z).round(3).tolist()
    ([1.16504854, 0.77821012], [1.0, 0.667])
    """
    if not gamma > 0:
        raise InvalidInput(f"gamma must be positive, got {gamma}")
    crowd = np.sort(np.asarray(log_f_population, dtype=np.float64))
    if not len(crowd):
        raise InvalidInput("the attack needs population rows, disjoint from S, R and T")
    below = np.searchsorted(crowd, np.asarray(log_f) - np.log(gamma), side="right")
    return np.asarray(below / len(crowd), dtype=np.float64)


def tune(
    members: tuple[ArrayLike, ArrayLike],
    others: tuple[ArrayLike, ArrayLike],
    population: tuple[ArrayLike, ArrayLike],
    *,
    left_out: NDArray[np.bool_] | None = None,
    gamma: float = GAMMA,
    grid: Sequence[float] = GRID,
) -> float:
    """Return the ``a`` with the largest area between known members and others of one oracle.

    Parameters
    ----------
    members, others, population : pair of (n,) and (r, n) array_like
        ``ln p`` of an oracle that is used for nothing else, and of the references.
    left_out : (r, n_members) array of bool, optional
        Which references were trained without the member; they are not reliable otherwise.
    """

    def found(a: float) -> float:
        crowd = log_ratios(*population, a=a)
        inside = scores(log_ratios(*members, a=a, left_out=left_out), crowd, gamma=gamma)
        return area(inside, scores(log_ratios(*others, a=a), crowd, gamma=gamma)).value

    return max(grid, key=found)


@dataclass(frozen=True)
class Attack:
    """How well per-row scores tell members from others.

    Attributes
    ----------
    area : Area
    rates : dict
        From a false-alarm rate to (hit rate, its exact interval), where there were enough rows.
    """

    area: Area
    rates: dict[float, tuple[float, Interval]]


def attack(
    members: ArrayLike, others: ArrayLike, *, rates: Sequence[float] = RATES, alpha: float = ALPHA
) -> Attack:
    """Judge per-row scores: area, and hit rates at low false-alarm rates.

    A rate q needs 10/q rows that were never seen, otherwise it is left out. The interval is exact
    given the threshold.
    """
    found = {}
    count = len(np.asarray(members))
    for rate in rates:
        hits = hit_rate(members, others, rate)
        if hits is not None:
            found[rate] = hits[0] / count, clopper_pearson(hits[0], count, alpha)
    return Attack(area(members, others, alpha), found)
