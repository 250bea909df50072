"""How one column of a table becomes columns of numbers."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from expunge.certificate.plain import quoted
from expunge.errors import InvalidInput
from expunge.folder.files import closest, some
from expunge.folder.values import Place, canonical_category, text_of, to_categories, to_numbers

LARGEST = 1e100
"""Encoded numbers stay below this, so that no square or sum of them overflows."""

_REFUSED = -1


@dataclass(frozen=True)
class Number:
    """A numeric column, written as (value - center) / scale.

    With `fill`, a missing value is replaced by it and a second column says 1 where that happened;
    without, a missing value is an error. `fill` is in the units of the table.
    """

    name: str
    center: float = 0.0
    scale: float = 1.0
    fill: float | None = None

    def __post_init__(self) -> None:
        fill = 0.0 if self.fill is None else self.fill
        if not (all(map(math.isfinite, (self.center, self.scale, fill))) and self.scale > 0):
            raise InvalidInput(
                f"column {self.name!r} needs a finite center and fill and a positive scale, got "
                f"center {self.center}, scale {self.scale}, fill {self.fill}"
            )

    @property
    def outputs(self) -> tuple[str, ...]:
        """Names of the encoded columns."""
        return (self.name,) if self.fill is None else (self.name, f"{self.name}=(missing)")

    def write(self, cells: pa.Array, place: Place, into: NDArray[np.float64]) -> None:
        """Encode b cells into `into`, (columns, b)."""
        values = to_numbers(cells, place)
        missing = np.isnan(values)
        if self.fill is not None:
            into[1] = missing
            values = np.where(missing, self.fill, values)
        elif missing.any():
            raise InvalidInput(
                f"{place.row(int(missing.argmax()))} is missing; declare `fill` for the column, or "
                "leave the row out"
            )
        with np.errstate(over="ignore"):
            np.subtract(values, self.center, out=into[0])
            into[0] /= self.scale
        huge = np.abs(into[0]) > LARGEST
        if huge.any():
            raise InvalidInput(
                f"{place.row(int(huge.argmax()))} is too large for scale {self.scale}; correct the "
                "value, or enlarge the scale"
            )

    def to_json(self) -> dict[str, Any]:
        """Return the column's entry in the public policy."""
        entry = {"name": self.name, "type": "number"}
        entry |= {"center": decimal(self.center), "scale": decimal(self.scale)}
        return entry if self.fill is None else entry | {"fill": decimal(self.fill)}


@dataclass(frozen=True)
class Category:
    """A column of named values, written as one column of zeros and ones for each of them.

    With `other` every value that is not in `categories` goes to a column of its own, with `missing`
    so do missing values; without, they are errors.
    """

    name: str
    categories: tuple[str, ...]
    other: bool = False
    missing: bool = False

    def __post_init__(self) -> None:
        twice = [c for i, c in enumerate(self.categories) if c in self.categories[:i]]
        if twice or not (self.categories or self.other):
            problem = f"{some(twice)} twice" if twice else "no categories"
            raise InvalidInput(f"column {self.name!r} declares {problem}; expected distinct values")

    @property
    def outputs(self) -> tuple[str, ...]:
        """Names of the encoded columns."""
        extra = ["(other)"] * self.other + ["(missing)"] * self.missing
        return tuple(f"{self.name}={value}" for value in (*self.categories, *extra))

    def write(self, cells: pa.Array, place: Place, into: NDArray[np.float64]) -> None:
        """Encode b cells into `into`, (columns, b)."""
        codes, texts = to_categories(cells, place)
        size = len(self.categories)
        other = size if self.other else _REFUSED
        missing = size + self.other if self.missing else _REFUSED
        known = {text: i for i, text in enumerate(self.categories)}
        columns = [missing if t is None else known.get(t, other) for t in texts]
        column = np.array([*columns, missing])[codes]
        refused = column == _REFUSED
        if refused.any():
            row = int(refused.argmax())
            raise InvalidInput(self._refusal(place.row(row), [*texts, None][codes[row]]))
        into[:] = 0.0
        into[column, np.arange(len(column))] = 1.0

    def _refusal(self, where: str, text: str | None) -> str:
        if text is None:
            return f"{where} is missing; declare `missing = true` for the column, or fill it in"
        return (
            f"{where} is {quoted(text)}, which is not one of the {len(self.categories)} declared "
            f"categories.{closest(text, self.categories)} Correct it, add it to `categories`, or "
            "declare `other = true`"
        )

    def to_json(self) -> dict[str, Any]:
        """Return the column's entry in the public policy."""
        return {
            "name": self.name,
            "type": "category",
            "categories": list(self.categories),
            "other": self.other,
            "missing": self.missing,
        }


def decimal(value: float) -> str:
    """Write a finite real as the shortest decimal string that reads back as the same float64.

    >>> decimal(10.0), decimal(-0.25), decimal(1e-05), decimal(3e+200)
    ('10', '-0.25', '1e-5', '3e200')
    """
    digits, _, exponent = repr(float(value)).partition("e")
    digits = digits.removesuffix(".0")
    return f"{digits}e{int(exponent)}" if exponent else digits


def require_keys(
    given: Mapping[str, Any], what: str, needed: Sequence[str], optional: Sequence[str] = ()
) -> None:
    """Raise `InvalidInput` unless `given` has the `needed` keys and no strange ones."""
    if not isinstance(given, Mapping):
        raise InvalidInput(f"{what} must be a table of settings, got {quoted(given)}")
    known = (*needed, *optional)
    strange = [key for key in given if key not in known]
    if strange:
        raise InvalidInput(
            f"{what} has the unknown setting {strange[0]!r}.{closest(str(strange[0]), known)} "
            f"It may have {some(known, 20)}"
        )
    absent = [key for key in needed if key not in given]
    if absent:
        raise InvalidInput(f"{what} lacks {some(absent)}")


def column_from(name: Any, options: Any) -> Number | Category:
    """Read one column's settings, from a schema or from the policy's JSON."""
    what = f"column {name!r}"
    if not isinstance(name, str) or not name:
        raise InvalidInput(f"a column's name must be a text that is not empty, got {quoted(name)}")
    kind = options.get("type") if isinstance(options, Mapping) else options
    if kind == "number":
        require_keys(options, what, ("type",), ("center", "scale", "fill"))
        center = optional_real(options, "center", what)
        scale = optional_real(options, "scale", what)
        return Number(
            name,
            0.0 if center is None else center,
            1.0 if scale is None else scale,
            optional_real(options, "fill", what),
        )
    if kind == "category":
        require_keys(options, what, ("type", "categories"), ("other", "missing"))
        if not isinstance(options["categories"], list | tuple):
            raise InvalidInput(f"{what}: `categories` must be a list of values")
        texts = (text_of(value, f"a category of {what}") for value in options["categories"])
        flags = [options.get(key, False) for key in ("other", "missing")]
        if not all(isinstance(flag, bool) for flag in flags):
            raise InvalidInput(f"{what}: `other` and `missing` must be true or false")
        return Category(name, tuple(str(canonical_category(text)) for text in texts), *flags)
    raise InvalidInput(f"{what} must have type 'number' or 'category', got {quoted(kind)}")


def optional_real(options: Mapping[str, Any], key: str, what: str) -> float | None:
    """Return the number under `key`, which may be written as a decimal string, or None."""
    value = options.get(key)
    if value is None:
        return None
    try:
        if isinstance(value, bool):
            raise TypeError
        return float(value)
    except (TypeError, ValueError):
        raise InvalidInput(f"{what}: `{key}` must be a number, got {quoted(value)}") from None
