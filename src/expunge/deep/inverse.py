"""Solvers of ``(A + λI)x = b``: direct, conjugate gradients, Nyström-preconditioned, LiSSA.

One convention throughout: ``A`` is a matrix of the *mean* objective, its weight decay included, and
λ (``damping``) is added to it. Every solver has ``solve(operator, b)`` and returns a `Solution`
whose residual has been recomputed; one that is not ``ok`` is an error unless ``strict=False``.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Protocol, TypeVar

import torch
from torch import Tensor

from expunge.deep.krylov import Sketch, cg, nystrom_cg, sketch
from expunge.deep.lissa import lissa
from expunge.deep.solution import NotConverged, Product, Solution, Status, System
from expunge.errors import InvalidInput

__all__ = [
    "NotConverged",
    "Sketch",
    "Solution",
    "Solver",
    "Status",
    "cg",
    "choose",
    "direct",
    "escalate",
    "lissa",
    "nystrom_cg",
    "sketch",
]

DENSE = 20_000
"""Largest p of a direct solution: a matrix of 3.2 GB."""

SMALL = 4_000
"""Largest p at which a direct solution is chosen: a matrix of 128 MB."""


class Solver(Protocol):
    """What solves ``(A + λI)x = b``."""

    @property
    def damping(self) -> float:
        """λ."""
        ...

    def solve(self, operator: Product, b: Tensor, *, strict: bool = True) -> Solution:
        """Return ``x`` and how good it is."""
        ...


@dataclass(frozen=True)
class direct:
    """Form the matrix in float64, p products, and factor it.

    Attributes
    ----------
    damping : float
        λ, see `cg`.
    tol : float
        Largest relative residual that counts as solved.
    """

    damping: float = 0.0
    tol: float = 1e-8

    def solve(self, operator: Product, b: Tensor, *, strict: bool = True) -> Solution:
        """Solve for ``b`` (p,) or every column of (p, k).

        If the matrix is not positive definite, the value is not a number and
        ``info["curvature"]`` is the smallest eigenvalue of ``A``.

        Raises
        ------
        NotConverged
            If ``strict`` and the status is not ``ok``.
        """
        system = System(operator, b, self.damping)
        if len(b) > DENSE:
            raise InvalidInput(f"p = {len(b)} is too large for a direct solution ({DENSE}): use cg")
        found = self._solve(system, _matrix(operator, system))
        return found.require() if strict else found

    def _solve(self, system: System, A: Tensor) -> Solution:
        A = torch.diagonal_scatter(A, A.diagonal() + self.damping)
        factor, failed = torch.linalg.cholesky_ex(A)
        if int(failed):
            nothing = torch.full_like(system.B, torch.nan)
            if not bool(torch.isfinite(A).all()):
                return system.solution(nothing, "diverged", 1, nothing[0])
            least = float(torch.linalg.eigvalsh(A)[0]) - self.damping
            return system.solution(nothing, "negative_curvature", 1, nothing[0], curvature=least)
        X = torch.cholesky_solve(system.B, factor)
        X = X + torch.cholesky_solve(system.B - A @ X, factor)
        residuals = (system.B - A @ X).norm(dim=0)
        status: Status = "ok" if bool((residuals <= self.tol).all()) else "not_converged"
        return system.solution(X, status, 1, residuals)


def _matrix(operator: Product, system: System) -> Tensor:
    """Return the symmetric matrix (p, p) of an operator, in float64."""
    exact = getattr(operator, "exact", lambda: operator)()
    size = len(system.B)
    system.products += size
    if hasattr(exact, "dense"):
        A: Tensor = exact.dense().to(system.B)
        return A
    A = exact(torch.eye(size, dtype=torch.float64, device=system.B.device))
    return (A + A.T) / 2


def choose(operator: Product, size: int, columns: int = 1, *, damping: float = 0.0) -> Solver:
    """Return the solver to start with: direct for small p or very many columns, else a CG.

    The Nyström preconditioner pays for several columns, where the matrix is known to be positive
    semidefinite.
    """
    if size <= SMALL or (columns > size // 10 and size <= DENSE):
        return direct(damping)
    if columns > 1 and getattr(operator, "psd", False):
        return nystrom_cg(damping)
    return cg(damping)


S = TypeVar("S", cg, nystrom_cg, direct)


def escalate(solver: S, operator: Product, b: Tensor, *, attempts: int = 10) -> tuple[S, Solution]:
    """Solve with as little more damping as the negative curvature met asks for.

    After each failure ``λ ← max(2λ, −1.5·q + 10⁻³)`` with ``q`` the curvature found. The solution
    is that of the solver returned, of *its* damping, not of the one asked for.

    Raises
    ------
    NotConverged
        If negative curvature is still met after ``attempts``, or for another reason.
    """
    for _ in range(attempts):
        found = solver.solve(operator, b, strict=False)
        if found.status != "negative_curvature":
            break
        more = max(2.0 * solver.damping, -1.5 * found.info["curvature"] + 1e-3)
        solver = replace(solver, damping=more)
    return solver, found.require()
