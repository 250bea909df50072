"""Rows in Parquet files, larger than memory: every pass reads the files again.

Blocks are cut where those of :class:`expunge.linear.rows.Rows` are, by position, across row groups
and files, so that every result has the same bits as in memory. Of the rows themselves one bit each
is kept: whether it is there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TypeVar

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from expunge.certificate.residual import BLOCK_VALUES
from expunge.errors import InvalidInput
from expunge.linear.arrow import Columns, Decode
from expunge.linear.losses import Array
from expunge.linear.parquet_file import inspected, listed
from expunge.linear.parquet_reader import Numbers, Reader
from expunge.linear.rows import Block, Rows, Source, row_norms
from expunge.linear.shards import blocks, run_threads, shards

_T = TypeVar("_T")
_Index = NDArray[np.intp] | NDArray[np.bool_]


@dataclass(frozen=True, repr=False, eq=False)
class ParquetRows:
    """Rows in Parquet files; made by :func:`parquet_rows` or :func:`decoded_rows`.

    A :class:`expunge.linear.rows.Source`. A pass holds, for each thread, a batch of about 2¹⁹
    values (at least 1,024 rows), what of a page of every column is being read, and one block.

    Attributes
    ----------
    reader : Reader
        The files, and how their rows become numbers.
    intercept : bool
        Whether a constant 1 is appended to every row.
    first, length : int
        Which of the reader's rows these are, absent ones included.
    present : (⌈length/8⌉,) uint8
        A bit per row: 0 if its weight is 0 or it was deleted.
    count : int
        Number of present rows.
    radius : float
        Largest norm of a row, those deleted since the files were opened included.
    which : range
        Columns of the target.
    found : (all columns,) int64, or None
        Present rows of positive target; None once rows have been deleted.
    """

    reader: Reader
    intercept: bool
    first: int
    length: int
    present: NDArray[np.uint8]
    count: int
    radius: float
    which: range
    found: NDArray[np.int64] | None

    def __repr__(self) -> str:
        """Say how many rows there are, never what is in them."""
        reader = self.reader
        return f"ParquetRows(n={self.count}, d={reader.features}, files={len(reader.files)})"

    @property
    def width(self) -> int:
        """Number of coordinates p of a row, the constant included."""
        return self.reader.features + int(self.intercept)

    @property
    def terms(self) -> int:
        """Number of coordinates that a margin is summed of."""
        return self.width

    @property
    def columns(self) -> int:
        """Number of columns of the target."""
        return len(self.which)

    @cached_property
    def positives(self) -> NDArray[np.int64]:
        """Present rows of positive target, by column: (C,); a pass where rows were deleted."""
        return counted(self) if self.found is None else self.found[self._chosen]

    def outputs(self, which: slice) -> ParquetRows:
        """Return the same rows with some columns of the target only."""
        return replace(self, which=self.which[which])

    def without(self, index: _Index) -> ParquetRows:
        """Return the same rows with weight 0 at ``index``: n/8 bytes, the files stay as they are.

        ``radius`` goes on counting them, so that this costs no pass; error bounds stay valid.
        """
        gone = np.unique(positions(index, self.length))
        count = self.count - int(np.count_nonzero(self._flags(gone)))
        present = self.present.copy()
        np.bitwise_and.at(present, gone >> 3, ~(128 >> (gone & 7)).astype(np.uint8))
        return replace(self, present=present, count=count, found=None)

    def take(self, index: _Index) -> Rows:
        """Read the rows at ``index`` into memory; row groups without any of them are not read."""
        wanted, back = np.unique(positions(index, self.length), return_inverse=True)
        X, target, weight = (part[back] for part in self.reader.picked(wanted + self.first))
        weight *= self._flags(wanted)[back]
        norm = row_norms(X, target, weight, self.intercept)
        return Rows(X, target[:, self._chosen], weight, self.intercept, norm)

    def part(self, start: int, stop: int) -> ParquetRows:
        """Return a span of the rows; what was found of the whole (count, radius) stays with it."""
        reader, first = self.reader.part(self.first + start, self.first + stop)
        present = np.packbits(self._bits(start, stop))
        return replace(self, reader=reader, first=first, length=stop - start, present=present)

    def map(self, work: Callable[[Iterator[Block]], _T]) -> list[_T]:
        """Return ``work`` of the blocks of every shard, in shard order."""
        spans = shards(self.length)
        return run_threads(lambda k: work(self.stream(*spans[k])), len(spans))

    def stream(self, start: int, stop: int) -> Iterator[Block]:
        """Yield the blocks of a shard.

        Raises
        ------
        InvalidInput
            If a file has changed, or a value cannot be used.
        """
        spans = blocks(start, stop)
        for span, (X, target, weight) in zip(spans, self.numbers(spans), strict=True):
            try:
                norm = row_norms(X, target, weight, self.intercept)
            except InvalidInput as error:
                raise InvalidInput(f"{self._place(span[0], X, target, weight)}: {error}") from None
            yield Block(X, target, weight, norm, self.intercept)

    def numbers(self, spans: Sequence[tuple[int, int]]) -> Iterator[Numbers]:
        """Yield features, target and weight of spans of rows that follow one another."""
        there = [(self.first + start, self.first + stop) for start, stop in spans]
        for span, (X, target, weight) in zip(spans, self.reader.filled(there), strict=True):
            weight *= self._bits(*span)
            yield X, target[:, self._chosen], weight

    def for_recheck(self) -> Backwards:
        """Return the rows as :func:`expunge.certificate.distance.distance_bound` reads them."""
        return Backwards(self)

    def _place(self, start: int, X: Array, target: Array, weight: Array) -> str:
        """Say where in a block that begins at ``start`` the first number is that cannot be used."""
        with np.errstate(over="ignore", invalid="ignore"):
            fits = np.isfinite(X * X)
        good = fits.all(axis=1) & np.isfinite(target).all(axis=1)
        row = int(np.argmin(good & np.isfinite(weight) & (weight >= 0)))
        feature = None if fits[row].all() else int(np.argmin(fits[row]))
        return self.reader.place(self.first + start + row, feature)

    @property
    def _chosen(self) -> slice:
        return slice(self.which.start, self.which.stop, self.which.step)

    def _bits(self, start: int, stop: int) -> NDArray[np.uint8]:
        bits = np.unpackbits(self.present[start >> 3 : (stop + 7) >> 3])
        return bits[start & 7 :][: stop - start]

    def _flags(self, index: NDArray[np.intp]) -> NDArray[np.uint8]:
        return np.asarray((self.present[index >> 3] >> (7 - (index & 7))) & 1, np.uint8)


Through = Callable[[ParquetRows], Source]


@dataclass(frozen=True, repr=False)
class Backwards:
    """Rows from last to first; a :class:`expunge.certificate.residual.Source`.

    Blocks end where the recheck would cut all rows, so that its sums have the same bits.
    """

    rows: ParquetRows

    @property
    def length(self) -> int:
        """Number of rows, absent ones (of weight 0) included."""
        return self.rows.length

    @property
    def width(self) -> int:
        """Number of features."""
        return self.rows.reader.features

    @property
    def outputs(self) -> int:
        """Number of columns of the target."""
        return self.rows.columns

    def blocks(self) -> Iterator[Numbers]:
        """Yield features (b, d), target (b, C) and weight (b,), last rows first."""
        step = 16 * max(1, BLOCK_VALUES // max(1, self.width, self.outputs))
        for stop in range(self.length, 0, -step):
            yield from self.rows.numbers([(max(0, stop - step), stop)])


def parquet_rows(
    files: str | Path | Sequence[str | Path],
    *,
    target: str | Sequence[str],
    features: Sequence[str] | None = None,
    weight: str | None = None,
    ignore: Sequence[str] = (),
    encode: Callable[[pa.Array], Array] | None = None,
    intercept: bool = True,
    through: Through | None = None,
) -> ParquetRows:
    """Open Parquet files whose columns are numbers, and read them once to check them.

    Parameters
    ----------
    files : path or sequence of paths
        Files, or one directory of ``*.parquet``; their rows follow one another in the order of the
        sorted paths. They must not change afterwards.
    target : str or sequence of str
        Columns of the target.
    features : sequence of str, optional
        Default: all columns but those named otherwise.
    weight : str, optional
        Column of weights ≥ 0. A row of weight 0 counts as absent.
    ignore : sequence of str
        Columns that are not features, as ids.
    encode : callable, optional
        Makes a target of one column of classes: :class:`expunge.linear.arrow.Classes`.
    intercept : bool
        Whether a constant 1 is appended to every row.
    through : callable, optional
        Makes of the rows the source that the reading is done through, as
        ``lambda rows: spread(rows, client)`` on a cluster.

    Raises
    ------
    InvalidInput
        If a file cannot be read, columns differ, or a value is missing, not finite or of a type
        that :class:`expunge.linear.arrow.Columns` does not take; names file, column and row.
    """
    opened = tuple(inspected(path) for path in listed(files))
    names = opened[0].columns
    targets = (target,) if isinstance(target, str) else tuple(target)
    others = {*targets, *ignore} | ({weight} if weight else set())
    absent = sorted(others.difference(names))
    if absent:
        raise InvalidInput(f"{opened[0].name} has no column {absent[0]!r}; it has {names}")
    if features is None:
        features = [name for name in names if name not in others]
        unlike = [file.name for file in opened if set(file.columns) != set(names)]
        if unlike:
            raise InvalidInput(
                f"{unlike[0]} has other columns than {opened[0].name}: name the features"
            )
    decode = Columns(tuple(features), targets, weight, encode)
    return _surveyed(Reader.probed(opened, decode.names, decode), intercept, through)


def decoded_rows(
    files: str | Path | Sequence[str | Path],
    decode: Decode,
    *,
    columns: Sequence[str] | None = None,
    intercept: bool = True,
    through: Through | None = None,
) -> ParquetRows:
    """Open Parquet files whose rows a function makes numbers of, and read them once to check them.

    Parameters
    ----------
    files : path or sequence of paths
        As for :func:`parquet_rows`.
    decode : callable
        Takes a ``pyarrow.Table`` of m rows; gives features (m, d), target (m, C) and weight (m,).
        Every row must be decoded from that row alone: tables are cut anywhere.
    columns : sequence of str, optional
        Columns to read; default: all of the first file.
    intercept : bool
        Whether a constant 1 is appended to every row.
    through : callable, optional
        Makes of the rows the source that the reading is done through, as
        ``lambda rows: spread(rows, client)`` on a cluster.

    Raises
    ------
    InvalidInput
        As for :func:`parquet_rows`, and whatever ``decode`` raises.
    """
    opened = tuple(inspected(path) for path in listed(files))
    reader = Reader.probed(opened, columns or opened[0].columns, decode)
    return _surveyed(reader, intercept, through)


def counted(rows: Source) -> NDArray[np.int64]:
    """Count in a pass the present rows of positive target, by column: (C,)."""
    return np.asarray(sum(look.positives for look in rows.map(_look)), np.int64)


def _surveyed(reader: Reader, intercept: bool, through: Through | None) -> ParquetRows:
    """Read all rows once: which are present, how long they are, and their targets."""
    length, every = sum(file.rows for file in reader.files), range(reader.columns)
    present = np.full((length + 7) // 8, 255, np.uint8)
    rows = ParquetRows(reader, intercept, 0, length, present, length, 0.0, every, None)
    looks = (through(rows) if through else rows).map(_look)
    present = np.zeros_like(present)
    for (start, stop), look in zip(shards(length), looks, strict=True):
        flags = np.unpackbits(look.flags, count=stop - start)
        bits = np.packbits(np.concatenate([np.zeros(start & 7, np.uint8), flags]))
        present[start >> 3 : (start >> 3) + len(bits)] |= bits
    return replace(
        rows,
        present=present,
        count=sum(look.count for look in looks),
        radius=max(look.radius for look in looks),
        found=np.asarray(sum(look.positives for look in looks), np.int64),
    )


@dataclass(frozen=True, repr=False)
class _Look:
    """What a shard has: a bit per row that is present, how many, and see `ParquetRows`."""

    flags: NDArray[np.uint8]
    count: int
    radius: float
    positives: NDArray[np.int64]


def _look(blocks: Iterator[Block]) -> _Look:
    flags, radius, positives = [np.zeros(0, np.bool_)], 0.0, np.zeros(1, np.int64)
    for block in blocks:
        there = block.weight > 0
        flags.append(there)
        radius = max(radius, float(block.norm.max(initial=0.0, where=there)))
        positives = positives + (block.target[there] > 0).sum(axis=0)
    whole = np.concatenate(flags)
    return _Look(np.packbits(whole), int(whole.sum()), radius, positives)


def positions(index: _Index, length: int) -> NDArray[np.intp]:
    """Return positions from 0, as NumPy understands an index of one axis."""
    if index.dtype == np.bool_:
        if len(index) != length:
            raise InvalidInput(f"expected a mask of {length} rows, got {len(index)}")
        return np.flatnonzero(index)
    found = np.asarray(index, np.intp)
    if len(found) and not -length <= found.min() <= found.max() < length:
        raise InvalidInput(f"expected positions of {length} rows, got {found.min()}…{found.max()}")
    return np.where(found < 0, found + length, found)
