"""Bad input: one clear line, exit status 2 (or 1 for a check that failed), nothing changed."""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest

from expunge.cli import run
from expunge.folder import store
from expunge.folder.durable import locked
from people_example import (
    copy_home,
    people,
    snapshot,
    training,
    with_cell,
    without,
    write_csv,
)

Case = tuple[str, Callable[[Path], list[str]], str]


def refuse(
    home: Path,
    arguments: list[str],
    message: str,
    capsys: pytest.CaptureFixture[str],
    status: int = 2,
) -> None:
    before = snapshot(home)
    capsys.readouterr()
    assert run(arguments) == status
    said = capsys.readouterr()
    assert snapshot(home) == before
    if status == 2:
        assert said.err.startswith("expunge: ")
        assert said.err.count("\n") == 1
        assert message in said.err
        assert not said.out
    else:
        assert message in said.out
    assert "Traceback" not in said.err + said.out


def cell(home: Path, row: int, column: str, value: object) -> str:
    write_csv(with_cell(people(), row, column, value), home / "bad.csv")
    return "bad.csv"


def text(home: Path, name: str, content: str | bytes) -> Path:
    raw = content if isinstance(content, bytes) else content.encode()
    (home / name).write_bytes(raw)
    return home / name


def swap(words: list[str], option: str, value: str) -> list[str]:
    words = list(words)
    words[words.index(option) + 1] = value
    return words


def train(home: Path, *more: str, data: str = "people.csv", out: str = "new") -> list[str]:
    return training(home, *more, data=data, out=out)


def one_class(home: Path) -> str:
    table = people()
    labels = pa.array(["no"] * len(table))
    write_csv(table.set_column(table.column_names.index("ill"), "ill", labels), home / "bad.csv")
    return "bad.csv"


def unusable_key(home: Path) -> list[str]:
    (home / "keys/issuer.pem").chmod(0o644)
    return train(home)


TRAIN: list[Case] = [
    ("no such file", lambda h: train(h, data="peple.csv"), "Did you mean 'people.csv'"),
    ("no label", lambda h: swap(train(h), "--label", "sick"), "no column 'sick'"),
    ("no id", lambda h: swap(train(h), "--id", "persons"), "Did you mean 'person'"),
    ("same column", lambda h: swap(train(h), "--label", "person"), "both the label and the id"),
    ("option left out", lambda h: train(h)[:-2], "--keys"),
    ("one class", lambda h: train(h, data=one_class(h)), "single class"),
    ("empty label", lambda h: train(h, data=cell(h, 4, "ill", "")), "row 5 is empty"),
    ("no keys", lambda h: swap(train(h), "--keys", str(h / "no")), "no directory of keys"),
    ("key read by others", unusable_key, "chmod 600"),
    ("folder exists", lambda h: train(h, out="model"), "exists already"),
    ("a file in the way", lambda h: train(h, out="people.csv"), "exists already"),
    ("below a file", lambda h: train(h, out="people.csv/x"), "people.csv"),
    ("unknown model", lambda h: train(h, "--model", "forest"), "ridge-classifier, ridge"),
    ("L1 of a logistic model", lambda h: train(h, "--l1", "1"), "goes with the model ridge"),
    (
        "negative counts",
        lambda h: swap(train(h, "--model", "gamma"), "--label", "score"),
        "above 0",
    ),
    ("ovr misspelt", lambda h: train(h, "--multi-class", "all"), "multinomial, ovr"),
    ("epsilon 0", lambda h: train(h, "--epsilon", "0"), "epsilon"),
    ("delta 2", lambda h: train(h, "--delta", "2"), "delta"),
    ("no releases", lambda h: train(h, "--releases", "0"), "releases"),
    ("negative penalty", lambda h: train(h, "--penalty", "-1"), "penalty must be"),
    ("penalty no number", lambda h: train(h, "--penalty", "much"), "not a valid float"),
    ("sigma 0", lambda h: train(h, "--sigma", "0"), "sigma"),
    ("sigma too small", lambda h: train(h, "--sigma", "1e-13"), "raise sigma"),
    ("negative seed", lambda h: train(h, "--seed", "-1"), "--seed"),
    ("ridge on words", lambda h: train(h, "--model", "ridge"), "expected a number"),
    ("ignored nothing", lambda h: train(h, "--ignore", "agee"), "Did you mean 'age'"),
    ("not UTF-8", lambda h: train(h, data=text(h, "x.csv", b"a,b\n\xff,1\n").name), "UTF-8"),
    (
        "schema of other columns",
        lambda h: train(h, "--schema", str(text(h, "s.toml", "[features.age]\ntype='number'\n"))),
        "does not mention",
    ),
    ("no schema", lambda h: train(h, "--schema", str(h / "s.toml")), "does not exist"),
    ("broken schema", lambda h: train(h, "--schema", str(text(h, "s.toml", "["))), "s.toml"),
]


@pytest.mark.parametrize(("name", "make", "message"), TRAIN, ids=[case[0] for case in TRAIN])
def test_train(
    home: Path,
    name: str,
    make: Callable[[Path], list[str]],
    message: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    refuse(home, make(home), message, capsys)


def forget(home: Path, *more: str) -> list[str]:
    return ["forget", str(home / "model"), *more]


def deleted(home: Path) -> list[str]:
    assert run(forget(home, "--id", "p1")) == 0
    return forget(home, "--id", "p2", "--id", "p1")


def other_data(home: Path, table: pa.Table, person: str = "p1") -> list[str]:
    return forget(home, "--id", person, "--data", str(write_csv(table, home / "other.csv")))


def a_class(home: Path) -> list[str]:
    table = people()
    pairs = zip(table.column("person").to_pylist(), table.column("ill").to_pylist(), strict=True)
    sick = sorted({person for person, ill in pairs if ill == "yes"})
    return forget(home, *(word for person in sick for word in ("--id", person)))


def no_keys(home: Path) -> list[str]:
    (home / "keys").rename(home / "elsewhere")
    return forget(home, "--id", "p1")


def other_keys(home: Path) -> list[str]:
    shutil.rmtree(home / "keys")
    assert run(["keys", "new", str(home / "keys"), "--no-passphrase"]) == 0
    return forget(home, "--id", "p1")


def no_data(home: Path) -> list[str]:
    (home / "people.csv").unlink()
    return forget(home, "--id", "p1")


def old_state(home: Path) -> list[str]:
    old = (home / "model/sealed/state.safetensors").read_bytes()
    assert run(forget(home, "--id", "p1")) == 0
    (home / "model/sealed/state.safetensors").write_bytes(old)
    return forget(home, "--id", "p2")


def old_model(home: Path) -> list[str]:
    old = (home / "model/model.safetensors").read_bytes()
    assert run(forget(home, "--id", "p1")) == 0
    (home / "model/model.safetensors").write_bytes(old)
    return forget(home, "--id", "p2")


def broken_members(home: Path) -> list[str]:
    path = home / "model/sealed/members.safetensors"
    path.write_bytes(path.read_bytes()[:200])
    return forget(home, "--id", "p1")


def broken_state(home: Path) -> list[str]:
    text(home, "model/sealed/state.safetensors", b"nothing")
    return forget(home, "--id", "p1")


def stranger(home: Path) -> pa.Table:
    row = people().slice(0, 1)
    return pa.concat_tables([people(), with_cell(row, 0, "person", "q1")])


def twelve(home: Path, table: pa.Table) -> list[str]:
    """So many people that the retained rows are needed."""
    words = [word for i in range(12) for word in ("--id", f"p{i}")]
    return forget(home, *words, "--data", str(write_csv(table, home / "other.csv")))


FORGET: list[Case] = [
    ("unknown person", lambda h: forget(h, "--id", "nobody"), "never trained on 'nobody'"),
    ("deleted before", deleted, "'p1' had been deleted before"),
    ("asked twice", lambda h: forget(h, "--id", "p1", "--id", "p1"), "more than once"),
    ("nobody", lambda h: forget(h), "whom to forget"),
    ("both ways", lambda h: forget(h, "--id", "p1", "--ids", "x"), "either --ids FILE, or"),
    ("no ids file", lambda h: forget(h, "--ids", str(h / "ids.txt")), "does not exist"),
    ("empty ids", lambda h: forget(h, "--ids", str(text(h, "ids.txt", "\n"))), "holds no ids"),
    ("empty id", lambda h: forget(h, "--id", ""), "an id is a text"),
    ("no folder", lambda h: ["forget", str(h / "no"), "--id", "p1"], "does not exist"),
    ("no model folder", lambda h: ["forget", str(h), "--id", "p1"], "not a model folder"),
    ("no data", no_data, "no longer at"),
    ("wrong data path", lambda h: forget(h, "--id", "p1", "--data", "no.csv"), "does not exist"),
    ("person not in data", lambda h: other_data(h, without(people(), "p1")), "1 id owns no row"),
    ("a row missing", lambda h: other_data(h, people().slice(3)), "hand over all rows"),
    ("a row altered", lambda h: other_data(h, with_cell(people(), 2, "age", 99)), "these values"),
    ("last of a class", a_class, "class without rows"),
    ("stranger in data", lambda h: twelve(h, stranger(h)), "not trained: 'q1'"),
    ("retained missing", lambda h: twelve(h, without(people(), "p50")), "2 are missing"),
    ("retained altered", lambda h: twelve(h, with_cell(people(), 99, "age", 9)), "training"),
    ("future", lambda h: forget(h, "--id", "p1", "--received", "2100-01-01"), "in the future"),
    ("no date", lambda h: forget(h, "--id", "p1", "--received", "soon"), "such as 2026-11-20"),
    ("no regime", lambda h: forget(h, "--id", "p1", "--regime", "mine"), "'mine' is not one of"),
    ("odd basis", lambda h: forget(h, "--id", "p1", "--basis", "<b>"), "basis"),
    ("seed", lambda h: forget(h, "--id", "p1", "--seed", "1"), "this folder is for production"),
    ("no keys", no_keys, "no directory of keys"),
    ("other keys", other_keys, "not one that the folder's trust.json names"),
    ("old sealed state", old_state, "the sealed state is not that of release 2"),
    ("old model", old_model, "model.safetensors is not that of release 2"),
    ("broken members", broken_members, "restore"),
    ("broken state", broken_state, "restore"),
]


@pytest.mark.parametrize(("name", "make", "message"), FORGET, ids=[case[0] for case in FORGET])
def test_forget(
    home: Path,
    name: str,
    make: Callable[[Path], list[str]],
    message: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    refuse(home, make(home), message, capsys)


def test_forget_beyond_the_budget(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(training(home, "--releases", "2", out="short")) == 0
    assert run(["forget", str(home / "short"), "--id", "p1"]) == 0
    for words in (["forget", str(home / "short"), "--id", "p2"], ["retrain", str(home / "short")]):
        refuse(home, words, "release 3 exceeds the 2", capsys)


def test_retrain_with_other_data(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = write_csv(without(people(), "p9"), home / "other.csv")
    words = ["retrain", str(home / "model"), "--data", str(data)]
    refuse(home, words, "2 are missing", capsys)


def passphrase_wanted(home: Path) -> list[str]:
    assert run(["keys", "new", str(home / "locked"), "--passphrase-file", str(home / "p")]) == 0
    return swap(train(home), "--keys", str(home / "locked"))


def test_no_passphrase(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    refuse(home, passphrase_wanted(home), "EXPUNGE_KEY_PASSPHRASE_FILE", capsys)


def test_wrong_passphrase(
    home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words = passphrase_wanted(home)
    monkeypatch.setenv("EXPUNGE_KEY_PASSPHRASE", "wrong")
    refuse(home, words, "wrong passphrase", capsys)


def verify(home: Path, target: str, *more: str) -> list[str]:
    return ["verify", str(home / target), *more]


def lone(home: Path) -> str:
    assert run(forget(home, "--id", "p1")) == 0
    shutil.copy(home / "model/certificates/0002.dsse.json", home / "0002.dsse.json")
    return "0002.dsse.json"


def older(home: Path) -> list[str]:
    assert run(forget(home, "--id", "p1")) == 0
    assert run(forget(home, "--id", "p2")) == 0
    data = str(home / "people.csv")
    return verify(home, "model/certificates/0002.dsse.json", "--retained", data)


def no_sealing_key(home: Path) -> list[str]:
    assert run(forget(home, "--id", "p1")) == 0
    (home / "keys/sealing.key").unlink()
    return verify(home, "model", "--retained", str(home / "people.csv"))


VERIFY: list[Case] = [
    ("no target", lambda h: verify(h, "no.json"), "cannot read"),
    ("no folder", lambda h: verify(h, "keys"), "not a model folder"),
    ("no model", lambda h: verify(h, "model", "--model", str(h / "no")), "cannot read"),
    ("no data", lambda h: verify(h, "model", "--retained", str(h / "no.csv")), "does not exist"),
    ("no trust", lambda h: verify(h, "model", "--trust", str(h / "no")), "cannot read"),
    (
        "odd trust",
        lambda h: verify(h, "model", "--trust", str(text(h, "t", "{}"))),
        "no trust policy",
    ),
    ("trust unsaid", lambda h: verify(h, lone(h)), "whose signature counts"),
    (
        "sealed state unsaid",
        lambda h: verify(h, lone(h), "--retained", "x.csv", "--trust", str(h / "keys/trust.json")),
        "give the folder",
    ),
    ("two folders", lambda h: verify(h, "model", "--folder", str(h / "model")), "by itself"),
    (
        "odd checkpoint",
        lambda h: verify(h, "model", "--checkpoint", str(text(h, "c", b"\xff"))),
        "neither a checkpoint",
    ),
    ("older certificate", older, "is not the newest"),
    ("no sealing key", no_sealing_key, "sealing.key"),
    ("odd option", lambda h: verify(h, "model", "--fast"), "--fast"),
]


@pytest.mark.parametrize(("name", "make", "message"), VERIFY, ids=[case[0] for case in VERIFY])
def test_verify(
    home: Path,
    name: str,
    make: Callable[[Path], list[str]],
    message: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    refuse(home, make(home), message, capsys)


@pytest.mark.parametrize("content", [b"", b"{}", b"[1]", b"\xff" * 99, b'{"payload": NaN}'])
def test_verify_what_is_no_certificate(
    home: Path, content: bytes, capsys: pytest.CaptureFixture[str]
) -> None:
    text(home, "c.json", content)
    words = verify(home, "c.json", "--trust", str(home / "keys/trust.json"))
    refuse(home, words, "FAILED: json", capsys, status=1)


def status(home: Path) -> list[str]:
    return ["status", str(home / "model")]


def replaced(name: str, content: bytes) -> Callable[[Path], list[str]]:
    def make(home: Path) -> list[str]:
        text(home, f"model/{name}", content)
        return status(home)

    return make


def removed(name: str) -> Callable[[Path], list[str]]:
    def make(home: Path) -> list[str]:
        path = home / "model" / name
        shutil.rmtree(path) if path.is_dir() else path.unlink()
        return status(home)

    return make


def foreign_entry(home: Path) -> list[str]:
    path = home / "model/ledger.sqlite3"
    path.unlink()
    with sqlite3.connect(path) as database:
        database.execute("CREATE TABLE other(x)")
    database.close()
    return status(home)


STATUS: list[Case] = [
    ("nothing said", lambda h: ["status"], "Missing argument"),
    ("no folder", lambda h: ["status", str(h / "no")], "does not exist"),
    ("a file", lambda h: ["status", str(h / "people.csv")], "not a model folder"),
    ("another directory", lambda h: ["status", str(h / "keys")], "not a model folder"),
    ("two folders", lambda h: [*status(h), "more"], "unexpected extra argument"),
    ("config no JSON", replaced("config.json", b"?"), "config.json is not JSON"),
    ("config of others", replaced("config.json", b"{}"), "not of format"),
    ("config short", replaced("config.json", b'{"format":"expunge-folder/1"}'), "must have"),
    ("no log", removed("ledger.sqlite3"), "no log"),
    ("log is noise", replaced("ledger.sqlite3", b"x" * 9999), "cannot be used"),
    ("log of others", foreign_entry, "version"),
    ("no sealed part", removed("sealed"), "is missing"),
]


@pytest.mark.parametrize(("name", "make", "message"), STATUS, ids=[case[0] for case in STATUS])
def test_status(
    home: Path,
    name: str,
    make: Callable[[Path], list[str]],
    message: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    refuse(home, make(home), message, capsys)


def test_a_locked_folder(
    home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(store, "locked", lambda path: locked(path, wait=0.1))
    with locked(home / "model"):
        for words in (status(home), forget(home, "--id", "p1"), verify(home, "model")):
            refuse(home, words, "another command is working", capsys)


def damaged_key(home: Path) -> list[str]:
    text(home, "keys/issuer.pub.pem", "-----BEGIN PUBLIC KEY-----\n")
    return ["keys", "show", str(home / "keys")]


KEYS: list[Case] = [
    ("no command", lambda h: ["keys", "make", str(h / "k")], "No such command"),
    ("no directory said", lambda h: ["keys", "new"], "Missing argument"),
    ("keys exist", lambda h: ["keys", "new", str(h / "keys")], "never overwritten"),
    ("a file", lambda h: ["keys", "new", str(h / "people.csv")], "not empty"),
    ("below a file", lambda h: ["keys", "new", str(h / "people.csv/k")], "cannot write"),
    (
        "both options",
        lambda h: ["keys", "new", str(h / "k"), "--no-passphrase", "--passphrase-file", "x"],
        "exclude each other",
    ),
    (
        "passphrase file exists",
        lambda h: ["keys", "new", str(h / "k"), "--passphrase-file", str(h / "people.csv")],
        "people.csv",
    ),
    (
        "passphrase file nowhere",
        lambda h: ["keys", "new", str(h / "k"), "--passphrase-file", str(h / "no/p")],
        "no/p",
    ),
    ("show nothing", lambda h: ["keys", "show", str(h / "k")], "no directory of keys"),
    ("show a file", lambda h: ["keys", "show", str(h / "people.csv")], "no directory of keys"),
    ("show a folder", lambda h: ["keys", "show", str(h / "model")], "cannot read"),
    ("damaged key", damaged_key, "public key in PEM"),
]


@pytest.mark.parametrize(("name", "make", "message"), KEYS, ids=[case[0] for case in KEYS])
def test_keys(
    home: Path,
    name: str,
    make: Callable[[Path], list[str]],
    message: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    refuse(home, make(home), message, capsys)


def schema(home: Path, data: str = "people.csv", *more: str) -> list[str]:
    return ["schema", str(home / data), "--label", "ill", "--id", "person", *more]


SCHEMA: list[Case] = [
    ("nothing said", lambda h: ["schema"], "Missing argument"),
    ("no label said", lambda h: ["schema", "x.csv", "--id", "person"], "--label"),
    ("no file", lambda h: schema(h, "no.csv"), "does not exist"),
    ("a directory", lambda h: schema(h, "keys"), "is a directory"),
    ("no label", lambda h: swap(schema(h), "--label", "sick"), "no column 'sick'"),
    ("no id", lambda h: swap(schema(h), "--id", "x"), "no column 'x'"),
    ("same column", lambda h: swap(schema(h), "--id", "ill"), "both the label and the id"),
    ("empty", lambda h: schema(h, text(h, "e.csv", b"").name), "is empty"),
    ("no rows", lambda h: schema(h, text(h, "e.csv", "person,ill\n").name), "no rows"),
    ("ragged", lambda h: schema(h, text(h, "e.csv", "person,ill\n1,2,3\n").name), "cells"),
    ("unknown format", lambda h: schema(h, text(h, "e.xls", "1").name), "ends in none of"),
    ("no Parquet", lambda h: schema(h, text(h, "e.parquet", "1").name), "Parquet"),
    ("output exists", lambda h: schema(h, "people.csv", "-o", str(h / "people.csv")), "exists"),
    ("output nowhere", lambda h: schema(h, "people.csv", "-o", str(h / "no/s.toml")), "no/s.toml"),
]


@pytest.mark.parametrize(("name", "make", "message"), SCHEMA, ids=[case[0] for case in SCHEMA])
def test_schema(
    home: Path,
    name: str,
    make: Callable[[Path], list[str]],
    message: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    refuse(home, make(home), message, capsys)


def test_a_copied_home_works(home: Path, tmp_path: Path) -> None:
    again = copy_home(home, tmp_path / "again")
    assert run(forget(again, "--id", "p1")) == 0
