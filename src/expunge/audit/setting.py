"""What a metric of the suite is given: models, their answers, and the means to make more."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from expunge.audit.bands import Scale
from expunge.audit.intervals import ALPHA
from expunge.audit.metric import Estimate, Group, Metric, judge
from expunge.audit.parts import Data, Part
from expunge.audit.shadows import Runner, seeds
from expunge.audit.views import Outputs, View, view

LETTERS = {"S": "forget", "R": "retain", "T": "unseen"}
WORDS = {"S": "deleted rows", "R": "retained rows", "T": "rows never seen"}


@dataclass(frozen=True)
class Pipeline:
    """How models are trained and how they unlearn, so that an attacker can do the same.

    Attributes
    ----------
    train : callable
        From rows and a seed to a model; preprocessing, tuning and stopping included.
    unlearn : callable
        From a model trained on S and R, the rows S, the rows R, and a seed to a model.
    about : mapping
        What they depend on, in terms of JSON; kept shadow models of another pipeline are refused.
    """

    train: Callable[[Part, int], Any]
    unlearn: Callable[[Any, Part, Part, int], Any]
    about: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Answers:
    """A model's answers on the parts."""

    forget: Outputs
    retain: Outputs
    unseen: Outputs
    population: Outputs | None

    def of(self, letter: str) -> Outputs:
        """Return the answers on S, R or T."""
        found: Outputs = getattr(self, LETTERS[letter])
        return found


def answers(model: View, data: Data) -> Answers:
    """Ask a model once about all parts."""
    crowd = data.population
    return Answers(
        model.outputs(data.forget.X, data.forget.y),
        model.outputs(data.retain.X, data.retain.y),
        model.outputs(data.unseen.X, data.unseen.y),
        None if crowd is None else model.outputs(crowd.X, crowd.y),
    )


@dataclass(frozen=True)
class Setting:
    """Everything that an audit has.

    Attributes
    ----------
    data : Data
    models : dict of str to View
        ``candidate``, and ``original`` if the model before unlearning was given.
    oracles : tuple of View
    candidate, original, oracle_answers
        Answers of these.
    references, untrained : tuple of View
        Retrained models that only serve attacks; models before any training.
    pipeline : Pipeline or None
    runs : int
        Shadow models a law, for the metrics that compare laws.
    registered : tuple of str
        Metrics of the claim; they share α.
    """

    data: Data
    models: Mapping[str, View]
    oracles: tuple[View, ...]
    candidate: Answers = field(repr=False)
    original: Answers | None = field(repr=False)
    oracle_answers: tuple[Answers, ...] = field(repr=False)
    references: tuple[View, ...] = ()
    untrained: tuple[View, ...] = ()
    pipeline: Pipeline | None = None
    runs: int = 100
    alpha: float = ALPHA
    registered: tuple[str, ...] = ()
    seed: int = 0
    runner: Runner = field(default_factory=Runner, repr=False)

    def rng(self, purpose: str) -> np.random.Generator:
        """Return the generator of a purpose."""
        return np.random.default_rng(seeds(self.seed, 1, purpose)[0])

    def alpha_of(self, name: str) -> float:
        """Return the level of a metric: its share of α if it is registered."""
        return self.alpha / len(self.registered) if name in self.registered else self.alpha

    def users(self, letter: str) -> NDArray[Any] | None:
        """Return the owners of the rows of S, R or T."""
        rows: Part = getattr(self.data, LETTERS[letter])
        return rows.users

    def judged(
        self,
        name: str,
        statistic: Callable[[Answers], float],
        reading: str,
        *,
        own: Estimate | None = None,
        step: float = 0.0,
        scale: Scale = "plain",
        group: Group = "membership",
        extra: int = 0,
    ) -> Metric:
        """Compare a statistic of the candidate's answers with that of each oracle's.

        Parameters
        ----------
        own : Estimate, optional
            The candidate's value with its interval, where there is one.
        extra : int
            Models that the statistic needed beside the oracles.
        """
        found = Estimate(statistic(self.candidate), step=step) if own is None else own
        return judge(
            name,
            found,
            [statistic(oracle) for oracle in self.oracle_answers],
            reading=reading,
            original=None if self.original is None else statistic(self.original),
            scale=scale,
            alpha=self.alpha_of(name),
            runs=len(self.oracles) + extra,
            group=group,
        )

    def train(self, rows: Part, seed: int) -> View:
        """Train one more model."""
        assert self.pipeline is not None
        return view(self.pipeline.train(rows, seed))


def forgotten(setting: Setting, model: Any, forget: Part, retain: Part, seed: int) -> View:
    """Let a model, freshly trained on S and R, unlearn S."""
    assert setting.pipeline is not None
    return view(setting.pipeline.unlearn(model, forget, retain, seed))


def on(letter: str, statistic: Callable[[Outputs], float]) -> Callable[[Answers], float]:
    """Return a statistic of answers on one part as one of all answers."""
    return lambda found: statistic(found.of(letter))


def views(models: Sequence[Any]) -> tuple[View, ...]:
    """Return several models as an attacker sees them."""
    return tuple(view(model) for model in models)
