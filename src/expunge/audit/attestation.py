"""The auditor's own signed statement about a certificate: what was tried, and what came of it.

An in-toto statement in a DSSE envelope whose subject is the digest of the certificate's payload.
Certificates never hold audit results; they are issued first and never edited. Nothing noiseless
that depends on deleted records is in it: such numbers go to a sealed annex whose digest is signed.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import platform
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from importlib.metadata import version
from typing import Any, Self, get_args

from expunge import __version__
from expunge.audit.bands import Gate
from expunge.audit.falsify import Falsification, Status, Verdict, decide
from expunge.audit.findings import Claim, Finding, Form
from expunge.audit.proving import Checked
from expunge.certificate import blocks, decimals, schema
from expunge.certificate.blocks import Issuer, sealed_digest
from expunge.certificate.envelope import Envelope, sign, verified_payload
from expunge.certificate.keys import PublicKey, Signer
from expunge.certificate.plain import printable
from expunge.certificate.statement import Certificate
from expunge.certificate.statements import PREDICATES, dump, open_statement
from expunge.errors import VerificationFailed
from expunge.guarantee import Access, View

AUDIT_TYPE = PREDICATES + "unlearning-audit/v1"
SUBJECT = "certificate"
STANDING = (
    "Attacks can refute a claim; they can never establish it.",
    "Verification by backdoors or by replay can be gamed by a dishonest provider.",
)
LONGEST_REASON = 200


@dataclass(frozen=True)
class Step:
    """A finding as it is published; numbers of sealed findings are None."""

    name: str
    refutes: bool
    void: bool
    reason: str
    share: float | None
    statistic: float | None
    bound: float | None
    ceiling: float | None
    detectable_mu: float | None
    detectable_epsilon: float | None
    access: Access | None
    oracle: Gate | None
    no_power: bool | None

    @classmethod
    def of(cls, finding: Finding, delta: float) -> Self:
        """Return what may be published of a finding."""
        shown = not finding.sealed
        return cls(
            finding.name,
            finding.refutes,
            finding.void,
            printable(finding.reason)[:LONGEST_REASON],
            finding.share,
            _finite(finding.statistic) if shown else None,
            _finite(finding.bound) if shown else None,
            _finite(finding.ceiling),
            _finite(finding.detectable_mu),
            _finite(finding.detectable_epsilon(delta)),
            finding.access,
            finding.oracle,
            finding.no_power,
        )


@dataclass(frozen=True)
class ControlResult:
    """Whether the audit caught a control, and by which steps."""

    name: str
    right: bool
    refuted_by: tuple[str, ...]

    @classmethod
    def of(cls, checked: Checked) -> Self:
        """Return what is told of a control."""
        return cls(checked.control.name, checked.right, checked.refuted_by)


@dataclass(frozen=True)
class Environment:
    """Versions that the audit ran with."""

    expunge: str
    python: str
    numpy: str
    scipy: str
    system: str

    @classmethod
    def here(cls) -> Self:
        """Return the versions of this process."""
        system = f"{platform.system()}-{platform.machine()}"
        return cls(
            __version__, platform.python_version(), version("numpy"), version("scipy"), system
        )


@dataclass(frozen=True, kw_only=True)
class Attestation:
    """The auditor's statement.

    Attributes
    ----------
    certificate : str
        SHA-256 of the certificate's payload.
    auditor : Issuer
    issued_at : datetime
    claim : Claim
    verdict : {"FALSIFIED", "CONSISTENT"} or None
    status : {"decided", "void"}
    alpha : float
        Shared by the statistical tests.
    detectable_mu80, detectable_epsilon80 : float or None
    level : str
        Level of the recheck: a, b or c.
    steps : tuple of Step
    controls : tuple of ControlResult
        Faulty pipelines that the audit was tried on.
    seed : int
    environment : Environment
    sealed_digest : str
        Of the auditor's annex.
    payload : bytes
        What is signed.
    """

    certificate: str
    auditor: Issuer
    issued_at: datetime
    claim: Claim
    verdict: Verdict | None
    status: Status
    alpha: float
    detectable_mu80: float | None
    detectable_epsilon80: float | None
    level: str
    steps: tuple[Step, ...]
    controls: tuple[ControlResult, ...]
    seed: int
    environment: Environment
    sealed_digest: str
    standing: tuple[str, ...] = STANDING
    payload: bytes = field(repr=False)
    unknown: tuple[str, ...] = ()

    @property
    def digest(self) -> str:
        """SHA-256 of the payload."""
        return hashlib.sha256(self.payload).hexdigest()

    def sign(self, signer: Signer) -> Envelope:
        """Wrap the payload in a DSSE envelope with one signature."""
        return sign(self.payload, signer)

    @classmethod
    def from_payload(cls, payload: bytes) -> Self:
        """Read an attestation strictly.

        Raises
        ------
        VerificationFailed
            Of ``json``, ``type``, ``predicateType``, ``schemaVersion`` or ``schema``; ``verdict``
            if it does not follow from the steps.
        """
        statement = open_statement(payload, AUDIT_TYPE)
        if not statement.recheckable:
            raise VerificationFailed(
                "schemaVersion", f"this version cannot read schema {statement.version}"
            )
        unknown = list(statement.unknown)
        named = {schema.camel(name): kind for name, kind in _FIELDS.items()}
        found = schema.read_fields(statement.predicate, named, "predicate", unknown)
        subjects = schema.many(blocks.SUBJECT, 1).read(statement.subject, "subject", unknown)
        if [subject.name for subject in subjects] != [SUBJECT]:
            raise VerificationFailed("schema", f"subject: expected one, called {SUBJECT!r}")
        made = cls(
            certificate=subjects[0].sha256,
            payload=payload,
            unknown=tuple(unknown),
            **{name: found[schema.camel(name)] for name in _FIELDS},
        )
        if decide(made.steps) != (made.verdict, made.status):
            raise VerificationFailed("verdict", "it does not follow from the steps that are listed")
        return made


def attest(
    found: Falsification,
    auditor: Issuer,
    *,
    controls: Sequence[Checked] = (),
    issued_at: datetime | None = None,
) -> tuple[Attestation, bytes]:
    """State what an attempt to falsify came to.

    Returns
    -------
    Attestation
        For the public.
    bytes
        The annex: noiseless numbers, for whoever may see the sealed state.
    """
    annex = _annex(found)
    delta = found.claim.delta
    fields: dict[str, Any] = {
        "auditor": auditor,
        "issued_at": (issued_at or datetime.now(UTC)).replace(microsecond=0),
        "claim": found.claim,
        "verdict": found.verdict,
        "status": found.status,
        "alpha": found.plan.alpha,
        "detectable_mu80": _finite(found.detectable_mu),
        "detectable_epsilon80": _finite(found.detectable_epsilon),
        "level": found.level,
        "steps": tuple(Step.of(finding, delta) for finding in found.findings),
        "controls": tuple(map(ControlResult.of, controls)),
        "seed": found.plan.seed,
        "environment": Environment.here(),
        "sealed_digest": sealed_digest(annex),
        "standing": STANDING,
    }
    subject = [blocks.SUBJECT.write(blocks.Subject(SUBJECT, found.certificate))]
    body = {schema.camel(name): kind.write(fields[name]) for name, kind in _FIELDS.items()}
    return Attestation.from_payload(dump(AUDIT_TYPE, subject, body)), annex


def verify(
    envelope: bytes, certificate: bytes, trusted: Sequence[PublicKey], threshold: int = 1
) -> Attestation:
    """Check an attestation against the certificate that it is shown with.

    Parameters
    ----------
    envelope, certificate : bytes
        The DSSE envelopes of both. The certificate's own signature is not checked here.
    trusted : sequence of PublicKey
        Keys of auditors (role ``auditor`` of a trust policy), ``threshold`` of which have to sign.

    Raises
    ------
    VerificationFailed
        ``signature``, or those of reading it; ``subject`` if it is about another certificate;
        ``claim`` if it tested another claim than the certificate's.
    """
    payload = verified_payload(Envelope.from_json(envelope), trusted, threshold)
    made = Attestation.from_payload(payload)
    subject = Envelope.from_json(certificate).payload
    if hashlib.sha256(subject).hexdigest() != made.certificate:
        raise VerificationFailed("subject", "this attestation is about another certificate")
    if Claim.of(Certificate.from_payload(subject)) != made.claim:
        raise VerificationFailed("claim", "the claim tested is not that of the certificate")
    return made


def _annex(found: Falsification) -> bytes:
    numbers = {
        f.name: {"statistic": repr(f.statistic), "bound": repr(f.bound)}
        for f in found.findings
        if f.sealed
    }
    return json.dumps({"nonce": os.urandom(32).hex(), "steps": numbers}, sort_keys=True).encode()


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None


_EXACT = schema.optional(schema.EXACT)
_UP = schema.optional(schema.UP)
_DOWN = schema.optional(schema.Kind(schema.EXACT.read, decimals.down))
_FLAG = schema.optional(schema.FLAG)
_ACCESS = schema.choice(get_args(Access))
_CLAIM = schema.block(
    Claim,
    {"form": "type", "view": "adversaryView", "deletions": "deletionsCovered"},
    form=schema.choice(get_args(Form)),
    epsilon=schema.EXACT,
    delta=schema.EXACT,
    mu=_EXACT,
    view=schema.choice(View, View),
    access=_ACCESS,
    deletions=schema.integer(1),
)
_GATE = schema.block(
    Gate,
    failures=schema.integer(0),
    runs=schema.integer(1),
    probability=schema.EXACT,
)
_STEP = schema.block(
    Step,
    {"share": "alphaShare"},
    name=schema.CODE,
    refutes=schema.FLAG,
    void=schema.FLAG,
    reason=schema.NAME,
    share=_EXACT,
    statistic=_EXACT,
    bound=_DOWN,
    ceiling=_UP,
    detectable_mu=_UP,
    detectable_epsilon=_UP,
    access=schema.optional(_ACCESS),
    oracle=schema.optional(_GATE),
    no_power=_FLAG,
)
_CONTROL = schema.block(
    ControlResult, name=schema.CODE, right=schema.FLAG, refuted_by=schema.many(schema.CODE)
)
_ENVIRONMENT = schema.block(
    Environment,
    expunge=schema.CODE,
    python=schema.CODE,
    numpy=schema.CODE,
    scipy=schema.CODE,
    system=schema.CODE,
)
_FIELDS = {
    "auditor": blocks.ISSUER,
    "issued_at": schema.TIME,
    "claim": _CLAIM,
    "verdict": schema.optional(schema.choice(get_args(Verdict))),
    "status": schema.choice(get_args(Status)),
    "alpha": schema.EXACT,
    "detectable_mu80": _UP,
    "detectable_epsilon80": _UP,
    "level": schema.choice(("a", "b", "c")),
    "steps": schema.many(_STEP, 1),
    "controls": schema.many(_CONTROL),
    "seed": schema.integer(0),
    "environment": _ENVIRONMENT,
    "sealed_digest": schema.DIGEST,
    "standing": schema.many(schema.choice(STANDING), len(STANDING)),
}
