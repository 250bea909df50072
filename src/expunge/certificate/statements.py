"""In-toto Statement v1: the frame around every payload of a lineage's log."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from expunge.certificate import schema, strict_json
from expunge.errors import CertificateRefused, VerificationFailed

STATEMENT_TYPE = "https://in-toto.io/Statement/v1"
PREDICATES = "https://expunge.example/"
POLICY_TYPE = PREDICATES + "unlearning-policy/v1"
RELEASE_TYPE = PREDICATES + "model-release/v1"
CERTIFICATE_TYPE = PREDICATES + "unlearning-certificate/v1"
SCHEMA_VERSION = "1.0"
LONGEST = strict_json.MAX_BYTES * 3 // 4 - 16384

_VERSION = schema.text(r"[0-9]{1,4}\.[0-9]{1,4}", "a schema version such as 1.0")


@dataclass(frozen=True)
class Statement:
    """A parsed frame; ``predicate`` without its schema version."""

    subject: Any
    predicate: Mapping[str, Any]
    version: str
    unknown: tuple[str, ...]

    @property
    def recheckable(self) -> bool:
        """Whether this code knows the meaning of the major schema version."""
        return self.version.split(".")[0] == SCHEMA_VERSION.split(".")[0]


def dump(predicate_type: str, subject: Sequence[Mapping[str, Any]], predicate: Any) -> bytes:
    """A statement as UTF-8 JSON with sorted keys and no spaces.

    Raises
    ------
    CertificateRefused
        If it is too large for an envelope of 1 MiB.
    """
    statement = {
        "_type": STATEMENT_TYPE,
        "predicateType": predicate_type,
        "subject": list(subject),
        "predicate": {"schemaVersion": SCHEMA_VERSION, **predicate},
    }
    payload = strict_json.dumps(statement)
    if len(payload) > LONGEST:
        raise CertificateRefused(
            f"the statement has {len(payload)} bytes, at most {LONGEST} fit an envelope; split the "
            "batch of requests"
        )
    return payload


def predicate_type(payload: bytes) -> str:
    """The predicate type of a payload.

    Raises
    ------
    VerificationFailed
        Of ``json``, ``type`` (not an in-toto Statement v1) or ``predicateType`` (not a string).
    """
    found = _frame(payload).get("predicateType")
    if not isinstance(found, str):
        raise VerificationFailed("predicateType", f"expected a string, got {found!r}")
    return found


def open_statement(payload: bytes, expected: str) -> Statement:
    """Parse a payload whose predicate type must be ``expected``.

    Raises
    ------
    VerificationFailed
        Of ``json``, ``type``, ``predicateType`` or ``schema``.
    """
    frame = _frame(payload)
    if frame.get("predicateType") != expected:
        raise VerificationFailed(
            "predicateType", f"expected {expected}, got {frame.get('predicateType')!r}"
        )
    unknown: list[str] = []
    kept = {"_type": _ANY, "predicateType": _ANY, "subject": _ANY, "predicate": schema.OBJECT}
    found = schema.read_fields(frame, kept, "statement", unknown)
    predicate = dict(found["predicate"])
    version = _VERSION.read(predicate.pop("schemaVersion", None), "predicate.schemaVersion", [])
    return Statement(found["subject"], predicate, version, tuple(unknown))


def _frame(payload: bytes) -> dict[str, Any]:
    frame = strict_json.loads(payload)
    if not isinstance(frame, dict) or frame.get("_type") != STATEMENT_TYPE:
        raise VerificationFailed("type", f"expected an in-toto statement ({STATEMENT_TYPE})")
    return frame


_ANY = schema.Kind(lambda value, path, unknown: value)
