"""Newton's method without a Hessian: preconditioned conjugate gradients, products with rows only.

For models whose Hessian is too large to form, and for losses whose second derivative jumps. The
certificate is a *measured* one: the gradient over all rows, and the least curvature that is certain
without a Hessian. Memory: a few arrays of the size of the parameters, and the preconditioner, that
is p² numbers, or for more than ``MAX_DIRECT`` features one per parameter and ``HEAVY²``.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from scipy.linalg.lapack import dpotrs

from expunge.errors import ToleranceUnreachable
from expunge.linear.bounds import distance, floor_without_hessian, reach
from expunge.linear.curvature import cholesky
from expunge.linear.losses import LARGEST, Array
from expunge.linear.objective import (
    MAX_DIRECT,
    Objective,
    Point,
    Progress,
    penalised,
    silent,
    value_of,
)
from expunge.linear.passes import (
    Pass,
    curvature_sums,
    evaluate,
    gram,
    hessian_diagonal,
    hessian_product,
    mean_gram,
)
from expunge.linear.rounding import UNIT, gamma
from expunge.linear.rows import Source

HEAVY = 1024
MAX_NEWTON = 200
MAX_PRODUCTS = 500
STALLED = 5
ROUNDING = 1e-12
FORCING = (1e-3, 0.1)
SHORTEST = 1e-6


@dataclass(frozen=True, repr=False)
class Preconditioner:
    """An easily inverted stand-in for the Hessian; it may be old, which costs speed only.

    ``matrix`` is the lower Cholesky factor (t, t) of the *mean* Hessian of the outputs, the penalty
    included: for softmax ``(I − 11ᵀ/K) ⊗ Σ_i s_i (1 − ‖p_i‖²)/(K − 1) x_ix_iᵀ``, for a single
    output the Hessian itself. If that is too large, it is of the ``heavy`` (t,) coordinates only
    (the most frequent terms of a text); for the others ``diagonal`` (p, C) is the Hessian's.
    """

    matrix: Array
    heavy: NDArray[np.int64] | None = None
    diagonal: Array | None = None

    def solve(self, objective: Objective, V: Array) -> Array:
        """Return an approximation of ``∇²F⁻¹ V`` (p, C)."""
        if self.heavy is None or self.diagonal is None:
            return self._solve(objective, V, objective.penalty(len(V)))
        found: Array = V / self.diagonal
        penalty = objective.penalty(len(V))[self.heavy]
        found[self.heavy] = self._solve(objective, V[self.heavy], penalty)
        return found

    def _solve(self, objective: Objective, V: Array, penalty: Array) -> Array:
        mean = V.mean(axis=1, keepdims=True) if objective.loss.coupled else 0.0
        found: Array = np.ascontiguousarray(dpotrs(self.matrix, V - mean, lower=1)[0])
        if objective.loss.coupled:
            found += np.divide(mean, penalty, out=np.zeros_like(penalty), where=penalty > 0.0)
        return found


@dataclass(frozen=True, repr=False)
class Descended:
    """Where a descent ended: the distance bound there, and the passes over the rows it took."""

    point: Point
    bound: float
    preconditioner: Preconditioner
    passes: int
    refreshes: int


def precondition(objective: Objective, rows: Source, W: Array) -> Preconditioner:
    """Build the preconditioner at ``W`` in one pass over the rows, or two."""
    penalty, heavy, diagonal = objective.penalty(len(W)), None, None
    if len(W) > MAX_DIRECT:
        diagonal = hessian_diagonal(rows, objective.loss, W) + penalty
        diagonal = np.maximum(diagonal, 1e-12 * diagonal.max())
        heavy = np.sort(np.argsort(-diagonal.sum(axis=1), kind="stable")[:HEAVY])
    H = mean_gram(rows, objective.loss, W, heavy)
    if objective.loss.coupled:
        H /= W.shape[1] - 1
    H[np.diag_indices_from(H)] += penalty[slice(None) if heavy is None else heavy, 0]
    return replace(_factored(H), heavy=heavy, diagonal=diagonal)


def measured_distance(objective: Objective, rows: Source, point: Point, enough: float) -> float:
    """Bound ``‖W − ŵ‖₂`` from the gradient at ``W`` alone: ``r/Λ``, or with a free intercept more.

    The intercept's curvature takes another pass, made only if the bound can come to ``enough``.
    """
    short = float(np.linalg.norm(point.gradient)) * (1.0 + 1e-12) + point.error
    if not objective.intercept:
        return float(short / objective.l2)
    off = (point.W.shape[1] + 2) * UNIT * float(np.linalg.norm(point.W))
    if not short / objective.l2 <= enough:
        return math.inf
    kappa = _floor(objective, rows, point.W)
    if kappa == 0.0:
        return math.inf
    steep = (objective.loss.spread * rows.radius) ** 2 / kappa
    found = reach(short / math.sqrt(kappa), 0.0, steep * (1.0 + 1e-9))
    return float(distance(found, kappa) + off)


def descend(
    objective: Objective,
    rows: Source,
    W: Array,
    target: float,
    *,
    found: Pass | None = None,
    preconditioner: Preconditioner | None = None,
    progress: Progress = silent,
) -> Descended:
    """Descend from ``W`` until the distance bound is at most ``target``, or float64 ends.

    ``found`` is the pass at ``W`` with the objective's value, if it was made before.

    Raises
    ------
    ToleranceUnreachable
        If there is no descent, or no end of it.
    """
    P = preconditioner or precondition(objective, rows, W)
    refreshes = int(preconditioner is None)
    passes, stalled, best, forcing = 1 + refreshes, 0, math.inf, FORCING[refreshes]
    least = objective.ridge or _floor(objective, rows, W)
    found = found or evaluate(rows, objective.loss, W, value=True)
    for iteration in range(MAX_NEWTON):
        point, bound = _located(objective, rows, penalised(objective, W, found), target)
        size = float(np.linalg.norm(point.gradient))
        if bound <= target or stalled >= STALLED or size == 0.0:
            return Descended(point, bound, P, passes, refreshes)
        progress(f"Newton step {iteration + 1}: gradient {size:.1e}, {passes} passes")
        aim = min(max(0.3 * target * least, forcing * size), 0.1 * size)
        step, products = _solve(objective, rows, point, P, aim)
        before = value_of(objective, W, found)
        W, found, tried = _line_search(objective, rows, point, before, step)
        passes += products + tried
        after = float(np.linalg.norm(penalised(objective, W, found).gradient))
        lower = before - value_of(objective, W, found) > ROUNDING * (1.0 + abs(before))
        stalled = 0 if lower or after < 0.5 * best else stalled + 1
        best = min(best, after)
        forcing = min(max(after / size, 1e-4), 0.1)
        if products > 5 + len(W) // (8 * W.shape[1] + 12):
            P, passes, refreshes = precondition(objective, rows, W), passes + 1, refreshes + 1
    raise ToleranceUnreachable(
        f"Newton's method did not converge in {MAX_NEWTON} steps: scale the features or penalise "
        "more"
    )


def majorise(objective: Objective, rows: Source) -> Preconditioner | None:
    """Return an upper bound of every Hessian, factored [Böhning, 1992]; None if there is none.

    ``W − P⁻¹∇F`` lowers ``F`` from any ``W``, and ``P`` stays a bound when rows are deleted.
    """
    if rows.width > MAX_DIRECT or math.isinf(objective.loss.steepest):
        return None
    H = objective.loss.steepest * gram(rows)
    H[np.diag_indices_from(H)] += objective.penalty(rows.width)[:, 0]
    return _factored(H)


def _factored(H: Array) -> Preconditioner:
    return Preconditioner(np.asfortranarray(cholesky(H)))


def _located(
    objective: Objective, rows: Source, point: Point, target: float
) -> tuple[Point, float]:
    """Return the bound at a point; measure its rounding error more finely if that decides."""
    bound = measured_distance(objective, rows, point, target)
    if bound <= target:
        return point, bound
    if measured_distance(objective, rows, replace(point, error=0.0), target) <= target:
        fine = penalised(objective, point.W, evaluate(rows, objective.loss, point.W, fine=True))
        if fine.errors is not None:
            fine = replace(fine, error=min(fine.error, float(np.linalg.norm(fine.errors))))
        return fine, measured_distance(objective, rows, fine, target)
    return point, bound


def _floor(objective: Objective, rows: Source, W: Array) -> float:
    """Return a lower bound of the least eigenvalue of the Hessian at ``W``, intercepts free."""
    loss = objective.loss
    size, matrix = curvature_sums(rows, loss, W)
    drift = 4.0 * gamma(rows.terms + 1) * rows.radius * float(np.linalg.norm(W)) * loss.spread
    outward = math.exp(min(drift, LARGEST)) * (1.0 + 1e-6)
    if loss.coupled:
        filled = matrix + np.trace(matrix) / len(matrix)
        least = float(np.linalg.eigvalsh(filled)[0]) - 1e-13 * float(np.trace(matrix))
    else:
        least = float(np.diagonal(matrix).min())
    return floor_without_hessian(objective.l2, size * outward, least / outward)


def _solve(
    objective: Objective, rows: Source, point: Point, P: Preconditioner, aim: float
) -> tuple[Array, int]:
    """Return an approximate Newton step, and the products with the Hessian that it took.

    Conjugate gradients until the residual is at most ``aim``; any early end gives a descent step.
    """
    penalty = objective.penalty(len(point.W))
    step, left = np.zeros_like(point.W), -point.gradient
    along = pull = P.solve(objective, left)
    size = float(np.sum(left * pull))
    for products in range(1, MAX_PRODUCTS + 1):
        bent = hessian_product(rows, objective.loss, point.W, along) + penalty * along
        curvature = float(np.sum(along * bent))
        if not curvature > 0.0:
            return (step if step.any() else along), products
        length = size / curvature
        step += length * along
        left -= length * bent
        if float(np.linalg.norm(left)) <= aim:
            break
        pull = P.solve(objective, left)
        size, before = float(np.sum(left * pull)), size
        if not size > 0.0:
            break
        along = pull + (size / before) * along
    return step, products


def _line_search(
    objective: Objective, rows: Source, point: Point, value: float, step: Array
) -> tuple[Array, Pass, int]:
    """Return the accepted point, the pass there, and how many passes that took."""
    slope = float(np.sum(step * point.gradient))
    allowance, length, tried = ROUNDING * (1.0 + abs(value)), 1.0, 0
    while length > SHORTEST:
        W = objective.centre(point.W + length * step)
        found = evaluate(rows, objective.loss, W, value=True)
        tried += 1
        if value_of(objective, W, found) <= value + 1e-4 * length * slope + allowance:
            return W, found, tried
        length /= 2.0
    upper = majorise(objective, rows)
    if upper is None:
        raise ToleranceUnreachable(
            "no descent along the Newton direction: the features differ too much in scale"
        )
    W = objective.centre(point.W - upper.solve(objective, point.gradient))
    return W, evaluate(rows, objective.loss, W, value=True), tried + 2
