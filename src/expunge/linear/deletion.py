"""One problem with one Hessian, and deletions from it: up the ladder until a bound suffices."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from expunge.errors import RetainedMismatch, ToleranceUnreachable
from expunge.linear.bounds import distance, reach, step_residual
from expunge.linear.curvature import MAX_REMOVED, Curvature
from expunge.linear.descent import Preconditioner, descend
from expunge.linear.losses import Array
from expunge.linear.objective import Objective, Point, Progress, measure, penalised
from expunge.linear.passes import curvature_rows, evaluate
from expunge.linear.rounding import UNIT
from expunge.linear.rows import Rows, Source
from expunge.linear.solver import (
    certified_distance,
    minimise,
    newton_step,
    rounding_of,
    step_defect,
)

FAR = 0.5
SLOW = 0.1
MAX_PASSES = 20
LOST = 30.0
_MISMATCH = (
    "the gradient over the rows given as retained is not one that the rows the model retains can "
    "give: some row is missing, altered or should have been deleted"
)


@dataclass(frozen=True, repr=False)
class Part:
    """One problem with one Hessian: all of the model, or one class of a one-vs-rest model.

    Attributes
    ----------
    weights : (p, C) float64
        The current solution, before noise. Secret.
    base : Point
        The last measured point, with the gradient over the rows that are retained *now* there.
    anchor : (p, C) float64
        Where the curvature was evaluated.
    curvature : Curvature, Preconditioner or None
        The factored Hessian, or what is kept where it is not formed; None if the next deletion has
        to form a new one.
    bound : float
        Proved upper bound of ``‖weights − ŵ‖₂``.
    """

    weights: Array
    base: Point
    anchor: Array
    curvature: Curvature | Preconditioner | None
    bound: float

    @property
    def floor(self) -> float:
        """Lower bound of the curvature at the anchor; 0 where none is kept."""
        return self.curvature.floor if isinstance(self.curvature, Curvature) else 0.0


def fit_part(
    objective: Objective, rows: Source, outputs: int, tolerance: float, progress: Progress
) -> tuple[Part, int, int]:
    """Fit from zero; return the part, and the passes and refreshes to be told."""
    start = np.zeros((rows.width, outputs))
    if objective.factored(rows.width, outputs):
        found = minimise(objective, rows, start, progress)
        part = Part(found.point.W, found.point, found.anchor, found.curvature, found.bound)
        return part, 0, 1
    end = descend(objective, rows, start, tolerance, progress=progress)
    W = end.point.W
    return Part(W, end.point, W, end.preconditioner, end.bound), end.passes, end.refreshes


def deletion_of(objective: Objective, part: Part, forget: Rows) -> Factored | MatrixFree:
    """Begin to delete rows from a part."""
    base = _subtract(objective, part.base, forget)
    if isinstance(part.curvature, Preconditioner):
        return MatrixFree(objective, base, part.anchor, part.curvature)
    left = None
    if part.curvature is not None:
        left = _downdate(objective, part.anchor, part.curvature, forget)
    return Factored(objective, base, part.anchor, left)


class Factored:
    """A deletion from a part whose Hessian is factored."""

    def __init__(
        self, objective: Objective, base: Point, anchor: Array, curvature: Curvature | None
    ) -> None:
        self.objective, self.base, self.anchor = objective, base, anchor
        self.passes = self.refreshes = 0
        self.curvature = curvature
        self.step()

    def step(self) -> None:
        """Step from the base with the factor at hand, and bound what is left."""
        self.weights, self.bound, self.residual = self.base.W, math.inf, math.inf
        self.moved = self.change = math.inf
        if self.curvature is None:
            return
        A, pack = self.curvature, self.objective.pack
        gradient, outputs, base = self.base.gradient, self.anchor.shape[1], self.base.W
        delta, moved = newton_step(self.objective, A, base, gradient)
        if self.objective.l1:
            moved = A.norm(delta)
        self.weights = self.objective.centre(base + self.objective.unpack(delta, outputs))
        a, s = self.base.change, A.margin_change(delta)
        penalty = pack(np.tile(self.objective.penalty(len(self.anchor)), (1, outputs)))
        ridge = float(np.sum(penalty * delta * delta))
        loss_moved = math.sqrt(max(moved**2 - ridge, 0.0))
        error = A.error
        self.moved, self.change = moved, a + s
        self.residual = step_residual(a, s, moved=moved, loss_moved=loss_moved, slack=error)
        self.residual += step_defect(self.objective, A, base, gradient, delta)
        self.residual += rounding_of(self.objective, A, self.base)[0]
        self.bound = distance(reach(self.residual * (1 + 2 * error), a + s, A.top), A.floor)
        self.bound += (outputs + 2) * UNIT * float(np.linalg.norm(self.weights))

    def climb(self, retained: Source, target: float, progress: Progress) -> None:
        """Measure and refresh until the bound is at most ``target``."""
        while self.bound > target and not self.refreshes:
            if (
                self.curvature is None
                or self.change > LOST
                or self.passes >= MAX_PASSES
                or not self._measure(retained, target, self.curvature)
            ):
                self._refresh(retained, progress)

    def _measure(self, retained: Source, target: float, A: Curvature) -> bool:
        """Take one pass at the current weights; False if a new Hessian is due."""
        where = (self.objective, retained, self.weights, self.anchor, self.change)
        point = measure(*where)
        bound, after = certified_distance(A, point, self.objective)
        self.passes += 1
        if bound > target and certified_distance(A, _exact(point), self.objective)[0] <= target:
            point = measure(*where, fine=True)
            bound, after = certified_distance(A, point, self.objective)
            self.passes += 1
        if after > 1.1 * self.residual + rounding_of(self.objective, A, point)[0]:
            raise RetainedMismatch(_MISMATCH)
        self.base, self.bound = point, bound
        if self.bound <= target:
            self.weights = point.W
            return True
        if not (point.change <= FAR and after < SLOW * self.moved):
            return False
        self.step()
        return True

    def _refresh(self, retained: Source, progress: Progress) -> None:
        progress("new Hessian over the retained rows")
        start = self.base.W if self.change > LOST else self.weights
        try:
            found = minimise(self.objective, retained, start, progress)
        except ToleranceUnreachable:
            found = minimise(self.objective, retained, np.zeros_like(self.weights), progress)
        self.refreshes += 1
        self.base, self.anchor, self.curvature = found.point, found.anchor, found.curvature
        self.weights, self.bound = found.point.W, found.bound

    def part(self) -> Part:
        if self.curvature is None:
            raise ToleranceUnreachable("no certified curvature")
        return Part(self.weights, self.base, self.anchor, self.curvature, self.bound)


class MatrixFree:
    """A deletion from a part whose Hessian is never formed: every solve is by products."""

    def __init__(
        self, objective: Objective, base: Point, anchor: Array, preconditioner: Preconditioner
    ) -> None:
        self.objective, self.base, self.anchor = objective, base, anchor
        self.curvature, self.passes, self.refreshes = preconditioner, 0, 0
        self.bound = math.inf
        if objective.ridge:
            short = float(np.linalg.norm(base.gradient)) * (1.0 + 1e-12) + base.error
            self.bound = short / objective.ridge

    def climb(self, retained: Source, target: float, progress: Progress) -> None:
        """Descend over the retained rows until the bound is at most ``target``."""
        if self.bound <= target:
            return
        here = evaluate(retained, self.objective.loss, self.base.W, value=True)
        point = penalised(self.objective, self.base.W, here)
        off = float(np.linalg.norm(point.gradient - self.base.gradient))
        if off > (point.error + self.base.error) * (1.0 + 1e-6):
            raise RetainedMismatch(_MISMATCH)
        found = descend(
            self.objective,
            retained,
            self.base.W,
            target,
            found=here,
            preconditioner=self.curvature,
            progress=progress,
        )
        self.base, self.bound, self.curvature = found.point, found.bound, found.preconditioner
        self.passes, self.refreshes = found.passes, found.refreshes
        if found.refreshes:
            self.anchor = found.point.W

    def part(self) -> Part:
        return Part(self.base.W, self.base, self.anchor, self.curvature, self.bound)


def _subtract(objective: Objective, base: Point, forget: Rows) -> Point:
    """Take the deleted rows out of the gradient at the base."""
    gone = evaluate(forget, objective.loss, base.W, fine=True)
    rounding = gone.error + 2 * UNIT * float(np.linalg.norm(base.gradient))
    errors = base.errors
    if errors is not None and gone.errors is not None:
        errors = errors + gone.errors + 2 * UNIT * np.abs(base.gradient)
    return Point(base.W, base.gradient - gone.gradient, base.error + rounding, base.change, errors)


def _downdate(
    objective: Objective, anchor: Array, curvature: Curvature, forget: Rows
) -> Curvature | None:
    """Take the deleted rows out of the curvature; None if what is left cannot be certified."""
    loss = objective.loss
    rank = forget.count * (anchor.shape[1] if loss.coupled else 1)
    try:
        if rank <= max(MAX_REMOVED, len(curvature.chol) // 4):
            return curvature.remove(curvature_rows(forget, loss, anchor))
        gram = evaluate(forget, loss, anchor, hessian=True).hessian
        return None if gram is None else curvature.remove_gram(gram, rank)
    except ToleranceUnreachable:
        return None


def _exact(point: Point) -> Point:
    """Return the point as if its gradient had no rounding error."""
    return replace(point, error=0.0, errors=None)
