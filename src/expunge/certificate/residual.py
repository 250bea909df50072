"""The gradient of the retained objective, recomputed for a recheck with a bound of its own error.

Independent of the engine: extended precision where the machine has it (numpy's ``longdouble``),
blocks in reverse order, own formulae of the losses. Objective, in sum units,

    F(W) = Σ_i s_i ℓ(Wᵀ[x_i; 1], y_i) + (Λ/2)‖W'‖² + ν‖W'‖₁,  W' = W without its intercept row,

W of shape (p, C) with the intercept, when there is one, as last row. The error bound is that of
convex.md §2.7 with the unit roundoff of the arithmetic used. Rows are read in one pass and nothing
of their number is kept, so that they need not fit into memory.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from expunge.errors import InvalidInput

Array = NDArray[np.float64]
Matrix = NDArray[np.floating] | sp.csr_array
Block = tuple[Any, Array, Array]
EXTENDED = np.longdouble
UNIT = max(float(np.finfo(EXTENDED).eps) / 2, 2.0**-64)
"""Unit roundoff u of `EXTENDED`: 2⁻⁶⁴ on x86, 2⁻⁵³ where long double is double."""
BLOCK_VALUES = 1 << 18


class Source(Protocol):
    """Rows that can be read again and again, block by block, wherever they are kept.

    ``length`` is the number of rows, ``width`` that of their features (an intercept not counted),
    ``outputs`` the number of columns C of the targets.
    """

    @property
    def length(self) -> int: ...
    @property
    def width(self) -> int: ...
    @property
    def outputs(self) -> int: ...

    def blocks(self) -> Iterator[Block]:
        """Yield features (b, d), dense or CSR, targets (b, C) and weights (b,), last rows first."""
        ...


@dataclass(frozen=True, repr=False)
class Rows:
    """Retained rows as trained on, in memory: features (n, d), target (n, C), weight (n,) ≥ 0.

    Targets are ±1 (logistic, logistic-ovr, squared-hinge), one-hot (softmax) or real.
    """

    features: Matrix
    target: Array
    weight: Array

    def __post_init__(self) -> None:
        """Check that the shapes agree and all weights are finite and not negative."""
        _require_block(self.features, self.target, self.weight)

    @property
    def length(self) -> int:
        """Number of rows."""
        return int(self.features.shape[0])

    @property
    def width(self) -> int:
        """Number of features."""
        return int(self.features.shape[1])

    @property
    def outputs(self) -> int:
        """Number of columns of the targets."""
        return int(self.target.shape[1])

    def blocks(self) -> Iterator[Block]:
        """Yield all rows at once; whoever reads them cuts them as needed."""
        yield self.features, self.target, self.weight


def _require_block(features: Any, target: Array, weight: Array) -> None:
    n = features.shape[0]
    if target.ndim != 2 or len(target) != n or weight.shape != (n,):
        raise InvalidInput(
            f"expected targets ({n}, C) and weights ({n},) for {n} rows, got "
            f"{target.shape} and {weight.shape}"
        )
    if not (np.isfinite(weight).all() and (weight >= 0).all()):
        raise InvalidInput("weights must be finite and at least 0")


def pieces(source: Source, intercept: bool) -> Iterator[Block]:
    """Yield the rows of a source from last to first in pieces that fit the cache.

    Features come as float64, dense or CSR as they were, with a constant 1 appended for an
    intercept.

    Raises
    ------
    InvalidInput
        If a block does not have the shape that the source states, or rows are missing.
    """
    seen = 0
    for features, target, weight in source.blocks():
        _require_block(features, target, weight)
        n, width = features.shape
        if (width, target.shape[1]) != (source.width, source.outputs):
            raise InvalidInput(
                f"expected blocks of {source.width} features and {source.outputs} targets, got "
                f"{width} and {target.shape[1]}"
            )
        seen += n
        stored = width if isinstance(features, np.ndarray) else features.nnz // max(1, n)
        step = max(1, BLOCK_VALUES // max(1, stored, source.outputs))
        for stop in range(n, 0, -step):
            part = slice(max(0, stop - step), stop)
            yield _extended(features[part], intercept), target[part], weight[part]
    if seen != source.length:
        raise InvalidInput(f"expected {source.length} rows, the source gave {seen}")


def _extended(block: Any, intercept: bool) -> Any:
    ones = np.ones((block.shape[0], 1))
    if isinstance(block, np.ndarray):
        exact = block.astype(np.float64)
        return np.hstack([exact, ones]) if intercept else exact
    stored = sp.csr_array(block.astype(np.float64))
    return sp.hstack([stored, sp.csr_array(ones)], format="csr") if intercept else stored


def gamma(k: float, unit: float = UNIT) -> float:
    """γ_k = ku/(1 − ku), the relative error of k roundings [Higham 2002]."""
    return k * unit / (1 - k * unit) if k * unit < 1 else math.inf


@dataclass(frozen=True, repr=False)
class Gradient:
    """∇F(W) (p, C) with bounds of its error, and what else the pass over the rows has shown.

    With ν > 0, ``value`` is the subgradient of least norm. ``residual`` is r in ‖W − Ŵ‖ ≤ r/Λ for
    an objective without intercept: ‖value‖, or r_Λ of the duality gap with ν > 0 [convex.md §2.6].
    ``error`` bounds the Euclidean error of value and residual, ``errors`` (p, C) that of every
    coordinate; ``margin_error`` bounds the error of any margin. ``widest`` is the largest norm of
    a row of positive weight, ``additions`` the longest chain of additions over the rows.
    """

    value: Array
    residual: float
    error: float
    errors: Array
    margin_error: float
    widest: float
    additions: int


@np.errstate(over="ignore", invalid="ignore")
def gradient(
    rows: Source, weights: Array, loss: str, l2: float, intercept: bool, l1: float = 0.0
) -> Gradient:
    """Return the gradient at ``weights`` with a rigorous bound of its rounding error.

    Parameters
    ----------
    rows : Source
        All retained rows.
    weights : (p, C) float64
    loss : str
        A key of `LOSSES`.
    l2, l1 : float
        Λ and ν, sum units; ν > 0 with squared loss only.
    intercept : bool
        Whether the last row of ``weights`` is an unpenalised intercept.

    Raises
    ------
    InvalidInput
        If the loss is unknown, Λ is not positive, ν does not fit, or the shapes disagree.
    """
    _require_fit(rows, weights, loss, l2, intercept, l1)
    wide, outputs = weights.astype(EXTENDED), weights.shape[1]
    total, slack = np.zeros_like(wide), np.zeros((len(weights), 2 * outputs))
    worst, widest, longest, count = 0.0, 0.0, 0, 0
    for block, target, weight in pieces(rows, intercept):
        size = abs(block)
        error = np.asarray(gamma(len(weights)) * (size @ np.abs(weights)) * 1.01)
        extended = block.astype(EXTENDED)
        first, slope = LOSSES[loss](extended @ wide, target, error)
        total += _transposed(extended) @ (first * weight[:, None])
        slopes = np.hstack([slope, np.abs(first).astype(np.float64)])
        slack += size.T @ (slopes * weight[:, None])
        norms = np.sqrt(np.asarray((size * size).sum(axis=1)).ravel())
        widest = max(widest, float(norms[weight > 0].max(initial=0.0)))
        worst = max(worst, float(error.max(initial=0.0)))
        longest, count = max(longest, len(weight)), count + 1
    penalised = np.ones((len(weights), 1))
    if intercept:
        penalised[-1] = 0.0
    ridge = l2 * penalised * wide
    value = _least_subgradient(total, wide, ridge, l1 * penalised).astype(np.float64)
    chain = gamma(longest + count + 3)
    sums = slack[:, :outputs] + chain * (slack[:, outputs:] + np.abs(ridge).astype(np.float64))
    errors = 1.01 * sums + 2.0**-52 * np.abs(value)
    residual = float(np.linalg.norm(value))
    if l1 > 0 and not intercept:
        residual = _gap_residual(total, wide, l2, l1)
    return Gradient(value, residual, 1.01 * _norm(errors), errors, worst, widest, longest + count)


def _transposed(block: Any) -> Any:
    """The transpose, for dense blocks in the order in which a product runs along memory."""
    return np.ascontiguousarray(block.T) if isinstance(block, np.ndarray) else block.T


def _least_subgradient(loss_part: Any, weights: Any, ridge: Any, l1: Array) -> Any:
    """The loss part c + ν·sign(w) + Λw, or c soft-thresholded where w = 0; 1-Lipschitz in c."""
    still = np.sign(loss_part) * np.maximum(np.abs(loss_part) - l1, 0)
    return np.where(weights != 0, loss_part + l1 * np.sign(weights) + ridge, still)


def _gap_residual(loss_part: Any, weights: Any, l2: float, l1: float) -> float:
    """r_Λ = √(2Λ·gap), a sum of terms ≥ 0, each without cancellation; 1-Lipschitz in c."""
    clipped = np.clip(loss_part, -l1, l1)
    smooth = l2 * weights + (loss_part - clipped)
    kink = np.abs(weights) * (l1 + np.sign(weights) * clipped)
    return float(np.sqrt((smooth**2 + 2 * l2 * kink).sum()))


def _norm(values: Any) -> float:
    return float(np.linalg.norm(np.asarray(values, dtype=np.float64)))


def _require_fit(
    rows: Source, weights: Array, loss: str, l2: float, intercept: bool, l1: float
) -> None:
    if loss not in LOSSES:
        raise InvalidInput(f"expected a loss among {', '.join(LOSSES)}; got {loss!r}")
    if not (math.isfinite(l2) and l2 > 0):
        raise InvalidInput(f"the penalty must be a finite number above 0; got {l2!r}")
    if not (math.isfinite(l1) and l1 >= 0):
        raise InvalidInput(f"the L1 penalty must be a finite number of at least 0; got {l1!r}")
    if l1 > 0 and loss != "squared":
        raise InvalidInput(f"an L1 penalty is checked with squared loss only; got {loss!r}")
    shape = (rows.width + intercept, rows.outputs)
    if weights.shape != shape:
        raise InvalidInput(f"expected parameters of shape {shape}, got {weights.shape}")


# --- losses --------------------------------------------------------------------------------------


def _logistic(margin: Any, target: Array, error: Array) -> tuple[Any, Array]:
    signed = target * margin
    tail = np.exp(-np.abs(signed))
    doubt = np.where(signed >= 0, tail / (1 + tail), 1 / (1 + tail))
    steepest = np.minimum(0.25, np.exp(error) * _bend(margin, target) * (1 + 1e-12))
    return -target * doubt, 8 * UNIT * doubt.astype(np.float64) + steepest * error


def _bend(margin: Any, target: Array) -> Array:
    tail = np.exp(-np.abs(margin))
    second: Array = (tail / (1 + tail) ** 2).astype(np.float64)
    return second


def _squared(margin: Any, target: Array, error: Array) -> tuple[Any, Array]:
    first = margin - target
    return first, _rounding(first) + error


def _squared_hinge(margin: Any, target: Array, error: Array) -> tuple[Any, Array]:
    """max(0, 1 − ym)², whose slope is 2-Lipschitz."""
    first = -2 * target * np.maximum(1 - target * margin, 0)
    return first, _rounding(first) + 2 * error


def _huber(margin: Any, target: Array, error: Array) -> tuple[Any, Array]:
    """½r² for |r| ≤ 1 and |r| − ½ beyond, r = m − y; the slope is 1-Lipschitz."""
    first = np.clip(margin - target, -1, 1)
    return first, _rounding(first) + error


def _softmax(margin: Any, target: Array, error: Array) -> tuple[Any, Array]:
    depth = (margin.max(axis=1, keepdims=True) - margin).astype(np.float64)
    p = _chances(margin)
    first, near = p - target, p.astype(np.float64)
    rounding = (target.shape[1] + 8) * UNIT * near * (1 + depth)
    mixed = error + (near * error).sum(axis=1, keepdims=True)
    growth = np.exp(2 * error.max(axis=1, keepdims=True))
    return first, _rounding(first) + rounding + near * mixed * growth


def _chances(margin: Any) -> Any:
    tail = np.exp(margin - margin.max(axis=1, keepdims=True))
    return tail / tail.sum(axis=1, keepdims=True)


def _poisson(margin: Any, target: Array, error: Array) -> tuple[Any, Array]:
    mean = np.exp(margin)
    return mean - target, _log_link(mean - target, mean, error)


def _gamma(margin: Any, target: Array, error: Array) -> tuple[Any, Array]:
    ratio = target * np.exp(-margin)
    return 1 - ratio, _log_link(1 - ratio, ratio, error)


def _log_link(first: Any, second: Any, error: Array) -> Array:
    near: Array = second.astype(np.float64)
    return _rounding(first) + 8 * UNIT * near + np.exp(error) * near * error


def _rounding(first: Any) -> Array:
    slack: Array = 8 * UNIT * np.abs(first).astype(np.float64)
    return slack


LOSSES: dict[str, Callable[[Any, Array, Array], tuple[Any, Array]]] = {
    "logistic": _logistic,
    "logistic-ovr": _logistic,
    "softmax": _softmax,
    "squared-hinge": _squared_hinge,
    "squared": _squared,
    "poisson": _poisson,
    "gamma": _gamma,
    "huber": _huber,
}
"""(margin, target, bound of the margin's error) → (ℓ' extended, bound of its error)."""

CURVATURES: dict[str, Callable[[Any, Array], Array]] = {
    "logistic": _bend,
    "logistic-ovr": _bend,
    "softmax": lambda margin, target: _chances(margin).astype(np.float64),
    "squared": lambda margin, target: np.ones(margin.shape),
    "poisson": lambda margin, target: np.exp(margin).astype(np.float64),
    "gamma": lambda margin, target: (target * np.exp(-margin)).astype(np.float64),
}
"""(margin, target) → ℓ'', for softmax the probabilities p of diag(p) − ppᵀ, float64.

Only losses that are quadratic or self-concordant in the generalised sense, |ℓ'''| ≤ ℓ'' [Bach
2010]: the curvature of the others jumps, so that at one point says nothing about the next.
"""
