"""A student and its teachers: SCRUB moves away from the old model on F, bad teaching towards noise.

``KL_T(p‖q) = T²·Σ_k p_k ln(p_k/q_k)``, ``p = softmax(teacher/T)``, ``q = softmax(student/T)``, mean
over the records of a batch.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from expunge.deep.descent import Descent, Recipe
from expunge.deep.methods.common import Stepping, Work
from expunge.deep.network import evaluating
from expunge.deep.problem import Need
from expunge.deep.training import call
from expunge.deep.trees import Batch
from expunge.errors import InvalidInput


@dataclass(frozen=True)
class Scrub(Stepping):
    """SCRUB [Kurmanji et al., 2023].

    In the first ``max_epochs`` epochs a pass over F *maximises* ``KL_T(teacher‖student)``; every
    epoch ends with a pass over R that minimises ``alpha·KL_T(teacher‖student) + gamma·CE``.

    Attributes
    ----------
    lr, weight_decay : float
        Of Adam; a tenth of ``lr`` after each of ``milestones``. A weight decay of 0.1 was
        published, which costs a small network 4 to 5 points of its accuracy on R. The problem's
        is not used.
    temperature, alpha, gamma : float
    max_epochs, epochs : int
    retain_batch, forget_batch : int
    """

    name: ClassVar[str] = "scrub"
    requires: ClassVar[tuple[Need, ...]] = ("retain", "forget")

    lr: float = 5e-4
    weight_decay: float = 0.01
    temperature: float = 2.0
    alpha: float = 0.5
    gamma: float = 1.0
    max_epochs: int = 3
    epochs: int = 10
    milestones: tuple[int, ...] = (5, 8, 9)
    retain_batch: int = 32
    forget_batch: int = 64

    def change(self, work: Work) -> None:
        """Alternate."""
        work.classes()
        teacher = work.problem.model
        recipe = Recipe("adam", self.lr, self.epochs, self.retain_batch, self.weight_decay)
        descent = Descent(work.network, recipe, work.steps("retain", self.retain_batch))
        with evaluating(teacher):
            for epoch in range(self.epochs):
                scale = 0.1 ** sum(epoch >= milestone for milestone in self.milestones)
                if epoch < self.max_epochs:
                    for inputs, _ in work.draw("forget", self.forget_batch):
                        descent.step(-self._apart(work, teacher, inputs), scale)
                for batch in work.draw("retain", self.retain_batch):
                    near = self._apart(work, teacher, batch[0])
                    descent.step(self.alpha * near + self.gamma * work.loss(batch), scale)
        work.note("steps", descent.steps)

    def _apart(self, work: Work, teacher: nn.Module, inputs: Any) -> Tensor:
        with torch.no_grad():
            known = call(teacher, inputs)
        return divergence(known, work.outputs(inputs), self.temperature).mean()


@dataclass(frozen=True)
class BadTeacher(Stepping):
    """Imitate an untrained network on F and the old one on a sample of R [Chundawat et al., 2023a].

    Attributes
    ----------
    lr : float
        Of Adam.
    epochs, batch_size : int
    temperature : float
    share : float
        Of R that is read.
    """

    name: ClassVar[str] = "bad-teacher"
    requires: ClassVar[tuple[Need, ...]] = ("retain", "forget")

    lr: float = 1e-4
    epochs: int = 1
    batch_size: int = 256
    temperature: float = 1.0
    share: float = 0.3

    def change(self, work: Work) -> None:
        """Imitate."""
        work.classes()
        if not 0.0 <= self.share <= 1.0:
            raise InvalidInput(f"share must be between 0 and 1, not {self.share}")
        good, bad = work.problem.model, work.fresh()
        m, kept = work.part("forget").rows, work.part("retain").rows
        sample = torch.randperm(kept, generator=work.generator)[: int(self.share * kept)]
        rows = m + len(sample)
        recipe = Recipe("adam", self.lr, self.epochs, self.batch_size)
        descent = Descent(work.network, recipe, -(-rows // self.batch_size))
        with evaluating(good), evaluating(bad):
            for _ in range(self.epochs):
                order = torch.randperm(rows, generator=work.generator)
                for index in torch.split(order, self.batch_size):
                    own, other, parts = index[index < m], index[index >= m] - m, list[Batch]()
                    if len(own):
                        parts.append(taught(bad, work.take("forget", own)))
                    if len(other):
                        parts.append(taught(good, work.take("retain", sample[other])))
                    descent.step(work.mixed(parts, self._apart))
        work.note("steps", descent.steps)

    def _apart(self, student: Tensor, teacher: Tensor) -> Tensor:
        return divergence(teacher, student, self.temperature)


def taught(teacher: nn.Module, batch: Batch) -> Batch:
    """Return the inputs of a batch with the teacher's outputs."""
    with torch.no_grad():
        return batch[0], call(teacher, batch[0])


def divergence(teacher: Tensor, student: Tensor, temperature: float) -> Tensor:
    """Return ``KL_T(teacher‖student)`` (b,) of logits (b, c).

    Examples
    --------
    >>> divergence(torch.zeros(1, 2), torch.zeros(1, 2), 2.0).item()
    0.0
    """
    p = F.log_softmax(teacher / temperature, 1)
    q = F.log_softmax(student / temperature, 1)
    return temperature**2 * (p.exp() * (p - q)).sum(1)
