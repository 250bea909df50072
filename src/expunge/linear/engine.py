"""The policy: the cheapest step that proves the public tolerance.

``unlearn`` goes up a ladder until a bound on the distance to the retrained minimiser is at most
the tolerance τ: *bound* (from the sealed state alone, O(k·q + q²)), *measure* (one pass over the
retained rows), *refresh* (a new Hessian), *refuse*. Which rung was used depends on the deleted
rows, so it is told in the sealed trace only. States are immutable: whatever is raised, the caller
still holds the state from before. Numbers that overflow prove nothing and end in a refusal.
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
from expunge.linear.deletion import Part, deletion_of, fit_part
from expunge.linear.losses import Array
from expunge.linear.objective import Objective, Progress, objective_of, silent
from expunge.linear.rows import Rows, Source
from expunge.linear.shards import single_threaded_blas

Counts = NDArray[np.int64]


@dataclass(frozen=True, repr=False)
class State:
    """The sealed state: everything later deletions need, nothing of it public.

    Attributes
    ----------
    loss : str
        A policy's loss: a name in :data:`expunge.linear.losses.LOSSES`, or ``logistic-ovr``.
    l2, l1 : float
        Λ and ν, sum units.
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
    l1: float
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
        return objective_of(self.loss, self.l2, self.intercept, self.l1)

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


@np.errstate(over="ignore", invalid="ignore")
@single_threaded_blas()
def fit(
    rows: Source,
    *,
    loss: str,
    l2: float,
    l1: float = 0.0,
    tolerance: float,
    classes: bool,
    progress: Progress = silent,
) -> tuple[State, Trace]:
    """Fit from scratch to within the tolerance.

    Parameters
    ----------
    rows : Source
    loss : str
    l2, l1 : float
        Λ > 0 and ν ≥ 0, sum units.
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
    objective = objective_of(loss, l2, rows.intercept, l1)
    if rows.count == 0:
        raise InvalidInput("no rows of positive weight to fit")
    members = _members(rows, classes)
    if (members < 1).any():
        raise InvalidInput("every class needs at least one row of positive weight")
    columns = _columns(objective, rows.columns)
    target = tolerance / math.sqrt(len(columns))
    found = [
        fit_part(objective, rows.outputs(c), c.stop - c.start, target, progress) for c in columns
    ]
    state = State(
        loss,
        float(l2),
        float(l1),
        rows.intercept,
        float(tolerance),
        rows.count,
        members,
        tuple(part for part, _, _ in found),
    )
    _check_reached(state)
    passes, refreshes = (sum(numbers) for numbers in list(zip(*found, strict=True))[1:])
    return state, _trace(state, "fitted", passes, refreshes)


@np.errstate(over="ignore", invalid="ignore")
@single_threaded_blas()
def unlearn(
    state: State,
    forget: Rows,
    retained: Source | Callable[[], Source] | None = None,
    progress: Progress = silent,
) -> tuple[State, Trace]:
    """Delete rows; return the new state and its trace, or raise and change nothing.

    Parameters
    ----------
    state : State
    forget : Rows
        The deleted rows exactly as they were trained on (the caller checks that they were).
    retained : Source or callable returning one, optional
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
    columns = _columns(state.objective, forget.columns)
    members = state.members - _members(forget, bool(len(state.members)))
    count = state.count - forget.count
    if count < 1 or (members < 1).any():
        raise LastOfClass(
            f"deleting these {forget.count} rows would leave "
            + ("no rows" if count < 1 else "a class without rows")
            + "; a model of what is retained does not exist: retire the model instead"
        )
    work = [
        deletion_of(state.objective, part, forget.outputs(c))
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


def _columns(objective: Objective, outputs: int) -> list[slice]:
    """Return the columns of the target that share a Hessian, part by part."""
    step = outputs if objective.loss.joint else 1
    return [slice(k, k + step) for k in range(0, outputs, step)]


def _members(rows: Source, classes: bool) -> Counts:
    """Count rows by class: positive entries per column; of one column, the negatives first."""
    if not classes:
        return np.zeros(0, dtype=np.int64)
    positive = rows.positives
    if rows.columns == 1:
        positive = np.concatenate([[rows.count - positive[0]], positive])
    return np.asarray(positive, dtype=np.int64)


def check_count(retained: Source, count: int) -> Source:
    """Return ``retained`` if it has ``count`` rows, else raise :class:`RetainedMismatch`."""
    if retained.count != count:
        raise RetainedMismatch(
            f"the model retains {count} rows after this deletion, but {retained.count} retained "
            "rows were given; pass exactly the training rows that are left"
        )
    return retained


def _check_reached(state: State) -> None:
    if not math.isfinite(state.bound):
        raise ToleranceUnreachable(
            "float64 cannot locate the minimiser on these rows: scale the features and targets, or "
            "penalise more"
        )
    if state.bound > state.tolerance:
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
        curvature=max(state.objective.ridge, min(p.floor for p in state.parts)),
        passes=passes,
        refreshes=refreshes,
    )
