"""The files of one release, as they stand in the folder once it has happened."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime

from expunge.certificate.checks import Report
from expunge.certificate.envelope import Envelope
from expunge.certificate.keys import PublicKey, seal
from expunge.certificate.page import page
from expunge.certificate.recheck import Inclusion, Outside, recheck
from expunge.certificate.statement import Certificate, ModelRelease, Release
from expunge.certificate.statements import CERTIFICATE_TYPE, RELEASE_TYPE, predicate_type
from expunge.errors import MALFORMED, VerificationFailed
from expunge.folder import layout
from expunge.folder.keyring import Keys
from expunge.folder.ledger import Ledger
from expunge.folder.proof import InclusionProof
from expunge.linear.lineage import Lineage, Step


def origin_of(lineage: str) -> str:
    """Return the name of a lineage's log, which its checkpoints bear."""
    return f"expunge/{lineage}"


def release_of(payload: bytes) -> Release | None:
    """Read a certificate or model release, or return None for another statement.

    Raises
    ------
    VerificationFailed
        If the payload is not a statement that can be read.
    """
    try:
        kind = predicate_type(payload)
        if kind == CERTIFICATE_TYPE:
            return Certificate.from_payload(payload)
        return ModelRelease.from_payload(payload) if kind == RELEASE_TYPE else None
    except MALFORMED as error:
        raise VerificationFailed("schema", f"the statement cannot be read ({error})") from error


def releases(ledger: Ledger) -> Iterator[tuple[int, Release]]:
    """Yield index and statement of every release in a log, in order."""
    for entry in ledger.entries():
        release = release_of(entry.envelope.payload)
        if release is not None:
            yield entry.index, release


def noise_tags(ledger: Ledger) -> list[str]:
    """Return the noise tag of every release in a log: equal ones would show reuse.

    Raises
    ------
    VerificationFailed
        ``log``, if an entry is no statement.
    """
    try:
        predicates = [json.loads(e.envelope.payload)["predicate"] for e in ledger.entries()]
        return [str(it["noise"]["tag"]) for it in predicates if it.get("noise")]
    except MALFORMED as error:
        raise VerificationFailed("log", f"an entry is no statement ({error})") from error


def after(lineage: Lineage, step: Step) -> Lineage:
    """Return the lineage as it will be when the step has happened; the members stay as they are."""
    release = step.published.statement
    return replace(
        lineage,
        state=step.state,
        number=release.budget.release,
        previous=release.digest,
        content=step.published.content,
    )


def release_files(
    ledger: Ledger, keys: Keys, step: Step, envelope: Envelope, index: int, note: str
) -> dict[str, bytes]:
    """Return the files of a release that has just been appended to the log.

    Parameters
    ----------
    ledger : Ledger
        With the release as its newest entry, which need not be committed.
    keys : Keys
    step : Step
    envelope : Envelope
        The signed statement.
    index, note : int, str
        Where the log has it, and the checkpoint that covers it.

    Returns
    -------
    dict of path in the folder to content
    """
    release = step.published.statement
    name = layout.stem(release)
    proof = InclusionProof.at(ledger, index, note)
    files = {
        layout.MODEL: step.published.content,
        layout.envelope_of(name): envelope.to_json(),
        layout.proof_of(name): proof.to_json(),
        layout.annex_of(name): seal(keys.sealing, step.published.annex),
    }
    if isinstance(release, Certificate):
        origin = origin_of(release.budget.lineage)
        inclusion = proof.inclusion(origin, keys.log.public)
        report = _recheck(ledger, release, envelope, inclusion, keys.issuer.public, step)
        files[layout.page_of(name)] = page(release, envelope, report).encode()
    return files


def _recheck(
    ledger: Ledger,
    certificate: Certificate,
    envelope: Envelope,
    inclusion: Inclusion,
    issuer: PublicKey,
    step: Step,
) -> Report:
    own = certificate.noise.tag if certificate.noise is not None else None
    outside = Outside(
        trusted=[issuer],
        now=datetime.now(UTC),
        policy=ledger.entry(0).envelope.payload,
        inclusion=inclusion,
        lineage=certificate.budget.lineage,
        tags=others(noise_tags(ledger), own),
    )
    return recheck(envelope.to_json(), outside, {layout.MODEL: step.published.content})


def others(tags: list[str], own: str | None) -> list[str]:
    """Return the tags of all other releases: ``own`` is left out once."""
    rest = list(tags)
    if own in rest:
        rest.remove(own)
    return rest
