"""Policy, release statement and deletion certificate (certificate.md §1).

`Certificate.issue` and `ModelRelease.issue` compute everything that can be computed from the
policy and refuse what does not hold; `from_payload` reads strictly. Both keep the bytes that are
signed, so nothing is ever serialised a second time.

Decisions of this file:

- ``deletionsCovered`` counts records, whatever the unit; the record trees count records too.
- ``previousCertificate`` is the payload digest of the previous release statement or certificate
  of the lineage; the training is release 1.
- ``policy.logIndex`` is null for an estimator in memory, whose policy is in no log;
  ``codeDigest`` and ``environmentDigest`` are null when they are not known.
- σ, tolerances, shift, ε and δ are printed without loss; μ and μ² are rounded up.
"""

from __future__ import annotations

import hashlib
import json
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, Self

from expunge.certificate import algebra, blocks, claims, schema
from expunge.certificate.blocks import (
    Algorithm,
    Budget,
    Claim,
    Commitments,
    Downstream,
    Evidence,
    Extension,
    Issuer,
    NoiseRecord,
    PolicyRef,
    Request,
    Scope,
    Subject,
    batch_commitment,
    request_commitment,
    sealed_digest,
)
from expunge.certificate.checks import Verdict
from expunge.certificate.commit import TreeHead
from expunge.certificate.envelope import Envelope, sign
from expunge.certificate.keys import Signer
from expunge.certificate.policy import Policy
from expunge.certificate.statements import (
    CERTIFICATE_TYPE,
    RELEASE_TYPE,
    dump,
    open_statement,
)
from expunge.errors import CertificateRefused, VerificationFailed
from expunge.guarantee import Assumption, Grade, Guarantee, View, grade_of

__all__ = [
    "Algorithm",
    "Budget",
    "Certificate",
    "Commitments",
    "Downstream",
    "Evidence",
    "Extension",
    "Issuer",
    "ModelRelease",
    "NoiseRecord",
    "Policy",
    "PolicyRef",
    "Release",
    "Request",
    "Scope",
    "Subject",
    "TreeHead",
    "batch_commitment",
    "request_commitment",
    "sealed_digest",
]

YEAR = timedelta(days=365)


class _Signed:
    """What every statement with kept payload bytes can do."""

    payload: bytes

    @property
    def digest(self) -> str:
        """SHA-256 of the payload."""
        return hashlib.sha256(self.payload).hexdigest()

    @property
    def statement(self) -> dict[str, Any]:
        """The in-toto statement as plain JSON values."""
        found: dict[str, Any] = json.loads(self.payload)
        return found

    def to_json(self) -> str:
        """The statement, indented for reading; the signature is over `payload`."""
        return json.dumps(self.statement, indent=2, ensure_ascii=False)

    def sign(self, signer: Signer) -> Envelope:
        """Wrap the payload in a DSSE envelope with one signature."""
        return sign(self.payload, signer)


@dataclass(frozen=True, kw_only=True)
class ModelRelease(_Signed):
    """A training (release 1) or a retrain on what is retained: what was published, no claim."""

    subject: tuple[Subject, ...]
    production: bool
    issued_at: datetime
    issuer: Issuer
    reason: str
    commitments: Commitments
    algorithm: Algorithm
    policy: PolicyRef
    noise: NoiseRecord
    budget: Budget
    evidence: Evidence
    payload: bytes = field(repr=False)
    unknown: tuple[str, ...] = ()

    @classmethod
    def issue(
        cls,
        policy: Policy,
        *,
        subject: Sequence[Subject],
        commitments: Commitments,
        algorithm: Algorithm,
        noise: NoiseRecord,
        sealed_digest: str,
        reason: str = "training",
        release: int = 1,
        previous: str | None = None,
        log_index: int | None = None,
        issuer: Issuer = Issuer("unnamed"),  # noqa: B008
        issued_at: datetime | None = None,
    ) -> Self:
        """State a training or retrain.

        Raises
        ------
        BudgetExhausted
            If the policy does not cover this release.
        """
        fields = {
            "production": claims.is_production(policy, noise),
            "issued_at": _seconds(issued_at),
            "issuer": issuer,
            "reason": reason,
            "commitments": commitments,
            "algorithm": claims.with_parameters(algorithm, policy),
            "policy": PolicyRef(log_index, policy.digest),
            "noise": noise,
            "budget": claims.budget_block(policy, release, previous),
            "evidence": claims.evidence_block(policy, sealed_digest),
        }
        return cls.from_payload(_write(RELEASE_TYPE, subject, _RELEASE, fields))

    @classmethod
    def from_payload(cls, payload: bytes) -> Self:
        """Read a release statement strictly.

        Raises
        ------
        VerificationFailed
            Of ``json``, ``type``, ``predicateType``, ``schemaVersion`` or ``schema``.
        """
        return cls(**_read(payload, RELEASE_TYPE, _RELEASE))


@dataclass(frozen=True, kw_only=True)
class Certificate(_Signed):
    """A deletion certificate: what was asked, done and guaranteed, and on which conditions.

    The attributes follow the predicate's fields; ``claim`` is its ``guarantee`` block.
    ``payload`` are the bytes that are signed.
    """

    subject: tuple[Subject, ...]
    certificate_id: str
    production: bool
    issued_at: datetime
    recheck_by: datetime
    issuer: Issuer
    requests: tuple[Request, ...]
    commitments: Commitments
    algorithm: Algorithm
    model_before: str | None
    policy: PolicyRef
    claim: Claim
    assumptions: tuple[Assumption, ...]
    trust: tuple[str, ...]
    evidence: Evidence
    noise: NoiseRecord | None
    budget: Budget
    scope: Scope
    non_claims: tuple[str, ...]
    payload: bytes = field(repr=False)
    unknown: tuple[str, ...] = ()

    @property
    def asked(self) -> int:
        """Number of requests."""
        return sum(request.count for request in self.requests)

    @property
    def guarantee(self) -> Guarantee:
        """What is promised."""
        return self.claim.guarantee

    @property
    def grade(self) -> Grade:
        """How much of the promise is known to hold."""
        return self.claim.grade

    @classmethod
    def issue(
        cls,
        policy: Policy,
        *,
        subject: Sequence[Subject],
        requests: Sequence[Request],
        commitments: Commitments,
        algorithm: Algorithm,
        model_before: str | None,
        noise: NoiseRecord,
        sealed_digest: str,
        release: int,
        previous: str | None = None,
        log_index: int | None = None,
        view: View = View.transcript,
        issuer: Issuer = Issuer("unnamed"),  # noqa: B008
        scope: Scope = Scope(),  # noqa: B008
        issued_at: datetime | None = None,
        recheck_by: datetime | None = None,
    ) -> Self:
        """Certify a deletion whose unnoised parameters are within the policy's tolerance.

        Parameters
        ----------
        policy : Policy
            Fixed before the request; gives every number of the claim.
        subject : sequence of Subject
            The files published after the deletion.
        requests : sequence of Request
            The requests of the batch; may be empty for an estimator in memory.
        commitments, algorithm, noise, issuer, scope
            The blocks of those names; loss and Λ are added to the algorithm's parameters.
        model_before : str or None
            Digest of the model file published before.
        sealed_digest : str
            `sealed_digest` of the annex.
        release : int
            Number of this release in its lineage, the training being 1.
        previous : str or None
            Payload digest of the lineage's previous release statement or certificate.
        log_index : int or None
            Index of the policy entry in the log.
        view : View
            afterOnly or transcript.
        issued_at, recheck_by : datetime or None
            Now, and a year later, when not given.

        Raises
        ------
        BudgetExhausted
            If release or deletions exceed what the policy covers.
        CertificateRefused
            If anything else in the certificate does not hold.
        """
        claims.require_capacity(policy, commitments)
        issued = _seconds(issued_at)
        assumptions = claims.assumption_list(policy)
        guarantee = claims.guarantee_block(policy, view)
        fields = {
            "certificate_id": str(uuid.uuid4()),
            "production": claims.is_production(policy, noise),
            "issued_at": issued,
            "recheck_by": recheck_by or issued + YEAR,
            "issuer": issuer,
            "requests": tuple(requests),
            "commitments": commitments,
            "algorithm": claims.with_parameters(algorithm, policy),
            "model_before": model_before,
            "policy": PolicyRef(log_index, policy.digest),
            "claim": Claim(grade_of(guarantee.kind, assumptions), guarantee),
            "assumptions": assumptions,
            "trust": claims.trust_list(policy),
            "evidence": claims.evidence_block(policy, sealed_digest),
            "noise": noise,
            "budget": claims.budget_block(policy, release, previous),
            "scope": scope,
            "non_claims": claims.NON_CLAIMS,
        }
        return cls.from_payload(_write(CERTIFICATE_TYPE, subject, _CERTIFICATE, fields))._hold()

    @classmethod
    def from_payload(cls, payload: bytes) -> Self:
        """Read a certificate strictly; its numbers are not checked here (see `recheck`).

        Raises
        ------
        VerificationFailed
            Of ``json``, ``type``, ``predicateType``, ``schemaVersion`` or ``schema``.
        """
        return cls(**_read(payload, CERTIFICATE_TYPE, _CERTIFICATE))

    def _hold(self) -> Self:
        found = [*algebra.check_numbers(self), algebra.check_clock(self, self.issued_at)]
        wrong = [
            f"{check.name}: {check.reason}"
            for check in found
            if check.verdict is not Verdict.PASS and check.name != "production"
        ]
        if wrong:
            raise CertificateRefused("the certificate would not hold: " + "; ".join(wrong))
        return self


Release = Certificate | ModelRelease


def _seconds(moment: datetime | None) -> datetime:
    return (moment or datetime.now(UTC)).replace(microsecond=0)


def _write(
    predicate: str, subject: Sequence[Subject], kinds: dict[str, schema.Kind], fields: Any
) -> bytes:
    body = {_key(name): kind.write(fields[name]) for name, kind in kinds.items()}
    return dump(predicate, [blocks.SUBJECT.write(it) for it in subject], body)


def _read(payload: bytes, predicate: str, kinds: dict[str, schema.Kind]) -> dict[str, Any]:
    statement = open_statement(payload, predicate)
    if not statement.recheckable:
        raise VerificationFailed(
            "schemaVersion", f"this version cannot read schema {statement.version}"
        )
    unknown = list(statement.unknown)
    named = {_key(name): kind for name, kind in kinds.items()}
    found = schema.read_fields(statement.predicate, named, "predicate", unknown)
    subject = schema.many(blocks.SUBJECT, 1).read(statement.subject, "subject", unknown)
    fields = {name: found[_key(name)] for name in kinds}
    return {**fields, "subject": subject, "payload": payload, "unknown": tuple(unknown)}


def _key(name: str) -> str:
    return "guarantee" if name == "claim" else schema.camel(name)


_UUID = schema.text(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", "a UUID in lower case")
_CODES = schema.many(schema.CODE)
_SHARED = {
    "production": schema.FLAG,
    "issued_at": schema.TIME,
    "issuer": blocks.ISSUER,
    "commitments": blocks.COMMITMENTS,
    "algorithm": blocks.ALGORITHM,
    "policy": blocks.POLICY_REF,
    "budget": blocks.BUDGET,
}
_RELEASE = {
    **_SHARED,
    "reason": schema.choice(("training", "retrain")),
    "noise": blocks.NOISE,
    "evidence": blocks.EVIDENCE,
}
_CERTIFICATE = {
    **_SHARED,
    "certificate_id": _UUID,
    "recheck_by": schema.TIME,
    "requests": schema.many(blocks.REQUEST),
    "model_before": schema.optional(blocks.MODEL_DIGEST),
    "claim": blocks.CLAIM,
    "assumptions": schema.many(blocks.ASSUMPTION),
    "trust": _CODES,
    "evidence": blocks.EVIDENCE,
    "noise": schema.optional(blocks.NOISE),
    "scope": blocks.SCOPE,
    "non_claims": _CODES,
}
