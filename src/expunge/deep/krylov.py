"""Conjugate gradients with a guard against negative curvature, and with a Nyström preconditioner.

Products are in the operator's precision, everything else in float64. When the recursion says that
a system is solved, the residual is computed anew, in float64 products, and the iteration goes on
from there until that one is within the tolerance: a float32 network is solved to 1e-8 as well.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor

from expunge.deep.solution import Product, Solution, Status, System
from expunge.errors import InvalidInput

Precondition = Callable[[Tensor], Tensor]

_SAFETY = 0.9
_ROUNDS = 20


@dataclass(frozen=True)
class cg:
    """Conjugate gradients on all columns at once; a column that is done costs nothing more.

    Attributes
    ----------
    damping : float
        λ of ``(A + λI)x = b``, in units of the mean objective, added to the operator's own ``wd``.
    tol : float
        Largest relative residual of a column that counts as solved.
    max_iterations : int
    flat : float
        A direction with ``dᵀ(A + λI)d ≤ flat·‖d‖²`` ends its column: ``negative_curvature``.
        ``info["curvature"]`` is then ``dᵀAd/‖d‖²``, an upper bound of the smallest eigenvalue of A.

    Notes
    -----
    What is left of ``b`` along an eigenvector is multiplied by ``Π(1 − μ/θ_j)``, with μ its
    eigenvalue and θ_j the Ritz values, which are positive until negative curvature is met: for
    μ < 0 it only grows. So an indefinite system is never ``ok`` unless the part of ``b`` along
    the negative eigenvectors is below ``tol``.
    """

    damping: float = 0.0
    tol: float = 1e-8
    max_iterations: int = 10_000
    flat: float = 0.0

    def solve(self, operator: Product, b: Tensor, *, strict: bool = True) -> Solution:
        """Solve for ``b`` (p,) or every column of (p, k).

        Raises
        ------
        NotConverged
            If ``strict`` and the status is not ``ok``.
        """
        system = System(operator, b, self.damping)
        found = iterate(system, self.tol, self.max_iterations, self.flat, lambda R: R)
        return found.require() if strict else found


@dataclass(frozen=True)
class Sketch:
    """A randomised Nyström approximation ``U diag(eigenvalues) Uᵀ`` of a PSD matrix.

    Attributes
    ----------
    U : (p, r) float64
        Orthonormal columns.
    eigenvalues : (r,) float64
        Decreasing; those of ``A`` without the ``floor`` that is known to lie under all of them.
    floor : float
        Weight decay of the operator.
    products : int
    """

    U: Tensor = field(repr=False)
    eigenvalues: Tensor = field(repr=False)
    floor: float
    products: int

    def inverse(self, damping: float) -> Precondition:
        """Return ``Z ↦ P⁻¹Z`` for ``A + λI``, up to a factor."""
        shifted = self.eigenvalues + damping + self.floor
        if float(shifted[-1]) <= 0.0:
            raise InvalidInput("the sketched matrix is singular: add damping, or lower the rank")
        weights = (shifted[-1] / shifted)[:, None] - 1.0
        return lambda Z: Z + self.U @ (weights * (self.U.T @ Z))


def sketch(operator: Product, size: int, rank: int, *, seed: int = 0) -> Sketch:
    """Return the Nyström approximation of ``operator`` (p = ``size``) from ``rank`` products.

    Frangella, Tropp and Udell, "Randomized Nyström preconditioning", 2023, algorithm 2.1.

    Raises
    ------
    InvalidInput
        If the matrix is not known to be positive semidefinite, or is found not to be.
    """
    if not getattr(operator, "psd", False):
        raise InvalidInput(
            "the matrix to be sketched must be positive semidefinite (kind 'ggn' or a Fisher "
            "matrix): it is not known to be; the Hessian can be solved with a sketch of the ggn"
        )
    if not 1 <= rank <= size:
        raise InvalidInput(f"rank must be between 1 and the {size} coordinates, not {rank}")
    dtype = getattr(operator, "dtype", torch.float64)
    device = getattr(operator, "device", torch.device("cpu"))
    floor = float(getattr(operator, "floor", 0.0))
    random = torch.randn(
        size, rank, generator=torch.Generator().manual_seed(seed), dtype=torch.float64
    )
    omega = torch.linalg.qr(random.to(device))[0]
    Y = operator(omega) - floor * omega
    if not bool(torch.isfinite(Y).all()):
        raise InvalidInput("the products with the matrix to be sketched are not finite")
    shift = max(float(torch.finfo(dtype).eps * Y.norm() * size**0.5), 1e-150)
    for attempt in range(4):
        raised = shift * 10.0**attempt
        core = omega.T @ (Y + raised * omega)
        factor, failed = torch.linalg.cholesky_ex((core + core.T) / 2)
        if not int(failed):
            break
    else:
        raise InvalidInput("the matrix to be sketched has a negative eigenvalue")
    B = torch.linalg.solve_triangular(factor, (Y + raised * omega).T, upper=False).T
    U, singular, _ = torch.linalg.svd(B, full_matrices=False)
    return Sketch(U, (singular**2 - raised).clamp(min=0.0), floor, rank)


@dataclass(frozen=True)
class nystrom_cg:
    """Conjugate gradients preconditioned by a Nyström sketch.

    Attributes
    ----------
    damping, tol, max_iterations, flat
        See `cg`.
    rank : int
        Of the sketch; it holds ``8·p·rank`` bytes.
    seed : int
        Of the sketch.
    sketch : Sketch, optional
        One made before, for any damping: of this matrix, or of one close to it, such as the
        Gauss-Newton matrix of a sample of the records for their Hessian. By default the operator
        itself is sketched, which must be known to be positive semidefinite.
    """

    damping: float = 0.0
    tol: float = 1e-8
    max_iterations: int = 10_000
    flat: float = 0.0
    rank: int = 50
    seed: int = 0
    sketch: Sketch | None = None

    def solve(self, operator: Product, b: Tensor, *, strict: bool = True) -> Solution:
        """Solve for ``b`` (p,) or every column of (p, k).

        Raises
        ------
        NotConverged
            If ``strict`` and the status is not ``ok``.
        InvalidInput
            If there is no sketch and the operator is not known to be positive semidefinite.
        """
        system = System(operator, b, self.damping)
        made = self.sketch
        if made is None:
            made = sketch(operator, len(b), min(self.rank, len(b)), seed=self.seed)
            system.products += made.products
        inverse = made.inverse(self.damping)
        found = iterate(system, self.tol, self.max_iterations, self.flat, inverse)
        return found.require() if strict else found


def iterate(
    system: System, tol: float, limit: int, flat: float, precondition: Precondition
) -> Solution:
    """Run rounds of conjugate gradients until every column's true residual is within ``tol``."""
    if not 0.0 < tol < 1.0:
        raise InvalidInput(f"tol must be between 0 and 1, not {tol}")
    X, R = torch.zeros_like(system.B), system.B
    before = R.norm(dim=0)
    total = 0
    status: Status = "ok"
    info: dict[str, float] = {}
    depth = max(1e-13, 100.0 * system.precision)
    for _ in range(_ROUNDS):
        goal = torch.maximum(depth * before, torch.full_like(before, _SAFETY * tol))
        run = _Run(system, R, torch.where(before > tol, goal, before), flat, precondition)
        total += run.go(limit - total)
        X = X + run.X
        R = system.left(X)
        now = R.norm(dim=0)
        if run.status != "ok":
            status, info = run.status, run.info
        elif bool((now <= tol).all()):
            status = "ok"
        elif total >= limit or not bool((now < 0.5 * before)[now > tol].any()):
            status = "not_converged"
        else:
            before = now
            continue
        break
    else:
        status, now = "not_converged", before
    return system.solution(X, status, total, now, **info)


class _Run:
    """One round: a correction of every column whose residual is above its goal."""

    def __init__(
        self, system: System, R: Tensor, goal: Tensor, flat: float, precondition: Precondition
    ) -> None:
        self.system, self.goal, self.flat, self.precondition = system, goal, flat, precondition
        self.X = torch.zeros_like(R)
        self.status: Status = "ok"
        self.info: dict[str, float] = {}
        self.active = torch.nonzero(R.norm(dim=0) > goal)[:, 0]
        self.R = R[:, self.active]
        Z = precondition(self.R)
        self.D, self.rho = Z, (self.R * Z).sum(0)

    def go(self, limit: int) -> int:
        """Iterate at most ``limit`` times; return how often."""
        for count in range(limit):
            if len(self.active) == 0:
                return count
            AD = self.system.times(self.D)
            curve, size = (self.D * AD).sum(0), (self.D * self.D).sum(0)
            straight = curve > self.flat * size
            if not bool(straight.all()):
                self._stop(curve / size, straight)
                if len(self.active) == 0:
                    return count + 1
                AD, curve = AD[:, straight], curve[straight]
            alpha = self.rho / curve
            self.X[:, self.active] += alpha * self.D
            self.R = self.R - alpha * AD
            self._drop(self.R.norm(dim=0) > self.goal[self.active])
            Z = self.precondition(self.R)
            rho = (self.R * Z).sum(0)
            self.D = Z + rho / self.rho * self.D
            self.rho = rho
        return limit

    def _stop(self, quotients: Tensor, straight: Tensor) -> None:
        """Give up the columns that have met negative curvature, or no number at all."""
        bad = quotients[~straight]
        if not bool(torch.isfinite(bad).all()):
            self.status = "diverged"
        elif self.status == "ok":
            self.status = "negative_curvature"
            self.info["curvature"] = float(bad.min()) - self.system.damping
        self._drop(straight)

    def _drop(self, keep: Tensor) -> None:
        if not bool(keep.all()):
            self.active, self.R, self.D = self.active[keep], self.R[:, keep], self.D[:, keep]
            self.rho = self.rho[keep]
