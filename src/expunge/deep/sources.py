"""What an experiment file names: records, untrained models, and which records to forget."""

from __future__ import annotations

import gzip
import hashlib
import sys
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from expunge.datasets import fashion_mnist, read_idx
from expunge.deep.settings import Data, Forget, Net
from expunge.errors import DataMissing, InvalidInput

Pair = tuple[Tensor, Tensor]

DIGITS_TEST = 360

_ACTIVATIONS = {"relu": nn.ReLU, "tanh": nn.Tanh, "gelu": nn.GELU}


@dataclass(frozen=True, repr=False)
class Records:
    """Training and test records.

    Attributes
    ----------
    train, test : pair of tensors
        Inputs (records, ...) in float32 and labels (records,) from 0.
    ids : (records,) tensor
        Positions of the training records in their source.
    digest : str
        SHA-256 of everything above.
    """

    train: Pair
    test: Pair
    ids: Tensor
    digest: str

    def __repr__(self) -> str:
        return f"Records({len(self.ids)} for training, {len(self.test[1])} for testing)"

    @property
    def shape(self) -> tuple[int, ...]:
        """Of the inputs of one record."""
        return tuple(self.train[0].shape[1:])

    @property
    def classes(self) -> int:
        """Number of classes, from the largest label."""
        return 1 + int(max(self.train[1].max(), self.test[1].max()))


def load_data(data: Data, base: Path) -> Records:
    """Return the records that [data] names; relative paths start at ``base``.

    Raises
    ------
    DataMissing
        If they are not there.
    InvalidInput
        If they are not inputs and labels of classes.
    """
    arrays = _read(data, base)
    for name, X, y in (("training", *arrays[:2]), ("test", *arrays[2:])):
        _check(name, X, y)
    if arrays[0].shape[1:] != arrays[2].shape[1:]:
        raise InvalidInput(
            f"training records have shape {arrays[0].shape[1:]}, test records {arrays[2].shape[1:]}"
        )
    rng = np.random.default_rng(data.seed)
    kept = _drawn(rng, len(arrays[1]), data.rows, "rows")
    tested = _drawn(rng, len(arrays[3]), data.test_rows, "test_rows")
    parts = [arrays[0][kept], arrays[1][kept], arrays[2][tested], arrays[3][tested]]
    x, y, x_test, y_test = (
        torch.as_tensor(part, dtype=dtype)
        for part, dtype in zip(parts, (torch.float32, torch.int64) * 2, strict=True)
    )
    seal = hashlib.sha256()
    for tensor in (x, y, x_test, y_test):
        seal.update(repr(tuple(tensor.shape)).encode() + tensor.contiguous().numpy().tobytes())
    return Records((x, y), (x_test, y_test), torch.as_tensor(kept), seal.hexdigest())


def _read(data: Data, base: Path) -> list[Any]:
    path = None if data.path is None else base / data.path
    if data.source == "fashion-mnist":
        split = fashion_mnist() if path is None else fashion_mnist(path)
        return [split.X, split.y, split.X_test, split.y_test]
    if data.source == "digits":
        from sklearn.datasets import load_digits

        X, y = load_digits(return_X_y=True)
        order = np.random.default_rng(0).permutation(len(y))
        X, y = X[order] / 16.0, y[order]
        cut = len(y) - DIGITS_TEST
        return [X[:cut], y[:cut], X[cut:], y[cut:]]
    assert path is not None
    names = (data.x, data.y, data.x_test, data.y_test)
    return _npz(path, names) if data.source == "npz" else _idx(path, names)


def _npz(path: Path, names: tuple[str, ...]) -> list[Any]:
    if not path.is_file():
        raise DataMissing(f"{path} is missing: [data] path must name an .npz file")
    try:
        with np.load(path, allow_pickle=False) as held:
            missing = [name for name in names if name not in held]
            if missing:
                raise InvalidInput(
                    f"{path} has no array {missing[0]!r}, but {', '.join(held)}: name the arrays "
                    "with x, y, x_test and y_test in [data]"
                )
            return [held[name] for name in names]
    except (ValueError, EOFError, zipfile.BadZipFile) as error:
        if isinstance(error, InvalidInput):
            raise
        raise InvalidInput(f"{path} is no .npz file of plain arrays: {error}") from None


def _idx(path: Path, names: tuple[str, ...]) -> list[Any]:
    found = []
    for name in names:
        file = path / name
        if not file.is_file():
            raise DataMissing(
                f"{file} is missing: name the IDX files with x, y, x_test and y_test in [data]"
            )
        raw = file.read_bytes()
        try:
            array = read_idx(gzip.decompress(raw) if name.endswith(".gz") else raw, name)
        except (gzip.BadGzipFile, EOFError) as error:
            raise InvalidInput(f"{file} cannot be decompressed: {error}") from None
        found.append(array / 255.0 if array.ndim > 1 else array)
    return found


def _check(name: str, X: Any, y: Any) -> None:
    if X.ndim < 2 or y.ndim != 1 or len(X) != len(y) or len(y) < 2:
        raise InvalidInput(
            f"{name} data must be inputs (records, ...) and labels (records,), of at least 2 "
            f"records; got shapes {X.shape} and {y.shape}"
        )
    if X.dtype.kind not in "fiub" or not np.isfinite(X).all():
        raise InvalidInput(f"{name} inputs must be finite numbers")
    if y.dtype.kind not in "iu" or y.min() < 0:
        raise InvalidInput(f"{name} labels must be whole numbers from 0, not of type {y.dtype}")


def _drawn(rng: np.random.Generator, there: int, wanted: int | None, name: str) -> Any:
    """Return sorted positions of the rows to use."""
    if wanted is None:
        return np.arange(there)
    if wanted > there:
        raise InvalidInput(f"[data] {name} = {wanted}, but there are {there} records")
    return np.sort(rng.permutation(there)[:wanted])


def make_model(net: Net, shape: tuple[int, ...], classes: int, base: Path) -> nn.Module:
    """Return an untrained model for records of a shape, from the global generator's state."""
    if net.kind == "mlp":
        sizes = [int(np.prod(shape)), *net.widths]
        layers: list[nn.Module] = [nn.Flatten()]
        for a, b in pairwise(sizes):
            layers += [nn.Linear(a, b), _ACTIVATIONS[net.activation]()]
        return nn.Sequential(*layers, nn.Linear(sizes[-1], classes))
    if net.kind == "cnn":
        return _cnn(net.width, shape, classes)
    return _own(str(net.factory), base)


def _cnn(width: int, shape: tuple[int, ...], classes: int) -> nn.Module:
    """Return a small all-convolutional network with GroupNorm."""
    side = round(shape[0] ** 0.5) if len(shape) == 1 else shape[-1]
    channels = shape[0] if len(shape) == 3 else 1
    if channels * side * side != int(np.prod(shape)):
        raise InvalidInput(f"a cnn needs square images, not records of shape {shape}")

    def block(a: int, b: int, stride: int) -> list[nn.Module]:
        return [nn.Conv2d(a, b, 3, stride, 1), nn.GroupNorm(4, b), nn.ReLU()]

    layers = [*block(channels, width, 1), *block(width, width, 2), *block(width, 2 * width, 2)]
    return nn.Sequential(
        nn.Flatten(),
        nn.Unflatten(1, (channels, side, side)),
        *layers,
        nn.Conv2d(2 * width, classes, 1),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
    )


def _own(factory: str, base: Path) -> nn.Module:
    module, _, name = factory.partition(":")
    with _searched(base):
        try:
            made = getattr(import_module(module), name)()
        except (ImportError, AttributeError, ValueError) as error:
            raise InvalidInput(
                f"[model] factory = {factory!r} must be 'package.module:function', a function "
                f"without arguments that can be imported: {error}"
            ) from None
    if not isinstance(made, nn.Module):
        raise InvalidInput(f"{factory} must return a torch.nn.Module, not {type(made).__name__}")
    return made


@contextmanager
def _searched(directory: Path) -> Iterator[None]:
    sys.path.insert(0, str(directory))
    try:
        yield
    finally:
        sys.path.remove(str(directory))


def forgotten(forget: Forget, labels: Tensor, ids: Tensor, seed: int) -> Tensor:
    """Return which records to forget, a mask (records,).

    Raises
    ------
    InvalidInput
        If a record is not there, or none or all would be forgotten.
    """
    mask = torch.zeros(len(labels), dtype=torch.bool)
    if forget.kind == "ids":
        where = {own: position for position, own in enumerate(ids.tolist())}
        missing = [own for own in forget.ids if own not in where]
        if missing:
            raise InvalidInput(
                f"[forget] names record {missing[0]}, which is not trained on: ids are positions "
                "in the source's training records, and [data] rows leaves some out"
            )
        mask[[where[own] for own in forget.ids]] = True
    else:
        may = torch.arange(len(labels))
        may = may if forget.kind == "random" else may[labels == forget.label]
        whole = 1.0 if forget.fraction is None else forget.fraction
        count = max(1, round(whole * len(may))) if forget.count is None else forget.count
        if not 0 < count <= len(may):
            raise InvalidInput(f"[forget] asks for {count} of {len(may)} records")
        order = torch.randperm(len(may), generator=torch.Generator().manual_seed(seed))
        mask[may[order[:count]]] = True
    if bool(mask.all()):
        raise InvalidInput("[forget] names all records: nothing would be retained")
    return mask


def alike(test: Pair, labels: Tensor, seed: int) -> Pair:
    """Return the most test records that can be drawn with the mix of classes of ``labels``.

    Raises
    ------
    InvalidInput
        If that leaves fewer than 4.
    """
    shares = labels.bincount().double() / len(labels)
    there = test[1].bincount(minlength=len(shares))[: len(shares)].double()
    size = float((there / shares)[shares > 0].min())
    generator = torch.Generator().manual_seed(seed)
    chosen = []
    for label in torch.nonzero(shares)[:, 0]:
        own = torch.nonzero(test[1] == label)[:, 0]
        count = int(size * float(shares[label]) + 0.5)
        chosen.append(own[torch.randperm(len(own), generator=generator)[:count]])
    found = torch.cat(chosen).sort().values
    if len(found) < 4:
        raise InvalidInput(
            "the membership attack needs unseen records like the forgotten ones, but the test "
            f"records give {len(found)} with the same mix of classes"
        )
    return test[0][found], test[1][found]
