"""The forgetting score of the 2023 unlearning challenge, for reproduction.

It is a plug-in maximum over attacks without a confidence bound: retraining judged against
retraining scores about 0.19, not 1. Print it beside the score of retrained models, never alone.

References
----------
Triantafillou et al. Are we making progress in unlearning? 2024.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike

from expunge.audit.intervals import Array
from expunge.errors import InvalidInput

DELTA = 1e-5
CAP = 50.0
PER_UNIT = 100
Families = Literal["both", "single"]


def row_epsilon(
    unlearned: ArrayLike, retrained: ArrayLike, *, families: Families = "both"
) -> float:
    """Return ε_s of one row: the best of many attacks on its margins, without correction.

    Parameters
    ----------
    unlearned, retrained : (N,) array_like
    families : {"both", "single"}
        One threshold and an interval around the narrower sample, or one threshold only.
    """
    u, r = (np.asarray(v, dtype=np.float64) for v in (unlearned, retrained))
    if u.ndim != 1 or r.ndim != 1 or min(len(u), len(r)) < 2:
        raise InvalidInput(f"expected margins of one row, got {u.shape} and {r.shape}")
    ranges = sorted((float(np.ptp(u)), float(np.ptp(r))))
    if ranges[1] > 0 and ranges[0] < 0.01 * ranges[1]:
        return CAP
    rates = [_single(u, r)] if families == "single" else [_single(u, r), _interval(u, r)]
    return min(CAP, max(_best(fpr, fnr) for fpr, fnr in rates))


def _thresholds(low: float, *samples: Array) -> Array:
    """Return the thresholds of a grid from ``low``, 100 a unit, at which a rate can change."""
    index = np.concatenate([(sample - low) * PER_UNIT for sample in samples])
    near = [np.floor(index) + shift for shift in (-1, 0, 1, 2)]
    kept = np.unique(np.maximum(np.concatenate(near), 0.0))
    return np.asarray(low + kept / PER_UNIT)


def _single(u: Array, r: Array) -> tuple[Array, Array]:
    """Return false positive and negative rates of one threshold; positive: the larger median."""
    positive, negative = (u, r) if np.median(u) >= np.median(r) else (r, u)
    grid = _thresholds(float(min(u.min(), r.min())), u, r)
    return _at_least(negative, grid), 1.0 - _at_least(positive, grid)


def _interval(u: Array, r: Array) -> tuple[Array, Array]:
    """Return the rates of "within t of the median" for the sample of the smaller spread."""
    positive, negative = (u, r) if u.std() <= r.std() else (r, u)
    centre = float(np.median(positive))
    inside, outside = np.abs(positive - centre), np.abs(negative - centre)
    grid = _thresholds(0.0, inside, outside)
    return 1.0 - _above(outside, grid), _above(inside, grid)


def _at_least(values: Array, grid: Array) -> Array:
    return np.asarray(1.0 - np.searchsorted(np.sort(values), grid, side="left") / len(values))


def _above(values: Array, grid: Array) -> Array:
    return np.asarray(1.0 - np.searchsorted(np.sort(values), grid, side="right") / len(values))


def _best(fpr: Array, fnr: Array) -> float:
    """Return the largest ε over thresholds; 50 if some threshold makes no mistake."""
    if ((fpr == 0) & (fnr == 0)).any():
        return CAP
    fair = (fpr > 0) & (fnr > 0)
    a, b = fpr[fair], fnr[fair]
    tops = np.concatenate([1 - DELTA - a, 1 - DELTA - b])
    ratios = tops / np.concatenate([b, a])
    return float(np.log(ratios.max())) if len(ratios) and ratios.max() > 0 else 0.0


def row_scores(epsilons: ArrayLike, runs: int) -> Array:
    """Return ``H_s = 2^{−⌊2ε_s⌋}``, 0 beyond ``⌈ln(N − 1)⌉``."""
    found = np.maximum(np.asarray(epsilons, dtype=np.float64), 0.0)
    kept = found <= math.ceil(math.log(runs - 1))
    return np.asarray(np.where(kept, 2.0 ** -np.floor(2 * found), 0.0))


def forgetting(unlearned: ArrayLike, retrained: ArrayLike, *, families: Families = "both") -> float:
    """Return F, the mean of `row_scores` over rows.

    Parameters
    ----------
    unlearned, retrained : (N, rows) array_like
        Margins under N independent runs of each.
    """
    u, r = (np.asarray(v, dtype=np.float64) for v in (unlearned, retrained))
    if u.ndim != 2 or u.shape != r.shape or len(u) < 3:
        raise InvalidInput(
            f"expected two arrays (runs, rows) of one shape, got {u.shape}, {r.shape}"
        )
    found = [row_epsilon(a, b, families=families) for a, b in _columns(u, r)]
    return float(row_scores(found, len(u)).mean())


def _columns(u: Array, r: Array) -> Iterator[tuple[Array, Array]]:
    return zip(u.T, r.T, strict=True)


def final_score(
    forgetting: float, retain: tuple[float, float], unseen: tuple[float, float]
) -> float:
    """Return ``F·(RA_u/RA_r)(TA_u/TA_r)`` from accuracies of unlearned and retrained models."""
    if retain[1] <= 0 or unseen[1] <= 0:
        raise InvalidInput("the retrained models' accuracies must be positive")
    return forgetting * (retain[0] / retain[1]) * (unseen[0] / unseen[1])
