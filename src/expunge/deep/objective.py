"""The mean objective at fixed weights: what every sum over a loader has in common.

``L(w) = (1/|S|) Σ ℓ_i(w) + (wd/2)‖w‖²`` over the records i of S, ``w`` (p,) the parameters chosen.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from copy import copy
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks

from expunge.deep.batches import Batches, as_batches
from expunge.deep.graphs import Loss, pull, record_losses, repeatable
from expunge.deep.network import Network, UnsupportedModel, evaluating, refuse_batch_statistics
from expunge.deep.trees import Batch, cut
from expunge.errors import InvalidInput

MEMORY = 2**30
"""Bytes of graphs held at once on a CPU; on another device a quarter of its memory."""

CHUNK = 2**23
"""Bytes of the graph of one chunk on a CPU, about what its caches hold."""

_PROBE = 8


class Objective:
    """A network, a loss, records and weights; refuses what is not a sum over records.

    Parameters
    ----------
    network : Network
    loss : callable
        From outputs and targets of b records to their b losses.
    batches : Batches, or what `as_batches` takes
    wd : float
    at : (p,) tensor, optional
        Weights; the module's own, if none are given. Derivatives are computed in their dtype.

    Raises
    ------
    InvalidInput
        If a loss depends on chance, on other records, or is not one finite number per record.
    """

    def __init__(
        self,
        network: Network,
        loss: Loss,
        batches: Any,
        *,
        wd: float = 0.0,
        at: Tensor | None = None,
    ) -> None:
        if not (math.isfinite(wd) and wd >= 0.0):
            raise InvalidInput(f"wd must be a finite number, at least 0, not {wd}")
        refuse_batch_statistics(network.module)
        self.network, self.loss, self.wd = network, loss, float(wd)
        self.at = network.vector() if at is None else at.detach().to(network.device, copy=True)
        network.unflatten(self.at)
        self.batches: Batches = as_batches(batches, device=network.device)
        self._few = next(iter(self.batches.chunks(_PROBE)))
        with self.still():
            self._probe()

    def double(self) -> Objective:
        """Return the same objective, computed in float64."""
        other = copy(self)
        other.at = self.at.double()
        return other

    @property
    def limit(self) -> int:
        """Bytes of graphs to hold at once."""
        if self.at.device.type == "cpu":
            return MEMORY
        return int(torch.cuda.get_device_properties(self.at.device).total_memory // 4)

    @contextmanager
    def still(self) -> Iterator[None]:
        """Hold the module still, and the operations repeatable, while it is evaluated."""
        with evaluating(self.network.module), repeatable():
            yield

    def weigh(self, build: Callable[[Batch], object]) -> int:
        """Return the bytes that the graph of one record holds, measured on a few."""
        own = [self.at, *self.network.module.parameters(), *self.network.module.buffers()]
        weights = {t.untyped_storage().data_ptr() for t in own}
        held: dict[tuple[int, torch.Size], Tensor] = {}

        def pack(t: Tensor) -> Tensor:
            if t.untyped_storage().data_ptr() not in weights:
                held[t.data_ptr(), t.shape] = t.detach()
            return t.detach()

        with self.still(), saved_tensors_hooks(pack, lambda t: t):
            graph = build(self._few)
        del graph
        return max(1, sum(t.nbytes for t in held.values()) // len(self._few[1]))

    def chunk(self, record: int, asked: int | None) -> int:
        """Return how many records to do at once, if one holds ``record`` bytes."""
        if asked is not None and asked < 1:
            raise InvalidInput(f"chunk must be at least 1, not {asked}")
        size = CHUNK if self.at.device.type == "cpu" else self.limit // 4
        return min(asked or max(1, size // record), self.batches.rows)

    def gradient(self, chunk: int | None = None) -> Tensor:
        """Return ``∇L`` (p,).

        Raises
        ------
        InvalidInput
            If it is not finite.
        """
        rows = self.chunk(self.weigh(lambda batch: self.losses(self._leaf(), batch)), chunk)
        total = torch.zeros(len(self.at), dtype=torch.float64, device=self.at.device)
        with self.still():
            for batch in self.batches.chunks(rows):
                total += self.slope(batch)
        if not bool(torch.isfinite(total).all()):
            raise InvalidInput(
                "the gradient is not finite: look for values that are no numbers in the records, "
                "or a loss that has no derivative there"
            )
        return (total / self.batches.rows + self.wd * self.at).to(self.at.dtype)

    def slope(self, batch: Batch) -> Tensor:
        """Return the gradient (p,) of a batch's *summed* losses."""
        leaf = self._leaf()
        value = self.losses(leaf, batch).sum()
        return pull(value, leaf, torch.ones_like(value)[None], together=False)[0]

    def losses(self, weights: Tensor, batch: Batch) -> Tensor:
        """Return the losses (b,) of a batch at any weights."""
        return record_losses(self.network, self.loss, weights, batch)

    def _leaf(self) -> Tensor:
        return self.at.detach().requires_grad_()

    def _probe(self) -> None:
        cuda = [self.at.device] if self.at.device.type == "cuda" else []
        with torch.no_grad(), torch.random.fork_rng(devices=cuda):
            first, again, alone = (
                self.losses(self.at, cut(self._few, 0, rows)).double() for rows in (2, 2, 1)
            )
        if not bool(torch.isfinite(first).all()):
            raise InvalidInput("the loss of the first records is not finite")
        if not torch.equal(first, again):
            raise UnsupportedModel(
                "two evaluations of the same records differ in eval mode: the model draws random "
                "numbers (dropout called as a function?), so its loss has no derivative"
            )
        if abs(float(first[0] - alone[0])) > 1e-3 * abs(float(first[0])) + 1e-6:
            raise UnsupportedModel(
                "the loss of a record depends on the other records of its batch, so it is not a "
                "sum over records: use GroupNorm, or statistics that are frozen in eval mode"
            )


def gradient(
    network: Network,
    loss: Loss,
    batches: Any,
    *,
    wd: float = 0.0,
    at: Tensor | None = None,
    chunk: int | None = None,
) -> Tensor:
    """Return ``∇L`` (p,) of the *mean* objective; parameters as in `Objective`.

    Examples
    --------
    >>> from expunge.deep.network import view
    >>> net = view(torch.nn.Linear(1, 1, bias=False))
    >>> data = torch.tensor([[1.0], [3.0]]), torch.zeros(2)
    >>> half_square = lambda f, y: (f[:, 0] - y) ** 2 / 2
    >>> gradient(net, half_square, data, at=torch.tensor([2.0]), wd=0.1)
    tensor([10.2000])
    """
    return Objective(network, loss, batches, wd=wd, at=at).gradient(chunk)
