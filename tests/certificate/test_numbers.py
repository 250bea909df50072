"""Outward rounding of decimal strings, and the clocks of requests."""

from __future__ import annotations

import math
from datetime import UTC, datetime
from fractions import Fraction
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from expunge.certificate import clocks, decimals
from expunge.certificate.clocks import Regime
from expunge.errors import InvalidInput

positive = st.floats(min_value=1e-300, max_value=1e300)


@given(positive, st.integers(1, 17))
def test_rounding_is_outward_and_reads_back(x: float, digits: int) -> None:
    up, down = decimals.up(x, digits), decimals.down(x, digits)
    assert decimals.PATTERN.fullmatch(up)
    assert decimals.PATTERN.fullmatch(down)
    assert Fraction(down) <= Fraction(repr(x)) <= Fraction(up)
    assert decimals.value(down) <= x <= decimals.value(up)
    assert Fraction(up) <= Fraction(repr(x)) * (1 + Fraction(10, 10**digits))
    assert decimals.value(decimals.lossless(x)) == x


@given(st.integers(1, 10**6), st.integers(-9, 9))
def test_short_numbers_stay_as_they_are(mantissa: int, exponent: int) -> None:
    x = float(f"{mantissa}e{exponent}")
    assert decimals.up(x) == decimals.down(x) == decimals.lossless(x)


@pytest.mark.parametrize(
    "text", ["", "01", "+1", "-1", "1.", ".5", "8.9e-03", "1E5", "nan", "inf", "1e400", "1" * 65]
)
def test_other_spellings_of_numbers_are_refused(text: str) -> None:
    with pytest.raises(InvalidInput, match="decimal string"):
        decimals.value(text)


@pytest.mark.parametrize("x", [-1.0, math.nan, math.inf])
def test_numbers_outside_the_grammar_are_not_written(x: float) -> None:
    with pytest.raises(InvalidInput, match="finite"):
        decimals.up(x)


def utc(text: str) -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=UTC)


@pytest.mark.parametrize(
    ("regime", "received", "first", "extended"),
    [
        (Regime.gdpr, "2026-01-31", "2026-02-28", "2026-04-30"),
        (Regime.gdpr, "2028-01-31", "2028-02-29", "2028-04-30"),
        (Regime.gdpr, "2026-08-31", "2026-09-30", "2026-11-30"),
        (Regime.gdpr, "2026-12-31", "2027-01-31", "2027-03-31"),
        (Regime.ccpa, "2026-12-15", "2027-01-29", "2027-03-15"),
    ],
)
def test_clock_vectors(regime: Regime, received: str, first: str, extended: str) -> None:
    for flag, last in ((False, first), (True, extended)):
        due = clocks.due_at(utc(received), regime, UTC, extended=flag)
        assert due == utc(last + "T23:59:59")


def test_clocks_run_in_the_controllers_time_zone() -> None:
    berlin = ZoneInfo("Europe/Berlin")
    assert clocks.due_at(utc("2026-11-20T08:00:00"), Regime.gdpr, berlin) == utc(
        "2026-12-20T22:59:59"
    )
    late_evening = utc("2026-06-30T22:30:00")
    assert clocks.due_at(late_evening, Regime.gdpr, berlin) == utc("2026-08-01T21:59:59")


def test_clocks_that_do_not_exist() -> None:
    assert clocks.due_at(utc("2026-12-01"), Regime.none, UTC) is None
    with pytest.raises(InvalidInput, match="no extension"):
        clocks.due_at(utc("2026-12-01"), Regime.deleteAct, UTC, extended=True)
    with pytest.raises(InvalidInput, match="naive"):
        clocks.due_at(datetime(2026, 1, 1), Regime.gdpr, UTC)
