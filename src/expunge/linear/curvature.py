"""The factored Hessian kept for deletions: solve, downdate, and what is certain about it.

A :class:`Curvature` stands for the matrix ``A = L(I − ZZᵀ)Lᵀ``: a Cholesky factor ``L`` of the
Hessian at the anchor, and ``Z = L⁻¹Vᵀ`` for the rows deleted since it was factored. With it come
*certified* constants: a lower bound of its smallest eigenvalue, an upper bound of the leverage of
any row, and a bound ``slack`` of its relative distance to the exact Hessian of the retained rows,
``|vᵀ(A − H)v| ≤ slack·vᵀAv``. A wrong constant would be a wrong certificate: each is derived from
an inequality that a floating-point Cholesky factorisation proves [Rump, 2006].
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
from scipy.linalg.blas import dnrm2, dtrmm, dtrmv, dtrsm, dtrsv
from scipy.linalg.lapack import dpotrf

from expunge.errors import ToleranceUnreachable
from expunge.linear.losses import Array
from expunge.linear.rounding import gamma

MAX_SLACK = 0.01
MAX_REMOVED = 64
_HOPELESS = (
    "the curvature is too ill-conditioned for a certificate (relative error bound {:.1e}, at most "
    "{} is allowed): scale the features to similar ranges, drop collinear columns, or penalise "
    "more"
)


@dataclass(frozen=True, repr=False)
class Curvature:
    """A certified factorisation of the retained Hessian at the anchor.

    Attributes
    ----------
    chol : (q, q) float64, lower triangular, Fortran order
    Z : (q, k) float64
        Whitened rows deleted since the factorisation.
    inner : (k, k) float64
        ``(I − ZᵀZ)⁻¹``.
    eta : float
        Upper bound of ``λ_max(ZZᵀ)``, below 1.
    kappa : float
        Lower bound of ``λ_min(LLᵀ)``.
    leverage : float
        Upper bound of ``max_i (spread of x_i's margins under v)² / vᵀLLᵀv`` over all ``v``.
    radius : float
        Upper bound of (spread of x_i's margins under v) / ‖v‖₂ over rows and ``v``.
    slack : float
        Relative error bound of ``LLᵀ``, see the module's text.
    row_error : float
        Relative error of the curvature of a single row.
    scale : (q,) float64
        ``D = √diag(LLᵀ)``.
    unit : float
        Lower bound of ``λ_min(D⁻¹LLᵀD⁻¹)``, which does not change when features are rescaled.
    ridge : float
        Penalty Λ where it is a lower bound of the eigenvalues of every retained Hessian, else 0.
    """

    chol: Array
    Z: Array
    inner: Array
    eta: float
    kappa: float
    leverage: float
    radius: float
    slack: float
    row_error: float
    scale: Array
    unit: float
    ridge: float

    @property
    def error(self) -> float:
        """Relative error bound of ``A`` as the exact Hessian of the rows that are left."""
        return _diluted(self.slack, self.row_error, 1.0 - self.eta)

    @property
    def floor(self) -> float:
        """Lower bound of the smallest eigenvalue of the exact retained Hessian at the anchor."""
        return max(self.ridge, (1.0 - self.eta) * self.kappa * (1.0 - self.error))

    @property
    def top(self) -> float:
        """Upper bound of the leverage under the exact retained Hessian at the anchor."""
        return self.leverage / ((1.0 - self.eta) * (1.0 - self.error))

    @property
    def up(self) -> float:
        """Factor that rounds the norms below upwards; ``error`` exceeds the solves' rounding."""
        return 1.0 + 1e-8 + 2.0 * self.error

    @np.errstate(over="ignore")
    def solve(self, g: Array) -> tuple[Array, float]:
        """Return ``A⁻¹g`` for ``g`` (q, C), and ``√tr(gᵀA⁻¹g)`` rounded up."""
        a = self.whiten(g)
        expanded = self._expand(a)
        norm = self.up * math.sqrt(max(float(np.sum(a * expanded)), 0.0))
        return solve_triangular(self.chol, expanded, transposed=1), norm

    def whiten(self, g: Array) -> Array:
        """Return ``L⁻¹g``."""
        return solve_triangular(self.chol, g)

    def product(self, v: Array) -> Array:
        """Return ``Av``."""
        y = self._half(v)
        return dtrmm(1.0, self.chol, y - self.Z @ (self.Z.T @ y), lower=1)

    def norm(self, v: Array) -> float:
        """Return ``√tr(vᵀAv)``, rounded up."""
        y = self._half(v)
        small = self.Z.T @ y
        square = float(np.sum(y * y)) - float(np.sum(small * small))
        return self.up * math.sqrt(max(square, 0.0))

    def defect(self, g: Array, v: Array) -> float:
        """Return ``‖g + Av‖`` in the norm of A⁻¹, rounded up."""
        y = self._half(v)
        left = self.whiten(g) + y - self.Z @ (self.Z.T @ y)
        return self.up * float(np.linalg.norm(left)) / math.sqrt(1.0 - self.eta)

    def dual_error(self, error: float, errors: Array | None) -> tuple[float, float]:
        """Bound ``‖e‖_{A⁻¹}`` and ``‖A⁻¹e‖₂`` of a rounding error ``e``.

        ``error`` bounds ``‖e‖₂``, ``errors`` (q, C), if known, every coordinate. With ``A = DÂD``,
        ``Â ⪰ unit(1 − η)``: ``‖e‖_{A⁻¹} ≤ ‖D⁻¹e‖/√λ`` and ``‖A⁻¹e‖₂ ≤ ‖D⁻¹e‖/(λ·min D)``.
        """
        dual, moved = error / math.sqrt(self.floor), error / self.floor
        if errors is None:
            return dual, moved
        least = self.unit * (1.0 - self.eta) * (1.0 - self.error)
        scaled = self.up * float(np.linalg.norm(errors / self.scale[:, None]))
        return (
            min(dual, scaled / math.sqrt(least)),
            min(moved, scaled / (least * float(self.scale.min()))),
        )

    def folded(self) -> Curvature:
        """Return the same curvature with the deleted rows folded into the factor.

        Raises
        ------
        ToleranceUnreachable
            If that cannot be certified without a new Hessian.
        """
        if not self.Z.shape[1]:
            return self
        return self._refactor(self.matrix(), 1.0 - self.eta, 0)

    def remove_gram(self, gram: Array, rows: int) -> Curvature:
        """Return the curvature after deleting many rows at once, given ``VᵀV`` (q, q).

        Raises
        ------
        ToleranceUnreachable
            If what is left cannot be certified without a new Hessian.
        """
        old = self.matrix()
        keep = _ratio(old - gram, old) * (1.0 - self.eta)
        return self._refactor(old - gram, keep, rows)

    def remove(self, V: Array) -> Curvature:
        """Return the curvature after deleting rows ``V`` (k, q), that is ``A − VᵀV``.

        Raises
        ------
        ToleranceUnreachable
            If what is left cannot be certified without a new Hessian.
        """
        added = self.whiten(V.T)
        Z = np.hstack([self.Z, added])
        eta = self.eta + _eta(added)
        if eta > 0.3:
            eta = _eta(Z)
        if eta <= 0.5 and Z.shape[1] <= MAX_REMOVED:
            return replace(self, Z=Z, eta=eta, inner=_grow(self.inner, self.Z, added))
        return self._refactor(self.matrix() - V.T @ V, 1.0 - eta, len(V))

    def matrix(self) -> Array:
        """Return ``A`` as a dense matrix."""
        half = dtrmm(1.0, self.chol, self.Z, lower=1)
        full: Array = self.chol @ self.chol.T - half @ half.T
        return full

    def margin_change(self, v: Array) -> float:
        """Bound the change of any row's margins (their spread, for softmax) along ``v`` (q, C)."""
        if self.radius == 0.0 or not v.any():
            return 0.0
        local = math.sqrt(self.leverage / (1.0 - self.eta)) * self.norm(v)
        return min(local, self.up * self.radius * float(np.linalg.norm(v)))

    def with_reach(self, leverage: float, radius: float) -> Curvature:
        """Return the same factorisation with bounds of what rows can do, see the attributes."""
        leverage = self.up * min(leverage, radius**2 / self.floor)
        return replace(self, leverage=leverage, radius=radius)

    def _half(self, v: Array) -> Array:
        """Return ``Lᵀv``; a column is faster as a vector."""
        if v.shape[1] == 1:
            return dtrmv(self.chol, v[:, 0], lower=1, trans=1)[:, None]
        return dtrmm(1.0, self.chol, v, lower=1, trans_a=1)

    def _expand(self, a: Array) -> Array:
        """Return ``(I − ZZᵀ)⁻¹a``."""
        if not self.Z.shape[1]:
            return a
        expanded: Array = a + self.Z @ (self.inner @ (self.Z.T @ a))
        return expanded

    def _refactor(self, new: Array, keep: float, rows: int) -> Curvature:
        """Factor ``new ⪰ keep·LLᵀ`` afresh, carrying over the errors that are in it."""
        if keep <= 0.0:
            raise ToleranceUnreachable("the deleted rows carry nearly all of the curvature")
        terms = self.chol.shape[0] + self.Z.shape[1] + rows
        fresh = certify(
            new,
            slack=_diluted(self.slack, self.row_error, keep),
            row_error=self.row_error,
            rounding=gamma(terms + 8) / keep,
            ridge=self.ridge,
        )
        return fresh.with_reach(self.leverage / keep, self.radius)


def solve_triangular(chol: Array, g: Array, transposed: int = 0) -> Array:
    """Return ``L⁻¹g`` or ``L⁻ᵀg``; a column is faster as a vector."""
    if g.shape[1] == 1:
        return dtrsv(chol, g[:, 0], lower=1, trans=transposed)[:, None]
    return dtrsm(1.0, chol, g, lower=1, trans_a=transposed)


def cholesky(H: Array) -> Array:
    """Return the lower factor of ``H``, or of a matrix hardly larger; nothing is proved of it.

    Raises
    ------
    ToleranceUnreachable
        If there is none.
    """
    chol, info = dpotrf(H, lower=1, clean=1)
    if info:
        diagonal = 1e-10 * np.diagonal(H) + 1e-300
        chol, info = dpotrf(H + np.diag(diagonal), lower=1, clean=1)
    if info:
        raise ToleranceUnreachable(
            "the Hessian is singular in float64: scale the features, drop collinear columns or "
            "penalise more"
        )
    return np.asarray(chol)


def certify(
    H: Array, *, slack: float, row_error: float, rounding: float, ridge: float
) -> Curvature:
    """Factor ``H`` (q, q) and certify its smallest eigenvalue; of the rows, nothing is known yet.

    Parameters
    ----------
    H : (q, q) float64
        Computed Hessian, the penalty included.
    slack : float
        Relative error already in ``H``.
    row_error : float
        As in :class:`Curvature`.
    rounding : float
        Componentwise error of ``H``: ``|ΔH_ij| ≤ rounding·√(H_ii·H_jj)``.
    ridge : float
        As in :class:`Curvature`.

    Raises
    ------
    ToleranceUnreachable
        If ``H`` is not certifiably positive definite.
    """
    q = len(H)
    diagonal = np.diagonal(H).copy()
    chol, info = dpotrf(H, lower=1, clean=1) if (diagonal > 0).all() else (H, 1)
    if info:
        raise ToleranceUnreachable(_HOPELESS.format(float("inf"), MAX_SLACK))
    scale = np.sqrt(diagonal)
    equilibrated = H / scale[:, None] / scale
    unit = _smallest_eigenvalue(equilibrated, chol / scale[:, None])
    total = slack + 1.01 * q * (rounding + 4.0 * gamma(q + 2)) / max(unit, 1e-300)
    if total > MAX_SLACK:
        raise ToleranceUnreachable(_HOPELESS.format(total, MAX_SLACK))
    kappa = max(ridge, _smallest_eigenvalue(H, chol))
    if not kappa > 0.0:
        raise ToleranceUnreachable(_HOPELESS.format(float("inf"), MAX_SLACK))
    none, inner = np.zeros((q, 0)), np.zeros((0, 0))
    lower = np.asfortranarray(chol)
    return Curvature(
        lower, none, inner, 0.0, kappa, 0.0, 0.0, total, row_error, scale, 0.99 * unit, ridge
    )


def _diluted(slack: float, row_error: float, keep: float) -> float:
    """Return the relative error of what is left when ``left ⪰ keep·all``.

    ``|left − exact| ⪯ slack·all + row_error·(all − left)``, and ``all ⪯ left/keep``.
    """
    return slack / keep + row_error * (1.0 / keep - 1.0)


def _eta(Z: Array) -> float:
    trace = float(np.sum(Z * Z))
    if trace <= 0.02 or Z.shape[1] < 2:
        return (1.0 + 1e-8) * trace
    return (1.0 + 1e-8) * float(np.linalg.eigvalsh(Z.T @ Z)[-1]) + 1e-14


def _grow(inner: Array, Z: Array, added: Array) -> Array:
    """Return ``(I − [Z, added]ᵀ[Z, added])⁻¹`` from ``inner = (I − ZᵀZ)⁻¹``, by blocks."""
    cross = Z.T @ added
    side = inner @ cross
    corner = np.linalg.inv(np.eye(added.shape[1]) - added.T @ added - cross.T @ side)
    edge = side @ corner
    return np.block([[inner + edge @ side.T, edge], [edge.T, corner]])


def _positive(H: Array, diagonal: Array) -> bool:
    """Prove ``H ⪰ 0`` for a symmetric matrix whose rounding errors scale with ``diagonal``.

    If the Cholesky factorisation of ``H − c·diag`` runs through with ``c = 2qγ_{q+2}`` then H is
    positive semidefinite, since its backward error is at most ``γ_{q+1}·q·diag`` [Rump, 2006].
    """
    q = len(H)
    shifted = H.copy()
    shifted[np.diag_indices(q)] -= 2.0 * q * gamma(q + 2) * diagonal
    if not (np.diagonal(shifted) > 0).all():
        return False
    return bool(dpotrf(shifted, lower=1, overwrite_a=1)[1] == 0)


def _smallest_eigenvalue(H: Array, chol: Array) -> float:
    """Return a proved lower bound of ``λ_min(H)``, usually within 3 %; 0 if nothing is proved.

    Inverse iteration guesses, a shifted Cholesky factorisation proves.
    """
    chol = np.asfortranarray(chol)
    v = np.random.default_rng(0).standard_normal(len(H))
    for _ in range(12):
        v = dtrsv(chol, dtrsv(chol, v / dnrm2(v), lower=1), lower=1, trans=1)
    guess = 1.0 / float(dnrm2(v))
    diagonal = np.diagonal(H)
    for factor in (0.97, 0.8, 0.5, 0.1, 0.01):
        shifted = H - factor * guess * np.eye(len(H))
        if _positive(shifted, diagonal):
            return factor * guess
    return 0.0


def _ratio(new: Array, old: Array) -> float:
    """Return a proved ``t`` with ``new ⪰ t·old``; 0 if none is found."""
    for t in (0.98, 0.9, 0.7, 0.4, 0.1, 1e-2, 1e-3, 1e-4, 1e-6):
        if _positive(new - t * old, np.diagonal(old)):
            return t
    return 0.0
