"""Rows that come block by block: the same bounds as in memory, and no more memory than a block."""

from __future__ import annotations

import math
import tracemalloc
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import pytest
import scipy.sparse as sp
from numpy.typing import NDArray

from expunge.certificate import distance
from expunge.certificate.distance import distance_bound
from expunge.certificate.policy import PENALISED
from expunge.certificate.residual import Block, Rows, Source, gradient, pieces
from expunge.errors import InvalidInput
from oracles import minimiser

Array = NDArray[np.float64]
OUTPUTS = {"logistic": 1, "poisson": 1, "gamma": 1, "squared": 2, "huber": 2}
LOSSES = [*OUTPUTS, "softmax", "logistic-ovr", "squared-hinge"]


@dataclass(frozen=True)
class Drawn:
    """A source that draws its blocks anew from their seeds at every pass, last block first."""

    length: int
    width: int
    outputs: int
    loss: str
    size: int
    sparse: bool = False

    def blocks(self) -> Iterator[Block]:
        for start in reversed(range(0, self.length, self.size)):
            rng = np.random.default_rng(start)
            n = min(self.size, self.length - start)
            X = rng.normal(size=(n, self.width)) * (rng.random((n, self.width)) < 0.6)
            scores = 0.3 * rng.normal(size=(n, self.outputs)) + X[:, :1]
            target = {
                "softmax": np.eye(self.outputs)[scores.argmax(axis=1)],
                "squared": scores,
                "huber": scores,
                "poisson": np.floor(np.exp(scores)),
                "gamma": np.exp(scores),
            }.get(self.loss, np.where(scores > 0, 1.0, -1.0))
            yield sp.csr_array(X) if self.sparse else X, target, rng.integers(0, 3, n) / 2


def drawn(loss: str, length: int, size: int, sparse: bool = False) -> Drawn:
    return Drawn(length, 4, OUTPUTS.get(loss, 3), loss, size, sparse)


def in_memory(source: Drawn) -> Rows:
    X, y, s = (np.concatenate(it[::-1]) for it in zip(*replace(source).blocks(), strict=True))
    return Rows(X, y, s)


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("intercept", [False, True])
@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("direct", [0, 4096])
def test_blocks_give_what_rows_in_memory_give(
    loss: str, intercept: bool, sparse: bool, direct: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(distance, "MAX_DIRECT", direct)
    source: Source = drawn(loss, 700, 37, sparse)
    rows = in_memory(drawn(loss, 700, 37))
    W = minimiser(rows.features, rows.target, rows.weight, loss, 1.0, intercept) + 1e-5
    far, near = (distance_bound(it, W, loss, 1.0, intercept) for it in (source, rows))
    assert math.isinf(near.bound) == (intercept and loss in PENALISED)
    assert far.residual == pytest.approx(near.residual, rel=1e-13)
    assert far.bound == pytest.approx(near.bound, rel=1e-9)
    a, b = (gradient(it, W, loss, 1.0, intercept) for it in (source, rows))
    assert (np.abs(a.value - b.value) <= a.errors + b.errors).all()
    assert (a.widest, a.margin_error) == pytest.approx((b.widest, b.margin_error))


def test_rows_are_read_from_last_to_first_and_cut_to_the_cache() -> None:
    rows = Rows(np.arange(300_000.0)[:, None], np.zeros((300_000, 1)), np.ones(300_000))
    read = list(pieces(rows, True))
    assert len(read) > 1
    assert read[0][0][-1].tolist() == [299_999.0, 1.0]
    assert read[-1][0][0].tolist() == [0.0, 1.0]
    assert sum(len(weight) for _, _, weight in read) == 300_000


@pytest.mark.parametrize(("loss", "outputs"), [("logistic-ovr", 8), ("softmax", 8)])
def test_no_array_of_the_length_of_the_data_is_kept(loss: str, outputs: int) -> None:
    source = Drawn(80_000, 3, outputs, loss, 1000)
    W = np.zeros((4, outputs))
    tracemalloc.start()
    distance_bound(source, W, loss, 1.0, True)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 2e6 < 80_000 * outputs * 8


@pytest.mark.parametrize(("width", "n", "each"), [(60_000, 2000, 20), (300, 50_000, 2)])
def test_sparse_rows_are_never_made_dense(width: int, n: int, each: int) -> None:
    """Wide ones, where the floor is taken, and many, where the leverage is."""
    rng = np.random.default_rng(1)
    values, columns = rng.random(n * each), rng.integers(0, width, n * each)
    X = sp.csr_array((values, columns, np.arange(n + 1) * each), shape=(n, width))
    rows = Rows(X, np.where(rng.random((n, 1)) < 0.5, 1.0, -1.0), np.ones(n))
    W = np.zeros((width + 1, 1))
    W[0] = 1e-3
    tracemalloc.start()
    assert distance_bound(rows, W, "logistic", 100.0, True).residual > 0
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < n * width * 8 / 4


def test_a_source_that_does_not_keep_its_word_is_refused() -> None:
    good = drawn("logistic", 100, 30)
    W = np.zeros((4, 1))

    class Wrong(Drawn):
        def blocks(self) -> Iterator[Block]:
            for X, y, s in good.blocks():
                yield X, y, np.full(len(s), math.nan)

    parts = (100, 4, 1, "logistic", 30)
    assert distance_bound(good, W, "logistic", 1.0, False).bound < math.inf
    with pytest.raises(InvalidInput, match="weights must be finite"):
        distance_bound(Wrong(*parts), W, "logistic", 1.0, False)

    class Short(Drawn):
        def blocks(self) -> Iterator[Block]:
            return iter(list(good.blocks())[1:])

    with pytest.raises(InvalidInput, match="expected 100 rows, the source gave 90"):
        distance_bound(Short(*parts), W, "logistic", 1.0, False)

    class Narrow(Drawn):
        def blocks(self) -> Iterator[Block]:
            return ((X[:, :3], y, s) for X, y, s in good.blocks())

    with pytest.raises(InvalidInput, match="expected blocks of 4 features"):
        distance_bound(Narrow(*parts), W, "logistic", 1.0, False)
