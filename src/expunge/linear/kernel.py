"""Kernel ridge regression whose deletions are exact to the bit: the mathematics.

The dual coefficients ``a`` solve ``A a = y``, ``A = K + diag(penalty)``. What is published is ``a``
rounded to a grid (:mod:`expunge.linear.rounded`), a function of ``A`` and ``y`` alone. And the
system without some rows is a submatrix, bit for bit: an entry of ``K`` depends on its two rows
only, not on where they stand, for sums run over the features in order, one correctly rounded
operation at a time. So a model after deletions *is* the model of the retained rows.

Units: the sum objective ``Σ_i s_i(y_i − f(x_i))² + alpha‖f‖²``, ``penalty_i = alpha/s_i``. Proofs
and limits: docs/kernels.md.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.linalg.blas import dgemm, dtrsm
from scipy.linalg.lapack import dpotrf, dpotri

from expunge.errors import InvalidInput, LastOfClass, ToleranceUnreachable
from expunge.linear.losses import Array
from expunge.linear.rounded import LARGEST, in_blocks, solve
from expunge.linear.rounding import UNIT, gamma
from expunge.linear.shards import single_threaded_blas

KERNELS = ("linear", "polynomial", "rbf", "laplacian")
_FARTHEST = 700.0
_LN2_HIGH = float.fromhex("0x1.62e42fep-1")
_LN2_LOW = float.fromhex("0x1.f473de6af278fp-30")
_TAYLOR = tuple(1.0 / math.factorial(i) for i in range(13, -1, -1))


@dataclass(frozen=True)
class Kernel:
    """A positive semidefinite kernel, every value of which depends on two rows and nothing else.

    Only additions, multiplications and the like are used, which IEEE 754 rounds correctly: the
    values are the same on every machine.

    Attributes
    ----------
    name : str
        linear ``xᵀz``, polynomial ``(gamma xᵀz + coef0)^degree``, rbf ``exp(−gamma‖x − z‖₂²)`` or
        laplacian ``exp(−gamma‖x − z‖₁)``.
    gamma : float, > 0
    degree : int, ≥ 1
    coef0 : float, ≥ 0

    Examples
    --------
    >>> Kernel("rbf", gamma=0.5).gram(np.array([[0.0, 0.0], [1.0, 1.0]])).round(6)
    array([[1.      , 0.367879],
           [0.367879, 1.      ]])
    """

    name: str
    gamma: float = 1.0
    degree: int = 3
    coef0: float = 1.0

    def gram(self, X: Array) -> Array:
        """Return the kernel of all pairs of rows of ``X`` (n, d), exactly symmetric: (n, n)."""
        columns, out = np.ascontiguousarray(X.T), np.empty((len(X), len(X)))

        def fill(rows: slice) -> None:
            block = self._block(X[rows], columns[:, rows.start :])
            out[rows, rows.start :] = block
            out[rows.start :, rows] = block.T

        in_blocks(fill, *out.shape)
        return out

    def cross(self, X: Array, Z: Array) -> Array:
        """Return the kernel of rows ``X`` (m, d) with rows ``Z`` (n, d): (m, n)."""
        columns, out = np.ascontiguousarray(Z.T), np.empty((len(X), len(Z)))

        def fill(rows: slice) -> None:
            out[rows] = self._block(X[rows], columns)

        in_blocks(fill, *out.shape)
        return out

    def error(self, features: int) -> float:
        """Bound ``|k̂(x, z) − k(x, z)|/√(k(x, x) k(z, z))``, what rounding may do to a value."""
        if self.name == "linear":
            return gamma(features)
        if self.name == "polynomial":
            return gamma(self.degree * (features + 3))
        return gamma(features + 11)

    @np.errstate(over="ignore", invalid="ignore")
    def _block(self, X: Array, columns: Array) -> Array:
        total, term = np.zeros((2, len(X), columns.shape[1]))
        distance = self.name in ("rbf", "laplacian")
        combine = np.subtract if distance else np.multiply
        for x, z in zip(X.T, columns, strict=True):
            combine(x[:, None], z, out=term)
            if self.name == "rbf":
                np.multiply(term, term, out=term)
            elif self.name == "laplacian":
                np.abs(term, out=term)
            total += term
        if distance:
            total *= -self.gamma
            return exponential(total)
        return total if self.name == "linear" else self._power(total)

    def _power(self, products: Array) -> Array:
        base = products * self.gamma + self.coef0
        power = base.copy()
        for _ in range(self.degree - 1):
            power *= base
        return power


def exponential(x: Array) -> Array:
    """Return ``exp(x)`` for ``x ≤ 0``, within 8u, by IEEE operations alone; 0 below −700."""
    clipped = np.maximum(x, -_FARTHEST)
    k = np.rint(clipped / math.log(2.0))
    rest = clipped - k * _LN2_HIGH
    rest -= k * _LN2_LOW
    value = np.full_like(rest, _TAYLOR[0])
    for coefficient in _TAYLOR[1:]:
        value *= rest
        value += coefficient
    value *= ((k.astype(np.int64) + 1023) << 52).view(np.float64)
    value[x < -_FARTHEST] = 0.0
    return value


@dataclass(frozen=True, repr=False)
class Dual:
    """The dual system of the retained rows and its published solution.

    Attributes
    ----------
    system : (n, n) float64
        ``A``, its entries taken as exact numbers.
    inverse : (n, n) float64
        About ``A⁻¹``: its errors cost time, never correctness.
    penalty : (n,) float64
        ``alpha/s_i``; ``A ⪰ diag(penalty)/2`` is proved.
    target : (n, C) float64
    bits : int
        Fineness of the grid, see :func:`expunge.linear.rounded.solve`.
    coef : (n, C) float64
        ``A⁻¹ target``, rounded to the grid.
    """

    system: Array
    inverse: Array
    penalty: Array
    target: Array
    bits: int
    coef: Array

    def __repr__(self) -> str:
        """Say how many rows there are, never what is in them."""
        return f"Dual(n={len(self.target)}, outputs={self.target.shape[1]})"

    @single_threaded_blas()
    def without(self, gone: NDArray[np.bool_]) -> Dual:
        """Return what :func:`fit` publishes on the rows that are not ``gone`` (n,), bit for bit.

        ``A_RR⁻¹ = M_RR − M_RU M_UU⁻¹ M_UR``, ``M = A⁻¹``, in O(n²k + k³); the solution is refined
        and rounded as in a fit. No array of the result holds an entry of a row that is gone.

        Raises
        ------
        LastOfClass
            If no row would be left.
        ToleranceUnreachable
            As for :func:`fit`.
        """
        keep = ~gone
        if not keep.any():
            raise LastOfClass(
                f"deleting these {len(gone)} rows would leave no rows; a model of what is retained "
                "does not exist: retire the model instead"
            )
        system = _submatrix(self.system, keep)
        rows = self.penalty[keep], self.target[keep]
        if 2 * np.count_nonzero(keep) > len(keep):
            try:
                return _solved(system, _downdated(self.inverse, keep), *rows, self.bits)
            except ToleranceUnreachable:
                pass
        return _solved(system, _inverse(system), *rows, self.bits)


@single_threaded_blas()
def fit(kernel: Kernel, X: Array, penalty: Array, target: Array, bits: int) -> Dual:
    """Solve ``(K + diag(penalty)) a = target`` and round ``a`` to the grid.

    Parameters
    ----------
    kernel : Kernel
    X : (n, d) float64
    penalty : (n,) float64, > 0
    target : (n, C) float64
    bits : int, 1 to 42
        As for :func:`expunge.linear.rounded.solve`.

    Raises
    ------
    InvalidInput
        If numbers are too large or too small to compute with.
    ToleranceUnreachable
        If half of the penalty may not outweigh the negative eigenvalues that rounding may have
        given the kernel, or the solution cannot be located.
    """
    system = kernel.gram(X)
    diagonal = np.diagonal(system) + penalty
    _require_range(system, kernel.gamma, penalty, target)
    np.fill_diagonal(system, diagonal)
    if not (penalty >= 2.02 * (len(X) * kernel.error(X.shape[1]) + UNIT) * diagonal).all():
        raise ToleranceUnreachable(
            f"the penalty, at least {penalty.min():.3g}, is too small beside the rounding of a "
            f"kernel whose largest value is {diagonal.max():.3g}: raise alpha or scale the features"
        )
    return _solved(system, _inverse(system), penalty, target, bits)


def _solved(system: Array, inverse: Array, penalty: Array, target: Array, bits: int) -> Dual:
    coef = solve(system, inverse, penalty, target, bits)
    return Dual(system, inverse, penalty, target, bits, coef)


def _require_range(gram: Array, gamma: float, penalty: Array, target: Array) -> None:
    """Refuse numbers with which products would overflow or underflow."""
    least, most = 1 / LARGEST, LARGEST
    largest = max(float(np.abs(gram).max()), gamma, float(penalty.max()))
    if not (largest < most and penalty.min() > least):
        raise InvalidInput(
            f"kernel values, gamma and penalties must be below {most:.0e}, penalties above "
            f"{least:.0e}: scale the features or choose another alpha"
        )
    top = np.abs(target).max(axis=0)
    if not ((top == 0) | ((top > least**2) & (top < most**2))).all():
        raise InvalidInput(
            f"the largest target must be between {least**2:.0e} and {most**2:.0e}, or 0; got "
            f"{top}: scale the targets"
        )


def _downdated(inverse: Array, keep: NDArray[np.bool_]) -> Array:
    """Return ``M_RR − M_RU M_UU⁻¹ M_UR``."""
    side = inverse[keep][:, ~keep]
    chol, _ = dpotrf(inverse[~keep][:, ~keep], lower=1)
    half = dtrsm(1.0, chol, side.T, lower=1)
    out = _submatrix(inverse, keep)
    dgemm(-1.0, half, half, 1.0, out.T, trans_a=1, overwrite_c=1)
    return out


def _inverse(system: Array) -> Array:
    """Return about the inverse of a positive definite matrix."""
    chol, _ = dpotrf(system, lower=1)
    found, _ = dpotri(chol, lower=1, overwrite_c=1)
    lower = np.tril(found)
    full: Array = lower + np.tril(lower, -1).T
    return full


def _submatrix(matrix: Array, keep: NDArray[np.bool_]) -> Array:
    index = np.flatnonzero(keep)
    return matrix.take(index, axis=0).take(index, axis=1)
