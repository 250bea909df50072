"""Deletion requests: what the certificate says of each, and what only the operator keeps."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, time

from expunge.certificate import schema
from expunge.certificate.blocks import Request, batch_commitment, request_commitment
from expunge.certificate.clocks import Regime, due_at
from expunge.certificate.plain import quoted
from expunge.errors import InvalidInput, VerificationFailed

LONGEST = 500
"""Requests that a certificate lists one by one; more are committed to by one root."""

EARLIEST = 1970


@dataclass(frozen=True)
class Asked:
    """How people asked: the rule, its paragraphs, and when (None: now)."""

    regime: Regime = Regime.none
    basis: tuple[str, ...] = ()
    received: datetime | None = None

    def __post_init__(self) -> None:
        """Check the paragraphs, which are printed in the certificate."""
        for paragraph in self.basis:
            try:
                schema.CODE.read(paragraph, "the paragraph of a request (--basis)", [])
            except VerificationFailed as error:
                raise InvalidInput(f"{error.reason}; write it as 17(1)(b)") from None

    def requests(self, ids: Sequence[str], now: datetime) -> tuple[tuple[Request, ...], bytes]:
        """Return what the certificate says of the requests, and the sealed list of ids and salts.

        That is one entry per person. More than `LONGEST` people, all of one fate, have one entry
        together, with their number and a `batch_commitment`; salts and ids, which stay sealed, are
        what shows that somebody's request is among them (see `Outside.membership` of a recheck).

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
        made = [request_commitment(salt, person) for salt, person in zip(salts, ids, strict=True)]
        kept = [
            {"requestId": person, "salt": salt.hex(), "commitment": commitment}
            for person, salt, commitment in zip(ids, salts, made, strict=True)
        ]
        listed = made if len(made) <= LONGEST else [batch_commitment(made)]
        requests = tuple(
            Request(
                commitment=commitment,
                regime=self.regime,
                basis=self.basis,
                received_at=received,
                due_at=due,
                completed_at=now,
                count=len(made) // len(listed),
            )
            for commitment in listed
        )
        return requests, json.dumps(kept).encode()


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
        found = datetime.fromisoformat(text).astimezone(UTC)
    except (ValueError, OverflowError):
        raise InvalidInput(
            f"expected a date such as 2026-11-20, or a time such as 2026-11-20T08:00:00Z, got "
            f"{quoted(text)}"
        ) from None
    if found.year < EARLIEST:
        raise InvalidInput(f"expected a date since {EARLIEST}, got {quoted(text)}")
    return found


def _due(received: datetime, regime: Regime) -> datetime | None:
    """Return the last second in time by the local calendar, whatever summer time does meanwhile."""
    day = datetime.combine(received.astimezone().date(), time(), UTC)
    due = due_at(day, regime, UTC)
    return None if due is None else due.replace(tzinfo=None).astimezone(UTC)
