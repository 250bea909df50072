"""The files of a folder against its log: that they are the ones which the log speaks of.

Everything that is handed to people is looked at. What is sealed is opened where the sealing key is
at hand; nothing of its content is told.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Iterator, Sequence
from datetime import datetime

from expunge import __version__
from expunge.certificate import log
from expunge.certificate.blocks import batch_commitment, request_commitment, sealed_digest
from expunge.certificate.checks import Check, judge
from expunge.certificate.envelope import Envelope
from expunge.certificate.keys import unseal
from expunge.certificate.page import page
from expunge.certificate.statement import Certificate, Release
from expunge.certificate.trust import Role
from expunge.certificate.words import count
from expunge.errors import MALFORMED, FolderProblem, InvalidInput, KeyUnusable, VerificationFailed
from expunge.folder import layout
from expunge.folder.checking import Session, log_key
from expunge.folder.faults import Entry
from expunge.folder.opening import sealing_key
from expunge.folder.proof import InclusionProof
from expunge.folder.store import Folder, readable

_TEXT = r'(?:[^<]|</?(?:h2|i|p|ul|li)>|<span class="mark[ a-z]*">|</span>)*'
_OUTCOME = re.compile(
    f'<section class="wide checks">{_TEXT}</section>|<div class="banner">CHECKS FAILED[^<]*</div>'
)
"""Where a page shows what was checked when it was written: text, which can cover nothing else."""


def check_files(session: Session, found: Sequence[tuple[int, Release]]) -> Check:
    """Compare the files of a folder with its log, which is checked elsewhere.

    Parameters
    ----------
    session : Session
    found : sequence of (index, Release)
        The releases in the log; at least one.
    """
    store, entries = session.store, {entry.index: entry for entry in session.store.ledger.entries()}
    faults = list(_policy(store, entries[0]))
    made = [(0, layout.POLICY_STEM, found[0][1].issued_at)]
    made += [(index, layout.stem(release), release.issued_at) for index, release in found]
    roots = _roots(list(entries.values()))
    for index, name, time in made:
        faults += _envelope(session, entries[index], layout.envelope_of(name), time)
        faults += _proof(session, entries[index], layout.proof_of(name), roots)
    pages = [(entries[i], it) for i, it in found if isinstance(it, Certificate)]
    for entry, certificate in pages:
        faults += _page(store, entry, certificate)
    sealed, told = _sealed(store, [release for _, release in found])
    covered = (
        f"policy, {count(len(made), 'statement')} with proofs, {count(len(pages), 'page')} apart "
        f"from the checks shown there; {told}"
    )
    return judge("files", [*faults, *sealed], covered)


def _roots(entries: Sequence[Entry]) -> list[bytes]:
    """Return the root of the log at every size, from 0 on."""
    frontier = log.Frontier()
    roots = [frontier.root]
    for entry in entries:
        frontier = frontier.append(entry.leaf)
        roots.append(frontier.root)
    return roots


def _content(store: Folder, name: str) -> tuple[bytes, list[str]]:
    """Return what a file holds, or nothing and what is wrong with it."""
    if not store.has(name):
        return b"", [f"{name} is missing"]
    try:
        return store.read(name), []
    except FolderProblem as error:
        return b"", [str(error)]


def _policy(store: Folder, entry: Entry) -> Iterator[str]:
    content, faults = _content(store, layout.POLICY)
    if faults or content != readable(entry.envelope.payload):
        yield f"{layout.POLICY} is not the policy in the log"


def _envelope(session: Session, entry: Entry, name: str, time: datetime) -> Iterator[str]:
    raw, faults = _content(session.store, name)
    yield from faults
    try:
        same = faults or entry.envelope.payload == session.trust.payload(
            Envelope.from_json(raw), Role.issuer, time
        )
    except VerificationFailed:
        same = False
    if not same:
        yield f"{name} is not the signed statement in the log"


def _proof(session: Session, entry: Entry, name: str, roots: Sequence[bytes]) -> Iterator[str]:
    store = session.store
    raw, faults = _content(store, name)
    yield from faults
    if faults:
        return
    try:
        proof = InclusionProof.from_json(raw)
        key = log_key(store, session.trust, session.now)
        shown = proof.inclusion(store.ledger.origin, key)
        log.verify_inclusion(entry.leaf, shown.index, shown.size, shown.path, shown.root)
        ours = shown.index == entry.index and roots[shown.size : shown.size + 1] == [shown.root]
    except VerificationFailed:
        ours = False
    if not ours:
        yield f"{name} does not prove that the log has the statement"


def _page(store: Folder, entry: Entry, certificate: Certificate) -> Iterator[str]:
    """Compare a page with a fresh one; of pages by other versions, what is attached to them."""
    name = layout.page_of(layout.stem(certificate))
    raw, faults = _content(store, name)
    yield from faults
    if faults:
        return
    shown = raw.decode(errors="replace")
    if certificate.algorithm.version == __version__:
        fresh = page(certificate, entry.envelope)
        same = _OUTCOME.sub("", shown, 2) == _OUTCOME.sub("", fresh, 2)
    else:
        attached = base64.b64encode(entry.envelope.to_json()).decode()
        same = shown.count("base64,") == shown.count(f'base64,{attached}"') == 1
    if not same:
        yield f"{name} does not show the certificate in the log"


def _sealed(store: Folder, releases: Sequence[Release]) -> tuple[list[str], str]:
    """Open annexes and requests; say what is wrong, and what was covered."""
    if not store.has_sealed:
        return [], "annexes and requests are not here"
    try:
        key = sealing_key(store.config)
    except KeyUnusable:
        return [], "annexes and requests NOT CHECKED, for want of the sealing key"
    faults: list[str] = []
    for release in releases:
        annex = layout.annex_of(layout.stem(release))
        content = _opened(store, key, annex)
        if content is None or sealed_digest(content) != release.evidence.sealed_digest:
            faults.append(f"{annex} is not the annex that was sealed")
        if isinstance(release, Certificate) and release.requests:
            kept = layout.requests_of(layout.stem(release))
            if not _requested(_opened(store, key, kept), release):
                faults.append(f"{kept} does not hold the requests of the certificate")
    return faults, "annexes and requests as they were sealed"


def _opened(store: Folder, key: bytes, name: str) -> bytes | None:
    content, faults = _content(store, name)
    try:
        return None if faults else unseal(key, content)
    except KeyUnusable:
        return None


def _requested(content: bytes | None, certificate: Certificate) -> bool:
    """Whether the salts and ids that were kept give the commitments of the certificate."""
    try:
        kept = [
            request_commitment(bytes.fromhex(it["salt"]), it["requestId"])
            for it in json.loads(content or b"")
        ]
    except (InvalidInput, *MALFORMED):
        return False
    shown = sorted(request.commitment for request in certificate.requests)
    if certificate.asked != len(kept):
        return False
    return shown == (sorted(kept) if len(shown) == len(kept) else [batch_commitment(kept)])
