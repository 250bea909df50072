"""Amnesiac unlearning: take back the steps that saw F [Graves et al., 2021]."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch

from expunge.deep.methods.common import Work, fine_tune
from expunge.deep.methods.finetune import FineTune
from expunge.deep.problem import Need
from expunge.errors import InvalidInput


@dataclass(frozen=True)
class Amnesiac(FineTune):
    """``w ← w − Σ δ_b`` over the stored steps whose batch held a record of F; then fine-tune on R.

    Every such step is taken back whole, also what it learnt from the other records of its batch;
    and later steps depended on it. Needs the ids of F.

    Attributes
    ----------
    epochs : int
        Of fine-tuning; with 0, R is not needed.
    """

    name: ClassVar[str] = "amnesiac"

    epochs: int = 5

    @property
    def needs(self) -> frozenset[Need]:
        """The stored steps, and R for fine-tuning."""
        return frozenset({"stored", "retain"} if self.epochs else {"stored"})

    def change(self, work: Work) -> None:
        """Take back, then repair."""
        stored, ids = work.problem.stored, work.problem.forget_ids
        assert stored is not None
        if ids is None:
            raise InvalidInput("amnesiac needs the ids of F: give Problem(forget_ids=...)")
        unknown = set(ids) - stored.sensitive
        if unknown:
            raise InvalidInput(
                f"no steps were stored for record {next(iter(unknown))!r}: it was not among the "
                "sensitive ids of train_logged"
            )
        w = work.network.vector()
        taken = [update.change for update in stored.updates if update.ids & set(ids)]
        if any(change.shape != w.shape for change in taken):
            raise InvalidInput("the stored steps are of other parameters than params")
        total = torch.zeros_like(w, dtype=torch.float64)
        for change in taken:
            total += change.to(w.device).double()
        work.network.load((w.double() - total).to(w.dtype))
        work.note("takenBack", len(taken))
        work.note("stepsOfTraining", stored.steps)
        work.note("storedBytes", stored.bytes)
        if self.epochs:
            fine_tune(work, self.recipe(work))
