"""Likelihood-ratio attack (LiRA) on margins, from shadow models with and without each row."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import ndtr

from expunge.audit.intervals import Array
from expunge.errors import InvalidInput

POOL_BELOW = 128
"""With fewer shadow models than this each side has one variance, common to all rows."""
_LEAST = 1e-12
Moments = tuple[Array | float, Array | float]
"""Mean and variance."""


def log_normal(x: ArrayLike, mean: Array | float, variance: Array | float) -> Array:
    """Return the log-density of N(mean, variance) at x."""
    spread = np.maximum(np.asarray(variance, dtype=np.float64), _LEAST)
    off = np.asarray(x, dtype=np.float64) - mean
    return np.asarray(-0.5 * (off * off / spread + np.log(2 * np.pi * spread)))


def ratio(phi: ArrayLike, inside: Moments, outside: Moments) -> Array:
    """Return ``ln N(φ; in) − ln N(φ; out)`` from means and variances; larger: a member.

    >>> round(float(ratio(2.0, (3.0, 1.0), (1.0, 0.25))), 6)
    0.806853
    """
    return log_normal(phi, *inside) - log_normal(phi, *outside)


def tail(phi: ArrayLike, outside: Moments) -> Array:
    """Return ``1 − P[N(out) > φ]`` from means and variances; larger: a member.

    >>> round(float(tail(2.0, (1.0, 0.25))), 6)
    0.97725
    """
    mean, variance = outside
    spread = np.sqrt(np.maximum(np.asarray(variance, dtype=np.float64), _LEAST))
    return np.asarray(ndtr((np.asarray(phi, dtype=np.float64) - mean) / spread), dtype=np.float64)


def moments(phi: ArrayLike, chosen: NDArray[np.bool_] | None = None) -> tuple[Array, Array]:
    """Return the mean and variance of each row (n,) over the shadow models where it is chosen.

    Parameters
    ----------
    phi : (N, n) array_like
        Margins of n rows under N shadow models.
    chosen : (N, n) array of bool, optional
        All, by default. Below `POOL_BELOW` models the variance is the mean over rows, weighted by
        degrees of freedom.

    Raises
    ------
    InvalidInput
        If a row is chosen fewer than twice.
    """
    values = np.asarray(phi, dtype=np.float64)
    if values.ndim != 2:
        raise InvalidInput(f"margins of shadow models must be (models, rows), got {values.shape}")
    mask = np.ones(values.shape, bool) if chosen is None else np.asarray(chosen, dtype=bool)
    if mask.shape != values.shape:
        raise InvalidInput(f"expected {values.shape} memberships, got {mask.shape}")
    count = mask.sum(axis=0)
    if len(values) < 2 or (count < 2).any():
        raise InvalidInput(
            "every row needs two shadow models on each side at least: train more shadow models"
        )
    mean = np.where(mask, values, 0.0).sum(axis=0) / count
    squares = np.where(mask, (values - mean) ** 2, 0.0).sum(axis=0)
    if len(values) < POOL_BELOW:
        return mean, np.full(len(mean), squares.sum() / (count - 1).sum())
    return mean, squares / (count - 1)


def online(phi: ArrayLike, shadows: ArrayLike, inside: NDArray[np.bool_]) -> Array:
    """Return the online scores (n,) of a model with margins ``phi``.

    Parameters
    ----------
    phi : (n,) array_like
    shadows : (N, n) array_like
    inside : (N, n) array of bool
        Which shadow models were trained with the row.

    References
    ----------
    Carlini et al. Membership inference attacks from first principles. S&P 2022.
    """
    members = np.asarray(inside, dtype=bool)
    return ratio(phi, moments(shadows, members), moments(shadows, ~members))


def offline(phi: ArrayLike, shadows: ArrayLike, inside: NDArray[np.bool_] | None = None) -> Array:
    """Return the offline scores (n,), from shadow models without the row only."""
    outside = None if inside is None else ~np.asarray(inside, dtype=bool)
    return tail(phi, moments(shadows, outside))


def memorisation(correct: ArrayLike, inside: NDArray[np.bool_]) -> Array:
    """Return ``mean 1[correct | in] − mean 1[correct | out]`` (n,); for deciles, not for rows.

    References
    ----------
    Feldman, Zhang. What neural networks memorize and why. NeurIPS 2020.
    """
    right, members = np.asarray(correct, dtype=np.float64), np.asarray(inside, dtype=bool)
    if right.shape != members.shape or not (members.any(axis=0) & (~members).any(axis=0)).all():
        raise InvalidInput("every row needs a shadow model with it and one without it")
    return np.asarray(
        (right * members).sum(axis=0) / members.sum(axis=0)
        - (right * ~members).sum(axis=0) / (~members).sum(axis=0)
    )
