"""Moving the decision boundary over F: towards its nearest other class, or a new one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn
from torch.nn import Parameter

from expunge.deep.descent import Descent, Recipe
from expunge.deep.methods.common import Stepping, Work, head, tensors
from expunge.deep.network import UnsupportedModel, evaluating
from expunge.deep.problem import Need
from expunge.deep.training import mean_loss
from expunge.deep.trees import Batch
from expunge.errors import InvalidInput

_PGD_RADIUS, _PGD_STEP, _PGD_STEPS = 8 / 255, 2 / 255, 5


@dataclass(frozen=True)
class BoundaryShrink(Stepping):
    """Train F towards the class found across the nearest boundary [Chen et al., 2023].

    ``x′ = x + step·sign ∇_x CE(f₀(x), y)`` with the old model f₀, ``ŷ = argmax f₀(x′)``, once;
    then minimise ``CE(f(x), ŷ)`` on F. Inputs are not clamped: their range is not known here.

    Attributes
    ----------
    lr, momentum : float
    epochs, batch_size : int
    step : float
    attack : {"fgsm", "pgd"}
        ``pgd`` takes 5 steps of 2/255 within 8/255.
    """

    name: ClassVar[str] = "boundary-shrink"
    requires: ClassVar[tuple[Need, ...]] = ("forget",)

    lr: float = 1e-5
    momentum: float = 0.9
    epochs: int = 10
    batch_size: int = 64
    step: float = 0.1
    attack: Literal["fgsm", "pgd"] = "fgsm"

    def change(self, work: Work) -> None:
        """Learn the nearest other labels."""
        work.classes()
        if self.attack not in ("fgsm", "pgd"):
            raise InvalidInput(f"attack must be fgsm or pgd, not {self.attack!r}")
        recipe = Recipe("sgd", self.lr, self.epochs, self.batch_size, 0.0, self.momentum)
        size = self.batch_size
        descent = Descent(work.network, recipe, work.steps("forget", size))
        labels = torch.cat(
            [self.nearest(work, batch) for batch in work.part("forget").chunks(size)]
        )
        work.rows["forget"] += len(labels)
        for _ in range(self.epochs):
            order = torch.randperm(len(labels), generator=work.generator)
            for index in torch.split(order, size):
                inputs, _ = work.take("forget", index)
                descent.step(work.loss((inputs, labels[index.to(labels.device)])))
        work.note("steps", descent.steps)

    def nearest(self, work: Work, batch: Batch) -> Tensor:
        """Return the old model's labels of the inputs moved up its loss."""
        old = work.problem.model
        x = floating(batch[0])
        moved = x
        with evaluating(old):
            for _ in range(1 if self.attack == "fgsm" else _PGD_STEPS):
                leaf = moved.detach().clone().requires_grad_()
                value = mean_loss(old, work.problem.loss, (leaf, batch[1]))
                (slope,) = torch.autograd.grad(value, leaf)
                length = self.step if self.attack == "fgsm" else _PGD_STEP
                moved = moved + length * slope.sign()
                if self.attack == "pgd":
                    moved = x + (moved - x).clamp(-_PGD_RADIUS, _PGD_RADIUS)
            with torch.no_grad():
                labels: Tensor = old(moved.to(work.network.dtype)).argmax(1)
        return labels


@dataclass(frozen=True)
class BoundaryExpand(Stepping):
    """Add an output, train F onto it, and remove it again [Chen et al., 2023]. For whole classes.

    The new output's weights are drawn as those of any new linear layer.

    Attributes
    ----------
    lr, momentum : float
    epochs, batch_size : int
    """

    name: ClassVar[str] = "boundary-expand"
    requires: ClassVar[tuple[Need, ...]] = ("forget",)

    lr: float = 1e-5
    momentum: float = 0.9
    epochs: int = 10
    batch_size: int = 64

    def change(self, work: Work) -> None:
        """Train with one output more."""
        classes, size = work.classes(), self.batch_size
        name, last = head(work.model, classes)
        if tensors(name)[0] not in work.network.names:
            raise UnsupportedModel(f"the last layer ({name}) may not change: params leaves it out")
        _resize(last, classes + 1)
        if work.classes() != classes + 1:
            raise UnsupportedModel(f"the last layer ({name}) does not give the outputs")
        recipe = Recipe("sgd", self.lr, self.epochs, size, 0.0, self.momentum)
        descent = Descent(work.network, recipe, work.steps("forget", size))
        for _ in range(self.epochs):
            for inputs, targets in work.draw("forget", size):
                descent.step(work.loss((inputs, torch.full_like(targets, classes))))
        _resize(last, classes)
        work.note("steps", descent.steps)


def floating(inputs: Any) -> Tensor:
    """Return inputs that can be moved: one tensor of real numbers.

    Raises
    ------
    InvalidInput
        If they are not.
    """
    if not isinstance(inputs, Tensor) or not inputs.is_floating_point():
        raise InvalidInput(
            "this method moves the inputs, which must be one tensor of real numbers (not tokens, "
            "not several tensors)"
        )
    return inputs


def _resize(layer: nn.Linear, outputs: int) -> None:
    """Give a linear layer as many outputs; rows that it has already are kept."""
    made = nn.Linear(layer.in_features, outputs, layer.bias is not None).to(layer.weight)
    rows = min(outputs, layer.out_features)
    for name, new in made.named_parameters():
        old = layer.get_parameter(name)
        with torch.no_grad():
            new[:rows] = old[:rows]
        setattr(layer, name, Parameter(new.detach(), old.requires_grad))
    layer.out_features = outputs
