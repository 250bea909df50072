"""Tables of people: read from CSV or Parquet, with an id and a label for every row.

CSV cells are read as text and get their meaning later, from the encoding (see `values`): the types
a CSV reader guesses depend on the other rows of the file, and a row must mean the same in each.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from expunge.certificate.plain import is_unicode, quoted
from expunge.certificate.words import count
from expunge.errors import InvalidInput, UnknownRecord
from expunge.folder.files import FORMATS, closest, column_names, load, row_numbers, some
from expunge.folder.values import Place, is_text, require_supported, to_text


@dataclass(frozen=True, repr=False)
class Table:
    """Rows of people, in the order of their file.

    Attributes
    ----------
    features : pyarrow.Table, n rows
        Feature columns, not yet encoded.
    label : pyarrow.ChunkedArray of n cells, or None
    ids : pyarrow.ChunkedArray of n strings, or None
        Whose row it is; one person may own several.
    source : str
        Name of the file, for messages.
    """

    features: pa.Table
    label: pa.ChunkedArray | None
    ids: pa.ChunkedArray | None
    source: str
    label_name: str | None = None
    id_name: str | None = None

    def __len__(self) -> int:
        return int(self.features.num_rows)

    def __repr__(self) -> str:
        return f"Table({self.source!r}, rows={len(self)}, features={self.features.num_columns})"

    def select(self, mask: NDArray[np.bool_]) -> Table:
        """Return the rows where `mask` (n,) is true, in the same order."""
        if mask.shape != (len(self),) or mask.dtype != np.bool_:
            raise InvalidInput(
                f"expected a mask of {len(self)} truth values, got shape {mask.shape} of "
                f"{mask.dtype}"
            )
        keep = pa.array(mask)
        return Table(
            features=self.features.filter(keep),
            label=None if self.label is None else self.label.filter(keep),
            ids=None if self.ids is None else self.ids.filter(keep),
            source=self.source,
            label_name=self.label_name,
            id_name=self.id_name,
        )

    def mask_of(self, ids: Iterable[str]) -> NDArray[np.bool_]:
        """Return which rows (n,) belong to any of `ids`.

        Raises
        ------
        UnknownRecord
            When an id owns no row here; nothing is guessed.
        """
        if self.ids is None:
            raise InvalidInput(f"{self.source} was read without an id column; name one")
        wanted = list(ids)
        found = pc.is_in(self.ids, value_set=pa.array(wanted, pa.string()))
        absent = set(wanted) - set(pc.unique(self.ids.filter(found)).to_pylist())
        if absent:
            own = "owns" if len(absent) == 1 else "own"
            raise UnknownRecord(
                f"{count(len(absent), 'id')} {own} no row of {self.source}: "
                f"{some([i for i in wanted if i in absent])}. Ids are compared exactly; correct or "
                "remove them"
            )
        mask: NDArray[np.bool_] = found.to_numpy().astype(np.bool_)
        return mask


def read(
    path: str | Path,
    *,
    label: str | None = None,
    identifier: str | None = None,
    columns: Sequence[str] | None = None,
    ignore: Sequence[str] = (),
) -> Table:
    """Read a table; the suffix of `path` gives the format (one of ``FORMATS``).

    Parameters
    ----------
    label, identifier : str or None
        Names of the label column and of the id column, if they are wanted.
    columns : sequence of str or None
        Feature columns to read; None means all others.
    ignore : sequence of str
        Columns that are not features; not read.

    Raises
    ------
    InvalidInput
        For a file that is missing, empty, damaged, ragged or not UTF-8; for columns that are
        missing, nameless or there twice; and for rows without an id or a label.
    """
    path = Path(path)
    wanted = _choose(column_names(path), path.name, label, identifier, columns, ignore)
    if columns is None:
        _refuse_row_numbers(path, set(wanted) - {label, identifier})
    return from_arrow(load(path, wanted), label=label, identifier=identifier, source=path.name)


def from_arrow(
    data: pa.Table, *, label: str | None = None, identifier: str | None = None, source: str
) -> Table:
    """Make a `Table` of an Arrow table; every column but the label and the id is a feature.

    >>> people = pa.table({"person": [7, 8, 7], "age": [30, 41, 31], "ill": [True, False, False]})
    >>> table = from_arrow(people, label="ill", identifier="person", source="people")
    >>> table
    Table('people', rows=3, features=1)
    >>> table.mask_of(["7"]).tolist()
    [True, False, True]
    """
    data = data.unify_dictionaries()
    wanted = _choose(data.column_names, source, label, identifier, None, ())
    if data.num_rows == 0:
        raise InvalidInput(f"{source} has no rows; expected at least one")
    special = {label, identifier}
    return Table(
        features=data.select([name for name in wanted if name not in special]),
        label=None if label is None else _label_of(_plain(data.column(label)), source, label),
        ids=None
        if identifier is None
        else _ids_of(_plain(data.column(identifier)), source, identifier),
        source=source,
        label_name=label,
        id_name=identifier,
    )


def read_ids(source: str | Path | Sequence[str | int], column: str | None = None) -> list[str]:
    """Read the ids of a deletion request, in order.

    Parameters
    ----------
    source : path, "-" or sequence
        A CSV or Parquet file with an id column, in which a person may have several rows; any other
        text file with one id a line (lines are kept exactly, empty lines are skipped); "-" for such
        lines on standard input; or the ids.
    column : str or None
        Name of the id column; may be left out where a file has only one column.

    Raises
    ------
    InvalidInput
        For no ids, an id listed twice, and everything that `read` raises.

    >>> read_ids([12, "0007"])
    ['12', '0007']
    """
    if isinstance(source, str | Path):
        name = "standard input" if source == "-" else Path(source).name
        ids = _ids_from_file(source, column)
    else:
        name = "the request"
        ids = [_id_of(value) for value in source]
    if not ids:
        raise InvalidInput(f"{name} holds no ids; expected at least one")
    twice = [value for value, times in Counter(ids).items() if times > 1]
    if twice:
        raise InvalidInput(f"{name} names {some(twice)} more than once; name every id once")
    return ids


def _refuse_row_numbers(path: Path, features: Collection[str | None]) -> None:
    found = [name for name in row_numbers(path) if name in features]
    if found:
        raise InvalidInput(
            f"{path.name} has {some(found)}, which pandas wrote to number its rows: leave it out "
            f"(--ignore {quoted(found[0])}), or write the file with index=False. If it says "
            "something about people, write it as a column (reset_index)"
        )


def _choose(
    names: Sequence[str],
    source: str,
    label: str | None,
    identifier: str | None,
    columns: Sequence[str] | None,
    ignore: Sequence[str],
) -> list[str]:
    """Check the header, and return the columns to read."""
    nameless = [i for i, name in enumerate(names, 1) if not name]
    if nameless and columns is None:
        raise InvalidInput(
            f"{source}: column {nameless[0]} has no name. If it is a row number that pandas wrote, "
            "write the file with index=False; otherwise name it"
        )
    twice = [name for name, times in Counter(names).items() if times > 1]
    if twice:
        raise InvalidInput(f"{source} has {some(twice)} more than once in its header; rename one")
    if label is not None and label == identifier:
        raise InvalidInput(f"{label!r} is given as both the label and the id column")
    special = [name for name in (label, identifier) if name is not None]
    for name in (*special, *(columns or ()), *ignore):
        if name not in names:
            raise InvalidInput(
                f"{source} has no column {name!r}.{closest(name, names)} "
                f"It has {some(names, 20)}{_wrong_separator(names)}"
            )
    for name in special:
        if name in ignore or (columns is not None and name in columns):
            raise InvalidInput(f"{name!r} is given as label or id and again as another column")
    features = [n for n in names if n not in special] if columns is None else list(columns)
    return [*(n for n in features if n not in ignore), *special]


def _plain(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Undo dictionary encoding."""
    kind = column.type
    return column.cast(kind.value_type) if pa.types.is_dictionary(kind) else column


def _label_of(column: pa.ChunkedArray, source: str, name: str) -> pa.ChunkedArray:
    place = Place(source, name)
    require_supported(column.type, place)
    _require_present(column, place, "a label")
    return column


def _ids_of(column: pa.ChunkedArray, source: str, name: str) -> pa.ChunkedArray:
    chunks, row = [], 1
    for chunk in column.chunks:
        place = Place(source, name, row)
        if pa.types.is_boolean(chunk.type):
            raise InvalidInput(f"{place} holds truth values, which identify nobody")
        chunks.append(to_text(chunk, place))
        row += len(chunk)
    ids = pa.chunked_array(chunks, pa.string())
    _require_present(ids, Place(source, name), "an id")
    _require_unambiguous(column, ids, Place(source, name))
    return ids


def _require_unambiguous(raw: pa.ChunkedArray, ids: pa.ChunkedArray, place: Place) -> None:
    """Refuse a column in which "7" and "7.0" would become the same person."""
    if not is_text(raw.type) or not pc.any(pc.not_equal(raw.cast(pa.string()), ids)).as_py():
        return
    if pc.count_distinct(raw).as_py() != pc.count_distinct(ids).as_py():
        raise InvalidInput(f"{place} spells one id in two ways, as 7 and 7.0; write it in one")


def _require_present(column: pa.ChunkedArray, place: Place, what: str) -> None:
    missing = pc.is_null(column, nan_is_null=True).to_numpy()
    if is_text(column.type):
        missing = missing | pc.fill_null(pc.equal(column, ""), True).to_numpy()
    if missing.any():
        others = int(missing.sum()) - 1
        also = f", and so {'is' if others == 1 else 'are'} {count(others, 'other row')}"
        raise InvalidInput(
            f"{place.row(int(missing.argmax()))} is empty{also * (others > 0)}; every row needs "
            f"{what}. Fill it in, or leave the row out"
        )


def _ids_from_file(source: str | Path, column: str | None) -> list[str]:
    if source == "-":
        return _id_lines(_standard_input(), "standard input")
    path = Path(source)
    if path.name.lower().endswith(FORMATS) or not path.exists() or path.is_dir():
        names = column_names(path)
        if column is None and len(names) != 1:
            raise InvalidInput(f"{path.name} has {len(names)} columns; say which holds the ids")
        table = read(path, identifier=column or names[0], columns=())
        return [] if table.ids is None else table.ids.unique().to_pylist()
    try:
        return _id_lines(path.read_bytes(), path.name)
    except OSError as error:
        raise InvalidInput(f"{path.name} cannot be read: {error.strerror}") from None


def _standard_input() -> bytes:
    if sys.stdin is None:
        raise InvalidInput("standard input is closed; give the ids in a file")
    return sys.stdin.buffer.read()


def _id_lines(content: bytes, source: str) -> list[str]:
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise InvalidInput(f"{source} is not UTF-8; save it as UTF-8 text") from None
    lines = pa.array([line.removesuffix("\r") for line in text.split("\n")], pa.string())
    return [line for line in to_text(lines, Place("the request", "id")).to_pylist() if line]


def _id_of(value: str | int) -> str:
    if isinstance(value, bool) or not isinstance(value, str | int | np.integer) or value == "":
        raise InvalidInput(f"an id is a text or a whole number, got {value!r}")
    if isinstance(value, str) and not is_unicode(value):
        raise InvalidInput(f"an id is a text in UTF-8, got {quoted(value)}")
    return str(to_text(pa.array([str(value)]), Place("the request", "id"))[0].as_py())


def _wrong_separator(names: Sequence[str]) -> str:
    if len(names) == 1 and any(mark in names[0] for mark in ";\t,|"):
        return "; the cells seem to be separated otherwise: use commas (.csv) or tabs (.tsv)"
    return ""
