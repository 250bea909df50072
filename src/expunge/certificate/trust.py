"""The trust policy: which keys may sign what, from when to when, and how many must.

A JSON file that whoever verifies keeps himself; nothing in a certificate can change it. The time
that counts is that of the first checkpoint held outside that covers an entry, not the time printed
in the certificate.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any, Self

from expunge.certificate import strict_json
from expunge.certificate.envelope import Envelope, verified_payload
from expunge.certificate.keys import PublicKey, keyid, load_public, to_pem
from expunge.certificate.schema import parse_time, print_time
from expunge.errors import InvalidInput, KeyUnusable

VERSION = "1.0"


class Role(StrEnum):
    """What a key may sign: statements, log checkpoints, countersignatures, audits."""

    issuer = "issuer"
    log = "log"
    officer = "officer"
    auditor = "auditor"


@dataclass(frozen=True)
class TrustedKey:
    """A public key with its roles and the interval [valid_from, valid_until), open where None."""

    name: str
    public: PublicKey
    roles: frozenset[Role]
    valid_from: datetime | None = None
    valid_until: datetime | None = None

    def valid_at(self, time: datetime) -> bool:
        """Say whether the key was valid at an (aware) time."""
        started = self.valid_from is None or self.valid_from <= time
        return started and (self.valid_until is None or time < self.valid_until)


@dataclass(frozen=True)
class TrustPolicy:
    """Trusted keys, and how many of a role have to sign (1 unless said otherwise)."""

    keys: tuple[TrustedKey, ...]
    thresholds: Mapping[Role, int]

    def __post_init__(self) -> None:
        """Check that every threshold can be met and that no key is issuer and log at once."""
        for role in Role:
            needed = self.threshold(role)
            held = len({keyid(key.public) for key in self.keys if role in key.roles})
            if needed < 1 or (role in self.thresholds and held < needed):
                raise InvalidInput(
                    f"expected a threshold of 1..{held} for {role} ({held} keys), got {needed}"
                )
        logs, issuers = (
            {keyid(key.public) for key in self.keys if role in key.roles}
            for role in (Role.log, Role.issuer)
        )
        if logs & issuers:
            raise InvalidInput("a key must not sign both certificates and the log; make another")

    @classmethod
    def of(cls, issuer: PublicKey, log: PublicKey) -> Self:
        """Return the smallest policy: one issuer and one log key, always valid."""
        return cls(
            (
                TrustedKey("issuer", issuer, frozenset({Role.issuer})),
                TrustedKey("log", log, frozenset({Role.log})),
            ),
            {},
        )

    def threshold(self, role: Role) -> int:
        """Return how many keys of a role have to sign."""
        return self.thresholds.get(role, 1)

    def keys_for(self, role: Role, at: datetime) -> tuple[PublicKey, ...]:
        """Return the keys of a role that were valid at a time."""
        return tuple(k.public for k in self.keys if role in k.roles and k.valid_at(at))

    def payload(self, envelope: Envelope, role: Role, at: datetime) -> bytes:
        """Return the payload of an envelope that enough keys of the role signed.

        Raises
        ------
        VerificationFailed
            ``type`` or ``signature``.
        """
        return verified_payload(envelope, self.keys_for(role, at), self.threshold(role))

    def to_json(self) -> bytes:
        """Return the content of the policy file."""
        return strict_json.dumps(
            {
                "schemaVersion": VERSION,
                "keys": [_key_to_json(key) for key in self.keys],
                "thresholds": {str(role): count for role, count in self.thresholds.items()},
            }
        )

    @classmethod
    def from_json(cls, data: bytes) -> Self:
        """Read a policy file.

        Raises
        ------
        VerificationFailed
            ``json``: not strict JSON.
        InvalidInput
            If a field is missing, unknown or of the wrong form: a misspelt restriction must not
            be ignored.
        """
        value = _exactly(strict_json.loads(data), "keys", "schemaVersion", "thresholds")
        if value["schemaVersion"] != VERSION:
            raise InvalidInput(
                f"expected a trust policy of version {VERSION}, got {value['schemaVersion']!r}"
            )
        keys, thresholds = value["keys"], value["thresholds"]
        if not isinstance(keys, list) or not isinstance(thresholds, dict):
            raise InvalidInput("a trust policy has a list of keys and an object of thresholds")
        if any(type(count) is not int for count in thresholds.values()):
            raise InvalidInput("the thresholds of a trust policy are whole numbers")
        return cls(
            tuple(_key_from_json(key) for key in keys),
            {_role(role): count for role, count in thresholds.items()},
        )


def _key_to_json(key: TrustedKey) -> dict[str, Any]:
    times = {"validFrom": key.valid_from, "validUntil": key.valid_until}
    return {
        "name": key.name,
        "pem": to_pem(key.public).decode(),
        "roles": sorted(key.roles),
        **{name: None if time is None else print_time(time) for name, time in times.items()},
    }


def _key_from_json(value: object) -> TrustedKey:
    fields = _exactly(value, "name", "pem", "roles", "validFrom", "validUntil")
    name, pem, roles = fields["name"], fields["pem"], fields["roles"]
    if not isinstance(name, str) or not isinstance(pem, str) or not isinstance(roles, list):
        raise InvalidInput("a trusted key has a name and a PEM text, and a list of roles")
    try:
        public = load_public(pem.encode())
    except KeyUnusable as error:
        raise InvalidInput(f"trusted key {name!r}: {error}") from error
    times = (_time(fields[side]) for side in ("validFrom", "validUntil"))
    return TrustedKey(name, public, frozenset(map(_role, roles)), *times)


def _exactly(value: object, *names: str) -> dict[str, Any]:
    if not isinstance(value, dict) or sorted(value) != sorted(names):
        came = sorted(value) if isinstance(value, dict) else type(value).__name__
        raise InvalidInput(f"trust policy: expected exactly the fields {sorted(names)}, got {came}")
    return value


def _role(value: object) -> Role:
    if value not in list(Role):
        raise InvalidInput(f"expected a role of {', '.join(Role)}, got {value!r}")
    return Role(str(value))


def _time(value: object) -> datetime | None:
    if value is not None and not isinstance(value, str):
        raise InvalidInput(f"expected a time such as 2026-11-30T12:00:00Z, got {value!r}")
    return None if value is None else parse_time(value)
