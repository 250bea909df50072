"""What a loader yields, made uniform: batches of (inputs, targets), always in the same order.

Everything that sums over records reads them through :class:`Batches`. A source that is not held as
tensors is read again on every pass, and every pass is compared with the first: shuffling and random
augmentation are found out instead of being averaged into a sum that no data set has.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Sized
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import (
    DataLoader,
    Dataset,
    IterableDataset,
    RandomSampler,
    Subset,
    SubsetRandomSampler,
    TensorDataset,
    WeightedRandomSampler,
    default_collate,
)

from expunge.deep.trees import Batch, alike, cut, leaves, map_tree, merge
from expunge.errors import InvalidInput

HOLD = 2**30
"""Bytes: a source no larger than this is kept as tensors once two passes over it have agreed."""

_TARGETS = ("labels", "targets", "target")
_RANDOM = (RandomSampler, SubsetRandomSampler, WeightedRandomSampler)


def as_batches(data: Any, *, batch_size: int = 256, device: Any = None) -> Batches:
    """Return ``data`` as :class:`Batches`.

    Parameters
    ----------
    data : DataLoader, Dataset, pair of tensors, or re-iterable of batches
        A batch is ``(inputs, targets)``, a dict with a key ``labels``, ``targets`` or ``target``
        (the other keys are keyword arguments of the model), or a tensor alone, which is its own
        target. A pair ``(inputs, targets)`` or such a dict may also be the whole data set.
    batch_size : int
        Rows of a batch where ``data`` does not say.
    device : torch.device or str, optional
        Where batches are moved, one at a time; where they are, if none is given.

    Raises
    ------
    InvalidInput
        If the order is random, records are dropped, or the data can be read only once.

    Examples
    --------
    >>> data = as_batches((torch.zeros(10, 3), torch.zeros(10)), batch_size=4)
    >>> data.rows, [len(targets) for _, targets in data]
    (10, [4, 4, 2])
    """
    place = None if device is None else torch.device(device)
    if isinstance(data, Batches):
        return data.to(place)
    if batch_size < 1:
        raise InvalidInput(f"batch_size must be at least 1, not {batch_size}")
    if isinstance(data, DataLoader):
        return _of_loader(data, place)
    if isinstance(data, Dataset):
        return _of_dataset(data, batch_size, place)
    if isinstance(data, Tensor | Mapping) or _is_pair(data):
        return Batches(_whole(data, place), held=True, batch_size=batch_size, device=place)
    if not isinstance(data, Iterable):
        raise InvalidInput(
            f"expected a DataLoader, a Dataset, a pair (inputs, targets) or a re-iterable of "
            f"batches, not {type(data).__name__}"
        )
    if isinstance(data, Iterator):
        raise InvalidInput(
            "the data can be read only once (a generator or iterator), but every product is a "
            "pass: give a list of batches or a DataLoader"
        )
    return Batches(data, device=place)


def len_rows(data: Any) -> int:
    """Return the number of records of anything that :func:`as_batches` takes."""
    return as_batches(data).rows


class Batches:
    """Records in batches: the same ones, in the same order, on every pass.

    Made by :func:`as_batches`. Iterating yields ``(inputs, targets)``. Not safe to iterate from
    several threads at once.

    Attributes
    ----------
    device : torch.device or None
        Where batches are moved.
    batch_size : int or None
        Rows of a batch, the last one excepted; None if the source decides.
    """

    def __init__(
        self,
        source: Any,
        *,
        held: bool = False,
        batch_size: int | None = None,
        device: torch.device | None = None,
        record: Callable[[Sequence[int]], Any] | None = None,
        rows: int | None = None,
    ) -> None:
        self.device, self.batch_size = device, batch_size
        self._source, self._record = source, record
        self._held: Batch | None = source if held else None
        self._rows = len(source[1]) if held else rows
        self._digests: list[int] = []
        self._passes = 0

    def __repr__(self) -> str:
        rows = "unknown" if self._rows is None else self._rows
        return f"Batches(rows={rows}, batch_size={self.batch_size}, device={self.device})"

    @property
    def rows(self) -> int:
        """Number of records; costs a pass where the source does not know."""
        if self._rows is None:
            self._rows = sum(len(targets) for _, targets in self)
        return self._rows

    def to(self, device: torch.device | None) -> Batches:
        """Return the same batches, moved to ``device``."""
        if device is None or device == self.device:
            return self
        if self._held is not None:
            held, size = _move(self._held, device), self.batch_size
            return Batches(held, held=True, batch_size=size, device=device)
        moved = Batches(
            self._source,
            batch_size=self.batch_size,
            device=device,
            record=self._record,
            rows=self._rows,
        )
        moved._digests, moved._passes = self._digests.copy(), min(self._passes, 1)
        return moved

    def __iter__(self) -> Iterator[Batch]:
        """Yield every batch.

        Raises
        ------
        InvalidInput
            If a batch cannot be read as inputs and targets, or differs from the first pass.
        """
        if self._held is None:
            yield from self._read()
        else:
            yield from self.chunks(self.batch_size or self.rows)

    def chunks(self, rows: int) -> Iterator[Batch]:
        """Yield the same records in batches of ``rows``, as far as their shapes allow.

        Batches are split, and merged with the next ones unless these have other shapes (sequences
        padded to another length).
        """
        if self._held is not None:
            for start in range(0, len(self._held[1]), rows):
                yield cut(self._held, start, start + rows)
            return
        waiting: list[Batch] = []
        for batch in self._read():
            if waiting and not alike(waiting[0], batch):
                yield merge(waiting)
                waiting = []
            waiting.append(batch)
            if sum(len(targets) for _, targets in waiting) < rows:
                continue
            merged = merge(waiting)
            whole = len(merged[1]) // rows * rows
            for start in range(0, whole, rows):
                yield cut(merged, start, start + rows)
            waiting = [cut(merged, whole, len(merged[1]))] if whole < len(merged[1]) else []
        if waiting:
            yield merge(waiting)

    def take(self, index: Tensor | Sequence[int]) -> Batch:
        """Return the records at these positions as one batch, repetitions included.

        Raises
        ------
        InvalidInput
            If the source has no positions: it is a stream, or a list of batches.
        """
        if self._held is not None:
            where = torch.as_tensor(index, device=self._held[1].device)
            taken: Batch = map_tree(lambda t: t[where], self._held)
            return taken
        if self._record is None:
            raise InvalidInput(
                "single records are needed, but these data come in batches only: give a Dataset "
                "with positions, a DataLoader of one, or a pair of tensors"
            )
        return _whole(self._record([int(i) for i in index]), self.device)

    def _read(self) -> Iterator[Batch]:
        """Yield the source's batches, compared with its first pass; hold them if they are few."""
        kept: list[Batch] | None = [] if self._passes == 1 else None
        number, size = -1, 0
        for number, raw in enumerate(_start(self._source)):
            batch = split(raw)
            self._compare(number, batch)
            batch = _move(batch, self.device)
            size += sum(t.nbytes for t in leaves(batch))
            if kept is not None and size <= HOLD:
                kept.append(batch)
            yield batch
        if number < 0 and not self._digests:
            raise InvalidInput("there are no records: the loader yielded no batch")
        if number + 1 < len(self._digests):
            raise InvalidInput(
                f"the loader yielded {number + 1} batches, {len(self._digests)} on its first pass: "
                "every pass must see the same records"
            )
        self._passes += 1
        if kept and size <= HOLD and _regular(kept):
            self.batch_size = len(kept[0][1])
            self._held = merge(kept)

    def _compare(self, number: int, batch: Batch) -> None:
        digest = 0
        for t in leaves(batch):
            flat = t.detach().cpu().contiguous().reshape(-1)
            digest = zlib.crc32(flat.view(torch.uint8).numpy(), digest)
        if self._passes == 0 and number >= len(self._digests):
            self._digests.append(digest)
        elif number >= len(self._digests) or self._digests[number] != digest:
            raise InvalidInput(
                f"batch {number} is not the one of the first pass: turn off shuffling and random "
                "augmentation, every product must see the same records"
            )


def _regular(batches: list[Batch]) -> bool:
    """Whether batches of one size, the last one perhaps shorter, are all that there is."""
    sizes = [len(targets) for _, targets in batches]
    same = all(size == sizes[0] for size in sizes[:-1]) and sizes[-1] <= sizes[0]
    return same and all(alike(batches[0], batch) for batch in batches)


def split(raw: Any) -> Batch:
    """Return what a loader yielded as ``(inputs, targets)``.

    Raises
    ------
    InvalidInput
        If it is neither a pair, a dict with one key for the targets, nor a tensor.
    """
    inputs: Any
    if isinstance(raw, Tensor):
        inputs, targets = raw, raw
    elif isinstance(raw, Mapping):
        keys = [key for key in _TARGETS if key in raw]
        if len(keys) != 1:
            raise InvalidInput(
                f"a batch that is a dict must have exactly one of the keys {', '.join(_TARGETS)}; "
                f"it has {', '.join(map(str, raw))}"
            )
        inputs = {key: value for key, value in raw.items() if key != keys[0]}
        targets = raw[keys[0]]
    elif isinstance(raw, tuple | list) and len(raw) == 1 and isinstance(raw[0], Tensor):
        inputs, targets = raw[0], raw[0]
    elif isinstance(raw, tuple | list) and len(raw) == 2:
        inputs, targets = raw
        inputs = dict(inputs) if isinstance(inputs, Mapping) else inputs
        inputs = tuple(inputs) if isinstance(inputs, list) else inputs
    else:
        length = f" of length {len(raw)}" if isinstance(raw, Sized) else ""
        raise InvalidInput(
            f"expected a batch (inputs, targets), not a {type(raw).__name__}{length}: inputs that "
            "are several tensors go into one tuple, ((x1, x2), y)"
        )
    _check(inputs, targets)
    return inputs, targets


def _check(inputs: Any, targets: Any) -> None:
    if not isinstance(targets, Tensor) or targets.ndim == 0:
        raise InvalidInput(
            f"targets must be a tensor with one row per record, not {type(targets).__name__}"
            + (" without dimensions" if isinstance(targets, Tensor) else "")
        )
    if len(targets) == 0:
        raise InvalidInput("a batch must have at least one record")
    for t in leaves(inputs):
        if not isinstance(t, Tensor):
            raise InvalidInput(f"inputs must be tensors, not {type(t).__name__}")
        if t.ndim == 0 or len(t) != len(targets):
            raise InvalidInput(
                f"inputs must have a row per target: {len(targets)} targets, shape {(*t.shape,)}"
            )


def _of_loader(loader: DataLoader[Any], device: torch.device | None) -> Batches:
    batching = loader.batch_sampler
    sampler = getattr(batching, "sampler", loader.sampler)
    if isinstance(sampler, _RANDOM) or getattr(sampler, "shuffle", False):
        raise InvalidInput(
            f"the loader draws its order at random ({type(sampler).__name__}), but sums over "
            "records must be repeatable: make it with shuffle=False"
        )
    if loader.drop_last or getattr(batching, "drop_last", False):
        raise InvalidInput(
            "the loader drops the last short batch (drop_last=True), and with it records: make it "
            "with drop_last=False"
        )
    dataset, natural = loader.dataset, loader.collate_fn is default_collate
    plain = type(sampler) is torch.utils.data.SequentialSampler and loader.batch_size is not None
    if plain and natural and (whole := _tensors(dataset)) is not None:
        whole = _move(whole, device)
        return Batches(whole, held=True, batch_size=loader.batch_size, device=device)
    if not plain or isinstance(dataset, IterableDataset):
        return Batches(loader, batch_size=loader.batch_size, device=device)
    collate = loader.collate_fn
    return Batches(
        loader,
        batch_size=loader.batch_size,
        device=device,
        record=lambda index: collate([dataset[i] for i in index]),
        rows=len(dataset) if isinstance(dataset, Sized) else None,
    )


def _of_dataset(data: Dataset[Any], batch_size: int, device: torch.device | None) -> Batches:
    if isinstance(data, IterableDataset):
        return _of_loader(DataLoader(data, batch_size=batch_size), device)
    return _of_loader(DataLoader(data, batch_size=batch_size, shuffle=False), device)


def _tensors(data: Dataset[Any]) -> Batch | None:
    """Return a dataset of one or two tensors, or a subset of one, as a whole."""
    if type(data) is TensorDataset and len(data.tensors) <= 2:
        return split(data.tensors)
    if type(data) is Subset and (whole := _tensors(data.dataset)) is not None:
        index = torch.as_tensor(list(data.indices), device=whole[1].device, dtype=torch.long)
        chosen: Batch = map_tree(lambda t: t[index], whole)
        _check(*chosen)
        return chosen
    return None


def _is_pair(data: Any) -> bool:
    return isinstance(data, tuple | list) and len(data) == 2 and isinstance(data[1], Tensor)


def _whole(data: Any, device: torch.device | None) -> Batch:
    return _move(split(data), device)


def _start(source: Iterable[Any]) -> Iterator[Any]:
    """Begin a pass; a DataLoader draws a seed for its workers here, which must not be noticed."""
    with torch.random.fork_rng(devices=[]):
        return iter(source)


def _move(batch: Batch, device: torch.device | None) -> Batch:
    if device is None:
        return batch
    moved: Batch = map_tree(lambda t: t.to(device), batch)
    return moved
