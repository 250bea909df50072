"""Minimise a quadratic plus an L1 norm: coordinate descent finds the support, Newton ends on it."""

from __future__ import annotations

import numpy as np
from scipy.linalg import cho_factor, cho_solve

from expunge.linear.losses import Array

SWEEPS = 30
ROUNDING = 1e-14


def lasso(A: Array, g: Array, w: Array, nu: Array) -> Array:
    """Return the minimiser over x of ``gᵀ(x − w) + ½(x − w)ᵀA(x − w) + Σ_j ν_j|x_j|``.

    Parameters
    ----------
    A : (p, p) float64, positive definite
    g, w : (p,) float64
        Where to start: near the minimiser it takes a few O(p²) steps.
    nu : (p,) float64, ≥ 0

    Returns
    -------
    (p,) float64
        With exact zeros. Every step lowers the objective, so supports do not recur; what rounding
        leaves is for the caller to measure.

    Examples
    --------
    >>> lasso(np.eye(3), np.array([-3.0, 0.5, 1.0]), np.zeros(3), np.ones(3))
    array([2., 0., 0.])
    """
    x, r = w.copy(), g.copy()
    for _ in range(SWEEPS):
        before = x != 0.0
        _sweep(A, r, x, nu)
        if np.array_equal(before, x != 0.0):
            break
    for _ in range(SWEEPS + 4 * len(x)):
        there = _to_support_minimum(A, r, x, nu)
        r = g + A @ (x - w)
        if there:
            slack = ROUNDING * (np.abs(g) + np.abs(A) @ np.abs(x - w))
            if not (np.abs(r) > nu + slack)[x == 0.0].any():
                break
            _sweep(A, r, x, nu)
    return x


def _sweep(A: Array, r: Array, x: Array, nu: Array) -> None:
    """Minimise over one coordinate after the other; ``r`` is the quadratic's gradient at ``x``."""
    for j in range(len(x)):
        pull = A[j, j] * x[j] - r[j]
        new = np.sign(pull) * max(abs(pull) - nu[j], 0.0) / A[j, j]
        if new != x[j]:
            r += A[:, j] * (new - x[j])
            x[j] = new


def _to_support_minimum(A: Array, r: Array, x: Array, nu: Array) -> bool:
    """Move towards the minimum on the support, at most to where a sign changes; True if there."""
    S = np.flatnonzero((x != 0.0) | (nu == 0.0))
    if not len(S):
        return True
    move = -cho_solve(cho_factor(A[np.ix_(S, S)]), r[S] + nu[S] * np.sign(x[S]))
    crossing = (nu[S] > 0.0) & (move * x[S] < -(x[S] ** 2))
    length = 1.0
    if crossing.any():
        ratios = np.where(crossing, -x[S] / np.where(crossing, move, 1.0), np.inf)
        length = float(ratios.min())
    moved = x[S] + length * move
    if crossing.any():
        moved[ratios <= length] = 0.0
    x[S] = moved
    return length == 1.0
