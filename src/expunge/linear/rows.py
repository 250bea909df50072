"""Rows of training data, and the passes over them: gradient, Hessian, leverage.

Data are read once per pass, in blocks that fit the cache, by as many threads as there are cores
(each with a single-threaded BLAS). Shard and block boundaries depend on the data only and partial
sums are added in shard order, so the result does not depend on the number of threads.

All sums are *sum* objectives: ``Σ_i s_i ℓ(Wᵀ[x_i; 1], y_i)`` without the penalty.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache, reduce
from itertools import pairwise
from typing import TypeVar

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray
from scipy.linalg.blas import dtrsm
from threadpoolctl import ThreadpoolController

from expunge.errors import InvalidInput
from expunge.linear.losses import LARGEST, Array, Loss

UNIT = 2.0**-53
BLOCK = 1024
SHARDS = 8
_T = TypeVar("_T")
Matrix = NDArray[np.floating] | sp.csr_array


def gamma(k: float) -> float:
    """Return Higham's γ_k = ku/(1 − ku), the relative error of k roundings."""
    return k * UNIT / (1.0 - k * UNIT)


@dataclass(frozen=True, repr=False)
class Rows:
    """Rows with targets and weights; a row of weight 0 counts as absent.

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
    def width(self) -> int:
        """Number of coordinates p of a row, the constant included."""
        return int(self.X.shape[1]) + int(self.intercept)

    @property
    def count(self) -> int:
        """Number of rows of positive weight."""
        return int(np.count_nonzero(self.weight))

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
    if not np.isfinite(weight).all() or (weight < 0).any():
        raise InvalidInput("weights must be finite and ≥ 0; drop or correct the rows")
    if sp.issparse(X):
        X = sp.csr_array(X)
        wide = X.astype(np.float64)
        square = wide.multiply(wide).sum(axis=1)
    else:
        X = np.ascontiguousarray(X)
        square = np.concatenate(
            [np.einsum("ij,ij->i", b, b) for b in (_dense(X, i) for i in range(0, n, BLOCK))]
            or [np.zeros(0)]
        )
    if not (np.isfinite(square).all() and np.isfinite(target).all()):
        raise InvalidInput(
            "features and targets must be finite numbers (no NaN, no infinity, "
            "squares below 1e308); impute or drop the rows"
        )
    norm = np.sqrt(np.asarray(square, dtype=np.float64) + float(intercept))
    return Rows(X, target, weight, intercept, norm, ids)


@dataclass(frozen=True, repr=False)
class Pass:
    """What one pass gives (sum objective, without the penalty).

    ``gradient`` (p, C); ``error`` bounds the Euclidean distance of ``gradient`` to the exact
    gradient [Higham, 2002, Lemma 3.1], and ``errors`` (p, C), if asked for, each coordinate's;
    ``value`` is the sum of losses (nan if not asked for);
    ``change`` bounds the change of any row's margins (their spread, for softmax) since ``anchor``
    (0 without one); ``hessian`` (q, q) or None, q = C·p class-major for coupled losses, else p.
    """

    gradient: Array
    error: float
    value: float
    change: float
    hessian: Array | None
    errors: Array | None


def evaluate(
    rows: Rows,
    loss: Loss,
    W: Array,
    *,
    anchor: Array | None = None,
    value: bool = False,
    hessian: bool = False,
    fine: bool = False,
) -> Pass:
    """Evaluate gradient, and on demand more, at ``W`` (p, C) in one pass.

    ``fine`` asks for the error of every coordinate, which does not mix features of different scales
    and costs another pair of products.
    """
    moved = None if anchor is None or not loss.spread else W - anchor
    wanted = _Wanted(moved, value, hessian, fine)
    total = reduce(_add, _map_shards(rows, lambda i, j: _shard(rows, loss, W, wanted, (i, j))))
    error = _gradient_error(rows, loss, W, total.sums)
    change = 0.0
    if moved is not None:
        rounding = 4.0 * gamma(rows.width + 2) * float(rows.norm.max(initial=0.0))
        change = total.change + rounding * float(np.linalg.norm(moved))
    number = total.value if value else float("nan")
    errors = 1.01 * total.errors if fine else None
    return Pass(total.gradient, error, number, change, total.hessian, errors)


def curvature_rows(rows: Rows, loss: Loss, W: Array) -> Array:
    """Return V with ``VᵀV = Σ_i s_i ∇²ℓ_i(W)``: (k, q), or (k·C, q) for coupled losses."""
    X = _augmented(rows, 0, rows.X.shape[0])
    second = loss.second(_margins(rows, W, 0, len(X)), rows.target)
    root = np.sqrt(rows.weight)
    if not loss.coupled:
        return np.asarray(X * (root * np.sqrt(second[:, 0]))[:, None])
    sqrt_p = np.sqrt(second)
    block = sqrt_p[:, :, None] * (np.eye(second.shape[1]) - sqrt_p[:, :, None] * sqrt_p[:, None, :])
    V = np.einsum("i,ikl,ij->ilkj", root, block, X)
    return np.ascontiguousarray(V.reshape(-1, W.size))


def max_leverage(rows: Rows, chol: Array) -> float:
    """Return ``max_i x_iᵀ(LLᵀ)⁻¹x_i`` over rows of positive weight (L lower, p × p)."""

    def shard(i: int, j: int) -> float:
        top = 0.0
        for start, stop in _blocks(i, j):
            half = dtrsm(1.0, chol, _augmented(rows, start, stop).T, lower=1)
            square = np.einsum("ij,ij->j", half, half)
            top = max(top, float(square[rows.weight[start:stop] > 0].max(initial=0.0)))
        return top

    return max(_map_shards(rows, shard))


def chain_length(n: int) -> int:
    """Return the longest chain of additions in the passes over ``n`` rows."""
    shard = -(-n // SHARDS)
    return min(BLOCK, max(n, 1)) + -(-shard // BLOCK) + SHARDS


def _gradient_error(rows: Rows, loss: Loss, W: Array, sums: Array) -> float:
    """Bound the rounding error of a gradient from the sums of :class:`_Sums` (theory §2.7)."""
    top = float(rows.norm.max(initial=0.0))
    size = float(np.linalg.norm(W))
    margin = gamma(rows.width + 1) * size
    outputs = W.shape[1]
    if loss.coupled:
        spread = 2.0 * margin * float(np.exp(min(2.0 * margin * top, 700.0)))
        rounding = (outputs + 8) * UNIT * (1.0 + (outputs - 1) / np.e)
    else:
        spread = margin * (float(np.exp(min(margin * top, 700.0))) if loss.spread else 1.0)
        rounding = 8 * UNIT
    chain = gamma(chain_length(rows.X.shape[0]) + 3) + 8 * UNIT
    slope, square, plain = sums.tolist()
    return float(1.01 * (chain * slope + spread * square + rounding * plain))


@dataclass(repr=False)
class _Sums:
    """Sums over a shard: gradient; Σs‖x‖‖c‖, Σs‖x‖²b, Σs‖x‖ (times b); value; change; Hessian."""

    gradient: Array
    sums: Array
    value: float
    change: float
    hessian: Array | None
    errors: Array


@dataclass(frozen=True, repr=False)
class _Wanted:
    moved: Array | None
    value: bool
    hessian: bool
    fine: bool


def _add(a: _Sums, b: _Sums) -> _Sums:
    a.gradient += b.gradient
    a.sums += b.sums
    a.errors += b.errors
    a.value += b.value
    a.change = max(a.change, b.change)
    if a.hessian is not None and b.hessian is not None:
        a.hessian += b.hessian
    return a


@np.errstate(over="ignore", invalid="ignore")
def _shard(rows: Rows, loss: Loss, W: Array, wanted: _Wanted, span: tuple[int, int]) -> _Sums:
    total = _Sums(np.zeros_like(W), np.zeros(3), 0.0, 0.0, None, np.zeros_like(W))
    buffer = np.empty((BLOCK if wanted.hessian and not loss.coupled else 0, rows.width))
    for start, stop in _blocks(*span):
        target, weight = rows.target[start:stop], rows.weight[start:stop]
        margin = _margins(rows, W, start, stop)
        first, bound = loss.first(margin, target)
        scaled = weight * rows.norm[start:stop]
        slope = np.abs(first[:, 0]) if first.shape[1] == 1 else np.linalg.norm(first, axis=1)
        total.sums[0] += scaled @ slope
        total.sums[1] += (scaled * rows.norm[start:stop]) @ (1.0 * bound.max(axis=1))
        if loss.coupled:
            total.sums[2] += scaled.sum()
        elif loss.rough:
            total.sums[2] += scaled @ bound[:, 0]
        total.gradient += _transposed_product(rows, start, stop, first * weight[:, None])
        if wanted.fine:
            total.errors += _errors(rows, loss, W, (start, stop), first, bound)
        if wanted.moved is not None:
            change = _margins(rows, wanted.moved, start, stop)
            spread = np.ptp(change, axis=1) if loss.coupled else np.abs(change[:, 0])
            total.change = max(total.change, float(spread[weight > 0].max(initial=0.0)))
        if wanted.value:
            total.value += float(weight @ loss.value(margin, target))
        if wanted.hessian:
            scale = (loss.second(margin, target), weight)
            if loss.coupled:
                block = _coupled_hessian(_augmented(rows, start, stop), *scale)
            else:
                scaled = _scaled(rows, start, stop, np.sqrt(scale[0][:, 0] * weight), buffer)
                block = scaled.T @ scaled
            total.hessian = block if total.hessian is None else total.hessian + block
    return total


def _errors(
    rows: Rows, loss: Loss, W: Array, span: tuple[int, int], first: Array, bound: Array
) -> Array:
    """Bound the rounding error of every coordinate of a block's gradient (theory §2.7)."""
    X, weight = np.abs(_augmented(rows, *span)), rows.weight[slice(*span)]
    margin = gamma(rows.width + 1) * (X @ np.abs(W))
    outputs = W.shape[1]
    with np.errstate(over="ignore"):
        if loss.coupled:
            top = margin.max(axis=1, keepdims=True)
            mixed = margin + (bound * margin).sum(axis=1, keepdims=True)
            q = bound * mixed * np.exp(np.minimum(2.0 * top, LARGEST))
            q += (outputs + 8) * UNIT * (1.0 + (outputs - 1) / np.e)
        else:
            q = bound * margin * (np.exp(np.minimum(margin, LARGEST)) if loss.spread else 1.0)
            q += 8 * UNIT * bound if loss.rough else 0.0
    q += (gamma(chain_length(rows.X.shape[0]) + 3) + 8 * UNIT) * np.abs(first)
    return np.asarray(X.T @ (q * weight[:, None]))


def _blocks(start: int, stop: int) -> list[tuple[int, int]]:
    """Cut a span into equal blocks of at most BLOCK rows: short ones are slower per row."""
    pieces = -(-(stop - start) // BLOCK)
    cuts = [start + (stop - start) * k // max(pieces, 1) for k in range(pieces + 1)]
    return list(pairwise(cuts))


def _scaled(rows: Rows, start: int, stop: int, factor: Array, buffer: Array) -> Array:
    """Write the rows times ``factor`` into ``buffer``; fresh memory at every block costs more."""
    out = buffer[: stop - start]
    d = rows.X.shape[1]
    np.multiply(_dense(rows.X, start, stop), factor[:, None], out=out[:, :d])
    if rows.intercept:
        out[:, d] = factor
    return out


def _coupled_hessian(X: Array, second: Array, weight: Array) -> Array:
    width, outputs = X.shape[1], second.shape[1]
    others = _others(second)
    H = np.empty((outputs, width, outputs, width))
    for k in range(outputs):
        for m in range(k + 1):
            product = second[:, k] * (second[:, m] if m < k else others[:, k])
            scaled = X * np.sqrt(np.maximum(product, 0.0) * weight)[:, None]
            block = scaled.T @ scaled
            H[k, :, m, :] = H[m, :, k, :] = block if m == k else -block
    return H.reshape(outputs * width, outputs * width)


def _others(p: Array) -> Array:
    """Return ``1 − p`` as the sum of the other probabilities, which does not cancel."""
    rest: Array = p @ (1.0 - np.eye(p.shape[1]))
    return rest


def _dense(X: Matrix, start: int, stop: int | None = None) -> Array:
    block = X[start : start + BLOCK if stop is None else stop]
    if sp.issparse(block):
        block = block.toarray()
    return np.asarray(block, dtype=np.float64)


def _augmented(rows: Rows, start: int, stop: int) -> Array:
    block = _dense(rows.X, start, stop)
    if not rows.intercept:
        return block
    out = np.empty((len(block), rows.width))
    out[:, :-1] = block
    out[:, -1] = 1.0
    return out


def _margins(rows: Rows, W: Array, start: int, stop: int) -> Array:
    if not rows.intercept:
        return _product(rows.X, start, stop, W)
    margin = _product(rows.X, start, stop, W[:-1])
    margin += W[-1]
    return margin


def _product(X: Matrix, start: int, stop: int, W: Array) -> Array:
    block = X[start:stop]
    if not sp.issparse(block):
        block = np.asarray(block, dtype=np.float64)
    return np.asarray(block @ W)


def _transposed_product(rows: Rows, start: int, stop: int, c: Array) -> Array:
    block = rows.X[start:stop]
    if not sp.issparse(block):
        block = np.asarray(block, dtype=np.float64)
    product = np.asarray(block.T @ c)
    return np.vstack([product, c.sum(axis=0)]) if rows.intercept else product


@cache
def _threads() -> tuple[ThreadPoolExecutor, int]:
    workers = min(os.cpu_count() or 1, SHARDS)
    return ThreadPoolExecutor(workers, "expunge-rows"), workers


os.register_at_fork(after_in_child=_threads.cache_clear)


@cache
def _blas() -> ThreadpoolController:
    return ThreadpoolController()


@contextmanager
def single_threaded_blas() -> Iterator[None]:
    """Run with one BLAS thread.

    The passes bring their own threads, the factorisations between them are small, and the result
    then does not depend on how many threads BLAS would have used.
    """
    with _blas().limit(limits=1, user_api="blas"):
        yield


def _map_shards(rows: Rows, work: Callable[[int, int], _T]) -> list[_T]:
    """Apply ``work(start, stop)`` to every shard; results in shard order."""
    n = rows.X.shape[0]
    shards = max(1, min(SHARDS, n // BLOCK))
    cuts = [n * k // shards for k in range(shards + 1)]
    spans = list(pairwise(cuts))
    if shards == 1:
        return [work(*spans[0])]
    pool, workers = _threads()
    results: dict[int, _T] = {}

    def share(first: int) -> None:
        for k in range(first, shards, workers):
            results[k] = work(*spans[k])

    with single_threaded_blas():
        list(pool.map(share, range(workers)))
    return [results[k] for k in range(shards)]
