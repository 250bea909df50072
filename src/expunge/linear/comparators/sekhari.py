"""Sekhari et al. (2021): one Newton step from stored statistics, then Gaussian noise."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from scipy.linalg import cho_factor, cho_solve

from expunge.errors import InvalidInput
from expunge.guarantee import Assumption, Guarantee, Tag, View, classical_sigma, mu_of, sigma_for
from expunge.linear.comparators.problem import SLOPE, Problem, Result
from expunge.linear.losses import LOSSES
from expunge.linear.residuals import loss_hessian
from expunge.noise import NoiseSource


@dataclass(frozen=True)
class Sekhari:
    """Newton removal with output perturbation; needs no retained row, a penalty per record only.

    Attributes
    ----------
    epsilon, delta : float
    source : NoiseSource
    calibration : str
        ``paper``: :func:`sekhari_shift` and the classical σ, for exact optima. ``library``: the
        same argument with the training tolerance carried along, and the exact σ.
    """

    epsilon: float
    delta: float
    source: NoiseSource
    calibration: Literal["paper", "library"] = "library"

    def unlearn(self, problem: Problem) -> Result:
        """Step with ``H_D − H_U`` and add noise.

        Raises
        ------
        InvalidInput
            If the penalty is not per record: each loss must be strongly convex by itself.
        InvalidCalibration
            If the classical σ is false at this (ε, δ).
        """
        if not problem.per_record or problem.loss != "logistic":
            raise InvalidInput("Sekhari's bound needs the logistic loss and a penalty per record")
        w = problem.weights
        H = loss_hessian(problem.rows, w) - loss_hessian(problem.forgotten, w)
        H += problem.ridge_after * np.eye(len(w))
        moved = w + cho_solve(cho_factor(H), problem.change())
        shift, sigma, assumptions = self._calibrate(problem)
        noisy = moved + sigma * self.source.normal(moved.shape)
        guarantee = Guarantee(
            "muGdp" if self.calibration == "library" else "epsilonDelta",
            self.epsilon,
            self.delta,
            mu_of(self.epsilon, self.delta) if self.calibration == "library" else None,
            "record",
            problem.deletions,
            1,
            View.afterOnly,
            comparator="cleanUnlearn",
        )
        return Result(noisy, moved, sigma, shift, "distance", guarantee, assumptions)

    def _calibrate(self, problem: Problem) -> tuple[float, float, tuple[Assumption, ...]]:
        n, k, norm = problem.rows.count, problem.deletions, problem.norm
        third = LOSSES["logistic"].third * norm**3
        slope = 2.0 * norm * SLOPE  # ‖∇ℓ_i + λŵ‖ ≤ 2B, as ‖ŵ‖ ≤ B/λ
        fixed = Assumption("constantsFixedBeforeRequests", Tag.assumed)
        if self.calibration == "paper":
            shift = sekhari_shift(third, slope, problem.l2, n, k)
            sigma = classical_sigma(shift, self.epsilon, self.delta)
            return shift, sigma, (Assumption("exactMinimiser", Tag.assumed), fixed)
        tau, ridge = problem.tolerance, problem.ridge_after
        reach = (k * (slope + tau / n) + tau) / ridge
        error = third / (2.0 * problem.l2) * reach**2 + tau / ridge
        sigma = sigma_for(error + tau / ridge, self.epsilon, self.delta)
        return error, sigma, (Assumption("minimiserWithinTolerance", Tag.measured), fixed)


def sekhari_shift(third: float, slope: float, l2: float, n: int, k: int) -> float:
    """Return ``γ_S = 2Mk²L²/(λ³n²)``, a bound of ``‖w̄ − ŵ_R‖`` for exact optima and k ≤ n/2.

    ``third`` is the Lipschitz constant M of one record's Hessian, ``slope`` the Lipschitz constant
    L of one record's loss, penalty included, ``l2`` its strong convexity λ (mean objective).

    Examples
    --------
    >>> round(sekhari_shift(0.25, 1.0, 0.01, 10_000, 10), 9)
    0.5
    """
    if not 2 * k <= n:
        raise InvalidInput(f"the bound holds for at most half of the rows, got {k} of {n}")
    return 2.0 * third * k * k * slope * slope / (l2**3 * n * n)
