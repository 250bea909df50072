"""Checks of a certificate file and of a whole folder, by name.

The mathematics is in :mod:`expunge.certificate.recheck`; here is what it is given. Keys come from a
trust policy of the checker's own or, for want of one, from the folder, which then only shows that
the folder agrees with itself. A key counts if it was valid when the statement says it was issued.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from expunge import regular
from expunge.certificate import log
from expunge.certificate.checks import Check, Report, judge, unchecked
from expunge.certificate.envelope import Envelope
from expunge.certificate.keys import PublicKey
from expunge.certificate.recheck import Inclusion, Outside, recheck
from expunge.certificate.sealed import Sealed
from expunge.certificate.statement import Certificate, Release
from expunge.certificate.trust import Role, TrustPolicy
from expunge.errors import (
    MALFORMED,
    AlreadyDeleted,
    ExpungeError,
    InvalidInput,
    RetainedMismatch,
    UnknownRecord,
    VerificationFailed,
)
from expunge.folder import layout
from expunge.folder.opening import sealed_for
from expunge.folder.proof import InclusionProof
from expunge.folder.release import noise_tags, origin_of, others
from expunge.folder.store import Folder, opened


@dataclass(frozen=True, kw_only=True)
class Given:
    """What the checker brings; None where it is not given.

    Attributes
    ----------
    model, retained : Path
        The published model file; the retained rows.
    trust : Path
        A trust policy of the checker's own.
    checkpoint : Path
        A checkpoint note, or a proof file with one, that was held outside the folder.
    """

    model: Path | None = None
    retained: Path | None = None
    trust: Path | None = None
    checkpoint: Path | None = None


NOTHING = Given()


@dataclass(frozen=True)
class Session:
    """One check of a folder: whose keys count, what was given, when, the log's noise ``tags``."""

    store: Folder
    trust: TrustPolicy
    given: Given
    now: datetime
    tags: list[str] | None


@dataclass(frozen=True)
class Checked:
    """The outcome. ``own_keys``: the keys trusted are those that the folder itself names."""

    subject: str
    report: Report
    certificate: Certificate | None
    production: bool
    own_keys: bool

    @property
    def failed(self) -> tuple[Check, ...]:
        """What is wrong, apart from the noise of a test."""
        wrong = self.report.failed
        return wrong if self.production else tuple(c for c in wrong if c.name != "production")

    @property
    def summary(self) -> str:
        """One sentence for a person."""
        rest = tuple(check for check in self.report.checks if check.name != "production")
        told = self.report if self.production else Report(rest, self.report.level)
        return told.summary[:1].upper() + told.summary[1:] + "."

    @property
    def exit_status(self) -> int:
        """0 consistent, 1 a check failed, 3 consistent but not for production."""
        if self.failed or not self.report.level:
            return 1
        return 0 if self.production else 3


def check_certificate(
    path: Path, given: Given = NOTHING, folder: Path | None = None, now: datetime | None = None
) -> Checked:
    """Check one certificate: level a, with the model b, with retained data c.

    Parameters
    ----------
    path : Path
        The signed statement. Its proof, and the policy, are looked for beside it.
    given : Given
    folder : Path, optional
        The model folder it comes from; by default that in which it lies, if it lies in one.
    now : datetime, optional

    Raises
    ------
    InvalidInput, FolderProblem, KeyUnusable
        If something that was given cannot be read. A check that fails is never an exception.
    """
    home = folder or _home(path)
    raw = read_given(path, regular.STATEMENT)
    now = now or datetime.now(UTC)
    if home is None:
        if given.retained is not None:
            raise InvalidInput("retained data are checked with the sealed state: give the folder")
        return _alone(path, raw, given, now)
    with opened(home, public=True) as store:
        session = Session(store, trust_of(store, given), given, now, _tags(store))
        checks = log_checks(session)
        model = None if given.model is None else read_given(given.model, regular.LARGE)
        if model is None and given.retained is not None:
            model = store.read(layout.MODEL)
        report, certificate = check_one(session, path, raw, model)
    return Checked(
        f"certificate {path.name}",
        Report((*report.checks, *checks), report.level),
        certificate,
        certificate is None or certificate.production,
        own_keys=given.trust is None,
    )


def check_one(
    session: Session, path: Path, raw: bytes, model: bytes | None
) -> tuple[Report, Certificate | None]:
    """Recheck the certificate at ``path`` with what its folder knows; ``model``: for level b."""
    store, trust, now = session.store, session.trust, session.now
    certificate = parsed(raw)
    lineage = store.policy.lineage
    proof = beside(path, ".proof.json")
    if proof is None and certificate is not None:
        proof = _proof_from(store, certificate)
    inclusion, fault = _inclusion(proof, origin_of(lineage), trust, now)
    tag = None if certificate is None or certificate.noise is None else certificate.noise.tag
    outside = Outside(
        trusted=issuers(trust, certificate, now),
        threshold=trust.threshold(Role.issuer),
        now=now,
        policy=store.ledger.entry(0).envelope.payload,
        inclusion=inclusion,
        lineage=lineage,
        tags=None if session.tags is None else others(session.tags, tag),
    )
    sealed, unlike = open_sealed(store, certificate, session.given.retained)
    return _recheck(raw, outside, model, sealed, [*fault, *unlike]), certificate


def _alone(path: Path, raw: bytes, given: Given, now: datetime) -> Checked:
    if given.trust is None:
        raise InvalidInput(
            f"{path.name} lies in no model folder: say whose signature counts, with the trust.json "
            "of whoever issued it, got from them"
        )
    trust, certificate = read_trust(given.trust), parsed(raw)
    policy = beside(path.with_name(layout.POLICY_STEM), ".dsse.json")
    origin = origin_of("?" if certificate is None else certificate.budget.lineage)
    inclusion, faults = _inclusion(beside(path, ".proof.json"), origin, trust, now)
    outside = Outside(
        trusted=issuers(trust, certificate, now),
        threshold=trust.threshold(Role.issuer),
        now=now,
        policy=None if policy is None else _payload(policy),
        inclusion=inclusion,
    )
    faults += _held(given.checkpoint, inclusion, origin, trust, now)
    model = None if given.model is None else read_given(given.model, regular.LARGE)
    report = _recheck(raw, outside, model, None, faults)
    production = certificate is None or certificate.production
    return Checked(f"certificate {path.name}", report, certificate, production, own_keys=False)


def _recheck(
    raw: bytes,
    outside: Outside,
    model: bytes | None,
    sealed: Sealed | None,
    found: Sequence[Check],
) -> Report:
    """Recheck, with the checks that were made on the way in place of those of the same name."""
    files = None if model is None else {layout.MODEL: model}
    report = recheck(raw, outside, files, sealed)
    names = {check.name for check in found}
    rest = [check for check in report.checks if check.name not in names]
    return Report((*rest, *found), report.level)


def open_sealed(
    store: Folder, release: Release | None, data: Path | None
) -> tuple[Sealed | None, list[Check]]:
    """Open the sealed state for level c; data that are not the retained rows are a failed check."""
    if data is None or release is None:
        return None, []
    try:
        return sealed_for(store, release, data), []
    except (RetainedMismatch, UnknownRecord, AlreadyDeleted):
        count = release.commitments.retained.count
        fault = f"the data given are not the {count} rows that the certificate counts as retained"
        return None, [judge("commitments", [fault])]


def log_checks(session: Session) -> list[Check]:
    """Check the whole log of a folder: one check for every fault, or one that it has none."""
    store, trust, given = session.store, session.trust, session.given
    held = None if given.checkpoint is None else read_checkpoint(given.checkpoint)
    key = log_key(store, trust, session.now)
    faults = store.ledger.faults(_keys(trust, Role.issuer, None), key, held)
    if faults:
        return [judge(fault.name, [fault.reason]) for fault in faults]
    entries = f"{len(store.ledger)} entries"
    note = "it continues the checkpoint given" if held else "no checkpoint from outside was given"
    return [judge("whole log", [], f"{entries}; {note}")]


def log_key(store: Folder, trust: TrustPolicy, now: datetime) -> PublicKey:
    """Return the log key that signed the newest checkpoint, or else the first that is trusted."""
    keys = _keys(trust, Role.log, now)
    note = store.ledger.checkpoint() or ""
    for key in keys:
        try:
            log.verify_note(note, store.ledger.origin, key)
        except VerificationFailed:
            continue
        return key
    return keys[0]


def issuers(
    trust: TrustPolicy, certificate: Certificate | None, now: datetime
) -> tuple[PublicKey, ...]:
    """Return the issuers that were valid when the certificate says it was issued."""
    return _keys(trust, Role.issuer, now if certificate is None else certificate.issued_at)


def _keys(trust: TrustPolicy, role: Role, at: datetime | None) -> tuple[PublicKey, ...]:
    if at is None:
        found = tuple(key.public for key in trust.keys if role in key.roles)
    else:
        found = trust.keys_for(role, at)
    if not found:
        raise InvalidInput(f"the trust policy names no key for the role {role} at that time")
    return found


def _inclusion(
    content: bytes | None, origin: str, trust: TrustPolicy, now: datetime
) -> tuple[Inclusion | None, list[Check]]:
    if content is None:
        return None, []
    try:
        proof = InclusionProof.from_json(content)
    except VerificationFailed as error:
        return None, [judge("log", [error.reason])]
    faults = []
    for key in _keys(trust, Role.log, now):
        try:
            return proof.inclusion(origin, key), []
        except VerificationFailed as error:
            faults.append(error.reason)
    return None, [judge("log", faults[:1])]


def _held(
    path: Path | None, inclusion: Inclusion | None, origin: str, trust: TrustPolicy, now: datetime
) -> list[Check]:
    if path is None:
        return []
    note = read_checkpoint(path)
    for key in _keys(trust, Role.log, now):
        try:
            signed = log.verify_note(note, origin, key)
        except VerificationFailed:
            continue
        if inclusion is None or inclusion.size != signed.size:
            return [unchecked("fork", "the checkpoint is of another size: give the folder")]
        same = inclusion.root == signed.root
        return [judge("fork", [] if same else ["the checkpoint given has another root"])]
    return [judge("fork", ["the checkpoint given is not signed by the log"])]


def _tags(store: Folder) -> list[str] | None:
    try:
        return noise_tags(store.ledger)
    except VerificationFailed:
        return None


def _proof_from(store: Folder, certificate: Certificate) -> bytes | None:
    leaf = certificate.payload
    for entry in store.ledger.entries():
        if entry.envelope.payload == leaf:
            note = store.ledger.checkpoint() or ""
            return InclusionProof.at(store.ledger, entry.index, note).to_json()
    return None


def parsed(raw: bytes) -> Certificate | None:
    """Return the certificate in an envelope, unchecked, or None if there is none."""
    try:
        return Certificate.from_payload(Envelope.from_json(raw).payload)
    except (VerificationFailed, *MALFORMED):
        return None


def _payload(raw: bytes) -> bytes | None:
    try:
        return Envelope.from_json(raw).payload
    except VerificationFailed:
        return b""


def beside(path: Path, suffix: str) -> bytes | None:
    """Return the content of the file called as ``path`` up to its first dot, with ``suffix``."""
    found = path.with_name(path.name.split(".")[0] + suffix)
    try:
        return regular.read(found, regular.STATEMENT) if os.path.lexists(found) else None
    except OSError as error:
        raise InvalidInput(f"cannot read {found}: {error.strerror}") from error


def read_given(path: Path, limit: int) -> bytes:
    """Return the content of a file that the checker named, whose links are the checker's own."""
    try:
        return regular.read(Path(os.path.realpath(path)), limit)
    except OSError as error:
        raise InvalidInput(f"cannot read {path}: {error.strerror}") from error


def trust_of(store: Folder, given: Given) -> TrustPolicy:
    """Return the trust policy that the checker brings, or else the folder's own."""
    return store.trust if given.trust is None else read_trust(given.trust)


def read_trust(path: Path) -> TrustPolicy:
    """Read a trust policy; raise ``InvalidInput`` if it is none."""
    try:
        return TrustPolicy.from_json(read_given(path, regular.SMALL))
    except (ExpungeError, *MALFORMED) as error:
        raise InvalidInput(f"{path} is no trust policy: {error}") from error


def read_checkpoint(path: Path) -> str:
    """Read a checkpoint note, by itself or out of a proof file."""
    content = read_given(path, regular.STATEMENT)
    try:
        if content.lstrip().startswith(b"{"):
            return InclusionProof.from_json(content).checkpoint
        return content.decode()
    except (VerificationFailed, UnicodeDecodeError) as error:
        raise InvalidInput(f"{path} is neither a checkpoint nor a proof file") from error


def _home(path: Path) -> Path | None:
    folder = path.absolute().parent.parent
    inside = path.absolute().parent.name == layout.CERTIFICATES
    return folder if inside and (folder / layout.CONFIG).is_file() else None
