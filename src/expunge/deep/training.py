"""Training that can be repeated: a recipe, projection, schedules, and starting again from nothing.

The objective is that of `expunge.deep.curvature`: the mean loss plus ``(wd/2)‖w‖²`` over the
parameters chosen, weight decay being part of the gradient for every optimiser.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from expunge.deep.batches import Batches, as_batches
from expunge.deep.descent import Descent, Diverged, Recipe, project, require_finite
from expunge.deep.graphs import Loss, repeatable
from expunge.deep.network import view
from expunge.deep.records import diagonal
from expunge.deep.renewal import duplicate, moving_norms, reinitialised, seeded
from expunge.deep.trees import Batch, map_tree
from expunge.errors import InvalidInput

__all__ = [
    "Descent",
    "Diverged",
    "Progress",
    "Recipe",
    "TrainingLog",
    "Update",
    "call",
    "cross_entropy",
    "duplicate",
    "mean_loss",
    "project",
    "records",
    "reinitialised",
    "seeded",
    "shuffled",
    "train",
    "train_logged",
]

Progress = Callable[[int, int, float], None]
"""Called after every epoch with its number (from 1), how many there are, and its mean loss."""


def cross_entropy(outputs: Tensor, targets: Tensor) -> Tensor:
    """Return the cross-entropy of every record."""
    return F.cross_entropy(outputs, targets, reduction="none")


@dataclass(frozen=True)
class Update:
    """What one step did, kept because its batch held sensitive records."""

    ids: frozenset[Hashable]
    change: Tensor = field(repr=False)


@dataclass(frozen=True)
class TrainingLog:
    """What has to be stored at training time by methods that need it later.

    It was computed from the sensitive records too: whoever deletes them must delete this as well.

    Attributes
    ----------
    initial : (p,) tensor
        Weights before the first step, for NTK scrubbing.
    sensitive : frozenset
        Ids of the records that were watched.
    updates : tuple of Update
        Every step whose batch held one of them, for amnesiac unlearning.
    steps : int
        All steps.
    importance : (p,) tensor
        Mean squared batch gradient at the end, for Selective Synaptic Dampening.
    batch_size : int
        Of the batches of ``importance``.
    """

    initial: Tensor = field(repr=False)
    sensitive: frozenset[Hashable]
    updates: tuple[Update, ...] = field(repr=False)
    steps: int
    importance: Tensor = field(repr=False)
    batch_size: int

    @property
    def bytes(self) -> int:
        """What is stored."""
        kept = [self.initial, self.importance, *(update.change for update in self.updates)]
        return sum(t.nbytes for t in kept)


def train(
    model: nn.Module,
    data: Any,
    recipe: Recipe,
    *,
    loss: Loss = cross_entropy,
    params: str | Sequence[str] | None = None,
    progress: Progress | None = None,
) -> nn.Module:
    """Return a trained copy of ``model``; the model itself is not changed, whatever happens.

    Two calls with the same arguments agree bitwise on a CPU. Interrupting loses the copy only.

    Parameters
    ----------
    model : nn.Module
        Trained from its present weights; see `reinitialised`.
    data : Dataset, pair of tensors, or what `as_batches` takes
        Records are drawn by position.
    loss : callable
        From outputs and targets of b records to their b losses.
    params : str or sequence of str, optional
        What is trained, as of `expunge.deep.network.view`. Normalisation layers that own none of
        it stay in eval mode: their running statistics are not moved either.

    Raises
    ------
    Diverged
        If the loss, or a weight at the end, is not finite.

    Examples
    --------
    >>> net, data = nn.Linear(2, 2), (torch.eye(2), torch.tensor([0, 1]))
    >>> trained = train(net, data, Recipe(lr=0.1, epochs=50, max_norm=2.0))
    >>> trained(data[0]).argmax(1).tolist(), view(trained).vector().norm().item() <= 2.0
    ([0, 1], True)
    """
    return _train(model, data, recipe, loss, params, progress, _Watch((), {}))[0]


def train_logged(
    model: nn.Module,
    data: Any,
    recipe: Recipe,
    *,
    sensitive: Collection[Hashable],
    ids: Sequence[Hashable] | None = None,
    loss: Loss = cross_entropy,
    params: str | Sequence[str] | None = None,
    progress: Progress | None = None,
) -> tuple[nn.Module, TrainingLog]:
    """Train as `train` does and keep what amnesiac unlearning, NTK scrubbing and SSD ask for.

    Parameters
    ----------
    sensitive : collection of hashable
        Ids of records whose deletion is prepared: one (p,) vector per step that sees any of them.
    ids : sequence of hashable, optional
        Of the records in their order; their positions from 0, if none are given.
    """
    rows = as_batches(data).rows
    named = range(rows) if ids is None else ids
    if len(named) != rows:
        raise InvalidInput(f"there must be an id per record: {len(named)} ids, {rows} records")
    unknown = set(sensitive) - set(named)
    if unknown:
        raise InvalidInput(f"no record has the sensitive id {next(iter(unknown))!r}")
    watch = _Watch(sensitive, {i: name for i, name in enumerate(named) if name in set(sensitive)})
    trained, steps = _train(model, data, recipe, loss, params, progress, watch)
    with _still(trained):
        chunks = Chunked(as_batches(data), recipe.batch_size)
        importance = diagonal("batch_grad_sq", view(trained, params), loss, chunks)
    start = view(model, params).vector().cpu()
    log = TrainingLog(
        start, frozenset(sensitive), tuple(watch.kept), steps, importance.cpu(), recipe.batch_size
    )
    return trained, log


class _Watch:
    """Keeps the change of every step that sees a sensitive record."""

    def __init__(self, sensitive: Collection[Hashable], named: dict[int, Hashable]) -> None:
        self.named, self.kept = named, list[Update]()

    def hits(self, index: Tensor) -> frozenset[Hashable]:
        if not self.named:
            return frozenset()
        return frozenset(self.named[i] for i in index.tolist() if i in self.named)

    def keep(self, ids: frozenset[Hashable], change: Tensor) -> None:
        self.kept.append(Update(ids, change.cpu()))


def _train(
    model: nn.Module,
    data: Any,
    recipe: Recipe,
    loss: Loss,
    params: str | Sequence[str] | None,
    progress: Progress | None,
    watch: _Watch,
) -> tuple[nn.Module, int]:
    trained = duplicate(model)
    network = view(trained, params)
    batches = records(data, network.device)
    per_epoch = -(-batches.rows // recipe.batch_size)
    descent = Descent(network, recipe, per_epoch)
    generator = torch.Generator().manual_seed(recipe.seed)
    with seeded(recipe.seed, network.device), _modes(trained), repeatable():
        trained.train()
        moving = [layer for _, layer in moving_norms(trained, params)]
        for part in trained.modules():
            if isinstance(part, nn.modules.batchnorm._NormBase) and part not in moving:
                part.eval()
        for epoch in range(recipe.epochs):
            total = 0.0
            for index, batch in shuffled(batches, recipe.batch_size, generator):
                hits = watch.hits(index)
                before = network.vector() if hits else None
                total += len(index) * descent.step(mean_loss(trained, loss, batch))
                if before is not None:
                    watch.keep(hits, network.vector() - before)
            if progress is not None:
                progress(epoch + 1, recipe.epochs, total / batches.rows)
    require_finite(network)
    return trained, recipe.epochs * per_epoch


def records(data: Any, device: torch.device | None = None) -> Batches:
    """Return ``data`` as batches whose records can be taken by position.

    Raises
    ------
    InvalidInput
        If there are no positions, even after two passes (a stream, or more than 1 GiB of batches).
    """
    batches = as_batches(data, device=device)
    for _ in range(2):
        try:
            batches.take([0])
        except InvalidInput:
            for _batch in batches:
                pass
    batches.take([0])
    return batches


def shuffled(
    batches: Batches, size: int, generator: torch.Generator
) -> Iterator[tuple[Tensor, Batch]]:
    """Yield all records in a random order, ``size`` at a time, with their positions."""
    for index in torch.split(torch.randperm(batches.rows, generator=generator), size):
        yield index, batches.take(index)


class Chunked:
    """Batches cut to another size; what `as_batches` takes."""

    def __init__(self, batches: Batches, size: int) -> None:
        self.batches, self.size = batches, size

    def __iter__(self) -> Iterator[Batch]:
        """Yield batches of ``size`` records."""
        return self.batches.chunks(self.size)


def call(model: nn.Module, inputs: Any) -> Any:
    """Return the model's outputs; floating-point inputs are cast to the dtype of its parameters."""
    dtype = next(model.parameters()).dtype
    inputs = map_tree(lambda t: t.to(dtype) if t.is_floating_point() else t, inputs)
    if isinstance(inputs, dict):
        return model(**inputs)
    return model(*inputs) if isinstance(inputs, tuple) else model(inputs)


def mean_loss(model: nn.Module, loss: Loss, batch: Batch) -> Tensor:
    """Return the mean loss of a batch, in the model's present mode."""
    inputs, targets = batch
    if targets.is_floating_point():
        targets = targets.to(next(model.parameters()).dtype)
    return loss(call(model, inputs), targets).mean()


@contextmanager
def _modes(model: nn.Module) -> Iterator[None]:
    before = [(part, part.training) for part in model.modules()]
    try:
        yield
    finally:
        for part, mode in before:
            part.training = mode


@contextmanager
def _still(model: nn.Module) -> Iterator[None]:
    with _modes(model):
        model.eval()
        yield
