"""The blocks of which statements are made, as frozen dataclasses (certificate.md §1).

Units: σ, shift and tolerances of a distance gate are parameter distances; times are aware
datetimes; digests are lower-case hexadecimal SHA-256. No block holds anything noiseless that
depends on deleted data. The matching two-way schema stands beside each block, in capitals.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, get_args

from expunge import guarantee as algebra
from expunge.certificate import log, schema
from expunge.certificate.clocks import Regime
from expunge.certificate.commit import TreeHead
from expunge.errors import InvalidInput
from expunge.guarantee import Assumption, Grade, Guarantee, Tag, View
from expunge.noise import Release

SCHEME = "expunge-merkle/1"
OUTCOMES = ("deleted", "notFound", "partial", "exempt", "rejected", "optedOut")


def request_commitment(salt: bytes, request_id: str) -> str:
    """SHA-256(0x03 ‖ salt ‖ requestId): names a request without saying whose it is.

    Parameters
    ----------
    salt : bytes
        32 bytes of OS entropy, kept by the operator and handed to the person.
    request_id : str
        The operator's reference of the request.

    Raises
    ------
    InvalidInput
        If the salt is not 32 bytes long.
    """
    if len(salt) != 32:
        raise InvalidInput(f"a request's salt has 32 bytes, got {len(salt)}")
    return hashlib.sha256(b"\x03" + salt + request_id.encode()).hexdigest()


def batch_commitment(commitments: Iterable[str]) -> str:
    """Root of an RFC 6962 tree whose leaf hashes are the sorted request commitments.

    They serve as leaf hashes as they are: their prefix 0x03 keeps them apart from inner nodes.
    That a request is in the batch is shown by an `expunge.certificate.log.inclusion_proof`.
    """
    return log.root(map(bytes.fromhex, sorted(commitments))).hex()


def sealed_digest(annex: bytes) -> str:
    """SHA-256(0x04 ‖ annex): what a certificate says of its sealed annex."""
    return hashlib.sha256(b"\x04" + annex).hexdigest()


@dataclass(frozen=True)
class Subject:
    """A published file and the digest of its bytes."""

    name: str
    sha256: str


@dataclass(frozen=True)
class Extension:
    """A due date moved once, with notice to the person before the first due date."""

    notified_at: datetime
    reason_code: str
    new_due_at: datetime


@dataclass(frozen=True)
class Request:
    """One request of the batch, or many of one fate; nothing personal.

    ``commitment`` is from `request_commitment`, or from `batch_commitment` of ``count`` requests.
    """

    commitment: str
    regime: Regime
    basis: tuple[str, ...]
    received_at: datetime
    due_at: datetime | None
    completed_at: datetime
    outcome: str = "deleted"
    extension: Extension | None = None
    count: int = 1


@dataclass(frozen=True)
class Commitments:
    """Roots and counts of the three record trees, all of the lineage's ``depth``."""

    depth: int
    training: TreeHead
    deleted: TreeHead
    retained: TreeHead
    scheme: str = SCHEME


@dataclass(frozen=True)
class Algorithm:
    """What was run: wheel digest and lock-file digest (None: not known) and public parameters."""

    id: str
    version: str
    code_digest: str | None = None
    environment_digest: str | None = None
    parameters: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Issuer:
    """Who signs, and in which role (controller, processor, …)."""

    name: str
    role: str = "controller"


@dataclass(frozen=True)
class PolicyRef:
    """The policy entry: its payload's digest and log index (None: in memory, without a log)."""

    log_index: int | None
    sha256: str


@dataclass(frozen=True)
class Evidence:
    """The numbers of the claim; ``strong_convexity`` belongs to the gate ``residual``."""

    mechanism: str
    gate: str
    tolerance_fit: float
    tolerance_unlearn: float
    strong_convexity: float | None
    shift: float
    sigma: float
    dimension: int
    sealed_digest: str


@dataclass(frozen=True)
class NoiseRecord:
    """How the published noise was drawn; values lie on the grid 2^-output_grid."""

    source: str
    output_grid: int
    tag: str
    distribution: str = "isotropicGaussian"

    @classmethod
    def of(cls, release: Release) -> NoiseRecord:
        """The record of a noise release."""
        shape = "discreteGaussian" if release.source == "openDp" else "isotropicGaussian"
        return cls(release.source, release.grid_exponent, release.tag, shape)


@dataclass(frozen=True)
class Budget:
    """Squared μ spent by the releases of a lineage; ``release`` counts from 1 (the training)."""

    lineage: str
    release: int
    previous_certificate: str | None
    mu_squared_per_release: float
    mu_squared_spent: float
    mu_squared_cap: float


@dataclass(frozen=True)
class Downstream:
    """A recipient's notice (GDPR 17(2), 19)."""

    digest: str
    notified_at: datetime
    status: str


@dataclass(frozen=True)
class Scope:
    """What the deletion reached and what it did not."""

    included: tuple[str, ...] = ("publishedModel",)
    excluded: tuple[str, ...] = ("backups", "predictionLogs", "derivedModels")
    downstream: tuple[Downstream, ...] = ()


@dataclass(frozen=True)
class Claim:
    """A guarantee and its grade."""

    grade: Grade
    guarantee: Guarantee


def _flat_digest(value: Any, path: str, unknown: schema.Unknown) -> str:
    found: str = schema.read_fields(value, {"sha256": schema.DIGEST}, path, unknown)["sha256"]
    return found


def _read_subject(value: Any, path: str, unknown: schema.Unknown) -> Subject:
    found = schema.read_fields(
        value, {"name": schema.NAME, "digest": schema.Kind(_flat_digest)}, path, unknown
    )
    return Subject(found["name"], found["digest"])


_NUMBER = schema.optional(schema.EXACT)
_GUARANTEE_NAMES = {"kind": "type", "view": "adversaryView"}
_GUARANTEE = {
    "kind": schema.choice(get_args(algebra.Kind)),
    "epsilon": _NUMBER,
    "delta": _NUMBER,
    "mu": schema.optional(schema.UP),
    "unit": schema.choice(get_args(algebra.Unit)),
    "deletions_covered": schema.integer(1),
    "releases_covered": schema.integer(1),
    "view": schema.choice(View, View),
    "access": schema.choice(get_args(algebra.Access)),
    "level": schema.choice(get_args(algebra.Level)),
    "comparator": schema.choice(get_args(algebra.Comparator)),
}
_GUARANTEE_BLOCK = schema.block(Guarantee, _GUARANTEE_NAMES, **_GUARANTEE)
_GRADE = schema.choice(Grade, Grade)


def _read_claim(value: Any, path: str, unknown: schema.Unknown) -> Claim:
    grade = schema.read_fields(value, {"grade": _GRADE}, path, [])["grade"]
    rest = {key: item for key, item in value.items() if key != "grade"}
    return Claim(grade, _GUARANTEE_BLOCK.read(rest, path, unknown))


def _write_claim(claim: Claim) -> dict[str, Any]:
    return {"grade": claim.grade.value, **_GUARANTEE_BLOCK.write(claim.guarantee)}


MODEL_DIGEST = schema.Kind(_flat_digest, lambda digest: {"sha256": digest})
SUBJECT = schema.Kind(
    _read_subject, lambda it: {"name": it.name, "digest": MODEL_DIGEST.write(it.sha256)}
)
CLAIM = schema.Kind(_read_claim, _write_claim)
EXTENSION = schema.block(
    Extension, notified_at=schema.TIME, reason_code=schema.CODE, new_due_at=schema.TIME
)
REQUEST = schema.block(
    Request,
    commitment=schema.DIGEST,
    regime=schema.choice(Regime, Regime),
    basis=schema.many(schema.CODE),
    received_at=schema.TIME,
    due_at=schema.optional(schema.TIME),
    extension=schema.optional(EXTENSION),
    completed_at=schema.TIME,
    outcome=schema.choice(OUTCOMES),
    count=schema.unless(1, schema.integer(1)),
)
HEAD = schema.block(TreeHead, root=schema.DIGEST, count=schema.integer(0))
COMMITMENTS = schema.block(
    Commitments,
    scheme=schema.choice((SCHEME,)),
    depth=schema.integer(0),
    training=HEAD,
    deleted=HEAD,
    retained=HEAD,
)
ALGORITHM = schema.block(
    Algorithm,
    id=schema.CODE,
    version=schema.CODE,
    parameters=schema.OBJECT,
    code_digest=schema.optional(schema.DIGEST),
    environment_digest=schema.optional(schema.DIGEST),
)
ISSUER = schema.block(Issuer, name=schema.NAME, role=schema.CODE)
POLICY_REF = schema.block(
    PolicyRef, log_index=schema.optional(schema.integer(0)), sha256=schema.DIGEST
)
ASSUMPTION = schema.block(Assumption, id=schema.CODE, tag=schema.choice(Tag, Tag))
EVIDENCE = schema.block(
    Evidence,
    mechanism=schema.CODE,
    gate=schema.choice(("distance", "residual")),
    tolerance_fit=schema.EXACT,
    tolerance_unlearn=schema.EXACT,
    strong_convexity=schema.optional(schema.EXACT),
    shift=schema.EXACT,
    sigma=schema.EXACT,
    dimension=schema.integer(1),
    sealed_digest=schema.DIGEST,
)
NOISE = schema.block(
    NoiseRecord,
    distribution=schema.choice(("isotropicGaussian", "discreteGaussian")),
    source=schema.choice(("osEntropy", "seeded", "openDp")),
    output_grid=schema.GRID,
    tag=schema.DIGEST,
)
BUDGET = schema.block(
    Budget,
    lineage=schema.DIGEST,
    release=schema.integer(1),
    previous_certificate=schema.optional(schema.DIGEST),
    mu_squared_per_release=schema.UP,
    mu_squared_spent=schema.UP,
    mu_squared_cap=schema.UP,
)
DOWNSTREAM = schema.block(
    Downstream, digest=schema.DIGEST, notified_at=schema.TIME, status=schema.CODE
)
SCOPE = schema.block(
    Scope,
    included=schema.many(schema.CODE),
    excluded=schema.many(schema.CODE),
    downstream=schema.many(DOWNSTREAM),
)
