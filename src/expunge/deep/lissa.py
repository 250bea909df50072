"""LiSSA: a Neumann series over mini-batches [Agarwal, Bullins and Hazan, 2017], as published.

For comparison with what is published with it. It reads few records and is accurate to some per
cent; where passes over the data can be afforded, conjugate gradients are better.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from operator import itemgetter
from typing import Any

import torch
from torch import Tensor

from expunge.deep.curvature import Operator
from expunge.deep.graphs import build
from expunge.deep.objective import Objective
from expunge.deep.solution import Product, Solution, Status, System
from expunge.deep.trees import Batch, map_tree
from expunge.errors import InvalidInput

NORMS, POWERS = 20, 30
"""Mini-batches whose norm is measured, and power iterations for each."""

_GROWTH = 10.0

Step = Callable[[Tensor], Tensor]
"""From s vectors (s, p) to their products with the matrices of s mini-batches."""


@dataclass(frozen=True)
class lissa:
    """``h ← b + h − (H_batch + λI)h/s``; then ``x = h/s``, averaged over repeats.

    Attributes
    ----------
    damping : float
        λ, see `expunge.deep.krylov.cg`; here it must be positive, or the operator's ``wd``.
    scale : float, optional
        s. By default twice the largest norm of 20 mini-batches plus λ: the scale must exceed the
        norm of *mini-batches*, which is far above that of the whole.
    repeats, depth : int
        Runs averaged, and steps of each. The bias decays as ``(1 − (λ + λ_min)/s)^depth``.
    batch : int, optional
        Records of a step, drawn with replacement; None takes the whole data in every step.
    tol : float
        Largest relative residual on *all* the data that counts as solved.
    doublings : int
        How often a run that diverges is started again with twice the scale; 0 if one is given.
    seed : int
    """

    damping: float = 0.0
    scale: float | None = None
    repeats: int = 10
    depth: int = 1000
    batch: int | None = 10
    tol: float = 0.1
    doublings: int = 10
    seed: int = 0

    def solve(self, operator: Product, b: Tensor, *, strict: bool = True) -> Solution:
        """Solve for ``b`` (p,) or every column of (p, k); the operator is an `Operator`.

        ``products`` counts those with mini-batches. ``info``: ``scale``; ``batch_norm``, the norm
        it was chosen from (an estimate, None if it was given); ``standard_error``, relative, over
        the repeats, blind to bias, the largest of the columns; ``depth_for_tol``, the depth at
        which the bias is within the tolerance if no eigenvalue lies below the damping.

        Raises
        ------
        NotConverged
            If ``strict`` and the status is not ``ok``: ``diverged``, or a residual above ``tol``.
        InvalidInput
            If nothing keeps the iteration from growing, or single records cannot be drawn.
        """
        if not isinstance(operator, Operator):
            raise InvalidInput(
                f"LiSSA draws records: it needs an Operator, not {type(operator).__name__}"
            )
        system = System(operator, b, self.damping)
        self._check(self.damping + operator.objective.wd)
        found = self._solve(operator, system)
        return found.require() if strict else found

    def _solve(self, operator: Operator, system: System) -> Solution:
        generator = torch.Generator().manual_seed(self.seed)
        least = self.damping + operator.objective.wd
        norm, scales = None, [self.scale or 0.0]
        if self.scale is None:
            norm = self._norm(operator, system, generator)
            scales = [2.0 * (norm + self.damping) * 2.0**i for i in range(1 + self.doublings)]
        for scale in scales:
            runs = self._runs(operator, system, scale, _GROWTH / least, generator)
            if runs is not None:
                break
        info: dict[str, Any] = {"scale": scale, "batch_norm": norm}
        info["depth_for_tol"] = math.ceil(scale / least * math.log(1.0 / self.tol))
        if runs is None:
            return system.solution(torch.zeros_like(system.B), "diverged", self.depth, **info)
        X = runs.mean(0)
        residuals = system.left(X).norm(dim=0)
        status: Status = "ok" if bool((residuals <= self.tol).all()) else "not_converged"
        info["standard_error"] = _standard_error(runs, X)
        return system.solution(X, status, self.depth, residuals, **info)

    def _check(self, least: float) -> None:
        if least <= 0.0:
            raise InvalidInput("LiSSA needs damping (or weight decay) above 0 to converge")
        if self.scale is not None and not (math.isfinite(self.scale) and self.scale > 0.0):
            raise InvalidInput(f"scale must be positive and finite, not {self.scale}")
        if not 0.0 < self.tol < 1.0:
            raise InvalidInput(f"tol must be between 0 and 1, not {self.tol}")
        if min(self.repeats, self.depth, 1 if self.batch is None else self.batch) < 1:
            raise InvalidInput("repeats, depth and batch must be at least 1")

    def _norm(self, operator: Operator, system: System, generator: torch.Generator) -> float:
        """Return the largest norm of some mini-batches, by power iteration: an estimate."""
        count = 1 if self.batch is None else NORMS
        v = torch.randn(count, operator.size, generator=generator, dtype=torch.float64)
        v = v.to(operator.device)
        with operator.objective.still():
            times = self._draw(operator, count, generator)
            for _ in range(POWERS):
                v = times(v / v.norm(dim=1, keepdim=True).clamp(min=1e-300))
        system.products += count * POWERS
        norm = float(v.norm(dim=1).max())
        if not math.isfinite(norm):
            raise InvalidInput("the products with the matrices of mini-batches are not finite")
        return norm

    def _draw(self, operator: Operator, count: int, generator: torch.Generator) -> Step:
        if self.batch is None:
            return lambda V: operator(V.T).T
        o = operator.objective
        index = torch.randint(o.batches.rows, (count, self.batch), generator=generator)
        batch = o.batches.take(index.reshape(-1))

        def rows(t: Tensor) -> Tensor:
            kind = operator.dtype if t.is_floating_point() else t.dtype
            return t.reshape(count, -1, *t.shape[1:]).to(kind)

        split = map_tree(rows, batch)
        return lambda V: _products(operator, split, V) + o.wd * V

    def _runs(
        self,
        operator: Operator,
        system: System,
        scale: float,
        bound: float,
        generator: torch.Generator,
    ) -> Tensor | None:
        """Return the results of every repeat (s, p, k), or None if one has grown past ``bound``."""
        b = system.B.T.repeat(self.repeats, 1)
        h = b
        with operator.objective.still():
            for _ in range(self.depth):
                times = self._draw(operator, len(b), generator)
                h = b + h - (times(h) + self.damping * h) / scale
                system.products += len(b)
                if not float(h.norm(dim=1).max()) <= bound * scale:
                    return None
        return (h / scale).reshape(self.repeats, -1, operator.size).mT


def _standard_error(runs: Tensor, X: Tensor) -> float:
    if len(runs) < 2:
        return math.nan
    spread = (runs.var(0).sum(0) / len(runs)).sqrt()
    return float((spread / X.norm(dim=0).clamp(min=1e-300)).max())


def _products(operator: Operator, batches: Batch, V: Tensor) -> Tensor:
    """Return the mean-form products (s, p) of s vectors with the matrices of s mini-batches."""
    o, rows = operator.objective, batches[1].shape[1]
    U = V.to(operator.dtype)
    if operator.kind in _SINGLE:
        single: Callable[..., Tensor] = partial(_SINGLE[operator.kind], o)
        try:
            found: Tensor = torch.func.vmap(single)(U, *batches)
            return found.detach().double() / rows
        except torch.OutOfMemoryError:
            raise
        except RuntimeError:
            pass  # an operation without a batching rule
    products = []
    for i, u in enumerate(U):
        one: Batch = map_tree(itemgetter(i), batches)
        graph = build(operator.kind, o.network, o.loss, o.at, one)
        products.append(graph.apply(u[None], together=False)[0])
    return torch.stack(products).double() / rows


def _hessian(o: Objective, u: Tensor, inputs: Any, targets: Tensor) -> Tensor:
    def total(weights: Tensor) -> Tensor:
        return o.losses(weights, (inputs, targets)).sum()

    return _back(torch.func.grad(total), o.at, u)


def _gauss_newton(o: Objective, u: Tensor, inputs: Any, targets: Tensor) -> Tensor:
    run = torch.func.vjp(lambda w: o.network.outputs(w, inputs), o.at)
    outputs, back = run[0], run[1]
    moved = _back(lambda c: back(c)[0], torch.zeros_like(outputs), u)
    slope = torch.func.grad(lambda f: o.loss(f, targets).sum())
    found: Tensor = back(_back(slope, outputs, moved))[0]
    return found


def _back(f: Callable[[Tensor], Tensor], at: Tensor, v: Tensor) -> Tensor:
    """Return the vector-Jacobian product of ``f`` at a point."""
    found: Tensor = torch.func.vjp(f, at)[1](v)[0]
    return found


_SINGLE: dict[str, Callable[[Objective, Tensor, Any, Tensor], Tensor]] = {
    "hessian": _hessian,
    "ggn": _gauss_newton,
}
