"""The policy: the cheapest step that proves the public tolerance.

``unlearn`` goes up a ladder until a bound on the distance to the retrained minimiser is at most
the tolerance τ: *bound* (from the sealed state alone, O(k·q + q²)), *measure* (one pass over the
retained rows), *refresh* (a new Hessian), *refuse*. Which rung was used depends on the deleted
rows, so it is told in the sealed trace only. States are immutable: whatever is raised, the caller
still holds the state from before.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from expunge.errors import (
    InvalidInput,
    LastOfClass,
    NeedsRetainedData,
    RetainedMismatch,
    ToleranceUnreachable,
)
from expunge.linear.bounds import distance, reach, step_residual
from expunge.linear.curvature import MAX_REMOVED, Curvature
from expunge.linear.losses import Array
from expunge.linear.passes import curvature_rows, evaluate
from expunge.linear.rounding import UNIT
from expunge.linear.rows import Rows
from expunge.linear.shards import single_threaded_blas
from expunge.linear.solver import (
    Objective,
    Point,
    Progress,
    certified_distance,
    measure,
    minimise,
    objective_of,
    silent,
)

Counts = NDArray[np.int64]
FAR = 0.5
SLOW = 0.1
MAX_PASSES = 20
LOST = 30.0


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
    curvature : Curvature
    bound : float
        Proved upper bound of ``‖weights − ŵ‖₂``.
    """

    weights: Array
    base: Point
    anchor: Array
    curvature: Curvature
    bound: float


@dataclass(frozen=True, repr=False)
class State:
    """The sealed state: everything later deletions need, nothing of it public.

    Attributes
    ----------
    loss : str
        ``logistic``, ``softmax``, ``logistic-ovr`` or ``squared``.
    l2 : float
        Λ, sum units.
    intercept : bool
    tolerance : float
        The public τ, a Euclidean distance over all parameters.
    count : int
        Rows retained.
    members : (m,) int64
        Rows of each class (empty for regression): the classes of the target's columns, and with a
        single column the negative class first.
    parts : tuple of Part
    """

    loss: str
    l2: float
    intercept: bool
    tolerance: float
    count: int
    members: Counts
    parts: tuple[Part, ...]

    def __repr__(self) -> str:
        """Say what kind of model this is, nothing of what it learned."""
        return f"State(loss={self.loss!r}, {self.count} rows retained, sealed)"

    @property
    def objective(self) -> Objective:
        """The objective of each part."""
        return objective_of(self.loss, self.l2, self.intercept)

    @property
    def weights(self) -> Array:
        """The solution before noise, (p, outputs). Secret."""
        return np.hstack([part.weights for part in self.parts])

    @property
    def bound(self) -> float:
        """Proved upper bound of the distance of ``weights`` to the retained minimiser."""
        return math.hypot(*(part.bound for part in self.parts))


@dataclass(frozen=True, repr=False)
class Trace:
    """How a state was reached; depends on deleted rows, so it belongs in the sealed annex.

    ``path`` is ``fitted``, ``bounded``, ``measured`` or ``refreshed``; ``distance`` the proved
    bound that met the tolerance; ``residual`` and ``float_error`` the gradient's norm and its
    rounding bound at the last measured point (sum units); ``curvature`` a lower bound of the
    smallest eigenvalue; ``passes`` and ``refreshes`` count the work.
    """

    path: str
    distance: float
    residual: float
    float_error: float
    curvature: float
    passes: int
    refreshes: int


@single_threaded_blas()
def fit(
    rows: Rows,
    *,
    loss: str,
    l2: float,
    tolerance: float,
    classes: bool,
    progress: Progress = silent,
) -> tuple[State, Trace]:
    """Fit from scratch to within the tolerance.

    Parameters
    ----------
    rows : Rows
    loss : str
    l2 : float
        Λ > 0, sum units.
    tolerance : float
        τ > 0, a distance.
    classes : bool
        Whether targets are classes; then each must keep at least one row for ever.
    progress : callable, optional

    Raises
    ------
    ToleranceUnreachable
        If float64 cannot prove the tolerance on these rows; says which one it can.
    InvalidInput
        If there is no row, or no row of some class.
    """
    objective = objective_of(loss, l2, rows.intercept)
    if rows.count == 0:
        raise InvalidInput("no rows of positive weight to fit")
    members = _members(rows, classes)
    if (members < 1).any():
        raise InvalidInput("every class needs at least one row of positive weight")
    parts = []
    for columns in _columns(loss, rows.target.shape[1]):
        found = minimise(
            objective,
            rows.outputs(columns),
            np.zeros((rows.width, columns.stop - columns.start)),
            progress,
        )
        parts.append(Part(found.point.W, found.point, found.anchor, found.curvature, found.bound))
    state = State(
        loss, float(l2), rows.intercept, float(tolerance), rows.count, members, tuple(parts)
    )
    _check_reached(state)
    return state, _trace(state, "fitted", 0, len(parts))


@single_threaded_blas()
def unlearn(
    state: State,
    forget: Rows,
    retained: Rows | Callable[[], Rows] | None = None,
    progress: Progress = silent,
) -> tuple[State, Trace]:
    """Delete rows; return the new state and its trace, or raise and change nothing.

    Parameters
    ----------
    state : State
    forget : Rows
        The deleted rows exactly as they were trained on (the caller checks that they were).
    retained : Rows or callable returning Rows, optional
        All rows retained after this deletion; used, and a callable called, only if the bound does
        not suffice. Without them only the bound can be used.
    progress : callable, optional

    Raises
    ------
    LastOfClass
        If a class, or the data set, would be left without rows.
    RetainedMismatch
        If ``retained`` is provably not what the model retains.
    NeedsRetainedData
        If the bound exceeds the tolerance and ``retained`` is missing.
    ToleranceUnreachable
        If float64 cannot prove the tolerance on the retained rows.
    """
    columns = _columns(state.loss, forget.target.shape[1])
    members = state.members - _members(forget, bool(len(state.members)))
    count = state.count - forget.count
    if count < 1 or (members < 1).any():
        raise LastOfClass(
            f"deleting these {forget.count} rows would leave "
            + ("no rows" if count < 1 else "a class without rows")
            + "; a model of what is retained does not exist: retire the model instead"
        )
    work = [
        _Deletion(state, part, forget.outputs(c))
        for part, c in zip(state.parts, columns, strict=True)
    ]
    bound = math.hypot(*(w.bound for w in work))
    if bound > state.tolerance:
        if retained is None:
            raise NeedsRetainedData(_needs(state, bound))
        rows = check_count(retained() if callable(retained) else retained, count)
        for w, c in zip(work, columns, strict=True):
            w.climb(rows.outputs(c), state.tolerance / math.sqrt(len(work)), progress)
    new = replace(state, count=count, members=members, parts=tuple(w.part() for w in work))
    _check_reached(new)
    passes, refreshes = sum(w.passes for w in work), sum(w.refreshes for w in work)
    path = "refreshed" if refreshes else "measured" if passes else "bounded"
    return new, _trace(new, path, passes, refreshes)


class _Deletion:
    """The deletion of some rows from one part, on its way up the ladder."""

    def __init__(self, state: State, part: Part, forget: Rows) -> None:
        self.objective, self.anchor = state.objective, part.anchor
        self.passes = self.refreshes = 0
        self.base = _subtract(self.objective, part.base, forget)
        self.curvature = _downdate(self.objective, part, forget)
        self.step()

    def step(self) -> None:
        """Step from the base with the factor at hand, and bound what is left."""
        self.weights, self.bound, self.residual = self.base.W, math.inf, math.inf
        self.moved = self.change = math.inf
        if self.curvature is None:
            return
        A, pack = self.curvature, self.objective.pack
        gradient, outputs = pack(self.base.gradient), self.anchor.shape[1]
        found, moved = A.solve(gradient)
        delta = -found
        self.weights = self.objective.centre(self.base.W + self.objective.unpack(delta, outputs))
        a, s = self.base.change, A.margin_change(delta)
        penalty = pack(np.tile(self.objective.penalty(len(self.anchor)), (1, outputs)))
        ridge = float(np.sum(penalty * delta * delta))
        loss_moved = math.sqrt(max(moved**2 - ridge, 0.0))
        error = A.error
        self.moved, self.change = moved, a + s
        self.residual = step_residual(a, s, moved=moved, loss_moved=loss_moved, slack=error)
        self.residual += A.defect(gradient, delta) + self.objective.rounding(A, self.base)[0]
        self.bound = distance(reach(self.residual * (1 + 2 * error), a + s, A.top), A.floor)
        self.bound += (outputs + 2) * UNIT * float(np.linalg.norm(self.weights))

    def climb(self, retained: Rows, target: float, progress: Progress) -> None:
        """Measure and refresh until the bound is at most ``target``."""
        while self.bound > target and not self.refreshes:
            if (
                self.curvature is None
                or self.change > LOST
                or self.passes >= MAX_PASSES
                or not self._measure(retained, target, self.curvature)
            ):
                self._refresh(retained, progress)

    def _measure(self, retained: Rows, target: float, A: Curvature) -> bool:
        """Take one pass at the current weights; False if a new Hessian is due."""
        where = (self.objective, retained, self.weights, self.anchor, self.change)
        point = measure(*where)
        bound, after = certified_distance(A, point, self.objective)
        self.passes += 1
        if bound > target and certified_distance(A, _exact(point), self.objective)[0] <= target:
            point = measure(*where, fine=True)
            bound, after = certified_distance(A, point, self.objective)
            self.passes += 1
        if after > 1.1 * self.residual + self.objective.rounding(A, point)[0]:
            raise RetainedMismatch(
                "the gradient over the rows given as retained is larger than the rows the model "
                "retains can give: some row is missing, altered or should have been deleted"
            )
        self.base, self.bound = point, bound
        if self.bound <= target:
            self.weights = point.W
            return True
        if not (point.change <= FAR and after < SLOW * self.moved):
            return False
        self.step()
        return True

    def _refresh(self, retained: Rows, progress: Progress) -> None:
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


def _subtract(objective: Objective, base: Point, forget: Rows) -> Point:
    """Take the deleted rows out of the gradient at the base."""
    gone = evaluate(forget, objective.loss, base.W, fine=True)
    rounding = gone.error + 2 * UNIT * float(np.linalg.norm(base.gradient))
    errors = base.errors
    if errors is not None and gone.errors is not None:
        errors = errors + gone.errors + 2 * UNIT * np.abs(base.gradient)
    return Point(base.W, base.gradient - gone.gradient, base.error + rounding, base.change, errors)


def _downdate(objective: Objective, part: Part, forget: Rows) -> Curvature | None:
    """Take the deleted rows out of the curvature; None if what is left cannot be certified."""
    loss, anchor = objective.loss, part.anchor
    rank = forget.count * (anchor.shape[1] if loss.coupled else 1)
    try:
        if rank <= max(MAX_REMOVED, len(part.curvature.chol) // 4):
            return part.curvature.remove(curvature_rows(forget, loss, anchor))
        gram = evaluate(forget, loss, anchor, hessian=True).hessian
        return None if gram is None else part.curvature.remove_gram(gram, rank)
    except ToleranceUnreachable:
        return None


def _exact(point: Point) -> Point:
    """Return the point as if its gradient had no rounding error."""
    return replace(point, error=0.0, errors=None)


def _columns(loss: str, outputs: int) -> list[slice]:
    if loss == "logistic-ovr":
        return [slice(k, k + 1) for k in range(outputs)]
    return [slice(0, outputs)]


def _members(rows: Rows, classes: bool) -> Counts:
    """Count rows by class: positive entries per column; of one column, the negatives first."""
    if not classes:
        return np.zeros(0, dtype=np.int64)
    live = rows.target[rows.weight > 0]
    positive = (live > 0).sum(axis=0)
    if live.shape[1] == 1:
        positive = np.concatenate([[len(live) - positive[0]], positive])
    return np.asarray(positive, dtype=np.int64)


def check_count(retained: Rows, count: int) -> Rows:
    """Return ``retained`` if it has ``count`` rows, else raise :class:`RetainedMismatch`."""
    if retained.count != count:
        raise RetainedMismatch(
            f"the model retains {count} rows after this deletion, but {retained.count} retained "
            "rows were given; pass exactly the training rows that are left"
        )
    return retained


def _check_reached(state: State) -> None:
    if not state.bound <= state.tolerance:
        raise ToleranceUnreachable(
            f"float64 locates the minimiser on these rows to within {state.bound:.2e}, but the "
            f"policy's tolerance is {state.tolerance:.2e}: raise sigma at least "
            f"{state.bound / state.tolerance:.3g} times, or scale the features"
        )


def _needs(state: State, bound: float) -> str:
    return (
        "this deletion cannot be certified from the sealed state alone: its bound is "
        f"{bound:.2e}, the public tolerance {state.tolerance:.2e}. Pass the retained rows "
        "(one pass over them suffices), delete fewer rows at once, or train with a larger sigma. "
        "Nothing was changed"
    )


def _trace(state: State, path: str, passes: int, refreshes: int) -> Trace:
    return Trace(
        path=path,
        distance=state.bound,
        residual=math.hypot(*(float(np.linalg.norm(p.base.gradient)) for p in state.parts)),
        float_error=math.hypot(*(p.base.error for p in state.parts)),
        curvature=min(p.curvature.floor for p in state.parts),
        passes=passes,
        refreshes=refreshes,
    )
