"""Influence functions, as published and with the factors that make them a Newton step."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, Literal, get_args

from torch import Tensor

from expunge.deep.curvature import Kind, Operator
from expunge.deep.inverse import SMALL, Solution, cg, direct, escalate
from expunge.deep.methods.common import Baseline, Work
from expunge.deep.problem import Need
from expunge.errors import InvalidInput

Variant = Literal["koh-liang", "rescaled", "newton"]


@dataclass(frozen=True)
class Influence(Baseline):
    """Add what the removal of F changes to first order; all terms include weight decay.

    ==========  =============================================================
    koh-liang   ``w + (m/n)(H_D + λI)⁻¹∇L_F(w)`` [Koh & Liang, 2017]
    rescaled    ``w + (m/(n−m))(H_D + λI)⁻¹∇L_F(w)``
    newton      ``w − (H_R + λI)⁻¹∇L_R(w)``: F is not read at all
    ==========  =============================================================

    The first two suppose ``∇L_D(w) = 0``. If H + λI is not positive definite, λ is raised until it
    is; the λ used is in the evidence.

    Attributes
    ----------
    variant : {"koh-liang", "rescaled", "newton"}
    curvature : {"ggn", "hessian", "fisher_empirical", "fisher_true"}
        What H is; ``ggn`` and ``hessian`` are the same for linear models.
    damping : float
        λ, in units of the mean objective.
    """

    name: ClassVar[str] = "influence"

    variant: Variant = "koh-liang"
    curvature: Kind = "ggn"
    damping: float = 0.01

    @property
    def needs(self) -> frozenset[Need]:
        """R, for H; F too but for Newton's step."""
        return frozenset({"retain"} if self.variant == "newton" else {"retain", "forget"})

    def change(self, work: Work) -> None:
        """Take one step."""
        if self.variant not in get_args(Variant):
            known = ", ".join(get_args(Variant))
            raise InvalidInput(f"variant must be one of {known}, not {self.variant!r}")
        m, n, wd = work.problem.removed, work.problem.total, work.problem.wd
        if self.variant == "newton":
            slope, scale = work.gradient("retain", wd=wd), -1.0
        else:
            scale = m / n if self.variant == "koh-liang" else m / (n - m)
            slope = work.gradient("forget", wd=wd)
        w = work.network.vector()
        step = self._solve(work, slope.double())
        work.network.load((w.double() + scale * step).to(w.dtype))

    def _solve(self, work: Work, slope: Tensor) -> Tensor:
        whole = self.variant != "newton"
        operator = Pooled(work, self.curvature, ("forget", "retain") if whole else ("retain",))
        damping, found = solve(operator, slope, self.damping, form=operator.size <= SMALL)
        for part, rows in operator.rows.items():
            work.rows[part] += rows * found.products
        work.note("damping", damping)
        work.note("residual", found.residual)
        work.note("products", found.products)
        return found.value


def solve(
    operator: Callable[[Tensor], Tensor], b: Tensor, damping: float, *, form: bool
) -> tuple[float, Solution]:
    """Return the λ that was needed, from ``damping`` on, and the solution of ``(A + λI)x = b``.

    ``form`` asks for the matrix to be formed; otherwise it is multiplied only.
    """
    if form:
        small, found = escalate(direct(damping), operator, b)
        return small.damping, found
    large, found = escalate(cg(damping), operator, b)
    return large.damping, found


class Pooled:
    """A curvature matrix of R, or of D: ``(m/n) A_F + ((n − m)/n) A_R``; an operator.

    R may be a sample of what is retained, where the problem knows n from its ids.
    """

    def __init__(self, work: Work, kind: Kind, parts: tuple[Literal["forget", "retain"], ...]):
        problem, network = work.problem, work.network
        self.rows = {part: work.part(part).rows for part in parts}
        gone = problem.removed / problem.total
        shares = {"forget": gone, "retain": 1.0 - gone if "forget" in parts else 1.0}
        at = network.vector().double()
        self.terms = [
            (
                shares[part],
                Operator(kind, network, problem.loss, work.part(part), wd=problem.wd, at=at),
            )
            for part in parts
        ]
        self.psd = kind != "hessian"
        self.floor = problem.wd if self.psd else 0.0
        self.dtype, self.device, self.size = at.dtype, at.device, len(at)

    def __call__(self, v: Tensor) -> Tensor:
        """Return ``Av`` for a vector (p,) or columns (p, k)."""
        total = self.terms[0][0] * self.terms[0][1](v)
        for share, operator in self.terms[1:]:
            total = total + share * operator(v)
        return total

    def dense(self) -> Tensor:
        """Return the matrix (p, p)."""
        total = self.terms[0][0] * self.terms[0][1].dense()
        for share, operator in self.terms[1:]:
            total = total + share * operator.dense()
        return total
