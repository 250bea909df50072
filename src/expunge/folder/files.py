"""CSV and Parquet files: what columns they have, and their cells."""

from __future__ import annotations

import csv
import difflib
import io
from collections.abc import Iterable, Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.csv as arrow_csv
import pyarrow.parquet as parquet

from expunge.errors import InvalidInput

FORMATS = (".csv", ".csv.gz", ".tsv", ".tsv.gz", ".parquet")


def column_names(path: Path) -> list[str]:
    """Return the names in the header of a file, unchecked.

    Raises
    ------
    InvalidInput
        For a file that is missing, empty, of an unknown suffix, damaged, or not UTF-8.
    """
    kind = _format(path)
    return _parquet_names(path) if kind == ".parquet" else _csv_names(path, kind)


def load(path: Path, wanted: list[str]) -> pa.Table:
    """Return the `wanted` columns in that order; cells of a CSV are strings, null where empty.

    Raises
    ------
    InvalidInput
        For a file that is damaged, ragged, or not UTF-8.
    """
    kind = _format(path)
    return _read_parquet(path, wanted) if kind == ".parquet" else _read_csv(path, kind, wanted)


def closest(name: str, names: Iterable[str]) -> str:
    """Return " Did you mean …?" if one of `names` resembles `name`, else an empty text."""
    lower = {n.lower(): n for n in names}
    near = difflib.get_close_matches(name.lower(), lower, n=1)
    return f" Did you mean {lower[near[0]]!r}?" if near else ""


def some(names: Sequence[str], most: int = 5) -> str:
    """Quote the first few of `names` and count the rest."""
    shown = ", ".join(repr(n) for n in names[:most])
    return shown + (f" and {len(names) - most} more" if len(names) > most else "")


def _format(path: Path) -> str:
    if path.is_dir():
        raise InvalidInput(f"{path} is a directory; expected a file ({', '.join(FORMATS)})")
    if not path.exists():
        beside = [p.name for p in path.parent.iterdir()] if path.parent.is_dir() else []
        raise InvalidInput(f"{path} does not exist.{closest(path.name, beside)}")
    kind = next((end for end in FORMATS if path.name.lower().endswith(end)), None)
    if kind is None:
        raise InvalidInput(f"{path.name} ends in none of {', '.join(FORMATS)}; rename or convert")
    if path.stat().st_size == 0:
        raise InvalidInput(f"{path.name} is empty; expected a header and at least one row")
    return kind


def _csv_names(path: Path, kind: str) -> list[str]:
    try:
        with pa.input_stream(str(path), compression="gzip" if kind.endswith("gz") else None) as raw:
            lines = io.TextIOWrapper(raw, encoding="utf-8-sig", newline="")
            header = next(csv.reader(lines, delimiter=_separator(kind)), [])
    except UnicodeDecodeError:
        raise InvalidInput(f"{path.name} is not UTF-8; save it as UTF-8 text") from None
    except (OSError, csv.Error) as error:
        raise InvalidInput(f"{path.name} cannot be read: {error}") from None
    if not header:
        raise InvalidInput(f"{path.name} has no header in its first line")
    return header


def _read_csv(path: Path, kind: str, wanted: list[str]) -> pa.Table:
    def parse(handler: object = None) -> pa.Table:
        return arrow_csv.read_csv(
            path,
            read_options=arrow_csv.ReadOptions(use_threads=handler is None),
            parse_options=arrow_csv.ParseOptions(
                delimiter=_separator(kind), newlines_in_values=True, invalid_row_handler=handler
            ),
            convert_options=arrow_csv.ConvertOptions(
                include_columns=wanted,
                column_types=dict.fromkeys(wanted, pa.string()),
                null_values=[""],
                strings_can_be_null=True,
            ),
        )

    try:
        return parse()
    except OSError as error:
        raise InvalidInput(f"{path.name} cannot be read: {error}") from None
    except pa.ArrowInvalid as error:
        if "UTF8" in str(error):
            raise InvalidInput(f"{path.name} is not UTF-8; save it as UTF-8 text") from None
        raise InvalidInput(f"{path.name} is not a table: {_ragged(parse)}") from None


def _ragged(parse: object) -> str:
    """Say which row has the wrong number of cells, without quoting its content."""
    seen: list[str] = []

    def handler(row: arrow_csv.InvalidRow) -> str:
        if not seen:
            seen.append(
                f"row {(row.number or 2) - 1} has {row.actual_columns} cells where the header has "
                f"{row.expected_columns}. Quote cells that hold separators"
            )
        return "skip"

    assert callable(parse)
    try:
        parse(handler)
    except pa.ArrowInvalid as error:
        seen.append(str(error).split(":", 1)[0])
    return seen[0] if seen else "its rows cannot be parsed"


def _parquet_names(path: Path) -> list[str]:
    try:
        return list(parquet.read_schema(path).names)
    except (pa.ArrowInvalid, OSError) as error:
        raise InvalidInput(f"{path.name} is not a readable Parquet file: {error}") from None


def _read_parquet(path: Path, wanted: list[str]) -> pa.Table:
    try:
        return parquet.ParquetFile(path).read(columns=wanted).select(wanted)
    except (pa.ArrowInvalid, OSError) as error:
        raise InvalidInput(f"{path.name} is damaged: {error}") from None


def _separator(kind: str) -> str:
    return "\t" if kind.startswith(".tsv") else ","
