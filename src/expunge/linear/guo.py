"""Certified removal after Guo et al. (2020), for reproduction and comparison.

The *sum* objective ``L_b(w; D) = Σ ℓ(x_iᵀw, y_i) + (λn/2)‖w‖² + bᵀw`` with the logistic loss is
minimised, with ``b ~ N(0, σ²I)`` drawn once and kept secret. Deleting ``U`` is one Newton step with
the Hessian of the retained rows, ``w + H_R⁻¹(kλw + Σ_U ∇ℓ_i(w))``. It leaves a gradient residual
that is only *bounded*; the bounds add up, and when they exceed the budget the model is trained
anew with a fresh ``b`` (Algorithm 2). One-vs-rest models are K columns, each with its own
``b``; their residuals join in quadrature.

Two calibrations stand side by side. ``paper``: Corollary 1/2 with γ = 1/4 and the budget ``σε/c``,
``δ = 1.5·exp(−c²/2)``. ``library``: the sharp bound ``(γ/2)‖X_R‖‖(X_Rδ)∘(X_Rδ)‖`` with the exact
Lipschitz constant ``γ = 1/(6√3)`` of ℓ'' and the budget ``σ·μ(ε, δ)``.

What the published proof needs and no code can see is listed by :func:`promise` as assumed, so its
grade is never above ``conditional``. :mod:`expunge.linear.engine` needs none of it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from scipy.linalg import cho_factor, cho_solve

from expunge.errors import BudgetExhausted, CertificateRefused, InvalidInput, RetainedMismatch
from expunge.guarantee import Assumption, Guarantee, Tag, View, guo_sigma, log_delta, mu_of
from expunge.linear.bounds import guo_corollary1
from expunge.linear.engine import check_count
from expunge.linear.losses import Array
from expunge.linear.passes import evaluate
from expunge.linear.residuals import (
    LOGISTIC,
    THIRD_PAPER,
    gram_error,
    gram_of,
    hessian_of,
    sharp_bound,
    spectral_bound,
)
from expunge.linear.rounding import UNIT, gamma
from expunge.linear.rows import Rows
from expunge.linear.shards import chain_length, single_threaded_blas
from expunge.noise import NoiseSource

MAX_NEWTON = 200


@dataclass(frozen=True)
class Extractor:
    """The differential privacy (ε₁, δ₁), per record, with which a feature extractor was trained."""

    epsilon: float
    delta: float

    def __post_init__(self) -> None:
        """Refuse numbers that are no privacy guarantee."""
        if not (0.0 <= self.epsilon < math.inf and 0.0 <= self.delta < 1.0):
            raise InvalidInput(f"expected epsilon ≥ 0 and 0 ≤ delta < 1, got {self}")

    def group(self, records: int) -> tuple[float, float]:
        """Return (ε, δ) for ``records`` deleted records together (group privacy).

        Examples
        --------
        >>> Extractor(0.1, 1e-5).group(1)
        (0.1, 1e-05)
        """
        steps = math.fsum(math.exp(min(i * self.epsilon, 700.0)) for i in range(records))
        return records * self.epsilon, min(1.0, self.delta * steps)


@dataclass(frozen=True)
class Mechanism:
    """What is public and fixed before training.

    Attributes
    ----------
    l2 : float
        λ > 0 per record; the penalty is ``λn/2`` and shrinks with every deletion.
    sigma : float
        Standard deviation of ``b``, in units of the *sum* objective's gradient. With b in a mean
        objective, as ``bᵀw/n``, it is the same number.
    epsilon, delta : float
        The claim for one release.
    calibration : str
        ``paper`` or ``library``, see the module's text.
    max_retrains : int
        Retrains are forced by deletions; after this many removal is refused.
    extractor : Extractor, optional
        If the features come from an extractor trained with differential privacy on these records.

    Raises
    ------
    InvalidInput
        If a number is out of range.
    InvalidCalibration
        If the paper's calibration is false at (ε, δ).
    """

    l2: float
    sigma: float
    epsilon: float
    delta: float
    calibration: Literal["paper", "library"] = "paper"
    max_retrains: int = 100
    extractor: Extractor | None = None

    def __post_init__(self) -> None:
        """Check every number; evaluating the budget checks ε and δ."""
        for name in ("l2", "sigma"):
            value = getattr(self, name)
            if not 0.0 < value < math.inf:
                raise InvalidInput(f"{name} must be positive and finite, got {value!r}")
        if self.calibration not in ("paper", "library"):
            raise InvalidInput(
                f"calibration must be 'paper' or 'library', got {self.calibration!r}"
            )
        if self.max_retrains < 0:
            raise InvalidInput(f"max_retrains must be at least 0, got {self.max_retrains}")
        _ = self.budget

    @property
    def budget(self) -> float:
        """Largest gradient residual (sum units) that ``b`` hides.

        Examples
        --------
        >>> round(Mechanism(1e-3, 10.0, 1.0, 1e-4).budget, 6)
        2.280301
        >>> round(Mechanism(1e-3, 10.0, 1.0, 1e-4, calibration="library").budget, 6)
        3.139024
        """
        if self.calibration == "library":
            return self.sigma * mu_of(self.epsilon, self.delta)
        return self.sigma / guo_sigma(1.0, self.epsilon, self.delta)

    @property
    def exact_delta(self) -> float:
        """The exact δ at ε of a Gaussian shift as long as the budget; for the paper, below δ."""
        return math.exp(log_delta(self.epsilon, self.budget / self.sigma))


@dataclass(frozen=True, repr=False)
class State:
    """The trained model and what deletions need. All of it is secret but ``weights``.

    Attributes
    ----------
    mechanism : Mechanism
    weights : (d, K) float64
        What is released: ``b`` is the only noise.
    b : (d, K) float64
        The perturbation. Whoever knows it can undo the protection.
    spent : (K,) float64
        Bounds of ``‖∇L_b(weights; retained)‖``, starting with the gate value after training.
    gram : (d, d) float64
        XᵀX of the retained rows, computed once and downdated.
    count, removed, retrains : int
        Rows retained, rows deleted since the first training, and retrains so far.
    production : bool
        Whether ``b`` came from a source that may be used for a guarantee.
    """

    mechanism: Mechanism
    weights: Array
    b: Array
    spent: Array
    gram: Array
    count: int
    removed: int
    retrains: int
    production: bool

    def __repr__(self) -> str:
        """Say how many rows are retained; b never appears."""
        return f"State({self.count} rows retained, {self.retrains} retrains, sealed)"

    @property
    def residual(self) -> float:
        """Bound of the joint gradient residual ``√Σ_k r_k²``, sum units."""
        return float(np.linalg.norm(self.spent))


def train(rows: Rows, mechanism: Mechanism, source: NoiseSource) -> State:
    """Draw ``b`` and minimise ``L_b`` (Algorithm 1).

    Raises
    ------
    InvalidInput
        If the rows have a free intercept or weights other than 0 and 1.
    """
    _check(rows)
    b = mechanism.sigma * source.normal((rows.width, rows.target.shape[1]))
    weights, gate = solve(rows, mechanism.l2, b)
    gram = gram_of(rows)
    return State(mechanism, weights, b, gate, gram, rows.count, 0, 0, source.production)


@single_threaded_blas()
def solve(rows: Rows, l2: float, b: Array, start: Array | None = None) -> tuple[Array, Array]:
    """Return the minimiser (d, K) of ``L_b`` and the gate values (K,), by damped Newton steps.

    A gate value bounds ``‖∇L_b‖`` at the returned point, rounding included. ``l2`` is λ per record.
    """
    start = np.zeros_like(b) if start is None else start
    found = [
        _newton(rows.outputs(slice(k, k + 1)), l2, b[:, k : k + 1], start[:, k : k + 1])
        for k in range(b.shape[1])
    ]
    return np.hstack([w for w, _ in found]), np.array([gate for _, gate in found])


@single_threaded_blas()
def remove(state: State, forget: Rows, retained: Rows, source: NoiseSource) -> State:
    """Delete ``forget`` by one Newton step; train anew with a fresh b if the budget is exceeded.

    Parameters
    ----------
    state : State
    forget, retained : Rows
        One row or a batch, exactly as trained on; and all rows left, for the Hessian.
    source : NoiseSource
        Used only when a retrain is due.

    Raises
    ------
    RetainedMismatch
        If the gradient over ``retained`` is not what the state says it must be.
    BudgetExhausted
        If a retrain beyond ``max_retrains`` would be due. Nothing was changed.
    """
    for rows in (forget, retained):
        _check(rows)
    check_count(retained, state.count - forget.count)
    if not retained.count:
        raise InvalidInput("this deletes the last row; retire the model instead")
    gone = evaluate(forget, LOGISTIC, state.weights)
    shift = gone.gradient + state.mechanism.l2 * forget.count * state.weights
    new = replace(
        state,
        weights=state.weights.copy(),
        spent=state.spent.copy(),
        gram=state.gram - gram_of(forget),
        count=retained.count,
        removed=state.removed + forget.count,
    )
    top = spectral_bound(new.gram, chain_length(retained.length) + new.removed)
    for k in range(shift.shape[1]):
        columns = slice(k, k + 1)
        delta, added = _step(new, columns, shift[:, columns], retained.outputs(columns), top)
        new.weights[:, columns] += delta
        new.spent[k] += added + gone.error
    if new.residual <= state.mechanism.budget:
        return new
    return _retrain(new, retained, source)


def promise(state: State) -> tuple[Guarantee, tuple[Assumption, ...]]:
    """Return what one release of ``weights`` guarantees, and everything that this rests on.

    With an extractor the numbers are Theorem 5's sum, its (ε₁, δ₁) taken for the whole group of
    records deleted so far: the theorem as printed speaks of one record.

    Raises
    ------
    CertificateRefused
        If ``b`` is not from a production source, or the residual exceeds the budget.
    """
    mechanism = state.mechanism
    if not state.production:
        raise CertificateRefused("b came from a seed, and a seed removes the noise: use OsEntropy")
    if not state.residual <= mechanism.budget:
        raise CertificateRefused(
            f"the residual is bounded by {state.residual:.3g}, the budget is {mechanism.budget:.3g}"
        )
    epsilon, delta, needs = mechanism.epsilon, mechanism.delta, _NEEDS
    deleted = max(state.removed, 1)
    if mechanism.extractor is not None:
        first, second = mechanism.extractor.group(deleted)
        epsilon, delta = epsilon + first, min(1.0, delta + second)
        needs = (*needs, Assumption("extractorDifferentiallyPrivate", Tag.assumed))
    claim = Guarantee("epsilonDelta", epsilon, delta, None, "record", deleted, 1, View.afterOnly)
    return claim, needs


_NEEDS: tuple[Assumption, ...] = (
    Assumption("trainingResidualCounted", Tag.measured),
    Assumption("retainedHessian", Tag.enforced),
    Assumption("spectralNormUpperBound", Tag.proved),
    Assumption("perturbationSealed", Tag.enforced),
    Assumption("residualIndependentOfPerturbation", Tag.assumed),
    Assumption("oneReleasePerPerturbation", Tag.assumed),
    Assumption("requestsIndependentOfModel", Tag.assumed),
    Assumption("retrainTimesNotObserved", Tag.assumed),
    Assumption("featuresAndPenaltyFixed", Tag.assumed),
)


def _step(
    state: State, columns: slice, shift: Array, retained: Rows, top: float
) -> tuple[Array, float]:
    """Return the Newton step (d, 1) of one output and what it adds to the residual's bound."""
    mechanism, w = state.mechanism, state.weights[:, columns]
    ridge = mechanism.l2 * retained.count
    found = evaluate(retained, LOGISTIC, w, hessian=True)
    loss_hessian = hessian_of(found)
    H = loss_hessian + ridge * np.eye(len(w))
    gradient = found.gradient + ridge * w + state.b[:, columns]
    known = float(state.spent[columns][0]) + found.error + 1e-9 * float(np.linalg.norm(shift))
    if not np.linalg.norm(gradient + shift) <= known + _rounding(ridge, w, state.b[:, columns]):
        raise RetainedMismatch(
            "the gradient over the rows given as retained contradicts the sealed state: some row "
            "is missing, altered, or should have been deleted"
        )
    delta = cho_solve(cho_factor(H), shift)
    size, norm_w = float(np.linalg.norm(delta)), float(np.linalg.norm(w))
    norm = retained.radius
    terms = chain_length(retained.length) + state.removed
    if mechanism.calibration == "library":
        remainder = sharp_bound(np.asarray(retained.X @ delta)[retained.weight > 0], math.sqrt(top))
    else:
        square = (delta.T @ state.gram @ delta).item() + gram_error(state.gram, terms) * size**2
        moved = np.array([math.sqrt(max(square, 0.0))])
        remainder = guo_corollary1(THIRD_PAPER, math.sqrt(top) * norm, delta, moved)
    defect = float(np.linalg.norm(H @ delta - shift))
    wrong = ((terms + 8) * UNIT + gamma(len(w)) * norm * norm_w) * float(np.trace(loss_hessian))
    wrong += len(w) * UNIT * (top + ridge)
    return delta, remainder + defect + 1.01 * wrong * size + 2 * UNIT * (top + ridge) * norm_w


def _retrain(state: State, retained: Rows, source: NoiseSource) -> State:
    """Train on what is retained with a fresh b, from scratch."""
    mechanism = state.mechanism
    if state.retrains >= mechanism.max_retrains:
        raise BudgetExhausted(
            f"the residual is bounded by {state.residual:.3g}, the budget is "
            f"{mechanism.budget:.3g}, and all {mechanism.max_retrains} retrains are used: nothing "
            "was changed. Raise max_retrains in a new mechanism, or use the engine's estimators"
        )
    fresh = train(retained, mechanism, source)
    return replace(fresh, removed=state.removed, retrains=state.retrains + 1)


def _newton(rows: Rows, l2: float, b: Array, w: Array) -> tuple[Array, float]:
    """Minimise ``L_b`` for one output, as far as float64 resolves it."""
    ridge = l2 * rows.count
    best, least, last = w, math.inf, math.inf
    found = evaluate(rows, LOGISTIC, w, value=True, hessian=True)
    for _ in range(MAX_NEWTON):
        g = found.gradient + ridge * w + b
        error = found.error + _rounding(ridge, w, b)
        norm = float(np.linalg.norm(g)) * (1.0 + gamma(len(w) + 2))
        if norm + error < least:
            best, least = w, norm + error
        value = found.value + _perturbation(ridge, w, b)
        step = -cho_solve(cho_factor(hessian_of(found) + ridge * np.eye(len(w))), g)
        decrease = -float(np.sum(g * step))
        if norm <= error or (norm > 0.5 * last and decrease <= 1e-9 * (1.0 + abs(value))):
            return best, least
        last = norm
        length = 1.0
        while True:
            trial = w + length * step
            found = evaluate(rows, LOGISTIC, trial, value=True, hessian=length == 1.0)
            new = found.value + _perturbation(ridge, trial, b)
            if new <= value - 1e-4 * length * decrease + 1e-12 * (1.0 + abs(value)):
                break
            length /= 2.0
        w = trial
        if length < 1.0:
            found = evaluate(rows, LOGISTIC, w, value=True, hessian=True)
    return best, least


def _perturbation(ridge: float, w: Array, b: Array) -> float:
    return float(ridge / 2 * np.sum(w * w) + np.sum(b * w))


def _rounding(ridge: float, w: Array, b: Array) -> float:
    return 4 * UNIT * float(2 * ridge * np.linalg.norm(w) + np.linalg.norm(b))


def _check(rows: Rows) -> None:
    if rows.intercept:
        raise InvalidInput(
            "the residual argument needs every coefficient penalised: append a constant column to "
            "the features and build the rows with intercept=False"
        )
    if not np.isin(rows.weight, (0.0, 1.0)).all():
        raise InvalidInput("rows must have weight 1 (present) or 0 (deleted)")
    if not np.isin(rows.target, (-1.0, 1.0)).all():
        raise InvalidInput("targets must be −1 or +1, one column per output")
