"""What is printed: nothing of others acts on the terminal, and nothing gets lost in silence."""

from __future__ import annotations

import base64
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from expunge.certificate.checks import Check, Verdict
from expunge.cli import run, show
from people_example import training

HOSTILE = "\x1b[2J\x9b1A\rover\nexpunge: all is well\u202e\u2028x:warning:[red]"


def expunge(words: list[str], redirection: str = "") -> subprocess.CompletedProcess[str]:
    """Run a command in a shell, with its output redirected."""
    line = f'set -o pipefail; "$@" {redirection}'
    program = [sys.executable, "-m", "expunge", *words]
    return subprocess.run(["bash", "-c", line, "bash", *program], capture_output=True, text=True)


def forget(home: Path, person: str, *more: str) -> list[str]:
    return ["forget", str(home / "model"), "--id", person, *more]


def harmless(said: str) -> bool:
    lines = said.split("\n")
    return all(line.isprintable() for line in lines) and "expunge: all is well" not in lines


def test_every_way_to_print_is_harmless(capsys: pytest.CaptureFixture[str]) -> None:
    screen = show.console()
    show.headline(screen, HOSTILE)
    show.facts(screen, [(HOSTILE, HOSTILE)])
    show.note(screen, HOSTILE)
    show.line(screen, HOSTILE)
    show.checks(screen, [Check(HOSTILE, verdict, HOSTILE) for verdict in Verdict])
    said = capsys.readouterr().out
    assert harmless(said)
    assert said.count(":warning:[red]") == 11
    assert len(said.split()) > 11


def test_a_foreign_payload_type_is_quoted(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(forget(home, "p1")) == 0
    path = home / "model/certificates/0002.dsse.json"
    envelope = json.loads(path.read_bytes())
    payload = base64.b64decode(envelope["payload"])
    for change in (
        {"payloadType": HOSTILE + "x" * 9999},
        {"payload": base64.b64encode(payload.replace(b'"unnamed', b'"\\u001b')).decode()},
        {"payload": base64.b64encode(payload[:-1] + b',"\\u001b[2J\\n": 1}').decode()},
    ):
        path.write_text(json.dumps(envelope | change))
        capsys.readouterr()
        assert run(["verify", str(path)]) == 1
        said = capsys.readouterr().out
        assert harmless(said)
        assert len(said) < 9999


def test_a_foreign_config_is_harmless(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = home / "model/config.json"
    config = json.loads(path.read_bytes())
    path.write_text(json.dumps(config | {"issuer": HOSTILE, "data": HOSTILE}))
    for words, status in ((["status", str(home / "model")], 0), (forget(home, "p1"), 2)):
        assert run(words) == status
        assert harmless("".join(capsys.readouterr()))


def test_the_template_of_a_schema_is_harmless(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (home / "odd.csv").write_text(f'person,ill,"{HOSTILE}"\n1,no,1\n2,yes,2\n')
    words = [str(home / "odd.csv"), "--label", "ill", "--id", "person"]
    assert run(["schema", *words]) == 0
    schema = home / "s.toml"
    schema.write_text(capsys.readouterr().out)
    assert harmless(schema.read_text())
    made = ["--out", str(home / "odd"), "--keys", str(home / "keys"), "--schema", str(schema)]
    assert run(["train", *words, *made]) == 0


def test_the_issuer_is_the_one_in_the_log(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(training(home, "--issuer", "Example Ltd", out="named")) == 0
    path = home / "named/config.json"
    config = json.loads(path.read_bytes())
    path.write_text(json.dumps(config | {"issuer": "Somebody Else"}))
    for command in (
        ["forget", str(home / "named"), "--id", "p1"],
        ["retrain", str(home / "named")],
    ):
        assert run(command) == 2
        assert "restore config.json" in capsys.readouterr().err
    path.write_text(json.dumps(config))
    assert run(["forget", str(home / "named"), "--id", "p1"]) == 0
    assert run(["verify", str(home / "named/certificates/0002.dsse.json")]) == 0
    assert "Example Ltd" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("redirection", "status"),
    [(">&-", 0), ("2>&-", 0), (">/dev/full", 2), ("| true", 2), ("<&-", 0)],
)
def test_output_that_goes_nowhere(home: Path, redirection: str, status: int) -> None:
    for words in (["verify", str(home / "model")], ["--help"]):
        done = expunge(words, redirection)
        assert done.returncode == status, done
        assert done.stderr.count("\n") == (redirection == ">/dev/full"), done
        assert "Traceback" not in done.stderr


@pytest.mark.parametrize("redirection", [">/dev/full", "| true"])
def test_a_deletion_that_cannot_be_printed_has_happened(home: Path, redirection: str) -> None:
    for words, told in (
        (forget(home, "p1"), "the deletion HAS happened, its certificate is"),
        (["retrain", str(home / "model")], "the retrain HAS happened"),
        (training(home, out="new"), "HAS been made"),
        (["keys", "new", str(home / "k")], "nobody knows their passphrase"),
    ):
        done = expunge(words, redirection)
        assert done.returncode == 4
        assert told in done.stderr
        assert done.stderr.count("\n") == 1
    assert run(["status", str(home / "new")]) == 0
    assert run(["verify", str(home / "model")]) == 0


def test_an_error_after_the_commit_says_that_it_has_happened(
    home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from expunge.folder import pending, store

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    for name, status, told in (("stage", 2, "cannot write"), ("_apply", 4, "HAS happened")):
        with monkeypatch.context() as patch:
            patch.setattr(store if name == "stage" else pending, name, full)
            assert run(forget(home, "p1")) == status
        said = capsys.readouterr().err
        assert told in said
        assert str(home / "model") in said
        assert "No space left" in said
    assert run(["verify", str(home / "model"), "--retained", str(home / "people.csv")]) == 0


def test_what_a_deletion_tells(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (home / "keys").rename(home / "safe")
    assert run(forget(home, "p1")) == 2
    assert run(forget(home, "p1", "--keys", str(home / "safe"))) == 0
    said = capsys.readouterr().out
    assert re.search(r"Time +[0-9.]+ m?s for the deletion itself, [0-9.]+ m?s with reading", said)
    assert f"Their rows are still in {home / 'people.csv'}: delete them there." in said
    assert f"Send {home / 'model/certificates/0002.proof.json'} to somebody outside" in said
    assert "more than 54.8 % of the time" in said
    assert run(["status", str(home / "model")]) == 0
    assert "more than 54.8 % of the time" in capsys.readouterr().out
    assert run(["retrain", str(home / "model"), "--keys", str(home / "safe")]) == 0
    assert "0003-retrain.proof.json" in capsys.readouterr().out


def test_weak_guarantees_are_named_and_empty_ones_refused(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(training(home, "--epsilon", "8", out="weak")) == 0
    assert run(["status", str(home / "weak")]) == 0
    assert run(["forget", str(home / "weak"), "--id", "p1"]) == 0
    assert capsys.readouterr().out.count("A weak guarantee") == 3
    for promise in (["--epsilon", "90"], ["--delta", "0.999999"]):
        assert run(training(home, *promise, out="none")) == 2
        assert "promise nothing" in capsys.readouterr().err
    assert not (home / "none").exists()


def test_one_is_not_many(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (home / "few.csv").write_text("person,x,ill\n1,1,1.5\n")
    words = ["--label", "ill", "--id", "person", "--out", str(home / "few"), "--model", "ridge"]
    keys = ["--keys", str(home / "keys"), "--releases", "1"]
    assert run(["train", str(home / "few.csv"), *words, *keys]) == 0
    said = capsys.readouterr().out
    assert "Trained on 1 record of 1 person." in said
    assert "1 encoded feature," in said
    assert not re.search(r"\b1 (people|records|rows|entries|releases|features)\b", said)


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("certificates/0001-training.dsse.json", "the statement of a training"),
        ("certificates/0000-policy.dsse.json", "the policy of a model"),
        ("certificates/0002.proof.json", "a proof that the log has a statement"),
        ("certificates/0002.html", "a page for people"),
        ("model.safetensors", "a model file"),
    ],
)
def test_what_is_not_a_certificate_is_told_what_it_is(
    home: Path, name: str, told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(forget(home, "p1")) == 0
    assert run(["verify", str(home / "model" / name)]) == 2
    assert f"is not a certificate: it is {told}" in capsys.readouterr().err


def test_an_older_certificate_is_not_compared_in_silence_with_a_newer_model(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(forget(home, "p1")) == 0
    assert run(forget(home, "p2")) == 0
    folder = home / "model"
    old, new = (str(folder / f"certificates/000{n}.dsse.json") for n in (2, 3))
    model = ["--model", str(folder / "model.safetensors")]
    assert run(["verify", new, *model]) == 0
    assert "now publishes" not in capsys.readouterr().out
    assert run(["verify", old, *model]) == 1
    assert "now publishes release 3" in capsys.readouterr().out.replace("\n", " ")
