"""Columns of an Arrow table as features, target and weight: numbers as they are, and classes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from expunge.errors import InvalidInput
from expunge.linear.losses import Array

Decoded = tuple[NDArray[Any], NDArray[Any], NDArray[Any]]
Decode = Callable[[pa.Table], Decoded]
"""Features (m, d), target (m, C) or (m,), weight (m,) of m rows, each row on its own."""


class BadCell(InvalidInput):
    """One cell cannot be used; ``row`` counts from 0 in the table at hand."""

    def __init__(self, row: int, problem: str, column: str = "") -> None:
        super().__init__(f"column {column!r}, row {row + 1} of these, {problem}")
        self.row, self.problem, self.column = row, problem, column


@dataclass(frozen=True)
class Columns:
    """Features, target and weight are columns of the table.

    Numbers of every kind are taken at their exact value, rounded to float64 once (float32 0.1 is
    0.10000000149, as NumPy has it; a decimal is what it says); truth values are 1 and 0; a
    dictionary is what it holds. Nulls and everything else are errors.

    Attributes
    ----------
    features : tuple of str
        d columns.
    target : tuple of str
        C columns of numbers, or one that ``encode`` makes C of.
    weight : str or None
        Column of weights; None: all rows have weight 1.
    encode : callable or None
        Takes the cells of the single target column, gives (m,) or (m, C) numbers; see
        :class:`Classes`.
    """

    features: tuple[str, ...]
    target: tuple[str, ...]
    weight: str | None = None
    encode: Callable[[pa.Array], Array] | None = None

    def __post_init__(self) -> None:
        if not self.features or not self.target:
            raise InvalidInput("expected at least one feature column and one target column")
        if self.encode is not None and len(self.target) > 1:
            raise InvalidInput(
                f"an encoding takes one target column, got {len(self.target)}: decode the table"
            )
        twice = {name for name in self.names if self.names.count(name) > 1}
        if twice:
            raise InvalidInput(f"{sorted(twice)} named more than once as feature, target or weight")

    @property
    def names(self) -> tuple[str, ...]:
        """All columns to read."""
        return (*self.features, *self.target, *((self.weight,) if self.weight else ()))

    def __call__(self, table: pa.Table) -> Decoded:
        """Return the numbers of some rows; raise :class:`BadCell` where there are none."""
        weight = numbers(table, (self.weight,))[:, 0] if self.weight else np.ones(table.num_rows)
        return numbers(table, self.features), self._target(table), weight

    def _target(self, table: pa.Table) -> NDArray[Any]:
        if self.encode is None:
            return numbers(table, self.target)
        name = self.target[0]
        try:
            return self.encode(_plain(table, name))
        except BadCell as error:
            raise BadCell(error.row, error.problem, name) from None


@dataclass(frozen=True)
class Classes:
    """Encode a column of classes as a target.

    Two classes give one column, −1 for the first and +1 for the second; more give one column each:
    0 and 1 if ``one_hot`` (softmax), else −1 and +1 (one versus rest).

    >>> Classes(("no", "yes"))(pa.array(["yes", "no"])).tolist()
    [1.0, -1.0]
    """

    values: tuple[str | int | bool, ...]
    one_hot: bool = False

    def __post_init__(self) -> None:
        if len(set(self.values)) != len(self.values) or len(self.values) < 2:
            raise InvalidInput(f"expected at least two distinct classes, got {list(self.values)}")

    def __call__(self, cells: pa.Array) -> Array:
        """Return (m,) or (m, C) float64."""
        try:
            known = pa.array(self.values).cast(cells.type)
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
            raise InvalidInput(
                f"the classes {list(self.values)} are no values of a column of {cells.type}: name "
                "them as the column has them"
            ) from None
        found = pc.index_in(cells, value_set=known)
        if found.null_count:
            row = first_null(found)
            raise BadCell(row, f"is {cells[row].as_py()!r}, no class among {list(self.values)}")
        code = found.to_numpy(zero_copy_only=False)
        if len(self.values) == 2:
            return np.where(code == 1, 1.0, -1.0)
        hot: Array = np.eye(len(self.values))[code]
        return hot if self.one_hot else 2.0 * hot - 1.0


def numbers(table: pa.Table, names: tuple[str, ...]) -> NDArray[Any]:
    """Return columns as (m, k), column after column in memory; float32 if all of them are.

    Long columns start a cache line off from where they would fall into the same sets of a cache,
    which makes it several times faster to cut rows out.
    """
    cells = [_plain(table, name) for name in names]
    forms = [_form(column.type) for column in cells]
    kind = np.dtype(np.float32 if all(form == "float32" for form in forms) else np.float64)
    length = table.num_rows
    if length > 1024:
        length = (length // 1024 + 1) * 1024 + 64 // kind.itemsize
    stacked = np.empty((len(names), length), kind)
    for line, column, form, name in zip(stacked, cells, forms, names, strict=True):
        if form == "none":
            raise InvalidInput(
                f"column {name!r} has type {column.type}, expected numbers or truth values: leave "
                "the column out, or give a `decode` that makes numbers of it"
            )
        if form == "decimal":
            column = column.cast(pa.string()).cast(pa.float64())
        line[: table.num_rows] = column.to_numpy(zero_copy_only=False)
    return stacked[:, : table.num_rows].T


@lru_cache
def _form(kind: pa.DataType) -> str:
    """Say how cells of a type become numbers."""
    if pa.types.is_float32(kind):
        return "float32"
    if pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind):
        return "number"
    return "decimal" if pa.types.is_decimal(kind) else "none"


def first_null(cells: pa.Array) -> int:
    """Return where the first null is."""
    return int(np.argmax(cells.is_null().to_numpy(zero_copy_only=False)))


def _plain(table: pa.Table, name: str) -> pa.Array:
    """Return a column as one array without nulls: numbers, or what :class:`Classes` compares."""
    column = table.column(name)
    cells = column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()
    if isinstance(cells, pa.DictionaryArray):
        cells = cells.dictionary_decode()
    if cells.null_count:
        raise BadCell(first_null(cells), "is empty: fill it in, or leave the row out", name)
    return cells
