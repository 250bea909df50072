"""Rows of training data, in memory or anywhere that yields them in blocks.

:class:`Source` is what the passes of :mod:`expunge.linear.passes` need of data; :class:`Rows` is
the one in memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Protocol, Self, TypeVar

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from expunge.errors import InvalidInput
from expunge.linear.losses import Array
from expunge.linear.shards import BLOCK, blocks, run_threads, shards

Matrix = NDArray[np.floating] | sp.csr_array
_T = TypeVar("_T")


@dataclass(frozen=True, repr=False)
class Block:
    """Some rows, cast to float64 and read once: ``X`` (b, d) dense or CSR, ``target`` (b, C)."""

    X: Array | sp.csr_array
    target: Array
    weight: Array
    norm: Array
    intercept: bool

    def margins(self, W: Array) -> Array:
        """Return ``[X, 1] W`` (b, C)."""
        if not self.intercept:
            return np.asarray(self.X @ W)
        margin: Array = np.asarray(self.X @ W[:-1])
        margin += W[-1]
        return margin

    def transposed_product(self, c: Array) -> Array:
        """Return ``[X, 1]ᵀ c`` (p, C)."""
        product = np.asarray(self.X.T @ c if c.shape[1] == 1 else (c.T @ self.X).T)
        return np.vstack([product, c.sum(axis=0)]) if self.intercept else product

    def absolute(self) -> Block:
        """Return the block with absolute values of the features."""
        return self._with(abs(self.X))

    def square(self) -> Block:
        """Return the block with squares of the features."""
        return self._with(self.X * self.X)

    def coordinates(self, index: NDArray[np.int64]) -> Block:
        """Return some coordinates of the rows, in ascending order; the constant is the last."""
        d = self.X.shape[1]
        constant = self.intercept and bool(len(index)) and int(index[-1]) == d
        chosen: Any = self.X[:, index[:-1] if constant else index]
        return replace(self, X=chosen, intercept=constant)

    def _with(self, X: Any) -> Block:
        return replace(self, X=X)

    def augmented(self) -> Array:
        """Return ``[X, 1]`` as a dense array."""
        X = self.X.toarray() if sp.issparse(self.X) else self.X
        return np.column_stack([X, np.ones(len(X))]) if self.intercept else X


class Source(Protocol):
    """Rows with targets and weights, somewhere; a row of weight 0 counts as absent.

    Attributes
    ----------
    length : int
        Number of rows, absent ones included: it fixes how passes are cut.
    width : int
        Number of coordinates p of a row, the constant included.
    terms : int
        The most coordinates of a row that are not 0, or a bound of it: what is summed in a margin.
    columns : int
        Number of columns C of the target.
    intercept : bool
        Whether a constant 1 is appended to every row (as the last coordinate).
    count : int
        Number of rows of positive weight.
    radius : float
        Largest norm of a row, the constant included, absent rows counted or not.
    positives : (C,) int64 array
        Rows of positive weight and positive target, by column.
    """

    @property
    def length(self) -> int: ...
    @property
    def width(self) -> int: ...
    @property
    def terms(self) -> int: ...
    @property
    def columns(self) -> int: ...
    @property
    def intercept(self) -> bool: ...
    @property
    def count(self) -> int: ...
    @property
    def radius(self) -> float: ...
    @property
    def positives(self) -> NDArray[np.int64]: ...

    def outputs(self, which: slice) -> Self:
        """Return the same rows with some columns of the target only."""
        ...

    def map(self, work: Callable[[Iterator[Block]], _T]) -> list[_T]:
        """Return ``work`` of the blocks of every shard, in shard order.

        A block lives until the next one is asked for.
        """
        ...


@dataclass(frozen=True, repr=False)
class Rows:
    """Rows in memory.

    Attributes
    ----------
    X : (n, d) float array or CSR array
        Features as stored; cast to float64 block by block.
    target : (n, C) float64
        One column per output: ±1 (logistic), one-hot (softmax), real (squared).
    weight : (n,) float64, ≥ 0
    intercept : bool
        Whether a constant 1 is appended to every row (as the last coordinate).
    norm : (n,) float64
        Euclidean norms of the rows, the constant included.
    ids : sequence of n str, or None
        Whose rows these are.
    """

    X: Matrix
    target: Array
    weight: Array
    intercept: bool
    norm: Array
    ids: Sequence[str] | None = None

    def __repr__(self) -> str:
        """Say how many rows there are, never what is in them."""
        return f"Rows(n={self.count}, d={self.X.shape[1]}, intercept={self.intercept})"

    @property
    def length(self) -> int:
        """Number of rows, those of weight 0 included."""
        return int(self.X.shape[0])

    @property
    def width(self) -> int:
        """Number of coordinates p of a row, the constant included."""
        return int(self.X.shape[1]) + int(self.intercept)

    @cached_property
    def terms(self) -> int:
        """The most coordinates of a row that are stored, the constant included."""
        if not sp.issparse(self.X):
            return self.width
        return int(np.diff(self.X.indptr).max(initial=0)) + int(self.intercept)

    @property
    def columns(self) -> int:
        """Number of columns of the target."""
        return int(self.target.shape[1])

    @property
    def count(self) -> int:
        """Number of rows of positive weight."""
        return int(np.count_nonzero(self.weight))

    @property
    def radius(self) -> float:
        """Largest norm of a row of positive weight."""
        return float(self.norm.max(initial=0.0, where=self.weight > 0))

    @property
    def positives(self) -> NDArray[np.int64]:
        """Rows of positive weight and positive target, by column: (C,)."""
        return np.asarray((self.target[self.weight > 0] > 0).sum(axis=0), dtype=np.int64)

    def take(self, index: NDArray[np.intp] | NDArray[np.bool_]) -> Rows:
        """Return the rows at ``index`` (a copy)."""
        index = np.arange(len(self.weight))[index]
        ids = None if self.ids is None else [self.ids[i] for i in index.tolist()]
        parts = (self.X[index], self.target[index], self.weight[index])
        return Rows(*parts, self.intercept, self.norm[index], ids)

    def without(self, index: NDArray[np.intp] | NDArray[np.bool_]) -> Rows:
        """Return the same rows with weight 0 at ``index``: O(n) bytes, the features are shared."""
        weight = self.weight.copy()
        weight[index] = 0.0
        return replace(self, weight=weight)

    def drop(self, index: NDArray[np.intp] | NDArray[np.bool_]) -> None:
        """Give the rows at ``index`` weight 0 in place, at no cost in n: they are gone for good."""
        self.weight[index] = 0.0

    def outputs(self, which: slice) -> Rows:
        """Return the same rows with some columns of the target only."""
        return replace(self, target=self.target[:, which])

    def block(self, start: int, stop: int, buffer: Array | None = None) -> Block:
        """Return a span of the rows as one block, cast into ``buffer`` if there is one."""
        span = slice(start, stop)
        block: Any = self.X[span]
        if buffer is not None:
            X = buffer[: stop - start]
            np.copyto(X, block)
        else:
            X = block.astype(np.float64, copy=False)
        return Block(X, self.target[span], self.weight[span], self.norm[span], self.intercept)

    def map(self, work: Callable[[Iterator[Block]], _T]) -> list[_T]:
        """Return ``work`` of the blocks of every shard, in shard order."""
        spans = shards(self.length)
        cast = not sp.issparse(self.X) and self.X.dtype != np.float64

        def shard(k: int) -> _T:
            buffer = np.empty((BLOCK, self.X.shape[1])) if cast else None
            return work(self.block(*span, buffer) for span in blocks(*spans[k]))

        return run_threads(shard, len(spans))


def make_rows(
    X: Matrix,
    target: Array,
    weight: Array | None = None,
    *,
    intercept: bool = True,
    ids: Sequence[str] | None = None,
) -> Rows:
    """Check and wrap rows.

    Raises
    ------
    InvalidInput
        If shapes disagree, a value is not finite or a weight is negative.
    """
    n = X.shape[0]
    target = np.asarray(target, dtype=np.float64).reshape(n, -1)
    weight = np.ones(n) if weight is None else np.array(weight, dtype=np.float64)
    if weight.shape != (n,):
        raise InvalidInput(f"expected {n} weights, one per row, got shape {weight.shape}")
    X = sp.csr_array(X) if sp.issparse(X) else np.ascontiguousarray(X)
    spans = ((start, start + BLOCK) for start in range(0, n, BLOCK))
    norm = np.concatenate(
        [row_norms(X[i:j], target[i:j], weight[i:j], intercept) for i, j in spans] or [np.zeros(0)]
    )
    return Rows(X, target, weight, intercept, norm, ids)


def row_norms(X: Matrix, target: Array, weight: Array, intercept: bool) -> Array:
    """Check some rows, and return their norms, the constant included: (b,).

    Raises
    ------
    InvalidInput
        If a value is not finite or a weight is negative.
    """
    if not np.isfinite(weight).all() or (weight < 0).any():
        raise InvalidInput("weights must be finite and ≥ 0; drop or correct the rows")
    wide = X.astype(np.float64, copy=False)
    if sp.issparse(wide):
        square = wide.multiply(wide).sum(axis=1)
    else:
        square = np.einsum("ij,ij->i", wide, wide)
    if not (np.isfinite(square).all() and np.isfinite(target).all()):
        raise InvalidInput(
            "features and targets must be finite numbers (no NaN, no infinity, "
            "squares below 1e308); impute or drop the rows"
        )
    return np.sqrt(np.asarray(square, dtype=np.float64) + float(intercept))
