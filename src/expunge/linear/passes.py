"""The passes over rows: gradient, Hessian, leverage, and products with the Hessian.

Data are read once per pass, in blocks that fit the cache. All sums are *sum* objectives:
``Σ_i s_i ℓ(Wᵀ[x_i; 1], y_i)`` without the penalty.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial, reduce

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray
from scipy.linalg.blas import dtrsm

from expunge.linear.losses import Array, Loss
from expunge.linear.rounding import coordinate_errors, gamma, gradient_error, slope_sums
from expunge.linear.rows import Block, Rows, Source
from expunge.linear.shards import BLOCK


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
    rows: Source,
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
    wanted = _Wanted(moved, value, hessian, (rows.terms, rows.length) if fine else None)
    total = reduce(_add, rows.map(partial(_shard, loss=loss, W=W, wanted=wanted)))
    error = gradient_error(rows, loss, W, total.sums)
    change = 0.0
    if moved is not None:
        rounding = 4.0 * gamma(rows.terms + 2) * rows.radius
        change = total.change + rounding * float(np.linalg.norm(moved))
    number = total.value if value else float("nan")
    errors = 1.01 * total.errors if fine else None
    return Pass(total.gradient, error, number, change, total.hessian, errors)


def curvature_rows(rows: Rows, loss: Loss, W: Array) -> Array:
    """Return V with ``VᵀV = Σ_i s_i ∇²ℓ_i(W)``: (k, q), or (k·C, q) for coupled losses."""
    block = rows.block(0, rows.length)
    X, second = block.augmented(), loss.second(block.margins(W), block.target)
    root = np.sqrt(rows.weight)
    if not loss.coupled:
        return np.asarray(X * (root * np.sqrt(second[:, 0]))[:, None])
    sqrt_p = np.sqrt(second)
    matrix = np.eye(second.shape[1]) - sqrt_p[:, :, None] * sqrt_p[:, None, :]
    V = np.einsum("i,ikl,ij->ilkj", root, sqrt_p[:, :, None] * matrix, X)
    return np.ascontiguousarray(V.reshape(-1, W.size))


def max_leverage(rows: Source, chol: Array) -> float:
    """Return ``max_i x_iᵀ(LLᵀ)⁻¹x_i`` over rows of positive weight (L lower, p × p)."""
    return max(rows.map(partial(_leverage, chol=chol)))


def hessian_product(rows: Source, loss: Loss, W: Array, V: Array) -> Array:
    """Return ``∇²(Σ_i s_i ℓ_i)(W) V`` (p, C) without forming the Hessian."""
    return np.asarray(reduce(np.add, rows.map(partial(_product, loss=loss, W=W, V=V))))


def mean_gram(rows: Source, loss: Loss, W: Array, only: NDArray[np.int64] | None = None) -> Array:
    """Return ``Σ_i s_i t_i [x_i;1][x_i;1]ᵀ`` (p, p), t the trace of a row's curvature.

    With one output that is the Hessian itself; for softmax, t = 1 − ‖p‖². ``only`` asks for the
    rows and columns of some coordinates, in ascending order.
    """
    work = partial(_mean_gram, loss=loss, W=W, only=only)
    return np.asarray(reduce(np.add, rows.map(work)))


def gram(rows: Source) -> Array:
    """Return ``Σ_i s_i [x_i;1][x_i;1]ᵀ`` (p, p)."""
    return np.asarray(reduce(np.add, rows.map(partial(_plain_gram, width=rows.width))))


def hessian_diagonal(rows: Source, loss: Loss, W: Array) -> Array:
    """Return the diagonal of the Hessian as (p, C)."""
    return np.asarray(reduce(np.add, rows.map(partial(_diagonal, loss=loss, W=W))))


def curvature_sums(rows: Source, loss: Loss, W: Array) -> tuple[float, Array]:
    """Return ``Σ_i s_i t_i ‖x_i‖²`` and ``Σ_i s_i M_i`` (C, C).

    ``M_i`` is a row's curvature in its margins (diagonal unless the loss is coupled), ``t_i`` an
    upper bound of its eigenvalues [Gershgorin], ``‖x_i‖`` without the constant. The rows of a
    coupled loss's matrix sum to 0 (to rounding): ``vᵀMv = ½Σ_kj a_kj(v_k − v_j)²`` is then off by
    no more than the a_kj are, relatively.
    """
    parts = rows.map(partial(_curvature_sums, loss=loss, W=W))
    size, matrix = sum(size for size, _ in parts), np.asarray(sum(matrix for _, matrix in parts))
    if loss.coupled:
        np.fill_diagonal(matrix, 0.0)
        np.fill_diagonal(matrix, -matrix.sum(axis=1))
    return size, matrix


@dataclass(repr=False)
class _Sums:
    gradient: Array
    sums: Array
    value: float
    change: float
    hessian: Array | None
    errors: Array


@dataclass(frozen=True, repr=False)
class _Wanted:
    """``moved`` as margins are to be compared; ``sums``: terms and rows, if errors are wanted."""

    moved: Array | None
    value: bool
    hessian: bool
    sums: tuple[int, int] | None


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
def _shard(blocks: Iterator[Block], loss: Loss, W: Array, wanted: _Wanted) -> _Sums:
    total = _Sums(np.zeros_like(W), np.zeros(3), 0.0, 0.0, None, np.zeros_like(W))
    buffer = np.empty((BLOCK if wanted.hessian and not loss.coupled else 0, len(W)))
    for block in blocks:
        target, weight = block.target, block.weight
        margin = block.margins(W)
        first, bound = loss.first(margin, target)
        total.sums += slope_sums(block, loss, first, bound)
        total.gradient += block.transposed_product(first * weight[:, None])
        if wanted.sums is not None:
            total.errors += coordinate_errors(block, loss, W, wanted.sums, first, bound)
        if wanted.moved is not None:
            change = block.margins(wanted.moved)
            spread = np.ptp(change, axis=1) if loss.coupled else np.abs(change[:, 0])
            total.change = max(total.change, float(spread[weight > 0].max(initial=0.0)))
        if wanted.value:
            total.value += float(weight @ loss.value(margin, target))
        if wanted.hessian:
            second = loss.second(margin, target)
            added = (
                _coupled_hessian(block, second)
                if loss.coupled
                else _gram(block, second[:, 0] * weight, buffer)
            )
            total.hessian = added if total.hessian is None else total.hessian + added
    return total


def _gram(block: Block, scale: Array, buffer: Array) -> Array:
    """Return ``Σ_i scale_i [x_i;1][x_i;1]ᵀ``; fresh memory at every block would cost more."""
    factor = np.sqrt(scale)
    if sp.issparse(block.X):
        scaled = sp.csr_array(block.X * factor[:, None])
        if block.intercept:
            scaled = sp.hstack([scaled, sp.csr_array(factor[:, None])], format="csr")
        return np.asarray((scaled.T @ scaled).toarray())
    out = buffer[: len(factor)]
    d = block.X.shape[1]
    np.multiply(block.X, factor[:, None], out=out[:, :d])
    if block.intercept:
        out[:, d] = factor
    return np.asarray(out.T @ out)


def _coupled_hessian(block: Block, second: Array) -> Array:
    X, weight = block.augmented(), block.weight
    width, outputs = X.shape[1], second.shape[1]
    others = _others(second)
    H = np.empty((outputs, width, outputs, width))
    for k in range(outputs):
        for m in range(k + 1):
            product = second[:, k] * (second[:, m] if m < k else others[:, k])
            scaled = X * np.sqrt(np.maximum(product, 0.0) * weight)[:, None]
            part = scaled.T @ scaled
            H[k, :, m, :] = H[m, :, k, :] = part if m == k else -part
    return H.reshape(outputs * width, outputs * width)


def _others(p: Array) -> Array:
    """Return ``1 − p`` as the sum of the other probabilities, which does not cancel."""
    rest: Array = p @ (1.0 - np.eye(p.shape[1]))
    return rest


def _traces(loss: Loss, second: Array) -> Array:
    """Return the trace of every row's curvature: (b,)."""
    return np.asarray((second * _others(second) if loss.coupled else second).sum(axis=1))


def _leverage(blocks: Iterator[Block], chol: Array) -> float:
    top = 0.0
    for block in blocks:
        half = dtrsm(1.0, chol, block.augmented().T, lower=1)
        square = np.einsum("ij,ij->j", half, half)
        top = max(top, float(square[block.weight > 0].max(initial=0.0)))
    return top


@np.errstate(over="ignore", invalid="ignore")
def _product(blocks: Iterator[Block], loss: Loss, W: Array, V: Array) -> Array:
    total = np.zeros_like(V)
    for block in blocks:
        both = block.margins(np.hstack([W, V]))
        second, along = loss.second(both[:, : W.shape[1]], block.target), both[:, W.shape[1] :]
        bent = second * along
        if loss.coupled:
            bent -= second * bent.sum(axis=1, keepdims=True)
        total += block.transposed_product(bent * block.weight[:, None])
    return total


def _plain_gram(blocks: Iterator[Block], width: int) -> Array:
    total, buffer = np.zeros((width, width)), np.empty((BLOCK, width))
    for block in blocks:
        total += _gram(block, block.weight, buffer)
    return total


def _mean_gram(
    blocks: Iterator[Block], loss: Loss, W: Array, only: NDArray[np.int64] | None
) -> Array:
    size = len(W) if only is None else len(only)
    total, buffer = np.zeros((size, size)), np.empty((BLOCK, size))
    for block in blocks:
        second = loss.second(block.margins(W), block.target)
        part = block if only is None else block.coordinates(only)
        total += _gram(part, _traces(loss, second) * block.weight, buffer)
    return total


def _diagonal(blocks: Iterator[Block], loss: Loss, W: Array) -> Array:
    total = np.zeros_like(W)
    for block in blocks:
        second = loss.second(block.margins(W), block.target)
        bent = (
            second * _others(second)
            if loss.coupled
            else np.broadcast_to(second, (len(second), W.shape[1]))
        )
        total += block.square().transposed_product(bent * block.weight[:, None])
    return total


def _curvature_sums(blocks: Iterator[Block], loss: Loss, W: Array) -> tuple[float, Array]:
    size, matrix = 0.0, np.zeros((W.shape[1], W.shape[1]))
    for block in blocks:
        second = loss.second(block.margins(W), block.target)
        scaled = second * block.weight[:, None]
        length = block.norm**2 - float(block.intercept)
        top = (second * _others(second) * 2.0 if loss.coupled else second).max(axis=1)
        size += float((top * block.weight) @ length)
        if loss.coupled:
            matrix -= scaled.T @ second
        else:
            matrix += np.diag(np.broadcast_to(scaled.sum(axis=0), len(matrix)))
    return size, matrix
