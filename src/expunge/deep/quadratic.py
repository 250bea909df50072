"""The user's part of a linearised network: a quadratic, its minimiser, and how far off one may be.

    F(v) = ½ Σ_i ‖f(x_i) + J(x_i)v − y_i‖² + (Λ/2)‖v‖²        sum units, Λ constant

The minimiser on any records is unique, and ``‖v − v*‖ ≤ ‖∇F(v)‖/Λ``. A residual is measured in
float64 by one pass; what rounding may hide is added as `ROUNDING` times the norms of the summed
parts. Where only sums are kept (`Sums`), their rounding errors are bounded as they accumulate.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from expunge.deep.batches import as_batches
from expunge.deep.jacobian import CHUNK, Tangent
from expunge.errors import InvalidInput

UNIT = 2.0**-53
ROUNDING = 1e-9
"""Of a measured residual, relative to the norms of the parts that were summed."""


def answers(targets: Tensor, outputs: int, alpha: float) -> Tensor:
    """Return ``y`` (b, c) in float64: α · one-hot of integer classes, or real targets as they are.

    Raises
    ------
    InvalidInput
        If the targets do not fit so many outputs.
    """
    if targets.is_floating_point():
        found = targets.double().reshape(len(targets), -1)
        if found.shape[1] != outputs:
            raise InvalidInput(f"{outputs} outputs need real targets (b, {outputs})")
        return found
    whole = targets.dtype != torch.bool and targets.ndim == 1
    if not whole or outputs < 2 or int(targets.min()) < 0 or int(targets.max()) >= outputs:
        raise InvalidInput(
            f"a network of {outputs} outputs needs one integer class per record, at least 0 and "
            f"below {outputs} (and two outputs at least), or real targets (b, {outputs})"
        )
    return alpha * torch.nn.functional.one_hot(targets.long(), outputs).double()


@dataclass(frozen=True, repr=False)
class Objective:
    """F on some records.

    Attributes
    ----------
    tangent : Tangent
    data : batches
        Inputs and float64 targets ``y`` (b, c).
    l2 : float
        Λ > 0.
    """

    tangent: Tangent
    data: Any
    l2: float

    def __post_init__(self) -> None:
        """Hold the records as batches on the tangent's device."""
        object.__setattr__(self, "data", as_batches(self.data, device=self.tangent.device))

    @property
    def count(self) -> int:
        """Number of records."""
        rows: int = self.data.rows
        return rows

    def residual(self, v: Tensor) -> tuple[Tensor, float]:
        """Return ``∇F(v)`` (p,), measured, and a bound of what rounding may hide of it."""
        shrink = self.l2 * v
        total, scale = shrink.clone(), float(shrink.norm())
        with self.tangent.still():
            for inputs, y in self.data.chunks(CHUNK):
                f, moved = self.tangent.forward(inputs, v)
                part = self.tangent.backward(inputs, f + moved - y)
                total += part
                scale += float(part.norm())
        return total, ROUNDING * scale

    def distance(self, v: Tensor) -> tuple[float, Tensor]:
        """Return a bound of ``‖v − v*‖``, and the residual (p,) it comes from."""
        gradient, hidden = self.residual(v)
        return (float(gradient.norm()) * (1 + 1e-12) + hidden) / self.l2, gradient

    def push(self, v: Tensor) -> Tensor:
        """Return ``J(x_i)v`` of all records, (n, c)."""
        with self.tangent.still():
            return torch.cat([self.tangent.forward(x, v)[1] for x, _ in self.data.chunks(CHUNK)])

    def pull(self, u: Tensor) -> Tensor:
        """Return ``Σ_i J(x_i)ᵀu_i`` (p,) for ``u`` (n, c)."""
        total, start = torch.zeros_like(self.tangent.at), 0
        with self.tangent.still():
            for inputs, y in self.data.chunks(CHUNK):
                total += self.tangent.backward(inputs, u[start : start + len(y)])
                start += len(y)
        return total

    def blocks(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield rows ``A`` and what they are to answer beyond the core, ``t = y − f``."""
        with self.tangent.still():
            for inputs, y in self.data.chunks(self.tangent.per_block()):
                yield self.block(inputs, y)

    def block(self, inputs: Any, y: Tensor) -> tuple[Tensor, Tensor]:
        """Return rows and answers of one batch."""
        A, f = self.tangent.rows(inputs, len(y))
        return A, y.reshape(f.shape) - f


@dataclass(frozen=True, repr=False)
class Sums:
    """``ΣAᵀA`` and ``ΣAᵀt`` over rows, and how wrong they may be.

    Attributes
    ----------
    gram, moment : (q, q) and (q, k) tensors
    spread, cross : float
        ``Σ‖A‖²`` and ``Σ‖A‖‖t‖`` over all blocks ever added or taken away.
    chain : int
        Longest chain of additions behind an entry.
    grain : float
        Relative change of rows that are computed in other company.
    """

    gram: Tensor
    moment: Tensor
    spread: float
    cross: float
    chain: int
    grain: float

    @classmethod
    def of(cls, objective: Objective, grain: float) -> Sums:
        """Sum over all records of an objective: one pass."""
        found: Sums | None = None
        for A, t in objective.blocks():
            if found is None:
                q, k = A.shape[1], t.shape[1]
                found = cls(A.new_zeros(q, q), A.new_zeros(q, k), 0.0, 0.0, 0, grain)
            found = found.add(A, t, 1.0)
        if found is None:
            raise ValueError("an objective without records has no sums")
        return found

    def add(self, A: Tensor, t: Tensor, sign: float) -> Sums:
        """Add a block (``sign`` 1) or take it away (−1)."""
        a, b = float(A.norm()), float(t.norm())
        return replace(
            self,
            gram=self.gram + sign * (A.T @ A),
            moment=self.moment + sign * (A.T @ t),
            spread=self.spread + a * a,
            cross=self.cross + a * b,
            chain=max(self.chain, len(A)) + 1,
        )

    @property
    def errors(self) -> tuple[float, float]:
        """Bounds of the Frobenius norms of what is wrong with ``gram`` and ``moment``."""
        unit = 1.01 * (self.chain + 2) * UNIT + 3.0 * self.grain
        return unit * self.spread, unit * self.cross


@dataclass(frozen=True, repr=False)
class Primal:
    """Few parameters: sums, and the minimiser by Cholesky. Deletion needs the deleted rows only.

    Attributes
    ----------
    sums : Sums
    l2 : float
    V : (q, k) tensor
    v : (p,) tensor
    bound : float
        Proved distance of ``v`` from the minimiser.
    """

    sums: Sums
    l2: float
    V: Tensor = field(repr=False)
    v: Tensor = field(repr=False)
    bound: float

    @classmethod
    def of(cls, objective: Objective, grain: float) -> Primal:
        """Form the sums over all records and solve."""
        return cls.solved(Sums.of(objective, grain), objective.l2, objective.tangent)

    @classmethod
    def solved(cls, sums: Sums, l2: float, tangent: Tangent) -> Primal:
        """Solve, and bound the distance from what the sums may be wrong by; inf if not PSD."""
        H = sums.gram + l2 * torch.eye(len(sums.gram), dtype=torch.float64, device=sums.gram.device)
        H = (H + H.T) / 2
        factor, failed = torch.linalg.cholesky_ex(H)
        if int(failed):
            V = torch.zeros_like(sums.moment)
            return cls(sums, l2, V, tangent.spread(V), math.inf)
        V = torch.cholesky_solve(sums.moment, factor)
        V = V + torch.cholesky_solve(sums.moment - H @ V, factor)
        left = float((sums.moment - H @ V).norm())
        size, gram, moment = float(V.norm()), *sums.errors
        unit = 1.01 * (len(H) + 4) * UNIT
        left += unit * (float(H.norm()) * size + float(sums.moment.norm()))
        bound = (left + gram * size + moment) * (1 + 1e-12) / l2
        return cls(sums, l2, V, tangent.spread(V), bound)

    def remove(self, objective: Objective, index: list[int]) -> Primal:
        """Delete the records of ``objective``; where they were does not matter."""
        sums = self.sums
        for A, t in objective.blocks():
            sums = sums.add(A, t, -1.0)
        return Primal.solved(sums, self.l2, objective.tangent)

    def settle(self, retained: Objective, tolerance: float) -> Primal:
        """Measure; if that is not enough, form the sums again from what is retained."""
        bound, _ = retained.distance(self.v)
        if bound <= tolerance:
            return replace(self, bound=min(bound, self.bound))
        again = Primal.of(retained, self.sums.grain)
        return replace(again, bound=min(again.bound, retained.distance(again.v)[0]))
