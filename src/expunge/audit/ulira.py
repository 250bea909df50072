"""Attackers who know the algorithm: two laws of a row's margin, told apart row by row.

U-LiRA tells models that unlearned a row from models that never saw it. RULI asks that (*privacy*)
and tells models that unlearned it from models that kept it (*efficacy*). Both are one function of
two samples of margins.

Leave-one-out accuracies are averages of *dependent* guesses: under equal laws they vary more than a
binomial share, and an exact interval around them misses 50 % in 10 % of cases instead of 5 % (see
the tests). So the interval here is that of an attack fitted on one half of the runs and judged on
the other, and the p-value is that of relabelling runs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from expunge.audit.intervals import ALPHA, Array, Interval, area, clopper_pearson, two_sided, vector
from expunge.audit.lira import log_normal
from expunge.errors import InvalidInput

LEAST = 8


@dataclass(frozen=True)
class Row:
    """How well a row's two laws are told apart.

    Attributes
    ----------
    accuracy : float
        Of the likelihood ratio at threshold 0, fitted without the value judged; 0.5: cannot tell.
    area : float
        Area under the ROC curve of the same scores; it needs no threshold.
    held_out : float
        Accuracy of the attack fitted on half of the runs, on the other half.
    ci : (low, high)
        Exact interval of the held-out attack's accuracy.
    p : float
        Two-sided, of "both laws are equal", by relabelling runs.
    runs : int
    """

    accuracy: float
    area: float
    held_out: float
    ci: Interval
    p: float
    runs: int


def tell_apart(
    first: ArrayLike,
    second: ArrayLike,
    rng: np.random.Generator,
    *,
    alpha: float = ALPHA,
    relabellings: int = 1000,
) -> Row:
    """Tell two samples of a row's margins apart by their likelihood ratio under two Gaussians.

    Parameters
    ----------
    first, second : (N,) array_like
        Margins under models that unlearned the row, and under models of the other law.
    rng : Generator
        Of the relabellings.
    alpha : float
        Divide it by the number of rows if the worst of them is reported, see `worst`.

    References
    ----------
    Hayes et al. Inexact unlearning needs more careful evaluations. 2024; Naderloui et al.
    Rectifying privacy and efficacy measurements in machine unlearning. USENIX Security 2025.
    """
    u = vector("margins of the first law", first, least=LEAST)
    h = vector("margins of the second law", second, least=LEAST)
    if len(u) != len(h):
        raise InvalidInput(f"both laws need equally many runs, got {len(u)} and {len(h)}")
    own = _leave_one_out(u[None], h[None])[0]
    observed = _accuracy(own)
    both = np.concatenate([u, h])
    mixed = rng.permuted(np.broadcast_to(both, (relabellings, len(both))), axis=1)
    drawn = _accuracy(_leave_one_out(mixed[:, : len(u)], mixed[:, len(u) :]))
    high = (1 + int((drawn >= observed).sum())) / (relabellings + 1)
    low = (1 + int((drawn <= observed).sum())) / (relabellings + 1)
    hits, trials = _held_out(u, h)
    return Row(
        float(observed),
        area(own[: len(u)], own[len(u) :]).value,
        hits / trials,
        clopper_pearson(hits, trials, alpha),
        two_sided(low, high),
        len(both),
    )


def _accuracy(scores: Array) -> Array:
    """Return the share (…,) of right guesses, the first half of the last axis being positive."""
    half = scores.shape[-1] // 2
    right = np.concatenate([scores[..., :half] > 0, scores[..., half:] <= 0], axis=-1)
    return np.asarray(right.mean(axis=-1))


def _leave_one_out(first: Array, second: Array) -> Array:
    """Return the log-likelihood ratios (b, 2N) of values left out of both fits.

    The value and its partner (the i-th of the other sample) are both left out: the two fits are
    then of equal size and neither has seen the value.
    """
    left, right = _without(first), _without(second)
    return np.concatenate(
        [log_normal(x, *left) - log_normal(x, *right) for x in (first, second)], axis=1
    )


def _without(values: Array) -> tuple[Array, Array]:
    """Return mean and variance (ddof = 1) of each row of a (b, N) array without each value."""
    n = values.shape[1]
    centre = values.mean(axis=1, keepdims=True)
    off = values - centre
    mean = -off / (n - 1)
    squares = (off * off).sum(axis=1, keepdims=True) - off * off - (n - 1) * mean * mean
    return centre + mean, squares / (n - 2)


def _held_out(first: Array, second: Array) -> tuple[int, int]:
    half = len(first) // 2
    fits = [(float(v[:half].mean()), float(v[:half].var(ddof=1))) for v in (first, second)]
    scores = [
        log_normal(v[half:], *fits[0]) - log_normal(v[half:], *fits[1]) for v in (first, second)
    ]
    return int((scores[0] > 0).sum() + (scores[1] <= 0).sum()), 2 * (len(first) - half)


@dataclass(frozen=True)
class Rows:
    """The attack on several rows.

    Attributes
    ----------
    accuracy : float
        Mean over rows.
    rows : tuple of Row
        With intervals at level 1 − alpha/rows, so that they hold for all rows at once.
    """

    accuracy: float
    rows: tuple[Row, ...]

    @property
    def worst(self) -> int:
        """Position of the row with the smallest p-value, then the accuracy farthest from 50 %."""
        order = [(row.p, -abs(row.accuracy - 0.5)) for row in self.rows]
        return order.index(min(order))

    @property
    def p(self) -> float:
        """Of "no row's laws differ", by Bonferroni."""
        return min(1.0, len(self.rows) * min(row.p for row in self.rows))


def attack(
    first: ArrayLike,
    second: ArrayLike,
    rng: np.random.Generator,
    *,
    alpha: float = ALPHA,
    relabellings: int | None = None,
) -> Rows:
    """Attack several rows at once.

    Parameters
    ----------
    first, second : (N, rows) array_like
        Margins under both laws.
    relabellings : int, optional
        By default enough for the Bonferroni-adjusted p-value to fall below alpha/5.
    """
    u, h = np.asarray(first, dtype=np.float64), np.asarray(second, dtype=np.float64)
    if u.ndim != 2 or u.shape[1] != h.shape[-1] or not u.shape[1]:
        raise InvalidInput(f"expected margins (runs, rows) of both laws, got {u.shape}, {h.shape}")
    count = u.shape[1]
    draws = max(1000, int(10 * count / alpha)) if relabellings is None else relabellings
    rows = tuple(
        tell_apart(u[:, j], h[:, j], rng, alpha=alpha / count, relabellings=draws)
        for j in range(count)
    )
    return Rows(float(np.mean([row.accuracy for row in rows])), rows)


def mean_accuracy(first: Array, second: Array) -> float:
    """Return the mean over rows of the leave-one-out accuracy, for margins (N, rows)."""
    return float(_accuracy(_leave_one_out(first.T, second.T)).mean())


def most_memorised(scores: ArrayLike, count: int = 50) -> Sequence[int]:
    """Return the positions of the largest scores, the targets that an attacker would choose."""
    order = np.argsort(-vector("memorisation scores", scores), kind="stable")
    return [int(i) for i in order[:count]]
