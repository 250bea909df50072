"""Due dates of deletion requests: a cautious reading of the texts, not legal advice.

GDPR Art. 12(3): one month from receipt, three months in all when extended; the same day number,
clipped to the end of the month, no weekend extension. CCPA (11 CCR 7021) and the Delete Act (Civ.
Code 1798.99.86): 45 calendar days, CCPA 90 in all when extended. Clocks start at receipt and end at
23:59:59 in the controller's time zone (certificate.md §6).
"""

from __future__ import annotations

import calendar
from datetime import UTC, date, datetime, time, timedelta, tzinfo
from enum import StrEnum

from expunge.errors import InvalidInput


class Regime(StrEnum):
    """The rule under which a person asks; ``none`` is a voluntary deletion without a clock."""

    gdpr = "gdpr"
    ccpa = "ccpa"
    deleteAct = "deleteAct"
    none = "none"


_MONTHS = {False: 1, True: 3}
_DAYS = {(Regime.ccpa, False): 45, (Regime.ccpa, True): 90, (Regime.deleteAct, False): 45}


def due_at(
    received: datetime, regime: Regime, zone: tzinfo, *, extended: bool = False
) -> datetime | None:
    """Last second in time, in UTC; ``None`` where the regime sets no clock.

    Raises
    ------
    InvalidInput
        If ``received`` has no time zone, or the regime knows no extension.

    >>> from zoneinfo import ZoneInfo
    >>> received = datetime(2026, 11, 20, 8, tzinfo=UTC)
    >>> due_at(received, Regime.gdpr, ZoneInfo("Europe/Berlin")).isoformat()
    '2026-12-20T22:59:59+00:00'
    """
    if received.tzinfo is None:
        raise InvalidInput("the time of receipt needs a time zone, got a naive datetime")
    if regime is Regime.none:
        return None
    day = received.astimezone(zone).date()
    if regime is Regime.gdpr:
        last = _months_later(day, _MONTHS[extended])
    elif (regime, extended) in _DAYS:
        last = day + timedelta(days=_DAYS[regime, extended])
    else:
        raise InvalidInput(f"the regime {regime} knows no extension; leave it out")
    return datetime.combine(last, time(23, 59, 59), zone).astimezone(UTC)


def _months_later(day: date, months: int) -> date:
    year, month = divmod(day.year * 12 + day.month - 1 + months, 12)
    length = calendar.monthrange(year, month + 1)[1]
    return date(year, month + 1, min(day.day, length))
