"""What the baselines share: a copy to work on, an account of what was read, the frame of a run."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn

from expunge.deep.batches import Batches
from expunge.deep.curvature import gradient
from expunge.deep.descent import Descent, Recipe, require_finite
from expunge.deep.graphs import Loss, repeatable
from expunge.deep.network import Network, UnsupportedModel, evaluating, view
from expunge.deep.problem import Evidence, Need, Problem, Unlearned, moving_buffers
from expunge.deep.renewal import duplicate, moving_norms, reinitialised, seeded
from expunge.deep.training import call, mean_loss, records, shuffled
from expunge.deep.trees import Batch, alike, merge
from expunge.errors import InvalidInput
from expunge.guarantee import Assumption, Guarantee, Tag

Part = Literal["forget", "retain"]


class Work:
    """The copy that a method changes, and what it has read, done and found.

    Attributes
    ----------
    problem : Problem
    model : nn.Module
    network : Network
        The parameters that may change.
    generator : torch.Generator
        Of everything that a method draws itself, on the CPU.
    guarantee : Guarantee or None
    """

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self.generator = torch.Generator().manual_seed(problem.seed)
        self.guarantee: Guarantee | None = None
        self.evidence: dict[str, Evidence] = {}
        self.assumptions = [Assumption("retainDisjointFromForget", problem.disjoint)]
        trained = Tag.enforced if problem.trained_ids is not None else Tag.assumed
        self.assumptions.append(Assumption("forgetWasTrainedOn", trained))
        self.warnings: list[str] = []
        self.rows: Counter[str] = Counter(forget=0, retain=0)
        self._parts: dict[str, Batches] = {}
        self.replace(duplicate(problem.model))

    def replace(self, model: nn.Module) -> None:
        """Go on with another module."""
        self.model = model
        self.network: Network = view(model, self.problem.params)

    def part(self, which: Part) -> Batches:
        """Return F or R with records that can be taken by position."""
        if which not in self._parts:
            source = self.problem.forget if which == "forget" else self.problem.kept()
            self._parts[which] = records(source, self.network.device)
        return self._parts[which]

    def draw(self, which: Part, size: int) -> Iterator[Batch]:
        """Yield an epoch of F or R in a random order."""
        for index, batch in shuffled(self.part(which), size, self.generator):
            self.rows[which] += len(index)
            yield batch

    def endless(self, which: Part, size: int) -> Iterator[Batch]:
        """Yield epoch after epoch."""
        while True:
            yield from self.draw(which, size)

    def steps(self, which: Part, size: int) -> int:
        """Return the number of batches of an epoch."""
        return -(-self.part(which).rows // size)

    def take(self, which: Part, index: Tensor) -> Batch:
        """Return the records at these positions."""
        self.rows[which] += len(index)
        return self.part(which).take(index)

    def outputs(self, inputs: Any) -> Any:
        """Return the copy's outputs, differentiable."""
        return call(self.model, inputs)

    def loss(self, batch: Batch) -> Tensor:
        """Return the copy's mean loss of a batch, without weight decay."""
        return mean_loss(self.model, self.problem.loss, batch)

    def mixed(self, parts: list[Batch], loss: Loss | None = None) -> Tensor:
        """Return the copy's mean loss of the records of several batches.

        They pass through the network as one batch where their forms allow it, as BatchNorm in train
        mode would notice.
        """
        together = all(alike(parts[0], part) for part in parts)
        batches = [merge(parts)] if together else parts
        each = [
            len(batch[1]) * mean_loss(self.model, loss or self.problem.loss, batch)
            for batch in batches
        ]
        return torch.stack(each).sum() / sum(len(batch[1]) for batch in batches)

    def gradient(self, which: Part, *, wd: float = 0.0) -> Tensor:
        """Return ``∇L_F`` or ``∇L_R`` (p,) of the copy."""
        source = self.part(which)
        self.rows[which] += source.rows
        return gradient(self.network, self.problem.loss, source, wd=wd)

    def classes(self) -> int:
        """Return the number of classes.

        Raises
        ------
        InvalidInput
            If the outputs are not (b, c), or the targets not labels.
        """
        inputs, targets = next(iter(self.part("forget").chunks(1)))
        with evaluating(self.model), torch.no_grad():
            outputs = self.outputs(inputs)
        labels = targets.ndim == 1 and not targets.is_floating_point()
        if not (isinstance(outputs, Tensor) and outputs.ndim == 2 and labels):
            raise InvalidInput(
                "this method is for classifiers: outputs (records, classes) and whole labels "
                "(records,)"
            )
        return outputs.shape[1]

    def fresh(self) -> nn.Module:
        """Return an untrained model drawn from the problem's seed, of the copy's device and dtype.

        Raises
        ------
        InvalidInput
            If what `Problem.fresh` made has weights or running statistics of the trained model.
        """
        problem = self.problem
        if problem.fresh is None:
            return reinitialised(problem.model, problem.seed, problem.params)
        with seeded(problem.seed, self.network.device):
            made = problem.fresh(problem.seed).to(self.network.device, self.network.dtype)
        old, new = problem.model.state_dict(), made.state_dict()
        for name in (*view(made, problem.params).names, *moving_buffers(problem)[0]):
            if name not in old or name not in new or old[name].shape != new[name].shape:
                raise InvalidInput(
                    f"Problem(fresh=...) returned a model of another form: {name} differs"
                )
            varied = bool((new[name] != new[name].flatten()[0]).any())
            if varied and torch.equal(new[name], old[name]):
                raise InvalidInput(
                    f"Problem(fresh=...) returned the trained values of {name}: it must make a "
                    "new, untrained model"
                )
        return made.train(problem.model.training)

    def note(self, name: str, value: Any, tag: Tag = Tag.measured) -> None:
        """Keep a value as evidence."""
        self.evidence[name] = Evidence(value, tag)

    def settle(self) -> None:
        """Compute buffers again from R, if the problem says so."""
        norms = [layer for _, layer in moving_norms(self.model, self.problem.params)]
        self.note("buffers", self.problem.buffers if norms else "none", Tag.enforced)
        if norms and self.problem.buffers == "reestimate":
            reestimate(self.model, norms, self.part("retain"))
            self.rows["retain"] += self.part("retain").rows

    def result(self, name: str, seconds: float) -> Unlearned:
        """Return what came of it."""
        own = view(self.problem.model, self.problem.params).vector()
        self.note("moved", float((self.network.vector() - own).double().norm()))
        return Unlearned(
            self.model,
            name,
            self.evidence,
            tuple(self.assumptions),
            self.guarantee,
            seconds,
            dict(self.rows),
            tuple(self.warnings),
        )


@dataclass(frozen=True)
class Baseline(ABC):
    """The frame of a run: what is needed is checked, chance is seeded, the copy is held still.

    Attributes
    ----------
    name : str
    requires : tuple of str
        What it needs, unless ``needs`` depends on its parameters.
    settles : bool
        Whether buffers are treated at the end as the problem says.
    """

    name: ClassVar[str]
    requires: ClassVar[tuple[Need, ...]]
    settles: ClassVar[bool] = True

    @property
    def needs(self) -> frozenset[Need]:
        """What of a problem must be given."""
        return frozenset(self.requires)

    def unlearn(self, problem: Problem) -> Unlearned:
        """Return a new model, and what was done and read.

        Raises
        ------
        InvalidInput
            If something that the method needs is missing.
        Diverged
            If a loss, or a weight at the end, is not finite.
        """
        problem.require(self.needs, self.name)
        started = time.perf_counter()
        work = Work(problem)
        with seeded(problem.seed, work.network.device), repeatable():
            with self._held(work):
                self.change(work)
            require_finite(work.network)
            if self.settles:
                work.settle()
        return work.result(self.name, time.perf_counter() - started)

    @contextmanager
    def _held(self, work: Work) -> Iterator[None]:
        with evaluating(work.model):
            yield

    @abstractmethod
    def change(self, work: Work) -> None:
        """Change ``work.model``; what was found goes into ``work``."""


@dataclass(frozen=True)
class Stepping(Baseline):
    """A method that takes optimiser steps.

    Attributes
    ----------
    bn_train : bool
        Let BatchNorm use, and move, the statistics of the batch, as the public code of several
        methods does; dropout stays off. By default everything is in eval mode.
    """

    bn_train: bool = False

    @contextmanager
    def _held(self, work: Work) -> Iterator[None]:
        model = work.model
        if not self.bn_train:
            with evaluating(model):
                yield
            return
        modes = [(part, part.training) for part in model.modules()]
        model.eval()
        for _, layer in moving_norms(model, work.problem.params):
            layer.train()
        try:
            yield
        finally:
            for part, mode in modes:
                part.training = mode


def fine_tune(work: Work, recipe: Recipe, network: Network | None = None) -> None:
    """Descend ``L_R`` for the epochs of a recipe."""
    size = recipe.batch_size
    descent = Descent(network or work.network, recipe, work.steps("retain", size))
    for _ in range(recipe.epochs):
        for batch in work.draw("retain", size):
            descent.step(work.loss(batch))
    work.note("steps", descent.steps)


def accuracy(work: Work, which: Part, chunk: int = 1024) -> float:
    """Return the copy's accuracy on F or R, in eval mode."""
    source, right = work.part(which), 0
    with evaluating(work.model), torch.no_grad():
        for inputs, targets in source.chunks(chunk):
            right += int((work.outputs(inputs).argmax(1) == targets).sum())
    work.rows[which] += source.rows
    return right / source.rows


def layers(model: nn.Module) -> list[tuple[str, nn.Module]]:
    """Return the modules that own a weight of at least two dimensions, in their order."""
    return [
        (name, module)
        for name, module in model.named_modules()
        if any(own.ndim >= 2 for own in module.parameters(recurse=False))
    ]


def tensors(layer: str) -> tuple[str, str]:
    """Return the names of a layer's weight and bias."""
    return (f"{layer}.weight", f"{layer}.bias") if layer else ("weight", "bias")


def last_layers(network: Network, k: int) -> Network:
    """Return the view of the last ``k`` layers, and of the normalisations after them.

    Raises
    ------
    InvalidInput
        If there are fewer, or none of their parameters may change.
    """
    found = layers(network.module)
    if not 1 <= k <= len(found):
        raise InvalidInput(f"k must be between 1 and the {len(found)} layers, not {k}")
    order = [name for name, _ in network.module.named_modules()]
    owners = set(order[order.index(found[-k][0]) :])
    names = tuple(name for name in network.names if name.rpartition(".")[0] in owners)
    if not names:
        raise InvalidInput(f"none of the last {k} layers may change: params leaves them out")
    return Network(network.module, names)


def reestimate(
    model: nn.Module, norms: list[nn.modules.batchnorm._NormBase], data: Batches
) -> None:
    """Set the running statistics of ``norms`` to averages over ``data``, forgetting the old ones.

    They are the means over batches of at least 256 records of the statistics of a batch.
    """
    modes = [(part, part.training) for part in model.modules()]
    momenta = [part.momentum for part in norms]
    size = next((size for size in range(256, 512) if data.rows % size != 1), 256)
    model.eval()
    for part in norms:
        part.reset_running_stats()
        part.train()
        part.momentum = None
    try:
        with torch.no_grad():
            for inputs, _ in data.chunks(size):
                call(model, inputs)
    finally:
        for part, momentum in zip(norms, momenta, strict=True):
            part.momentum = momentum
        for module, mode in modes:
            module.training = mode


def head(model: nn.Module, classes: int) -> tuple[str, nn.Linear]:
    """Return the linear layer that gives the logits.

    Raises
    ------
    UnsupportedModel
        If the last layer is not one with an output per class, or shares its weights.
    """
    name, module = layers(model)[-1]
    if not isinstance(module, nn.Linear) or module.out_features != classes:
        raise UnsupportedModel(
            f"the last layer must be linear with {classes} outputs, but {name or 'it'} is {module}"
        )
    uses = [
        owner for owner, p in model.named_parameters(remove_duplicate=False) if p is module.weight
    ]
    if len(uses) > 1:
        raise UnsupportedModel(f"the weights of the last layer are tied ({', '.join(uses)})")
    return name, module
