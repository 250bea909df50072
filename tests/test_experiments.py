"""The experiments run on small data and find what they are about."""

from __future__ import annotations

import importlib.util
import struct
from argparse import Namespace
from dataclasses import fields

import numpy as np
import pytest
from experiments import cases as data
from experiments import guo, residual_gradient
from experiments.cases import Case, case_of, mnist_idx
from experiments.residual_gradient import digits38

from expunge.datasets import Split
from expunge.errors import DataMissing
from expunge.linear.residuals import Bounds

PLAN = guo.Plan((1e-2,), (1.0, 10.0), 2, 4, 20)


def column(bounds: np.ndarray, name: str) -> np.ndarray:
    return bounds[:, [field.name for field in fields(Bounds)].index(name)]


def many() -> Case:
    """Three classes, one against the rest."""
    rng = np.random.default_rng(0)
    y = rng.integers(0, 3, 300)
    X = np.eye(3)[y] + 0.3 * rng.standard_normal((300, 3))
    split = Split(X[:240], y[:240], X[240:], y[240:], ("a", "b", "c"), "made up")
    return case_of("three", split, None, None)


@pytest.mark.parametrize("case", [digits38(), many()], ids=["binary", "one against the rest"])
def test_a_chain_of_removals_stays_below_its_bounds(case):
    found = guo.chain(case, 1e-2, 1.0, 4)
    assert found.bounds.shape == (4, len(fields(Bounds)))
    for name in ("sharp", "corollary_paper", "self_concordant"):
        assert (np.cumsum(column(found.bounds, name)) >= found.true - 1e-9).all()
    assert (column(found.bounds, "sharp") <= column(found.bounds, "corollary_paper")).all()
    assert found.accuracy > 0.8
    assert found.state.count == case.rows.count - 4
    each = column(found.bounds, "corollary_paper").mean()
    assert found.supported("corollary_paper", 2.0) == pytest.approx(2.0 / each)


def test_our_deletions_cost_no_accuracy():
    case = digits38()
    mine = guo.ours(case, 1e-2, 20)
    assert mine.count == 20
    assert mine.promise.epsilon == guo.EPSILON
    assert mine.passes + mine.refreshes > 0
    assert abs(mine.lost) < 0.02
    assert abs(mine.after - mine.retrained) < 0.05


def test_a_page_and_a_plot(tmp_path):
    case = digits38()
    cells = guo.grid(case, PLAN)
    assert [cell[:2] for cell in cells] == [(1e-2, 1.0), (1e-2, 10.0)]
    assert all(library > paper for *_, paper, library in cells)
    found = guo.chain(case, 1e-2, 10.0, PLAN.chain)
    page = "\n".join(guo.report(case, 1e-2, PLAN, found, cells))
    assert f"n = {case.rows.count}" in page
    assert "mean of 20" in page
    guo.plot(tmp_path / "guo.png", [(case.name, found, cells)])
    assert (tmp_path / "guo.png").read_bytes().startswith(b"\x89PNG")


def test_retrains_reach_a_residual():
    case = digits38()
    found = guo.timings(case, 1e-2, guo.chain(case, 1e-2, 10.0, 2))
    assert len(found) == 4
    assert all(float(gate) < 1e-6 for name, _, gate in found if "Newton" in name)
    assert all(seconds > 0 for _, seconds, _ in found)


def test_leaving_out_the_residual_gradient_loses_the_certificate_only(tmp_path):
    case = digits38()
    found = residual_gradient.outcomes(case, 1.0, (10, 100), np.arange(5))
    kept = {(o.start, o.remedy): o for o in found}
    for start in (10, 100):
        short, full = kept[start, "short"], kept[start, "full"]
        assert full.residual < short.residual
        assert not short.certified
        assert abs(short.accuracy - full.accuracy) < 0.02
        assert short.distance <= short.proved
    assert "refuses" in "\n".join(residual_gradient.table("digits", found))
    residual_gradient.plot(tmp_path / "plot.png", [("digits", found)])
    assert (tmp_path / "plot.png").exists()


def idx(values: np.ndarray) -> bytes:
    """Return an IDX file of unsigned bytes."""
    head = struct.pack(f">BBBB{values.ndim}I", 0, 0, 8, values.ndim, *values.shape)
    return head + values.astype(np.uint8).tobytes()


@pytest.fixture
def folder(tmp_path):
    """MNIST's four files, with twelve images of 2 × 2."""
    rng = np.random.default_rng(0)
    for part, labels in (("train", [3, 8, 1, 3, 8, 8]), ("t10k", [8, 3, 7, 8, 3, 3])):
        images = rng.integers(0, 256, (6, 2, 2))
        (tmp_path / f"{part}-images-idx3-ubyte").write_bytes(idx(images))
        (tmp_path / f"{part}-labels-idx1-ubyte").write_bytes(idx(np.array(labels)))
    return tmp_path


def test_mnist_from_its_files(folder):
    split = mnist_idx(folder)
    assert split.X.shape == split.X_test.shape == (6, 4)
    assert split.y.tolist() == [3, 8, 1, 3, 8, 8]
    assert 0.0 <= split.X.min() <= split.X.max() <= 1.0
    (folder / "t10k-labels-idx1-ubyte").unlink()
    with pytest.raises(DataMissing, match="t10k-labels"):
        mnist_idx(folder)


def test_two_classes_of_several(folder):
    case = case_of("3 against 8", mnist_idx(folder), (3, 8), None)
    assert case.rows.count == 5
    assert sorted(case.rows.target[:, 0]) == [-1, -1, 1, 1, 1]
    np.testing.assert_allclose(np.linalg.norm(case.rows.X, axis=1), 1.0)
    w = np.zeros((4, 1))
    assert case.accuracy(w) == np.mean(case.y_test == 0)
    assert case_of("some", mnist_idx(folder), (3, 8), 3).rows.count == 3


def test_one_target_a_class():
    case = many()
    assert case.rows.target.shape == (240, 3)
    assert (case.rows.target.sum(axis=1) == -1).all()


def test_computing_against_the_rest():
    names = ("comp.graphics", "sci.med", "comp.windows.x")
    X = np.eye(3)
    split = data.computing(Split(X, np.arange(3), X, np.arange(3), names, "made up"))
    assert split.y.tolist() == split.y_test.tolist() == [1, 0, 1]


def test_what_is_missing_is_noted(folder, monkeypatch):
    def missing(*_: object) -> Split:
        raise DataMissing("not here")

    monkeypatch.setattr(data, "fashion_mnist", missing)
    options = Namespace(quick=True, mnist=folder, newsgroups=None, cifar=None, only=["mnist"])
    notes: list[str] = []
    found = list(data.cases(options, notes))
    assert [case.name for case in found] == ["MNIST 3 against 8"]
    assert "not here" in notes[0]


def test_an_extractor_with_privacy():
    for name in ("torch", "opacus"):
        if importlib.util.find_spec(name) is None:
            pytest.skip(f"needs {name}")
    from experiments.private_extractor import WIDTH, private_features

    rng = np.random.default_rng(0)
    X, y = rng.random((300, 784)), rng.integers(0, 2, 300)
    train, test, claim = private_features(X, y, X[:10], epochs=1)
    assert train.shape == (300, WIDTH)
    np.testing.assert_allclose(test, train[:10], atol=1e-5)
    assert 0 < claim.epsilon < 10
    assert np.isfinite(train).all()
