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
PIECE = 64
"""Most rows of one product that is added to a sum."""

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

    Pieces of at most `PIECE` rows are added with compensation, so that neither the number of rows
    nor that of deletions makes the sums worse.

    Attributes
    ----------
    high, low : (q, q + k) tensors
        ``Aᵀ[A, t]`` is their sum.
    spread, cross : float
        ``Σ‖A‖²`` and ``Σ‖A‖‖t‖`` over all pieces ever added or taken away.
    grain : float
        Relative change of rows that are computed in other company.
    """

    high: Tensor
    low: Tensor
    spread: float
    cross: float
    grain: float

    @classmethod
    def of(cls, objective: Objective, grain: float) -> Sums:
        """Sum over all records of an objective: one pass."""
        found: Sums | None = None
        for A, t in objective.blocks():
            if found is None:
                zero = A.new_zeros(A.shape[1], A.shape[1] + t.shape[1])
                found = cls(zero, zero, 0.0, 0.0, grain)
            found = found.add(A, t, 1.0)
        if found is None:
            raise ValueError("an objective without records has no sums")
        return found

    def add(self, A: Tensor, t: Tensor, sign: float) -> Sums:
        """Add rows (``sign`` 1) or take them away (−1)."""
        high, low, spread, cross = self.high, self.low, self.spread, self.cross
        for a, b in zip(torch.split(A, PIECE), torch.split(t, PIECE), strict=True):
            part = sign * (a.T @ torch.cat([a, b], 1))
            total = high + part
            back = total - high
            low = low + ((high - (total - back)) + (part - back))
            high = total
            size = float(a.norm()) * (1 + 1e-12)
            spread, cross = spread + size * size, cross + size * float(b.norm()) * (1 + 1e-12)
        return Sums(high, low, spread, cross, self.grain)

    @property
    def gram(self) -> Tensor:
        """``ΣAᵀA`` (q, q)."""
        return (self.high + self.low)[:, : len(self.high)]

    @property
    def moment(self) -> Tensor:
        """``ΣAᵀt`` (q, k)."""
        return (self.high + self.low)[:, len(self.high) :]

    @property
    def errors(self) -> tuple[float, float]:
        """Bounds of the Frobenius norms of what is wrong with ``gram`` and ``moment``."""
        unit = 1.01 * (PIECE + 4) * UNIT + 2.01 * self.grain
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
        G, moment = sums.gram, sums.moment
        H = (G + G.T) / 2 + l2 * torch.eye(len(G), dtype=torch.float64, device=G.device)
        factor, failed = torch.linalg.cholesky_ex(H)
        if int(failed):
            V = torch.zeros_like(moment)
            return cls(sums, l2, V, tangent.spread(V), math.inf)
        V = torch.cholesky_solve(moment, factor)
        V = V + torch.cholesky_solve(moment - H @ V, factor)
        size, (wrong, shifted) = float(V.norm()), sums.errors
        left = float((moment - H @ V).norm())
        left += 1.01 * (len(H) + 4) * UNIT * (float(H.norm()) * size + float(moment.norm()))
        bound = (left + wrong * size + shifted) * (1 + 1e-12) / l2
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
