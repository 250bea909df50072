"""Recheck of a certificate by code that never saw how it was made (certificate.md §5).

Pure functions on bytes and arrays. Level (a) needs the envelope and trusted keys, (b) also the
published files, (c) also the retained rows and the sealed state. Every check has a name, which is
what a failure is called by; a reason never holds a noiseless number, so a report may be published.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

import numpy as np
from numpy.typing import NDArray

from expunge import modelfile
from expunge.certificate import algebra, log
from expunge.certificate.blocks import Request
from expunge.certificate.checks import Check, Report, Verdict, judge, unchecked
from expunge.certificate.envelope import IN_TOTO, Envelope, verify_signatures
from expunge.certificate.keys import PublicKey
from expunge.certificate.plain import quoted, some
from expunge.certificate.policy import Policy
from expunge.certificate.residual import Rows
from expunge.certificate.sealed import Sealed, recheck_sealed
from expunge.certificate.statement import Certificate, Release
from expunge.errors import ExpungeError, VerificationFailed

__all__ = [
    "Check",
    "Inclusion",
    "Outside",
    "Report",
    "Rows",
    "Sealed",
    "Verdict",
    "recheck",
    "recheck_model",
    "recheck_sealed",
]


@dataclass(frozen=True)
class Inclusion:
    """Proof that the certificate is entry ``index`` of the log of this ``size`` and ``root``."""

    index: int
    size: int
    root: bytes
    path: tuple[bytes, ...]


@dataclass(frozen=True, kw_only=True)
class Outside:
    """What the checker knows from elsewhere; None leaves the check that needs it NOT CHECKED.

    Attributes
    ----------
    trusted : sequence of PublicKey
        Keys that count, ``threshold`` of which must have signed.
    now : datetime
        Aware time of the check.
    policy : bytes or None
        Payload of the policy entry of the log.
    inclusion : Inclusion or None
        From the log, against a root that the checker trusts.
    lineage, request : str or None
        The lineage, and the request commitment, that the certificate is shown for.
    membership : (index, path) or None
        Proof that the request is in a batch: its place among the sorted commitments, and the hashes
        of `expunge.certificate.log.inclusion_proof`.
    tags : collection of str or None
        Noise tags of all other releases of the lineage.
    """

    trusted: Sequence[PublicKey]
    now: datetime
    threshold: int = 1
    policy: bytes | None = None
    inclusion: Inclusion | None = None
    lineage: str | None = None
    request: str | None = None
    membership: tuple[int, log.Proof] | None = None
    tags: Collection[str] | None = None


def recheck(
    envelope: bytes,
    outside: Outside,
    files: Mapping[str, bytes] | None = None,
    sealed: Sealed | None = None,
) -> Report:
    """Recheck at the highest level that the arguments allow.

    Parameters
    ----------
    envelope : bytes
        The DSSE envelope as it came.
    outside : Outside
        Trusted keys, the time, and what else is known.
    files : mapping from name to bytes, or None
        The published files, by the names of the certificate's subjects; level (b).
    sealed : Sealed or None
        Level (c); needs ``files``.

    Returns
    -------
    Report
        A bad envelope or certificate is a failed check, never an exception.
    """
    checks, certificate = _open(envelope, outside)
    if certificate is None:
        return Report(tuple(checks), "")
    checks += _level_a(certificate, outside)
    if any(check.name == "mechanism" and check.verdict is not Verdict.PASS for check in checks):
        return Report(tuple(checks), "")
    level, model = "a", None
    if files is None:
        checks.append(unchecked("model", "the model file was not given"))
    else:
        level = "b"
        check, model = recheck_model(certificate, files)
        checks.append(check)
    if sealed is not None and model is not None:
        level = "c"
        checks += recheck_sealed(certificate, model, sealed)
    else:
        missing = "retained rows and sealed state were not given"
        checks += [unchecked(name, missing) for name in ("commitments", "evidence", "noise")]
    return Report(tuple(checks), level)


def _open(raw: bytes, outside: Outside) -> tuple[list[Check], Certificate | None]:
    """Envelope, signatures, payload type, then the schema of those same bytes."""
    try:
        envelope = Envelope.from_json(raw)
    except VerificationFailed as error:
        return [judge(error.check, [error.reason])], None
    checks = [_signature(envelope, outside)]
    right = envelope.payload_type == IN_TOTO
    faults = [] if right else [f"expected {IN_TOTO}, got {quoted(envelope.payload_type)}"]
    checks.append(judge("type", faults))
    if any(check.verdict is Verdict.FAIL for check in checks):
        return checks, None
    try:
        certificate = Certificate.from_payload(envelope.payload)
    except VerificationFailed as error:
        if error.check == "schemaVersion":
            return [*checks, unchecked("schema", f"not recheckable: {error.reason}")], None
        return [*checks, judge(error.check, [error.reason])], None
    unknown = certificate.unknown
    note = f"unknown fields ignored: {some(unknown)}" if unknown else ""
    return [*checks, judge("schema", [], note)], certificate


def _signature(envelope: Envelope, outside: Outside) -> Check:
    try:
        signers = verify_signatures(envelope, outside.trusted, outside.threshold)
    except VerificationFailed as error:
        return judge(error.check, [error.reason])
    return judge("signature", [], "signed by " + ", ".join(keyid[:16] for keyid in signers))


def _level_a(certificate: Certificate, outside: Outside) -> list[Check]:
    return [
        algebra.check_clock(certificate, outside.now),
        *algebra.check_numbers(certificate),
        _policy(certificate, outside.policy),
        _log(certificate, outside.inclusion),
        _replay(certificate, outside),
        _tag(certificate, outside.tags),
    ]


def _policy(certificate: Certificate, payload: bytes | None) -> Check:
    if payload is None:
        return unchecked("policy", "the policy entry was not given")
    try:
        policy = Policy.from_payload(payload)
    except ExpungeError as error:
        return judge("policy", [str(error)])
    return algebra.check_policy(certificate, policy, payload)


def _log(certificate: Certificate, proof: Inclusion | None) -> Check:
    if proof is None:
        return unchecked("log", "no inclusion proof was given")
    leaf = log.leaf_hash(IN_TOTO, certificate.payload)
    try:
        log.verify_inclusion(leaf, proof.index, proof.size, proof.path, proof.root)
    except VerificationFailed as error:
        return judge("log", [error.reason])
    return judge("log", [], f"entry {proof.index} of {proof.size}")


def _replay(certificate: Certificate, outside: Outside) -> Check:
    if outside.lineage is None and outside.request is None:
        return unchecked("replay", "neither lineage nor request was given")
    faults = []
    if outside.lineage not in (None, certificate.budget.lineage):
        faults.append("it belongs to another lineage")
    asked, requests = outside.request, certificate.requests
    if asked is not None and not any(_answers(it, asked, outside.membership) for it in requests):
        if not faults and outside.membership is None and any(it.count > 1 for it in requests):
            return unchecked("replay", "no proof was given that the request is in its batch")
        faults.append("it does not answer this request")
    return judge("replay", faults)


def _answers(request: Request, asked: str, membership: tuple[int, log.Proof] | None) -> bool:
    if request.count == 1 or membership is None:
        return request.count == 1 and request.commitment == asked
    index, path = membership
    leaf, root = bytes.fromhex(asked), bytes.fromhex(request.commitment)
    try:
        log.verify_inclusion(leaf, index, request.count, path, root)
    except VerificationFailed:
        return False
    return True


def _tag(certificate: Certificate, tags: Collection[str] | None) -> Check:
    if tags is None or certificate.noise is None:
        return unchecked("noiseTag", "the tags of the lineage's other releases were not given")
    reused = certificate.noise.tag in tags
    return judge("noiseTag", ["the same noise was used for another release"] if reused else [])


def recheck_model(
    certificate: Release, files: Mapping[str, bytes]
) -> tuple[Check, NDArray[np.float64] | None]:
    """Level (b): digests, tensors, number of parameters, grid.

    Returns
    -------
    Check, (p, C) float64 or None
        The check ``model``, and the published parameters when they could be read.
    """
    faults: list[str] = []
    published = None
    for subject in certificate.subject:
        raw = files.get(subject.name)
        if raw is None:
            faults.append(f"{subject.name} was not given")
            continue
        if modelfile.digest(raw) != subject.sha256:
            faults.append(f"{subject.name} is not the file that was certified")
        if published is None:
            published = _parameters(raw, certificate, faults)
    return judge("model", faults), published


def _parameters(raw: bytes, certificate: Release, faults: list[str]) -> NDArray[np.float64] | None:
    try:
        model = modelfile.decode(raw)
    except ExpungeError as error:
        faults.append(str(error))
        return None
    table = model.coef.T if model.intercept is None else np.vstack([model.coef.T, model.intercept])
    if table.size != certificate.evidence.dimension:
        faults.append(
            f"{table.size} parameters where the certificate covers {certificate.evidence.dimension}"
        )
    if model.loss != certificate.algorithm.parameters.get("loss"):
        faults.append("the model's loss is not the certified one")
    if certificate.noise is not None:
        scaled = np.ldexp(table, certificate.noise.output_grid)
        if (scaled != np.rint(scaled)).any():
            faults.append("values off the output grid")
    published: NDArray[np.float64] = table
    return published
