"""Minimisers of a linearised network's quadratic beyond few parameters: dual, and by iteration."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Protocol

import torch
from torch import Tensor

from expunge.deep.curvature import Operator
from expunge.deep.jacobian import Tangent
from expunge.deep.krylov import Sketch, nystrom_cg, sketch
from expunge.deep.quadratic import Objective, Primal
from expunge.errors import InvalidInput

FEW = 4096
"""Most parameters of a Gram matrix, and most answers (records × outputs) of a kernel."""

RANK = 64
ROUNDS = 8
METHODS = ("auto", "primal", "dual", "cg")


class Solver(Protocol):
    """A minimiser and what deletions from it need."""

    @property
    def v(self) -> Tensor:
        """The minimiser (p,), as far as ``bound`` says."""
        ...

    @property
    def bound(self) -> float:
        """Distance from the minimiser that is known without data; inf before a measurement."""
        ...

    def remove(self, objective: Objective, index: list[int]) -> Solver:
        """Delete the records of ``objective``, which were at ``index`` among the retained ones."""
        ...

    def settle(self, retained: Objective, tolerance: float) -> Solver:
        """Measure on all retained records, and improve until the bound is at most ``tolerance``."""
        ...


@dataclass(frozen=True, repr=False)
class Dual:
    """Few rows: ``(K + Λ)⁻¹`` of the kernel ``K = JJᵀ``; ``v = Jᵀa``.

    Attributes
    ----------
    inverse : (m, m) tensor
        m answers, the c of a record one after the other.
    answers : (m,) tensor
        t.
    l2 : float
    v : (p,) tensor
    bound : float
    """

    inverse: Tensor = field(repr=False)
    answers: Tensor = field(repr=False)
    l2: float
    v: Tensor = field(repr=False)
    bound: float = math.inf

    @classmethod
    def of(cls, objective: Objective) -> Dual:
        """Form the kernel in blocks and invert it."""
        K, t = kernel(objective)
        shifted = K + objective.l2 * torch.eye(len(K), dtype=K.dtype, device=K.device)
        inverse = torch.cholesky_inverse(torch.linalg.cholesky(shifted))
        return cls(inverse, t, objective.l2, _lifted(objective, inverse @ t))

    def remove(self, objective: Objective, index: list[int]) -> Dual:
        """Delete by blocks: ``A_kk − A_kf A_ff⁻¹ A_fk``. The new ``v`` waits for `settle`."""
        outputs = objective.tangent.width
        gone = torch.zeros(len(self.answers), dtype=torch.bool, device=self.answers.device)
        for i in index:
            gone[i * outputs : (i + 1) * outputs] = True
        A, kept = self.inverse, ~gone
        cross = A[kept][:, gone]
        factor = torch.linalg.cholesky(A[gone][:, gone])
        left = A[kept][:, kept] - cross @ torch.cholesky_solve(cross.T, factor)
        return Dual((left + left.T) / 2, self.answers[kept], self.l2, self.v)

    def settle(self, retained: Objective, tolerance: float) -> Dual:
        """Lift ``a`` to ``v``, measure, and correct by the same inverse; invert anew if need be."""
        found = replace(self, v=_lifted(retained, self.inverse @ self.answers))
        best = found._corrected(retained, tolerance)
        return (
            best if best.bound <= tolerance else Dual.of(retained)._corrected(retained, tolerance)
        )

    def _corrected(self, retained: Objective, tolerance: float) -> Dual:
        bound, gradient = retained.distance(self.v)
        best = replace(self, bound=bound)
        for _ in range(ROUNDS):
            if best.bound <= tolerance:
                break
            inner = self.inverse @ retained.push(gradient).reshape(-1)
            v = best.v - (gradient - _lifted(retained, inner)) / self.l2
            bound, gradient = retained.distance(v)
            if not bound < best.bound:
                break
            best = replace(best, v=v, bound=bound)
        return best


def kernel(objective: Objective) -> tuple[Tensor, Tensor]:
    """Return ``K = JJᵀ`` (m, m) and ``t`` (m,), with two blocks of J in memory at a time."""
    parts: list[list[Tensor]] = []
    answers: list[Tensor] = []
    for A, t in _jacobians(objective, objective.count):
        answers.append(t)
        parts.append([A @ B.T for B, _ in _jacobians(objective, len(answers))])
    m = sum(len(t) for t in answers)
    K = torch.zeros(m, m, dtype=torch.float64, device=answers[0].device)
    start = 0
    for row in parts:
        width = sum(part.shape[1] for part in row)
        K[start : start + len(row[0]), :width] = torch.cat(row, 1)
        start += len(row[0])
    lower = torch.tril(K)
    return lower + torch.tril(K, -1).T, torch.cat(answers)


@dataclass(frozen=True, repr=False)
class Krylov:
    """Many parameters and many rows: conjugate gradients from the last minimiser.

    Attributes
    ----------
    v : (p,) tensor
    bound : float
    sketch : Sketch or None
        The preconditioner: it is made once, and is good enough after deletions.
    """

    v: Tensor = field(repr=False)
    bound: float = math.inf
    sketch: Sketch | None = None

    @classmethod
    def of(cls, objective: Objective) -> Krylov:
        """Start from zero."""
        return cls(torch.zeros_like(objective.tangent.at))

    def remove(self, objective: Objective, index: list[int]) -> Krylov:
        """Keep the point; what it is worth is measured by `settle`."""
        return replace(self, bound=math.inf)

    def settle(self, retained: Objective, tolerance: float) -> Krylov:
        """Iterate on the measured residual until it is small enough, or float64 gives no more."""
        bound, gradient = retained.distance(self.v)
        best = replace(self, bound=bound)
        if bound <= tolerance:
            return best
        n, tangent = retained.count, retained.tangent
        operator = Operator(
            "ggn", tangent.network, half_square, retained.data, wd=retained.l2 / n, at=tangent.at
        )
        rank = min(RANK, tangent.size)
        made = self.sketch or sketch(operator, tangent.size, rank)
        for _ in range(ROUNDS):
            wanted = min(0.5, max(0.1 * tolerance / best.bound, 1e-12))
            solver = nystrom_cg(tol=wanted, sketch=made)
            v = best.v - solver.solve(operator, gradient / n, strict=False).value
            bound, gradient = retained.distance(v)
            if not bound < best.bound:
                break
            best = Krylov(v, bound, made)
            if bound <= tolerance:
                break
        return replace(best, sketch=made)


def half_square(outputs: Tensor, targets: Tensor) -> Tensor:
    """Return ``½‖f − y‖²`` of every record."""
    square = (outputs.reshape(targets.shape) - targets) ** 2
    return 0.5 * square.reshape(len(targets), -1).sum(1)


def choose(tangent: Tangent, answers: int) -> str:
    """Return ``primal`` for few parameters, ``dual`` for few answers, else ``cg``."""
    if tangent.layer is not None or tangent.size <= FEW:
        return "primal"
    return "dual" if answers <= FEW else "cg"


def solver_of(method: str, objective: Objective, grain: float) -> Solver:
    """Return the minimiser on an objective, not measured yet.

    Raises
    ------
    InvalidInput
        If the method is unknown.
    """
    if method not in METHODS:
        raise InvalidInput(f"method must be one of {', '.join(METHODS)}; got {method!r}")
    if method == "auto":
        method = choose(objective.tangent, objective.count * objective.tangent.width)
    if method == "primal":
        return Primal.of(objective, grain)
    return Dual.of(objective) if method == "dual" else Krylov.of(objective)


def _jacobians(objective: Objective, stop: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield the first ``stop`` blocks of J (b·c, p) and of t (b·c,)."""
    tangent = objective.tangent
    with tangent.still():
        for number, (inputs, y) in enumerate(objective.data.chunks(tangent.per_block())):
            if number == stop:
                break
            J, f = tangent.jacobian(inputs, len(y))
            yield J, (y - f).reshape(-1)


def _lifted(objective: Objective, a: Tensor) -> Tensor:
    return objective.pull(a.reshape(objective.count, -1))
