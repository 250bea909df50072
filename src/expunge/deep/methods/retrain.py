"""The two ends of every table: training again without the forgotten records, and doing nothing."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import ClassVar

from expunge.deep.methods.common import Baseline, Work
from expunge.deep.problem import Need, Problem, Unlearned
from expunge.deep.training import train
from expunge.guarantee import Assumption, Guarantee, Tag, View


@dataclass(frozen=True)
class Null(Baseline):
    """Return a copy of the model, buffers included."""

    name: ClassVar[str] = "null"
    requires: ClassVar[tuple[Need, ...]] = ()
    settles: ClassVar[bool] = False

    def change(self, work: Work) -> None:
        """Change nothing."""
        work.note("steps", 0)
        work.note("buffers", "keep", Tag.enforced)


@dataclass(frozen=True)
class Retrain(Baseline):
    """Train a new model on R by the original recipe, with the problem's seed.

    Exact with respect to the law of this very algorithm: initial weights of `Problem.fresh` (or
    `reinitialised`), then the recipe, on R. It is ``conditional`` where it is only assumed that R
    holds nothing of F, or that what ``params`` leaves unchanged never saw F.
    """

    name: ClassVar[str] = "retrain"
    requires: ClassVar[tuple[Need, ...]] = ("retain", "training")
    settles: ClassVar[bool] = False

    def change(self, work: Work) -> None:
        """Start from nothing."""
        problem = work.problem
        assert problem.train is not None
        recipe = replace(problem.train, seed=problem.seed)
        data = work.part("retain")
        work.replace(train(work.fresh(), data, recipe, loss=problem.loss, params=problem.params))
        work.rows["retain"] += recipe.epochs * data.rows
        work.note("steps", recipe.epochs * work.steps("retain", recipe.batch_size))
        work.note("recipe", recipe.digest(), Tag.enforced)
        work.note("buffers", "renewed", Tag.enforced)
        work.assumptions = [
            Assumption("retainDisjointFromForget", problem.disjoint),
            Assumption("everyTensorSetAnew", Tag.enforced),
        ]
        if len(work.network.names) < len(list(work.model.named_parameters())):
            work.assumptions[1] = Assumption("unchangedPartNeverSawForget", Tag.assumed)
        work.guarantee = Guarantee(
            "exact", 0.0, 0.0, 0.0, "record", max(1, problem.removed), 1, View.afterOnly
        )


def retrains(problem: Problem, seeds: Iterable[int]) -> list[Unlearned]:
    """Return one retrained model per seed: the oracles that others are measured by."""
    return [Retrain().unlearn(replace(problem, seed=seed)) for seed in seeds]
