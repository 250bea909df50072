"""JSON as signed statements allow it: one reading only (certificate.md §1).

No duplicate keys, floats, NaN or infinities, integers from 2⁵³ on, invalid Unicode, or bodies over
1 MiB. What :func:`dumps` writes, :func:`loads` reads.
"""

from __future__ import annotations

import json
from typing import Any, NoReturn

from expunge.errors import InvalidInput, VerificationFailed

MAX_BYTES = 1 << 20
LARGEST = 2**53
_DIGITS = 17


def loads(data: bytes) -> object:
    """Read strict JSON.

    Raises
    ------
    VerificationFailed
        ``json``, with what was wrong.

    Examples
    --------
    >>> loads(b'{"count": 3}')
    {'count': 3}
    >>> loads(b'{"a": 1, "a": 2}')
    Traceback (most recent call last):
    expunge.errors.VerificationFailed: json: the key 'a' occurs twice
    """
    if len(data) > MAX_BYTES:
        _fail(f"expected at most {MAX_BYTES} bytes, got {len(data)}")
    try:
        value: object = json.loads(
            data.decode(),
            object_pairs_hook=_object,
            parse_int=_integer,
            parse_float=lambda text: _fail(f"expected a decimal string, got the float {text[:32]}"),
            parse_constant=lambda text: _fail(f"{text} is not JSON"),
        )
        if b"\\u" in data:
            json.dumps(value, ensure_ascii=False).encode()
    except UnicodeError:
        _fail("expected UTF-8 text without lone surrogates")
    except json.JSONDecodeError as error:
        _fail(f"expected JSON: {error}")
    except RecursionError:
        _fail("nested too deeply")
    return value


def dumps(value: object) -> bytes:
    """Write JSON with sorted keys and no spaces, in UTF-8.

    Raises
    ------
    InvalidInput
        If :func:`loads` would refuse the result, or the value is not made of JSON types.

    Examples
    --------
    >>> dumps({"b": [1, None], "a": "é"}).decode()
    '{"a":"é","b":[1,null]}'
    """
    try:
        text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
        data = text.encode()
        loads(data)
    except (TypeError, ValueError, RecursionError, VerificationFailed) as error:
        raise InvalidInput(f"cannot be written as strict JSON: {error}") from error
    return data


def _fail(reason: str) -> NoReturn:
    raise VerificationFailed("json", reason)


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in pairs:
        if key in found:
            _fail(f"the key {key[:64]!r} occurs twice")
        found[key] = value
    return found


def _integer(text: str) -> int:
    if len(text) > _DIGITS or abs(value := int(text)) >= LARGEST:
        _fail(f"expected integers below 2^53, got {text[:32]}")
    return value
