"""How far parameters can be from the optimum on the retained rows: the gate, recomputed (level c).

From the gradient g of `residual.gradient`, ν = √(gᵀH⁻¹g) and κ ≤ λ_min(H), the distance is at
most the least of what applies:

- r/Λ, r = ‖g‖, when every coordinate is penalised;
- −ln(1 − aν)/(a√κ) with a = R/√κ, R = max‖x_i‖ (√2·max‖x_i‖ for softmax) [convex.md §3.2];
- the same with a = √h, h = max_i x_iᵀH⁻¹x_i, for scalar margins [own]: along the way v to the
  optimum the margins change by at most S = √h‖v‖_H, H falls by at most e^(−S), so ν ≥ (1 −
  e^(−√h‖v‖_H))/√h;
- ν/√κ for squared loss (a = 0);
- ‖H⁻¹g‖ + (e^S − 1)t/√κ, where t is the first factor −ln(1 − aν)/a and S = at [own]: v = −H̃⁻¹g
  with H̃, the Hessian averaged along v, between e^(−S)H and e^S·H, so ‖v + H⁻¹g‖_H ≤ (e^S − 1)t.

Everything is bounded with its rounding error: H ⪰ (1 − θ)LLᵀ with L the computed Cholesky factor.
A free intercept is not penalised. The softmax's flat directions, the same constant on the weights
of all classes, are filled by adding η·ggᵀ to the Hessian: the minimiser's rows sum to zero, and
what the sums miss of 0 is added to the distance.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import LinAlgError, cholesky, eigvalsh, solve_triangular

from expunge.certificate.residual import Array, Gradient, Rows, gamma, gradient

DOUBLE = 2.0**-53
TINY = 1e-9


@dataclass(frozen=True, repr=False)
class Distance:
    """Residual ‖g‖, the bound of its rounding error, and the distance bound. For the sealed annex.

    None of the three may be published: they depend on deleted records and carry no noise.
    """

    residual: float
    rounding: float
    bound: float


def distance_bound(
    rows: Rows, weights: Array, loss: str, l2: float, intercept: bool, *, enough: float = 0.0
) -> Distance:
    """Bound the Euclidean distance from ``weights`` to the minimiser on ``rows``.

    Parameters
    ----------
    rows, weights, loss, l2, intercept
        As for `residual.gradient`.
    enough : float
        A bound of at most this is returned as it is, without looking for a sharper one.

    Returns
    -------
    Distance
        ``bound`` is inf where nothing can be shown.

    Raises
    ------
    InvalidInput
        If the loss is unknown or the shapes disagree.
    """
    g = gradient(rows, weights, loss, l2, intercept)
    residual = float(np.linalg.norm(g.value))
    if not math.isfinite(residual + g.error):
        return Distance(math.inf, math.inf, math.inf)
    simple = math.inf if intercept else (residual * (1 + TINY) + g.error) / l2
    if simple <= enough:
        return Distance(residual, g.error, simple)
    if loss == "softmax":
        missed = _gauge(weights)
        bound = _softmax_bound(rows, g, l2, intercept, missed) + missed
    else:
        bound = _scalar_bound(rows, g, loss, l2, intercept, enough)
    return Distance(residual, g.error, min(simple, bound))


@dataclass(frozen=True, repr=False)
class _Factor:
    """LLᵀ ≈ H with |H − LLᵀ| ⪯ θ·LLᵀ; D = √diag H, λ_min(H) ≥ κ, λ_min(D⁻¹HD⁻¹) ≥ unit.

    ``inflation`` covers θ and the rounding of a triangular solve, ``error`` both for two solves.
    """

    lower: Array
    scale: Array
    kappa: float
    unit: float
    inflation: float
    error: float

    def solve(self, vectors: Array) -> Array:
        """Upper bounds of √(vᵀH⁻¹v) for every column v."""
        solved = solve_triangular(self.lower, vectors, lower=True, check_finite=False)
        norms: Array = np.sqrt((solved * solved).sum(axis=0)) * self.inflation
        return norms

    def rounding(self, error: float, errors: Array) -> tuple[float, float]:
        """Bounds of ‖e‖ in the norm of H⁻¹ and of ‖H⁻¹e‖, for |e| ≤ errors and ‖e‖ ≤ error."""
        scaled = 1.01 * float(np.linalg.norm(errors[:, 0] / self.scale))
        dual = min(1.01 * error / math.sqrt(self.kappa), scaled / math.sqrt(self.unit))
        moved = scaled / (self.unit * float(self.scale.min()))
        return dual, min(1.01 * error / self.kappa, moved)

    def convert(self, g: Array, error: float, errors: Array, steepness: float) -> float:
        """The least distance shown by a gradient (p, 1) with these bounds of its error."""
        dual, moved = self.rounding(error, errors)
        nu = float(self.solve(g)[0]) + dual
        plain = _convert(steepness, nu, self.kappa)
        if math.isinf(plain):
            return plain
        change = steepness * math.sqrt(self.kappa) * plain
        wrong = math.expm1(change) + self.error * math.exp(change) if change < 700 else math.inf
        half = solve_triangular(self.lower, g, lower=True, check_finite=False)
        step = solve_triangular(self.lower, half, lower=True, trans="T", check_finite=False)
        corrected = float(np.linalg.norm(step)) + moved + wrong * plain
        return min(plain, corrected * (1 + TINY))


def _factor(hessian: Array, relative: float, floor: float) -> _Factor | None:
    """Factor a Hessian whose entries are off by at most ``relative``·√(H_ii·H_jj).

    Everything is judged after equilibration, so that the scales of features do not matter; None if
    it is too inexact.
    """
    p = len(hessian)
    diagonal = np.diagonal(hessian).copy()
    if not (np.isfinite(diagonal).all() and (diagonal > 0).all()):
        return None
    scale = np.sqrt(diagonal)
    try:
        unit_values = eigvalsh(hessian / scale[:, None] / scale)
        values = eigvalsh(hessian)
        lower = cholesky(hessian, lower=True)
    except LinAlgError:
        return None
    error = 1.01 * p * relative
    unit = float(unit_values[0]) - 20 * p * DOUBLE * float(unit_values[-1]) - error
    spectral = error * float(diagonal.max())
    least = float(values[0]) - 16 * p * DOUBLE * float(values[-1]) - spectral
    kappa = max(floor, least, unit * float(diagonal.min()))
    backward = 1.01 * p * gamma(p + 1, DOUBLE)
    below = unit - backward
    if not (kappa > 0 and below > 0):
        return None
    theta = (error + backward) / below
    omega = 1.01 * gamma(p, DOUBLE) * math.sqrt(p / below)
    if theta >= 0.5 or omega >= 0.1:
        return None
    inflation = (1 + omega) / math.sqrt(1 - theta) * (1 + TINY)
    return _Factor(lower, scale, kappa, unit, inflation, 4 * (theta + omega))


def _convert(steepness: float, nu: float, kappa: float) -> float:
    """−ln(1 − aν)/(a√κ), its limit ν/√κ for a = 0, and inf where the logarithm ends."""
    if steepness * nu >= 1:
        return math.inf
    if steepness * nu < 1e-300:
        return nu / math.sqrt(kappa) * (1 + TINY)
    return -math.log1p(-steepness * nu) / (steepness * math.sqrt(kappa)) * (1 + TINY)


def _scalar_bound(
    rows: Rows, g: Gradient, loss: str, l2: float, intercept: bool, enough: float
) -> float:
    """√Σ of the bounds of the outputs; squared loss has one Hessian for all of them."""
    outputs = g.value.shape[1]
    curved = loss != "squared"
    squares, factor = 0.0, None
    for k in range(outputs):
        if curved or factor is None:
            factor = _scalar_factor(rows, g, k, l2, intercept)
        if factor is None:
            return math.inf
        widest = _widest(rows, g) / math.sqrt(factor.kappa) if curved else 0.0
        column = (g.value[:, [k]], g.error, g.errors[:, [k]])
        bound = factor.convert(*column, widest)
        if curved and bound > enough / math.sqrt(outputs):
            leverage = _leverage(rows, factor, intercept)
            bound = min(bound, factor.convert(*column, leverage))
        squares += bound**2
    return math.sqrt(squares) * (1 + TINY)


def _widest(rows: Rows, g: Gradient) -> float:
    return float(g.norms[rows.weight > 0].max(initial=0.0)) * (1 + TINY)


def _leverage(rows: Rows, factor: _Factor, intercept: bool) -> float:
    """√h: the largest √(x_iᵀH⁻¹x_i) over the rows of positive weight."""
    largest = 0.0
    for part, block in rows.blocks(intercept):
        dense = block.toarray() if hasattr(block, "toarray") else block
        norms = factor.solve(dense[rows.weight[part] > 0].T)
        largest = max(largest, float(norms.max(initial=0.0)))
    return largest


def _scalar_factor(
    rows: Rows, g: Gradient, output: int, l2: float, intercept: bool
) -> _Factor | None:
    p = len(g.value)
    hessian = np.zeros((p, p))
    scale = rows.weight * g.curvature[:, output]
    for part, block in rows.blocks(intercept):
        hessian += _outer(block, scale[part])
    _penalise(hessian, l2, intercept)
    margin = math.expm1(min(g.margin_error, 700.0)) * (1 + TINY)
    relative = 1.01 * ((rows.additions + 24) * DOUBLE + margin)
    return _factor(hessian, relative, 0.0 if intercept else l2)


def _outer(block: NDArray[np.float64], scale: Array) -> Array:
    product = block.T @ (block * scale[:, None])
    dense: Array = product.toarray() if hasattr(product, "toarray") else product
    return dense


def _penalise(hessian: Array, l2: float, intercept: bool) -> None:
    diagonal = np.arange(len(hessian) - intercept)
    hessian[diagonal, diagonal] += l2


def _softmax_bound(rows: Rows, g: Gradient, l2: float, intercept: bool, missed: float) -> float:
    """The bound for W in class-major order, with R = √2·max‖x_i‖."""
    p, outputs = g.value.shape
    hessian = _softmax_hessian(rows, g, intercept)
    for k in range(outputs):
        block = slice(k * p, (k + 1) * p)
        _penalise(hessian[block, block], l2, intercept)
    blocks = hessian.reshape(outputs, p, outputs, p)
    eta = np.maximum(np.einsum("kjkj->j", blocks), l2)
    j = np.arange(p)
    blocks[:, j, :, j] += (eta / outputs)[:, None, None]
    drift = math.sqrt(2 * outputs) * g.margin_error
    relative = (rows.additions + 4 * outputs + 40) * DOUBLE * outputs
    relative += math.expm1(min(drift, 700.0))
    factor = _factor(hessian, 1.01 * relative, 0.0 if intercept else l2)
    if factor is None:
        return math.inf
    widest = math.sqrt(2) * _widest(rows, g) / math.sqrt(factor.kappa)
    flat = (
        g.value.T.reshape(-1, 1),
        g.error + l2 * missed,
        g.errors.T.reshape(-1, 1) + l2 * missed,
    )
    return factor.convert(*flat, widest * (1 + TINY))


def _softmax_hessian(rows: Rows, g: Gradient, intercept: bool) -> Array:
    """Σ s_i (diag p_i − p_i p_iᵀ) ⊗ x_i x_iᵀ without the penalty."""
    p, outputs = g.value.shape
    hessian = np.zeros((p * outputs, p * outputs))
    for part, block in rows.blocks(intercept):
        weight, chance = rows.weight[part], g.curvature[part]
        for k in range(outputs):
            for j in range(k + 1):
                rest = np.delete(chance, k, axis=1).sum(axis=1) if k == j else -chance[:, j]
                scale = weight * chance[:, k] * rest
                added = _outer(block, scale)
                hessian[k * p : (k + 1) * p, j * p : (j + 1) * p] += added
                if j != k:
                    hessian[j * p : (j + 1) * p, k * p : (k + 1) * p] += added
    return hessian


def _gauge(weights: Array) -> float:
    """Distance of the weights from the subspace on which every row sums to zero."""
    sums = [math.fsum(row) for row in weights.tolist()]
    return math.hypot(*sums) / math.sqrt(weights.shape[1]) * (1 + TINY)
