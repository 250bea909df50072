"""Fit to the rounding floor: damped Newton, then chord steps with the last factor."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from scipy.linalg.lapack import dpotrs

from expunge.errors import ToleranceUnreachable
from expunge.linear.bounds import corrected_distance, distance, reach
from expunge.linear.curvature import Curvature, certify, cholesky
from expunge.linear.lasso import lasso
from expunge.linear.losses import Array
from expunge.linear.objective import (
    Objective,
    Point,
    Progress,
    measure,
    penalised,
    silent,
    value_of,
)
from expunge.linear.passes import Pass, evaluate, max_leverage
from expunge.linear.rounding import UNIT, gamma
from expunge.linear.rows import Source
from expunge.linear.shards import chain_length

MAX_NEWTON = 200
MAX_CHORD = 12
CLOSE = 1e-8


@dataclass(frozen=True, repr=False)
class Fitted:
    """A minimiser located to within ``bound``, and the factored Hessian at ``anchor``."""

    point: Point
    anchor: Array
    curvature: Curvature
    bound: float


def minimise(
    objective: Objective, rows: Source, start: Array, progress: Progress = silent
) -> Fitted:
    """Locate the minimiser as closely as float64 allows, and say how closely that is.

    Raises
    ------
    ToleranceUnreachable
        If the iteration does not converge or the curvature cannot be certified.
    """
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
    A, left = curvature, objective.subgradient(point.W, point.gradient)
    step, norm = A.solve(objective.pack(left))
    dual, moved = rounding_of(objective, A, point)
    found = reach((norm + dual) * (1.0 + 2.0 * A.error), point.change, A.top)
    if objective.l1:
        bound = distance(found, A.floor)
    else:
        correction = A.up * float(np.linalg.norm(step)) + moved
        bound = corrected_distance(
            found, A.floor, change=point.change, correction=correction, slack=A.error
        )
    return bound + (point.W.shape[1] + 2) * UNIT * float(np.linalg.norm(point.W)), norm


def newton_step(
    objective: Objective, curvature: Curvature, W: Array, gradient: Array
) -> tuple[Array, float]:
    """Return the packed step from ``W`` to the minimiser of the model with curvature ``A``.

    Also return the norm, in that of A⁻¹, of the shortest subgradient at ``W``.
    """
    if not objective.l1:
        found, norm = curvature.solve(objective.pack(gradient))
        return -found, norm
    norm = curvature.solve(objective.subgradient(W, gradient))[1]
    A, nu = curvature.matrix(), objective.shrinkage(len(W))[:, 0]
    columns = [lasso(A, g, w, nu) - w for g, w in zip(gradient.T, W.T, strict=True)]
    return np.column_stack(columns), norm


def step_defect(
    objective: Objective, curvature: Curvature, W: Array, gradient: Array, step: Array
) -> float:
    """Bound, in the norm of A⁻¹, the model's shortest subgradient after a packed step."""
    if not objective.l1:
        return curvature.defect(objective.pack(gradient), step)
    ahead = objective.subgradient(W + step, gradient + curvature.product(step))
    return curvature.solve(ahead)[1] + curvature.error * curvature.norm(step)


def rounding_of(objective: Objective, curvature: Curvature, point: Point) -> tuple[float, float]:
    """Bound the rounding error of a point's gradient, see :meth:`Curvature.dual_error`."""
    errors = None if point.errors is None else objective.pack(point.errors)
    return curvature.dual_error(point.error, errors)


def _newton(
    objective: Objective, rows: Source, W: Array, near: float, progress: Progress
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
    step = -dpotrs(cholesky(H), packed, lower=1)[0]
    decrement = math.sqrt(max(-float(np.sum(step * packed)), 0.0))
    return objective.unpack(step, gradient.shape[1]), decrement


def _line_search(
    objective: Objective, rows: Source, W: Array, found: Pass, move: tuple[Array, float]
) -> tuple[Array, Pass]:
    step, decrement = move
    value = value_of(objective, W, found)
    allowance = 1e-12 * (1.0 + abs(value))
    length = 1.0
    while True:
        trial = objective.centre(W + length * step)
        new = evaluate(rows, objective.loss, trial, value=True, hessian=length == 1.0)
        if value_of(objective, trial, new) <= value - 1e-4 * length * decrement**2 + allowance:
            break
        length /= 2.0
        if length < 1e-12:
            raise ToleranceUnreachable(
                "no descent along the Newton direction: the features differ too much in scale"
            )
    if new.hessian is None:
        new = evaluate(rows, objective.loss, trial, value=True, hessian=True)
    return trial, new


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


def _certified(objective: Objective, rows: Source, W: Array, H: Array) -> Curvature:
    loss = objective.loss
    top = rows.radius
    margin_error = gamma(rows.terms + 1) * top * float(np.linalg.norm(W))
    slack = math.expm1(min(2.0 * margin_error, 1.0)) + 10 * UNIT if loss.spread else 0.0
    rounding = gamma(chain_length(rows.length) + 8)
    curvature = certify(H, slack=slack, row_error=slack, rounding=rounding, ridge=objective.ridge)
    if not loss.spread:
        return curvature
    leverage = math.inf if loss.coupled else max_leverage(rows, curvature.chol)
    return curvature.with_reach(leverage, loss.spread * top)


def _polish(objective: Objective, rows: Source, point: Point, curvature: Curvature) -> Fitted:
    """Take chord steps while they halve the gradient; then measure its error by coordinates."""
    anchor, best = point.W, point
    step, norm = newton_step(objective, curvature, best.W, best.gradient)
    for _ in range(MAX_CHORD):
        W = objective.centre(best.W + objective.unpack(step, anchor.shape[1]))
        change = best.change + curvature.margin_change(step)
        trial = measure(objective, rows, W, anchor, change)
        step, after = newton_step(objective, curvature, trial.W, trial.gradient)
        if not after < norm:
            break
        best, norm, done = trial, after, after > 0.5 * norm
        if done:
            break
    best = measure(objective, rows, best.W, anchor, best.change, fine=True)
    bound, _ = certified_distance(curvature, best, objective)
    return Fitted(best, anchor, curvature, bound)
