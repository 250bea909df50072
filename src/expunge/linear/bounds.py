"""Distance bounds to the retrained minimiser: ours, and the published ones for comparison.

Notation: ``F`` is the retained *sum* objective, penalty included, with minimiser ``ŵ``; ``A`` its
Hessian at the anchor ``w_H``; ``h`` bounds ``(spread of x_iᵀv)² / vᵀAv`` over rows and directions
(for a scalar margin: the largest leverage ``x_iᵀA⁻¹x_i``); ``κ ≤ λ_min(A)``. By generalised
self-concordance a point whose margins differ by at most ``s`` from those at ``w_H`` has a Hessian
between ``e^{−s}A`` and ``e^{s}A``. Everything is in the norm of ``A``, which does not change when
features are rescaled; only the last step, to the Euclidean distance, uses ``κ``.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from expunge.linear.losses import Array


def phi(a: float, s: float) -> float:
    """Return ``∫₀¹(e^{a+ts} − 1)dt = e^a(e^s − 1)/s − 1``, without cancellation.

    Examples
    --------
    >>> round(phi(0.0, 1e-9) / 5e-10, 6), phi(0.0, 0.0)
    (1.0, 0.0)
    """
    if a + s > 700.0:
        return math.inf
    mean = s / 2 + s * s / 6 + s**3 / 20 if s < 1e-4 else math.expm1(s) / s - 1.0
    return math.expm1(a) + math.exp(a) * mean


def step_residual(a: float, s: float, *, moved: float, loss_moved: float, slack: float) -> float:
    """Bound ``‖∇F(w_b + δ)‖_{A⁻¹}`` after the step ``δ = −A⁻¹∇F(w_b)``, the defect apart.

    Parameters
    ----------
    a, s : float
        Bounds of the change of margins from the anchor to ``w_b``, and along ``δ``.
    moved, loss_moved : float
        ``‖δ‖_A`` and the same without the penalty, ``‖δ‖_{A−Λ}``.
    slack : float
        Relative error of the computed ``A``.

    Notes
    -----
    ``∇F(w_b + δ) = ∫₀¹(∇²F(w_b + tδ) − A)δ dt`` up to the defect; the sandwich bounds the loss part
    of the integrand by ``e^{a+ts} − 1`` in the norm of ``A``'s loss part, which is below ``A``.
    """
    growth = phi(a, s)
    return math.inf if math.isinf(growth) else growth * loss_moved + slack * (1 + growth) * moved


@dataclass(frozen=True)
class Reach:
    """How far the minimiser can be, in the norm of ``A``, and how margins change on the way."""

    local: float
    change: float


def reach(residual: float, change: float, leverage: float) -> Reach | None:
    """Bound ``‖ŵ − w‖_A`` from ``residual ≥ ‖∇F(w)‖_{A⁻¹}``; None if nothing follows.

    Parameters
    ----------
    residual : float
    change : float
        Bound of the change of margins from the anchor to ``w``.
    leverage : float
        ``h`` above; 0 for a quadratic objective.

    Notes
    -----
    Let ``v = ŵ − w``, ``B = ∇²F(w) ⪰ e^{−change}A``, ``ν = ‖∇F(w)‖_{B⁻¹} ≤ e^{change/2}·residual``
    and ``S`` the largest change of a margin along ``v``; ``S ≤ r‖v‖_B`` with ``r² = h·e^{change}``.
    Convexity and the sandwich give ``‖v‖_B(1 − e^{−S})/S ≤ ν``; the left side decreases in S, so
    ``1 − e^{−r‖v‖_B} ≤ rν``. Hence ``‖v‖_B ≤ −ln(1 − rν)/r``, if ``rν < 1``, and
    ``‖v‖_A ≤ e^{change/2}‖v‖_B``. This is the local-norm theorem with the leverage in the place
    of ``R²/κ``, which is never smaller.

    Examples
    --------
    >>> reach(0.1, 0.0, 0.0)
    Reach(local=0.1, change=0.0)
    >>> reach(1.0, 0.0, 1.0)
    """
    if change > 700.0:
        return None
    stretch = math.exp(change / 2.0)
    nu, r = stretch * residual, stretch * math.sqrt(leverage)
    z = r * nu
    if not z < 1.0:
        return None
    local = stretch * (-math.log1p(-z) / r if z > 1e-8 else nu * (1.0 + z))
    return Reach(local, math.sqrt(leverage) * local)


def distance(found: Reach | None, kappa: float) -> float:
    """Bound ``‖ŵ − w‖₂`` by ``‖ŵ − w‖_A/√κ``; ``inf`` if nothing follows."""
    return math.inf if found is None or not kappa > 0.0 else found.local / math.sqrt(kappa)


def corrected_distance(
    found: Reach | None, kappa: float, *, change: float, correction: float, slack: float
) -> float:
    """Bound ``‖ŵ − w‖₂`` at a point whose gradient is known, by the Newton correction there.

    Parameters
    ----------
    found, kappa
        As for :func:`distance`.
    change : float
        Bound of the change of margins from the anchor to ``w``.
    correction : float
        Bound of ``‖A⁻¹∇F(w)‖₂``.
    slack : float
        Relative error of the computed ``A``.

    Notes
    -----
    ``v = ŵ − w = −H̃⁻¹∇F(w)`` with ``H̃`` the Hessian averaged along ``v``, between ``e^{−c}A`` and
    ``e^{c}A``, ``c = change + S``. So ``v + A⁻¹∇F(w) = A⁻¹(A − H̃)v`` has A-norm at most
    ``(e^c − 1)‖v‖_A``, and ``‖v‖₂ ≤ ‖A⁻¹∇F(w)‖₂ + (e^c − 1)‖v‖_A/√κ``. The worst direction, with
    its ``1/√κ``, is charged for what the correction leaves only.
    """
    plain = distance(found, kappa)
    if found is None or math.isinf(plain):
        return plain
    c = change + found.change
    wrong = math.expm1(c) + 2.0 * slack * math.exp(c) if c < 700.0 else math.inf
    return min(plain, correction + wrong * plain)


def floor_without_hessian(l2: float, size: float, least: float) -> float:
    """Bound ``λ_min`` of a Hessian with penalised weights and free intercepts from below.

    Parameters
    ----------
    l2 : float
        Λ of the weights.
    size : float
        ``L ≥ Σ_i s_i λ_max(M_i) ‖x_i‖²``, ``M_i`` the curvature of row i in its margins.
    least : float
        ``m ≤ λ_min(Σ_i s_i M_i)``, over intercepts that sum to zero for softmax.

    Notes
    -----
    Along weights U and intercepts v: ``Σ s_i ‖M_i^½(Uᵀx_i + v)‖² + Λ‖U‖²``. By ``‖a + b‖² ≥
    (1 − t)‖b‖² − (1/t − 1)‖a‖²`` that is at least ``(1 − t)m‖v‖² + (Λ − (1/t − 1)L)‖U‖²`` for every
    t in (0, 1). With ``u = 1/t − 1`` the factors ``mu/(1 + u)`` and ``Λ − uL`` are equal where
    ``Lu² + (m + L − Λ)u = Λ``.

    Examples
    --------
    >>> floor_without_hessian(1.0, 0.0, 5.0), round(floor_without_hessian(1.0, 100.0, 100.0), 4)
    (1.0, 0.4988)
    """
    if not least > 0.0:
        return 0.0
    if size == 0.0:
        return min(l2, least)
    b = least + size - l2
    root = math.hypot(b, 2.0 * math.sqrt(l2 * size))
    u = 2.0 * l2 / (b + root) if b > 0.0 else (root - b) / (2.0 * size)
    return max(min(least * u / (1.0 + u), l2 - u * size) * (1.0 - 1e-9), 0.0)


def guo_corollary1(third: float, operator_norm: float, delta: Array, margins: Array) -> float:
    """Return Guo et al.'s data-dependent residual bound ``γ‖X‖₂‖δ‖‖Xδ‖`` (2020, Corollary 1).

    ``third`` is the Lipschitz constant γ of ℓ'' (the paper takes 1/4 for the logistic loss; the
    sharp value is 1/(6√3)); rows must have norm at most 1. ``margins`` is ``Xδ``. Sum objective.
    """
    return float(third * operator_norm * np.linalg.norm(delta) * np.linalg.norm(margins))


def guo_theorem1(third: float, slope: float, mean_l2: float, n: int, k: int = 1) -> float:
    """Return Guo et al.'s worst-case residual bound ``4γk²C²/(λ²(n − k))`` (Theorems 1 and 4)."""
    return 4.0 * third * k * k * slope * slope / (mean_l2 * mean_l2 * (n - k))
