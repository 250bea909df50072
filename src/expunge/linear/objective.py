"""The objective of a problem, and points with the gradient there.

``F(W) = Σ_i s_i ℓ(x̃_iᵀW, y_i) + (Λ/2)‖W̄‖² + ν‖W̄‖₁`` in sum units, where W̄ is ``W`` without its
intercept row (the last one), which is not penalised. For softmax a constant added to a row of ``W``
changes no loss, so the minimiser has rows that sum to zero (the intercepts' by convention). It then
also minimises ``F + Σ_j (η_j/2K)(Σ_k W_jk)²`` for all η_j > 0, which has curvature in those
directions.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from expunge.errors import InvalidInput
from expunge.linear.losses import LOSSES, Array, Loss
from expunge.linear.passes import Pass, evaluate
from expunge.linear.rounding import UNIT
from expunge.linear.rows import Source

MAX_DIRECT = 4096
COARSE = 0.1
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
    l1 : float
        ν ≥ 0, sum units.
    """

    loss: Loss
    l2: float
    intercept: bool
    l1: float = 0.0

    def penalty(self, width: int) -> Array:
        """Return Λ per coordinate of a row, (p, 1): 0 for the intercept."""
        return self._penalised(self.l2, width)

    def shrinkage(self, width: int) -> Array:
        """Return ν per coordinate of a row, (p, 1): 0 for the intercept."""
        return self._penalised(self.l1, width)

    def _penalised(self, amount: float, width: int) -> Array:
        out = np.full((width, 1), amount)
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

    def subgradient(self, W: Array, gradient: Array) -> Array:
        """Return the shortest subgradient of ``F`` at ``W`` from the gradient without ``ν‖·‖₁``.

        As a function of ``gradient`` it changes by no more than that does, in every coordinate.
        """
        if not self.l1:
            return gradient
        nu = self.shrinkage(len(W))
        still = np.sign(gradient) * np.maximum(np.abs(gradient) - nu, 0.0)
        found: Array = np.where(W != 0.0, gradient + nu * np.sign(W), still)
        return found

    def factored(self, width: int, outputs: int) -> bool:
        """Whether the Hessian is formed and factored; if not, only products with it are.

        Raises
        ------
        InvalidInput
            If it is too large for an L1 penalty, for which products are not enough.
        """
        size = width * outputs if self.loss.coupled else width
        if self.l1 and size > MAX_DIRECT:
            raise InvalidInput(
                f"an L1 penalty goes with at most {MAX_DIRECT} coefficients per target, here are "
                f"{size}: leave features out, or use the L2 penalty alone"
            )
        return not self.loss.kinked and size <= MAX_DIRECT

    @property
    def ridge(self) -> float:
        """Λ where it bounds every eigenvalue from below, else 0 (a free intercept has none)."""
        return 0.0 if self.intercept else self.l2


@dataclass(frozen=True, repr=False)
class Point:
    """A point with the gradient of ``F`` (without ``ν‖·‖₁``) there.

    ``gradient`` (p, C) of the sum objective; ``error`` bounds its rounding error in the Euclidean
    norm, ``errors`` (p, C), where known, every coordinate's; ``change`` bounds the change of any
    row's margins since the anchor.
    """

    W: Array
    gradient: Array
    error: float
    change: float
    errors: Array | None


def objective_of(loss: str, l2: float, intercept: bool, l1: float = 0.0) -> Objective:
    """Return the objective of a policy's loss name (``logistic-ovr`` is a stack of ``logistic``).

    Raises
    ------
    InvalidInput
        If the loss is unknown, the penalty is not positive and finite, or the two do not go
        together.
    """
    name = "logistic" if loss == "logistic-ovr" else loss
    if name not in LOSSES:
        raise InvalidInput(f"unknown loss {loss!r}; expected one of {sorted(LOSSES)}")
    if not (l2 > 0 and math.isfinite(l2)):
        raise InvalidInput(
            f"the penalty must be positive and finite, got {l2}: without it the minimiser may not "
            "exist or move without limit when a row is deleted"
        )
    if not (l1 >= 0 and math.isfinite(l1)) or (l1 and name != "squared"):
        raise InvalidInput(f"an L1 penalty must be ≥ 0 and goes with squared loss, got {l1}")
    found = Objective(LOSSES[name], float(l2), intercept, float(l1))
    if found.loss.kinked and intercept:
        raise InvalidInput(
            f"with the loss {name!r} nothing bounds how far an unpenalised intercept can move; "
            "append a constant feature instead, which is penalised"
        )
    return found


def penalised(objective: Objective, W: Array, found: Pass) -> Point:
    """Add the L2 penalty's gradient, and its rounding, to a pass over the rows."""
    shrink = objective.penalty(len(W)) * W
    gradient = found.gradient + shrink
    unit = (W.shape[1] + 4) * UNIT
    error = found.error + unit * float(np.linalg.norm(shrink) + np.linalg.norm(gradient))
    errors = found.errors
    if errors is not None:
        errors = errors + unit * (np.abs(shrink) + np.abs(gradient))
    return Point(W, gradient, error, found.change, errors)


def measure(
    objective: Objective,
    rows: Source,
    W: Array,
    anchor: Array,
    change: float,
    *,
    fine: bool = False,
) -> Point:
    """Evaluate the gradient of ``F`` at ``W`` in one pass.

    ``change`` bounds the change of margins since ``anchor``; the pass measures it if it is large.
    ``fine`` as for :func:`expunge.linear.passes.evaluate`.
    """
    exact = change > COARSE
    found = evaluate(rows, objective.loss, W, anchor=anchor if exact else None, fine=fine)
    point = penalised(objective, W, found)
    return point if exact else replace(point, change=change)


def value_of(objective: Objective, W: Array, found: Pass) -> float:
    """Return ``F(W)`` without ``ν‖·‖₁`` from a pass that was asked for the value."""
    return found.value + 0.5 * float(np.sum(objective.penalty(len(W)) * W * W))
