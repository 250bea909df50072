"""Lower bounds of ε and μ from how often a threshold errs: unlearned against retrained runs.

Runs are independent within a side. A score is said to be large on unlearned runs; FP counts the
retrained runs at or above the threshold, FN the unlearned ones below. Clopper–Pearson limits of
both rates hold together with probability 1 − α, whatever ties the two sides together, and give
lower bounds of ε (at a δ) and of μ without any assumption on model, noise or score.

The threshold comes from other runs (`select`) or from a fixed grid that shares α. The largest bound
over all thresholds of the same runs is no bound.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import betaincinv, ndtri

from expunge.audit.intervals import ALPHA, Array, vector
from expunge.errors import InvalidInput

MOST_THRESHOLDS = 20
_EXPECTED = 1e-6
"""Collisions that may be expected where one is taken for a fault."""


@dataclass(frozen=True)
class Bound:
    """What so many errors show, together with probability 1 − alpha.

    Attributes
    ----------
    epsilon : float
        Lower bound of ε at δ; ≥ 0.
    mu : float
        Lower bound of μ, for claims of Gaussian differential privacy; ≥ 0.
    false_positives, false_negatives, runs : int
        Errors, and runs of each side.
    limits : (float, float)
        Upper limits of the two rates.
    """

    epsilon: float
    mu: float
    false_positives: int
    false_negatives: int
    runs: int
    limits: tuple[float, float]


@dataclass(frozen=True)
class Threshold:
    """A decision: unlearned if ``sign·score ≥ value``."""

    value: float
    sign: int


def upper_limits(counts: ArrayLike, runs: int, alpha: float = ALPHA) -> Array:
    """Return Clopper–Pearson upper limits at level alpha/2: ``u(j)``, and 1 at ``j = runs``.

    >>> upper_limits([50, 400, 1000], 1000).round(8).tolist()
    [0.06539049, 0.43112155, 1.0]
    """
    j = np.asarray(counts, dtype=np.float64)
    inside = np.minimum(j, runs - 1)
    return np.where(j < runs, betaincinv(inside + 1, runs - inside, 1 - alpha / 2), 1.0)


def epsilon_limit(fp: ArrayLike, fn: ArrayLike, delta: float) -> Array:
    """Return the ε that error rates of at most ``fp`` and ``fn`` need at δ, at least 0."""
    a, b = np.asarray(fp, dtype=np.float64), np.asarray(fn, dtype=np.float64)
    with np.errstate(divide="ignore"):
        one = np.log(np.maximum(1 - delta - a, 0)) - np.log(b)
        other = np.log(np.maximum(1 - delta - b, 0)) - np.log(a)
    found: Array = np.maximum(0.0, np.maximum(one, other))
    return found


def mu_limit(fp: ArrayLike, fn: ArrayLike) -> Array:
    """Return the μ that error rates of at most ``fp`` and ``fn`` need, at least 0."""
    a, b = np.asarray(fp, dtype=np.float64), np.asarray(fn, dtype=np.float64)
    with np.errstate(invalid="ignore"):
        found = -ndtri(a) - ndtri(b)
    return np.maximum(0.0, np.nan_to_num(found, nan=0.0))


def bound(fp: int, fn: int, runs: int, *, delta: float, alpha: float = ALPHA) -> Bound:
    """Return the lower bounds that ``fp`` and ``fn`` errors in ``runs`` runs of each side give.

    Raises
    ------
    InvalidInput
        If a count does not lie in 0..runs, δ not in [0, 1) or alpha not in (0, 1).

    Examples
    --------
    >>> found = bound(50, 400, 1000, delta=1e-5)
    >>> round(found.epsilon, 6), round(found.mu, 6)
    (2.163272, 1.684549)
    """
    if runs < 1 or not (0 <= fp <= runs and 0 <= fn <= runs):
        raise InvalidInput(f"expected 0..{runs} errors on each side, got {fp} and {fn}")
    require_levels(delta, alpha)
    limits = upper_limits([fp, fn], runs, alpha)
    a, b = (float(limit) for limit in limits)
    return Bound(float(epsilon_limit(a, b, delta)), float(mu_limit(a, b)), fp, fn, runs, (a, b))


def ceiling(runs: int, *, delta: float, alpha: float = ALPHA) -> Bound:
    """Return what a perfect attack shows with so many runs of each side.

    >>> found = ceiling(100, delta=1e-5)
    >>> round(found.epsilon, 3), round(found.mu, 3)
    (3.281, 3.593)
    """
    return bound(0, 0, runs, delta=delta, alpha=alpha)


def require_levels(delta: float, alpha: float) -> None:
    """Refuse a δ outside [0, 1) and an α outside (0, 1)."""
    if not (0 <= delta < 1 and 0 < alpha < 1):
        raise InvalidInput(
            f"expected 0 ≤ delta < 1 and 0 < alpha < 1, got delta {delta!r} and alpha {alpha!r}"
        )


def select(
    retrained: ArrayLike, unlearned: ArrayLike, *, delta: float | None, alpha: float = ALPHA
) -> Threshold:
    """Return the threshold and the sign with the largest bound on selection runs.

    Parameters
    ----------
    retrained, unlearned : (n,) array_like
        Scores of runs that are not evaluated on.
    delta : float or None
        For the bound on ε at that δ; None for the bound on μ.
    """
    x, y = vector("retrained scores", retrained), vector("unlearned scores", unlearned)
    if len(x) != len(y):
        raise InvalidInput(f"both sides need as many runs, got {len(x)} and {len(y)}")
    best, chosen = -1.0, Threshold(math.inf, 1)
    for sign in (1, -1):
        values = _midpoints(sign * x, sign * y)
        fp = len(x) - np.searchsorted(np.sort(sign * x), values)
        fn = np.searchsorted(np.sort(sign * y), values)
        a, b = upper_limits(fp, len(x), alpha), upper_limits(fn, len(x), alpha)
        found = mu_limit(a, b) if delta is None else epsilon_limit(a, b, delta)
        top = int(found.argmax())
        if found[top] > best:
            best, chosen = float(found[top]), Threshold(float(values[top]), sign)
    return chosen


def _midpoints(x: Array, y: Array) -> Array:
    """Return thresholds between neighbouring scores, and one beyond either end."""
    scores = np.unique(np.concatenate([x, y]))
    return np.concatenate([scores[:1], scores[:-1] + np.diff(scores) / 2, [np.inf]])


def count_errors(
    retrained: ArrayLike, unlearned: ArrayLike, threshold: Threshold
) -> tuple[int, int]:
    """Return how many retrained runs reach a threshold, and how many unlearned ones do not."""
    x, y = vector("retrained scores", retrained), vector("unlearned scores", unlearned)
    hit = threshold.sign * x >= threshold.value
    missed = threshold.sign * y < threshold.value
    return int(hit.sum()), int(missed.sum())


def split_bound(
    retrained: ArrayLike,
    unlearned: ArrayLike,
    *,
    selection: int,
    delta: float,
    by: str = "mu",
    alpha: float = ALPHA,
) -> Bound:
    """Return the bound of the runs after the first ``selection`` on each side, which choose τ.

    Parameters
    ----------
    retrained, unlearned : (selection + R,) array_like
    selection : int
        Runs of each side that are spent on the threshold; R/2 is a good share.
    delta : float
    by : {"mu", "epsilon"}
        Which bound the threshold is to serve.
    """
    x, y = vector("retrained scores", retrained), vector("unlearned scores", unlearned)
    if len(x) != len(y) or not 1 <= selection < len(x):
        raise InvalidInput(
            f"both sides need as many runs and more than {selection}, got {len(x)} and {len(y)}"
        )
    wanted = delta if by == "epsilon" else None
    chosen = select(x[:selection], y[:selection], delta=wanted, alpha=alpha)
    errors = count_errors(x[selection:], y[selection:], chosen)
    return bound(*errors, len(x) - selection, delta=delta, alpha=alpha)


def grid_bound(
    retrained: ArrayLike,
    unlearned: ArrayLike,
    thresholds: Sequence[Threshold],
    *,
    delta: float,
    alpha: float = ALPHA,
) -> Bound:
    """Return the largest bounds over a grid fixed before the runs, each at its share of alpha.

    The bounds on ε and on μ may come from two thresholds; counts and limits are those of μ.

    Raises
    ------
    InvalidInput
        If the grid has more than 20 thresholds: the shares would be too small.
    """
    if not 1 <= len(thresholds) <= MOST_THRESHOLDS:
        raise InvalidInput(f"expected 1..{MOST_THRESHOLDS} thresholds, got {len(thresholds)}")
    x, y = vector("retrained scores", retrained), vector("unlearned scores", unlearned)
    share = alpha / len(thresholds)
    found = [bound(*count_errors(x, y, t), len(x), delta=delta, alpha=share) for t in thresholds]
    best = max(found, key=lambda one: one.mu)
    epsilon = max(one.epsilon for one in found)
    return Bound(
        epsilon, best.mu, best.false_positives, best.false_negatives, best.runs, best.limits
    )


def degenerate(releases: Sequence[NDArray[np.float64]], cell: float = 2.0**-10) -> bool:
    """Whether two releases of a side are the same to the bit: there was no fresh noise.

    Parameters
    ----------
    releases : sequence of arrays
    cell : float
        Width of the output grid in units of σ. Where it is so coarse, or the releases have so few
        numbers, that collisions are expected, none of them says anything.

    Examples
    --------
    >>> degenerate([np.ones(3), np.zeros(3), np.ones(3)])
    True
    >>> degenerate([np.ones(1), np.zeros(1), np.ones(1)])
    False
    """
    together = (cell / math.sqrt(4 * math.pi)) ** releases[0].size
    if len(releases) ** 2 / 2 * together > _EXPECTED:
        return False
    return len({np.ascontiguousarray(release).tobytes() for release in releases}) < len(releases)
