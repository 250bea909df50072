"""Checks of a whole model folder: its log, every statement, the published model, the state."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

from expunge.certificate.checks import Check, Report, judge, unchecked
from expunge.certificate.recheck import recheck_model, recheck_sealed
from expunge.certificate.statement import Certificate, ModelRelease, Release
from expunge.errors import (
    ExpungeError,
    FolderProblem,
    InvalidInput,
    KeyUnusable,
    VerificationFailed,
)
from expunge.folder import layout
from expunge.folder.checking import (
    NOTHING,
    Checked,
    Given,
    Session,
    check_certificate,
    check_one,
    log_checks,
    open_sealed,
    read_given,
    trust_of,
)
from expunge.folder.contents import check_files
from expunge.folder.opening import sealing_key
from expunge.folder.release import noise_tags, releases
from expunge.folder.store import Folder, opened
from expunge.regular import LARGE


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
        session = Session(store, trust_of(store, given), given, now, None)
        checks = [*log_checks(session), *_interrupted(store)]
        subject, own = f"folder {folder}", given.trust is None
        try:
            logged = list(releases(store.ledger))
            tags = noise_tags(store.ledger)
            last = store.latest()
        except (VerificationFailed, FolderProblem) as error:
            checks.append(judge("statements", [str(error)]))
            return Checked(subject, Report(tuple(checks), ""), None, True, own)
        session, found = replace(session, tags=tags), [release for _, release in logged]
        newest = _newest(session, last)
        checks = [*newest.checks, *checks]
        if earlier := [it for it in found[:-1] if isinstance(it, Certificate)]:
            checks += _earlier(session, earlier)
        checks += [check_files(session, logged), _noise(tags), _state(store)]
    return Checked(
        subject,
        Report(tuple(checks), newest.level),
        last if isinstance(last, Certificate) else None,
        all(release.production for release in found),
        own,
    )


def _interrupted(store: Folder) -> Iterator[Check]:
    if store.interrupted is not None:
        what = "what it will be was checked" if store.interrupted.happened else "it never happened"
        yield unchecked(
            "interrupted release",
            f"release {store.interrupted.number} was interrupted; {what}. `expunge status`, run by "
            "the owner, tidies up",
        )


def _newest(session: Session, last: Release) -> Report:
    """Recheck the newest release with the model, and with the retained data if they are given."""
    store, given = session.store, session.given
    model = store.read(layout.MODEL) if given.model is None else read_given(given.model, LARGE)
    if isinstance(last, Certificate):
        name = layout.envelope_of(layout.stem(last))
        raw = store.read(name) if store.has(name) else _logged(store, last)
        return check_one(session, store.path(name), raw, model)[0]
    check, published = recheck_model(last, {layout.MODEL: model})
    sealed, found = open_sealed(store, last, given.retained)
    checks = [_policy(store, last), check, *found]
    if sealed is None or published is None:
        return Report(tuple(checks), "b")
    return Report((*checks, *recheck_sealed(last, published, sealed)), "c")


def _earlier(session: Session, earlier: Sequence[Certificate]) -> Iterator[Check]:
    """Recheck the files of earlier certificates, as of when they were current."""
    wrong, store = 0, session.store
    for certificate in earlier:
        name = layout.envelope_of(layout.stem(certificate))
        if not store.has(name):
            continue
        then = min(session.now, certificate.recheck_by)
        as_of = replace(session, given=NOTHING, now=then)
        report, _ = check_one(as_of, store.path(name), store.read(name), None)
        for check in report.failed:
            if check.name != "production":
                wrong += 1
                yield replace(check, reason=f"{name}: {check.reason}")
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


def _noise(tags: Sequence[str]) -> Check:
    reused = [tag for tag, count in Counter(tags).items() if count > 1]
    faults = [f"{len(reused)} noise vectors were used for several releases"] if reused else []
    return judge("noise of all releases", faults)


def _state(store: Folder) -> Check:
    if not store.has_sealed:
        return unchecked("sealed state", "only the public part of the folder is here")
    try:
        store.lineage()
        store.require_unaltered(sealing_key(store.config))
    except KeyUnusable:
        return unchecked(
            "sealed state",
            "it belongs to the newest release; whether it was altered was NOT CHECKED, for want of "
            "the sealing key",
        )
    except ExpungeError as error:
        return judge("sealed state", [str(error)])
    return judge("sealed state", [], "it belongs to the newest release, and is unaltered")
