"""Teaching F wrong labels: everywhere, or where its gradient is largest (SalUn)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from expunge.deep.descent import Descent, Recipe
from expunge.deep.methods.common import Stepping, Work
from expunge.deep.network import evaluating
from expunge.deep.problem import Need
from expunge.deep.trees import Batch
from expunge.errors import InvalidInput


@dataclass(frozen=True)
class RandomLabels(Stepping):
    """Train on ``(x, y′)`` of F with ``y′ ≠ y`` drawn once, mixed with R.

    Attributes
    ----------
    lr : float
        Of Adam.
    epochs, batch_size : int
    mixed : bool
        Without R the method needs F alone.
    """

    name: ClassVar[str] = "random-labels"
    requires: ClassVar[tuple[Need, ...]] = ("forget",)

    lr: float = 1e-4
    epochs: int = 3
    batch_size: int = 128
    mixed: bool = True

    @property
    def needs(self) -> frozenset[Need]:
        """F, and R if it is mixed in."""
        return frozenset({"forget", "retain"} if self.mixed else {"forget"})

    def change(self, work: Work) -> None:
        """Learn the wrong labels."""
        classes, m = work.classes(), work.part("forget").rows
        true = torch.cat([targets for _, targets in work.part("forget")])
        labels = other_labels(true, classes, work.generator)
        rows = m + (work.part("retain").rows if self.mixed else 0)
        recipe = Recipe("adam", self.lr, self.epochs, self.batch_size)
        descent = Descent(work.network, recipe, -(-rows // self.batch_size))
        for _ in range(self.epochs):
            order = torch.randperm(rows, generator=work.generator)
            for index in torch.split(order, self.batch_size):
                descent.step(self._loss(work, index, labels, m))
        work.note("steps", descent.steps)

    def _loss(self, work: Work, index: Tensor, labels: Tensor, m: int) -> Tensor:
        """Return the mean loss of records of F (the first m positions) and of R (the rest)."""
        own, other, parts = index[index < m], index[index >= m] - m, list[Batch]()
        if len(own):
            inputs, _ = work.take("forget", own)
            parts.append((inputs, labels[own.to(labels.device)]))
        if len(other):
            parts.append(work.take("retain", other))
        return work.mixed(parts)


@dataclass(frozen=True)
class SalUn(Stepping):
    """Random labels on the weights whose forget gradient is largest [Fan et al., 2024].

    The mask is that of the largest ``share`` of ``|Σ_F ∇CE|`` over all weights, taken once at the
    trained weights; the others are put back after every step.

    Attributes
    ----------
    share : float
        Of the weights that may move, in (0, 1].
    lr, momentum : float
    epochs, batch_size : int
        An epoch is a pass over F with labels drawn anew, then one over R.
    """

    name: ClassVar[str] = "salun"
    requires: ClassVar[tuple[Need, ...]] = ("retain", "forget")

    share: float = 0.5
    lr: float = 0.013
    epochs: int = 10
    batch_size: int = 256
    momentum: float = 0.9

    def change(self, work: Work) -> None:
        """Learn wrong labels where the mask lets."""
        classes, size = work.classes(), self.batch_size
        with evaluating(work.model):
            mask = largest(work.gradient("forget"), self.share)
        recipe = Recipe("sgd", self.lr, self.epochs, size, work.problem.wd, self.momentum)
        per_epoch = work.steps("forget", size) + work.steps("retain", size)
        descent = Descent(work.network, recipe, per_epoch, mask)
        for _ in range(self.epochs):
            for batch in work.draw("forget", size):
                descent.step(work.loss(relabelled(batch, classes, work.generator)))
            for batch in work.draw("retain", size):
                descent.step(work.loss(batch))
        work.note("steps", descent.steps)
        work.note("masked", int(mask.sum()))


def largest(values: Tensor, share: float) -> Tensor:
    """Return where the ``share`` of entries of largest size are, at least one, ties by position.

    Examples
    --------
    >>> largest(torch.tensor([1.0, -5.0, 0.5, 2.0]), 0.5)
    tensor([False,  True, False,  True])
    """
    if not 0.0 < share <= 1.0:
        raise InvalidInput(f"share must be in (0, 1], not {share}")
    count = max(1, math.ceil(share * len(values)))
    mask = torch.zeros(len(values), dtype=torch.bool, device=values.device)
    mask[values.abs().argsort(descending=True, stable=True)[:count]] = True
    return mask


def other_labels(labels: Tensor, classes: int, generator: torch.Generator) -> Tensor:
    """Return labels drawn uniformly from the ones that each record has not."""
    if classes < 2:
        raise InvalidInput("there is no other label: the model has a single output")
    shift = torch.randint(1, classes, labels.shape, generator=generator)
    return (labels + shift.to(labels)) % classes


def relabelled(batch: Batch, classes: int, generator: torch.Generator) -> Batch:
    """Return the batch with other labels."""
    return batch[0], other_labels(batch[1], classes, generator)
