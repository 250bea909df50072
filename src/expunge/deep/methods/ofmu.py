"""OFMU: bi-level unlearning [Asif & Mohammadi Amiri, 2509.22483]. Experimental."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from expunge.deep.descent import Descent, Recipe
from expunge.deep.methods.common import Stepping, Work
from expunge.deep.problem import Need
from expunge.deep.trees import Batch
from expunge.guarantee import Tag


@dataclass(frozen=True)
class Ofmu(Stepping):
    """Ascend ``Φ = L_F − b·sim(∇L_F, ∇L_R)``, then descend ``L_R + ρ‖∇Φ‖²``, in turn.

    What the paper publishes was not available when this was written but for its abstract: sim is
    taken to be the squared cosine, and b, ρ, rates and numbers of steps are our own. Derivatives
    are exact, of third order in the descent; for small networks.

    Attributes
    ----------
    similarity, penalty : float
        b and ρ.
    ascent, descent : float
        Learning rates, plain SGD.
    inner, rounds : int
        Steps up before every step down, and steps down.
    batch_size : int
    """

    name: ClassVar[str] = "ofmu"
    requires: ClassVar[tuple[Need, ...]] = ("retain", "forget")

    similarity: float = 0.1
    penalty: float = 1e-3
    ascent: float = 1e-3
    descent: float = 1e-2
    inner: int = 1
    rounds: int = 100
    batch_size: int = 128

    def change(self, work: Work) -> None:
        """Go up and down."""
        size, wd = self.batch_size, work.problem.wd
        up = Descent(work.network, Recipe("sgd", self.ascent, 1, size), self.rounds)
        down = Descent(work.network, Recipe("sgd", self.descent, 1, size, wd), self.rounds)
        forget, retain = work.endless("forget", size), work.endless("retain", size)
        for _ in range(self.rounds):
            for _ in range(self.inner):
                value, _ = self._inner(work, next(forget), next(retain))
                up.step(-value)
            batch = next(retain)
            value, slopes = self._inner(work, next(forget), batch)
            curved = torch.autograd.grad(
                value, slopes, create_graph=True, allow_unused=True, materialize_grads=True
            )
            square = torch.stack([(g * g).sum() for g in curved]).sum()
            down.step(work.loss(batch) + self.penalty * square)
        work.note("steps", up.steps + down.steps)
        work.note("similarity", "squared cosine", Tag.assumed)

    def _inner(self, work: Work, forget: Batch, retain: Batch) -> tuple[Tensor, tuple[Tensor, ...]]:
        """Return Φ, differentiable twice, and the parameters."""
        chosen = work.network.parameters
        lost = work.loss(forget)
        slopes = [
            torch.cat(
                [
                    g.reshape(-1)
                    for g in torch.autograd.grad(
                        value, chosen, create_graph=True, allow_unused=True, materialize_grads=True
                    )
                ]
            )
            for value in (lost, work.loss(retain))
        ]
        a, b = slopes
        cosine = (a @ b) ** 2 / ((a @ a) * (b @ b)).clamp(min=torch.finfo(a.dtype).tiny)
        return lost - self.similarity * cosine, chosen
