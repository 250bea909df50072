"""A model folder's life through the command line, from keys to retrain."""

from __future__ import annotations

import io
import json
import re
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from expunge.certificate.blocks import request_commitment
from expunge.certificate.envelope import Envelope
from expunge.certificate.keys import load_sealing_key, unseal
from expunge.certificate.statement import Certificate
from expunge.cli import run
from expunge.folder.checking import Given
from expunge.folder.inspection import verify
from expunge.modelfile import decode
from people_example import make_home, people, training, without, write_csv, write_parquet


def certificate(folder: Path, number: int) -> Certificate:
    path = folder / f"certificates/{number:04d}.dsse.json"
    return Certificate.from_payload(Envelope.from_json(path.read_bytes()).payload)


@pytest.mark.parametrize("data", ["people.csv", "people.parquet"])
def test_a_whole_life(home: Path, data: str, capsys: pytest.CaptureFixture[str]) -> None:
    out = home / "life"
    assert run(training(home, data=data, out="life")) == 0
    assert "conditional" in (told := capsys.readouterr().out)
    assert "120 records of 60 people" in told
    assert "learned from the data" in told
    assert run(["forget", str(out), "--id", "p3", "--regime", "gdpr", "--basis", "17(1)(b)"]) == 0
    told = capsys.readouterr().out
    assert "Deleted 1 person, 2 records; 118 records retained." in told
    assert "0002.dsse.json" in told
    assert "0002.html" in told
    (home / "ids.txt").write_text("p5\np9\n")
    assert run(["forget", str(out), "--ids", str(home / "ids.txt")]) == 0
    assert run(["status", str(out)]) == 0
    told = capsys.readouterr().out
    assert re.search(r"Records +114 retained, 6 deleted", told)
    assert re.search(r"Releases +3 used, 997 left", told)
    retained = str(write_csv(without(people(), "p3", "p5", "p9"), home / "retained.csv"))
    for table in (str(home / data), retained):
        assert run(["verify", str(out), "--retained", table]) == 0
    newest = str(out / "certificates/0003.dsse.json")
    model = str(out / "model.safetensors")
    assert run(["verify", newest, "--model", model, "--retained", retained]) == 0
    assert "DELETION CERTIFICATE" in capsys.readouterr().out
    assert run(["retrain", str(out)]) == 0
    capsys.readouterr()
    assert run(["verify", str(out), "--retained", retained]) == 0
    assert "retained data are consistent" in capsys.readouterr().out
    assert run(["forget", str(out), "--id", "p7", "--data", retained]) == 0
    assert run(["verify", str(out), "--retained", retained]) == 0
    assert certificate(out, 5).budget.release == 5
    assert certificate(out, 5).commitments.deleted.count == 8


def test_csv_and_parquet_give_the_same_folder(home: Path) -> None:
    models = []
    for data in ("people.csv", "people.parquet"):
        out = data.replace(".", "-")
        assert run(training(home, "--seed", "1", data=data, out=out)) == 0
        assert run(["forget", str(home / out), "--id", "p1", "--seed", "2"]) == 0
        other = "people.parquet" if data.endswith("csv") else "people.csv"
        words = ["forget", str(home / out), "--id", "p2", "--seed", "3"]
        assert run([*words, "--data", str(home / other)]) == 0
        models.append((home / out / "model.safetensors").read_bytes())
        assert run(["verify", str(home / out), "--retained", str(home / other)]) == 3
    assert models[0] == models[1]


@pytest.mark.parametrize(
    ("model", "loss", "label"),
    [
        ("ridge", "squared", "score"),
        ("ridge --l1 5", "squared", "score"),
        ("poisson", "poisson", "visits"),
        ("gamma", "gamma", "visits"),
        ("linear-svc", "squared-hinge", "ill"),
        ("linear-svc", "squared-hinge", "site"),
        ("ridge-classifier", "squared", "ill"),
        ("logistic", "softmax", "site"),
        ("logistic", "logistic-ovr", "site"),
    ],
)
def test_every_kind_of_model(home: Path, model: str, loss: str, label: str) -> None:
    table = people()
    sites = pa.array(np.random.default_rng(3).choice(["a", "b", "c"], len(table)))
    table = table.set_column(table.column_names.index("site"), "site", sites)
    visits = pa.array(np.random.default_rng(4).integers(1, 9, len(table)))
    data = write_parquet(table.append_column("visits", visits), home / "kinds.parquet")
    words = ["train", str(data), "--label", label, "--id", "person", "--keys", str(home / "keys")]
    multi = "ovr" if loss == "logistic-ovr" else "multinomial"
    out = home / "kinds"
    kind = ["--model", *model.split()]
    assert run([*words, "--out", str(out), *kind, "--multi-class", multi]) == 0
    assert decode((out / "model.safetensors").read_bytes()).loss == loss
    assert run(["forget", str(out), "--id", "p0", "--id", "p1"]) == 0
    assert run(["verify", str(out), "--retained", str(data)]) == 0


def test_a_declared_encoding_is_certified(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["schema", str(home / "people.csv"), "--label", "ill", "--id", "person"]
    schema = home / "schema.toml"
    assert run([*words, "-o", str(schema)]) == 0
    assert run(words) == 0
    assert "[features" in capsys.readouterr().out
    assert run(training(home, "--schema", str(schema), out="declared")) == 0
    assert "certified" in (told := capsys.readouterr().out)
    assert "learned" not in told
    assert run(["forget", str(home / "declared"), "--id", "p3"]) == 0
    assert certificate(home / "declared", 2).grade == "certified"


def test_requests_are_committed_with_salts_that_stay_sealed(home: Path) -> None:
    folder = home / "model"
    received = ["--regime", "ccpa", "--received", "2026-01-15"]
    assert run(["forget", str(folder), "--id", "p1", "--id", "p2", *received]) == 0
    key = load_sealing_key(home / "keys/sealing.key")
    kept = json.loads(unseal(key, (folder / "sealed/requests/0002.sealed").read_bytes()))
    made = certificate(folder, 2).requests
    assert [it["requestId"] for it in kept] == ["p1", "p2"]
    for public, secret in zip(made, kept, strict=True):
        salt = bytes.fromhex(secret["salt"])
        assert request_commitment(salt, secret["requestId"]) == public.commitment
        assert public.regime == "ccpa"
        assert public.due_at is not None
        assert (public.due_at - public.received_at).days == 45


def test_ids_from_standard_input_and_tables(
    home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = str(home / "model")
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"\xef\xbb\xbfp1\r\n\np2\n")))
    assert run(["forget", folder, "--ids", "-"]) == 0
    asked = pa.table({"why": ["a", "b"], "person": ["p3", "p4"]})
    assert run(["forget", folder, "--ids", str(write_csv(asked, home / "asked.csv"))]) == 0
    asked = pa.table({"who": ["p5"]})
    assert run(["forget", folder, "--ids", str(write_csv(asked, home / "who.csv"))]) == 0
    assert run(["status", folder]) == 0
    assert "110 retained, 10 deleted" in capsys.readouterr().out


def test_a_lone_certificate_is_checked_with_its_proof(home: Path, tmp_path: Path) -> None:
    folder = home / "model"
    assert run(["forget", str(folder), "--id", "p1"]) == 0
    post = tmp_path / "post"
    post.mkdir()
    for name in ("0000-policy.dsse.json", "0002.dsse.json", "0002.proof.json"):
        (post / name).write_bytes((folder / "certificates" / name).read_bytes())
    found = verify(post / "0002.dsse.json", Given(trust=home / "keys/trust.json"))
    assert found.exit_status == 0
    assert found.report["log"].verdict == "PASS"
    assert found.report["policy"].verdict == "PASS"
    assert not found.own_keys


def test_seeded_folders_are_never_for_production(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(training(home, "--seed", "7", out="test")) == 0
    assert "NOT FOR PRODUCTION" in capsys.readouterr().out
    assert run(["verify", str(home / "test")]) == 3
    assert run(["forget", str(home / "test"), "--id", "p1", "--seed", "7"]) == 0
    assert run(["forget", str(home / "test"), "--id", "p2", "--seed", "7"]) == 0
    assert run(["verify", str(home / "test"), "--retained", str(home / "people.csv")]) == 3
    assert "NOT FOR PRODUCTION" in capsys.readouterr().out


def test_keys_with_a_passphrase(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    home = make_home(tmp_path / "home")
    assert run(["keys", "new", str(home / "locked")]) == 0
    told = capsys.readouterr().out
    found = re.search(r"Passphrase, shown only now: ([A-Z2-7]{26})", told)
    assert found is not None
    monkeypatch.setenv("EXPUNGE_KEY_PASSPHRASE", found[1])
    words = training(home, out="locked-model")
    words[words.index("--keys") + 1] = str(home / "locked")
    assert run(words) == 0
    assert run(["keys", "new", str(home / "k2"), "--passphrase-file", str(home / "pass")]) == 0
    assert run(["keys", "show", str(home / "k2")]) == 0
    assert (home / "pass").stat().st_mode & 0o077 == 0
    assert (home / "pass").read_text().strip() not in capsys.readouterr().out
    assert (home / "k2/trust.json").exists()


def test_running_as_a_module_shows_help_without_loading_numpy() -> None:
    code = "import sys; from expunge.cli import run; run([]); assert 'numpy' not in sys.modules"
    start = time.perf_counter()
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    print(f"start-up {time.perf_counter() - start:.3f} s")
    assert "forget" in done.stdout
    assert "rich" not in done.stderr


def test_no_command_imports_scikit_learn(home: Path) -> None:
    code = (
        "import sys; from expunge.cli import run; "
        f"assert run(['forget', {str(home / 'model')!r}, '--id', 'p1']) == 0; "
        f"assert run(['verify', {str(home / 'model')!r}]) == 0; "
        "bad = {'sklearn', 'torch', 'matplotlib'} & set(sys.modules); assert not bad, bad"
    )
    subprocess.run([sys.executable, "-c", code], capture_output=True, check=True)


def test_secrets_stay_in_the_sealed_part(
    home: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    from expunge.folder.store import opened

    keys = home / "secret-keys"
    passphrase = home / "passphrase"
    assert run(["keys", "new", str(keys), "--passphrase-file", str(passphrase)]) == 0
    monkeypatch.setenv("EXPUNGE_KEY_PASSPHRASE_FILE", str(passphrase))
    words = training(home, out="discreet")
    words[words.index("--keys") + 1] = str(keys)
    folder = home / "discreet"
    secrets: set[bytes] = {passphrase.read_bytes().strip()}
    secrets.add((keys / "sealing.key").read_bytes().strip())
    assert run(words) == 0
    for person in ("p11", "p12"):
        with opened(folder) as store:
            lineage = store.lineage()
            members, weights = lineage.members, lineage.state.weights
            secrets |= {lineage.noise_key, members.key.tobytes()}
            secrets |= {salt.tobytes() for salt in members.salt if salt.any()}
            secrets |= {repr(float(weight)).encode() for weight in weights.ravel() if weight}
            secrets |= {weight.tobytes() for weight in weights.ravel() if weight}
            secrets.add(f'"{person}"'.encode())
        assert run(["forget", str(folder), "--id", person]) == 0
    assert run(["retrain", str(folder)]) == 0
    assert run(["verify", str(folder), "--retained", str(home / "people.csv")]) == 0
    assert run(["verify", str(folder / "certificates/0003.dsse.json")]) == 0
    assert run(["status", str(folder)]) == 0
    said = "".join(capfd.readouterr()).encode()
    public = [p for p in folder.rglob("*") if p.is_file() and "sealed" not in p.parts]
    text = said + b"".join(p.read_bytes() for p in public)
    text += b"".join(
        Envelope.from_json(p.read_bytes()).payload for p in folder.rglob("*.dsse.json")
    )
    assert len(public) > 10
    for secret in secrets:
        forms = [secret, secret.hex().encode()]
        assert not any(form in text for form in forms), secret[:4]
    sealed = folder / "sealed"
    assert sealed.stat().st_mode & 0o077 == 0
    assert all(p.stat().st_mode & 0o077 == 0 for p in sealed.rglob("*") if p.is_file())


def test_workers_give_the_same_bits(home: Path) -> None:
    pytest.importorskip("distributed")
    models = []
    for spread in ([], ["--workers", "2"]):
        out = home / f"spread{len(spread)}"
        words = training(home, "--seed", "1", "--sigma", "1e-5", *spread, out=out.name)
        assert run(words) == 0
        assert run(["forget", str(out), "--id", "p1", "--seed", "2", *spread]) == 0
        assert run(["retrain", str(out), "--seed", "3", *spread]) == 0
        models.append((out / "model.safetensors").read_bytes())
    assert models[0] == models[1]
