"""What every deep method is given and what it returns.

A method is a frozen dataclass of its parameters with a name, what it ``needs``, and ``unlearn``. It
works on a copy: the model of a problem is never changed. Its grade follows from its guarantee and
assumptions; without a guarantee it is ``heuristic``.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from typing import Any, Literal, Protocol

import torch
from torch import nn

from expunge.deep.batches import Batches, as_batches
from expunge.deep.graphs import Loss
from expunge.deep.network import UnsupportedModel, view
from expunge.deep.renewal import duplicate, moving_norms
from expunge.deep.training import Recipe, TrainingLog, call
from expunge.deep.trees import cut, leaves
from expunge.errors import InvalidInput, UnknownRecord
from expunge.guarantee import Assumption, Grade, Guarantee, Tag, grade_of

Need = Literal["retain", "forget", "training", "stored"]
Buffers = Literal["refuse", "keep", "reestimate"]


@dataclass(frozen=True)
class Evidence:
    """A value and how it is known."""

    value: Any
    tag: Tag | str = Tag.measured

    def __post_init__(self) -> None:
        """Refuse an unknown tag."""
        if self.tag not in list(Tag):
            known = ", ".join(tag.value for tag in Tag)
            raise InvalidInput(f"tag must be one of {known}; got {self.tag!r}")
        object.__setattr__(self, "tag", Tag(self.tag))


@dataclass(frozen=True, repr=False)
class Problem:
    """A trained model, the records to forget, those retained, and what is known of the training.

    Data are given as `as_batches` takes them and held as `Batches` on the model's device.

    Attributes
    ----------
    model : nn.Module
    loss : callable
        From outputs and targets of b records to their b losses.
    forget, retain : data
        F and R; ``retain`` may be None for methods that do not need it.
    test : data, optional
        Never read by a method.
    train : Recipe, optional
        How the model was trained; ``wd`` of the objective is its weight decay.
    params : str or sequence of str, optional
        What may be changed, as of `expunge.deep.network.view`.
    seed : int
        Of everything random in a method.
    trained_ids, forget_ids, retain_ids : sequence of hashable, optional
        One id per record, to check that F was trained on, as often as it is to be forgotten, and
        that R holds nothing of it. Without ids of your own take `row_ids`.
    stored : TrainingLog, optional
    fresh : callable, optional
        From a seed to a new, untrained model; `reinitialised` of the model, if not given.
    buffers : {"refuse", "keep", "reestimate"}
        What becomes of buffers that training moves (running statistics of BatchNorm), which are
        released with the weights. ``keep`` leaves what the forgotten records put there;
        ``reestimate`` computes them again from R after the update.

    Raises
    ------
    UnknownRecord
        If a record to forget was not trained on.
    InvalidInput
        If R overlaps F or holds records that were not trained on.
    UnsupportedModel
        If training moves buffers and ``buffers`` does not say what becomes of them.
    """

    model: nn.Module
    loss: Loss
    forget: Any
    retain: Any = None
    _: KW_ONLY
    test: Any = None
    train: Recipe | None = None
    params: str | Sequence[str] | None = None
    seed: int = 0
    trained_ids: Sequence[Hashable] | None = None
    forget_ids: Sequence[Hashable] | None = None
    retain_ids: Sequence[Hashable] | None = None
    stored: TrainingLog | None = None
    fresh: Callable[[int], nn.Module] | None = None
    buffers: Buffers = "refuse"

    def __post_init__(self) -> None:
        """Check the ids and the buffers."""
        device = view(self.model, self.params).device
        for name in ("forget", "retain", "test"):
            data = getattr(self, name)
            if data is not None:
                object.__setattr__(self, name, as_batches(data, device=device))
        _check_ids(self)
        if self.buffers not in ("refuse", "keep", "reestimate"):
            raise InvalidInput(f"buffers must be refuse, keep or reestimate, not {self.buffers!r}")
        _check_buffers(self)

    def __repr__(self) -> str:
        kept = None if self.retain is None else self.retain.rows
        name = type(self.model).__name__
        return f"Problem({name}, forget={self.forget.rows}, retain={kept}, seed={self.seed})"

    @property
    def wd(self) -> float:
        """Weight decay of the mean objective that was trained."""
        return 0.0 if self.train is None else self.train.weight_decay

    @property
    def removed(self) -> int:
        """Number of records to forget, m."""
        rows: int = self.forget.rows
        return rows

    @property
    def total(self) -> int:
        """Number of records trained on, n.

        Raises
        ------
        InvalidInput
            If neither ``trained_ids`` nor ``retain`` was given.
        """
        if self.trained_ids is not None:
            return len(self.trained_ids)
        return self.removed + int(self.kept().rows)

    @property
    def disjoint(self) -> Tag:
        """How it is known that R holds no record of F."""
        known = self.forget_ids is not None and self.retain_ids is not None
        return Tag.enforced if known else Tag.assumed

    def kept(self) -> Batches:
        """Return R.

        Raises
        ------
        InvalidInput
            If it was not given.
        """
        if self.retain is None:
            raise InvalidInput("retained records are needed: give Problem(retain=...)")
        found: Batches = self.retain
        return found

    def require(self, needs: frozenset[Need], method: str) -> None:
        """Raise `InvalidInput`, naming what is missing, unless everything in ``needs`` is there."""
        given = {
            "forget": True,
            "retain": self.retain is not None,
            "training": self.train is not None,
            "stored": self.stored is not None,
        }
        missing = sorted(need for need in needs if not given[need])
        if missing:
            raise InvalidInput(f"{method} needs {' and '.join(_WORDS[need] for need in missing)}")


_WORDS = {
    "retain": "the retained records: give Problem(retain=...)",
    "training": "the recipe of the training: give Problem(train=Recipe(...))",
    "stored": "what was stored during training: give Problem(stored=...) from train_logged",
}


@dataclass(frozen=True, repr=False)
class Unlearned:
    """A new model, and everything that is known about how it came about.

    Attributes
    ----------
    model : nn.Module
        A new module.
    method : str
    evidence : mapping of str to Evidence
    assumptions : tuple of Assumption
    guarantee : Guarantee or None
    seconds : float
    rows_read : mapping of str to int
        Records read of ``forget`` and ``retain``, repetitions counted.
    warnings : tuple of str
    """

    model: nn.Module
    method: str
    evidence: Mapping[str, Evidence]
    assumptions: tuple[Assumption, ...]
    guarantee: Guarantee | None
    seconds: float
    rows_read: Mapping[str, int]
    warnings: tuple[str, ...] = field(default=())

    @property
    def grade(self) -> Grade:
        """How much of the guarantee is known to hold; ``heuristic`` if there is none."""
        return grade_of("none" if self.guarantee is None else self.guarantee.kind, self.assumptions)

    def __repr__(self) -> str:
        warned = f", {len(self.warnings)} warnings" if self.warnings else ""
        return f"Unlearned({self.method}, {self.grade}, {self.seconds:.2f} s{warned})"


class Method(Protocol):
    """What unlearns: a frozen dataclass of its parameters."""

    @property
    def name(self) -> str:
        """As in the table of methods."""
        ...

    @property
    def needs(self) -> frozenset[Need]:
        """What of a problem must be given."""
        ...

    def unlearn(self, problem: Problem) -> Unlearned:
        """Return a new model."""
        ...


def over_unlearned(retain_accuracy: float, oracle_accuracy: float, margin: float = 0.05) -> bool:
    """Whether a model lost more on R than forgetting explains: ``margin`` below the retrained one.

    Examples
    --------
    >>> over_unlearned(0.90, 0.97), over_unlearned(0.95, 0.97)
    (True, False)
    """
    for name, value in (("retain", retain_accuracy), ("oracle", oracle_accuracy)):
        if not 0.0 <= value <= 1.0:
            raise InvalidInput(f"the {name} accuracy must be between 0 and 1, not {value}")
    return retain_accuracy < oracle_accuracy - margin


def row_ids(data: Any) -> list[str]:
    """Return an id for every record from its content, for data that have no ids.

    Records with the same content have the same id: such duplicates are counted, not told apart.

    Examples
    --------
    >>> x, y = torch.tensor([[1.0], [2.0], [1.0]]), torch.zeros(3)
    >>> ids = row_ids((x, y))
    >>> ids[0] == ids[2], ids[0] == ids[1]
    (True, False)
    """
    found = []
    for batch in as_batches(data):
        for i in range(len(batch[1])):
            tensors = [t.detach().cpu().contiguous() for t in leaves(cut(batch, i, i + 1))]
            raw = b"".join(t.reshape(-1).view(torch.uint8).numpy().tobytes() for t in tensors)
            found.append(hashlib.blake2b(raw, digest_size=16).hexdigest())
    return found


def _check_ids(problem: Problem) -> None:
    trained, forget, retain = problem.trained_ids, problem.forget_ids, problem.retain_ids
    for name, ids, rows in (
        ("forget", forget, problem.forget),
        ("retain", retain, problem.retain),
    ):
        if ids is None:
            continue
        if rows is None or len(ids) != rows.rows:
            there = 0 if rows is None else rows.rows
            raise InvalidInput(
                f"there must be an id per record of {name}: {len(ids)} ids, {there} records"
            )
    if trained is not None and forget is None:
        raise InvalidInput("trained_ids can be checked only against forget_ids: give these too")
    if trained is not None and forget is not None:
        spare = Counter(trained)
        spare.subtract(forget)
        unknown = [name for name, count in spare.items() if count < 0]
        if unknown:
            raise UnknownRecord(
                f"record {unknown[0]!r} is to be forgotten {Counter(forget)[unknown[0]]} times and "
                f"was trained on {Counter(trained)[unknown[0]]} times: forgetting what was never "
                "learned is measured as success"
            )
        spare.subtract(retain or ())
        extra = [name for name, count in spare.items() if count < 0]
        if extra:
            raise InvalidInput(
                f"retained record {extra[0]!r} is either to be forgotten or was never trained on: "
                "R must be what was trained on without F"
            )
    elif forget is not None and retain is not None:
        both = set(forget) & set(retain)
        if both:
            raise InvalidInput(f"record {next(iter(both))!r} is to be forgotten and retained")


def _check_buffers(problem: Problem) -> None:
    if problem.buffers == "keep":
        return
    norms, others = moving_buffers(problem)
    if others or (norms and problem.buffers == "refuse"):
        name = (others + norms)[0]
        owner = name.rpartition(".")[0]
        kind = type(problem.model.get_submodule(owner)).__name__
        choices = "'keep'" if others else "'reestimate' or 'keep'"
        raise UnsupportedModel(
            f"training moves the buffer {name} of layer {owner or 'itself'} ({kind}), which is "
            "released with the weights and holds the forgotten records: use GroupNorm, or say what "
            f"becomes of it, buffers={choices}"
        )


def moving_buffers(problem: Problem) -> tuple[list[str], list[str]]:
    """Return the buffers that training moves: of normalisation layers, and of others.

    Normalisation layers outside ``params`` keep theirs (`expunge.deep.training.train`). The others
    are found by running a copy on a few records in train mode.
    """
    probe = duplicate(problem.model).train()
    norms = [
        f"{name}.{own}" if name else own
        for name, layer in moving_norms(probe, problem.params)
        for own, _ in layer.named_buffers()
    ]
    for layer in probe.modules():
        if isinstance(layer, nn.modules.batchnorm._NormBase):
            layer.eval()
    before = {name: buffer.clone() for name, buffer in probe.named_buffers()}
    if set(before) == set(norms):
        return norms, []
    few = cut(next(iter(problem.forget)), 0, 4)
    with torch.no_grad(), torch.random.fork_rng(devices=[]):
        call(probe, few[0])
    moved = [
        name
        for name, buffer in probe.named_buffers()
        if name not in before or not torch.equal(buffer, before[name])
    ]
    return norms, moved
