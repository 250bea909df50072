"""SISA: models of shards, trained slice by slice, so that a deletion retrains few [Bourtoule 2021].

A record's shard and slice are a keyed hash of its id, never of its content. Checkpoint r of a shard
is the model after training on slices 1 … r; it is filed under a digest of all that it depends on,
so training is resumable, deleting is training again, and what a deletion makes stale is found by
its name and removed. The result has the bits of training from nothing on what is left.
"""

from __future__ import annotations

import hashlib
import json
import multiprocessing
import os
import pickle
import time
from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from expunge.deep.batches import Batches
from expunge.deep.descent import Recipe
from expunge.deep.graphs import Loss
from expunge.deep.problem import row_ids
from expunge.deep.training import cross_entropy, records, seeded, train
from expunge.deep.trees import Batch
from expunge.errors import InvalidInput, UnknownRecord
from expunge.guarantee import Assumption, Grade, Tag, grade_of

Fresh = Callable[[int], nn.Module]
"""From a seed to a new, untrained model."""

Progress = Callable[[int, int], None]
"""Called after every shard with how many are done, and how many there are."""


@dataclass(frozen=True)
class ShardPlan:
    """How records are spread and models trained; fixed before any request.

    Attributes
    ----------
    shards, slices : int
        S models, each trained in so many steps of growing data.
    recipe : Recipe
        Of every step; the seed of shard s and slice r is derived from ``seed``.
    seed : int
        Of assignment, initial weights and orders.
    """

    shards: int = 5
    slices: int = 1
    recipe: Recipe = field(default_factory=Recipe)
    seed: int = 0

    def __post_init__(self) -> None:
        """Check the numbers."""
        if self.shards < 1 or self.slices < 1:
            raise InvalidInput(
                f"shards and slices must be at least 1, not {self.shards} and {self.slices}"
            )

    def place(self, name: Hashable) -> tuple[int, int]:
        """Return the shard and the slice of a record, from 0, by its id alone."""
        drawn = int.from_bytes(self._hash("place", repr(name)), "big")
        return drawn % self.shards, drawn // self.shards % self.slices

    def derived(self, *what: object) -> int:
        """Return a seed of 62 bits for one purpose."""
        return int.from_bytes(self._hash(*what)[:8], "big") >> 2

    def digest(self) -> str:
        """Return the SHA-256 of all fields."""
        text = json.dumps(asdict(self), sort_keys=True, default=str)
        return hashlib.sha256(text.encode()).hexdigest()

    def _hash(self, *what: object) -> bytes:
        key = hashlib.sha256(f"expunge/shards/{self.seed}".encode()).digest()
        return hashlib.blake2b(repr(what).encode(), key=key, digest_size=16).digest()


@dataclass(frozen=True)
class Work:
    """What a training did: shards trained, record passes, checkpoints kept and removed, seconds."""

    shards: tuple[int, ...]
    trained: int
    total: int
    reused: int
    removed: int
    seconds: float

    @property
    def share(self) -> float:
        """Of the record passes that training from nothing would take."""
        return self.trained / self.total if self.total else 0.0


class Ensemble(nn.Module):
    """The models of all shards that hold a record, aggregated by a fixed rule.

    Outputs are log probabilities (b, c): of the mean of the models' probabilities, or of the share
    of their votes.
    """

    def __init__(self, models: Sequence[nn.Module], aggregate: Literal["mean", "vote"]) -> None:
        super().__init__()
        if aggregate not in ("mean", "vote"):
            raise InvalidInput(f"aggregate must be mean or vote, not {aggregate!r}")
        self.models, self.aggregate = nn.ModuleList(models), aggregate

    def forward(self, *inputs: Any, **named: Any) -> Tensor:
        """Return log probabilities."""
        logits = torch.stack([model(*inputs, **named) for model in self.models])
        if self.aggregate == "mean":
            mean: Tensor = logits.log_softmax(-1).logsumexp(0) - torch.tensor(len(logits)).log()
            return mean
        votes = nn.functional.one_hot(logits.argmax(-1), logits.shape[-1]).double().mean(0)
        return votes.clamp(min=1e-12).log()


def train_shards(
    fresh: Fresh,
    data: Any,
    ids: Sequence[Hashable],
    plan: ShardPlan,
    folder: Path,
    *,
    loss: Loss = cross_entropy,
    aggregate: Literal["mean", "vote"] = "mean",
    workers: int = 1,
    progress: Progress | None = None,
) -> tuple[Ensemble, Work]:
    """Train every shard, or what is missing of it; return the ensemble and what was done.

    Interrupted, it goes on from the last checkpoint when called again. Checkpoints that belong to
    other records than these, or to another plan, are removed from ``folder``.

    Parameters
    ----------
    fresh : callable
        A function of a module that workers can import, if there are several.
    data : what `as_batches` takes, with positions
    ids : sequence of hashable
        One per record, unique: a person with several records has several ids, and all are deleted
        together.
    workers : int
        Processes. Each trains with one thread, as one worker does, so the bits are the same.
    """
    started = time.perf_counter()
    batches = records(data)
    shards = [_Shard(plan, s) for s in range(plan.shards)]
    _assign(shards, batches, ids)
    folder.mkdir(parents=True, exist_ok=True)
    wanted = {name for shard in shards for name in shard.names}
    stale = [path for path in sorted(folder.glob("*.safetensors")) if path.name not in wanted]
    missing = [shard for shard in shards if shard.names and not shard.done(folder)]
    reused = sum((folder / name).exists() for name in wanted)
    tasks = [(shard, shard.cut(batches, folder), fresh, folder, loss) for shard in missing]
    for count, _ in enumerate(_run(tasks, workers), 1):
        if progress is not None:
            progress(count, len(tasks))
    for path in stale:
        path.unlink()
    models = [shard.load(fresh, folder, plan.slices).eval() for shard in shards if shard.names]
    rows = [len(batch[1]) for task in tasks for batch in task[1] if batch is not None]
    work = Work(
        tuple(shard.number for shard in missing),
        sum(rows) * plan.recipe.epochs,
        sum(shard.passes() for shard in shards),
        reused,
        len(stale),
        time.perf_counter() - started,
    )
    return Ensemble(models, aggregate), work


def delete_records(
    fresh: Fresh,
    data: Any,
    ids: Sequence[Hashable],
    forget: Sequence[Hashable],
    plan: ShardPlan,
    folder: Path,
    *,
    adaptive: bool = False,
    **options: Any,
) -> tuple[Ensemble, Work, Grade]:
    """Train again without some records; return the ensemble, what was done, and the grade.

    The grade is ``exact`` for requests that were chosen without looking at released models, and
    ``heuristic`` for ``adaptive`` ones: whoever chooses what to delete after seeing a model also
    chooses which shards keep their history [Gupta et al., 2021].

    Parameters
    ----------
    data, ids
        The records before the deletion.
    forget : sequence of hashable
    options
        As of `train_shards`.

    Raises
    ------
    UnknownRecord
        If an id to forget is not among ``ids``. Nothing is changed.
    InvalidInput
        If nothing would be left.
    """
    unknown = set(forget) - set(ids)
    if unknown:
        raise UnknownRecord(f"record {next(iter(unknown))!r} was never trained on")
    gone = set(forget)
    left = [i for i, name in enumerate(ids) if name not in gone]
    if not left:
        raise InvalidInput("no record would be left: retire the model instead")
    kept: Batch = records(data).take(left)
    found, work = train_shards(fresh, kept, [ids[i] for i in left], plan, folder, **options)
    if adaptive:
        return found, work, Grade.heuristic
    enforced = [Assumption("assignmentByIdAlone", Tag.enforced)]
    return found, work, grade_of("exact", enforced)


# --- what it costs --------------------------------------------------------------------------------


def recomputed_fraction(slices: int) -> float:
    """Return the part of a shard that one uniform deletion retrains: (2R + 1)/(3R).

    Examples
    --------
    >>> [round(recomputed_fraction(r), 3) for r in (1, 2, 5, 20)]
    [1.0, 0.833, 0.733, 0.683]
    """
    return (2 * slices + 1) / (3 * slices)


def touched_shards(shards: int, deletions: int) -> float:
    """Return how many shards K uniform deletions touch: S(1 − (1 − 1/S)^K).

    Examples
    --------
    >>> round(touched_shards(20, 10), 2)
    8.03
    """
    return shards * (1.0 - (1.0 - 1.0 / shards) ** deletions)


# --- one shard ------------------------------------------------------------------------------------


@dataclass
class _Shard:
    plan: ShardPlan
    number: int
    slices: tuple[list[int], ...] = ()
    names: tuple[str, ...] = ()

    def passes(self) -> int:
        """Record passes of training it from nothing."""
        growing = [sum(len(rows) for rows in self.slices[: r + 1]) for r in range(len(self.names))]
        return sum(growing) * self.plan.recipe.epochs

    def first(self, folder: Path) -> int:
        """Return the first slice without a checkpoint."""
        there = [(folder / name).exists() for name in self.names]
        return there.index(False) if False in there else len(there)

    def done(self, folder: Path) -> bool:
        return self.first(folder) == len(self.names)

    def cut(self, batches: Batches, folder: Path) -> list[Batch | None]:
        """Return the records of every slice still to be trained, earlier slices included."""
        made: list[Batch | None] = []
        for r in range(self.first(folder), len(self.names)):
            index = [i for rows in self.slices[: r + 1] for i in rows]
            made.append(batches.take(index) if index else None)
        return made

    def load(self, fresh: Fresh, folder: Path, count: int) -> nn.Module:
        """Return the model after ``count`` slices."""
        seed = self.plan.derived("fresh", self.number)
        with seeded(seed, torch.device("cpu")):
            model = fresh(seed)
        if count:
            model.load_state_dict(load_file(folder / self.names[count - 1]))
        return model


def _assign(shards: list[_Shard], batches: Batches, ids: Sequence[Hashable]) -> None:
    """Give every shard its records in the order of their keyed hashes, and name its checkpoints."""
    if len(ids) != batches.rows:
        raise InvalidInput(
            f"there must be an id per record: {len(ids)} ids, {batches.rows} records"
        )
    twice = [name for name, count in Counter(ids).items() if count > 1]
    if twice:
        raise InvalidInput(f"the id {twice[0]!r} occurs twice: give every record its own")
    plan, content = shards[0].plan, row_ids(batches)
    ordered = sorted(range(len(ids)), key=lambda i: plan.derived("order", ids[i]))
    for shard in shards:
        shard.slices = tuple([] for _ in range(plan.slices))
    for i in ordered:
        s, r = plan.place(ids[i])
        shards[s].slices[r].append(i)
    for shard in shards:
        digest, names = hashlib.sha256(plan.digest().encode()), []
        for r, rows in enumerate(shard.slices):
            for i in rows:
                digest.update(f"{ids[i]!r}:{content[i]};".encode())
            digest.update(f"slice {r}".encode())
            names.append(f"{shard.number:04d}-{r:03d}-{digest.hexdigest()[:32]}.safetensors")
        shard.names = tuple(names) if any(shard.slices) else ()


_Task = tuple[_Shard, list[Batch | None], Fresh, Path, Loss]


def _run(tasks: list[_Task], workers: int) -> Iterator[None]:
    if workers <= 1 or len(tasks) <= 1:
        yield from map(_train_shard, tasks)
        return
    try:
        pickle.dumps((tasks[0][2], tasks[0][4]))
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        raise InvalidInput(
            f"several workers need a model factory and a loss that can be imported by name: {error}"
        ) from None
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(min(workers, len(tasks)), mp_context=context) as pool:
        yield from pool.map(_train_shard, tasks)


def _train_shard(task: _Task) -> None:
    shard, slices, fresh, folder, loss = task
    start = len(shard.names) - len(slices)
    with _one_thread():
        model = shard.load(fresh, folder, start)
        for r, batch in enumerate(slices, start):
            if batch is not None:
                seed = shard.plan.derived("slice", shard.number, r)
                model = train(model, batch, replace(shard.plan.recipe, seed=seed), loss=loss)
            _save(model, folder / shard.names[r])


def _save(model: nn.Module, path: Path) -> None:
    """Write a checkpoint aside and put it in place as a whole."""
    aside = path.with_suffix(f".{os.getpid()}.part")
    save_file({name: t.detach().cpu().clone() for name, t in model.state_dict().items()}, aside)
    os.replace(aside, path)


@contextmanager
def _one_thread() -> Iterator[None]:
    """Compute with one thread: the order of a sum must not depend on how many there are."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
