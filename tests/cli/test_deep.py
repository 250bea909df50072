"""`expunge deep`: the list, a run from a file to a page, interruption, and what goes wrong."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import fields
from pathlib import Path

import pytest
import torch

from experiment_example import TINY
from expunge.cli import run
from expunge.deep import experiment
from expunge.deep.methods import METHODS


@pytest.fixture(autouse=True)
def _one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "tiny.toml"
    path.write_text(TINY.replace("[0, 1]", "[0]").replace('"finetune", ', ""))
    return path


def test_the_list_names_every_method_its_needs_and_its_defaults(capsys):
    assert run(["deep", "list"]) == 0
    said = capsys.readouterr().out
    blocks = dict(zip(METHODS, said.split("\n")[1::2], strict=False))
    assert len(said.splitlines()) == 2 * len(METHODS)
    for name, kind in METHODS.items():
        assert f"\n{name}  " in f"\n{said}"
        method = kind()
        assert all(f"{it.name} = {it.default!r}" in blocks[name] for it in fields(method))
        assert all(need in blocks[name] for need in method.needs)
    assert [name for name, text in blocks.items() if "exact;" in text] == ["retrain"]


def test_a_run_writes_a_page_a_table_and_numbers(file, tmp_path, capsys):
    out = tmp_path / "out"
    assert run(["deep", "run", str(file), "--out", str(out)]) == 0
    said = capsys.readouterr().out
    assert "Tiny: 4 runs of 4 methods." in said
    assert "1 method could not be used here" in said
    assert {path.name for path in out.iterdir()} == {
        "results.html", "results.json", "results.md", "runs"
    }  # fmt: skip
    found = json.loads((out / "results.json").read_text())
    assert [it["label"] for it in found["runs"]] == ["retrain", "null", "unsir", "longer"]
    assert found["setting"]["data"]["rows"] == 80
    assert found["setting"]["torch"] == torch.__version__
    assert found["summary"]["longer"]["seconds"]["mean"] > 0
    assert "| retrain | exact |" in (out / "results.md").read_text()
    assert "<h1>Tiny</h1>" in (out / "results.html").read_text()
    before = found["runs"]
    assert run(["deep", "run", str(file), "--out", str(out)]) == 0
    assert json.loads((out / "results.json").read_text())["runs"] == before
    assert run(["deep", "run", str(file), "--out", str(out), "--fresh"]) == 0
    assert json.loads((out / "results.json").read_text())["runs"] != before


def test_an_interruption_says_how_to_go_on(file, tmp_path, capsys, monkeypatch):
    done = []
    measured = experiment._measured

    def interrupted(*given):
        if len(done) == 2:
            raise KeyboardInterrupt
        done.append(given)
        return measured(*given)

    out = tmp_path / "out"
    with monkeypatch.context() as patch:
        patch.setattr(experiment, "_measured", interrupted)
        assert run(["deep", "run", str(file), "--out", str(out)]) == 130
    said = " ".join(capsys.readouterr().err.split())
    assert f"Finished runs are kept in {out}: the same command goes on." in said
    assert len(list((out / "runs").iterdir())) == 2
    assert not (out / "results.md").exists()
    assert run(["deep", "run", str(file), "--out", str(out)]) == 0


@pytest.mark.parametrize(
    ("old", "new", "match"),
    [
        ('"unsir"', '"unsirr"', "no method is called 'unsirr'; known are retrain, null"),
        ("count = 12", "number = 12", "[forget] has no 'number'; known are count"),
        ('source = "digits"', 'source = "npz"\npath = "no.npz"', "no.npz is missing"),
        ("epochs = 2\nlr = 1\n", "epochs = 2\nlr = 1e30\n", "lower the learning rate"),
    ],
)
def test_what_is_wrong_is_said_in_a_line(file, tmp_path, capsys, old, new, match):
    text = file.read_text()
    assert old in text
    file.write_text(text.replace(old, new))
    assert run(["deep", "run", str(file), "--out", str(tmp_path / "out")]) == 2
    said = capsys.readouterr().err
    assert match in said
    assert said.startswith("expunge: ")
    assert len(said.splitlines()) == 1


def test_a_missing_file_is_said(tmp_path, capsys):
    assert run(["deep", "run", str(tmp_path / "no.toml"), "--out", str(tmp_path)]) == 2
    assert "no.toml' does not exist" in capsys.readouterr().err


def test_damaged_results_are_not_used(file, tmp_path, capsys):
    out = tmp_path / "out"
    assert run(["deep", "run", str(file), "--out", str(out)]) == 0
    victim = next((out / "runs").iterdir())
    victim.write_text(victim.read_text().replace('"seed": 0', '"seed": 1'))
    assert run(["deep", "run", str(file), "--out", str(out)]) == 2
    assert f"{victim} does not hold the run of its name" in capsys.readouterr().err


def test_without_torch_it_says_what_to_install(file, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(sys.modules["expunge.cli.deep"], "find_spec", lambda name: None)
    for words in (["list"], ["run", str(file), "--out", str(tmp_path / "out")]):
        assert run(["deep", *words]) == 2
        assert "pip install 'expunge[deep]'" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_the_command_line_costs_no_torch():
    code = "import sys, expunge.cli, expunge.report.experiment; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
