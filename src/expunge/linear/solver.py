"""Fit to the rounding floor: damped Newton, then chord steps with the last factor.

The objective is ``F(W) = Σ_i s_i ℓ(x̃_iᵀW, y_i) + (Λ/2)‖W without its intercept row‖²`` in sum
units. The intercept (the last row of ``W``) is not penalised. For softmax a constant added to a
row of ``W`` changes no loss, so the minimiser has rows that sum to zero (the intercepts' by
convention). It then also minimises ``F + Σ_j (η_j/2K)(Σ_k W_jk)²`` for all η_j > 0, which has
curvature in those directions.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
from scipy.linalg.lapack import dpotrf, dpotrs

from expunge.errors import InvalidInput, ToleranceUnreachable
from expunge.linear.bounds import corrected_distance, reach
from expunge.linear.curvature import Curvature, certify
from expunge.linear.losses import LOSSES, Array, Loss
from expunge.linear.passes import Pass, evaluate, max_leverage
from expunge.linear.rounding import UNIT, gamma
from expunge.linear.rows import Rows
from expunge.linear.shards import chain_length

MAX_NEWTON = 200
MAX_CHORD = 12
CLOSE = 1e-8
COARSE = 0.1
MAX_CURVATURE_BYTES = 2 * 2**30
Progress = Callable[[str], None]


def silent(message: str) -> None:
    """Show nothing."""


@dataclass(frozen=True)
class Objective:
    """The public part of an objective; one such problem has one Hessian.

    Attributes
    ----------
    loss : Loss
    l2 : float
        Λ > 0, sum units, independent of the number of rows.
    intercept : bool
    """

    loss: Loss
    l2: float
    intercept: bool

    def penalty(self, width: int) -> Array:
        """Return Λ per coordinate of a row, (p, 1): 0 for the intercept."""
        out = np.full((width, 1), self.l2)
        if self.intercept:
            out[-1] = 0.0
        return out

    def pack(self, W: Array) -> Array:
        """Return ``W`` (p, C) as the columns that one Hessian acts on: (C·p, 1) or (p, C)."""
        return W.T.reshape(-1, 1) if self.loss.coupled else W

    def unpack(self, columns: Array, outputs: int) -> Array:
        """Undo :meth:`pack`."""
        if not self.loss.coupled:
            return columns
        return np.ascontiguousarray(columns.reshape(outputs, -1).T)

    def centre(self, W: Array) -> Array:
        """Return ``W`` with rows that sum to zero, where the minimiser has them (softmax)."""
        return W - W.mean(axis=1, keepdims=True) if self.loss.coupled else W

    def rounding(self, curvature: Curvature, point: Point) -> tuple[float, float]:
        """Bound the rounding error of a point's gradient, see :meth:`Curvature.dual_error`."""
        errors = None if point.errors is None else self.pack(point.errors)
        return curvature.dual_error(point.error, errors)

    @property
    def ridge(self) -> float:
        """Λ where it bounds every eigenvalue from below, else 0 (a free intercept has none)."""
        return 0.0 if self.intercept else self.l2


@dataclass(frozen=True, repr=False)
class Point:
    """A point with the gradient of ``F`` there.

    ``gradient`` (p, C) of the penalised sum objective; ``error`` bounds its rounding error in the
    Euclidean norm, ``errors`` (p, C), where known, every coordinate's; ``change`` bounds the change
    of any row's margins since the anchor.
    """

    W: Array
    gradient: Array
    error: float
    change: float
    errors: Array | None


@dataclass(frozen=True, repr=False)
class Fitted:
    """A minimiser located to within ``bound``, and the factored Hessian at ``anchor``."""

    point: Point
    anchor: Array
    curvature: Curvature
    bound: float


def objective_of(loss: str, l2: float, intercept: bool) -> Objective:
    """Return the objective of a policy's loss name (``logistic-ovr`` is a stack of ``logistic``).

    Raises
    ------
    InvalidInput
        If the loss is unknown or the penalty is not positive and finite.
    """
    name = "logistic" if loss == "logistic-ovr" else loss
    if name not in LOSSES:
        raise InvalidInput(f"unknown loss {loss!r}; expected one of {sorted(LOSSES)}")
    if not (l2 > 0 and math.isfinite(l2)):
        raise InvalidInput(
            f"the penalty must be positive and finite, got {l2}: without it the minimiser may not "
            "exist or move without limit when a row is deleted"
        )
    return Objective(LOSSES[name], float(l2), intercept)


def penalised(objective: Objective, W: Array, found: Pass) -> Point:
    """Add the penalty's gradient, and its rounding, to a pass over the rows."""
    shrink = objective.penalty(len(W)) * W
    gradient = found.gradient + shrink
    unit = (W.shape[1] + 4) * UNIT
    error = found.error + unit * float(np.linalg.norm(shrink) + np.linalg.norm(gradient))
    errors = found.errors
    if errors is not None:
        errors = errors + unit * (np.abs(shrink) + np.abs(gradient))
    return Point(W, gradient, error, found.change, errors)


def measure(
    objective: Objective, rows: Rows, W: Array, anchor: Array, change: float, *, fine: bool = False
) -> Point:
    """Evaluate the gradient of ``F`` at ``W`` in one pass.

    ``change`` bounds the change of margins since ``anchor``; the pass measures it if it is large.
    ``fine`` as for :func:`expunge.linear.rows.evaluate`.
    """
    exact = change > COARSE
    found = evaluate(rows, objective.loss, W, anchor=anchor if exact else None, fine=fine)
    point = penalised(objective, W, found)
    return point if exact else replace(point, change=change)


def minimise(objective: Objective, rows: Rows, start: Array, progress: Progress = silent) -> Fitted:
    """Locate the minimiser as closely as float64 allows, and say how closely that is.

    Raises
    ------
    ToleranceUnreachable
        If the iteration does not converge or the curvature cannot be certified.
    InvalidInput
        If the Hessian would not fit in memory.
    """
    size = start.size if objective.loss.coupled else len(start)
    if 8 * size * size > MAX_CURVATURE_BYTES:
        raise InvalidInput(
            f"{size} coefficients need a Hessian of {8e-9 * size * size:.1f} GB, more than "
            f"{MAX_CURVATURE_BYTES / 2**30:.0f} GB: use fewer features or classes, or "
            "multi_class='ovr', which keeps one Hessian per class"
        )
    near = min(0.02 * math.sqrt(start.size / rows.count), 0.01)
    for decrement in (near, CLOSE):
        W, found, H = _newton(objective, rows, start, decrement, progress)
        curvature = _certified(objective, rows, W, H)
        fitted = _polish(objective, rows, penalised(objective, W, found), curvature)
        if math.isfinite(fitted.bound):
            break
        start = fitted.point.W
    return fitted


def certified_distance(
    curvature: Curvature, point: Point, objective: Objective
) -> tuple[float, float]:
    """Bound ``‖W − ŵ‖₂`` at a measured point; also return ``‖∇F(W)‖`` in the norm of A⁻¹."""
    A, packed = curvature, objective.pack(point.gradient)
    step, norm = A.solve(packed)
    dual, moved = objective.rounding(A, point)
    found = reach((norm + dual) * (1.0 + 2.0 * A.error), point.change, A.top)
    correction = A.up * float(np.linalg.norm(step)) + moved
    bound = corrected_distance(
        found, A.floor, change=point.change, correction=correction, slack=A.error
    )
    return bound + (point.W.shape[1] + 2) * UNIT * float(np.linalg.norm(point.W)), norm


def _newton(
    objective: Objective, rows: Rows, W: Array, near: float, progress: Progress
) -> tuple[Array, Pass, Array]:
    """Iterate damped Newton steps until the decrement is at most ``near``; return the last Hessian.

    Near enough is a decrement well below that of a typical deletion, about √(q/n): chord steps do
    the rest, and the Hessian there serves for deletions as well as that at the minimiser. A
    quadratic objective needs no step here: its Hessian is the same everywhere.
    """
    found = evaluate(rows, objective.loss, W, value=True, hessian=True)
    previous = math.inf
    for iteration in range(MAX_NEWTON):
        H = _hessian(objective, found, W)
        gradient = penalised(objective, W, found).gradient
        step, decrement = _solve(objective, H, gradient)
        progress(f"Newton step {iteration + 1}: decrement {decrement:.1e}")
        stalled = decrement > 0.5 * previous and decrement**2 <= 1e-9 * (1.0 + abs(found.value))
        if decrement <= near or stalled or objective.loss.spread == 0.0:
            return W, found, H
        previous = decrement
        W, found = _line_search(objective, rows, W, found, (step, decrement))
    raise ToleranceUnreachable(
        f"Newton's method did not converge in {MAX_NEWTON} steps (decrement {previous:.1e}): scale "
        "the features or penalise more"
    )


def _solve(objective: Objective, H: Array, gradient: Array) -> tuple[Array, float]:
    packed = objective.pack(gradient)
    chol, info = dpotrf(H, lower=1)
    if info:
        chol, info = dpotrf(H + 1e-10 * np.diag(np.diagonal(H)) + 1e-300 * np.eye(len(H)), lower=1)
    if info:
        raise ToleranceUnreachable(
            "the Hessian is singular in float64: scale the features, drop collinear columns or "
            "penalise more"
        )
    step = -dpotrs(chol, packed, lower=1)[0]
    decrement = math.sqrt(max(-float(np.sum(step * packed)), 0.0))
    return objective.unpack(step, gradient.shape[1]), decrement


def _line_search(
    objective: Objective, rows: Rows, W: Array, found: Pass, move: tuple[Array, float]
) -> tuple[Array, Pass]:
    step, decrement = move
    value = _value(objective, W, found)
    allowance = 1e-12 * (1.0 + abs(value))
    length = 1.0
    while True:
        trial = objective.centre(W + length * step)
        new = evaluate(rows, objective.loss, trial, value=True, hessian=length == 1.0)
        if _value(objective, trial, new) <= value - 1e-4 * length * decrement**2 + allowance:
            break
        length /= 2.0
        if length < 1e-12:
            raise ToleranceUnreachable(
                "no descent along the Newton direction: the features differ too much in scale"
            )
    if new.hessian is None:
        new = evaluate(rows, objective.loss, trial, value=True, hessian=True)
    return trial, new


def _value(objective: Objective, W: Array, found: Pass) -> float:
    return found.value + 0.5 * float(np.sum(objective.penalty(len(W)) * W * W))


def _hessian(objective: Objective, found: Pass, W: Array) -> Array:
    """Return the penalised Hessian, with the flat softmax directions filled in."""
    if found.hessian is None:
        raise ValueError("the pass was made without its Hessian")
    H = found.hessian.copy()
    outputs = W.shape[1] if objective.loss.coupled else 1
    penalty = np.tile(objective.penalty(len(W))[:, 0], outputs)
    H[np.diag_indices_from(H)] += penalty
    if objective.loss.coupled:
        blocks = H.reshape(outputs, len(W), outputs, len(W))
        eta = np.maximum(np.einsum("kjkj->j", blocks), objective.l2)
        j = np.arange(len(W))
        blocks[:, j, :, j] += (eta / outputs)[:, None, None]
    return H


def _certified(objective: Objective, rows: Rows, W: Array, H: Array) -> Curvature:
    loss = objective.loss
    top = rows.radius
    margin_error = gamma(rows.width + 1) * top * float(np.linalg.norm(W))
    slack = math.expm1(min(2.0 * margin_error, 1.0)) + 10 * UNIT if loss.spread else 0.0
    rounding = gamma(chain_length(rows.length) + 8)
    curvature = certify(H, slack=slack, row_error=slack, rounding=rounding, ridge=objective.ridge)
    if not loss.spread:
        return curvature
    leverage = math.inf if loss.coupled else max_leverage(rows, curvature.chol)
    return curvature.with_reach(leverage, loss.spread * top)


def _polish(objective: Objective, rows: Rows, point: Point, curvature: Curvature) -> Fitted:
    """Take chord steps while they halve the gradient; then measure its error by coordinates."""
    anchor, best = point.W, point
    step, norm = curvature.solve(objective.pack(best.gradient))
    for _ in range(MAX_CHORD):
        W = objective.centre(best.W - objective.unpack(step, anchor.shape[1]))
        change = best.change + curvature.margin_change(step)
        trial = measure(objective, rows, W, anchor, change)
        step, after = curvature.solve(objective.pack(trial.gradient))
        if not after < norm:
            break
        best, norm, done = trial, after, after > 0.5 * norm
        if done:
            break
    best = measure(objective, rows, best.W, anchor, best.change, fine=True)
    bound, _ = certified_distance(curvature, best, objective)
    return Fitted(best, anchor, curvature, bound)
