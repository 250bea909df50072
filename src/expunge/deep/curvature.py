"""Products with the Hessian, the generalised Gauss-Newton and the Fisher matrices over a loader.

With records i of S, outputs ``f_i``, losses ``ℓ_i`` and weights ``w`` (p,)::

    L(w) = (1/|S|) Σ ℓ_i(w) + (wd/2)‖w‖²                the mean objective; wd on w alone
    hessian            ∇²L
    ggn                (1/|S|) Σ J_iᵀ ∇²ℓ(f_i) J_i + wd·I        J_i = ∂f_i/∂w
    fisher_empirical   (1/|S|) Σ ∇ℓ_i ∇ℓ_iᵀ + wd·I
    fisher_true        (1/|S|) Σ_i Σ_k q_ik ∇ℓ(x_i, k) ∇ℓ(x_i, k)ᵀ + wd·I      q_ik = e^(−ℓ(x_i, k))

The module is put into eval mode and given back its modes; its gradients, buffers and weights and
the random state are left alone. Sums over chunks are in float64 whatever the module's dtype, and do
not depend on how a loader cuts its batches. Not for several threads at once.
"""

from __future__ import annotations

from collections.abc import Iterator
from copy import copy
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from expunge.deep.graphs import KINDS, Graph, Kind, Loss, build, forward_product, repeatable
from expunge.deep.network import Network
from expunge.deep.objective import Objective, gradient
from expunge.deep.trees import Batch
from expunge.errors import InvalidInput

__all__ = ["KINDS", "Estimate", "Kind", "Loss", "Operator", "gradient", "product"]

TOGETHER = 2**22
"""Bytes of one chunk's graph times columns up to which a CPU does columns at once."""

COLUMNS = 256
"""Columns of a dense matrix made in one pass."""


def product(
    kind: Kind,
    network: Network,
    loss: Loss,
    batches: Any,
    v: Tensor,
    *,
    wd: float = 0.0,
    at: Tensor | None = None,
    chunk: int | None = None,
) -> Tensor:
    """Return ``Av`` for one vector (p,), or for each column of ``v`` (p, k), in one pass.

    For several products at the same weights make an `Operator`.

    Parameters
    ----------
    kind : {"hessian", "ggn", "fisher_empirical", "fisher_true"}
    network : Network
        From `expunge.deep.network.view`.
    loss : callable
        ``loss(outputs, targets)`` gives the b losses of b records (``reduction="none"``).
    batches : Batches, or what `as_batches` takes
    v : (p,) or (p, k) tensor
    wd : float
        Weight decay of the mean objective; ``wd·v`` is added once.
    at : (p,) tensor, optional
        Weights; the module's own, if none are given. Derivatives are computed in their dtype:
        ``at=network.vector().double()`` computes in float64 whatever the module's dtype.
    chunk : int, optional
        Records at once; chosen from a memory estimate, if not given.

    Raises
    ------
    InvalidInput
        If a record's loss depends on the other records or on chance, or the loss is not one number
        per record.
    """
    return Operator(kind, network, loss, batches, wd=wd, at=at, chunk=chunk, memory=0)(v)


@dataclass(frozen=True)
class Estimate:
    """What products will need, measured on a few records before the first one.

    Attributes
    ----------
    record : int
        Bytes that the graph of one record holds.
    chunk : int
        Records at once.
    kept : int
        Records whose graphs are kept between products; the others are computed again.
    """

    record: int
    chunk: int
    kept: int


class Operator:
    """``v ↦ Av`` at fixed weights, for many products: the graphs are kept as far as memory goes.

    Parameters are those of `product`, and

    memory : int, optional
        Bytes of graphs to keep between products; by default 1 GiB on a CPU, a quarter of the
        device's memory elsewhere. 0 keeps nothing.

    Attributes
    ----------
    objective : Objective
    psd : bool
        Whether the matrix has no negative eigenvalue: all but the Hessian. For ``ggn`` that needs a
        loss that is convex in the outputs.
    estimate : Estimate
    """

    def __init__(
        self,
        kind: Kind,
        network: Network,
        loss: Loss,
        batches: Any,
        *,
        wd: float = 0.0,
        at: Tensor | None = None,
        chunk: int | None = None,
        memory: int | None = None,
    ) -> None:
        if kind not in KINDS:
            raise InvalidInput(f"kind must be one of {', '.join(KINDS)}, not {kind!r}")
        self.kind, self.psd = kind, kind != "hessian"
        self.objective = Objective(network, loss, batches, wd=wd, at=at)
        self._asked, self._memory = chunk, memory
        self.estimate = self._plan()
        parts = network.module.modules()
        convolves = any(isinstance(part, nn.modules.conv._ConvNd) for part in parts)
        self._forward_first = convolves or kind != "hessian"
        self._exact: Operator | None = None
        self._graphs: list[Graph] = []
        self._complete = False

    def __repr__(self) -> str:
        return f"Operator({self.kind}, p={self.size}, {self.dtype}, {self.estimate})"

    @property
    def size(self) -> int:
        """Number of coordinates p."""
        return len(self.objective.at)

    @property
    def dtype(self) -> torch.dtype:
        """In which derivatives are computed."""
        return self.objective.at.dtype

    @property
    def device(self) -> torch.device:
        """Where they are."""
        return self.objective.at.device

    @property
    def floor(self) -> float:
        """What is known to lie under all eigenvalues of the matrix: ``wd``; 0 for the Hessian."""
        return self.objective.wd if self.psd else 0.0

    def exact(self) -> Operator:
        """Return the same matrix computed in float64: what a residual is judged by.

        It keeps no graphs.
        """
        if self.dtype == torch.float64:
            return self
        if self._exact is None:
            other = copy(self)
            other.objective = self.objective.double()
            record = self.estimate.record * 8 // self.dtype.itemsize
            other.estimate = Estimate(record, other.objective.chunk(record, self._asked), 0)
            other._graphs, other._complete = [], False
            self._exact = other
        return self._exact

    def __call__(self, v: Tensor) -> Tensor:
        """Return ``Av``, or ``AV`` for the columns of ``V`` (p, k), in the dtype of ``v``.

        Raises
        ------
        InvalidInput
            If ``v`` has another length.
        """
        if v.ndim not in (1, 2) or len(v) != self.size:
            raise InvalidInput(
                f"expected a vector ({self.size},) or columns ({self.size}, k), not the shape "
                f"{(*v.shape,)}"
            )
        V = v.detach().reshape(self.size, -1).T.to(self.device)
        total = torch.zeros(V.shape, dtype=torch.float64, device=self.device)
        for part in self._parts(V.to(self.dtype)):
            total += part
        total = total / self.objective.batches.rows + self.objective.wd * V.double()
        return total.T.reshape(v.shape).to(v)

    def dense(self) -> Tensor:
        """Return the matrix (p, p), symmetrised, in float64: p products."""
        p = self.size
        matrix = torch.empty(p, p, dtype=torch.float64, device=self.device)
        for start in range(0, p, COLUMNS):
            stop = min(p, start + COLUMNS)
            unit = torch.zeros(p, stop - start, dtype=torch.float64, device=self.device)
            unit.diagonal(-start).fill_(1.0)
            matrix[:, start:stop] = self(unit)
        return matrix.add_(matrix.T.clone()).div_(2.0)

    def _plan(self) -> Estimate:
        o = self.objective
        record = o.weigh(lambda batch: build(self.kind, o.network, o.loss, o.at, batch))
        chunk, rows = o.chunk(record, self._asked), o.batches.rows
        budget = o.limit if self._memory is None else self._memory
        return Estimate(record, chunk, min(rows, budget // record))

    def _parts(self, V: Tensor) -> Iterator[Tensor]:
        """Yield the products (k, p) of every chunk, summed over its records."""
        if self._complete:
            with repeatable():
                for graph in self._graphs:
                    yield self._apply(graph, V)
            return
        o, done, have = self.objective, 0, len(self._graphs)
        with o.still():
            for number, batch in enumerate(o.batches.chunks(self.estimate.chunk)):
                done += len(batch[1])
                if number < have:
                    yield self._apply(self._graphs[number], V)
                elif done <= self.estimate.kept:
                    self._graphs.append(build(self.kind, o.network, o.loss, o.at, batch))
                    yield self._apply(self._graphs[-1], V)
                else:
                    yield self._once(batch, V)
        self._complete = done <= self.estimate.kept

    def _once(self, batch: Batch, V: Tensor) -> Tensor:
        """Return the products of a chunk whose graph is not kept."""
        o = self.objective
        if len(V) == 1 and self._forward_first:
            try:
                return forward_product(self.kind, o.network, o.loss, o.at, batch, V[0])[None]
            except torch.OutOfMemoryError:
                raise
            except RuntimeError:
                self._forward_first = False  # an operation without a forward derivative
        return self._apply(build(self.kind, o.network, o.loss, o.at, batch), V)

    def _apply(self, graph: Graph, V: Tensor) -> Tensor:
        size = self.estimate.record * self.estimate.chunk
        room = TOGETHER if self.device.type == "cpu" else self.objective.limit
        columns = max(1, room // size)
        parts = torch.split(V, columns)
        return torch.cat([graph.apply(part, together=columns > 1) for part in parts])
