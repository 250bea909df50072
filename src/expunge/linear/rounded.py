"""The exact solution of a positive definite system, rounded to a grid: the same bits on any path.

Numbers in float64 are exact rationals, and so is the solution of ``A a = y``; rounding it to a grid
makes it a function of ``A`` and ``y`` alone, however it was found. Two things are needed:

- *A proved distance.* ``A ⪰ diag(penalty)/2`` turns a residual into a bound of the distance
  (:func:`enclosure`). Residuals are computed without error in their leading bits, by products that
  BLAS cannot round (:func:`exact_product`) [Ozaki et al., 2012] and correctly rounded sums.
- *A rounding that can be decided.* If what is known does not tell which point of the grid it is,
  more digits are computed [Ziv, 1991]. The steps lie at irrational places, where a rational number
  never is: enough digits always decide.

Proofs: docs/kernels.md.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from fractions import Fraction

import numpy as np

from expunge.errors import ToleranceUnreachable
from expunge.linear.losses import Array
from expunge.linear.rounding import UNIT, gamma
from expunge.linear.shards import run_threads

LARGEST = 2.0**200
"""Entries of a system are below this, penalties above its inverse; targets may reach its square."""
MAX_BITS = 42
_ENTRIES = 2**17
_HEAD = 26
_SLICES = (2, 4, 8)
_ROUNDS = 8
_FEW = 64
_TINY = 1e-150


def solve(system: Array, inverse: Array, penalty: Array, target: Array, bits: int) -> Array:
    """Return the exact solution (n, C) of ``system a = target``, rounded to a grid.

    The grid of a column has spacing ``2^(t − p − bits)``, where ``2^t`` is the power of two above
    its largest ``|target|`` and ``2^p`` that above the smallest penalty; ``|a|`` is at most about
    √n times ``2^(t − p)``. An entry between ``m − 2 + √2`` and ``m − 1 + √2`` spacings becomes
    ``m`` of them: off by at most 0.59 spacings, and never undecidable.

    Parameters
    ----------
    system : (n, n) float64, symmetric, ``⪰ diag(penalty)/2``
        Its entries are taken as exact numbers, below :data:`LARGEST`.
    inverse : (n, n) float64
        About its inverse, to refine with; nothing is assumed of it.
    penalty : (n,) float64, > 0
    target : (n, C) float64
    bits : int, 1 to 42

    Raises
    ------
    ToleranceUnreachable
        If the refinement does not converge, for want of a better ``inverse``.

    Examples
    --------
    >>> A = np.array([[3.0, 1.0], [1.0, 3.0]])
    >>> solve(A, np.eye(2) / 3, np.ones(2), np.array([[1.0], [0.0]]), 10) * 512
    array([[192.],
           [-64.]])
    """
    top = np.frexp(np.abs(target).max(axis=0))[1]
    low = math.frexp(float(penalty.min()))[1]
    grid = math.ldexp(1.0, -low - bits)
    scaled = np.ldexp(target, -top)
    for slices in _SLICES:
        cells = _refine((system, inverse, penalty), scaled, grid, slices)
        if cells is not None:
            found: Array = np.ldexp(cells, top - low - bits)
            return found
    raise ToleranceUnreachable(
        "the solution could not be located closely enough to round it: raise alpha or scale the "
        "features"
    )


def _refine(
    problem: tuple[Array, Array, Array], target: Array, grid: float, slices: int
) -> Array | None:
    """Refine until every entry's place on the grid is certain; None if it does not become so."""
    system, inverse, penalty = problem
    terms, missing = target[:, :, None], np.zeros_like(target)
    step, last = inverse @ target, math.inf
    parts: list[Array] = []
    for _ in range(_ROUNDS):
        if not np.abs(step).max() < LARGEST**2:
            return None
        part, product, error = exact_product(system, step, slices)
        parts.append(part)
        terms, missing = np.concatenate([terms, -product], axis=2), missing + error
        rows = terms.reshape(-1, terms.shape[2]).tolist()
        residual = np.array([math.fsum(row) for row in rows]).reshape(target.shape)
        radius = enclosure(residual, missing, penalty)
        cells = place(parts, radius, grid)
        size = float(radius.max())
        if cells is not None or not size < last / 2:
            return cells
        step, last = inverse @ residual, size
    return None


def enclosure(residual: Array, missing: Array, penalty: Array) -> Array:
    """Bound every entry of ``|a − â|`` (n, C) from the residual of ``â``.

    ``A ⪰ T = diag(penalty)/2`` gives ``|e_iᵀA⁻¹r| ≤ ‖e_i‖_{A⁻¹}‖r‖_{A⁻¹} ≤ T_ii^{−½}‖T^{−½}r‖₂``.

    Parameters
    ----------
    residual : (n, C) float64
        ``y − Aâ``, correctly rounded but for what is missing.
    missing : (n, C) float64
        Bound of what is missing.
    penalty : (n,) float64
    """
    weight = 1.0 / np.sqrt(penalty)[:, None]
    norm = np.linalg.norm(weight * (np.abs(residual) + missing), axis=0) + _TINY
    bound: Array = (2.0 + 1e-8) * weight * norm
    return bound


def exact_product(system: Array, x: Array, slices: int) -> tuple[Array, Array, Array]:
    """Multiply without rounding: ``system @ part`` as a sum of float64 terms, ``part`` near ``x``.

    Every row of the system is cut into ``slices`` of 26 bits and a remainder, ``x`` into pieces
    short enough that a dot product of a slice with a piece fits 53 bits: BLAS then makes no error,
    in whatever order it adds. Only the remainder's product is rounded.

    Returns
    -------
    part : (n, C) float64
        ``x``, rounded to whole pieces.
    terms : (n, C, T) float64
    error : (n, C) float64
        Bound of ``|system @ part − terms.sum(axis=2)|``, the sum taken as exact.
    """
    part, pieces = _pieces(x)
    n, outputs = x.shape
    count = pieces.shape[1] // outputs
    terms = np.empty((n, outputs, slices * count + 1))
    error = np.empty((n, outputs))
    largest = np.abs(part).max(axis=0)

    def multiply(rows: slice) -> None:
        rest = system[rows]
        head, spare = np.empty((2, *rest.shape))
        top = np.maximum(rest.max(axis=1, keepdims=True), -rest.min(axis=1, keepdims=True))
        unit = np.ldexp(1.0, np.frexp(top)[1] - _HEAD)
        for k in range(slices):
            shift = 1.5 * 2.0**52 * unit
            np.add(rest, shift, out=head)
            head -= shift
            rest = np.subtract(rest, head, out=spare)
            terms[rows, :, k * count : (k + 1) * count] = (
                (head @ pieces).reshape(-1, count, outputs).transpose(0, 2, 1)
            )
            unit = unit * 2.0 ** -(_HEAD + 1)
        terms[rows, :, -1] = rest @ part
        error[rows] = n * gamma(n + 1) * 2.0 ** (_HEAD + 1) * unit * largest + _TINY

    in_blocks(multiply, n, n)
    return part, terms, error


def _pieces(x: Array) -> tuple[Array, Array]:
    """Round ``x`` (n, C) to at most 53 bits below its largest entry and cut it: (n, pieces·C)."""
    width = min(53 - _HEAD - (len(x) - 1).bit_length(), 17)
    count = 53 // width
    exponent = np.maximum(np.frexp(np.abs(x).max(axis=0))[1], -400)
    last = np.ldexp(1.0, exponent - width * count)
    part = np.rint(x / last) * last
    rest, pieces = part.copy(), []
    for i in range(1, count + 1):
        unit = np.ldexp(1.0, exponent - width * i)
        pieces.append(np.rint(rest / unit) * unit)
        rest -= pieces[-1]
    return part, np.hstack(pieces)


def place(parts: Sequence[Array], radius: Array, grid: float) -> Array | None:
    """Return ``⌊a/grid + 2 − √2⌋`` for all ``a`` within ``radius`` of the sum of ``parts``.

    None if some entry's place is not certain. Float arithmetic decides nearly all; the last few
    are decided in rational arithmetic.

    Parameters
    ----------
    parts : sequence of (n, C) float64
    radius : (n, C) float64
    grid : float
        A power of two.
    """
    if not np.isfinite(radius).all():
        return None
    base = np.rint(parts[0] / grid)
    offset, size = np.zeros_like(base), np.ones_like(base)
    for term in (parts[0] / grid - base, *(part / grid for part in parts[1:])):
        offset += term
        size += np.abs(term)
    reach = radius / grid + 4 * (len(parts) + 2) * UNIT * size
    cell = np.floor(offset - reach + (2.0 - math.sqrt(2.0)))
    unsure = np.argwhere(cell != np.floor(offset + reach + (2.0 - math.sqrt(2.0))))
    if len(unsure) > _FEW:
        return None
    for i, c in unsure.tolist():
        middle = sum(Fraction(float(part[i, c])) for part in parts) / Fraction(grid)
        around = Fraction(float(radius[i, c])) / Fraction(grid)
        lowest = _step(middle - around)
        if lowest != _step(middle + around):
            return None
        cell[i, c] = lowest - int(base[i, c])
    found: Array = base + cell + 0.0
    return found


def _step(t: Fraction) -> int:
    """Return ``⌊t + 2 − √2⌋`` of a rational number: the largest m with ``t + 2 − m ≥ √2``."""
    m = math.floor(t) + 1
    return m if (t + 2 - m) ** 2 >= 2 else m - 1


def in_blocks(work: Callable[[slice], None], rows: int, width: int) -> None:
    """Work on slices of ``rows`` rows of some width that fit the cache, in threads."""
    step = max(1, _ENTRIES // max(width, 1))
    starts = range(0, rows, step)
    run_threads(lambda k: work(slice(starts[k], min(starts[k] + step, rows))), len(starts))
