"""Real numbers in signed statements: decimal strings, rounded outward (certificate.md §1).

A float is first written with its shortest exact representation and then rounded, so that a number
which is short already (0.1, 1e-6) is printed as it is, and ``value(up(x)) >= x >= value(down(x))``
always holds.
"""

from __future__ import annotations

import math
import re
from decimal import ROUND_CEILING, ROUND_FLOOR, Context, Decimal

from expunge.errors import InvalidInput

PATTERN = re.compile(r"(0|[1-9][0-9]*)(\.[0-9]+)?(e-?[1-9][0-9]*)?")
LONGEST = 64
DIGITS = 7


def up(x: float, digits: int = DIGITS) -> str:
    """Smallest decimal of ``digits`` significant digits that is at least ``x`` ≥ 0.

    >>> up(0.236704339436), up(1e-6), up(1.0)
    ('0.2367044', '1e-6', '1')
    """
    return _text(Context(prec=digits, rounding=ROUND_CEILING).plus(_exact(x)))


def down(x: float, digits: int = DIGITS) -> str:
    """Largest decimal of ``digits`` significant digits that is at most ``x`` ≥ 0.

    >>> down(0.00026719229)
    '0.0002671922'
    """
    return _text(Context(prec=digits, rounding=ROUND_FLOOR).plus(_exact(x)))


def lossless(x: float) -> str:
    """The shortest decimal that reads back as exactly ``x`` ≥ 0.

    >>> lossless(5.602895e-05), lossless(0.1 + 0.2)
    ('5.602895e-5', '0.30000000000000004')
    """
    return _text(_exact(x))


def value(text: str) -> float:
    """The float nearest to a decimal string.

    Raises
    ------
    InvalidInput
        If ``text`` does not follow the grammar, is longer than 64 characters, or overflows.

    >>> value("8.9e-03")
    Traceback (most recent call last):
    expunge.errors.InvalidInput: expected a decimal string such as "0.25" or "1e-6", got '8.9e-03'
    """
    if len(text) > LONGEST or PATTERN.fullmatch(text) is None or math.isinf(number := float(text)):
        raise InvalidInput(
            f'expected a decimal string such as "0.25" or "1e-6", got {text[:LONGEST]!r}'
        )
    return number


def _exact(x: float) -> Decimal:
    if not (math.isfinite(x) and x >= 0):
        raise InvalidInput(f"a statement holds finite numbers of at least 0, got {x!r}")
    return Decimal(repr(float(x)))


def _text(number: Decimal) -> str:
    if not number:
        return "0"
    number = number.normalize()
    if -5 < number.adjusted() < 16:
        return format(number, "f")
    _, digits, _ = number.as_tuple()
    head, tail = str(digits[0]), "".join(map(str, digits[1:]))
    return f"{head}{'.' + tail if tail else ''}e{number.adjusted()}"
