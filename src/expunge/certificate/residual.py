"""The gradient of the retained objective, recomputed for a recheck with a bound of its own error.

Independent of the engine: extended precision where the machine has it (numpy's ``longdouble``),
blocks in reverse order, own formulae of the losses. Objective, in sum units,

    F(W) = Σ_i s_i ℓ(Wᵀ[x_i; 1], y_i) + (Λ/2)‖W without its intercept row‖²,

W of shape (p, C) with the intercept, when there is one, as last row. The error bound is that of
convex.md §2.7 with the unit roundoff of the arithmetic used.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from expunge.errors import InvalidInput

Array = NDArray[np.float64]
Matrix = NDArray[np.floating] | sp.csr_array

EXTENDED = np.longdouble
UNIT = max(float(np.finfo(EXTENDED).eps) / 2, 2.0**-64)
"""Unit roundoff u of `EXTENDED`: 2⁻⁶⁴ on x86, 2⁻⁵³ where long double is double."""
BLOCK_VALUES = 1 << 18


@dataclass(frozen=True, repr=False)
class Rows:
    """Retained rows as trained on: features (n, d), target (n, C), weight (n,) ≥ 0.

    Targets are ±1 (logistic, logistic-ovr), one-hot (softmax) or real (squared).
    """

    features: Matrix
    target: Array
    weight: Array

    def __post_init__(self) -> None:
        """Check that the shapes agree and all weights are finite and not negative."""
        n = self.features.shape[0]
        if self.target.ndim != 2 or len(self.target) != n or self.weight.shape != (n,):
            raise InvalidInput(
                f"expected targets ({n}, C) and weights ({n},) for {n} rows, got "
                f"{self.target.shape} and {self.weight.shape}"
            )
        if not (np.isfinite(self.weight).all() and (self.weight >= 0).all()):
            raise InvalidInput("weights must be finite and at least 0")

    def blocks(self, intercept: bool) -> Iterator[tuple[slice, Any]]:
        """Blocks of rows from last to first, with a constant 1 appended for an intercept."""
        n, d = self.features.shape
        for stop in range(n, 0, -self.step(d)):
            part = slice(max(0, stop - self.step(d)), stop)
            yield part, _extended(self.features[part], intercept)

    @staticmethod
    def step(width: int) -> int:
        """Rows per block."""
        return max(1, BLOCK_VALUES // max(1, width))

    @property
    def additions(self) -> int:
        """Length of the longest chain of additions over the rows: a block, then the blocks."""
        n, step = len(self.weight), self.step(self.features.shape[1])
        return min(n, step) + math.ceil(n / step)


def _extended(block: Any, intercept: bool) -> Any:
    ones = np.ones((block.shape[0], 1))
    exact = block.astype(np.float64)
    if isinstance(block, np.ndarray):
        return np.hstack([exact, ones]) if intercept else exact
    return sp.hstack([exact, sp.csr_array(ones)], format="csr") if intercept else exact


def gamma(k: float, unit: float = UNIT) -> float:
    """γ_k = ku/(1 − ku), the relative error of k roundings [Higham 2002]."""
    return k * unit / (1 - k * unit) if k * unit < 1 else math.inf


@dataclass(frozen=True, repr=False)
class Gradient:
    """∇F(W) (p, C), bounds of its error, and what the Hessian is made of.

    ``error`` bounds the Euclidean error, ``errors`` (p, C) that of every coordinate.
    ``curvature`` is (n, C): ℓ'' of every margin, or the probabilities for softmax. ``margin_error``
    bounds the error of any margin in absolute value. ``norms`` (n,) are the row norms.
    """

    value: Array
    error: float
    errors: Array
    curvature: Array
    margin_error: float
    norms: Array


def gradient(rows: Rows, weights: Array, loss: str, l2: float, intercept: bool) -> Gradient:
    """Return the gradient at ``weights`` with a rigorous bound of its rounding error.

    Parameters
    ----------
    rows : Rows
        All retained rows.
    weights : (p, C) float64
    loss : str
        A key of `LOSSES`.
    l2 : float
        Λ, sum units.
    intercept : bool
        Whether the last row of ``weights`` is an unpenalised intercept.

    Raises
    ------
    InvalidInput
        If the loss is unknown, Λ is not positive or the shapes disagree.
    """
    _require_fit(rows, weights, loss, l2, intercept)
    wide = weights.astype(EXTENDED)
    chain = gamma(rows.additions + 3)
    total, slack = np.zeros_like(wide), np.zeros_like(weights)
    curvature, norms = np.empty(rows.target.shape), np.empty(len(rows.weight))
    worst = 0.0
    for part, block in rows.blocks(intercept):
        size = abs(block)
        error = np.asarray(gamma(len(weights)) * (size @ np.abs(weights)) * 1.01)
        extended = block.astype(EXTENDED)
        first, slope, second = LOSSES[loss](extended @ wide, rows.target[part], error, chain)
        weight = rows.weight[part, None]
        total = total + extended.T @ (first * weight)
        slack += size.T @ (slope * weight)
        curvature[part] = second
        norms[part] = np.sqrt(np.asarray((size * size).sum(axis=1)).ravel())
        worst = max(worst, float(error.max(initial=0.0)))
    penalty = np.full((len(weights), 1), l2)
    if intercept:
        penalty[-1] = 0.0
    value = (total + penalty * wide).astype(np.float64)
    errors = 1.01 * (slack + chain * np.abs(penalty * weights)) + 2.0**-52 * np.abs(value)
    return Gradient(value, 1.01 * _norm(errors), errors, curvature, worst, norms * (1 + 1e-12))


def _norm(values: Any) -> float:
    return float(np.linalg.norm(np.asarray(values, dtype=np.float64)))


def _require_fit(rows: Rows, weights: Array, loss: str, l2: float, intercept: bool) -> None:
    if loss not in LOSSES:
        raise InvalidInput(f"expected a loss among {', '.join(LOSSES)}; got {loss!r}")
    if not (math.isfinite(l2) and l2 > 0):
        raise InvalidInput(f"the penalty must be a finite number above 0; got {l2!r}")
    shape = (rows.features.shape[1] + intercept, rows.target.shape[1])
    if weights.shape != shape:
        raise InvalidInput(f"expected parameters of shape {shape}, got {weights.shape}")


# --- losses: (margin, target, margin error, γ of the sums) → (ℓ', slack of it, ℓ'') ---------------


def _logistic(margin: Any, target: Array, error: Array, chain: float) -> tuple[Any, Array, Array]:
    signed = target * margin
    tail = np.exp(-np.abs(signed))
    doubt = np.where(signed >= 0, tail / (1 + tail), 1 / (1 + tail))
    second = (tail / (1 + tail) ** 2).astype(np.float64)
    with np.errstate(over="ignore"):
        steepest = np.minimum(0.25, np.exp(error) * second * (1 + 1e-12))
    slack = (chain + 8 * UNIT) * doubt.astype(np.float64) + steepest * error
    return -target * doubt, slack, second


def _squared(margin: Any, target: Array, error: Array, chain: float) -> tuple[Any, Array, Array]:
    first = margin - target
    slack = (chain + 8 * UNIT) * np.abs(first).astype(np.float64) + error
    return first, slack, np.ones(target.shape)


def _softmax(margin: Any, target: Array, error: Array, chain: float) -> tuple[Any, Array, Array]:
    below = margin.max(axis=1, keepdims=True) - margin
    tail = np.exp(-below)
    p = tail / tail.sum(axis=1, keepdims=True)
    first = p - target
    near, depth = p.astype(np.float64), below.astype(np.float64)
    rounding = (target.shape[1] + 8) * UNIT * near * (1 + depth)
    mixed = error + (near * error).sum(axis=1, keepdims=True)
    with np.errstate(over="ignore"):
        growth = np.exp(2 * error.max(axis=1, keepdims=True))
    slack = (chain + 8 * UNIT) * np.abs(first).astype(np.float64) + rounding
    return first, slack + near * mixed * growth, near


def _poisson(margin: Any, target: Array, error: Array, chain: float) -> tuple[Any, Array, Array]:
    mean = np.exp(margin)
    return mean - target, *_log_link(mean - target, mean, error, chain)


def _gamma(margin: Any, target: Array, error: Array, chain: float) -> tuple[Any, Array, Array]:
    ratio = target * np.exp(-margin)
    return 1 - ratio, *_log_link(1 - ratio, ratio, error, chain)


def _log_link(first: Any, second: Any, error: Array, chain: float) -> tuple[Array, Array]:
    near = second.astype(np.float64)
    slack = (chain + 8 * UNIT) * np.abs(first).astype(np.float64) + 8 * UNIT * near
    with np.errstate(over="ignore"):
        return slack + np.exp(error) * near * error, near


LOSSES = {
    "logistic": _logistic,
    "logistic-ovr": _logistic,
    "softmax": _softmax,
    "squared": _squared,
    "poisson": _poisson,
    "gamma": _gamma,
}
