"""The damped Newton step of Zhang et al. on a network, and all that it leaves out."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor

from expunge.deep.curvature import Operator, gradient
from expunge.deep.inverse import Solution, cg, direct, lissa, nystrom_cg
from expunge.deep.methods.common import Work
from expunge.deep.problem import Evidence
from expunge.deep.spectrum import lanczos
from expunge.errors import InvalidInput
from expunge.guarantee import Tag

Mode = Literal["retained", "forget"]
Inverse = lissa | cg | nystrom_cg | direct

DENSE = 1_000
"""Largest p whose spectrum is computed in full, which makes λ_min a measured number."""

_STEPS, _BASIS = 80, 2**30
_ABOVE = 1.01


@dataclass(frozen=True)
class Step:
    """``w − (∇²L_R(w) + λI)⁻¹g`` and what is left of the exact Newton step with this λ.

    Attributes
    ----------
    end : (p,) float64 tensor
    slack : float
        ``‖g − ∇L_R(w)‖ + ‖r‖``, with r the residual of the solver: to be added to G.
    """

    end: Tensor
    slack: float


def newton(
    work: Work,
    mode: Mode,
    damping: float | None,
    solver: Inverse,
    smallest: Evidence | None = None,
) -> Step:
    """Return the step from the copy's weights; norms and times go into its evidence.

    Parameters
    ----------
    mode : {"retained", "forget"}
        g is ``∇L_R``, or ``−(m/(n−m))∇L_F``. Both gradients are always computed, to print both
        parts; ``stepSeconds`` counts the one that is used, and the solver.
    damping : float, optional
        λ; just above ``‖∇²L_R‖`` if not given.
    smallest : Evidence, optional
        λ_min of ``∇²L_R``; computed or estimated, see `extremes`, if not given.

    Raises
    ------
    InvalidInput
        If λ is not above −λ_min as far as is known, or λ_min is given without λ.
    NotConverged
        If the solver fails.
    """
    problem, network = work.problem, work.network
    kept, gone = work.part("retain"), work.part("forget")
    start, share = network.vector().double(), gone.rows / kept.rows
    slopes, clock = [], []
    for part in (kept, gone):
        began = time.perf_counter()
        slopes.append(gradient(network, problem.loss, part, wd=problem.wd, at=start))
        clock.append(time.perf_counter() - began)
    work.rows.update(retain=kept.rows, forget=gone.rows)
    residual, short = slopes[0] + share * slopes[1], mode == "forget"
    slope = -share * slopes[1] if short else slopes[0]
    operator = Operator("hessian", network, problem.loss, kept, wd=problem.wd)
    chosen = replace(solver, damping=damped(work, operator, damping, smallest))
    began = time.perf_counter()
    found = chosen.solve(operator, slope)
    work.note("stepSeconds", clock[short] + time.perf_counter() - began)
    dropped = float(residual.norm()) if short else 0.0
    work.note("residualPart", float(residual.norm()))
    work.note("forgetPart", share * float(slopes[1].norm()))
    work.note("dropped", dropped)
    work.note("step", float(found.value.norm()))
    _note(work, solver, found)
    return Step(start - found.value, dropped + found.residual * float(slope.norm()))


def damped(
    work: Work, operator: Operator, damping: float | None, smallest: Evidence | None = None
) -> float:
    """Return λ, once it is above −λ_min as far as is known."""
    if smallest is None:
        least, largest, tag = extremes(operator)
        products = operator.size if tag is Tag.measured else _lanczos_steps(operator.size)
        work.rows["retain"] += products * work.part("retain").rows
        smallest = Evidence(least, tag)
        work.note("largest", largest, tag)
        if damping is None:
            damping = _ABOVE * max(abs(least), abs(largest))
    if damping is None:
        raise InvalidInput("where smallest is given, damping must be given as well")
    work.evidence["smallest"] = smallest
    work.note("damping", damping, Tag.enforced)
    if not (math.isfinite(damping) and damping >= 0.0 and damping > -smallest.value):
        raise InvalidInput(
            f"damping must be at least 0 and exceed −λ_min = {-smallest.value:.4g} of the retained "
            f"Hessian, or the local convex approximation is none; got {damping:.4g}"
        )
    return damping


def extremes(operator: Operator, steps: int = _STEPS) -> tuple[float, float, Tag]:
    """Return the smallest and the largest eigenvalue, and whether they are measured or estimated.

    Measured ones come from the matrix in full, moved outwards by the rounding of the eigensolver;
    estimated ones from so many steps of Lanczos' iteration, fewer where p is very large.
    """
    size = operator.size
    if size > DENSE:
        found = lanczos(
            operator, size, steps=min(steps, _lanczos_steps(size)), device=operator.device
        )
        return found.smallest, found.largest, Tag.assumed
    values = torch.linalg.eigvalsh(operator.exact().dense())
    slack = size * torch.finfo(torch.float64).eps * float(values.abs().max())
    return float(values[0]) - slack, float(values[-1]) + slack, Tag.measured


def _lanczos_steps(size: int) -> int:
    """Return as many steps as fit into 1 GiB, from 10 to 80."""
    return max(10, min(_STEPS, _BASIS // (8 * size)))


def _note(work: Work, solver: Inverse, found: Solution) -> None:
    """Note what the solver did, and how many records it read."""
    rows = work.part("retain").rows
    mini = solver.batch if isinstance(solver, lissa) else None
    work.rows["retain"] += rows + (found.products - 1) * (rows if mini is None else mini)
    work.note("solver", type(solver).__name__)
    work.note("residual", found.residual)
    work.note("iterations", found.iterations)
    for name in ("scale", "batch_norm", "standard_error"):
        if found.info.get(name) is not None:
            work.note(name, found.info[name])
