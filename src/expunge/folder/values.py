"""What one cell means: the same text, number or missing value from CSV and from Parquet.

Every rule here looks at one cell only, never at its neighbours, so that a row means the same in the
training file and in a file that holds nothing but that row.

Missing
    An empty cell, an empty text and a null; in a numeric column also NaN and the words in
    ``MISSING_WORDS``. As text, "NA" stays what it is (it may be Namibia).
Text (ids, categories, class labels)
    Kept exactly, with nothing stripped, except that whole numbers written as floats are written as
    integers: 7, 7.0 and "7.0" are all "7", and Arrow's "1e+10" is "10000000000"; "007" stays "007".
    Truth values are "true" and "false".
Numbers
    float64. float32 is taken at its shortest decimal (0.1, not 0.10000000149), which is what a CSV
    written from it says. Truth values are 1 and 0.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from expunge.certificate.plain import quoted
from expunge.errors import InvalidInput

MISSING_WORDS = ("na", "n/a", "#n/a", "nan", "null", "none")
"""Read as missing in numeric columns, in any case."""

_WHOLE = r"^-?[0-9]+\.0+$"
_POWER = r"^-?[0-9](\.[0-9]+)?e\+[0-9]{1,2}$"
_TRUTH = ("true", "false")
_EXACT_WHOLE = 2.0**53


class NotANumber(InvalidInput):
    """A text in a numeric column is no number."""


@dataclass(frozen=True)
class Place:
    """Where a run of cells comes from, for messages; rows count from 1, without the header."""

    source: str
    column: str
    first_row: int = 1

    def __str__(self) -> str:
        return f"{self.source}: column {self.column!r}"

    def row(self, index: int) -> str:
        """Name the cell `index` places after the first."""
        return f"{self}, row {self.first_row + index}"


def is_text(kind: pa.DataType) -> bool:
    """Whether cells of this Arrow type are text (a dictionary counts as what it holds)."""
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    return bool(
        pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind)
    )


def require_supported(kind: pa.DataType, place: Place) -> None:
    """Raise `InvalidInput` for types that are neither text, nor numbers, nor truth values."""
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    numeric = pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind)
    if not (numeric or is_text(kind) or pa.types.is_boolean(kind) or pa.types.is_null(kind)):
        raise InvalidInput(
            f"{place} has type {kind}, which cannot be used; expected text, numbers or truth "
            "values. Convert it to a number (a date: years or days since a fixed day), or ignore it"
        )


def to_text(cells: pa.Array, place: Place) -> pa.Array:
    """Return `cells` as Arrow strings, null where missing.

    Raises
    ------
    InvalidInput
        For an unsupported type, and for numbers that are not whole: they have no one spelling.
    """
    require_supported(cells.type, place)
    if pa.types.is_dictionary(cells.type):
        cells = cells.dictionary_decode()
    if pa.types.is_floating(cells.type):
        cells = _whole_numbers(cells, place)
    text = cells.cast(pa.string())
    text = pc.if_else(pc.equal(text, ""), pa.scalar(None, pa.string()), text)
    if pc.any(pc.match_substring(text, ".0")).as_py():
        whole = pc.match_substring_regex(text, _WHOLE)
        text = pc.if_else(whole, pc.replace_substring_regex(text, r"\.0+$", ""), text)
    if pc.any(pc.match_substring(text, "e+")).as_py():
        powers = pc.fill_null(pc.match_substring_regex(text, _POWER), False)
        spelt = [_spell_out(power) for power in text.filter(powers).to_pylist()]
        text = pc.replace_with_mask(text, powers, pa.array(spelt, pa.string()))
    return text


def to_categories(cells: pa.Array, place: Place) -> tuple[NDArray[np.int64], list[str | None]]:
    """Return a code for every cell and the text of every code; missing cells have code -1.

    Several codes may have the same text ("7" and "7.0"), and a code's text may be None (missing).
    "True" and "FALSE" are written "true" and "false", as truth values are.
    """
    if not pa.types.is_dictionary(cells.type):
        require_supported(cells.type, place)
        cells = cells.dictionary_encode()
    codes = pc.fill_null(cells.indices.cast(pa.int64()), -1).to_numpy()
    try:
        text = to_text(cells.dictionary, Place(place.source, place.column)).to_pylist()
    except InvalidInput:
        to_text(cells.dictionary_decode(), place)
        raise
    return codes, [canonical_category(t) for t in text]


def canonical_category(text: str | None) -> str | None:
    """Write truth values in lower case; keep every other text."""
    return text.lower() if text is not None and text.lower() in _TRUTH else text


def to_numbers(cells: pa.Array, place: Place) -> NDArray[np.float64]:
    """Return `cells` as float64, NaN where missing.

    Raises
    ------
    InvalidInput
        For an unsupported type, a text that is no number, and infinite numbers; names the row.
    """
    require_supported(cells.type, place)
    kind = cells.type
    if pa.types.is_dictionary(kind):
        cells, kind = cells.dictionary_decode(), kind.value_type
    if pa.types.is_boolean(kind):
        cells = cells.cast(pa.uint8())
    elif pa.types.is_decimal(kind) or pa.types.is_float32(kind) or pa.types.is_float16(kind):
        cells = cells.cast(pa.float32()) if pa.types.is_float16(kind) else cells
        cells = _parse(cells.cast(pa.string()), place)
    elif is_text(kind):
        cells = _parse(cells.cast(pa.string()), place)
    numbers: NDArray[np.float64] = pc.fill_null(
        cells.cast(pa.float64(), safe=False), float("nan")
    ).to_numpy(zero_copy_only=False)
    infinite = np.isinf(numbers)
    if infinite.any():
        raise InvalidInput(
            f"{place.row(int(infinite.argmax()))} is infinite; every number must be finite. "
            "Leave the cell empty if the value is missing"
        )
    return numbers


def _whole_numbers(cells: pa.Array, place: Place) -> pa.Array:
    numbers = pc.fill_null(cells.cast(pa.float64()), float("nan")).to_numpy(zero_copy_only=False)
    missing = np.isnan(numbers)
    wrong = ~missing & ~((np.abs(numbers) < _EXACT_WHOLE) & (np.trunc(numbers) == numbers))
    if wrong.any():
        row = int(wrong.argmax())
        raise InvalidInput(
            f"{place.row(row)} is {numbers[row]:g}; ids, categories and classes are text or whole "
            "numbers below 2^53. Store them as text, or declare the column a number"
        )
    return pa.array(np.where(missing, 0.0, numbers).astype(np.int64), mask=missing)


def _spell_out(power: str) -> str:
    number = float(power)
    whole = number.is_integer() and abs(number) < _EXACT_WHOLE
    return str(int(number)) if whole else power


def _parse(text: pa.Array, place: Place) -> pa.Array:
    """Text to float64; the quick cast refuses what the second pass understands."""
    try:
        return text.cast(pa.float64())
    except pa.ArrowInvalid:
        pass
    trimmed = pc.utf8_trim_whitespace(text)
    lower = pc.utf8_lower(trimmed)
    missing = pc.is_in(lower, value_set=pa.array(["", *MISSING_WORDS]))
    plain = pc.if_else(missing, pa.scalar(None, pa.string()), trimmed)
    plain = pc.if_else(pc.equal(lower, "true"), "1", plain)
    plain = pc.if_else(pc.equal(lower, "false"), "0", plain)
    try:
        return plain.cast(pa.float64())
    except pa.ArrowInvalid:
        row = next(i for i, cell in enumerate(plain) if not _is_number(cell))
        raise NotANumber(
            f"{place.row(row)} is {quoted(text[row].as_py())}, expected a number. Correct it, "
            "leave it empty if it is missing, or declare the column a category"
        ) from None


def _is_number(cell: pa.Scalar) -> bool:
    try:
        cell.cast(pa.float64())
    except pa.ArrowInvalid:
        return False
    return True


def text_of(value: object, what: str) -> str:
    """Return the text that a cell holding `value` has; `what` names it in messages.

    >>> text_of(7.0, "a class"), text_of(True, "a class"), text_of("007", "a class")
    ('7', 'true', '007')
    """
    if isinstance(value, np.generic):
        value = value.item()
    if not isinstance(value, str | int | float) or value == "":
        raise InvalidInput(f"{what} is a text or a whole number that is not empty, got {value!r}")
    return str(to_text(pa.array([value]), Place("the declaration", what))[0].as_py())
