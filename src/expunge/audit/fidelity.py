"""Utility and fidelity: how a candidate predicts, and how far its predictions are from retraining.

Accuracy sees only the largest probability; ToW is near 1 for a model that forgot nothing if the
forget set is easy. Disagreement and divergence compare answers row by row.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from expunge.audit.intervals import Array, Interval, bootstrap, percentile
from expunge.audit.views import Outputs
from expunge.errors import InvalidInput

CLIP = 1e-12


def accuracy(outputs: Outputs) -> float:
    """Return the share of rows predicted right."""
    return float(outputs.correct.mean())


def macro_f1(outputs: Outputs) -> float:
    """Return the unweighted mean of F1 over the classes that occur as labels or predictions."""
    k = outputs.log_p.shape[1]
    cells = np.bincount(outputs.y * k + outputs.predicted, minlength=k * k)
    return float(_f1(cells.reshape(1, k, k).astype(float))[0])


def _f1(cells: Array) -> Array:
    """Return macro-F1 (b,) from confusion matrices (b, K, K)."""
    right = np.einsum("bii->bi", cells)
    total = cells.sum(axis=1) + cells.sum(axis=2)
    present = total > 0
    scores = 2 * right / np.where(present, total, 1.0)
    return np.asarray(scores.sum(axis=1) / present.sum(axis=1))


def macro_f1_interval(
    outputs: Outputs,
    rng: np.random.Generator,
    clusters: NDArray[np.generic] | None = None,
    draws: int = 1000,
) -> Interval:
    """Return the bootstrap interval of `macro_f1` over rows, or over users."""
    k = outputs.log_p.shape[1]
    cell = outputs.y * k + outputs.predicted
    if clusters is None:
        share = np.bincount(cell, minlength=k * k) / len(cell)
        drawn = rng.multinomial(len(cell), share, size=draws)
        return percentile(_f1(drawn.reshape(draws, k, k).astype(float)))
    occurring, place = np.unique(cell, return_inverse=True)
    table = np.eye(len(occurring))[place]

    def statistic(means: Array) -> Array:
        full = np.zeros((len(means), k * k))
        full[:, occurring] = means
        return _f1(full.reshape(-1, k, k))

    return bootstrap(table, statistic, rng, clusters=clusters, draws=draws)


def gap(
    candidate: Outputs,
    oracles: Sequence[Outputs],
    rng: np.random.Generator,
    clusters: NDArray[np.generic] | None = None,
) -> tuple[float, Interval]:
    """Return ``acc(M_u) − mean acc(M_r)`` and its paired bootstrap interval over rows."""
    same_rows(candidate, oracles)
    change = candidate.correct - np.mean([o.correct for o in oracles], axis=0)
    return float(change.mean()), mean_interval(change, rng, clusters)


def mean_interval(
    values: Array, rng: np.random.Generator, clusters: NDArray[np.generic] | None = None
) -> Interval:
    """Return the bootstrap interval of a mean over rows, or over users."""
    return bootstrap(values[:, None], lambda means: means[:, 0], rng, clusters=clusters)


def tug_of_war(forget: float, retain: float, unseen: float) -> float:
    """Return ToW = (1 − |Δ_S|)(1 − |Δ_R|)(1 − |Δ_T|) of accuracy gaps; 1 is ideal.

    References
    ----------
    Zhao et al. What makes unlearning hard and what to do about it. 2024.

    Examples
    --------
    >>> round(tug_of_war(0.95 - 0.88, 0.99 - 0.995, 0.84 - 0.883), 8)
    0.88555995
    """
    return (1 - abs(forget)) * (1 - abs(retain)) * (1 - abs(unseen))


def disagreement(candidate: Outputs, oracle: Outputs) -> Array:
    """Return 1 where the two predict different labels, else 0 (n,)."""
    return np.asarray(candidate.predicted != oracle.predicted, dtype=np.float64)


def divergence(candidate: Outputs, oracle: Outputs) -> Array:
    """Return ``Σ_c p_r ln(p_r/p_u)`` (n,) in nats, probabilities clipped at 1e-12."""
    least = float(np.log(CLIP))
    theirs, own = np.maximum(oracle.log_p, least), np.maximum(candidate.log_p, least)
    return np.asarray((np.exp(theirs) * (theirs - own)).sum(axis=1))


def jensen_shannon(p: Array, q: Array) -> Array:
    """Return the Jensen–Shannon divergence (n,) of rows of probabilities, in nats, ≤ ln 2.

    >>> round(float(jensen_shannon(np.array([[.7, .2, .1]]), np.full((1, 3), 1 / 3))[0]), 8)
    0.0748064
    """
    middle = (p + q) / 2

    def relative(a: Array) -> Array:
        ratio = np.divide(a, middle, out=np.ones_like(a), where=a > 0)
        return np.asarray((a * np.log(ratio)).sum(axis=1))

    return (relative(p) + relative(q)) / 2


def same_rows(candidate: Outputs, others: Sequence[Outputs]) -> None:
    """Refuse models that answered other rows, or with other classes.

    Raises
    ------
    InvalidInput
    """
    for other in others:
        if other.log_p.shape != candidate.log_p.shape or not np.array_equal(other.y, candidate.y):
            raise InvalidInput(
                f"the candidate answers {candidate.log_p.shape[0]} rows in "
                f"{candidate.log_p.shape[1]} classes, a retrained model {other.log_p.shape}, or "
                "their labels differ: compare models on the same rows and classes"
            )
