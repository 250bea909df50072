"""Going on with R alone: the whole network, or its last layers, kept or begun anew."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from expunge.deep.descent import Recipe, Schedule
from expunge.deep.methods.common import Stepping, Work, fine_tune, last_layers
from expunge.deep.network import Network
from expunge.deep.problem import Need
from expunge.deep.renewal import reinitialised


@dataclass(frozen=True)
class FineTune(Stepping):
    """``w ← w − η∇L_R(w)`` for a few epochs.

    Attributes
    ----------
    epochs, batch_size : int
    lr : float
        Peak of the schedule.
    momentum : float
    weight_decay : float, optional
        The problem's, if not given.
    schedule
        As of `Recipe`.
    """

    name: ClassVar[str] = "finetune"
    requires: ClassVar[tuple[Need, ...]] = ("retain",)

    epochs: int = 5
    lr: float = 0.02
    batch_size: int = 128
    momentum: float = 0.9
    weight_decay: float | None = None
    schedule: Schedule = "one_cycle"

    def change(self, work: Work) -> None:
        """Fine-tune everything that may change."""
        fine_tune(work, self.recipe(work))

    def recipe(self, work: Work) -> Recipe:
        """Return the recipe of the steps."""
        wd = work.problem.wd if self.weight_decay is None else self.weight_decay
        return Recipe(
            "sgd", self.lr, self.epochs, self.batch_size, wd, self.momentum, None, self.schedule
        )


@dataclass(frozen=True)
class CatastrophicK(FineTune):
    """CF-k: fine-tune the last ``k`` layers only [Goel et al., 2022]."""

    name: ClassVar[str] = "cf-k"

    k: int = 1

    def change(self, work: Work) -> None:
        """Fine-tune the last layers."""
        fine_tune(work, self.recipe(work), last_layers(work.network, self.k))


@dataclass(frozen=True)
class ExactK(FineTune):
    """EU-k: draw the last ``k`` layers anew and train them on R [Goel et al., 2022].

    The layers below are kept and have seen F, so it is exact in name only.
    """

    name: ClassVar[str] = "eu-k"

    k: int = 1

    def change(self, work: Work) -> None:
        """Draw the last layers anew, then fine-tune them."""
        names = last_layers(work.network, self.k).names
        fresh = reinitialised(work.model, work.problem.seed, names)
        state = {name: fresh.get_parameter(name) for name in names}
        network = Network(work.model, names)
        network.load(network.flatten(state))
        fine_tune(work, self.recipe(work), network)
