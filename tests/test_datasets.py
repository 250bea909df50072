"""The loaders give the data they describe; nothing is downloaded, absent data are skipped."""

from __future__ import annotations

import dataclasses
import gzip
import struct

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression

from expunge import datasets
from expunge.errors import DataMissing, InvalidInput
from expunge.folder.encoding import Encoding
from expunge.folder.labels import LabelEncoding
from expunge.folder.table import from_arrow


def load(loader, *arguments):
    try:
        return loader(*arguments)
    except DataMissing as error:
        pytest.skip(str(error))


def test_rand_health_is_encoded_by_its_schema_and_learnable():
    people = load(datasets.rand_health)
    table = from_arrow(
        people.table, label=people.label, identifier=people.identifier, source="RAND"
    )
    X = Encoding.declared(people.schema).encode(table)
    y = LabelEncoding.declared(people.schema["label"]).encode(table)
    ids = np.array(table.ids.to_pylist())
    everybody = np.unique(ids)
    assert X.shape == (20190, 33)
    assert len(everybody) == 5912
    assert np.bincount(y).tolist() == [6308, 13882]
    assert np.linalg.norm(X, axis=1).max() <= 3.0 + 1e-12
    test = np.isin(ids, everybody[::5])
    accuracy = LogisticRegression(max_iter=2000).fit(X[~test], y[~test]).score(X[test], y[test])
    assert accuracy > y[test].mean() + 0.02


def test_rand_health_leaves_out_care_and_what_others_answered():
    people = load(datasets.rand_health)
    leaks = {"mdvis", "notmdvis", "meddol", "outpdol", "inpdol", "totadm", "mentvis", "binexp"}
    assert not leaks & set(people.table.column_names)
    assert set(people.table["physlm"].unique().to_pylist()) == {0.0, 1.0, None}
    for name in ("mhi", "disea"):
        tenths = np.array(people.table[name].drop_null().to_pylist()) * 10
        assert np.abs(tenths - tenths.round()).max() < 1e-9
    assert "zper" not in repr(people)


def test_fashion_mnist():
    split = load(datasets.fashion_mnist)
    assert split.X.shape == (60000, 784)
    assert split.X_test.shape == (10000, 784)
    assert np.bincount(split.y).tolist() == [6000] * 10
    assert (split.X.min(), split.X.max()) == (0.0, 1.0)
    assert split.names[2] == "pullover"
    assert repr(split) == "Split(X(60000, 784), X_test(10000, 784), 10 classes)"


def test_fashion_mnist_missing_or_another(tmp_path):
    with pytest.raises(DataMissing, match="apt-get install -y dataset-fashion-mnist"):
        datasets.fashion_mnist(tmp_path)
    (tmp_path / "t10k-images-idx3-ubyte.gz").write_bytes(gzip.compress(b"other"))
    with pytest.raises(InvalidInput, match="SHA-256 differs"):
        datasets.fashion_mnist(tmp_path)


def test_mnist_small():
    split = load(datasets.mnist_small)
    assert split.X.shape == (4000, 784)
    assert np.bincount(split.y_test).tolist() == [100] * 10
    with pytest.raises(InvalidInput, match="multiple of 10"):
        datasets.mnist_small(5)


def test_features_files(tmp_path):
    with pytest.raises(DataMissing, match="given by its path"):
        datasets.cifar10_features(tmp_path / "none.npz")
    np.savez(tmp_path / "some.npz", train_feature=np.zeros((2, 3)))
    with pytest.raises(InvalidInput, match="SHA-256 differs"):
        datasets.newsgroups_features(tmp_path / "some.npz")


def test_features_files_are_read(tmp_path, monkeypatch):
    path = tmp_path / "features.npz"
    arrays = {f"{part}_feature": np.full((3, 2), 0.5, "f2") for part in ("train", "test")}
    arrays |= {f"{part}_label": np.array([0, 1, 1], "u1") for part in ("train", "test")}
    np.savez(path, class_names=np.array(["a", "b"]), **arrays)
    monkeypatch.setattr(datasets, "_checked", lambda *_: b"")
    split = datasets.cifar10_features(path)
    assert split.X.dtype == np.float64
    assert split.names == ("a", "b")
    assert split.y.tolist() == [0, 1, 1]
    with pytest.raises(dataclasses.FrozenInstanceError):
        split.X = split.X_test


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"\0\0\x08",
        b"\0\0\x09\x01" + struct.pack(">I", 1) + b"1",
        b"\0\0\x08\x00",
        b"\0\0\x08\x01" + struct.pack(">I", 3) + b"12",
        b"\0\0\x08\x03\0\0",
    ],
)
def test_idx_files_that_are_cut_short_or_other(raw):
    with pytest.raises(InvalidInput, match="no IDX file"):
        datasets.read_idx(raw, "file")


def test_idx_images():
    raw = b"\0\0\x08\x03" + struct.pack(">III", 2, 1, 3) + bytes(range(6))
    assert datasets.read_idx(raw, "file").tolist() == [[[0, 1, 2]], [[3, 4, 5]]]
