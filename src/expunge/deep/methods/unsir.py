"""UNSIR: impair with noise that the class cannot explain, then repair [Tarun et al., 2023]."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from expunge.deep.descent import Descent, Recipe
from expunge.deep.methods.boundary import floating
from expunge.deep.methods.common import Stepping, Work
from expunge.deep.problem import Need
from expunge.deep.trees import Batch
from expunge.errors import InvalidInput


@dataclass(frozen=True)
class Unsir(Stepping):
    """Forget a whole class with noise in place of its records.

    ``N ~ N(0, I)`` is moved to minimise ``−CE(f(N), class) + regular·mean‖N‖²``; an epoch on copies
    of the noise together with a sample of R impairs, an epoch on the sample repairs. F must be of
    one class; its records are not read but for their label and shape.

    Attributes
    ----------
    noise_steps, noise_batch, copies : int
        Adam steps, number of noises, and how often each is repeated.
    noise_lr, regular : float
    per_class : int
        Records of every other class in the sample.
    lr : float
        Of Adam, both phases.
    impair_epochs, repair_epochs, batch_size : int
    """

    name: ClassVar[str] = "unsir"
    requires: ClassVar[tuple[Need, ...]] = ("retain", "forget")

    noise_steps: int = 25
    noise_batch: int = 32
    copies: int = 80
    noise_lr: float = 0.1
    regular: float = 0.1
    per_class: int = 500
    lr: float = 1e-4
    impair_epochs: int = 1
    repair_epochs: int = 1
    batch_size: int = 128

    def change(self, work: Work) -> None:
        """Impair and repair."""
        work.classes()
        labels = torch.cat([targets for _, targets in work.part("forget")])
        if len(labels.unique()) != 1:  # type: ignore[no-untyped-call]
            raise InvalidInput("unsir forgets a class: the records of F must all be of one class")
        label = labels[0]
        sample = self._sample(work, label)
        noise = self._noise(work, label)
        count = self.copies * len(noise)
        self._epochs(work, self.impair_epochs, sample, noise, count, label)
        self._epochs(work, self.repair_epochs, sample, noise, 0, label)
        work.note("noises", count)
        work.note("sampled", len(sample))

    def _sample(self, work: Work, label: Tensor) -> Tensor:
        """Return positions in R, at most ``per_class`` of every class but the forgotten one."""
        labels = torch.cat([targets for _, targets in work.part("retain")]).cpu()
        order = torch.randperm(len(labels), generator=work.generator)
        chosen = [
            order[labels[order] == other][: self.per_class]
            for other in labels.unique()  # type: ignore[no-untyped-call]
            if other != label.cpu()
        ]
        if not chosen:
            raise InvalidInput("R holds no record of another class")
        return torch.cat(chosen)

    def _noise(self, work: Work, label: Tensor) -> Tensor:
        x = floating(next(iter(work.part("forget").chunks(1)))[0])
        work.rows["forget"] += 1
        shape = (self.noise_batch, *x.shape[1:])
        drawn = torch.randn(shape, generator=work.generator, dtype=torch.float64)
        noise = drawn.to(x.device, work.network.dtype).requires_grad_()
        optimiser = torch.optim.Adam([noise], lr=self.noise_lr)
        targets = label.expand(len(noise))
        for _ in range(self.noise_steps):
            size = noise.flatten(1).square().sum(1).mean()
            value = -work.loss((noise, targets)) + self.regular * size
            (noise.grad,) = torch.autograd.grad(value, noise)
            optimiser.step()
        return noise.detach()

    def _epochs(
        self, work: Work, epochs: int, sample: Tensor, noise: Tensor, noises: int, label: Tensor
    ) -> None:
        """Train on ``noises`` copies, dealt round, and the sample."""
        rows = noises + len(sample)
        recipe = Recipe("adam", self.lr, epochs, self.batch_size)
        descent = Descent(work.network, recipe, -(-rows // self.batch_size))
        for _ in range(epochs):
            order = torch.randperm(rows, generator=work.generator)
            for index in torch.split(order, self.batch_size):
                fake, true, parts = index[index < noises], index[index >= noises], list[Batch]()
                if len(fake):
                    inputs = noise[(fake % len(noise)).to(noise.device)]
                    parts.append((inputs, label.expand(len(fake))))
                if len(true):
                    parts.append(work.take("retain", sample[true - noises]))
                descent.step(work.mixed(parts))
        done = work.evidence["steps"].value if "steps" in work.evidence else 0
        work.note("steps", done + descent.steps)
