"""Selective Synaptic Dampening: shrink the weights that matter more to F than to all of D."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from expunge.deep.batches import as_batches
from expunge.deep.methods.common import Baseline, Work
from expunge.deep.problem import Need
from expunge.deep.records import diagonal
from expunge.deep.training import Chunked
from expunge.errors import InvalidInput


@dataclass(frozen=True)
class Dampening(Baseline):
    """``w ← w·min(λ I_D/I_F, 1)`` where ``I_F > α I_D`` [Foster et al., 2024a].

    ``I_S`` is the mean over the batches of S of the squared gradient of their mean loss: it depends
    on the size of the batches, which is the same for both. ``I_D`` was stored at training.

    Attributes
    ----------
    alpha : float
        10 was published, which takes a small network apart where F is a class; for vision
        transformers 5 (a class), 25 (a subclass) and 10 (random).
    dampening : float
        λ.
    """

    name: ClassVar[str] = "ssd"
    requires: ClassVar[tuple[Need, ...]] = ("forget", "stored")

    alpha: float = 100.0
    dampening: float = 1.0

    def change(self, work: Work) -> None:
        """Shrink."""
        stored = work.problem.stored
        assert stored is not None
        w = work.network.vector()
        whole = stored.importance.to(w.device)
        if whole.shape != w.shape:
            raise InvalidInput("the stored importance is of other parameters than params")
        chunks = as_batches(Chunked(work.part("forget"), stored.batch_size))
        own = diagonal("batch_grad_sq", work.network, work.problem.loss, chunks)
        work.rows["forget"] += work.part("forget").rows
        work.network.load(w * factors(own, whole, self.alpha, self.dampening))
        count = int((own > self.alpha * whole).sum())
        work.note("dampened", count)
        if not count:
            work.warnings.append(
                f"no weight matters {self.alpha:g} times as much to F as to D: nothing was changed"
            )


def factors(forget: Tensor, whole: Tensor, alpha: float, dampening: float) -> Tensor:
    """Return ``min(λ I_D/I_F, 1)`` where ``I_F > α I_D``, and 1 elsewhere.

    Examples
    --------
    >>> factors(torch.tensor([4.0, 1.0]), torch.tensor([1.0, 1.0]), 2.0, 1.0)
    tensor([0.2500, 1.0000])
    """
    if not (alpha > 0.0 and dampening >= 0.0):
        raise InvalidInput(f"alpha must be above 0 and dampening at least 0: {alpha}, {dampening}")
    if not bool(torch.isfinite(forget).all() and torch.isfinite(whole).all()):
        raise InvalidInput("the importance is not finite: look for numbers that are none in F or D")
    chosen = forget > alpha * whole
    ratio = dampening * whole / torch.where(chosen, forget, 1.0)
    return torch.where(chosen, ratio.clamp(max=1.0), 1.0)
