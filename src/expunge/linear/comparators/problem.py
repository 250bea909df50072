"""What every published method gets, and what it gives back."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Protocol

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import cho_factor, cho_solve

from expunge.errors import InvalidInput, ToleranceUnreachable
from expunge.guarantee import Assumption, Grade, Guarantee, View, grade_of
from expunge.linear.guo import solve
from expunge.linear.losses import LOSSES, Array, Loss
from expunge.linear.passes import Pass, evaluate
from expunge.linear.residuals import gram_of, spectral_bound
from expunge.linear.rows import Rows
from expunge.linear.shards import chain_length

SMOOTHNESS = {"logistic": 0.25, "squared": 1.0}
SLOPE = 1.0  # sup |ℓ'| of the logistic loss


@dataclass(frozen=True, repr=False)
class Problem:
    """A trained model of one output and the rows to be deleted; :func:`pose` makes one.

    Attributes
    ----------
    rows : Rows
        Everything trained on; weights 0 or 1, no intercept.
    forget : (k,) intp
        Which of them are to be deleted.
    loss : str
        ``logistic`` or ``squared``.
    l2 : float
        The penalty's factor: Λ (sum units), or λ per record if ``per_record``.
    per_record : bool
        Whether the penalty is ``λn/2``, so that it shrinks with every deletion.
    tolerance : float
        Public bound of ``‖∇F‖`` (sum units) at ``weights`` and at the comparator's fit.
    norm : float
        Public bound B of the rows' norms.
    weights : (d, 1) float64
        The trained model, before any noise. Secret.
    """

    rows: Rows
    forget: NDArray[np.intp]
    loss: str
    l2: float
    per_record: bool
    tolerance: float
    norm: float
    weights: Array

    @property
    def retained(self) -> Rows:
        """All rows but the deleted ones."""
        return self.rows.without(self.forget)

    @property
    def forgotten(self) -> Rows:
        """The deleted rows."""
        return self.rows.take(self.forget)

    @property
    def deletions(self) -> int:
        """Number of deleted rows."""
        return len(self.forget)

    @property
    def ridge(self) -> float:
        """Λ of the objective that was trained, sum units."""
        return self.l2 * self.rows.count if self.per_record else self.l2

    @property
    def ridge_after(self) -> float:
        """Λ of the retained objective, sum units."""
        return self.l2 * (self.rows.count - self.deletions) if self.per_record else self.l2

    @property
    def function(self) -> Loss:
        """The loss with its derivatives."""
        return LOSSES[self.loss]

    @property
    def smoothness(self) -> float:
        """L: an upper bound of the trained objective's curvature, sum units."""
        top = spectral_bound(gram_of(self.rows), chain_length(self.rows.length))
        return SMOOTHNESS[self.loss] * top + self.ridge

    @property
    def minimiser_shift(self) -> float:
        """S: a public bound of how far the minimiser moves, logistic loss.

        The deleted gradients at ŵ are at most kB; with λn the penalty adds ``kλ‖ŵ‖ ≤ kB``.
        """
        slopes = (2.0 if self.per_record else 1.0) * self.deletions * self.norm * SLOPE
        return slopes / self.ridge_after

    def change(self) -> Array:
        """Return ``Δ = Σ_U ∇ℓ_i(w)``, and ``+ kλw`` with a penalty per record, (d, 1)."""
        found = evaluate(self.forgotten, self.function, self.weights)
        extra: Array = found.gradient + (self.ridge - self.ridge_after) * self.weights
        return extra

    def gradient(self, w: Array) -> Array:
        """Return the gradient (d, 1) of the retained objective, one pass."""
        found: Pass = evaluate(self.retained, self.function, w)
        gradient: Array = found.gradient + self.ridge_after * w
        return gradient


@dataclass(frozen=True, repr=False)
class Result:
    """What a method releases, what it claims, and what the claim rests on.

    Attributes
    ----------
    weights : (d, 1) float64
        The release, noise included.
    noiseless : (d, 1) float64 or None
        The same before noise, secret; None where noise enters step by step.
    sigma : float
        Standard deviation of the noise, per coordinate (per step for noisy descent).
    bound : float
        What the method claims about ``noiseless``; ``inf`` where it claims nothing.
    bounds : str
        ``distance`` to the retained minimiser, or ``residual`` ``‖∇F_R‖`` (sum units).
    guarantee : Guarantee
    assumptions : tuple of Assumption
    """

    weights: Array
    noiseless: Array | None
    sigma: float
    bound: float
    bounds: Literal["distance", "residual"]
    guarantee: Guarantee
    assumptions: tuple[Assumption, ...]

    @property
    def grade(self) -> Grade:
        """How much of the guarantee is known to hold."""
        return grade_of(self.guarantee.kind, self.assumptions)


class Method(Protocol):
    """A published method with its parameters."""

    def unlearn(self, problem: Problem) -> Result:
        """Delete the problem's rows from its model."""


def pose(
    rows: Rows,
    forget: NDArray[np.intp],
    *,
    l2: float,
    loss: str = "logistic",
    per_record: bool = False,
    tolerance: float = 1e-8,
    norm: float = 1.0,
) -> Problem:
    """Train to the tolerance and pose the deletion of the rows ``forget``.

    Raises
    ------
    InvalidInput
        If the loss is unknown, a row is longer than ``norm``, or nothing would be left.
    ToleranceUnreachable
        If float64 cannot show ``‖∇F‖ ≤ tolerance``.
    """
    if loss not in SMOOTHNESS:
        raise InvalidInput(f"loss must be one of {sorted(SMOOTHNESS)}, got {loss!r}")
    longest = rows.radius
    if longest > norm * (1.0 + 1e-12):
        raise InvalidInput(f"a row has norm {longest:.6g}, the public bound is {norm:.6g}")
    forget = np.unique(np.asarray(forget, dtype=np.intp))
    if not 0 < len(forget) < rows.count:
        raise InvalidInput(f"cannot delete {len(forget)} of {rows.count} rows")
    ridge = l2 * rows.count if per_record else l2
    if loss == "logistic":
        weights, gates = solve(rows, ridge / rows.count, np.zeros((rows.width, 1)))
        gate = float(gates[0])
    else:
        weights, gate = _least_squares(rows, ridge)
    if not gate <= tolerance:
        raise ToleranceUnreachable(
            f"trained to a residual of {gate:.2e}, more than the tolerance {tolerance:.2e}"
        )
    return Problem(rows, forget, loss, l2, per_record, tolerance, norm, weights)


def no_promise(problem: Problem) -> Guarantee:
    """Return the guarantee of a method that has none."""
    return Guarantee("none", None, None, None, "record", problem.deletions, 1, View.afterOnly)


def _least_squares(rows: Rows, ridge: float) -> tuple[Array, float]:
    w = np.zeros((rows.width, 1))
    factor = cho_factor(gram_of(rows) + ridge * np.eye(len(w)))
    gate = float("inf")
    for _ in range(3):
        found = evaluate(rows, LOSSES["squared"], w)
        g = found.gradient + ridge * w
        gate = float(np.linalg.norm(g)) + found.error
        w = w - cho_solve(factor, g)
    return w, gate
