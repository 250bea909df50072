"""Strict JSON: one reading only."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from expunge.certificate import strict_json
from expunge.errors import InvalidInput, VerificationFailed

values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**53) + 1, 2**53 - 1)
    | st.text(st.characters(exclude_categories=["Cs"])),
    lambda inner: st.lists(inner) | st.dictionaries(st.text("abc\u00e9"), inner),
)


@given(values)
def test_round_trip(value: object) -> None:
    data = strict_json.dumps(value)
    assert strict_json.loads(data) == value
    assert (
        data
        == json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()
    )


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b'{"a":1,"a":1}', "twice"),
        (b'{"b":{"a":1,"\\u0061":2}}', "twice"),
        (b"1.0", "float"),
        (b"[1e3]", "float"),
        (b'{"a":NaN}', "NaN"),
        (b"-Infinity", "Infinity"),
        (b"9007199254740992", r"2\^53"),
        (b"-9007199254740992", r"2\^53"),
        (b"1" * 5000, r"2\^53"),
        (b"[" * 200_000, "deeply"),
        (b'{"a":1}x', "JSON"),
        (b"", "JSON"),
        (b"{'a':1}", "JSON"),
        (b"[01]", "JSON"),
        (b"\xff", "UTF-8"),
        (b"\xef\xbb\xbf{}", "JSON"),
        (b'"\\ud800"', "surrogates"),
        (b" " * (1 << 20) + b"1", "1048576 bytes"),
    ],
)
def test_refusals(data: bytes, reason: str) -> None:
    with pytest.raises(VerificationFailed, match=reason) as caught:
        strict_json.loads(data)
    assert caught.value.check == "json"


def test_body_of_one_mebibyte_is_read() -> None:
    assert strict_json.loads(b" " * ((1 << 20) - 1) + b"1") == 1
    assert strict_json.loads(b'"\\ud83d\\ude00"') == "😀"


@pytest.mark.parametrize(
    "value", [1.5, float("nan"), 2**53, b"x", {1, 2}, "\ud800", "x" * (1 << 20), {1: 2, "1": 3}]
)
def test_nothing_is_written_that_cannot_be_read(value: object) -> None:
    with pytest.raises(InvalidInput, match="cannot be written as strict JSON"):
        strict_json.dumps(value)
