"""Going up the loss of F: alone until it is forgotten, or against descending that of R."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from expunge.deep.descent import Descent, Recipe
from expunge.deep.methods.common import Stepping, Work, accuracy
from expunge.deep.problem import Need
from expunge.errors import InvalidInput


@dataclass(frozen=True)
class NegGrad(Stepping):
    """``w ← w + η∇CE_F(w)`` until the accuracy on F is down to a target.

    Nothing holds the rest of the model: where F is of all classes, the accuracy on R falls with
    that on F. The result depends on ``lr`` and on the moment of stopping more than on anything
    else.

    Attributes
    ----------
    lr : float
        1e-3; 1e-2 was published for forgetting a class.
    target : float
        Accuracy on F at which to stop, looked at before every step.
    max_steps : int
        1000 was published, which leaves nothing of the model where F is of all classes.
    batch_size : int
    momentum, weight_decay : float
    """

    name: ClassVar[str] = "neggrad"
    requires: ClassVar[tuple[Need, ...]] = ("forget",)

    lr: float = 1e-3
    target: float = 0.0
    max_steps: int = 6
    batch_size: int = 128
    momentum: float = 0.9
    weight_decay: float = 1e-4

    def change(self, work: Work) -> None:
        """Ascend."""
        work.classes()
        recipe = Recipe("sgd", self.lr, 1, self.batch_size, self.weight_decay, self.momentum)
        descent = Descent(work.network, recipe, self.max_steps)
        batches = work.endless("forget", self.batch_size)
        reached = accuracy(work, "forget")
        while reached > self.target and descent.steps < self.max_steps:
            descent.step(-work.loss(next(batches)))
            reached = accuracy(work, "forget")
        work.note("steps", descent.steps)
        work.note("forgetAccuracy", reached)
        if reached > self.target:
            work.warnings.append(
                f"accuracy on F is {reached:.3f} after {descent.steps} steps, not {self.target:g}"
            )


@dataclass(frozen=True)
class NegGradPlus(Stepping):
    """Minimise ``a(CE_R + (wd/2)‖w − w₀‖²) − (1 − a)CE_F`` [Kurmanji et al., 2023].

    Every batch of R is paired with one of F, which begins again as often as it must.

    Attributes
    ----------
    a : float
        Above 0, up to 1, which is fine-tuning towards the trained weights. 0.95 was published; the
        loss on F has no bound, and one class out of ten makes that diverge.
    lr, momentum : float
    epochs, batch_size : int
    pull : float, optional
        ``wd``; the problem's weight decay, if not given.
    """

    name: ClassVar[str] = "neggrad+"
    requires: ClassVar[tuple[Need, ...]] = ("retain", "forget")

    a: float = 0.999
    lr: float = 0.01
    epochs: int = 10
    batch_size: int = 128
    momentum: float = 0.9
    pull: float | None = None

    def change(self, work: Work) -> None:
        """Descend the difference."""
        if not 0.0 < self.a <= 1.0:
            raise InvalidInput(f"a must be above 0 and at most 1, not {self.a}")
        pull = work.problem.wd if self.pull is None else self.pull
        recipe = Recipe("sgd", self.lr, self.epochs, self.batch_size, momentum=self.momentum)
        descent = Descent(work.network, recipe, work.steps("retain", self.batch_size))
        start = [parameter.detach().clone() for parameter in work.network.parameters]
        forget = work.endless("forget", self.batch_size) if self.a < 1.0 else None
        for _ in range(self.epochs):
            for batch in work.draw("retain", self.batch_size):
                value = work.loss(batch)
                if pull > 0.0:
                    pairs = zip(work.network.parameters, start, strict=True)
                    value = value + pull / 2.0 * sum(((w - old) ** 2).sum() for w, old in pairs)
                if forget is not None:
                    value = self.a * value - (1.0 - self.a) * work.loss(next(forget))
                descent.step(value)
        work.note("steps", descent.steps)
