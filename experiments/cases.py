"""The data of the experiments: unit rows, targets ±1; what is missing is noted and left out."""

from __future__ import annotations

import argparse
import gzip
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from expunge.datasets import (
    Split,
    cifar10_features,
    fashion_mnist,
    mnist_small,
    newsgroups_features,
    read_idx,
)
from expunge.errors import DataMissing
from expunge.linear.rows import Rows, make_rows


@dataclass(frozen=True)
class Case:
    """Unit rows, targets ±1 (n, K), and the test set with class numbers."""

    name: str
    rows: Rows
    X_test: np.ndarray
    y_test: np.ndarray

    def accuracy(self, weights: np.ndarray) -> float:
        """Return the share of test rows that the weights (d, K) classify correctly."""
        scores = self.X_test @ weights
        found = scores.argmax(axis=1) if scores.shape[1] > 1 else (scores[:, 0] > 0).astype(int)
        return float(np.mean(found == self.y_test))


def case_of(name: str, split: Split, classes: tuple[int, ...] | None, limit: int | None) -> Case:
    """Return a case of unit rows; two classes make it binary, None takes all of them."""
    parts = []
    for X, y in ((split.X, split.y), (split.X_test, split.y_test)):
        if classes is not None:
            keep = np.isin(y, classes)
            X, y = X[keep], (y[keep] == classes[1]).astype(np.int64)
        parts += [X / np.maximum(np.linalg.norm(X, axis=1, keepdims=True), 1e-12), y]
    X, y, X_test, y_test = parts
    order = np.random.default_rng(0).permutation(len(y))[:limit]
    width = 1 if classes is not None else int(y.max()) + 1
    target = np.where(y[order][:, None] == (np.arange(width) if width > 1 else 1), 1.0, -1.0)
    return Case(name, make_rows(X[order], target, intercept=False), X_test, y_test)


def mnist_idx(directory: Path) -> Split:
    """Read the four MNIST files, gzipped or not."""
    arrays = []
    for part in ("train", "t10k"):
        for kind in ("images-idx3", "labels-idx1"):
            path = directory / f"{part}-{kind}-ubyte"
            if not path.exists():
                path = path.with_name(path.name + ".gz")
            if not path.exists():
                raise DataMissing(f"{path} is missing; --mnist takes the folder of the IDX files")
            raw = path.read_bytes()
            arrays.append(
                read_idx(gzip.decompress(raw) if path.suffix == ".gz" else raw, path.name)
            )
    X, y, X_test, y_test = arrays
    names = tuple(map(str, range(10)))
    flat = [images.reshape(len(images), -1) / 255.0 for images in (X, X_test)]
    return Split(flat[0], y.astype(np.int64), flat[1], y_test.astype(np.int64), names, "MNIST")


def computing(split: Split) -> Split:
    """Turn 20 newsgroups into two classes: everything about computers, and the rest."""
    about = np.array([name.startswith("comp.") for name in split.names])
    labels = about.astype(np.int64)
    y, y_test = labels[split.y], labels[split.y_test]
    return Split(split.X, y, split.X_test, y_test, ("rest", "comp"), split.source)


def cases(options: argparse.Namespace, notes: list[str]) -> Iterator[Case]:
    """Yield the cases whose data are here, add a note for each of the others."""
    limit = 2000 if options.quick else None
    mnist = (lambda: mnist_idx(options.mnist)) if options.mnist else mnist_small
    makers: list[tuple[str, Callable[[], Split], tuple[int, int] | None]] = [
        ("MNIST 3 against 8", mnist, (3, 8)),
        ("Fashion-MNIST pullover against shirt", fashion_mnist, (2, 6)),
    ]
    if options.newsgroups:
        makers.append(
            ("20 newsgroups", lambda: computing(newsgroups_features(options.newsgroups)), (0, 1))
        )
    if options.cifar:
        makers.append(("CIFAR-10 features", lambda: cifar10_features(options.cifar), None))
    for name, make, classes in makers:
        if options.only and not any(word.lower() in name.lower() for word in options.only):
            continue
        try:
            yield case_of(name, make(), classes, limit)
        except DataMissing as error:
            notes += [f"{name}: left out. {error}", ""]
