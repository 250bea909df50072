"""The rows of several Parquet files as numbers: a stream of spans, or some by position."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from expunge.errors import InvalidInput
from expunge.linear.arrow import BadCell, Columns, Decode, Decoded
from expunge.linear.losses import Array
from expunge.linear.parquet_file import File
from expunge.linear.shards import BLOCK, run_threads

BATCH_VALUES = 1 << 19
Numbers = tuple[Array, Array, Array]
"""Features (b, d), target (b, C) and weight (b,) of some rows, float64."""


@dataclass(frozen=True, repr=False)
class Reader:
    """Files whose rows follow one another, what is read of them, and what that gives.

    ``names`` are the columns read, ``features`` and ``columns`` the numbers d and C that ``decode``
    makes of a row, each row on its own.
    """

    files: tuple[File, ...]
    names: tuple[str, ...]
    decode: Decode
    features: int
    columns: int

    @classmethod
    def probed(cls, files: tuple[File, ...], names: Sequence[str], decode: Decode) -> Reader:
        """Decode one row to see what rows are.

        Raises
        ------
        InvalidInput
            If there are no rows, or a file lacks a column.
        """
        for file in files:
            absent = [name for name in names if name not in file.columns]
            if absent:
                raise InvalidInput(
                    f"{file.name} has no column {absent[0]!r}; it has {file.columns}"
                )
        filled = [file for file in files if file.rows]
        if not filled:
            raise InvalidInput("the files hold no rows; expected at least one")
        row, table = next(filled[0].tables(0, 1, names, 1))
        features, target, _ = _decoded(decode, filled[0], row, table)
        return cls(files, tuple(names), decode, features.shape[1], target.shape[1])

    def part(self, start: int, stop: int) -> tuple[Reader, int]:
        """Return a reader of the files with rows ``start`` to ``stop``, and its row ``start``."""
        pieces = [*self._pieces(start, stop)]
        files = tuple(file for file, *_ in pieces)
        return replace(self, files=files), pieces[0][1] if pieces else 0

    def filled(self, spans: Sequence[tuple[int, int]]) -> Iterator[Numbers]:
        """Yield the rows of spans that follow one another, each in fresh arrays."""
        chunks = self._chunks(spans[0][0], spans[-1][1]) if spans else iter(())
        chunk, used = next(chunks, None), 0
        for start, stop in spans:
            whole, done = self._empty(stop - start), 0
            while chunk is not None and done < stop - start:
                taken = min(stop - start - done, len(chunk[2]) - used)
                for into, values in zip(whole, chunk, strict=True):
                    into[done : done + taken] = values[used : used + taken]
                done, used = done + taken, used + taken
                if used == len(chunk[2]):
                    chunk, used = next(chunks, None), 0
            yield whole

    def picked(self, wanted: NDArray[np.intp]) -> Numbers:
        """Return the rows at ascending positions; row groups without any are not read."""
        groups = [*self._groups(wanted)]
        found = run_threads(lambda k: [*self._some(*groups[k])], len(groups)) if groups else []
        whole, done = self._empty(len(wanted)), 0
        for piece in (piece for group in found for piece in group):
            stop = done + len(piece[2])
            for into, values in zip(whole, piece, strict=True):
                into[done:stop] = values
            done = stop
        return whole

    def place(self, row: int, feature: int | None) -> str:
        """Say for a person where a row is, and which column if it is one feature's."""
        file, inside, *_ = next(self._pieces(row, row + 1))
        named = isinstance(self.decode, Columns)
        column = "target or weight"
        if feature is not None:
            column = f"column {self.names[feature]!r}" if named else f"feature {feature + 1}"
        return f"{file.name}: {column}, row {inside + 1}"

    def _chunks(self, start: int, stop: int) -> Iterator[Decoded]:
        for file, low, high, _ in self._pieces(start, stop):
            for row, table in file.tables(low, high, self.names, self._batch):
                yield _decoded(self.decode, file, row, table)

    def _pieces(self, start: int, stop: int) -> Iterator[tuple[File, int, int, int]]:
        """Yield (file, its first row, its last, position of its row 0) for a span of rows."""
        begin = 0
        for file in self.files:
            low, high = max(start - begin, 0), min(stop - begin, file.rows)
            if low < high:
                yield file, low, high, begin
            begin += file.rows

    def _groups(self, wanted: NDArray[np.intp]) -> Iterator[tuple[File, NDArray[np.intp]]]:
        """Yield (file, rows of it) for every row group that has some of ascending positions."""
        begin = 0
        for file in self.files:
            first, last = np.searchsorted(wanted, (begin, begin + file.rows))
            for rows in file.groups(wanted[first:last] - begin) if first < last else ():
                yield file, rows
            begin += file.rows

    def _some(self, file: File, rows: NDArray[np.intp]) -> Iterator[Decoded]:
        """Yield rows of one row group."""
        tables = file.tables(int(rows[0]), int(rows[-1]) + 1, self.names, self._batch)
        for first, table in tables:
            inside = rows[(rows >= first) & (rows < first + table.num_rows)] - first
            if len(inside):
                yield _decoded(self.decode, file, first, table.take(inside))

    @property
    def _batch(self) -> int:
        return max(BLOCK, BATCH_VALUES // self.features)

    def _empty(self, count: int) -> Numbers:
        return np.empty((count, self.features)), np.empty((count, self.columns)), np.empty(count)


def _decoded(decode: Decode, file: File, row: int, table: pa.Table) -> Decoded:
    """Decode a table that begins at ``row`` of a file; errors say where they happened."""
    count = table.num_rows
    try:
        features, target, weight = decode(table)
    except BadCell as error:
        where = f"{file.name}: column {error.column!r}, row {row + error.row + 1}"
        raise InvalidInput(f"{where} {error.problem}") from None
    except InvalidInput as error:
        raise InvalidInput(f"{file.name}, rows {row + 1} to {row + count}: {error}") from None
    if features.ndim != 2 or not len(features) == len(target) == len(weight) == count:
        raise InvalidInput(
            f"expected features ({count}, d), target ({count}, C) and weight ({count},) of {count} "
            f"rows, the decoder gave {features.shape}, {target.shape} and {weight.shape}"
        )
    return features, target.reshape(count, -1), weight
