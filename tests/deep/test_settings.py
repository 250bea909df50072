"""Experiment files: what they may say, and what data, models and forgotten records they name."""

from __future__ import annotations

import json
import struct
import tomllib
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from experiment_example import edited, written
from expunge.deep.descent import Recipe
from expunge.deep.methods import METHODS
from expunge.deep.settings import Data, Forget, Net, read_plan
from expunge.deep.sources import alike, forgotten, load_data, make_model
from expunge.errors import DataMissing, InvalidInput

# --- the file -----------------------------------------------------------------------------------


def test_a_file_is_read_and_completed(tmp_path):
    plan = written(tmp_path)
    assert [label for label, _ in plan.methods] == [
        "retrain",
        "null",
        "finetune",
        "unsir",
        "longer",
    ]
    assert plan.seeds == (0, 1)
    assert plan.train == Recipe(epochs=2, lr=1.0, batch_size=20)
    longer = dict(plan.methods)["longer"]
    assert asdict(longer)["epochs"] == 2
    assert plan.measure.metrics == ("f1", "membership", "relearn", "distance")
    assert json.loads(json.dumps(plan.setting)) == plan.setting


@pytest.mark.parametrize(
    ("old", "new", "match"),
    [
        ('title = "Tiny"', "title = ", "is not TOML"),
        ('title = "Tiny"', 'titel = "Tiny"', "has no 'titel'; known are data, device"),
        ("seeds = [0, 1]", "seeds = [0, 0]", "seeds must be different"),
        ("seeds = [0, 1]", "seeds = [true]", "seeds must be a list, each a whole number"),
        ("seeds = [0, 1]", "seeds = 3", "seeds must be a list"),
        ('"finetune", "unsir"', '"finetun"', "no method is called 'finetun'; known are retrain"),
        ('"finetune", "unsir"', "3", "methods must be a list of names"),
        ('"finetune", "unsir"', '"unsir", "unsir"', "two methods are called 'unsir'"),
        ("lr = 1\nepochs = 2", "rate = 1", r"method finetune has no 'rate'; known are .*lr"),
        ("lr = 1\nepochs = 2", 'lr = "1"', "method finetune: lr must be a number, not '1'"),
        ("lr = 1\nepochs = 2", "epochs = 1.5", "epochs must be a whole number, not 1.5"),
        ("lr = 1\nepochs = 2", "bn_train = 1", "bn_train must be true or false, not 1"),
        ("lr = 1\nepochs = 2", 'schedule = "up"', "schedule must be 'constant' or"),
        ('name = "finetune"\n', "", "no method is called None"),
        ('label = "longer"', 'label = "a\\nb"', "label must be a line"),
        ('source = "digits"', 'source = "mnist"', r"\[data\]: source must be 'fashion-mnist' or"),
        ('source = "digits"', 'source = "npz"', "needs path"),
        ("rows = 80", "rows = 80\nrow = 1", r"\[data\] has no 'row'"),
        ("rows = 80", "rows = -1", "rows must be at least 2"),
        ('source = "digits"\n', "", r"\[data\] needs source"),
        ('kind = "mlp"', 'kind = "python"', "needs factory"),
        ("widths = [6]", "widths = [0]", "widths must be at least 1"),
        ('kind = "mlp"\nwidths = [6]', 'kind = "cnn"\nwidth = 3', "multiple of 4"),
        ("[train]\nepochs = 2", "[train]\nseed = 1", "takes no seed"),
        ("lr = 1\nbatch_size", "lr = -1\nbatch_size", r"\[train\]: lr must be"),
        ("count = 12", "count = 12\nfraction = 0.1", "count or fraction"),
        ("count = 12", "label = 3\ncount = 12", "kind = 'class', and no other"),
        ('kind = "random"\ncount = 12', 'kind = "ids"', "needs ids"),
        ("[forget]", "[forgets]", "no 'forgets'"),
        ("retrains = 1", "retrains = 0", "at least 1"),
        ("retrains = 1", 'metrics = ["mia"]', "metrics must be a list, each 'f1' or"),
    ],
)  # fmt: skip
def test_what_a_file_may_not_say(tmp_path, old, new, match):
    with pytest.raises(InvalidInput, match=match):
        edited(tmp_path, old, new)


@pytest.mark.parametrize("name", ["fashion-mlp", "fashion-class"])
def test_the_examples_name_every_method_and_hold_the_network_of_the_issue(name):
    path = Path(__file__).parents[2] / "examples" / f"{name}.toml"
    plan = read_plan(path)
    assert {method.name for _, method in plan.methods} == set(METHODS)
    assert tomllib.loads(path.read_text())["data"]["source"] == "fashion-mnist"
    net = make_model(plan.model, (784,), 10, plan.base)
    assert [part.out_features for part in net if isinstance(part, nn.Linear)] == [32, 32, 10]


# --- data, models, what to forget ---------------------------------------------------------------


def saved(path: Path, **changes):
    rng = np.random.default_rng(0)
    arrays = {
        "x": rng.random((20, 3, 8, 8)),
        "y": np.arange(20) % 3,
        "x_test": rng.random((9, 3, 8, 8)),
        "y_test": np.arange(9) % 3,
    }
    np.savez(path, **(arrays | changes))
    return arrays | changes


def test_arrays_from_an_npz_file(tmp_path):
    arrays = saved(tmp_path / "a.npz")
    found = load_data(Data("npz", path="a.npz", rows=7, test_rows=5, seed=3), tmp_path)
    assert found.shape == (3, 8, 8)
    assert found.classes == 3
    assert len(set(found.ids.tolist())) == 7
    assert np.array_equal(found.train[0].numpy(), arrays["x"][found.ids].astype(np.float32))
    assert found.train[1].tolist() == arrays["y"][found.ids].tolist()
    assert load_data(Data("npz", path="a.npz", rows=7, test_rows=5, seed=3), tmp_path).digest == (
        found.digest
    )
    saved(tmp_path / "a.npz", x=arrays["x"] + 1e-3)
    other = load_data(Data("npz", path="a.npz", rows=7, test_rows=5, seed=3), tmp_path)
    assert other.digest != found.digest


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"x": np.zeros((19, 2))}, "inputs .* and labels"),
        ({"x": np.full((20, 2), np.nan)}, "finite"),
        ({"y": np.zeros(20)}, "whole numbers"),
        ({"y": np.full(20, -1)}, "whole numbers from 0"),
        ({"x": np.zeros((20, 5))}, "training records have shape"),
        ({"x": np.full((20, 2), "a")}, "finite numbers"),
    ],
)
def test_arrays_that_are_not_records_are_refused(tmp_path, changes, match):
    saved(tmp_path / "a.npz", **changes)
    with pytest.raises(InvalidInput, match=match):
        load_data(Data("npz", path="a.npz"), tmp_path)


def test_files_that_are_not_there_or_not_what_they_should_be(tmp_path):
    with pytest.raises(DataMissing, match=r"b\.npz is missing"):
        load_data(Data("npz", path="b.npz"), tmp_path)
    with pytest.raises(DataMissing, match="IDX files"):
        load_data(Data("idx", path="."), tmp_path)
    (tmp_path / "b.npz").write_text("no zip")
    with pytest.raises(InvalidInput, match=r"no \.npz file"):
        load_data(Data("npz", path="b.npz"), tmp_path)
    saved(tmp_path / "c.npz")
    with pytest.raises(InvalidInput, match="no array 'images', but x, y"):
        load_data(Data("npz", path="c.npz", x="images"), tmp_path)
    with pytest.raises(InvalidInput, match="rows = 99, but there are 20"):
        load_data(Data("npz", path="c.npz", rows=99), tmp_path)


def test_idx_files(tmp_path):
    pixels = np.arange(6 * 4, dtype=np.uint8).reshape(6, 2, 2)
    labels = np.array([0, 1, 0, 1, 1, 0], dtype=np.uint8)
    for name, array in (("x", pixels), ("y", labels), ("x_test", pixels), ("y_test", labels)):
        head = bytes([0, 0, 8, array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape)
        (tmp_path / name).write_bytes(head + array.tobytes())
    found = load_data(Data("idx", path="."), tmp_path)
    assert np.allclose(found.train[0].numpy(), pixels / 255.0)
    assert found.test[1].tolist() == labels.tolist()


@pytest.mark.parametrize("shape", [(64,), (1, 8, 8), (8, 8), (3, 8, 8)])
def test_models_take_records_of_any_shape(tmp_path, shape):
    for net in (Net("mlp", (5,)), Net("cnn", width=4)):
        made = make_model(net, shape, 7, tmp_path)
        assert made(torch.zeros(2, *shape)).shape == (2, 7)
    with pytest.raises(InvalidInput, match="square images"):
        make_model(Net("cnn"), (63,), 7, tmp_path)


def test_a_model_of_ones_own(tmp_path):
    (tmp_path / "own_net_of_this_test.py").write_text(
        "from torch import nn\ndef net(): return nn.Linear(64, 10)\ndef no(): return 3\n"
    )
    made = make_model(Net("python", factory="own_net_of_this_test:net"), (64,), 10, tmp_path)
    assert isinstance(made, nn.Linear)
    for name in ("own_net_of_this_test:missing", "no_such_module:net", "nonsense"):
        with pytest.raises(InvalidInput, match=r"package\.module:function"):
            make_model(Net("python", factory=name), (64,), 10, tmp_path)
    with pytest.raises(InvalidInput, match="must return a torch"):
        make_model(Net("python", factory="own_net_of_this_test:no"), (64,), 10, tmp_path)


LABELS = torch.tensor([0, 1, 2, 0, 1, 2, 0, 1, 2, 0])
IDS = torch.arange(100, 110)


def test_what_is_forgotten():
    def which(forget, seed=0):
        return torch.nonzero(forgotten(forget, LABELS, IDS, seed))[:, 0].tolist()

    assert which(Forget("class", label=1)) == [1, 4, 7]
    assert len(which(Forget("class", label=0, fraction=0.5))) == 2
    assert set(which(Forget("class", label=2, count=2))) < {2, 5, 8}
    assert which(Forget("ids", ids=(103, 109))) == [3, 9]
    assert len(which(Forget("random", fraction=0.3))) == 3
    assert len({tuple(which(Forget("random", count=3), seed)) for seed in range(9)}) > 1
    for forget, match in (
        (Forget("class", label=7), "asks for 1 of 0"),
        (Forget("random", count=11), "11 of 10"),
        (Forget("ids", ids=(3,)), "record 3, which is not trained on"),
        (Forget("random", fraction=1.0), "nothing would be retained"),
    ):
        with pytest.raises(InvalidInput, match=match):
            which(forget)


def test_unseen_records_have_the_mix_of_classes_of_the_forgotten_ones():
    labels = torch.tensor([0] * 30 + [2] * 10)
    test = torch.arange(90), torch.tensor([0, 1, 2] * 30)
    found = alike(test, labels, 0)[1]
    assert found.bincount(minlength=3).tolist() == [30, 0, 10]
    whole = alike(test, torch.tensor([1, 1]), 0)
    assert whole[0].tolist() == list(range(1, 90, 3))
    with pytest.raises(InvalidInput, match="give 2"):
        alike((test[0][:6], test[1][:6]), torch.tensor([1]), 0)
