"""Checks of a whole model folder: its log, every statement, the published model, the state."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

from expunge.certificate.checks import Check, Report, judge, unchecked
from expunge.certificate.envelope import Envelope
from expunge.certificate.recheck import recheck_model, recheck_sealed
from expunge.certificate.statement import Certificate, ModelRelease, Release
from expunge.certificate.trust import Role, TrustPolicy
from expunge.errors import (
    ExpungeError,
    FolderProblem,
    InvalidInput,
    VerificationFailed,
)
from expunge.folder import layout
from expunge.folder.checking import (
    NOTHING,
    Checked,
    Given,
    check_certificate,
    check_one,
    log_checks,
    open_sealed,
    read_given,
    trust_of,
)
from expunge.folder.release import noise_tags, releases
from expunge.folder.store import Folder, opened, readable


def verify(
    target: Path, given: Given = NOTHING, folder: Path | None = None, now: datetime | None = None
) -> Checked:
    """Check a certificate file or a model folder.

    See `expunge.folder.checking.check_certificate` and `check_folder`.
    """
    if not target.is_dir():
        return check_certificate(target, given, folder, now)
    if folder is not None:
        raise InvalidInput("a folder is checked by itself; leave the second folder out")
    return check_folder(target, given, now)


def check_folder(folder: Path, given: Given = NOTHING, now: datetime | None = None) -> Checked:
    """Check the log, all statements, the published model and the sealed state of a folder.

    Parameters
    ----------
    folder : Path
    given : Given
        With retained data, the newest release is checked at level c.
    now : datetime, optional

    Raises
    ------
    InvalidInput, FolderProblem, KeyUnusable
        If something cannot be read. A check that fails is never an exception.
    """
    now = now or datetime.now(UTC)
    with opened(folder, public=True) as store:
        trust = trust_of(store, given)
        checks = log_checks(store, trust, given, now)
        subject, own = f"folder {folder}", given.trust is None
        try:
            found = [release for _, release in releases(store.ledger)]
            tags = noise_tags(store.ledger)
            last = store.latest()
        except (VerificationFailed, FolderProblem) as error:
            checks.append(judge("statements", [str(error)]))
            return Checked(subject, Report(tuple(checks), ""), None, True, own)
        newest = _newest(store, last, trust, given, now, tags)
        checks = [*newest.checks, *checks]
        if earlier := [it for it in found[:-1] if isinstance(it, Certificate)]:
            checks += _earlier(store, earlier, trust, now, tags)
        checks += [_files(store, found, trust), _noise(tags), _state(store)]
    return Checked(
        subject,
        Report(tuple(checks), newest.level),
        last if isinstance(last, Certificate) else None,
        all(release.production for release in found),
        own,
    )


def _newest(
    store: Folder,
    last: Release,
    trust: TrustPolicy,
    given: Given,
    now: datetime,
    tags: list[str],
) -> Report:
    """Recheck the newest release with the model, and with the retained data if they are given."""
    model_file = given.model or store.place.at(layout.MODEL)
    given = replace(given, model=model_file)
    if isinstance(last, Certificate):
        path = store.place.at(layout.envelope_of(layout.stem(last)))
        raw = path.read_bytes() if path.is_file() else _logged(store, last)
        return check_one(store, path, raw, trust, given, now, tags)[0]
    model, published = recheck_model(last, {layout.MODEL: read_given(model_file)})
    sealed, found = open_sealed(store, last, given.retained)
    checks = [_policy(store, last), model, *found]
    if sealed is None or published is None:
        return Report(tuple(checks), "b")
    return Report((*checks, *recheck_sealed(last, published, sealed)), "c")


def _earlier(
    store: Folder,
    earlier: Sequence[Certificate],
    trust: TrustPolicy,
    now: datetime,
    tags: list[str],
) -> Iterator[Check]:
    """Recheck the files of earlier certificates, as of when they were current."""
    wrong = 0
    for certificate in earlier:
        path = store.place.at(layout.envelope_of(layout.stem(certificate)))
        if not path.is_file():
            continue
        then = min(now, certificate.recheck_by)
        report, _ = check_one(store, path, path.read_bytes(), trust, NOTHING, then, tags)
        for check in report.failed:
            if check.name != "production":
                wrong += 1
                yield replace(check, reason=f"{path.name}: {check.reason}")
    if not wrong:
        yield judge("earlier certificates", [], f"{len(earlier)} rechecked at level a")


def _logged(store: Folder, release: Release) -> bytes:
    for entry in store.ledger.entries():
        if entry.envelope.payload == release.payload:
            return entry.envelope.to_json()
    raise FolderProblem(f"{layout.stem(release)} is not in the log")


def _policy(store: Folder, release: ModelRelease) -> Check:
    same = (
        release.policy.sha256 == store.policy.digest
        and release.budget.lineage == store.policy.lineage
    )
    return judge("policy", [] if same else ["the release was not made under the logged policy"])


def _files(store: Folder, found: Sequence[Release], trust: TrustPolicy) -> Check:
    """Compare the readable policy and the statements' files with the log, which was checked."""
    faults = []
    policy = store.place.at(layout.POLICY)
    logged = readable(store.ledger.entry(0).envelope.payload)
    if not policy.is_file() or policy.read_bytes() != logged:
        faults.append(f"{layout.POLICY} is not the policy in the log")
    for release in found:
        path = store.place.at(layout.envelope_of(layout.stem(release)))
        if not path.is_file():
            faults.append(f"{path.name} is missing")
        elif not _signed(path.read_bytes(), release, trust):
            faults.append(f"{path.name} is not the signed statement in the log")
    return judge("files", faults)


def _signed(raw: bytes, release: Release, trust: TrustPolicy) -> bool:
    try:
        envelope = Envelope.from_json(raw)
        return trust.payload(envelope, Role.issuer, release.issued_at) == release.payload
    except VerificationFailed:
        return False


def _noise(tags: Sequence[str]) -> Check:
    reused = [tag for tag, count in Counter(tags).items() if count > 1]
    faults = [f"{len(reused)} noise vectors were used for several releases"] if reused else []
    return judge("noise of all releases", faults)


def _state(store: Folder) -> Check:
    if not store.place.at(layout.SEALED).is_dir():
        return unchecked("sealed state", "only the public part of the folder is here")
    try:
        store.lineage()
    except ExpungeError as error:
        return judge("sealed state", [str(error)])
    return judge("sealed state", [], "it belongs to the newest release")
