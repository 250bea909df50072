"""Runs of an experiment: what is kept, and that going on after a kill gives the same bits."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import pytest
import torch

from experiment_example import edited, written
from expunge.deep import experiment
from expunge.deep.experiment import Case, run, warm_retrain, weights
from expunge.deep.methods import METHODS
from expunge.deep.results import LEGEND, summarise, summary
from expunge.deep.settings import Forget, Net
from expunge.deep.sources import load_data
from expunge.errors import InvalidInput
from expunge.report.experiment import experiment_page


@pytest.fixture(autouse=True)
def _one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def timeless(runs):
    """Everything but what a clock says."""
    return [{key: value for key, value in made.items() if key != "times"} for made in runs]


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """An experiment that nothing interrupted."""
    where = tmp_path_factory.mktemp("whole")
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    plan = written(where)
    runs = run(plan, where / "out")
    torch.set_num_threads(before)
    return plan, where / "out", runs


def test_every_run_is_there_and_measured(whole):
    plan, _, runs = whole
    assert [(made["seed"], made["label"]) for made in runs] == [
        (seed, label) for seed in plan.seeds for label, _ in plan.methods
    ]
    assert {made["label"] for made in runs if "refused" in made} == {"unsir"}
    grades = {made["label"]: made["grade"] for made in runs if "refused" not in made}
    assert grades.pop("retrain") == "exact"
    assert set(grades.values()) == {"heuristic"}
    null = next(made for made in runs if made["label"] == "null")
    assert null["weights"] == null["trained"]
    assert null["distance"]["weights"] == 0.0
    assert null["relearn"]["median"] == 0.0
    assert runs[0]["distance"]["test"]["variation"] > 0.0
    assert all(set(made["accuracy"]) == {"retain", "forget", "test"} for made in runs
               if "refused" not in made)  # fmt: skip


class Killed(BaseException):
    """Stands for the end of a process."""


@pytest.mark.parametrize("at", [0, 1, 3, 6])
def test_going_on_after_a_kill_gives_the_same_bits(whole, tmp_path, at):
    plan, _, runs = whole

    def kill(done: int, total: int, name: str) -> None:
        if done == at:
            raise Killed

    with pytest.raises(Killed):
        run(plan, tmp_path, progress=kill)
    assert len(list((tmp_path / "runs").iterdir())) == at
    calls = []
    assert timeless(run(plan, tmp_path, progress=lambda *it: calls.append(it))) == timeless(runs)
    assert [it[0] for it in calls] == list(range(at, len(runs)))
    assert {it[1] for it in calls} == {len(runs)}


def test_a_kill_while_a_result_is_written_leaves_none(whole, tmp_path, monkeypatch):
    plan, _, runs = whole

    def fail(*paths: object) -> None:
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(experiment.os, "replace", fail)
        with pytest.raises(Killed):
            run(replace(plan, seeds=(0,)), tmp_path)
    found = run(replace(plan, seeds=(0,)), tmp_path)
    assert timeless(found) == timeless(runs)[: len(plan.methods)]


def test_nothing_is_done_twice_and_what_is_added_is_done(whole, monkeypatch):
    plan, out, runs = whole
    before = {path: path.read_bytes() for path in (out / "runs").iterdir()}
    monkeypatch.setattr(experiment, "Case", None)
    assert run(plan, out) == runs
    monkeypatch.undo()
    more = replace(plan, methods=(*plan.methods, ("ssd", METHODS["ssd"]())))
    calls = []
    found = run(more, out, progress=lambda done, total, name: calls.append(name))
    assert calls == ["seed 0: ssd", "seed 1: ssd"]
    assert [made for made in found if made["label"] != "ssd"] == runs
    assert all(path.read_bytes() == content for path, content in before.items())


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("epochs = 2\nlr = 1\nb", "epochs = 2\nlr = 0.5\nb"),
        ("rows = 80", "rows = 81"),
        ("count = 12", "count = 13"),
        ("widths = [6]", "widths = [5]"),
        ("relearn_cap = 4", "relearn_cap = 5"),
    ],
)
def test_another_setting_shares_no_run(whole, tmp_path, old, new):
    plan, _, _ = whole
    other = edited(tmp_path, old, new)
    names = [
        {experiment._name(it, load_data(it.data, it.base), method) for _, method in it.methods}
        for it in (plan, other)
    ]
    assert not names[0] & names[1]


def test_a_label_is_only_a_name(whole, tmp_path):
    _, out, runs = whole
    renamed = written(tmp_path, longer="other words")
    found = run(renamed, out)
    assert [made["weights"] for made in found if made["label"] == "other words"] == [
        made["weights"] for made in runs if made["label"] == "longer"
    ]


@pytest.mark.parametrize("content", ["", "[1]", '{"digest": "0", "seed": 0}', "{"])
def test_a_file_that_is_not_what_its_name_says_is_refused(whole, tmp_path, content):
    plan, _, _ = whole
    name = experiment._name(plan, load_data(plan.data, plan.base), plan.methods[0][1])
    path = tmp_path / "runs" / f"{name}-0.json"
    path.parent.mkdir()
    path.write_text(content)
    with pytest.raises(InvalidInput, match="does not hold the run of its name"):
        run(plan, tmp_path)
    assert path.read_text() == content


def test_runs_that_started_from_other_weights_are_not_mixed(whole, tmp_path):
    plan, _, runs = whole
    folder = tmp_path / "runs"
    folder.mkdir()
    made = {key: value for key, value in runs[0].items() if key != "label"} | {"trained": "0"}
    path = folder / f"{made['digest']}-0.json"
    path.write_text(json.dumps(made))
    with pytest.raises(InvalidInput, match="gave other weights"):
        run(plan, tmp_path)
    found = run(replace(plan, seeds=(0,)), tmp_path, fresh=True)
    assert timeless(found) == timeless(runs)[: len(plan.methods)]


def test_what_cannot_be_used_is_said_before_anything_is_trained(whole, tmp_path):
    plan, _, _ = whole
    for changes, match in (
        ({"device": "cuda:77"}, "cannot be used here"),
        ({"device": "abacus"}, "cannot be used here"),
        ({"forget": Forget("random", count=3)}, "needs 4 records to forget"),
        ({"model": Net("mlp"), "forget": Forget("ids", ids=(5000,))}, "not trained on"),
    ):
        with pytest.raises(InvalidInput, match=match):
            run(replace(plan, **changes), tmp_path / match[:4])


def test_a_model_with_too_few_outputs_is_refused(whole, tmp_path):
    plan, _, _ = whole
    (tmp_path / "narrow_net_of_this_test.py").write_text(
        "from torch import nn\ndef net(): return nn.Linear(64, 2)\n"
    )
    own = Net("python", factory="narrow_net_of_this_test:net")
    with pytest.raises(InvalidInput, match="2 outputs, but the labels need 10"):
        run(replace(plan, model=own, base=tmp_path), tmp_path)


@pytest.fixture(scope="module")
def case(whole):
    plan, _, _ = whole
    return Case(plan, load_data(plan.data, plan.base), 0)


def test_retraining_starts_from_other_weights_than_the_training(case):
    begun = {weights(case._fresh(seed)) for seed in (case.problem.train.seed, case.problem.seed)}
    assert len(begun) == 2
    oracles = {weights(model) for model in case.oracles}
    assert weights(case.problem.model) not in oracles


def test_warm_retraining_takes_an_epoch_at_least_and_the_recipe_at_most(case):
    assert warm_retrain(case.problem, math.inf)[1:] == (1, True)
    assert warm_retrain(case.problem, -1.0)[1:] == (2, False)
    assert weights(case.problem.model) == case.trained
    with pytest.raises(InvalidInput, match="needs the recipe"):
        warm_retrain(replace(case.problem, train=None), 1.0)


def test_only_what_is_asked_for_is_measured(tmp_path):
    plan = written(tmp_path, **{"retrains = 1": 'metrics = ["f1"]', '"finetune", "unsir"': ""})
    runs = run(replace(plan, seeds=(0,), forget=Forget("random", count=2)), tmp_path / "out")
    assert "f1" in runs[0]
    assert not {"membership", "relearn", "distance"} & set(runs[0])
    table = summarise(runs, 0.05)
    assert [group.title for group in table.groups] == ["What it can still do", "What it costs"]


def test_the_page_of_real_runs_holds_every_cell(whole):
    plan, _, runs = whole
    table = summarise(runs, plan.measure.margin)
    setting = {"seeds": list(plan.seeds), **plan.setting}
    page = experiment_page(plan.title, table, summary(runs), setting, legend=LEGEND)
    assert all(cell in page for group in table.groups for row in group.rows for cell in row)
