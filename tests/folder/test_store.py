"""A model folder that was tampered with: every fault is caught by its name."""

from __future__ import annotations

import json
import shutil
import sqlite3
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np
import pytest

from expunge.certificate.envelope import Envelope, sign
from expunge.errors import FolderProblem, InvalidInput, VerificationFailed
from expunge.folder import operations, pending
from expunge.folder.checking import Checked, Given
from expunge.folder.config import Config
from expunge.folder.durable import locked
from expunge.folder.inspection import verify
from expunge.folder.keyring import make_keys, open_keys
from expunge.folder.ledger import Ledger
from expunge.folder.operations import Asked, Training, forget, retrain, status, train
from expunge.folder.options import noise_for
from expunge.folder.proof import InclusionProof
from expunge.folder.requests import parse_received
from expunge.folder.store import opened
from expunge.linear import engine
from expunge.linear.engine import State, Trace
from expunge.linear.rows import Rows
from expunge.noise import Seeded
from people_example import copy_home, make_home, people, snapshot, with_cell, without, write_csv


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    home = make_home(tmp_path_factory.mktemp("store") / "home")
    forget(home / "model", ["p1"])
    forget(home / "model", ["p2", "p3"])
    return home


@pytest.fixture
def home(trained: Path, tmp_path: Path) -> Path:
    return copy_home(trained, tmp_path / "home")


OTHER = {"yes": "no", "no": "yes"}


def failed(found: Checked) -> set[str]:
    return {check.name for check in found.failed}


def folder(home: Path, **given: Path) -> Checked:
    return verify(home / "model", Given(**given))


def newest(home: Path) -> Path:
    return home / "model/certificates/0003.dsse.json"


def edit(path: Path, change: Callable[[dict], None]) -> None:
    envelope = Envelope.from_json(path.read_bytes())
    statement = json.loads(envelope.payload)
    change(statement["predicate"])
    path.write_bytes(replace(envelope, payload=json.dumps(statement).encode()).to_json())


def tamper(home: Path, *statements: str) -> None:
    with sqlite3.connect(home / "model/ledger.sqlite3") as database:
        triggers = database.execute("SELECT name, sql FROM sqlite_master WHERE type='trigger'")
        kept = triggers.fetchall()
        for name, _ in kept:
            database.execute(f"DROP TRIGGER {name}")
        for statement in statements:
            database.execute(statement)
        for _, trigger in kept:
            database.execute(trigger)
    database.close()


def test_an_honest_folder_is_consistent(home: Path) -> None:
    before = snapshot(home)
    for given in ({}, {"retained": home / "people.csv"}, {"trust": home / "keys/trust.json"}):
        found = folder(home, **given)
        assert found.exit_status == 0, found.failed
        assert verify(newest(home), Given(**given)).exit_status == 0
    status(home / "model")
    assert snapshot(home) == before


def test_swapped_model(home: Path) -> None:
    forget(home / "model", ["p4"])
    old = home / "old"
    shutil.copy(home / "model/model.safetensors", old)
    forget(home / "model", ["p5"])
    shutil.copy(old, home / "model/model.safetensors")
    assert failed(folder(home)) == {"model", "sealed state"}
    certificate = home / "model/certificates/0005.dsse.json"
    assert failed(verify(certificate, Given(model=old))) == {"model"}
    with pytest.raises(FolderProblem, match=r"model\.safetensors is not that of release 5"):
        forget(home / "model", ["p6"])


@pytest.mark.parametrize("number", [2, 3])
def test_edited_certificate(home: Path, number: int) -> None:
    path = home / f"model/certificates/{number:04d}.dsse.json"
    edit(path, lambda predicate: predicate["guarantee"].update(epsilon="0.5"))
    assert failed(folder(home)) >= {"signature", "files"}
    assert "signature" in failed(verify(path))


def test_edited_training_statement(home: Path) -> None:
    path = home / "model/certificates/0001-training.dsse.json"
    edit(path, lambda predicate: predicate.update(production=False))
    assert failed(folder(home)) == {"files"}


def test_edited_copy_of_the_policy(home: Path) -> None:
    path = home / "model/policy.json"
    path.write_text(path.read_text().replace('"epsilon": "1"', '"epsilon": "0.1"'))
    assert failed(folder(home)) == {"files"}


def test_missing_certificate(home: Path) -> None:
    newest(home).unlink()
    assert failed(folder(home)) == {"files"}


def test_wrong_key(home: Path) -> None:
    make_keys(home / "others", encrypted=False)
    found = folder(home, trust=home / "others/trust.json")
    assert failed(found) >= {"signature", "foreign signature"}
    keys = open_keys(home / "others", lambda: None)
    payload = Envelope.from_json(newest(home).read_bytes()).payload
    newest(home).write_bytes(sign(payload, keys.issuer).to_json())
    assert failed(verify(newest(home))) == {"signature"}


def test_signed_by_the_owner_but_not_in_the_log(home: Path) -> None:
    keys = open_keys(home / "keys", lambda: None)
    envelope = Envelope.from_json(newest(home).read_bytes())
    statement = json.loads(envelope.payload)
    statement["predicate"]["issuer"]["name"] = "Somebody Else"
    newest(home).write_bytes(sign(json.dumps(statement).encode(), keys.issuer).to_json())
    assert failed(verify(newest(home))) == {"log"}
    assert failed(folder(home)) == {"log", "files"}


def keep_everything(state: State, gone: Rows, *_: object) -> tuple[State, Trace]:
    """Claim to have deleted, and keep the parameters."""
    positive = int((gone.target > 0).sum())
    members = state.members - np.array([gone.count - positive, positive])
    kept = replace(state, count=state.count - gone.count, members=members)
    return kept, Trace("bounded", state.bound, 0.0, 0.0, 1.0, 0, 0)


def test_certificate_of_no_deletion(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "unlearn", keep_everything)
    forget(home / "model", [f"p{i}" for i in range(10, 20)])
    assert folder(home).exit_status == 0, "without the data it looks honest"
    assert failed(folder(home, retained=home / "people.csv")) == {"evidence"}


def test_altered_annex(home: Path) -> None:
    path = home / "model/sealed/annex/0003.sealed"
    path.write_bytes(path.read_bytes()[:-1] + b"?")
    assert failed(folder(home, retained=home / "people.csv")) == {"evidence", "files"}


def test_noise_used_twice(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(operations, "noise_for", lambda *_: Seeded(1))
    forget(home / "model", ["p4"])
    forget(home / "model", ["p5"])
    assert failed(folder(home)) == {"noiseTag", "noise of all releases"}


@pytest.mark.parametrize("sigma", [0.2, 4.0])
def test_noise_of_another_size(home: Path, monkeypatch: pytest.MonkeyPatch, sigma: float) -> None:
    table = people(count=60)
    noise = np.random.default_rng(0).normal(size=(len(table), 80)).round(3)
    for k in range(80):
        table = table.append_column(f"x{k}", [noise[:, k]])
    data = write_csv(table, home / "wide.csv")
    options = Training(label="ill", identifier="person", keys=home / "keys", sigma=sigma)
    train(data, home / "wide", options)
    monkeypatch.setattr(operations, "noise_for", lambda *_: Halved())
    forget(home / "wide", ["p5"])
    assert failed(verify(home / "wide", Given(retained=data))) == {"noise"}


class Halved(Seeded):
    """Noise that is too small, from an operator who says it is not."""

    name, production = "osEntropy", True

    def __init__(self) -> None:
        super().__init__(5)

    def normal(self, shape: tuple[int, ...]) -> np.ndarray:
        return 0.3 * super().normal(shape)


@pytest.mark.parametrize(
    "change",
    [
        lambda table: without(table, "p9"),
        lambda table: table.slice(0, len(table) - 1),
        lambda table: with_cell(table, 40, "score", 0.123),
        lambda table: with_cell(table, 40, "person", "p1000"),
        lambda table: with_cell(table, 40, "ill", OTHER[table.column("ill")[40].as_py()]),
    ],
)
@pytest.mark.parametrize("model", ["model", "fresh"])
def test_other_retained_data(home: Path, change: Callable, model: str) -> None:
    if model == "fresh":
        retrain(home / "model")
    data = write_csv(change(people()), home / "changed.csv")
    assert "commitments" in failed(folder(home, retained=data))


def test_older_sealed_state(home: Path) -> None:
    old = (home / "model/sealed/state.safetensors").read_bytes()
    forget(home / "model", ["p4"])
    (home / "model/sealed/state.safetensors").write_bytes(old)
    assert failed(folder(home)) == {"sealed state"}


def test_other_members(home: Path) -> None:
    old = (home / "model/sealed/members.safetensors").read_bytes()
    forget(home / "model", ["p4"])
    (home / "model/sealed/members.safetensors").write_bytes(old)
    assert failed(folder(home)) == {"sealed state"}


def test_truncated_log(home: Path) -> None:
    cut = ["DELETE FROM budget WHERE idx=3", "DELETE FROM log_signature WHERE idx=3"]
    tamper(home, *cut, "DELETE FROM log_entry WHERE idx=3")
    assert failed(folder(home)) >= {"truncated", "sealed state"}
    tamper(home, "DELETE FROM log_checkpoint WHERE size=4")
    held = home / "model/certificates/0003.proof.json"
    assert "truncated" not in failed(folder(home))
    assert failed(folder(home, checkpoint=held)) >= {"truncated"}


def test_nonsense_in_the_log(home: Path) -> None:
    tamper(home, "UPDATE log_entry SET payload='{}' WHERE idx=2")
    assert failed(folder(home)) >= {"edited entry", "statements"}
    assert "edited entry" in failed(verify(newest(home)))
    with pytest.raises(VerificationFailed, match="no statement"):
        forget(home / "model", ["p4"])


def test_other_policy_in_the_log(home: Path) -> None:
    tamper(
        home,
        """UPDATE log_entry SET payload=replace(payload, '"sigma":"0.01"', '"sigma":"0.02"')
           WHERE idx=0""",
    )
    assert failed(folder(home)) >= {"edited entry", "policy"}


def test_a_copy_of_the_public_part(home: Path) -> None:
    shutil.rmtree(home / "model/sealed")
    found = folder(home, trust=home / "keys/trust.json")
    assert found.exit_status == 0
    assert found.report["sealed state"].verdict == "NOT CHECKED"
    with pytest.raises(FolderProblem):
        folder(home, retained=home / "people.csv")


def test_edited_log(home: Path) -> None:
    tamper(home, "UPDATE log_entry SET payload=replace(payload, 'unnamed', 'renamed') WHERE idx=2")
    assert failed(folder(home)) >= {"edited entry", "foreign signature"}


def test_log_without_triggers(home: Path) -> None:
    with sqlite3.connect(home / "model/ledger.sqlite3") as database:
        database.execute("DROP TRIGGER le_u")
    database.close()
    assert failed(folder(home)) == {"trigger missing"}


def test_old_checkpoints(home: Path) -> None:
    copy_home(home, home.with_name("fork"))
    forget(home / "model", ["p4"])
    forget(home.with_name("fork") / "model", ["p5"])
    early = home / "model/certificates/0001-training.proof.json"
    assert folder(home, checkpoint=early).exit_status == 0
    other = home.with_name("fork") / "model/certificates/0004.proof.json"
    assert failed(folder(home, checkpoint=other)) == {"fork"}
    note = home / "note"
    note.write_text(InclusionProof.from_json(other.read_bytes()).checkpoint)
    assert failed(folder(home, checkpoint=note)) == {"fork"}
    forget(home.with_name("fork") / "model", ["p6"])
    later = home.with_name("fork") / "model/certificates/0005.proof.json"
    assert failed(folder(home, checkpoint=later)) == {"truncated"}


def test_checkpoint_of_another_lineage(home: Path) -> None:
    options = Training(label="ill", identifier="person", keys=home / "keys")
    train(home / "people.csv", home / "other", options)
    held = home / "other/certificates/0001-training.proof.json"
    assert failed(folder(home, checkpoint=held)) == {"foreign signature"}


def test_proof_of_another_entry(home: Path) -> None:
    other = home / "model/certificates/0002.proof.json"
    shutil.copy(other, home / "model/certificates/0003.proof.json")
    assert failed(verify(newest(home))) == {"log"}


def test_forged_proof(home: Path) -> None:
    path = home / "model/certificates/0003.proof.json"
    path.write_text(path.read_text().replace("— expunge", "— expenge"))
    assert failed(verify(newest(home))) == {"log"}
    path.write_text("{}")
    assert failed(verify(newest(home))) == {"log"}


def test_stale_certificate(home: Path) -> None:
    later = datetime.now(UTC) + timedelta(days=400)
    assert failed(verify(newest(home), now=later)) == {"clock"}
    assert failed(verify(home / "model", now=later)) == {"clock"}


def test_an_interrupted_release_is_finished(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The ledger knows the release, and nothing has been moved to its place."""

    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(pending, "_apply", stop)
        with pytest.raises(KeyboardInterrupt):
            forget(home / "model", ["p4"])
    assert (home / "model/sealed/pending-0004").is_dir()
    assert status(home / "model").latest.budget.release == 4
    assert not (home / "model/sealed/pending-0004").exists()
    assert folder(home, retained=home / "people.csv").exit_status == 0


def test_a_release_that_the_log_refused_is_discarded(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = snapshot(home)

    def refuse(self: Ledger, *_: object) -> None:
        raise FolderProblem("the disk is full")

    with monkeypatch.context() as patch:
        patch.setattr(Ledger, "_insert", refuse)
        with pytest.raises(FolderProblem, match="disk"):
            forget(home / "model", ["p4"])
    with monkeypatch.context() as patch:
        patch.setattr(pending, "sync", lambda path: refuse(None))  # type: ignore[arg-type]
        with pytest.raises(FolderProblem, match="disk"):
            forget(home / "model", ["p4"])
    status(home / "model")
    assert snapshot(home) == before


def test_folders_of_others_are_not_swept(home: Path) -> None:
    for name in ("new.tmp-mine", "new.tmp-0123456789ab", "renew.tmp-0123456789ab"):
        (home / name).mkdir()
    (home / "new.tmp-cccccccccccc").mkdir()
    options = Training(label="ill", identifier="person", keys=home / "keys")
    with locked(home / "new.tmp-cccccccccccc"):
        train(home / "people.csv", home / "new", options)
    left = sorted(path.name for path in home.glob("*tmp-*"))
    assert left == ["new.tmp-cccccccccccc", "new.tmp-mine", "renew.tmp-0123456789ab"]


def test_most_people_at_once(home: Path) -> None:
    """A batch of most people: the retained rows are needed, and are checked one by one."""
    done = forget(home / "model", [f"p{i}" for i in range(10, 50)], asked=Asked())
    assert done.people == 40
    assert done.records == 80
    assert done.path in ("measured", "refreshed")
    assert folder(home, retained=home / "people.csv").exit_status == 0


def test_seeds_belong_to_folders_for_tests(home: Path) -> None:
    with opened(home / "model") as store:
        with pytest.raises(InvalidInput, match="for production"):
            noise_for(store.policy, 1, 5)
        tested = replace(store.policy, noise="seeded")
    draws = [noise_for(tested, 1, release).normal((3,)) for release in (1, 2)]
    assert not np.array_equal(*draws)


def test_repr_shows_nothing(home: Path) -> None:
    with opened(home / "model") as store:
        keys = open_keys(home / "keys", lambda: None)
        shown = f"{store!r} {keys!r} {store.lineage()!r}"
    assert keys.sealing.hex() not in shown
    assert "bytes" not in shown
    done = forget(home / "model", ["p4"])
    assert str(done.seconds) not in repr(done)


@pytest.mark.parametrize(
    "content", ["", "[]", "{}", '{"format": "expunge-folder/1", "data": 1}', '{"format": "x"}']
)
def test_config_of_something_else(content: str) -> None:
    with pytest.raises(FolderProblem):
        Config.from_json(content.encode())


@pytest.mark.parametrize("content", [b"", b"[]", b'{"format":"expunge-proof/1"}', b"\xff"])
def test_proof_of_something_else(content: bytes) -> None:
    with pytest.raises(VerificationFailed):
        InclusionProof.from_json(content)


def test_a_date_is_its_first_local_second() -> None:
    assert parse_received("2026-11-20") == datetime(2026, 11, 20).astimezone(UTC)
