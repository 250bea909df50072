"""Two-version reconstruction: what the holder of the old model learns about the deleted row.

The step from the old to the new weights of a linear head points, after the curvature, along the
deleted row. This is an exposure figure: a perfect retrain released with little noise is exposed
too. It refutes a stated ``beforeAndAfter`` claim, and it detects a perturbation that was reused.

References
----------
Bertran et al. Reconstruction attacks on machine unlearning: simple models are vulnerable. 2024.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from expunge.audit.intervals import Array
from expunge.errors import InvalidInput

FEWEST = 50


def reconstruct(hessian: ArrayLike, old: ArrayLike, new: ArrayLike) -> Array:
    """Return ``x̂ = Ĥ_pub(w_old − w_new)`` (d,), of a direction only.

    Parameters
    ----------
    hessian : (d, d) array_like
        Of the objective on public rows; its scale does not matter.
    old, new : (d,) array_like
        Released weights before and after the deletion.
    """
    H, a, b = (np.asarray(v, dtype=np.float64) for v in (hessian, old, new))
    if a.ndim != 1 or a.shape != b.shape or H.shape != (len(a), len(a)):
        raise InvalidInput(
            f"expected weights (d,) and a Hessian (d, d), got {a.shape}, {b.shape} and {H.shape}"
        )
    return H @ (a - b)


@dataclass(frozen=True)
class Found:
    """One deletion.

    Attributes
    ----------
    cosine : float
        ``|cos(x̂, x)|`` of the deleted row. Not to be reported alone: rows that share a direction
        give a large one under any noise.
    p : float
        Rank of it among decoys, ``(1 + #{decoys ≥})/(N + 1)``.
    first : bool
        Whether no decoy comes as close.
    """

    cosine: float
    p: float
    first: bool


def rank(estimate: ArrayLike, deleted: ArrayLike, decoys: ArrayLike) -> Found:
    """Compare a reconstruction with the deleted row and with N decoys (N, d).

    Raises
    ------
    InvalidInput
        If shapes differ, there are no decoys, or the deleted row is one of them.
    """
    x, row, others = (np.asarray(v, dtype=np.float64) for v in (estimate, deleted, decoys))
    if x.ndim != 1 or row.shape != x.shape or others.ndim != 2 or others.shape[1:] != x.shape:
        raise InvalidInput(
            f"expected rows of {x.shape} and decoys (N, d), got {row.shape}, {others.shape}"
        )
    if not len(others) or (others == row).all(axis=1).any():
        raise InvalidInput("decoys must be rows other than the deleted one, at least one")
    own, rest = _cosine(x, row[None])[0], _cosine(x, others)
    beaten = int((rest >= own).sum())
    return Found(float(own), (1 + beaten) / (len(rest) + 1), beaten == 0)


def _cosine(x: Array, rows: Array) -> Array:
    size = np.linalg.norm(x) * np.linalg.norm(rows, axis=1)
    return np.asarray(np.abs(rows @ x) / np.maximum(size, 1e-300))


@dataclass(frozen=True)
class Exposure:
    """What is reported over many single deletions; 0.5 and 1/(N + 1) mean: cannot point at it."""

    mean_p: float
    median_p: float
    top1: float
    deletions: int


def exposure(found: Sequence[Found]) -> Exposure:
    """Summarise at least fifty deletions."""
    if len(found) < FEWEST:
        raise InvalidInput(f"exposure needs at least {FEWEST} single deletions, got {len(found)}")
    ranks = np.array([one.p for one in found])
    first = float(np.mean([one.first for one in found]))
    return Exposure(float(ranks.mean()), float(np.median(ranks)), first, len(found))
