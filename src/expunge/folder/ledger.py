"""The append-only log of a model folder: a Merkle tree of signed statements in SQLite.

Entry, signatures, checkpoint and budget row are written in one transaction, after the issuer's
signature has been checked. Triggers stop mistakes, not an administrator: what shows that history
was changed is a checkpoint that somebody else holds (see :meth:`Ledger.verify`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Self

from expunge.certificate import log
from expunge.certificate.envelope import Envelope, Signature, signature_of
from expunge.certificate.keys import PublicKey, Signer, keyid
from expunge.certificate.log import Checkpoint, Frontier, Proof
from expunge.errors import FolderProblem, InvalidInput, VerificationFailed
from expunge.folder.database import Database, require_regular
from expunge.folder.faults import Entry, Fault, Link, broken, digest, find_faults, link_of

_VERSION = 1
_TABLES = (
    """CREATE TABLE log_entry(idx INTEGER PRIMARY KEY CHECK(idx>=0),
  leaf_hash BLOB NOT NULL UNIQUE CHECK(length(leaf_hash)=32),
  payload_type TEXT NOT NULL, payload BLOB NOT NULL, appended_at TEXT NOT NULL)""",
    """CREATE TABLE log_signature(idx INTEGER NOT NULL REFERENCES log_entry, keyid TEXT NOT NULL,
  sig BLOB NOT NULL, PRIMARY KEY(idx,keyid))""",
    """CREATE TABLE log_checkpoint(size INTEGER PRIMARY KEY, root BLOB NOT NULL,
  note TEXT NOT NULL, peaks BLOB NOT NULL)""",
    """CREATE TABLE budget(lineage TEXT, release INTEGER, idx INTEGER NOT NULL REFERENCES log_entry,
  mu2_spent TEXT NOT NULL, PRIMARY KEY(lineage,release))""",
    "CREATE TABLE log_origin(origin TEXT NOT NULL)",
)
_TRIGGERS = (
    """CREATE TRIGGER le_u BEFORE UPDATE ON log_entry
BEGIN SELECT RAISE(ABORT,'append-only'); END""",
    """CREATE TRIGGER le_d BEFORE DELETE ON log_entry
BEGIN SELECT RAISE(ABORT,'append-only'); END""",
    """CREATE TRIGGER le_i BEFORE INSERT ON log_entry
WHEN NEW.idx IS NOT (SELECT COALESCE(MAX(idx)+1,0) FROM log_entry)
  OR EXISTS(SELECT 1 FROM log_entry WHERE leaf_hash=NEW.leaf_hash)
BEGIN SELECT RAISE(ABORT,'gap or duplicate'); END""",
)


@dataclass(frozen=True)
class Appended:
    """Where a statement stands in the log, and the checkpoint note that covers it."""

    index: int
    note: str


class Ledger:
    """The log; open it with :meth:`create` or :meth:`open`, close it after use (or use ``with``).

    Every method raises ``FolderProblem`` if the file is locked or damaged.
    """

    def __init__(self, path: Path, mode: str) -> None:
        """Connect; use :meth:`create` or :meth:`open`."""
        self._db = Database(path, mode)

    @classmethod
    def create(cls, path: Path, origin: str) -> Self:
        """Make an empty log with a name of its own (the origin of its checkpoints).

        Raises
        ------
        FolderProblem
            If the file exists or cannot be made.
        InvalidInput
            If the origin is not fit for a signed note.
        """
        log.checked_origin(origin)
        if Path(path).exists():
            raise FolderProblem(f"{path} exists already: a log is never overwritten")
        ledger = cls(path, "rwc")
        ledger._db.execute("PRAGMA journal_mode=WAL")
        with ledger._db.transaction():
            for statement in (*_TABLES, *_TRIGGERS):
                ledger._db.execute(statement)
            ledger._db.execute("INSERT INTO log_origin VALUES(?)", (origin,))
            ledger._db.execute(f"PRAGMA user_version={_VERSION}")
        return ledger

    @classmethod
    def open(cls, path: Path, *, read_only: bool = False) -> Self:
        """Open a log.

        Parameters
        ----------
        path : Path
        read_only : bool
            Write nothing, not even beside it; nobody may be writing to it.

        Raises
        ------
        FolderProblem
            If there is none, or it is of another version, or has other tables than a log has.
        """
        require_regular(Path(path))
        ledger = cls(path, "ro" if read_only else "rw")
        try:
            ledger._db.require(_VERSION, _TABLES, (*_TABLES, *_TRIGGERS))
        except BaseException:
            ledger.close()
            raise
        return ledger

    def close(self) -> None:
        """Close the file."""
        self._db.close()

    def __enter__(self) -> Self:
        """Return the log."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close the file."""
        self.close()

    # --- writing --------------------------------------------------------------------------------

    def append(
        self,
        envelope: Envelope,
        *,
        log_signer: Signer,
        issuer_public: PublicKey,
        before_commit: Callable[[Appended], None] | None = None,
    ) -> Appended:
        """Append a statement: O(log n), one transaction, nothing is written unless all is.

        A statement with a ``budget`` has to continue its lineage: releases count up from 1, each
        names the payload of the one before, and what was spent never falls.

        Parameters
        ----------
        envelope : Envelope
        log_signer : Signer
            Signs the new checkpoint.
        issuer_public : PublicKey
            The key whose signature the envelope has to have.
        before_commit : callable, optional
            Called with the result when everything has been written but nothing is visible. The
            entry exists from the commit that follows; if the callable raises, it never did.

        Raises
        ------
        VerificationFailed
            ``signature``; ``replay`` (the payload is in the log); ``budget chain``.
        """
        own = signature_of(envelope, issuer_public)
        if own is None:
            raise VerificationFailed("signature", "the statement is not signed by the issuer")
        leaf = log.leaf_hash(envelope.payload_type, envelope.payload)
        link = link_of(envelope.payload)
        with self._db.transaction():
            if self._db.rows((int,), "SELECT 1 FROM log_entry WHERE leaf_hash=?", (leaf,)):
                raise VerificationFailed("replay", "this statement is in the log already")
            if link is not None and (reason := broken(link, self._last_link(link.lineage))):
                raise VerificationFailed("budget chain", reason)
            frontier = self._frontier()
            grown = frontier.append(leaf)
            note = log.make_note(self.origin, grown.size, grown.root, log_signer)
            signatures = {s.keyid: s.sig for s in envelope.signatures if s.keyid}
            signatures[keyid(issuer_public)] = own.sig
            self._insert(frontier.size, leaf, envelope, signatures)
            self._db.execute(
                "INSERT INTO log_checkpoint VALUES(?,?,?,?)",
                (grown.size, grown.root, note, grown.to_bytes()),
            )
            if link is not None:
                self._db.execute(
                    "INSERT INTO budget VALUES(?,?,?,?)",
                    (link.lineage, link.release, frontier.size, link.spent),
                )
            appended = Appended(frontier.size, note)
            if before_commit is not None:
                before_commit(appended)
        return appended

    def _insert(
        self, index: int, leaf: bytes, envelope: Envelope, signatures: dict[str, bytes]
    ) -> None:
        now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        self._db.execute(
            "INSERT INTO log_entry VALUES(?,?,?,?,?)",
            (index, leaf, envelope.payload_type, envelope.payload, now),
        )
        for name, sig in signatures.items():
            self._db.execute("INSERT INTO log_signature VALUES(?,?,?)", (index, name, sig))

    # --- reading --------------------------------------------------------------------------------

    @property
    def origin(self) -> str:
        """Name of the log."""
        return str(self._db.one(str, "SELECT origin FROM log_origin"))

    def __len__(self) -> int:
        """Return the number of entries."""
        return int(self._db.one(int, "SELECT COUNT(*) FROM log_entry"))

    def indices(self) -> list[int]:
        """Return the indices of the entries, ascending; 0, 1, 2, … unless entries are missing."""
        return [row[0] for row in self._db.rows((int,), "SELECT idx FROM log_entry ORDER BY idx")]

    def entries(self) -> Iterator[Entry]:
        """Yield the entries in order."""
        return map(self.entry, self.indices())

    def entry(self, index: int) -> Entry:
        """Return one entry; raise ``InvalidInput`` if there is none of this index."""
        found = self._db.rows(
            (str, bytes, bytes, str),
            "SELECT CAST(payload_type AS TEXT), CAST(payload AS BLOB), CAST(leaf_hash AS BLOB), "
            "CAST(appended_at AS TEXT) FROM log_entry WHERE idx=?",
            (index,),
        )
        if not found:
            raise InvalidInput(f"the log has no entry {index}; it has {len(self)} entries")
        kind, payload, leaf, time = found[0]
        signed = (
            "SELECT CAST(keyid AS TEXT), CAST(sig AS BLOB) FROM log_signature WHERE idx=? "
            "ORDER BY rowid"
        )
        signatures = tuple(Signature(*row) for row in self._db.rows((str, bytes), signed, (index,)))
        return Entry(index, Envelope(kind, payload, signatures), leaf, time)

    def checkpoint(self) -> str | None:
        """Return the newest checkpoint note, or None for an empty log: give it to somebody."""
        newest = "SELECT CAST(note AS TEXT) FROM log_checkpoint ORDER BY size DESC LIMIT 1"
        found = self._db.rows((str,), newest)
        return str(found[0][0]) if found else None

    def inclusion(self, index: int) -> Proof:
        """Return the proof that entry ``index`` is in the log of the newest checkpoint."""
        return log.inclusion_proof(index, self._leaves())

    def consistency(self, old_size: int) -> Proof:
        """Return the proof that the log continues its state at ``old_size`` entries."""
        return log.consistency_proof(old_size, self._leaves())

    def last_release(self, lineage: str) -> tuple[int, str] | None:
        """Return number and total μ² of the newest release of a lineage, or None."""
        found = self._db.rows(
            (int, str),
            "SELECT release, mu2_spent FROM budget WHERE lineage=? ORDER BY release DESC LIMIT 1",
            (lineage,),
        )
        return (int(found[0][0]), str(found[0][1])) if found else None

    # --- checking -------------------------------------------------------------------------------

    def faults(
        self, issuers: Sequence[PublicKey], log_key: PublicKey, checkpoint: str | None = None
    ) -> tuple[Fault, ...]:
        """Recompute everything and return what is wrong; parameters as for :meth:`verify`."""
        missing = (
            []
            if self._db.schema() >= set(_TRIGGERS)
            else [Fault("trigger missing", "the file no longer refuses updates, deletions or gaps")]
        )
        return (
            *find_faults(
                entries=list(self.entries()),
                checkpoints=self._db.rows(
                    (int, bytes, str, bytes),
                    "SELECT size, CAST(root AS BLOB), CAST(note AS TEXT), CAST(peaks AS BLOB) "
                    "FROM log_checkpoint ORDER BY size",
                ),
                budget=self._db.rows(
                    (int, str, int, str),
                    "SELECT CAST(idx AS INTEGER), CAST(lineage AS TEXT), "
                    "CAST(release AS INTEGER), CAST(mu2_spent AS TEXT) FROM budget",
                ),
                origin=self.origin,
                issuers=issuers,
                log_key=log_key,
                held=checkpoint,
            ),
            *missing,
        )

    def verify(
        self, issuers: Sequence[PublicKey], log_key: PublicKey, checkpoint: str | None = None
    ) -> Checkpoint:
        """Check the whole log and return its newest checkpoint.

        Parameters
        ----------
        issuers : sequence of PublicKey
            Every entry has to be signed by one of them.
        log_key : PublicKey
            Every checkpoint has to be signed by it.
        checkpoint : str, optional
            A note that was held outside. Without one nothing is proved about the past: whoever
            has the keys and the file can write another history.

        Raises
        ------
        VerificationFailed
            Named after the first fault: ``gap``, ``edited entry``, ``reordered``, ``replay``,
            ``foreign signature``, ``checkpoint``, ``truncated``, ``fork``, ``budget chain``,
            ``trigger missing``; the message has them all.
        """
        if found := self.faults(issuers, log_key, checkpoint):
            raise VerificationFailed(found[0].name, "; ".join(map(str, found)))
        note = self.checkpoint()
        if note is None:
            return Checkpoint(self.origin, 0, log.EMPTY_ROOT)
        return log.verify_note(note, self.origin, log_key)

    # --- reading what is appended to ------------------------------------------------------------

    def _frontier(self) -> Frontier:
        newest = "SELECT size, peaks FROM log_checkpoint ORDER BY size DESC LIMIT 1"
        found = self._db.rows((int, bytes), newest)
        return Frontier.from_bytes(*found[0]) if found else Frontier()

    def _leaves(self) -> list[bytes]:
        leaves = "SELECT CAST(leaf_hash AS BLOB) FROM log_entry ORDER BY idx"
        return [row[0] for row in self._db.rows((bytes,), leaves)]

    def _last_link(self, lineage: str) -> tuple[Link, str] | None:
        found = self._db.rows(
            (bytes,),
            "SELECT CAST(e.payload AS BLOB) FROM budget b JOIN log_entry e ON e.idx=b.idx "
            "WHERE b.lineage=? ORDER BY b.release DESC LIMIT 1",
            (lineage,),
        )
        link = link_of(found[0][0]) if found else None
        return None if link is None else (link, digest(found[0][0]))
