"""The ledger: appending, proofs, and every kind of tampering caught by its name."""

from __future__ import annotations

import json
import sqlite3
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from expunge.certificate import log
from expunge.certificate.envelope import Envelope, cosign, sign
from expunge.certificate.keys import KeySigner
from expunge.errors import FolderProblem, InvalidInput, VerificationFailed
from expunge.folder import database
from expunge.folder import ledger as ledger_module
from expunge.folder.faults import digest
from expunge.folder.ledger import Appended, Ledger

ORIGIN = "clinic.example/log"
LINEAGE = "c" * 64


def signer(seed: int) -> KeySigner:
    return KeySigner(Ed25519PrivateKey.from_private_bytes(bytes([seed]) * 32))


ISSUER, LOG, OTHER = signer(1), signer(2), signer(3)


def statement(number: int) -> bytes:
    return json.dumps({"predicate": {"number": number}}).encode()


def release(number: int, previous: bytes | None, spent: str | None = None, **more: object) -> bytes:
    budget = {
        "lineage": LINEAGE,
        "release": number,
        "muSquaredSpent": spent or f"{number}e-5",
        "previousCertificate": None if previous is None else digest(previous),
        **more,
    }
    return json.dumps({"predicate": {"budget": budget}}).encode()


def add(
    ledger: Ledger, payload: bytes, before_commit: Callable[[Appended], None] | None = None
) -> Appended:
    return ledger.append(
        sign(payload, ISSUER),
        log_signer=LOG,
        issuer_public=ISSUER.public,
        before_commit=before_commit,
    )


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "log.sqlite"


@pytest.fixture
def filled(path: Path) -> Path:
    """A policy and five releases of a lineage."""
    with Ledger.create(path, ORIGIN) as ledger:
        add(ledger, statement(0))
        previous = None
        for number in range(1, 6):
            payload = release(number, previous)
            add(ledger, payload)
            previous = payload
    return path


def faults_of(path: Path, held: str | None = None) -> set[str]:
    with Ledger.open(path) as ledger:
        found = ledger.faults([ISSUER.public], LOG.public, held)
        if found:
            with pytest.raises(VerificationFailed) as caught:
                ledger.verify([ISSUER.public], LOG.public, held)
            assert caught.value.check == found[0].name
        return {fault.name for fault in found}


def tamper(path: Path, *statements: str, values: tuple[object, ...] = ()) -> None:
    """Write as an administrator would: without the triggers, which are put back afterwards."""
    db = sqlite3.connect(path, isolation_level=None)
    for name in ("le_u", "le_d", "le_i"):
        db.execute(f"DROP TRIGGER {name}")
    for text in statements:
        db.execute(text, values if "?" in text else ())
    for text in ledger_module._TRIGGERS:
        db.execute(text)
    db.close()


def note_at(path: Path, size: int) -> str:
    with sqlite3.connect(path) as db:
        return db.execute("SELECT note FROM log_checkpoint WHERE size=?", (size,)).fetchone()[0]


# --- appending ----------------------------------------------------------------------------------


def test_append_read_and_prove(filled: Path) -> None:
    with Ledger.open(filled) as ledger:
        assert (len(ledger), ledger.origin) == (6, ORIGIN)
        entries = list(ledger.entries())
        leaves = [e.leaf for e in entries]
        head = ledger.verify([ISSUER.public], LOG.public)
        assert head == log.Checkpoint(ORIGIN, 6, log.root(leaves))
        for entry in entries:
            envelope = entry.envelope
            assert entry.leaf == log.leaf_hash(envelope.payload_type, envelope.payload)
            proof = ledger.inclusion(entry.index)
            log.verify_inclusion(entry.leaf, entry.index, 6, proof, head.root)
        for size in range(7):
            old = log.root(leaves[:size])
            log.verify_consistency(size, old, 6, head.root, ledger.consistency(size))
            assert size == 0 or faults_of(filled, note_at(filled, size)) == set()
        assert ledger.last_release(LINEAGE) == (5, "5e-5")
        assert ledger.last_release("d" * 64) is None
        with pytest.raises(InvalidInput, match="no entry 6; it has 6"):
            ledger.entry(6)


def test_empty_log(path: Path) -> None:
    with Ledger.create(path, ORIGIN) as ledger:
        assert ledger.checkpoint() is None
        assert ledger.verify([ISSUER.public], LOG.public).root == log.EMPTY_ROOT
    with pytest.raises(FolderProblem, match="exists already"):
        Ledger.create(path, ORIGIN)


def test_journal_settings(path: Path) -> None:
    with Ledger.create(path, ORIGIN) as ledger:
        assert ledger._db.one(str, "PRAGMA journal_mode") == "wal"
        assert ledger._db.one(int, "PRAGMA synchronous") == 2


def test_cosignatures_are_kept_and_do_not_change_the_leaf(path: Path) -> None:
    envelope = cosign(sign(statement(1), OTHER), ISSUER)
    with Ledger.create(path, ORIGIN) as ledger:
        ledger.append(envelope, log_signer=LOG, issuer_public=ISSUER.public)
        entry = ledger.entry(0)
        assert set(entry.envelope.signatures) == set(envelope.signatures)
        assert entry.leaf == log.leaf_hash(envelope.payload_type, statement(1))
        assert faults_of(path) == set()
        with pytest.raises(VerificationFailed, match="replay"):
            add(ledger, statement(1))


def test_a_false_hint_does_not_hide_the_issuer(path: Path) -> None:
    good = sign(statement(1), ISSUER)
    lie = sign(statement(2), OTHER).signatures[0]
    lie = type(lie)(ISSUER.keyid, lie.sig)
    unnamed = type(lie)("", good.signatures[0].sig)
    with Ledger.create(path, ORIGIN) as ledger:
        ledger.append(
            Envelope(good.payload_type, good.payload, (lie, unnamed)),
            log_signer=LOG,
            issuer_public=ISSUER.public,
        )
    assert faults_of(path) == set()


@pytest.mark.parametrize(
    ("payload", "check"),
    [
        (statement(0), "replay"),
        (release(7, release(5, None)), "budget chain"),
        (release(6, None), "budget chain"),
        (release(6, b"another"), "budget chain"),
        (release(1, None, lineage="d" * 64, previousCertificate="e" * 64), "budget chain"),
        (release(2, None, lineage="d" * 64), "budget chain"),
        (release(6, None, lineage=None), "budget chain"),
    ],
)
def test_append_refuses_and_changes_nothing(filled: Path, payload: bytes, check: str) -> None:
    with Ledger.open(filled) as ledger:
        before = ledger.checkpoint()
        with pytest.raises(VerificationFailed) as caught:
            add(ledger, payload)
        assert caught.value.check == check
        assert (len(ledger), ledger.checkpoint()) == (6, before)


@pytest.mark.parametrize("spent", ["4.9e-5", "0.5e-05", "NaN"])
def test_append_refuses_what_was_spent_to_fall(filled: Path, spent: str) -> None:
    with Ledger.open(filled) as ledger:
        last = ledger.entry(5).envelope.payload
        with pytest.raises(VerificationFailed, match="budget chain"):
            add(ledger, release(6, last, spent))
        add(ledger, release(6, last, "5e-5"))


def test_append_needs_the_issuer(filled: Path) -> None:
    with Ledger.open(filled) as ledger:
        with pytest.raises(VerificationFailed, match="signature"):
            ledger.append(sign(statement(9), OTHER), log_signer=LOG, issuer_public=ISSUER.public)
        assert len(ledger) == 6


@pytest.mark.parametrize("error", [OSError("disk"), KeyboardInterrupt()])
def test_before_commit_comes_before_the_commit(filled: Path, error: BaseException) -> None:
    seen: list[tuple[Appended, int]] = []
    with Ledger.open(filled) as ledger, Ledger.open(filled) as reader:
        appended = add(ledger, statement(7), lambda a: seen.append((a, len(reader))))
        assert seen == [(appended, 6)]
        assert len(reader) == 7

        def fail(_: Appended) -> None:
            raise error

        with pytest.raises(type(error)):
            add(ledger, statement(8), fail)
        assert len(ledger) == 7
        assert add(ledger, statement(9)).index == 7
    assert faults_of(filled) == set()


def test_two_writers_take_turns(path: Path) -> None:
    Ledger.create(path, ORIGIN).close()

    def work(base: int) -> None:
        with Ledger.open(path) as ledger:
            for i in range(15):
                add(ledger, statement(base + i))

    threads = [threading.Thread(target=work, args=(100 * k,)) for k in (1, 2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert faults_of(path) == set()
    with Ledger.open(path) as ledger:
        assert len(ledger) == 30


def test_locked_missing_and_damaged_files(
    filled: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(database, "BUSY_SECONDS", 0.01)
    with (
        Ledger.open(filled) as writer,
        Ledger.open(filled) as ledger,
        writer._db.transaction(),
        pytest.raises(FolderProblem, match="locked"),
    ):
        add(ledger, statement(9))
    with pytest.raises(FolderProblem, match="no log"):
        Ledger.open(tmp_path / "none.sqlite")
    with pytest.raises(InvalidInput, match="origin"):
        Ledger.create(tmp_path / "new.sqlite", "a name")
    for name, content in (("text", b"not a database at all" * 99), ("empty", b"")):
        (tmp_path / name).write_bytes(content)
        with pytest.raises(FolderProblem):
            Ledger.open(tmp_path / name)


def test_appending_is_quick_and_does_not_slow_down(path: Path) -> None:
    with Ledger.create(path, ORIGIN) as ledger:
        ledger._db.execute("PRAGMA synchronous=OFF")
        spent = []
        for i in range(1200):
            start = time.perf_counter()
            add(ledger, statement(i))
            spent.append(time.perf_counter() - start)
    assert sorted(spent)[600] < 5e-3


# --- tampering ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text",
    [
        "UPDATE log_entry SET payload=x'00' WHERE idx=2",
        "DELETE FROM log_entry WHERE idx=5",
        "INSERT OR REPLACE INTO log_entry SELECT idx, leaf_hash, payload_type, x'00', appended_at "
        "FROM log_entry WHERE idx=2",
        "INSERT OR REPLACE INTO log_entry SELECT 6, leaf_hash, payload_type, payload, appended_at "
        "FROM log_entry WHERE idx=2",
        "INSERT INTO log_entry SELECT 9, zeroblob(32), payload_type, payload, appended_at "
        "FROM log_entry WHERE idx=2",
        "REPLACE INTO log_entry SELECT 2, zeroblob(32), payload_type, payload, appended_at "
        "FROM log_entry WHERE idx=2",
    ],
)
def test_triggers_stop_mistakes(filled: Path, text: str) -> None:
    db = sqlite3.connect(filled)
    with pytest.raises(sqlite3.IntegrityError, match=r"append-only|gap or duplicate"):
        db.execute(text)
    db.close()
    assert faults_of(filled) == set()


SWAP = (
    "UPDATE log_entry SET idx=100 WHERE idx=2",
    "UPDATE log_entry SET idx=2 WHERE idx=3",
    "UPDATE log_entry SET idx=3 WHERE idx=100",
    "UPDATE log_signature SET idx=100 WHERE idx=2",
    "UPDATE log_signature SET idx=2 WHERE idx=3",
    "UPDATE log_signature SET idx=3 WHERE idx=100",
)
CASES = {
    "edited payload": ("edited entry", ("UPDATE log_entry SET payload=x'7b7d' WHERE idx=2",)),
    "edited type": ("edited entry", ("UPDATE log_entry SET payload_type='x' WHERE idx=2",)),
    "edited leaf": ("edited entry", ("UPDATE log_entry SET leaf_hash=zeroblob(32) WHERE idx=2",)),
    "reordered": ("reordered", SWAP),
    "gap": ("gap", ("DELETE FROM log_entry WHERE idx=2",)),
    "truncated": ("truncated", ("DELETE FROM log_entry WHERE idx=5",)),
    "emptied": ("truncated", ("DELETE FROM log_entry",)),
    "foreign entry": ("foreign signature", ("UPDATE log_signature SET sig=zeroblob(64)",)),
    "unsigned entry": ("foreign signature", ("DELETE FROM log_signature WHERE idx=3",)),
    "lost checkpoint": ("checkpoint", ("DELETE FROM log_checkpoint WHERE size=3",)),
    "edited root": ("checkpoint", ("UPDATE log_checkpoint SET root=zeroblob(32) WHERE size=3",)),
    "edited peaks": ("checkpoint", ("UPDATE log_checkpoint SET peaks=zeroblob(64) WHERE size=3",)),
    "garbled note": ("checkpoint", ("UPDATE log_checkpoint SET note='x' WHERE size=3",)),
    "edited spent": ("budget chain", ("UPDATE budget SET mu2_spent='0' WHERE release=2",)),
    "lost budget row": ("budget chain", ("DELETE FROM budget WHERE release=5",)),
    "extra budget row": ("budget chain", ("INSERT INTO budget VALUES('x',1,0,'0')",)),
}


@pytest.mark.parametrize("case", CASES)
def test_tampering_is_named(filled: Path, case: str) -> None:
    name, statements = CASES[case]
    tamper(filled, *statements)
    assert name in faults_of(filled)


def test_pure_faults_are_named_alone(filled: Path) -> None:
    tamper(filled, *SWAP)
    with Ledger.open(filled) as ledger:
        assert ledger.faults([ISSUER.public], LOG.public)[0].name == "reordered"


def test_resigned_edit_is_caught_by_the_signed_checkpoints(filled: Path) -> None:
    """The issuer's own key rewrites an entry in full, the log's key stays out of it."""
    payload = statement(99)
    envelope = sign(payload, ISSUER)
    leaf = log.leaf_hash(envelope.payload_type, payload)
    tamper(
        filled, "UPDATE log_entry SET payload=?, leaf_hash=? WHERE idx=0", values=(payload, leaf)
    )
    with sqlite3.connect(filled) as db:
        db.execute("UPDATE log_signature SET sig=? WHERE idx=0", (envelope.signatures[0].sig,))
    assert faults_of(filled) == {"edited entry"}


def rewritten(path: Path, count: int) -> Path:
    """Another history of the same log, made with all the keys."""
    with Ledger.create(path, ORIGIN) as ledger:
        for i in range(count):
            add(ledger, statement(1000 + i))
    return path


def test_only_a_checkpoint_from_outside_shows_a_fork(filled: Path, tmp_path: Path) -> None:
    fork = rewritten(tmp_path / "fork.sqlite", 6)
    assert faults_of(fork) == set()
    for size in (1, 3, 6):
        assert faults_of(fork, note_at(filled, size)) == {"fork"}
    short = rewritten(tmp_path / "short.sqlite", 4)
    assert faults_of(short, note_at(filled, 6)) == {"truncated"}


def test_truncation_with_its_checkpoints_needs_one_from_outside(filled: Path) -> None:
    held = note_at(filled, 6)
    tamper(
        filled,
        "DELETE FROM log_entry WHERE idx=5",
        "DELETE FROM log_signature WHERE idx=5",
        "DELETE FROM log_checkpoint WHERE size=6",
        "DELETE FROM budget WHERE idx=5",
    )
    assert faults_of(filled) == set()
    assert faults_of(filled, held) == {"truncated"}


def test_checkpoints_by_another_key_or_log(filled: Path) -> None:
    with Ledger.open(filled) as ledger:
        root = log.verify_note(ledger.checkpoint() or "", ORIGIN, LOG.public).root
    for note in (
        log.make_note(ORIGIN, 6, root, OTHER),
        log.make_note("another.example/log", 6, root, LOG),
    ):
        assert faults_of(filled, note) == {"foreign signature"}
        with sqlite3.connect(filled) as db:
            db.execute("UPDATE log_checkpoint SET note=? WHERE size=6", (note,))
        assert faults_of(filled) == {"foreign signature"}
    assert faults_of(filled, "garbage") == {"checkpoint", "foreign signature"}


def test_wrong_issuer_or_log_key(filled: Path) -> None:
    with Ledger.open(filled) as ledger:
        for issuers, key in (([OTHER.public], LOG), ([], LOG), ([ISSUER.public], OTHER)):
            with pytest.raises(VerificationFailed) as caught:
                ledger.verify(issuers, key.public)
            assert caught.value.check == "foreign signature"
        ledger.verify([OTHER.public, ISSUER.public], LOG.public)


def test_missing_triggers_are_noticed(filled: Path) -> None:
    with sqlite3.connect(filled) as db:
        db.execute("DROP TRIGGER le_i")
    assert faults_of(filled) == {"trigger missing"}


def test_replay_and_broken_chain_inside_the_file(path: Path, monkeypatch) -> None:
    """A log written by a program that does not check what it appends."""
    monkeypatch.setattr(ledger_module, "broken", lambda link, last: None)
    first = release(1, None)
    with Ledger.create(path, ORIGIN) as ledger:
        add(ledger, first)
        add(ledger, release(3, first))
    monkeypatch.undo()
    assert faults_of(path) == {"budget chain"}
    tamper(path, "UPDATE log_entry SET payload=?", values=(first,))
    assert "replay" in faults_of(path)


@pytest.mark.parametrize("column", ["payload", "payload_type", "leaf_hash"])
def test_wrong_column_types_do_not_crash(filled: Path, column: str) -> None:
    tamper(filled, f"UPDATE log_entry SET {column}='{'x' * 32}' WHERE idx=1")
    assert "edited entry" in faults_of(filled)
