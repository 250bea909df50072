"""Steps of an optimiser: a recipe, its schedule, weight decay in the objective, projection."""

from __future__ import annotations

import hashlib
import json
import math
from dataclasses import asdict, dataclass
from typing import Literal

import torch
from torch import Tensor

from expunge.deep.network import Network
from expunge.errors import ExpungeError, InvalidInput

Schedule = Literal["constant", "cosine", "one_cycle"] | tuple[int, ...]

_WARM_UP, _FIRST, _LAST = 0.3, 1 / 25, 1e-4 / 25


class Diverged(ExpungeError):
    """A loss that was being minimised, or a weight, is not a finite number."""


@dataclass(frozen=True)
class Recipe:
    """How a model is trained; with the data and the initial weights it determines the result.

    Attributes
    ----------
    optimiser : {"adam", "sgd"}
    lr : float
        Peak learning rate.
    epochs, batch_size : int
        Every epoch reads all records in a new random order; the last batch may be short.
    weight_decay : float
        ``wd`` of the mean objective.
    momentum : float
        Of SGD.
    max_norm : float, optional
        C: after *every* step the vector of all trained parameters is scaled back to ``‖w‖ ≤ C``.
    schedule : {"constant", "cosine", "one_cycle"} or tuple of int
        Of the learning rate, step by step: a half cosine to 0; a cosine from 1/25 of the peak up to
        it in 30 % of the steps, and down to 4e-6 of it; or a tenth after each of these epochs.
    seed : int
        Of the order of the records and of dropout.
    """

    optimiser: Literal["adam", "sgd"] = "adam"
    lr: float = 1e-3
    epochs: int = 10
    batch_size: int = 128
    weight_decay: float = 0.0
    momentum: float = 0.0
    max_norm: float | None = None
    schedule: Schedule = "constant"
    seed: int = 0

    def __post_init__(self) -> None:
        """Check every field."""
        if self.optimiser not in ("adam", "sgd"):
            raise InvalidInput(f"optimiser must be adam or sgd, not {self.optimiser!r}")
        if not (math.isfinite(self.lr) and self.lr > 0.0):
            raise InvalidInput(f"lr must be a finite number above 0, not {self.lr}")
        if self.epochs < 0 or self.batch_size < 1:
            raise InvalidInput(
                f"epochs must be at least 0 and batch_size at least 1, not {self.epochs} and "
                f"{self.batch_size}"
            )
        if not (math.isfinite(self.weight_decay) and self.weight_decay >= 0.0):
            raise InvalidInput(f"weight_decay must be at least 0, not {self.weight_decay}")
        if not 0.0 <= self.momentum < 1.0 or (self.momentum and self.optimiser != "sgd"):
            raise InvalidInput(
                f"momentum must be in [0, 1), and 0 for adam; got {self.momentum} for "
                f"{self.optimiser}"
            )
        if self.max_norm is not None and not self.max_norm > 0.0:
            raise InvalidInput(f"max_norm must be above 0, not {self.max_norm}")
        if isinstance(self.schedule, list):
            object.__setattr__(self, "schedule", tuple(self.schedule))
        known = self.schedule in ("constant", "cosine", "one_cycle")
        if not known and not isinstance(self.schedule, tuple):
            raise InvalidInput(
                "schedule must be constant, cosine, one_cycle or a tuple of epochs, not "
                f"{self.schedule!r}"
            )

    def factor(self, step: int, per_epoch: int) -> float:
        """Return what the learning rate is multiplied by at a step, counted from 0."""
        if isinstance(self.schedule, tuple):
            epoch = step // per_epoch
            return float(0.1 ** sum(epoch >= milestone for milestone in self.schedule))
        if self.schedule == "constant":
            return 1.0
        done = step / max(1, self.epochs * per_epoch - 1)
        if self.schedule == "cosine":
            return _between(1.0, 0.0, done)
        if done < _WARM_UP:
            return _between(_FIRST, 1.0, done / _WARM_UP)
        return _between(1.0, _LAST, (done - _WARM_UP) / (1.0 - _WARM_UP))

    def digest(self) -> str:
        """Return the SHA-256 of all fields, in hexadecimal."""
        text = json.dumps(asdict(self), sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()


def _between(start: float, end: float, share: float) -> float:
    return end + (start - end) * (1.0 + math.cos(math.pi * share)) / 2.0


class Descent:
    """An optimiser of the chosen parameters: gradient, schedule, mask, projection.

    Parameters
    ----------
    network : Network
    recipe : Recipe
    per_epoch : int
        Steps of an epoch, for the schedule.
    mask : (p,) bool tensor, optional
        Coordinates that may move; the others are put back after every step, whatever weight decay
        and momentum did to them.
    """

    def __init__(
        self, network: Network, recipe: Recipe, per_epoch: int, mask: Tensor | None = None
    ) -> None:
        self.network, self.recipe, self.per_epoch, self.mask = network, recipe, per_epoch, mask
        self.steps = 0
        self._start = network.vector() if mask is not None else None
        chosen, wd = list(network.parameters), recipe.weight_decay
        self._optimiser: torch.optim.Optimizer = (
            torch.optim.Adam(chosen, lr=recipe.lr, weight_decay=wd)
            if recipe.optimiser == "adam"
            else torch.optim.SGD(chosen, lr=recipe.lr, weight_decay=wd, momentum=recipe.momentum)
        )

    def step(self, objective: Tensor, scale: float | None = None) -> float:
        """Take a step that decreases ``objective``; return its value before.

        ``scale`` multiplies the learning rate instead of the schedule.

        Raises
        ------
        Diverged
            If it is not finite.
        """
        value = float(objective.detach())
        if not math.isfinite(value):
            cause = (
                f"lower the learning rate ({self.recipe.lr:g})"
                if self.steps
                else "before any step, so look for numbers that are none in the data or the weights"
            )
            raise Diverged(f"the objective is {value} at step {self.steps + 1}: {cause}")
        chosen = self.network.parameters
        slopes = torch.autograd.grad(objective, chosen, allow_unused=True, materialize_grads=True)
        for parameter, slope in zip(chosen, slopes, strict=True):
            parameter.grad = slope
        if scale is None:
            scale = self.recipe.factor(self.steps, self.per_epoch)
        for group in self._optimiser.param_groups:
            group["lr"] = self.recipe.lr * scale
        self._optimiser.step()
        self._optimiser.zero_grad(set_to_none=True)
        if self.mask is not None and self._start is not None:
            self.network.load(torch.where(self.mask, self.network.vector(), self._start))
        if self.recipe.max_norm is not None:
            project(self.network, self.recipe.max_norm)
        self.steps += 1
        return value


def require_finite(network: Network) -> None:
    """Raise `Diverged` unless all parameters are finite, which the last step's loss cannot say."""
    for name, parameter in zip(network.names, network.parameters, strict=True):
        if not bool(torch.isfinite(parameter).all()):
            raise Diverged(
                f"{name} holds numbers that are not finite: lower the learning rate, or look for "
                "such numbers in the data"
            )


def project(network: Network, radius: float) -> None:
    """Scale the parameters so that ``‖w‖ ≤ radius`` holds for what is stored, rounding included."""
    w = network.vector()
    norm = float(w.double().norm())
    if norm > radius:
        network.load(w * (radius / norm * (1.0 - 4.0 * torch.finfo(w.dtype).eps)))
