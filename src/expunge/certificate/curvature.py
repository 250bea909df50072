"""Distance bounds from the whole Hessian at a point, and what is proved about its factor.

With ν = √(gᵀH⁻¹g) and κ ≤ λ_min(H) the distance is at most the least of

- −ln(1 − aν)/(a√κ) with a = R/√κ, R = max‖x_i‖ (√2·max‖x_i‖ for softmax) [convex.md §3.2];
- the same with a = √h, h = max_i x_iᵀH⁻¹x_i, for scalar margins [own]: along the way v to the
  optimum the margins change by at most S = √h‖v‖_H, H falls by at most e^(−S), so ν ≥ (1 −
  e^(−√h‖v‖_H))/√h;
- ν/√κ for squared loss (a = 0), also with an L1 penalty and g any subgradient s at w: the objective
  less half the square of ‖·‖_H stays convex, so ‖v‖_H² ≤ sᵀv ≤ ‖s‖_{H⁻¹}‖v‖_H [own];
- ‖H⁻¹g‖ + (e^S − 1)t/√κ, where t is the first factor −ln(1 − aν)/a and S = at [own]: v = −H̃⁻¹g
  with H̃, the Hessian averaged along v, between e^(−S)H and e^S·H, so ‖v + H⁻¹g‖_H ≤ (e^S − 1)t.
  Not with an L1 penalty: then v = H⁻¹(ŝ − s) for some subgradient of the L1 part, and H⁻¹s alone
  says nothing of its Euclidean length.

Everything is bounded with its rounding error: H ⪰ (1 − θ)LLᵀ with L the computed Cholesky factor.
A free intercept is not penalised. The softmax's flat directions, the same constant on the weights
of all classes, are filled by adding η·ggᵀ to the Hessian: the minimiser's rows sum to zero, and
what the sums miss of 0 is added to the distance.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.linalg import LinAlgError, cholesky, eigvalsh, solve_triangular

from expunge.certificate.residual import (
    BLOCK_VALUES,
    CURVATURES,
    EXTENDED,
    UNIT,
    Array,
    Gradient,
    Source,
    gamma,
    pieces,
)

DOUBLE = 2.0**-53
TINY = 1e-9


@dataclass(frozen=True, repr=False)
class Point:
    """Weights (p, C) with their gradient, and the objective: what every bound starts from.

    ``smooth`` says that there is no L1 penalty.
    """

    rows: Source
    weights: Array
    gradient: Gradient
    loss: str
    l2: float
    intercept: bool
    smooth: bool

    @property
    def steepness(self) -> float:
        """R: how fast the logarithm of the curvature can change; 0 for squared loss."""
        spread = {"squared": 0.0, "softmax": math.sqrt(2)}.get(self.loss, 1.0)
        return spread * self.gradient.widest * (1 + TINY)

    def drift(self, power: float) -> float:
        """Relative error of a curvature that the error of the margins changes by e^±power times it.

        Squared loss has none.
        """
        error = 0.0 if self.loss == "squared" else power * self.gradient.margin_error
        return math.expm1(min(error, 700.0)) * (1 + TINY)

    def curved(self, outputs: slice) -> Iterator[tuple[Any, Array, Array]]:
        """Yield the rows in pieces: features (b, p), weights (b,), curvature (b, C) at the point.

        The margins are those of `residual.gradient`, so that their error is ``margin_error``.
        """
        wide = self.weights[:, outputs].astype(EXTENDED)
        for block, target, weight in pieces(self.rows, self.intercept):
            margin = block.astype(EXTENDED) @ wide
            yield block, weight, CURVATURES[self.loss](margin, target[:, outputs])


def convert(steepness: float, nu: float, kappa: float) -> float:
    """−ln(1 − aν)/(a√κ), its limit ν/√κ for a = 0, and inf where the logarithm ends."""
    if not steepness * nu < 1:
        return math.inf
    if steepness * nu < 1e-300:
        return nu / math.sqrt(kappa) * (1 + TINY)
    return -math.log1p(-steepness * nu) / (steepness * math.sqrt(kappa)) * (1 + TINY)


@dataclass(frozen=True, repr=False)
class Factor:
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

    def convert(
        self, g: Array, error: float, errors: Array, steepness: float, smooth: bool
    ) -> float:
        """The least distance shown by a (sub)gradient (p, 1) with these bounds of its error."""
        dual, moved = self.rounding(error, errors)
        nu = float(self.solve(g)[0]) + dual
        plain = convert(steepness, nu, self.kappa)
        if math.isinf(plain) or not smooth:
            return plain
        change = steepness * math.sqrt(self.kappa) * plain
        wrong = math.expm1(change) + self.error * math.exp(change) if change < 700 else math.inf
        half = solve_triangular(self.lower, g, lower=True, check_finite=False)
        step = solve_triangular(self.lower, half, lower=True, trans="T", check_finite=False)
        corrected = float(np.linalg.norm(step)) + moved + wrong * plain
        return min(plain, corrected * (1 + TINY))


def factor(hessian: Array, relative: float, floor: float) -> Factor | None:
    """Factor a Hessian whose entries are off by at most ``relative``·√(H_ii·H_jj).

    Everything is judged after equilibration, so that the scales of features do not matter; None if
    it is too inexact. λ_min(H) ≥ 1/tr H⁻¹ does not know those scales either.
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
    backward = 1.01 * p * gamma(p + 1, DOUBLE)
    below = unit - backward
    if not below > 0:
        return None
    theta = (error + backward) / below
    omega = 1.01 * gamma(p, DOUBLE) * math.sqrt(p / below)
    if theta >= 0.5 or omega >= 0.1:
        return None
    inflation = (1 + omega) / math.sqrt(1 - theta) * (1 + TINY)
    halves = solve_triangular(lower, np.eye(p), lower=True, check_finite=False)
    trace = float((halves * halves).sum()) * inflation**2
    kappa = max(floor, least, unit * float(diagonal.min()), 1 / trace)
    return Factor(lower, scale, kappa, unit, inflation, 4 * (theta + omega))


def scalar_bound(point: Point, enough: float) -> float:
    """√Σ of the bounds of the outputs; squared loss has one Hessian for all of them."""
    g, outputs, curved = point.gradient, point.weights.shape[1], point.loss != "squared"
    squares, found = 0.0, None
    for k in range(outputs):
        if curved or found is None:
            found = _scalar_factor(point, k)
        if found is None:
            return math.inf
        column = (g.value[:, [k]], g.error, g.errors[:, [k]])
        bound = found.convert(*column, point.steepness / math.sqrt(found.kappa), point.smooth)
        if curved and bound > enough / math.sqrt(outputs):
            leverage = _leverage(point, found)
            bound = min(bound, found.convert(*column, leverage, point.smooth))
        squares += bound**2
    return math.sqrt(squares) * (1 + TINY)


def _leverage(point: Point, found: Factor) -> float:
    """√h: the largest √(x_iᵀH⁻¹x_i) over the rows of positive weight."""
    largest, step = 0.0, max(1, BLOCK_VALUES // len(found.lower))
    for block, _, weight in pieces(point.rows, point.intercept):
        for start in range(0, len(weight), step):
            part = block[start : start + step]
            dense = part if isinstance(part, np.ndarray) else part.toarray()
            norms = found.solve(dense[weight[start : start + step] > 0].T)
            largest = max(largest, float(norms.max(initial=0.0)))
    return largest


def _scalar_factor(point: Point, output: int) -> Factor | None:
    p, g = len(point.weights), point.gradient
    hessian = np.zeros((p, p))
    for block, weight, second in point.curved(slice(output, output + 1)):
        hessian += _outer(block, weight * second[:, 0])
    _penalise(hessian, point.l2, point.intercept)
    relative = 1.01 * ((g.additions + 24) * DOUBLE + point.drift(1))
    return factor(hessian, relative, 0.0 if point.intercept else point.l2)


def _outer(block: Any, scale: Array) -> Array:
    product = block.T @ (block * scale[:, None])
    dense: Array = product if isinstance(product, np.ndarray) else product.toarray()
    return dense


def _penalise(hessian: Array, l2: float, intercept: bool) -> None:
    diagonal = np.arange(len(hessian) - intercept)
    hessian[diagonal, diagonal] += l2


def softmax_bound(point: Point) -> float:
    """The bound for W in class-major order."""
    p, outputs = point.weights.shape
    g, l2, missed = point.gradient, point.l2, gauge(point.weights)
    hessian = _softmax_hessian(point)
    for k in range(outputs):
        block = slice(k * p, (k + 1) * p)
        _penalise(hessian[block, block], l2, point.intercept)
    blocks = hessian.reshape(outputs, p, outputs, p)
    eta = np.maximum(np.einsum("kjkj->j", blocks), l2)
    j = np.arange(p)
    blocks[:, j, :, j] += (eta / outputs)[:, None, None]
    relative = (g.additions + 4 * outputs + 40) * DOUBLE * outputs + 1.01 * chance_error(outputs)
    relative += point.drift(math.sqrt(2 * outputs))
    found = factor(hessian, 1.01 * relative, 0.0 if point.intercept else l2)
    if found is None:
        return math.inf
    errors = g.errors.T.reshape(-1, 1) + l2 * missed
    column = (g.value.T.reshape(-1, 1), g.error + l2 * missed, errors)
    steepness = point.steepness / math.sqrt(found.kappa) * (1 + TINY)
    return found.convert(*column, steepness, point.smooth) + missed


def chance_error(outputs: int) -> float:
    """Relative error of p_k·p_j as computed, that of the margins apart, where it is not 0.

    By convex.md §2.7 a probability is off by (K + 8)(1 + T)u; with T > 745 it is 0 in float64.
    """
    return 2 * (outputs + 8) * 750 * UNIT


def _softmax_hessian(point: Point) -> Array:
    """Σ s_i (diag p_i − p_i p_iᵀ) ⊗ x_i x_iᵀ without the penalty."""
    p, outputs = point.weights.shape
    hessian = np.zeros((p * outputs, p * outputs))
    for block, weight, chance in point.curved(slice(None)):
        for k in range(outputs):
            for j in range(k + 1):
                rest = np.delete(chance, k, axis=1).sum(axis=1) if k == j else -chance[:, j]
                scale = weight * chance[:, k] * rest
                added = _outer(block, scale)
                hessian[k * p : (k + 1) * p, j * p : (j + 1) * p] += added
                if j != k:
                    hessian[j * p : (j + 1) * p, k * p : (k + 1) * p] += added
    return hessian


def gauge(weights: Array) -> float:
    """Distance of the weights from the subspace on which every row sums to zero."""
    sums = [math.fsum(row) for row in weights.tolist()]
    return math.hypot(*sums) / math.sqrt(weights.shape[1]) * (1 + TINY)
