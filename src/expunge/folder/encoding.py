"""The fixed map from a row of a table to a vector of numbers.

An encoding that was declared in advance is a function of the row alone (`Tag.enforced`). One that
was learned from the training table may depend on people who later ask to be forgotten, and stays as
it was after they are gone (`Tag.assumed`): certificates made with it are conditional. Either way it
is public: it is printed in the policy.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from expunge.certificate.plain import quoted
from expunge.errors import InvalidInput
from expunge.folder.columns import (
    Category,
    Number,
    column_from,
    decimal,
    optional_real,
    require_keys,
)
from expunge.folder.files import closest, some
from expunge.folder.table import Table
from expunge.folder.values import NotANumber, Place, to_categories, to_numbers
from expunge.guarantee import Tag

MAX_CATEGORIES = 100
"""A column with more distinct texts than this is not taken for a category."""

MIN_PEOPLE = 10
"""A value that fewer people share is not written into a learned encoding, which is public."""

FORMAT = "expunge-encoding/1"
_BLOCK = 32768


@dataclass(frozen=True)
class Encoding:
    """How a table becomes a matrix; every row is encoded on its own.

    Attributes
    ----------
    columns : tuple of Number or Category
        In the order of the encoded columns.
    tag : Tag
        `enforced` if declared in advance, `assumed` if learned from the training table.
    ignored : tuple of str
        Columns that are known and not used.
    max_norm : float or None
        Encoded rows longer than this (Euclidean) are scaled down to it, each on its own, to within
        float64 rounding.
    """

    columns: tuple[Number | Category, ...]
    tag: Tag
    ignored: tuple[str, ...] = ()
    max_norm: float | None = None

    def __post_init__(self) -> None:
        names = [column.name for column in self.columns]
        twice = [n for i, n in enumerate(names) if n in names[:i] or n in self.ignored]
        if twice:
            raise InvalidInput(
                f"the encoding has {some(twice)} more than once; name every column once"
            )
        if not names:
            raise InvalidInput(
                "the encoding has no feature columns: leave at least one column that is not ignored"
            )
        clash = [n for i, n in enumerate(self.names) if n in self.names[:i]]
        if clash:
            raise InvalidInput(f"two encoded columns would be called {some(clash)}; rename one")
        if self.max_norm is not None and not 0 < self.max_norm < math.inf:
            raise InvalidInput(f"max_norm must be positive and finite, got {self.max_norm}")

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the d encoded columns."""
        return tuple(name for column in self.columns for name in column.outputs)

    @property
    def inputs(self) -> tuple[str, ...]:
        """Names of the columns read from a table."""
        return tuple(column.name for column in self.columns)

    @classmethod
    def declared(cls, schema: Mapping[str, Any]) -> Encoding:
        """Make the encoding that a schema declares (see `schema`), tagged `enforced`.

        >>> encoding = Encoding.declared({"features": {
        ...     "age": {"type": "number", "center": 40, "scale": 20},
        ...     "site": {"type": "category", "categories": ["a", "b"], "other": True}}})
        >>> encoding.names
        ('age', 'site=a', 'site=b', 'site=(other)')
        """
        require_keys(schema, "the schema", ("features",), ("ignore", "max_norm", "label"))
        features = schema["features"]
        if not isinstance(features, Mapping):
            raise InvalidInput("`features` must be a table with one entry per column")
        return cls(
            columns=tuple(column_from(name, options) for name, options in features.items()),
            tag=Tag.enforced,
            ignored=_names(schema.get("ignore", ()), "ignore"),
            max_norm=optional_real(schema, "max_norm", "the schema"),
        )

    @classmethod
    def learn(
        cls, table: Table, *, ignored: tuple[str, ...] = (), max_norm: float | None = None
    ) -> Encoding:
        """Choose an encoding from the data, once, tagged `assumed`.

        Numbers are centred by their mean and divided by their standard deviation, both rounded to
        two digits of the latter. Texts become categories; those that fewer than `MIN_PEOPLE` people
        share go to `other`. Missing values are encoded where the table has any.

        Raises
        ------
        InvalidInput
            For a column without values, and one with more than `MAX_CATEGORIES` distinct texts.
        """
        columns = tuple(_learn_column(table, name) for name in table.features.column_names)
        return cls(columns, Tag.assumed, ignored, max_norm)

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> Encoding:
        """Read what `to_json` wrote; nothing else is accepted."""
        require_keys(
            document, "the encoding", ("format", "tag", "columns", "ignored"), ("maxNorm",)
        )
        if document["format"] != FORMAT or document["tag"] not in (Tag.enforced, Tag.assumed):
            raise InvalidInput(
                f"expected format {FORMAT!r} with tag 'enforced' or 'assumed', got "
                f"{quoted(document['format'])} with {quoted(document['tag'])}"
            )
        columns = []
        for entry in document["columns"]:
            options = dict(entry)
            columns.append(column_from(options.pop("name", None), options))
        return cls(
            columns=tuple(columns),
            tag=Tag(document["tag"]),
            ignored=_names(document["ignored"], "ignored"),
            max_norm=optional_real(document, "maxNorm", "the encoding"),
        )

    def to_json(self) -> dict[str, Any]:
        """Return the JSON for the public policy; reals are decimal strings."""
        document: dict[str, Any] = {
            "format": FORMAT,
            "tag": self.tag.value,
            "columns": [column.to_json() for column in self.columns],
            "ignored": list(self.ignored),
        }
        return document if self.max_norm is None else document | {"maxNorm": decimal(self.max_norm)}

    def encode(self, table: Table) -> NDArray[np.float64]:
        """Return the (n, d) matrix of `table`, C-contiguous; row i depends on row i only.

        Raises
        ------
        InvalidInput
            For a column that is missing or neither encoded nor ignored, and for a cell that the
            encoding does not cover; names column, row and remedy.
        """
        self._require_columns(table)
        matrix = np.empty((len(table), len(self.names)))
        for start in range(0, len(table), _BLOCK):
            block = self._encode_block(table, start)
            matrix[start : start + _BLOCK] = block.T
        return matrix

    def _encode_block(self, table: Table, start: int) -> NDArray[np.float64]:
        block = np.empty((len(self.names), min(_BLOCK, len(table) - start)))
        first = 0
        for column in self.columns:
            last = first + len(column.outputs)
            column.write(*_cells(table, column.name, start), block[first:last])
            first = last
        if self.max_norm is not None:
            _clip(block, self.max_norm)
        return block

    def _require_columns(self, table: Table) -> None:
        present = table.features.column_names
        for name in self.inputs:
            if name not in present:
                raise InvalidInput(
                    f"{table.source} has no column {name!r}, which the encoding needs."
                    f"{closest(name, present)}"
                )
        extra = [n for n in present if n not in self.inputs and n not in self.ignored]
        if extra:
            raise InvalidInput(
                f"{table.source} has columns that the encoding does not mention: {some(extra)}. "
                "Declare them, or list them under `ignore`"
            )


def numbers_of(table: Table, name: str) -> NDArray[np.float64]:
    """Return a feature column as float64 (n,), NaN where missing; `NotANumber` if it is text."""
    return np.concatenate(
        [to_numbers(*_cells(table, name, start)) for start in range(0, len(table), _BLOCK)]
    )


def shared_values(table: Table, name: str) -> tuple[tuple[str, ...], int, bool]:
    """Look through a text column; without ids every row counts as a person.

    Returns
    -------
    tuple
        The sorted values that at least `MIN_PEOPLE` people share, the number of all distinct
        values, and whether any is missing.
    """
    cells = table.features.column(name).combine_chunks()
    codes, texts = to_categories(cells, Place(table.source, name))
    distinct = sorted({text for text in texts if text is not None})
    rank = {text: i for i, text in enumerate(distinct)} | {None: -1}
    value = np.array([*map(rank.__getitem__, texts), -1])[codes]
    shared = (
        [text for i, text in enumerate(distinct) if _at_least(table, value == i, MIN_PEOPLE)]
        if len(distinct) <= MAX_CATEGORIES
        else []
    )
    return tuple(shared), len(distinct), bool((value < 0).any())


def _at_least(table: Table, rows: NDArray[np.bool_], count: int) -> bool:
    """Whether the `rows` (n,) belong to at least `count` people; looks at few, then at all."""
    which = np.flatnonzero(rows)
    if table.ids is None:
        return len(which) >= count
    few = (len(table.ids.take(pa.array(part)).unique()) for part in (which[: 8 * count], which))
    return any(people >= count for people in few)


def _learn_column(table: Table, name: str) -> Number | Category:
    try:
        values = numbers_of(table, name)
    except NotANumber as error:
        return _learn_category(table, name, error)
    present = values[~np.isnan(values)]
    if not len(present):
        raise InvalidInput(f"{table.source}: column {name!r} has no values; ignore it")
    with np.errstate(over="ignore"):
        spread = float(present.std()) if present.min() < present.max() else 0.0
    if not math.isfinite(spread):
        raise InvalidInput(f"{table.source}: column {name!r} is too large to scale; declare it")
    digits = 1 - math.floor(math.log10(spread)) if spread > 0 else 0
    center = round(float(present.mean()), digits) + 0.0
    scale = round(spread, digits) if spread > 0 else 1.0
    return Number(name, center, scale, fill=center if len(present) < len(values) else None)


def _learn_category(table: Table, name: str, not_a_number: NotANumber) -> Category:
    shared, distinct, absent = shared_values(table, name)
    if distinct > MAX_CATEGORIES:
        raise InvalidInput(
            f"{table.source}: column {name!r} has {distinct} distinct texts, more than "
            f"{MAX_CATEGORIES}; ignore it (a name or free text says who, not what), group it into "
            "fewer, or declare its categories in a schema. It is not taken for numbers because "
            f"{not_a_number}"
        )
    return Category(name, shared, other=True, missing=absent)


def _cells(table: Table, name: str, start: int) -> tuple[pa.Array, Place]:
    cells = table.features.column(name).slice(start, _BLOCK).combine_chunks()
    return cells, Place(table.source, name, start + 1)


def _clip(block: NDArray[np.float64], max_norm: float) -> None:
    """Scale down the columns of `block` (d, b) that are longer than `max_norm`.

    Sums run over d one at a time, so that a column's result has the same bits in any company.
    """
    squares = np.zeros(block.shape[1])
    for row in block:
        squares += row * row
    block *= max_norm / np.maximum(np.sqrt(squares), max_norm)


def _names(value: Any, what: str) -> tuple[str, ...]:
    if not isinstance(value, list | tuple) or not all(isinstance(name, str) for name in value):
        raise InvalidInput(f"`{what}` must be a list of column names, got {quoted(value)}")
    return tuple(value)
