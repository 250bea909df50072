"""Gradient residuals: what a Newton step leaves, bounded; and steps from models not at an optimum.

A removal step ``δ = H_R(w)⁻¹Δ`` with ``Δ = −∇F_R(w)`` leaves ``u = ∇F_R(w + δ)``, the error of a
linear model of the gradient. :func:`residual_bounds` prints the published bounds of ``‖u‖`` beside
ours; :func:`steps` compares the steps people take when ``∇F_D(w)`` is not zero. Logistic loss, no
intercept, *sum* objective; ``third`` is the Lipschitz constant of ℓ''.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import eigvalsh
from scipy.special import expit

from expunge.errors import InvalidInput
from expunge.linear.bounds import guo_corollary1, guo_theorem1, phi
from expunge.linear.losses import LOSSES, Array
from expunge.linear.passes import Pass, evaluate
from expunge.linear.rounding import UNIT
from expunge.linear.rows import Rows
from expunge.linear.shards import chain_length, single_threaded_blas

LOGISTIC = LOSSES["logistic"]
THIRD_PAPER = 0.25


@dataclass(frozen=True)
class Bounds:
    """Bounds on the gradient residual that one Newton removal adds, for one output, sum units.

    ``theorem`` and ``corollary`` are Guo et al.'s Theorem 1/4 and Corollary 1/2, each with the
    paper's γ = 1/4 and with the sharp 1/(6√3). Theorem 1 supposes an exact optimum *without* b, so
    it is informative only. ``sharp``, ``gram`` (O(d²), no rows) and ``self_concordant`` are ours.
    """

    theorem_paper: float
    theorem: float
    corollary_paper: float
    corollary: float
    sharp: float
    gram: float
    self_concordant: float


@single_threaded_blas()
def residual_bounds(
    retained: Rows, w: Array, delta: Array, *, gram: Array, l2: float, removed: int
) -> Bounds:
    """Return every bound for the step ``delta`` (d, 1) from ``w`` (d, 1), without rounding terms.

    ``gram`` is XᵀX of the retained rows, ``l2`` is λ per record.
    """
    live = retained.weight > 0
    norm = float(retained.norm[live].max())
    terms = chain_length(len(live)) + removed
    root = math.sqrt(spectral_bound(gram, terms))
    margins = np.asarray(retained.X @ delta)[live]
    H = loss_hessian(retained, w)
    loss_moved = math.sqrt(max((delta.T @ H @ delta).item(), 0.0))
    corollary = guo_corollary1(1.0, root * norm, delta, margins)
    theorem = guo_theorem1(1.0, norm, l2, retained.count + removed, removed) * norm**3
    return Bounds(
        theorem_paper=THIRD_PAPER * theorem,
        theorem=LOGISTIC.third * theorem,
        corollary_paper=THIRD_PAPER * corollary,
        corollary=LOGISTIC.third * corollary,
        sharp=sharp_bound(margins, root),
        gram=LOGISTIC.third / 2 * corollary,
        self_concordant=math.sqrt(spectral_bound(H, terms))
        * phi(0.0, norm * float(np.linalg.norm(delta)))
        * loss_moved,
    )


def density_slack(forget: Rows, retained: Rows, w: Array, delta: Array, l2: float) -> float:
    """Return ``|ln|det(I − ∂u/∂b)||``: by how much the proof is off since ``u`` depends on ``b``.

    The step sends ``b`` to the ``b' = −∇L(w⁻; R)`` for which w⁻ is an exact optimum, and
    ``∂b'/∂b = H_R(w⁻) H_R(w)⁻¹ (H_D − T) H_D⁻¹`` with ``T = Σ_R ℓ'''(x_iᵀw)(x_iᵀδ) x_i x_iᵀ``. The
    density ratio of the releases gains the inverse of its determinant. A diagnosis for one (d, 1)
    output: it depends on deleted rows and on b, so it is not for publication.
    """
    eye = l2 * np.eye(len(w))
    here, there = (loss_hessian(retained, point) for point in (w, w + delta))
    full = here + loss_hessian(forget, w) + eye * (retained.count + forget.count)
    margins = np.asarray(retained.X @ w)[:, 0]
    third = -expit(margins) * expit(-margins) * np.tanh(margins / 2) * retained.weight
    moved = np.asarray(retained.X @ delta)[:, 0]
    T = np.asarray(retained.X.T @ (retained.X * (third * moved)[:, None]))
    parts = (
        np.linalg.slogdet(there + eye * retained.count)[1],
        -np.linalg.slogdet(here + eye * retained.count)[1],
        np.linalg.slogdet(np.eye(len(w)) - np.linalg.solve(full, T))[1],
    )
    return abs(math.fsum(map(float, parts)))


def spectral_bound(gram: Array, terms: int) -> float:
    """Return a proved upper bound of ``λ_max`` of a Gram matrix computed as a sum of ``terms``.

    Power iteration gives a lower bound; a certificate needs an upper one (Higham, 2002, for the
    sum, Weyl for the eigenvalue solver's backward error).

    Examples
    --------
    >>> spectral_bound(np.diag([1.0, 2.0]), 10) >= 2.0
    True
    """
    d = len(gram)
    top = float(eigvalsh(gram, subset_by_index=[d - 1, d - 1])[0])
    return top * (1.0 + 16 * d * UNIT) + gram_error(gram, terms)


def gram_of(rows: Rows) -> Array:
    """Return ``XᵀX`` (d, d) over the rows of weight 1."""
    zero = np.zeros((rows.width, 1))
    return hessian_of(evaluate(rows.outputs(slice(0, 1)), LOSSES["squared"], zero, hessian=True))


def gram_error(gram: Array, terms: int) -> float:
    return 1.01 * (terms + 8) * UNIT * float(np.trace(gram))


def sharp_bound(margins: Array, root: float) -> float:
    return LOGISTIC.third / 2 * root * float(np.linalg.norm(margins * margins))


def loss_hessian(rows: Rows, w: Array) -> Array:
    return hessian_of(evaluate(rows, LOGISTIC, w, hessian=True))


def hessian_of(found: Pass) -> Array:
    if found.hessian is None:
        raise InvalidInput("no rows to take a Hessian of")
    return found.hessian


@single_threaded_blas()
def steps(rows: Rows, forget: NDArray[np.intp], w: Array, ridge: float) -> dict[str, Array]:
    """Return where the removal steps from a model that is *not* at its optimum lead, (d, 1) each.

    Let ``g = ∇F_D(w)``, ``l = Σ_U ∇ℓ_i(w)``, and Λ = ``ridge`` be fixed; then ``∇F_R(w) = g − l``.

    - ``nothing``: w itself.
    - ``short``: ``H_R⁻¹l``, which supposes g = 0; its new residual is g, up to second order.
    - ``full``: ``H_R⁻¹(l − g)``, Newton's step for F_R; its new residual is of second order.
    - ``full data``: ``H_D⁻¹(l − g)``; the Hessian of the deleted rows stays as a first-order error.
    - ``wrong sign``: ``H_R⁻¹(l + g)``; its new residual is 2g.
    """
    retained, gone = rows.without(forget), rows.take(forget)
    found = evaluate(retained, LOGISTIC, w, hessian=True)
    lost = evaluate(gone, LOGISTIC, w)
    g = found.gradient + lost.gradient + ridge * w
    H_R = hessian_of(found) + ridge * np.eye(len(w))
    H_D = H_R + loss_hessian(gone, w)
    moves = {
        "short": np.linalg.solve(H_R, lost.gradient),
        "full": np.linalg.solve(H_R, lost.gradient - g),
        "full data": np.linalg.solve(H_D, lost.gradient - g),
        "wrong sign": np.linalg.solve(H_R, lost.gradient + g),
    }
    return {"nothing": w} | {name: w + move for name, move in moves.items()}


def descend(rows: Rows, w: Array, ridge: float, count: int, smooth: float) -> Array:
    """Take ``count`` full gradient steps of length 2/(L + Λ), L = ``smooth`` ≥ the curvature."""
    for _ in range(count):
        w = w - 2.0 / (smooth + ridge) * gradient(rows, w, ridge)
    return w


def gradient(rows: Rows, w: Array, ridge: float) -> Array:
    """Return ``∇F(w)`` (d, 1) of the penalised sum objective, one pass."""
    full: Array = evaluate(rows, LOGISTIC, w).gradient + ridge * w
    return full
