"""CSV and Parquet files: what columns they have, and their cells."""

from __future__ import annotations

import csv
import difflib
import io
import re
from collections.abc import Iterable
from pathlib import Path

import pyarrow as pa
import pyarrow.csv as arrow_csv
import pyarrow.parquet as parquet

from expunge.certificate.plain import is_unicode, quoted
from expunge.certificate.plain import some as some
from expunge.errors import InvalidInput

FORMATS = (".csv", ".csv.gz", ".tsv", ".tsv.gz", ".parquet")

_INDEX = re.compile(r"Unnamed: [0-9]+|__index_level_[0-9]+__")

BLOCKS = (1 << 20, 1 << 25, 1 << 30)
"""Bytes of a CSV that are parsed at once; a row has to fit, and few need more than the first."""


def column_names(path: Path) -> list[str]:
    """Return the names in the header of a file, unchecked.

    Raises
    ------
    InvalidInput
        For a file that is missing, empty, of an unknown suffix, damaged, or not UTF-8.
    """
    kind = _format(path)
    return _parquet_names(path) if kind == ".parquet" else _csv_names(path, kind)


def row_numbers(path: Path) -> list[str]:
    """Return the columns that pandas wrote for its index, which nobody chose as a feature.

    In a CSV they have no name, or one from being read and written again.
    """
    names = column_names(path)
    found = [name for name in names if _INDEX.fullmatch(name)]
    if _format(path) == ".parquet":
        stored = (_parquet_schema(path).pandas_metadata or {}).get("index_columns", [])
        found += [name for name in stored if name in names and name not in found]
    return found


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


def _format(path: Path) -> str:
    if not is_unicode(str(path)):
        raise InvalidInput(f"the path {quoted(str(path))} is not UTF-8; rename it")
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
    def parse(handler: object = None, block: int = BLOCKS[0]) -> pa.Table:
        return arrow_csv.read_csv(
            path,
            read_options=arrow_csv.ReadOptions(use_threads=handler is None, block_size=block),
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

    for block in BLOCKS:
        try:
            return parse(block=block)
        except OSError as error:
            raise InvalidInput(f"{path.name} cannot be read: {error}") from None
        except pa.ArrowInvalid as error:
            if "UTF8" in str(error):
                raise InvalidInput(f"{path.name} is not UTF-8; save it as UTF-8 text") from None
            if "straddl" not in str(error):
                raise InvalidInput(f"{path.name} is not a table: {_ragged(parse)}") from None
    raise InvalidInput(f"{path.name} has a row of more than {BLOCKS[-1] >> 20} MiB; shorten it")


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
    return list(_parquet_schema(path).names)


def _parquet_schema(path: Path) -> pa.Schema:
    try:
        return parquet.read_schema(path)
    except (pa.ArrowInvalid, OSError) as error:
        raise InvalidInput(f"{path.name} is not a readable Parquet file: {error}") from None


def _read_parquet(path: Path, wanted: list[str]) -> pa.Table:
    try:
        return parquet.ParquetFile(path).read(columns=wanted).select(wanted)
    except (pa.ArrowInvalid, OSError) as error:
        raise InvalidInput(f"{path.name} is damaged: {error}") from None


def _separator(kind: str) -> str:
    return "\t" if kind.startswith(".tsv") else ","
