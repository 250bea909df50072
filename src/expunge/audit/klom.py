"""KLoM: per row, the divergence of the margin's law under unlearning from that under retraining.

Estimates of a divergence from finite runs are biased upwards; the Gaussian and the quantile form
are corrected, the benchmark form is for reproduction and says what identical laws would give.

References
----------
Georgiev et al. Attribute-to-delete. 2025 (definition; the corrections are expunge's).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import rel_entr

from expunge.audit.intervals import Array
from expunge.errors import InvalidInput

BINS = 10
CLIP = 100.0
FLOOR = 1e-5


def _pair(unlearned: ArrayLike, retrained: ArrayLike, least: int) -> tuple[Array, Array]:
    """Return margins (N_u, n) and (N_r, n)."""
    u, r = np.asarray(unlearned, dtype=np.float64), np.asarray(retrained, dtype=np.float64)
    u, r = (v[:, None] if v.ndim == 1 else v for v in (u, r))
    if u.ndim != 2 or r.ndim != 2 or u.shape[1] != r.shape[1] or min(len(u), len(r)) < least:
        raise InvalidInput(
            f"expected margins (runs, rows) with at least {least} runs a side and the same rows, "
            f"got {u.shape} and {r.shape}"
        )
    return u, r


def bias(unlearned: int, retrained: int) -> float:
    """Return what `gaussian` subtracts, ``1/N_u + 1/N_r`` (second-order expansion)."""
    return 1.0 / unlearned + 1.0 / retrained


def gaussian(unlearned: ArrayLike, retrained: ArrayLike, *, correct: bool = True) -> Array:
    """Return ``KL(N(m_u, s_u²) ‖ N(m_r, s_r²))`` of each row (n,), in nats, bias-corrected.

    Parameters
    ----------
    unlearned, retrained : (N_u, n), (N_r, n) array_like
        Margins under independent runs. Heavy tails break it: see `quantile`.

    Examples
    --------
    >>> round(float(gaussian([1, 2, 2.5, 3, 4, 4.5], [0, 1, 1.5, 2, 3, 5], correct=False)[0]), 8)
    0.16722835
    """
    u, r = _pair(unlearned, retrained, 2)
    spread = [np.maximum(v.std(axis=0, ddof=1), 1e-12) for v in (u, r)]
    shift = u.mean(axis=0) - r.mean(axis=0)
    found = np.log(spread[1] / spread[0]) + (spread[0] ** 2 + shift**2) / (2 * spread[1] ** 2) - 0.5
    return np.asarray(found - bias(len(u), len(r)) * correct)


def quantile(unlearned: ArrayLike, retrained: ArrayLike, *, correct: bool = True) -> Array:
    """Return the divergence (n,) between shares in ten bins at pooled deciles, bias-corrected.

    Half a run is added to each cell; ``(9/2)(1/N_u + 1/N_r)`` is subtracted.
    """
    u, r = _pair(unlearned, retrained, 2)
    pooled = np.concatenate([u, r])
    edges = np.quantile(pooled, np.arange(1, BINS) / BINS, axis=0)
    shares = [_shares(v, edges) for v in (u, r)]
    found = (shares[0] * np.log(shares[0] / shares[1])).sum(axis=0)
    return np.asarray(found - (BINS - 1) / 2 * bias(len(u), len(r)) * correct)


def _shares(values: Array, edges: Array) -> Array:
    """Return the smoothed share (bins, n) of values between the edges (bins − 1, n)."""
    below = (values[None] <= edges[:, None]).sum(axis=1)
    padded = np.vstack([np.zeros_like(below[:1]), below, np.full_like(below[:1], len(values))])
    counts = np.diff(padded, axis=0) + 0.5
    return np.asarray(counts / counts.sum(axis=0))


def benchmark(unlearned: ArrayLike, retrained: ArrayLike, *, bins: int = 20) -> Array:
    """Return the divergence (n,) as the published benchmark computes it, for reproduction only.

    Equal bins on the pooled range, margins clipped to ±100, reference shares at least 1e-5
    where unlearned models fall; the largest sample falls out of the last bin, and shares are of
    what is left.

    Examples
    --------
    >>> round(float(benchmark([1, 2, 2.5, 3, 4, 4.5], [0, 1, 1.5, 2, 3, 5])[0]), 8)
    4.76945222
    """
    u, r = (np.clip(v, -CLIP, CLIP) for v in _pair(unlearned, retrained, 1))
    pooled = np.concatenate([u, r])
    low, high = pooled.min(axis=0), pooled.max(axis=0)
    edges = np.linspace(low, high, bins + 1)
    p, q = (_histogram(v, edges) for v in (u, r))
    q = np.where((q == 0) & (p > 0), FLOOR, q)
    q = q / q.sum(axis=0)
    return np.asarray(rel_entr(p, q).sum(axis=0))


def _histogram(values: Array, edges: Array) -> Array:
    """Return the share (bins, n) of values in ``[edge, next edge)``, of those in any."""
    counts = -np.diff((values[None] >= edges[:, None]).sum(axis=1), axis=0)
    return np.asarray(counts / np.maximum(counts.sum(axis=0), 1))


@dataclass(frozen=True)
class Summary:
    """Mean and 95th percentile over rows."""

    mean: float
    high: float


def summary(values: ArrayLike) -> Summary:
    """Return the two numbers that are reported of values by row."""
    found = np.asarray(values, dtype=np.float64)
    return Summary(float(found.mean()), float(np.quantile(found, 0.95)))
