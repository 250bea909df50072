"""Folders made by an enemy: checking them writes nothing, reads no more than it must, and ends."""

from __future__ import annotations

import contextlib
import json
import os
import random
import shutil
import sqlite3
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load, save

from expunge.certificate.checks import Verdict
from expunge.errors import ExpungeError, FolderProblem, KeyUnusable, ToleranceUnreachable
from expunge.folder import layout, pending
from expunge.folder.checking import Checked, Given
from expunge.folder.config import Config
from expunge.folder.inspection import verify
from expunge.folder.ledger import Ledger
from expunge.folder.operations import forget, retrain, status
from expunge.folder.store import mac
from expunge.linear import LogisticRegression
from expunge.linear.curvature import Curvature
from expunge.linear.state import load_lineage, map_members
from people_example import copy_home, make_home, people, snapshot, without, write_csv

STATE, MEMBERS = layout.STATE, layout.MEMBERS


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    home = make_home(tmp_path_factory.mktemp("hostile") / "home")
    forget(home / "model", ["p1"])
    forget(home / "model", ["p2", "p3"])
    return home


@pytest.fixture
def home(trained: Path, tmp_path: Path) -> Path:
    return copy_home(trained, tmp_path / "home")


@pytest.fixture
def model(home: Path) -> Path:
    return home / "model"


def failed(found: Checked) -> set[str]:
    return {check.name for check in found.failed}


def look(model: Path, *, retained: bool = True) -> Checked | None:
    """Check a folder with everything: a report, or one clear error."""
    data = model.parent / "people.csv" if retained else None
    try:
        return verify(model, Given(retained=data))
    except ExpungeError:
        return None


def everything(root: Path) -> dict[str, Any]:
    """Content, links and times of all that is below a directory."""
    found: dict[str, Any] = {}
    for path in sorted(root.rglob("*")):
        what = os.readlink(path) if path.is_symlink() else None
        if what is None and path.is_file():
            what = path.read_bytes().hex()
        found[str(path)] = what, path.lstat().st_mtime_ns
    return found


def tamper(model: Path, *statements: str, values: tuple[object, ...] = ()) -> None:
    db = sqlite3.connect(model / layout.LEDGER, isolation_level=None)
    kept = db.execute("SELECT name, sql FROM sqlite_master WHERE type='trigger'").fetchall()
    for name, _ in kept:
        db.execute(f"DROP TRIGGER {name}")
    for text in statements:
        db.execute(text, values if "?" in text else ())
    for _, text in kept:
        db.execute(text)
    db.close()


# --- nothing is written outside, or through links ------------------------------------------------


def linked(name: str) -> Callable[[Path, Path], None]:
    def plant(model: Path, victim: Path) -> None:
        (victim / "done-0001").mkdir()
        (victim / "done-0001/precious").write_text("data")
        shutil.rmtree(model / name)
        (model / name).symlink_to(victim)

    return plant


def staged(name: str, content: str = "ATTACK", number: int = 3) -> Callable[[Path, Path], None]:
    """Something in the directory of a release that the ledger knows."""

    def plant(model: Path, victim: Path) -> None:
        path = model / f"sealed/pending-{number:04d}" / name
        path.parent.mkdir(parents=True)
        path.write_text(content)

    return plant


def removing(content: bytes) -> Callable[[Path, Path], None]:
    return staged(pending.REMOVED, content.decode("latin-1"))


def leftover(name: str, kind: str) -> Callable[[Path, Path], None]:
    def plant(model: Path, victim: Path) -> None:
        path = model / "sealed" / name
        (victim / "precious").write_text("data")
        if kind == "link":
            path.symlink_to(victim)
        elif kind == "file":
            path.write_text("")
        else:
            path.mkdir()

    return plant


PLANTED = {
    "certificates linked": linked(layout.CERTIFICATES),
    "sealed linked": linked(layout.SEALED),
    "annex linked": linked(layout.ANNEX),
    "requests linked": linked(layout.REQUESTS),
    "pending linked": leftover("pending-0003", "link"),
    "done linked": leftover("done-0003", "link"),
    "pending without number": leftover("pending-abc", "directory"),
    "pending of odd number": leftover("pending-٠٠٠٣", "directory"),
    "pending a file": leftover("pending-0003", "file"),
    "done a file": leftover("done-x", "file"),
    "settings": staged("config.json"),
    "trust": staged("trust.json"),
    "members": staged(MEMBERS),
    "ledger": staged(layout.LEDGER),
    "other certificate": staged("certificates/0002.dsse.json"),
    "other name": staged("certificates/authorized_keys"),
    "deeper": staged("certificates/0003/x"),
    "removed of odd length": removing(b"123"),
    "removed too far": removing((10**6).to_bytes(8, "little")),
    "removed negative": removing(b"\x7f" * 7 + b"\x00" * 1 + b"\x7f" * 8),
    "removed twice": removing(bytes(16)),
    "removed nothing": removing(b""),
}


@pytest.mark.parametrize("case", PLANTED)
def test_what_was_planted_does_nothing(home: Path, case: str) -> None:
    model, victim = home / "model", home / "victim"
    victim.mkdir()
    PLANTED[case](model, victim)
    before = everything(home)
    look(model)
    assert everything(home) == before, "a check writes nothing"
    with pytest.raises(FolderProblem):
        status(model)
    with pytest.raises(FolderProblem):
        forget(model, ["p4"])
    after = everything(home)
    assert {path: it[0] for path, it in after.items()} == {p: it[0] for p, it in before.items()}


def test_a_link_to_a_folder_is_not_followed(home: Path) -> None:
    (home / "link").symlink_to(home / "model")
    for use in (verify, status, lambda path: forget(path, ["p4"])):
        with pytest.raises(FolderProblem, match="link"):
            use(home / "link")


def test_old_leftovers_are_discarded(home: Path) -> None:
    before = snapshot(home / "model")
    staged("model.safetensors", number=2)(home / "model", home)
    staged("model.safetensors", number=4)(home / "model", home)
    assert verify(home / "model").exit_status == 0
    status(home / "model")
    assert snapshot(home / "model") == before


def test_a_check_leaves_an_interrupted_release_alone(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After the ledger's commit and any number of moves, a check sees the release as it will be."""
    moves = 0
    replace = os.replace

    def stop(source: Path, target: Path) -> None:
        nonlocal moves
        if moves == stop_at:
            raise KeyboardInterrupt
        moves += 1
        replace(source, target)

    for stop_at in range(8):
        moves = 0
        with monkeypatch.context() as patch:
            patch.setattr(os, "replace", stop)
            with pytest.raises(KeyboardInterrupt):
                forget(model, [f"p{10 + stop_at}"])
        before = everything(model)
        found = verify(model, Given(retained=model.parent / "people.csv"))
        assert found.exit_status == 0, found.failed
        assert found.report.level == "c"
        check = found.report["interrupted release"]
        assert check.verdict is Verdict.NOT_CHECKED
        assert "expunge status" in check.reason
        assert everything(model) == before
        assert status(model).latest.budget.release == 4 + stop_at
        assert verify(model).report["sealed state"].verdict is Verdict.PASS


def test_a_check_ignores_what_never_happened(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(Ledger, "append", lambda self, *_, before_commit, **__: before_commit(NOTED))
        patch.setattr("expunge.folder.store.release_files", lambda *_: {layout.MODEL: b"new"})
        patch.setattr("expunge.folder.store.settle", lambda *_: None)
        forget(model, ["p4"])
    before = everything(model)
    found = verify(model)
    assert found.exit_status == 0
    assert "never happened" in found.report["interrupted release"].reason
    assert everything(model) == before


class NOTED:
    index, note = 4, ""


def test_a_log_is_read_without_a_trace(model: Path, tmp_path: Path) -> None:
    """Also what is not in the file yet: of that a copy is made, elsewhere."""
    held = sqlite3.connect(model / layout.LEDGER, isolation_level=None)
    held.execute("PRAGMA wal_autocheckpoint=0")
    held.execute("UPDATE log_origin SET origin='renamed'")
    shutil.copytree(model, tmp_path / "copy")
    held.close()
    (tmp_path / "copy/ledger.sqlite3-shm").unlink()
    before = everything(tmp_path / "copy")
    assert before[str(tmp_path / "copy/ledger.sqlite3-wal")][0]
    with Ledger.open(tmp_path / "copy" / layout.LEDGER, read_only=True) as ledger:
        assert ledger.origin == "renamed"
    assert everything(tmp_path / "copy") == before


@pytest.mark.skipif(os.geteuid() != 0, reason="becomes somebody else")
def test_somebody_else_checks_a_folder(model: Path) -> None:
    for path in (model, *model.parents):
        if path.stat().st_uid == os.geteuid() and not path.stat().st_mode & 0o001:
            path.chmod(path.stat().st_mode | 0o055)
    child = os.fork()
    if child == 0:
        os.setgroups([])
        os.setgid(65534)
        os.setuid(65534)
        try:
            found = verify(model)
            state = found.report["sealed state"].verdict
            os._exit(0 if found.exit_status == 0 and state is Verdict.NOT_CHECKED else 1)
        except BaseException:
            os._exit(2)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


# --- the state holds nobody who was deleted, and is what its owner left --------------------------


def arrays_of(path: Path) -> dict[str, np.ndarray]:
    return load(path.read_bytes())


def spanned(arrays: dict[str, np.ndarray], rows: np.ndarray) -> bool:
    """Whether an array, or one whitened by the factor, has a multiple of a row as a column."""
    chol = np.tril(arrays["0.chol"])
    for array in arrays.values():
        if array.ndim != 2 or array.dtype != np.float64 or len(array) != len(chol):
            continue
        for columns in (
            array,
            array.T if array.shape[0] == array.shape[1] else array,
            chol @ array,
        ):
            length = np.linalg.norm(columns, axis=0)
            units = columns[:, length > 0] / length[length > 0]
            wanted = rows / np.linalg.norm(rows, axis=1, keepdims=True)
            if (abs(wanted @ units) > 1 - 1e-9).any():
                return True
    return False


def test_the_saved_state_holds_no_deleted_row(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    X = rng.normal(size=(4000, 5))
    y = (X[:, 0] + rng.normal(size=4000) > 0).astype(int)
    fitted = LogisticRegression(random_state=0).fit(X, y)
    for i in range(3):
        fitted.unlearn(X[i : i + 1], y[i : i + 1])
    fitted.save_state(tmp_path / "state")
    rows = np.column_stack([X[:3], np.ones(3)])
    arrays = arrays_of(tmp_path / "state/state.safetensors")
    curvature = fitted._lineage.state.parts[0].curvature
    assert curvature.Z.shape[1] == 3, "in memory they are kept beside the factor"
    kept = {"0.chol": curvature.chol, "0.removed": curvature.Z}
    assert spanned(kept, rows), "this test would find them"
    assert not spanned(arrays, rows)
    again = LogisticRegression(random_state=0).load_state(tmp_path / "state")
    certificate = again.unlearn(X[3:4], y[3:4])
    assert certificate.commitments.deleted.count == 4


def test_the_folders_state_holds_no_deleted_row(model: Path) -> None:
    for person in ("p4", "p5"):
        forget(model, [person])
        names = {name.partition(".")[2] for name in arrays_of(model / STATE)}
        kept = {"", "weights", "base", "gradient", "anchor", "chol", "scale", "errors"}
        assert names <= kept, "no place for rows"


def test_what_cannot_be_folded_is_not_saved(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The factor is left out then; the deletion holds, and the next one forms a new factor."""

    def refuse(self: Curvature) -> Curvature:
        raise ToleranceUnreachable("as an example")

    with monkeypatch.context() as patch:
        patch.setattr(Curvature, "folded", refuse)
        forget(model, ["p4"])
    assert "0.chol" not in load((model / STATE).read_bytes())
    assert verify(model).exit_status == 0
    assert forget(model, ["p5"]).path == "refreshed"
    assert "0.chol" in load((model / STATE).read_bytes())
    assert verify(model).exit_status == 0


def altered_state(content: bytes, name: str) -> bytes:
    size = int.from_bytes(content[:8], "little")
    meta = json.loads(content[8 : 8 + size])["__metadata__"]
    arrays = load(content)
    arrays[name] = arrays[name] * 1.01
    return save(arrays, metadata=meta)


@pytest.mark.parametrize("name", ["0.weights", "0.base", "0.gradient", "0.anchor", "0.chol"])
def test_an_altered_state_is_not_used(model: Path, name: str) -> None:
    path = model / STATE
    path.write_bytes(altered_state(path.read_bytes(), name))
    before = snapshot(model)
    for change in (lambda: forget(model, ["p4"]), lambda: retrain(model)):
        with pytest.raises(ExpungeError):
            change()
    with pytest.raises(FolderProblem, match="altered"):
        verify(model, Given(retained=model.parent / "people.csv"))
    found = verify(model)
    assert failed(found) == {"sealed state"}
    assert "altered" in found.report["sealed state"].reason
    assert snapshot(model) == before


@pytest.mark.parametrize("content", [None, b"", b"0" * 64 + b"\n", mac(b"k" * 32, b"state")])
def test_a_state_needs_its_code(model: Path, content: bytes | None) -> None:
    (model / layout.STATE_MAC).unlink()
    if content is not None:
        (model / layout.STATE_MAC).write_bytes(content)
    assert failed(verify(model)) == {"sealed state"}
    with pytest.raises(FolderProblem):
        forget(model, ["p4"])


def test_without_the_key_integrity_is_not_checked(model: Path) -> None:
    (model.parent / "keys").rename(model.parent / "elsewhere")
    found = verify(model)
    assert found.exit_status == 0
    assert found.report["sealed state"].verdict is Verdict.NOT_CHECKED
    assert "NOT CHECKED" in found.report["files"].reason
    with pytest.raises(KeyUnusable):
        verify(model, Given(retained=model.parent / "people.csv"))


# --- whatever the files are, a check ends, soon, with a report or one error ----------------------

KINDS: dict[str, Callable[[Path], None]] = {
    "endless": lambda path: path.symlink_to("/dev/zero"),
    "link": lambda path: path.symlink_to("/etc/hostname"),
    "huge": lambda path: (path.touch(), os.truncate(path, 300 << 30)),
    "pipe": os.mkfifo,
    "directory": Path.mkdir,
    "empty": Path.touch,
    "nested": lambda path: path.write_bytes(b"[" * 60000),
    "binary": lambda path: path.write_bytes(b"\xff" * 4096),
}
NAMES = (
    layout.CONFIG,
    layout.TRUST,
    layout.POLICY,
    layout.MODEL,
    layout.LEDGER,
    STATE,
    layout.STATE_MAC,
    MEMBERS,
    "certificates/0000-policy.dsse.json",
    "certificates/0002.dsse.json",
    "certificates/0003.dsse.json",
    "certificates/0003.proof.json",
    "certificates/0003.html",
    "sealed/annex/0003.sealed",
    "sealed/requests/0003.sealed",
)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", NAMES)
def test_any_kind_of_file(model: Path, name: str, kind: str) -> None:
    (model / name).unlink()
    KINDS[kind](model / name)
    start = time.perf_counter()
    found = look(model, retained=False)
    assert time.perf_counter() - start < 5
    assert found is None or found.failed


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("what", ["model", "trust", "checkpoint", "target"])
def test_any_kind_of_given_file(home: Path, what: str, kind: str) -> None:
    KINDS[kind](home / "given")
    given = Given() if what == "target" else Given(**{what: home / "given"})
    target = home / ("given" if what == "target" else "model/certificates/0003.dsse.json")
    with contextlib.suppress(ExpungeError):
        assert verify(target, given).failed


SCHEMAS = {
    "endless view": (
        "DROP TABLE log_origin",
        "CREATE VIEW log_origin AS WITH RECURSIVE c(x) AS (SELECT 1 UNION ALL SELECT x+1 FROM c) "
        "SELECT 'o'||max(x) AS origin FROM c",
    ),
    "view": ("CREATE VIEW v AS SELECT 1",),
    "trigger": ("CREATE TRIGGER t AFTER INSERT ON budget BEGIN DELETE FROM log_checkpoint; END",),
    "table": ("CREATE TABLE t(x)",),
    "index": ("CREATE INDEX i ON budget(release)",),
    "other columns": ("DROP TABLE log_origin", "CREATE TABLE log_origin(origin)"),
    "missing table": ("DROP TABLE budget",),
}


@pytest.mark.parametrize("case", SCHEMAS)
def test_other_schemas(model: Path, case: str) -> None:
    tamper(model, *SCHEMAS[case])
    for use in (verify, status):
        with pytest.raises(FolderProblem, match="not those of a log"):
            use(model)


FAULTS = {
    "huge index": ("UPDATE log_entry SET idx=1000000000000 WHERE idx=3",),
    "huger index": ("UPDATE log_entry SET idx=9223372036854775807 WHERE idx=3",),
    "negative size": ("INSERT INTO log_checkpoint VALUES(-5,x'00','n',x'00')",),
    "size nought": ("INSERT INTO log_checkpoint VALUES(0,x'00','n',x'00')",),
    "huge size": ("INSERT INTO log_checkpoint VALUES(1000000000000,x'00','n',x'00')",),
    "text sizes": (
        "INSERT INTO budget VALUES('x',1,'abc','1')",
        "INSERT INTO budget VALUES(7,7,7,7)",
    ),
    "rows of one entry": ("INSERT INTO budget VALUES('x',1,2,'1')",),
    "blob spent": ("UPDATE budget SET mu2_spent=x'00' WHERE release=2",),
    "text release": ("UPDATE budget SET release='abc' WHERE release=2",),
    "no Unicode": ("UPDATE log_checkpoint SET note=CAST(x'ff00' AS TEXT) WHERE size=2",),
    "blob origin": ("UPDATE log_origin SET origin=x'ff'",),
    "two origins": ("INSERT INTO log_origin VALUES('x')", "UPDATE log_origin SET origin='y'"),
    "long payload": ("UPDATE log_entry SET payload=zeroblob(90000000) WHERE idx=1",),
    "deep payload": (f"UPDATE log_entry SET payload='{'[' * 100000}' WHERE idx=1",),
    "no checkpoints": ("DELETE FROM log_checkpoint",),
    "no policy": ("DELETE FROM log_entry WHERE idx=0",),
    "empty": ("DELETE FROM log_entry",),
}


@pytest.mark.parametrize("case", FAULTS)
def test_impossible_logs(model: Path, case: str) -> None:
    tamper(model, *FAULTS[case])
    start = time.perf_counter()
    found = look(model, retained=False)
    assert time.perf_counter() - start < 5
    assert found is None or found.failed
    try:
        status(model)
        forget(model, ["p4"])
    except ExpungeError:
        pass


def test_odd_files_beside_the_log(model: Path) -> None:
    for suffix in ("-wal", "-shm", "-journal"):
        beside = model / (layout.LEDGER + suffix)
        beside.symlink_to("/etc/hostname")
        for use in (verify, status):
            with pytest.raises(FolderProblem, match="link"):
                use(model)
        beside.unlink()
    (model / (layout.LEDGER + "-journal")).write_bytes(b"/etc/precious")
    with pytest.raises(FolderProblem, match="none of a log's files"):
        verify(model)


VALUES: list[Any] = [None, [], {}, "x", "", -1, 1.5, 10**30, True, "0x1p9999", "nan", "[" * 50000]


@pytest.mark.parametrize("value", VALUES, ids=lambda value: str(value)[:9])
def test_settings_of_any_form(value: Any) -> None:
    good = dict.fromkeys(("data", "keys", "label", "identifier", "issuer"), "x")
    for name in good:
        for odd in (value, "a\0b", "\ud800"):
            if isinstance(odd, str) and odd.isprintable() and "\0" not in odd:
                continue
            document = {"format": "expunge-folder/1", **good, name: odd}
            with pytest.raises(FolderProblem):
                Config.from_json(json.dumps(document).encode())
    for content in (b"[" * 60000, b"\xff", b"1e999", b"null", json.dumps(value).encode()):
        with pytest.raises(FolderProblem):
            Config.from_json(content)


def header_of(content: bytes) -> tuple[dict[str, Any], bytes]:
    size = int.from_bytes(content[:8], "little")
    return json.loads(content[8 : 8 + size]), content[8 + size :]


def with_header(header: object, body: bytes) -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + body


ENTRIES: list[Any] = [
    [],
    7,
    {"shape": "x", "data_offsets": [0, 1], "dtype": "U8"},
    {"shape": [-1], "data_offsets": [0, 1], "dtype": "U8"},
    {"shape": [1e3], "data_offsets": [0, 1], "dtype": "U8"},
    {"shape": [1], "data_offsets": ["a", 1], "dtype": "U8"},
    {"shape": [1], "data_offsets": [0], "dtype": "U8"},
    {"shape": [10**20], "data_offsets": [0, 1], "dtype": "U8"},
    {"shape": [1], "data_offsets": [-99, 1], "dtype": "U8"},
    {"shape": [], "data_offsets": [0, 1], "dtype": "U8"},
    {"shape": [2], "data_offsets": [0, 1], "dtype": []},
]


def test_tables_with_odd_headers(model: Path, tmp_path: Path) -> None:
    header, body = header_of((model / MEMBERS).read_bytes())
    odd = [{**header, "tag": entry} for entry in ENTRIES]
    path = tmp_path / "members"
    for made in (*odd, b"[]", b"1", b"null", b'"x"', b"[" * 100000, b"\xff"):
        path.write_bytes(with_header(made, body))
        with pytest.raises(FolderProblem):
            map_members(path, writable=False)
    for content in (b"", b"x", b"\xff" * 8, bytes(8), b"\xff" * 100):
        path.write_bytes(content)
        with pytest.raises(FolderProblem):
            map_members(path, writable=False)


def test_states_with_odd_headers(model: Path) -> None:
    members = map_members(model / MEMBERS, writable=False)
    content = (model / STATE).read_bytes()
    header, body = header_of(content)
    meta = json.loads(header["__metadata__"]["expunge"])

    def load_with(made: dict[str, Any] | bytes) -> None:
        text = made if isinstance(made, bytes) else json.dumps(made).encode()
        changed = {**header, "__metadata__": {"expunge": text.decode("latin-1")}}
        load_lineage(with_header(changed, body), members, b"")

    load_with(meta)
    for name in ("format", "policy", "noiseKey", "parts"):
        for value in VALUES:
            with pytest.raises(FolderProblem):
                load_with({**meta, name: value})
    for name in meta["parts"][0]:
        for value in (None, [], 1, "0x1p9999", "x"):
            with pytest.raises(FolderProblem):
                load_with({**meta, "parts": [{**meta["parts"][0], name: value}]})
    for made in (b"[" * 50000, b"", b"[]", b"1"):
        with pytest.raises(FolderProblem):
            load_with(made)
    for name, array in load(content).items():
        if array.dtype != np.float64:
            continue
        for bad in (array * np.nan, array[None], array.astype(np.int64)):
            odd = save({**load(content), name: bad}, metadata=header["__metadata__"])
            with pytest.raises(FolderProblem):
                load_lineage(odd, members, b"")


@pytest.mark.parametrize("value", VALUES, ids=lambda value: str(value)[:9])
def test_policies_with_odd_encodings(model: Path, value: Any) -> None:
    with sqlite3.connect(model / layout.LEDGER) as db:
        (payload,) = db.execute("SELECT payload FROM log_entry WHERE idx=0").fetchone()
    db.close()
    for path in ((), ("encoding",), ("label",), ("encoding", "columns"), ("label", "classes")):
        statement = json.loads(payload)
        found = {"top": json.loads(statement["predicate"]["featureMap"])}
        place, last = found, "top"
        for name in path:
            place, last = place[last], name
        place[last] = value
        statement["predicate"]["featureMap"] = json.dumps(found["top"])
        odd = json.dumps(statement, sort_keys=True, separators=(",", ":")).encode()
        tamper(model, "UPDATE log_entry SET payload=? WHERE idx=0", values=(odd,))
        found_out = look(model)
        assert found_out is None or found_out.failed


def test_flipped_bits(model: Path) -> None:
    """One wrong bit anywhere: a report or one error, whatever it hits."""
    rng = random.Random(0)
    for name in NAMES:
        content = (model / name).read_bytes()
        for _ in range(4):
            flipped = bytearray(content)
            flipped[rng.randrange(len(content))] ^= 1 << rng.randrange(8)
            (model / name).write_bytes(flipped)
            look(model)
        (model / name).write_bytes(content)
    assert verify(model).exit_status == 0


# --- every file that is handed to people ---------------------------------------------------------


def rewritten(name: str, old: str, new: str) -> Callable[[Path], None]:
    def change(model: Path) -> None:
        text = (model / name).read_text()
        assert old in text
        (model / name).write_text(text.replace(old, new, 1))

    return change


def copied(source: str, target: str) -> Callable[[Path], None]:
    return lambda model: (model / target).write_bytes((model / source).read_bytes())


def gone(name: str) -> Callable[[Path], None]:
    return lambda model: (model / name).unlink()


C = "certificates"
COVER = '<section class="wide checks"><style>section{display:none}</style>'
CHANGED = {
    "policy envelope": copied(f"{C}/0002.dsse.json", f"{C}/0000-policy.dsse.json"),
    "policy envelope gone": gone(f"{C}/0000-policy.dsse.json"),
    "policy proof": copied(f"{C}/0002.proof.json", f"{C}/0000-policy.proof.json"),
    "training proof": rewritten(f"{C}/0001-training.proof.json", '"index":1', '"index":0'),
    "proof gone": gone(f"{C}/0002.proof.json"),
    "proof of another": copied(f"{C}/0003.proof.json", f"{C}/0002.proof.json"),
    "page text": rewritten(f"{C}/0002.html", "Deletion certificate", "Deletion of everybody"),
    "page of another": copied(f"{C}/0003.html", f"{C}/0002.html"),
    "page with a sheet": rewritten(f"{C}/0002.html", '<section class="wide checks">', COVER),
    "page with a tail": rewritten(f"{C}/0002.html", "</html>", "<p>and more</p></html>"),
    "page gone": gone(f"{C}/0003.html"),
    "annex of another": copied("sealed/annex/0003.sealed", "sealed/annex/0002.sealed"),
    "annex gone": gone("sealed/annex/0001-training.sealed"),
    "requests of another": copied("sealed/requests/0003.sealed", "sealed/requests/0002.sealed"),
    "requests gone": gone("sealed/requests/0002.sealed"),
}


@pytest.mark.parametrize("case", CHANGED)
def test_files_that_are_not_the_logs(model: Path, case: str) -> None:
    CHANGED[case](model)
    assert "files" in failed(verify(model))


def test_what_was_covered_is_told(model: Path) -> None:
    told = verify(model).report["files"].reason
    assert "4 statements with proofs, 2 pages" in told
    assert "annexes and requests as they were sealed" in told
    shutil.rmtree(model / "sealed")
    assert "annexes and requests are not here" in verify(model).report["files"].reason


def test_a_report_names_nobody(home: Path) -> None:
    table = people()
    strangers = table.set_column(
        0, "person", [[f"stranger-{name}" for name in table.column("person").to_pylist()]]
    )
    for changed in (strangers, without(table, "p7"), table.slice(3)):
        data = write_csv(changed, home / "other.csv")
        found = verify(home / "model", Given(retained=data))
        assert "commitments" in failed(found)
        told = " ".join(f"{check.name} {check.reason}" for check in found.report.checks)
        assert "stranger" not in told
        assert not any(f"'{name}'" in told for name in table.column("person").to_pylist())
