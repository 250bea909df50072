"""Input that nobody means to give: other bytes, odd dates, deep files, huge cells, huge batches."""

from __future__ import annotations

import io
import json
import shutil
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from expunge import cli
from expunge.certificate import log
from expunge.certificate.blocks import batch_commitment, request_commitment
from expunge.certificate.envelope import Envelope
from expunge.certificate.keys import load_public, load_sealing_key, unseal
from expunge.certificate.recheck import Outside, recheck
from expunge.certificate.statement import Certificate
from expunge.cli import run
from expunge.errors import InvalidInput
from expunge.folder.requests import Asked, parse_received
from people_example import people, training, write_csv

BYTES = "p\udcff"


def refused(words: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    capsys.readouterr()
    assert run(words) == 2
    said = capsys.readouterr()
    assert message in said.err
    assert said.err.count("\n") == 1
    assert not said.out


def forget(home: Path, *more: str) -> list[str]:
    return ["forget", str(home / "model"), *more]


@pytest.mark.parametrize("option", ["--id", "--basis", "--received", "--data", "--regime"])
def test_arguments_that_are_not_unicode(
    home: Path, option: str, capsys: pytest.CaptureFixture[str]
) -> None:
    more = [] if option == "--id" else ["--id", "p1"]
    refused(forget(home, *more, option, BYTES), "", capsys)
    assert "bug" not in capsys.readouterr().err


def test_files_whose_names_are_not_unicode(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    odd = str(home / f"{BYTES}.csv")
    shutil.copy(home / "people.csv", odd)
    refused(training(home, data=f"{BYTES}.csv", out="new"), "not UTF-8", capsys)
    refused(forget(home, "--id", "p1", "--data", odd), "not UTF-8", capsys)
    (home / f"{BYTES}.txt").write_text("p2\n")
    assert run(forget(home, "--ids", str(home / f"{BYTES}.txt"))) == 0
    assert run(training(home, out=BYTES)) == 0
    assert run(["forget", str(home / BYTES), "--id", "p1"]) == 0


@pytest.mark.parametrize("option", ["--issuer", "--label", "--ignore", "--model", "--schema"])
def test_a_training_with_arguments_that_are_not_unicode(
    home: Path, option: str, capsys: pytest.CaptureFixture[str]
) -> None:
    refused(training(home, option, BYTES, out="new"), "", capsys)
    assert not (home / "new").exists()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"M\xfcller\n", "standard input is not UTF-8"),
        ("p1\n".encode("utf-16"), "standard input is not UTF-8"),
        (b"", "holds no ids"),
        (b"\xef\xbb\xbf\r\n\r\n", "holds no ids"),
        (b"p1\np1\n", "'p1' more than once"),
    ],
)
def test_standard_input_that_holds_no_ids(
    home: Path,
    content: bytes,
    message: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(content)))
    refused(forget(home, "--ids", "-"), message, capsys)
    monkeypatch.setattr(sys, "stdin", None)
    refused(forget(home, "--ids", "-"), "standard input is closed", capsys)


def test_standard_input_as_it_is_written_on_windows(home: Path) -> None:
    words = [sys.executable, "-m", "expunge", *forget(home, "--ids", "-")]
    done = subprocess.run(words, input=b"\xef\xbb\xbfp1\r\np2\r\n", capture_output=True)
    assert b"Deleted 2 people" in done.stdout


@pytest.mark.parametrize("text", ["0001-01-01", "9999-12-31", "1969-12-30", "0001-01-01T00:00Z"])
def test_dates_that_no_request_has(
    home: Path, text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    refused(forget(home, "--id", "p1", "--regime", "gdpr", "--received", text), "", capsys)
    with pytest.raises(InvalidInput):
        Asked(received=parse_received(text)).requests(["a"], datetime.now(UTC))


@pytest.mark.parametrize(
    ("name", "start"), [("s.json", '{"a":'), ("s.json", "["), ("s.toml", "a=[")]
)
def test_files_nested_too_deeply(
    home: Path, name: str, start: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (home / name).write_text(start * 100_000)
    words = training(home, "--schema", str(home / name), out="new")
    refused(words, name, capsys)


def test_a_cell_of_megabytes(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    table = people().to_pandas()
    table["note"] = ["x" * 3_000_000 if i == 70 else "y" for i in range(len(table))]
    for name in ("big.csv", "big.csv.gz"):
        table.to_csv(home / name, index=False)
        assert run(training(home, "--ignore", "note", data=name, out=f"from-{name}")) == 0
    table["age"] = ["much" * 999, *table["age"][1:]]
    table.to_csv(home / "bad.csv", index=False)
    words = training(home, "--model", "ridge", data="bad.csv", out="new")
    words[words.index("--label") + 1] = "age"
    refused(words, "expected a number", capsys)
    assert len(run_error(words, capsys)) < 500


def test_a_table_of_requests_may_have_several_rows_of_a_person(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = people().slice(0, 5)
    assert run(forget(home, "--ids", str(write_csv(asked, home / "asked.csv")))) == 0
    assert "Deleted 3 people" in capsys.readouterr().out
    (home / "asked.txt").write_text("p9\np9\n")
    refused(forget(home, "--ids", str(home / "asked.txt")), "'p9' more than once", capsys)


def numbered(home: Path, name: str) -> None:
    frame = people().to_pandas()
    mixed = frame.sample(frac=1, random_state=1)
    if name == "named.parquet":
        frame.rename_axis("row").to_parquet(home / name, index=True)
    elif name == "plain.parquet":
        mixed.to_parquet(home / name, index=True)
    elif name == "once.csv":
        frame.to_csv(home / name)
    else:
        frame.to_csv(home / "once")
        pd.read_csv(home / "once").to_csv(home / name, index=False)


@pytest.mark.parametrize(
    ("name", "column"),
    [
        ("plain.parquet", "__index_level_0__"),
        ("named.parquet", "row"),
        ("twice.csv", "Unnamed: 0"),
        ("once.csv", None),
    ],
)
def test_the_row_numbers_of_pandas_are_no_feature(
    home: Path, name: str, column: str | None, capsys: pytest.CaptureFixture[str]
) -> None:
    numbered(home, name)
    refused(training(home, data=name, out="new"), "index=False", capsys)
    if column is not None:
        assert f"--ignore {column!r}" in run_error(training(home, data=name, out="new"), capsys)
        assert run(training(home, "--ignore", column, data=name, out="new")) == 0
        schema = home / "s.json"
        number = {"type": "number"}
        site = {"type": "category", "categories": ["east", "west"]}
        features = {"age": number, "score": number, "site": site}
        schema.write_text(json.dumps({"features": features, "ignore": [column]}))
        assert run(training(home, "--schema", str(schema), data=name, out="declared")) == 0


def run_error(words: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    run(words)
    return capsys.readouterr().err


def test_an_index_may_be_the_id(home: Path) -> None:
    people().to_pandas().set_index("person").to_parquet(home / "by.parquet")
    assert run(training(home, data="by.parquet", out="by")) == 0
    assert run(["forget", str(home / "by"), "--id", "p1"]) == 0


def test_messages_name_what_was_typed(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    every = [word for name in ("age", "score", "site") for word in ("--ignore", name)]
    for words, message in (
        (training(home, "--penalty", "nan", out="new"), "penalty"),
        (training(home, *every, out="new"), "not ignored"),
        (training(home, "--issuer", "", out="new"), "the issuer: expected"),
        (forget(home, "--id", "p1", "--basis", "a b"), "(--basis)"),
    ):
        refused(words, message, capsys)


@pytest.mark.parametrize(
    "error", [KeyError("x"), MemoryError(), RecursionError(), TypeError("y"), OverflowError("z")]
)
def test_what_nobody_foresaw_is_one_line(
    home: Path,
    error: Exception,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr("expunge.folder.standing.status", fail)
    refused(["status", str(home / "model")], "please report it", capsys)
    monkeypatch.setenv(cli.DEBUG, "1")
    assert run(["status", str(home / "model")]) == 2
    assert "Traceback" in capsys.readouterr().err


# --- batches ------------------------------------------------------------------------------------

MANY = 5000


def test_five_thousand_people_in_one_batch(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rng = np.random.default_rng(0)
    x = rng.normal(size=MANY + 1000)
    ill = np.where(x + rng.normal(size=len(x)) > 0, "yes", "no")
    ids = [f"person-{i:05d}" for i in range(len(x))]
    pd.DataFrame({"person": ids, "x": x, "ill": ill}).to_csv(home / "many.csv", index=False)
    (home / "ids.txt").write_text("\n".join(ids[:MANY]))
    assert run(training(home, data="many.csv", out="many")) == 0
    words = ["--ids", str(home / "ids.txt"), "--regime", "gdpr"]
    assert run(["forget", str(home / "many"), *words]) == 0
    assert "Deleted 5,000 people, 5,000 records" in capsys.readouterr().out
    assert run(["verify", str(home / "many"), "--retained", str(home / "many.csv")]) == 0
    path = home / "many/certificates/0002.dsse.json"
    assert run(["verify", str(path)]) == 0
    assert "5,000 requests" in capsys.readouterr().out
    assert "5,000 requests" in path.with_name("0002.html").read_text()
    envelope = path.read_bytes()
    assert len(envelope) < 20_000
    (batch,) = Certificate.from_payload(Envelope.from_json(envelope).payload).requests
    assert batch.count == MANY
    everybody_is_shown_to_be_in(home, envelope)


def everybody_is_shown_to_be_in(home: Path, envelope: bytes) -> None:
    """With the sealed salts; a stranger is not."""
    key = load_sealing_key(home / "keys/sealing.key")
    kept = json.loads(unseal(key, (home / "many/sealed/requests/0002.sealed").read_bytes()))
    mine = {it["requestId"]: it for it in kept}["person-01234"]
    commitment = request_commitment(bytes.fromhex(mine["salt"]), "person-01234")
    leaves = sorted(bytes.fromhex(it["commitment"]) for it in kept)
    place = leaves.index(bytes.fromhex(commitment))
    proof = log.inclusion_proof(place, leaves)
    trusted = [load_public(home / "keys/issuer.pub.pem")]
    now = datetime.now(UTC) + timedelta(minutes=1)
    for request, membership, verdict in (
        (commitment, (place, proof), "PASS"),
        (commitment, (place + 1, proof), "FAIL"),
        ("0" * 64, (place, proof), "FAIL"),
        (commitment, None, "NOT CHECKED"),
    ):
        outside = Outside(trusted=trusted, now=now, request=request, membership=membership)
        assert recheck(envelope, outside)["replay"].verdict == verdict


@pytest.mark.parametrize(("people", "entries"), [(1, 1), (500, 500), (501, 1), (10_000, 1)])
def test_small_batches_list_every_request(people: int, entries: int) -> None:
    ids = [str(i) for i in range(people)]
    made, sealed = Asked().requests(ids, datetime.now(UTC))
    kept = json.loads(sealed)
    assert len(made) == entries
    assert sum(it.count for it in made) == people == len(kept)
    commitments = [it["commitment"] for it in kept]
    whole = commitments if entries == people else [batch_commitment(commitments)]
    assert [it.commitment for it in made] == whole
    assert batch_commitment(commitments) == batch_commitment(reversed(commitments))
