"""A floor under the curvature of models too wide for their Hessian, with a free intercept.

The Hessian at w in a direction (U, v), U the change of the penalised weights and v that of the
intercepts, is Σ s_i‖M_i^½(Uᵀx_i + v)‖² + Λ‖U‖², M_i the curvature of row i in its margins. For
every t in (0, 1), by ‖a + b‖² ≥ (1 − t)‖b‖² − (1/t − 1)‖a‖²,

    it is at least  (1 − t)·vᵀBv + (Λ − (1/t − 1)L)‖U‖²,   B = Σ s_i M_i,  L = Σ s_i t_i‖x_i‖²,

with t_i ≥ λ_max(M_i). If vᵀBv ≥ β‖v‖², the best t makes both factors equal to the smaller root κ of
κ² − (Λ + L + β)κ + Λβ = 0 [own]. Softmax: v sums to zero, as the intercepts of the minimiser do;
U is free, since Λ covers the directions that M_i does not see. The distance follows from κ as in
convex.md §3.2, on the subspace of those (U, v), where the objective is as self-concordant as on the
whole space and its gradient is no longer.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from scipy.linalg import eigvalsh

from expunge.certificate.curvature import DOUBLE, TINY, Point, chance_error, convert, gauge
from expunge.certificate.residual import Array


def curvature_floor(l2: float, least: float, reach: float) -> float:
    """κ above, rounded down: a lower bound of the Hessian's eigenvalues.

    Parameters
    ----------
    l2 : float
        Λ > 0, sum units.
    least : float
        β: a lower bound of vᵀBv/‖v‖².
    reach : float
        L: an upper bound of Σ s_i t_i‖x_i‖².

    Examples
    --------
    >>> [round(curvature_floor(1.0, 100.0, reach), 6) for reach in (0.0, 100.0)]
    [1.0, 0.49875]
    """
    if not least > 0:
        return 0.0
    total = l2 + least + reach
    root = math.sqrt(max(0.0, 1 - 4 * (l2 / total) * (least / total)))
    return 2 * l2 * (least / total) / (1 + root) * (1 - TINY)


def least_between(shared: Array, relative: float) -> float:
    """A lower bound of vᵀBv over unit vectors v that sum to zero, B = diag(Σ_j a_kj) − a.

    B = Σ s_i(diag p_i − p_ip_iᵀ) for a_kj = Σ s_i p_ik p_ij. Since vᵀBv = ½Σ a_kj(v_k − v_j)², an
    error of the entries by a factor changes it by no more than that factor. The second estimate
    serves rare classes: with D = √diag B, vᵀBv = ‖z‖² in the norm of D⁻¹BD⁻¹, z = Dv, whose part
    across the null vector D1 is no shorter than min_k D_kk·‖v‖ [own].

    Parameters
    ----------
    shared : (K, K) float64, ≥ 0
        a; its diagonal does not count.
    relative : float
        Bound of the relative error of every entry.
    """
    shared = shared - np.diag(np.diagonal(shared))
    own = shared.sum(axis=1)
    if not (own.min() > 0 and relative < 1):
        return 0.0
    scale, best = np.sqrt(own), 0.0
    between = np.diag(own) - shared
    for matrix, unit in ((between, 1.0), (between / scale[:, None] / scale, float(own.min()))):
        values = eigvalsh(matrix)
        least = float(values[1]) - 32 * len(own) * DOUBLE * float(values[-1])
        best = max(best, least * unit)
    return best * (1 - relative) * (1 - TINY)


def floor_bound(point: Point) -> float:
    """The distance shown by the floor, for a free intercept and a loss with a curvature.

    Its intercepts are moved to sum zero first for softmax, which changes neither probabilities nor
    gradient, and what they move is added.
    """
    g = point.gradient
    if point.loss == "softmax":
        kappa = softmax_floor(point)
        bound = _distance(point, kappa, float(np.linalg.norm(g.value)), g.error)
        return bound + gauge(point.weights[-1:])
    kappas = scalar_floors(point)
    norms = np.linalg.norm(g.value, axis=0), 1.01 * np.linalg.norm(g.errors, axis=0)
    bounds = [
        _distance(point, kappa, float(norm), float(error))
        for kappa, norm, error in zip(kappas, *norms, strict=True)
    ]
    return math.hypot(*bounds) * (1 + TINY)


def _distance(point: Point, kappa: float, residual: float, error: float) -> float:
    if not kappa > 0:
        return math.inf
    root = math.sqrt(kappa)
    return convert(point.steepness / root, (residual * (1 + TINY) + error) / root, kappa)


def scalar_floors(point: Point) -> list[float]:
    """κ of every output; squared loss has one for all."""
    outputs = point.weights.shape[1]
    own = slice(0, 1 if point.loss == "squared" else outputs)
    least, reach = np.zeros(outputs), np.zeros(outputs)
    for block, weight, second in point.curved(own):
        scaled = second * weight[:, None]
        least += scaled.sum(axis=0)
        reach += _squares(block) @ scaled
    wrong = _wrong(point, 1)
    return [
        curvature_floor(point.l2, b * (1 - wrong), w * (1 + wrong))
        for b, w in zip(least.tolist(), reach.tolist(), strict=True)
    ]


def softmax_floor(point: Point) -> float:
    """κ with λ_max(diag p − ppᵀ) ≤ 2·max_k p_k(1 − p_k) [Gershgorin]."""
    outputs = point.weights.shape[1]
    shared, reach = np.zeros((outputs, outputs)), 0.0
    others = 1.0 - np.eye(outputs)
    for block, weight, chance in point.curved(slice(None)):
        shared += chance.T @ (chance * weight[:, None])
        largest = 2 * (chance * (chance @ others)).max(axis=1)
        reach += float(_squares(block) @ (largest * weight))
    wrong = _wrong(point, 4) + 1.01 * chance_error(outputs)
    return curvature_floor(point.l2, least_between(shared, wrong), reach * (1 + wrong))


def _squares(block: Any) -> Array:
    """‖x_i‖² of every row without the constant, (b,)."""
    features = block[:, :-1]
    squares: Array = np.asarray((features * features).sum(axis=1)).ravel()
    return squares


def _wrong(point: Point, power: int) -> float:
    """Relative error of sums of curvatures that are off by at most e^(power·margin error)."""
    p, outputs = point.weights.shape
    sums: float = (point.gradient.additions + p + 2 * outputs + 40) * DOUBLE
    return 1.01 * (sums + point.drift(power))
