"""What can be wrong with a log, by name: the checking half of :mod:`expunge.folder.ledger`."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from expunge.certificate import decimals, log, strict_json
from expunge.certificate.envelope import Envelope, verify_signatures
from expunge.certificate.keys import PublicKey
from expunge.certificate.log import Checkpoint, Frontier
from expunge.errors import InvalidInput, VerificationFailed


@dataclass(frozen=True)
class Entry:
    """One statement of the log."""

    index: int
    envelope: Envelope
    leaf: bytes
    appended_at: str


@dataclass(frozen=True)
class Fault:
    """One thing that is wrong: its name and what was found."""

    name: str
    reason: str

    def __str__(self) -> str:
        """Return name and reason."""
        return f"{self.name}: {self.reason}"


@dataclass(frozen=True)
class Link:
    """One release of a lineage as its statement tells it; ``spent`` is the total μ² so far."""

    lineage: str
    release: int
    spent: str
    previous: str | None


def digest(payload: bytes) -> str:
    """Return the SHA-256 (hex) of a payload, by which the next statement of a lineage names it."""
    return hashlib.sha256(payload).hexdigest()


def link_of(payload: bytes) -> Link | None:
    """Return the budget of a statement, or None if it has none (a policy, an audit).

    Raises
    ------
    VerificationFailed
        ``budget chain``, if there is one without the fields of a budget.
    """
    try:
        statement = strict_json.loads(payload)
    except VerificationFailed:
        return None
    predicate = statement.get("predicate") if isinstance(statement, dict) else None
    budget = predicate.get("budget") if isinstance(predicate, dict) else None
    if budget is None:
        return None
    match budget:
        case {
            "lineage": str(lineage),
            "release": int(release),
            "muSquaredSpent": str(spent),
            "previousCertificate": str() | None as previous,
        }:
            return Link(lineage, release, spent, previous)
    raise VerificationFailed("budget chain", "the statement's budget is not one")


def broken(link: Link, last: tuple[Link, str] | None) -> str | None:
    """Say why ``link`` does not continue the last link (with its payload's digest), if so."""
    release, spent, previous = 1, "0", None
    if last is not None:
        release, spent, previous = last[0].release + 1, last[0].spent, last[1]
    if link.release != release:
        return f"expected release {release} of the lineage, got {link.release}"
    if link.previous != previous:
        return f"release {release} names {link.previous} as its predecessor, not {previous}"
    try:
        if decimals.value(link.spent) < decimals.value(spent):
            return f"release {release} has spent {link.spent}, less than {spent} before it"
    except InvalidInput as error:
        return f"release {release}: {error}"
    return None


def find_faults(
    *,
    entries: Sequence[Entry],
    checkpoints: Sequence[tuple[Any, ...]],
    budget: Sequence[tuple[Any, ...]],
    origin: str,
    issuers: Sequence[PublicKey],
    log_key: PublicKey,
    held: str | None,
) -> Iterator[Fault]:
    """Yield the faults of a log, the most telling first.

    Parameters
    ----------
    entries : sequence of Entry
        Ascending by index.
    checkpoints : sequence of (size, root, note, peaks)
        Ascending by size, one after every entry.
    budget : sequence of (index, lineage, release, spent)
    origin : str
    issuers, log_key : public keys
    held : str or None
        A checkpoint note from outside.
    """
    leaves = [log.leaf_hash(e.envelope.payload_type, e.envelope.payload) for e in entries]
    sound = next((i for i, entry in enumerate(entries) if entry.index != i), len(entries))
    if sound < len(entries):
        yield Fault("gap", f"entry {sound} is missing; the next is {entries[sound].index}")
    size = entries[-1].index + 1 if entries else 0
    frontiers = [Frontier()]
    for leaf in leaves[:sound]:
        frontiers.append(frontiers[-1].append(leaf))
    yield from _entry_faults(entries, leaves, issuers)
    yield from _checkpoint_faults(checkpoints, frontiers, leaves, size, origin, log_key)
    if held is not None:
        yield from _held_faults(held, frontiers, size, origin, log_key)
    yield from _budget_faults(entries, budget)


def _entry_faults(
    entries: Sequence[Entry], leaves: Sequence[bytes], issuers: Sequence[PublicKey]
) -> Iterator[Fault]:
    seen: dict[bytes, int] = {}
    for entry, leaf in zip(entries, leaves, strict=True):
        if entry.leaf != leaf:
            yield Fault("edited entry", f"entry {entry.index} is not what its leaf hash says")
        if leaf in seen:
            yield Fault("replay", f"entry {entry.index} repeats entry {seen[leaf]}")
        seen[leaf] = entry.index
        try:
            verify_signatures(entry.envelope, issuers)
        except VerificationFailed:
            yield Fault("foreign signature", f"entry {entry.index} is not signed by an issuer")


def _checkpoint_faults(
    checkpoints: Sequence[tuple[Any, ...]],
    frontiers: Sequence[Frontier],
    leaves: Sequence[bytes],
    size: int,
    origin: str,
    log_key: PublicKey,
) -> Iterator[Fault]:
    sizes = [row[0] for row in checkpoints]
    if sizes and sizes[-1] > size:
        yield Fault("truncated", f"a checkpoint covers {sizes[-1]} entries, the log has {size}")
    have = set(sizes)
    missing = next((count for count in range(1, size + 1) if count not in have), None)
    if missing is not None:
        yield Fault("checkpoint", f"the checkpoint of size {missing} is missing")
    diverged = False
    for count, root, note, peaks in checkpoints:
        try:
            signed = log.verify_note(note, origin, log_key)
        except VerificationFailed as error:
            yield Fault(_name(error), f"checkpoint of size {count}: {error.reason}")
            continue
        if signed != Checkpoint(origin, count, root):
            yield Fault("checkpoint", f"the checkpoint of size {count} is not what was signed")
        if diverged or not 0 < count < len(frontiers):
            continue
        if frontiers[count].root != signed.root:
            diverged = True
            yield _divergence(count, signed.root, frontiers, leaves)
        elif frontiers[count].to_bytes() != peaks:
            yield Fault("checkpoint", f"the peaks stored with size {count} are wrong")


def _divergence(
    count: int, root: bytes, frontiers: Sequence[Frontier], leaves: Sequence[bytes]
) -> Fault:
    """Name the first difference between the entries and what was signed when they were added."""
    before = frontiers[count - 1]
    elsewhere = (i for i, leaf in enumerate(leaves) if before.append(leaf).root == root)
    found = next(elsewhere, None)
    if found is not None:
        return Fault("reordered", f"what was signed as entry {count - 1} is now entry {found}")
    return Fault("edited entry", f"entry {count - 1} is not the one that was signed")


def _held_faults(
    held: str, frontiers: Sequence[Frontier], size: int, origin: str, log_key: PublicKey
) -> Iterator[Fault]:
    try:
        given = log.verify_note(held, origin, log_key)
    except VerificationFailed as error:
        yield Fault(_name(error), f"the checkpoint given: {error.reason}")
        return
    if given.size > size:
        yield Fault("truncated", f"the checkpoint given covers {given.size} entries, not {size}")
    elif given.size < len(frontiers) and frontiers[given.size].root != given.root:
        yield Fault("fork", f"the checkpoint given has another root for size {given.size}")


def _budget_faults(entries: Sequence[Entry], budget: Sequence[tuple[Any, ...]]) -> Iterator[Fault]:
    rows = {row[0]: row[1:] for row in budget}
    if len(rows) < len(budget):
        yield Fault("budget chain", "several budget rows are of one entry")
    last: dict[str, tuple[Link, str]] = {}
    for entry in entries:
        try:
            link = link_of(entry.envelope.payload)
        except VerificationFailed as error:
            yield Fault(error.check, f"entry {entry.index}: {error.reason}")
            continue
        told = None if link is None else (link.lineage, link.release, link.spent)
        if rows.pop(entry.index, None) != told:
            yield Fault("budget chain", f"the budget row of entry {entry.index} is not its own")
        if link is None:
            continue
        if reason := broken(link, last.get(link.lineage)):
            yield Fault("budget chain", f"entry {entry.index}: {reason}")
        last[link.lineage] = link, digest(entry.envelope.payload)
    if rows:
        yield Fault("budget chain", f"budget rows without entries: {sorted(rows)}")


def _name(error: VerificationFailed) -> str:
    return "checkpoint" if error.check == "note" else error.check
