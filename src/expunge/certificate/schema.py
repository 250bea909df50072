"""A small two-way schema: frozen dataclasses to and from the JSON of a statement.

A `Kind` reads one JSON value strictly and writes it back; rounding outward is part of the kind
(`UP`, `EXACT`). A `block` ties kinds to the fields of a dataclass, snake_case to lowerCamelCase.
Fields that a block does not know are collected, to be shown, and otherwise ignored.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import cache
from typing import Any, NoReturn

from expunge.certificate import decimals
from expunge.certificate.plain import quoted
from expunge.errors import InvalidInput, VerificationFailed

Unknown = list[str]
LARGEST = 2**53
NEEDED = object()
_TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ")
_GRID = re.compile(r"2\^(0|-?[1-9][0-9]{0,3})")


@dataclass(frozen=True)
class Kind:
    """How one JSON value is read (value, path, list of unknown fields) and written.

    A field whose value is ``default`` is left out of its object.
    """

    read: Callable[[Any, str, Unknown], Any]
    write: Callable[[Any], Any] = lambda value: value
    default: Any = NEEDED


def fault(path: str, expected: str, value: object) -> NoReturn:
    """Raise `VerificationFailed` of the check ``schema`` for the field at ``path``."""
    raise VerificationFailed("schema", f"{path}: expected {expected}, got {quoted(value)}")


@cache
def camel(name: str) -> str:
    """LowerCamelCase of a snake_case name.

    >>> camel("mu_squared_spent")
    'muSquaredSpent'
    """
    head, *tail = name.split("_")
    return head + "".join(part.capitalize() for part in tail)


def text(pattern: str, expected: str) -> Kind:
    """A string that matches ``pattern`` in full; ``expected`` says it in words."""
    compiled = re.compile(pattern, re.DOTALL)

    def read(value: Any, path: str, unknown: Unknown) -> str:
        if not isinstance(value, str) or compiled.fullmatch(value) is None:
            fault(path, expected, value)
        return value

    return Kind(read)


def choice(options: Iterable[str], convert: Callable[[str], Any] = str) -> Kind:
    """One of a fixed set of strings, read through ``convert`` (an enumeration, say)."""
    allowed = tuple(str(option) for option in options)

    def read(value: Any, path: str, unknown: Unknown) -> Any:
        if not isinstance(value, str) or value not in allowed:
            fault(path, "one of " + ", ".join(allowed), value)
        return convert(value)

    return Kind(read, str)


def integer(least: int) -> Kind:
    """A JSON integer in [least, 2⁵³)."""

    def read(value: Any, path: str, unknown: Unknown) -> int:
        if type(value) is not int or not least <= value < LARGEST:
            fault(path, f"an integer of at least {least}", value)
        return value

    return Kind(read)


def optional(kind: Kind) -> Kind:
    """``kind`` or null."""
    return Kind(
        lambda value, path, unknown: None if value is None else kind.read(value, path, unknown),
        lambda value: None if value is None else kind.write(value),
    )


def unless(default: Any, kind: Kind) -> Kind:
    """``kind``, in a field that is left out where its value is ``default``."""
    return replace(kind, default=default)


def many(kind: Kind, least: int = 0) -> Kind:
    """A list of at least ``least`` values, read as a tuple."""

    def read(value: Any, path: str, unknown: Unknown) -> tuple[Any, ...]:
        if not isinstance(value, list) or len(value) < least:
            fault(path, f"a list of at least {least}", value)
        return tuple(kind.read(item, f"{path}[{i}]", unknown) for i, item in enumerate(value))

    return Kind(read, lambda values: [kind.write(value) for value in values])


def read_fields(
    value: Any, fields: Mapping[str, Kind], path: str, unknown: Unknown
) -> dict[str, Any]:
    """Read an object whose keys are ``fields``; others go to ``unknown``.

    All must be there but those with a default.
    """
    if not isinstance(value, dict):
        fault(path, "an object", value)
    for name, kind in fields.items():
        if name not in value and kind.default is NEEDED:
            raise VerificationFailed("schema", f"{path}: the field {name!r} is missing")
    unknown.extend(f"{path}.{name}" for name in sorted(value.keys() - fields.keys()))
    return {
        name: kind.read(value[name], f"{path}.{name}", unknown) if name in value else kind.default
        for name, kind in fields.items()
    }


def block(cls: type, names: Mapping[str, str] | None = None, /, **kinds: Kind) -> Kind:
    """An object that becomes ``cls(**fields)``; ``names`` holds JSON names other than camelCase."""
    keys = {field: (names or {}).get(field, camel(field)) for field in kinds}

    def read(value: Any, path: str, unknown: Unknown) -> Any:
        found = read_fields(value, {keys[f]: kind for f, kind in kinds.items()}, path, unknown)
        try:
            return cls(**{field: found[key] for field, key in keys.items()})
        except InvalidInput as error:
            raise VerificationFailed("schema", f"{path}: {error}") from error

    def write(instance: Any) -> dict[str, Any]:
        values = {field: getattr(instance, field) for field in kinds}
        return {
            keys[f]: kind.write(values[f]) for f, kind in kinds.items() if values[f] != kind.default
        }

    return Kind(read, write)


def _read_decimal(value: Any, path: str, unknown: Unknown) -> float:
    if not isinstance(value, str):
        fault(path, "a decimal string", value)
    try:
        return decimals.value(value)
    except InvalidInput:
        fault(path, "a decimal string", value)


def parse_time(value: str) -> datetime:
    """A time of a statement, ``2026-11-30T12:00:00Z``, as an aware datetime."""
    if _TIME.fullmatch(value) is None:
        raise InvalidInput(f"expected a time such as 2026-11-30T12:00:00Z, got {value!r}")
    try:
        return datetime.strptime(value, "%Y-%m-%dT%H:%M:%SZ").replace(tzinfo=UTC)
    except ValueError as error:
        raise InvalidInput(f"there is no such time: {value!r}") from error


def print_time(value: datetime) -> str:
    """RFC 3339 in UTC with whole seconds."""
    if value.tzinfo is None:
        raise InvalidInput("times need a time zone, got a naive datetime")
    return value.astimezone(UTC).replace(tzinfo=None).isoformat(timespec="seconds") + "Z"


def _read_time(value: Any, path: str, unknown: Unknown) -> datetime:
    if not isinstance(value, str):
        fault(path, "a time such as 2026-11-30T12:00:00Z", value)
    try:
        return parse_time(value)
    except InvalidInput:
        fault(path, "a time such as 2026-11-30T12:00:00Z", value)


def _read_flag(value: Any, path: str, unknown: Unknown) -> bool:
    if not isinstance(value, bool):
        fault(path, "true or false", value)
    return value


def _read_grid(value: Any, path: str, unknown: Unknown) -> int:
    if not isinstance(value, str) or _GRID.fullmatch(value) is None:
        fault(path, 'a power of two such as "2^-22"', value)
    return -int(value[2:])


def _read_object(value: Any, path: str, unknown: Unknown) -> dict[str, Any]:
    if not isinstance(value, dict):
        fault(path, "an object", value)
    return value


UP = Kind(_read_decimal, decimals.up)
EXACT = Kind(_read_decimal, decimals.lossless)
FLAG = Kind(_read_flag)
GRID = Kind(_read_grid, lambda exponent: f"2^{-exponent}")
OBJECT = Kind(_read_object)
TIME = Kind(_read_time, print_time)
DIGEST = text(r"[0-9a-f]{64}", "a SHA-256 digest of 64 lower-case hexadecimal digits")
CODE = text(r"[0-9A-Za-z][0-9A-Za-z().:/_+-]{0,63}", "a short code without spaces")
NAME = text(
    r"[^\x00-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069]{1,200}",
    "a name of at most 200 characters without control characters",
)
