"""The deep experiments: data formats, networks, tables and plots, on tiny cases."""

from __future__ import annotations

import io
import math
from argparse import Namespace
from dataclasses import fields, replace
from functools import partial

import numpy as np
import pytest
import torch
from experiments import deep_residual, deep_residual_steps, images, nets, zhang, zhang_trials
from experiments.images import Images
from experiments.zhang_ablations import Extent, ablations
from PIL import Image
from scipy.io import savemat
from sklearn.datasets import load_digits

from expunge.deep.descent import Recipe
from expunge.deep.inverse import lissa
from expunge.deep.network import view
from expunge.deep.problem import Problem
from expunge.deep.training import cross_entropy
from expunge.errors import DataMissing, InvalidInput


@pytest.fixture(autouse=True)
def _one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


# --- data -------------------------------------------------------------------------------------


def in_svhn_format(path, count=5, **changes):
    """Write a file such as SVHN's."""
    rng = np.random.default_rng(0)
    X = rng.integers(0, 256, (32, 32, 3, count), dtype=np.uint8)
    y = np.array([10, 1, 2, 9, 10], dtype=np.uint8)[:count, None]
    savemat(path, {"X": X, "y": y, **changes})
    return X, y


def test_svhn(tmp_path):
    X, _ = in_svhn_format(tmp_path / "train_32x32.mat")
    in_svhn_format(tmp_path / "test_32x32.mat", 2)
    found = images.svhn(tmp_path)
    assert found.X.shape == (5, 3, 32, 32)
    assert found.X_test.shape == (2, 3, 32, 32)
    assert found.y.tolist() == [0, 1, 2, 9, 0]
    assert float(found.X[3, 1, 7, 20]) == pytest.approx(X[7, 20, 1, 3] / 127.5 - 1.0)
    assert found.X.dtype == torch.float32
    (tmp_path / "test_32x32.mat").unlink()
    with pytest.raises(DataMissing, match="test_32x32"):
        images.svhn(tmp_path)


@pytest.mark.parametrize(
    "changes",
    [
        {"y": np.array([[11]] * 5, dtype=np.uint8)},
        {"y": np.array([[1]] * 4, dtype=np.uint8)},
        {"X": np.zeros((5, 32, 32, 3), np.uint8)},
        {"X": np.zeros((32, 32, 3, 5))},
    ],
)
def test_another_mat_file(tmp_path, changes):
    in_svhn_format(tmp_path / "train_32x32.mat", **changes)
    with pytest.raises(InvalidInput, match="from 1 to 10"):
        images.read_mat(tmp_path / "train_32x32.mat")


def test_no_mat_file(tmp_path):
    (tmp_path / "train_32x32.mat").write_bytes(b"no such thing" * 40)
    with pytest.raises(InvalidInput, match="SVHN's format"):
        images.read_mat(tmp_path / "train_32x32.mat")
    savemat(tmp_path / "train_32x32.mat", {"other": np.ones(3)})
    with pytest.raises(InvalidInput, match="SVHN's format"):
        images.read_mat(tmp_path / "train_32x32.mat")


def test_jpeg_images(tmp_path):
    pixels = np.zeros((3, 32, 32, 3), np.uint8)
    pixels[1, ..., 0] = 255
    files = []
    for each in pixels:
        buffer = io.BytesIO()
        Image.fromarray(each).save(buffer, "JPEG", quality=95)
        files.append(buffer.getvalue())
    raw = np.frombuffer(b"".join(files), np.uint8)
    offset = np.cumsum([0, *map(len, files)])
    X, y = images.decoded(raw, offset, np.array([3, 1, 4], np.uint8), 2)
    assert X.shape == (2, 3, 32, 32)
    assert y.tolist() == [3, 1]
    assert float(X[0].max()) < -0.98
    assert float(X[1, 0].min()) > 0.95
    with pytest.raises(DataMissing, match="--cifar"):
        images.cifar10_jpeg(tmp_path / "none.npz")
    np.savez(tmp_path / "other.npz", a=1)
    with pytest.raises(InvalidInput, match="SHA-256"):
        images.cifar10_jpeg(tmp_path / "other.npz")


def test_some_images_are_always_the_same():
    whole = Images(
        torch.arange(9.0)[:, None], torch.arange(9), torch.zeros(4, 1), torch.zeros(4), ""
    )
    assert torch.equal(whole.some(3).y, whole.some(3).y)
    assert len(whole.some(3).y_test) == 4
    assert torch.equal(whole.some(3).X[:, 0], whole.some(3).y.float())


@pytest.mark.parametrize(
    ("maker", "count", "norm"),
    [
        (nets.mlp, 26_506, 5.0),
        (nets.all_cnn, 1_620_010, 42.0),
        (nets.resnet18, 11_171_274, 71.0),
    ],
)
def test_networks_have_the_published_sizes(maker, count, norm):
    w = view(nets.made(maker, 0)).vector()
    assert len(w) == count
    assert float(w.norm()) == pytest.approx(norm, rel=0.02)


@pytest.mark.parametrize("maker", [partial(nets.all_cnn, 4), partial(nets.resnet18, 2)])
def test_narrow_networks(maker):
    net, x = nets.made(maker, 1), torch.randn(2, 3, 32, 32)
    assert net(x).shape == (2, 10)
    assert not list(net.buffers())
    Problem(net, cross_entropy, (x, torch.zeros(2, dtype=torch.long)))


# --- Zhang ------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def trial():
    X, y = load_digits(return_X_y=True)
    x, t = torch.tensor(X / 16.0).float(), torch.tensor(y)
    data = Images(x[:400], t[:400], x[500:700], t[500:700], "digits")
    series = lissa(repeats=2, depth=50, batch=5, tol=0.9)
    recipe = Recipe(lr=2e-2, epochs=6, batch_size=50, weight_decay=5e-4, max_norm=20.0)
    network = partial(nets.made, partial(nets.mlp, 64, 8))
    case = zhang_trials.Case("digits", data, network, recipe, 40, series)
    torch.set_num_threads(1)
    return zhang_trials.prepare(case, 0)


def test_a_trial(trial):
    assert len(trial.forget[1]) == len(trial.unseen[1]) == 40
    assert trial.forget[1].bincount(minlength=10).equal(trial.unseen[1].bincount(minlength=10))
    assert len(trial.retain[1]) == 360
    assert trial.damping > trial.ends[1]
    assert 0 < trial.warm_seconds < 3 * trial.cold_seconds
    weights = [view(m).vector() for m in (trial.trained, trial.same, trial.other, trial.warm)]
    assert len({float(w.norm()) for w in weights}) == 4


def test_the_main_table_and_the_claims(trial, tmp_path):
    found = zhang_trials.rows(trial)
    by_name = {row.name: row for row in found}
    assert by_name["retrain"].cold == 1.0
    assert by_name["before"].moved == 0.0
    assert by_name["retrain"].to_same == 0.0
    assert by_name["Zhang, certified noise"].implied <= 1.0
    assert by_name["Zhang, certified noise"].test < 0.4
    assert by_name["Zhang, retained gradient, CG"].implied > 1e8
    assert by_name["Zhang, forget gradient, CG"].test > 0.5
    inverse = zhang_trials.inverse_times(trial)
    assert inverse.parameters == 682
    assert min(inverse.exact, inverse.series, inverse.conjugate) > 0
    page = "\n".join(zhang.report(trial.case, [trial, trial], [found, found], inverse))
    assert "claim: REFUSED; implied ε=8.002e+08" in page
    assert "extrapolated from 32 columns" in page
    assert "470 times" in page
    assert page.count("| Zhang") == 5
    head = next(line for line in page.splitlines() if line.startswith("| model"))
    for line in page.splitlines():
        if line.startswith("| "):
            assert line.count("|") == head.count("|"), line


def test_every_ablation(trial, tmp_path):
    extent = Extent((1, 2), (5, 20), (10, 20), 2, 10)
    found = {each.name: each for each in ablations(trial, extent)}
    assert set(found) == {
        "lambda",
        "radius",
        "lissa",
        "sigma",
        "forget",
        "requests",
        "residual",
    }
    for each in found.values():
        assert {len(row) for row in each.rows} == {len(each.head)}
        assert {len(values) for values in each.curves.values()} == {len(each.x)}
        zhang.plot(tmp_path / f"{each.name}.png", each)
        assert (tmp_path / f"{each.name}.png").read_bytes().startswith(b"\x89PNG")
        assert each.lines()[2].startswith("| ")
    claims = [row[-1] for row in found["sigma"].rows]
    assert claims == ["refused"] * 5 + ["(1, 1e-05)"]
    implied = [float(row[3]) for row in found["requests"].rows]
    assert implied == sorted(implied)


def test_the_page_is_written_as_it_grows(trial, tmp_path):
    plan = replace(zhang.QUICK, seeds=1, extent=Extent((1,), (5,), (10,), 1, 10))
    lines: list[str] = []
    zhang.run(replace(trial.case, forget=20), plan, tmp_path, lines, vary=False)
    page = (tmp_path / "zhang.md").read_text(encoding="utf-8")
    assert page.startswith("## digits")
    assert "Ablations" not in page


def test_cases_that_are_not_here_are_noted(tmp_path, monkeypatch):
    def missing():
        raise DataMissing("not here")

    monkeypatch.setattr(zhang, "fashion_mnist", missing)
    monkeypatch.setattr(zhang, "mnist_small", missing)
    in_svhn_format(tmp_path / "train_32x32.mat")
    in_svhn_format(tmp_path / "test_32x32.mat")
    options = Namespace(mnist=None, cifar=None, svhn=tmp_path, only=None, device="cpu")
    notes: list[str] = []
    found = list(zhang.cases(options, zhang.QUICK, notes))
    assert [case.name for case in found] == ["ResNet-18, SVHN"]
    assert sum("left out" in note for note in notes) == 3
    assert found[0].network(0)(found[0].images.X).shape == (5, 10)
    options.only = ["mlp"]
    assert list(zhang.cases(options, zhang.QUICK, notes)) == []


def test_the_full_plan_is_the_published_one():
    full = zhang.FULL
    assert (full.epochs, full.width, full.images) == (50, (96, 64), None)
    assert (full.series.repeats, full.series.depth, full.series.batch) == (10, 1000, 10)


# --- residual gradients -----------------------------------------------------------------------


PLAN = replace(
    deep_residual_steps.QUICK, epochs=(3,), ratios=(0.5, 1.2), rows=200, polish=20, decays=(1e-2,)
)


def test_the_parts_of_the_gradient_and_the_steps():
    model, data = deep_residual_steps.Model(4, 0), deep_residual_steps.digits(PLAN, 0)
    at = deep_residual_steps.start(model, data, 3, PLAN, 0)
    torch.testing.assert_close(
        at.residual - at.forget, model.gradient(at.w, *data.kept, 0.0)[1], rtol=0, atol=1e-12
    )
    damping = 2 * abs(at.smallest)
    H = at.basis @ torch.diag(at.values) @ at.basis.T + damping * torch.eye(len(at.w)).double()
    torch.testing.assert_close(H @ at.step(damping, keep=True), at.forget - at.residual)
    torch.testing.assert_close(H @ at.step(damping, keep=False), at.forget)
    found = list(deep_residual_steps.outcomes(model, data, at, PLAN))
    assert [o.handling for o in found[:2]] == ["before", "left out"]
    assert found[0].local == found[0].same == 1.0
    assert len(found) == 7


def test_the_page_of_residual_gradients(tmp_path):
    starts, found, polished = deep_residual.run(PLAN)
    page = "\n".join(deep_residual.page(starts, found, polished))
    assert page.count("left out, calibrated (R3)") == 4
    assert "heuristic" in page
    assert len(polished) == 3
    assert all(p.polished < p.floor for p in polished)
    deep_residual.plot(tmp_path / "plot.png", found)
    assert (tmp_path / "plot.png").read_bytes().startswith(b"\x89PNG")


def test_a_collapse_is_counted():
    fine = dict.fromkeys((f.name for f in fields(deep_residual_steps.Outcome)), 0.0)
    fine |= {"seed": 0, "epochs": 5, "handling": "before", "test": 90.0}
    made = [fine, fine | {"handling": "kept", "ratio": 0.5, "test": 60.0}]
    made.append(fine | {"handling": "kept", "ratio": 2.0, "test": 89.0})
    lines = deep_residual.verdict([deep_residual_steps.Outcome(**each) for each in made])
    assert "| λ < \\|λ_min\\| | kept | 1 of 1, 30.0 |" in lines
    assert "| λ ≥ 1.05\\|λ_min\\| | kept | 0 of 1, 1.0 |" in lines
    assert math.isclose(deep_residual.COLLAPSE, 5.0)
