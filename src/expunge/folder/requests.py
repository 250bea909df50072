"""Deletion requests: what the certificate says of each, and what only the operator keeps."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, time

from expunge.certificate.blocks import Request, request_commitment
from expunge.certificate.clocks import Regime, due_at
from expunge.errors import InvalidInput


@dataclass(frozen=True)
class Asked:
    """How people asked: the rule, its paragraphs, and when (None: now)."""

    regime: Regime = Regime.none
    basis: tuple[str, ...] = ()
    received: datetime | None = None

    def requests(self, ids: Sequence[str], now: datetime) -> tuple[tuple[Request, ...], bytes]:
        """Return one public request per person, and the sealed list of ids and salts.

        Raises
        ------
        InvalidInput
            If the requests were received after ``now``.
        """
        received = (self.received or now).replace(microsecond=0)
        if received > now:
            raise InvalidInput(f"the requests cannot have been received in the future ({received})")
        due = _due(received, self.regime)
        salts = [os.urandom(32) for _ in ids]
        made = [
            Request(
                commitment=request_commitment(salt, person),
                regime=self.regime,
                basis=self.basis,
                received_at=received,
                due_at=due,
                completed_at=now,
            )
            for person, salt in zip(ids, salts, strict=True)
        ]
        kept = [
            {"requestId": person, "salt": salt.hex(), "commitment": request.commitment}
            for person, salt, request in zip(ids, salts, made, strict=True)
        ]
        return tuple(made), json.dumps(kept).encode()


VOLUNTARY = Asked()


def parse_received(text: str) -> datetime:
    """Read a date (its first second, in local time) or a time with its zone.

    Raises
    ------
    InvalidInput
        If it is neither.

    >>> parse_received("2026-11-20T08:00:00+01:00").isoformat()
    '2026-11-20T07:00:00+00:00'
    """
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        raise InvalidInput(
            f"expected a date such as 2026-11-20, or a time such as 2026-11-20T08:00:00Z, got "
            f"{text!r}"
        ) from None
    return found.astimezone(UTC)


def _due(received: datetime, regime: Regime) -> datetime | None:
    """Return the last second in time by the local calendar, whatever summer time does meanwhile."""
    day = datetime.combine(received.astimezone().date(), time(), UTC)
    due = due_at(day, regime, UTC)
    return None if due is None else due.replace(tzinfo=None).astimezone(UTC)
