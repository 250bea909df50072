"""One Parquet file: what it was when it was opened, and its rows, a batch at a time."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from expunge.errors import InvalidInput

BUFFER_BYTES = 1 << 16
_TAIL = 8


@dataclass(frozen=True)
class File:
    """A Parquet file as it was when it was opened.

    ``modified`` is its time in nanoseconds, ``footer`` the SHA-256 of its footer, where Parquet
    keeps the schema and the places and sizes of all values.
    """

    path: str
    rows: int
    size: int
    modified: int
    footer: bytes

    @property
    def name(self) -> str:
        """Last part of the path, for messages."""
        return Path(self.path).name

    @property
    def columns(self) -> list[str]:
        """Names of the columns."""
        return list(_layout(self)[0].schema.to_arrow_schema().names)

    def groups(self, rows: NDArray[np.intp]) -> list[NDArray[np.intp]]:
        """Cut some ascending rows where row groups end; empty pieces are left out."""
        ends = _layout(self)[1]
        cuts = np.searchsorted(rows, ends[:-1])
        return [piece for piece in np.split(rows, cuts) if len(piece)]

    def tables(
        self, start: int, stop: int, columns: Sequence[str], most: int
    ) -> Iterator[tuple[int, pa.Table]]:
        """Yield rows ``start`` to ``stop`` as (first row, table of at most ``most`` rows).

        Row groups are read from their beginning, page by page, and no further than needed. The file
        is looked at before and after.

        Raises
        ------
        InvalidInput
            If the file is not the one that was opened, or is damaged.
        """
        self._require_same()
        if hashlib.sha256(_footer(self.path)).digest() != self.footer:
            raise self._changed()
        metadata, ends = _layout(self)
        first, last = np.searchsorted(ends, (start, stop - 1), side="right").tolist()
        position = int(ends[first - 1]) if first else 0
        groups = list(range(first, last + 1))
        try:
            reader = pq.ParquetFile(
                self.path, metadata=metadata, buffer_size=BUFFER_BYTES, pre_buffer=False
            )
            for batch in reader.iter_batches(most, groups, list(columns), use_threads=False):
                low, high = max(start - position, 0), min(stop - position, batch.num_rows)
                if low < high:
                    yield position + low, pa.Table.from_batches([batch.slice(low, high - low)])
                position += batch.num_rows
                if position >= stop:
                    break
        except (OSError, pa.ArrowException) as error:
            raise _damaged(self.path, error) from None
        self._require_same()
        if position < stop:
            raise self._changed()

    def _require_same(self) -> None:
        if _stat(self.path) != (self.size, self.modified):
            raise self._changed()

    def _changed(self) -> InvalidInput:
        return InvalidInput(
            f"{self.name} has changed since it was opened: put it back as it was, or open the "
            "files again and train again"
        )


def listed(files: str | Path | Sequence[str | Path]) -> list[Path]:
    """Return the files of a directory (``*.parquet``) or of a list, sorted by name.

    Raises
    ------
    InvalidInput
        If there are none, or one is there twice.
    """
    if isinstance(files, str | Path):
        directory = Path(files)
        found = [*directory.glob("*.parquet")] if directory.is_dir() else [directory]
    else:
        found = [Path(file) for file in files]
    if not found:
        raise InvalidInput(f"no files *.parquet in {files}" if files else "no Parquet files given")
    paths = sorted(path.absolute() for path in found)
    twice = [a.name for a, b in pairwise(paths) if a == b]
    if twice:
        raise InvalidInput(f"{twice[0]} is given twice; name every file once")
    return paths


def inspected(path: Path) -> File:
    """Look at a file.

    Raises
    ------
    InvalidInput
        If it cannot be read, is no Parquet file, or has two columns of one name.
    """
    size, modified = _stat(str(path))
    footer = _footer(str(path))
    metadata = _parsed(str(path), footer)
    names = metadata.schema.to_arrow_schema().names
    twice = [name for name in names if names.count(name) > 1]
    if twice:
        raise InvalidInput(f"{path.name} has the column {twice[0]!r} more than once; rename one")
    return File(str(path), metadata.num_rows, size, modified, hashlib.sha256(footer).digest())


def _stat(path: str) -> tuple[int, int]:
    try:
        found = os.stat(path)
    except OSError as error:
        raise InvalidInput(f"{Path(path).name} cannot be read: {error.strerror}") from None
    return found.st_size, found.st_mtime_ns


def _footer(path: str) -> bytes:
    """Return the end of a file: its footer, the length of that, and a mark."""
    try:
        with open(path, "rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(size - _TAIL, 0))
            length = int.from_bytes(file.read(_TAIL)[:4], "little")
            file.seek(max(size - _TAIL - length, 0))
            return file.read()
    except OSError as error:
        raise _damaged(path, error) from None


def _parsed(path: str, footer: bytes) -> pq.FileMetaData:
    try:
        return pq.read_metadata(pa.BufferReader(footer))
    except (OSError, pa.ArrowException) as error:
        raise _damaged(path, error) from None


def _damaged(path: str, error: Exception) -> InvalidInput:
    return InvalidInput(f"{Path(path).name} is damaged, or no Parquet file: {error}")


@lru_cache(maxsize=64)
def _layout(file: File) -> tuple[pq.FileMetaData, NDArray[np.int64]]:
    """Return the footer, and where every row group ends."""
    metadata = _parsed(file.path, _footer(file.path))
    sizes = [metadata.row_group(k).num_rows for k in range(metadata.num_row_groups)]
    return metadata, np.cumsum(sizes, dtype=np.int64)
