"""Influence functions, the infinitesimal jackknife: a Newton step with the wrong Hessian."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from scipy.linalg import cho_factor, cho_solve

from expunge.errors import InvalidInput
from expunge.guarantee import Assumption, Tag
from expunge.linear.bounds import guo_corollary1
from expunge.linear.comparators.problem import Problem, Result, no_promise
from expunge.linear.residuals import (
    THIRD_PAPER,
    gram_of,
    loss_hessian,
    sharp_bound,
    spectral_bound,
)
from expunge.linear.shards import chain_length


@dataclass(frozen=True)
class Influence:
    """``w + H_D⁻¹Δ`` [Koh & Liang, 2017]: first order in the deleted weight, no noise.

    ``∇F_R`` there is ``−H_Uδ + O(‖δ‖²)``, a *first*-order term that no bound of a Newton residual
    contains. ``repaired=False`` claims Guo's Corollary 1, as is done, and the claim is **false**.
    ``repaired=True`` adds ``‖H_Uδ‖`` to the sharp bound, and the claim holds.
    """

    repaired: bool = True

    def unlearn(self, problem: Problem) -> Result:
        """Step with the Hessian of all rows; nothing is promised."""
        if problem.loss != "logistic":
            raise InvalidInput("implemented for the logistic loss")
        w, retained = problem.weights, problem.retained
        eye = np.eye(len(w))
        H = loss_hessian(problem.rows, w) + problem.ridge * eye
        delta = cho_solve(cho_factor(H), problem.change())
        live = retained.weight > 0
        margins = np.asarray(retained.X @ delta)[live]
        root = math.sqrt(spectral_bound(gram_of(retained), chain_length(len(live))))
        if self.repaired:
            lost = loss_hessian(problem.forgotten, w)
            lost += (problem.ridge - problem.ridge_after) * eye
            bound = float(np.linalg.norm(lost @ delta)) + sharp_bound(margins, root)
            bound += problem.tolerance
        else:
            bound = guo_corollary1(THIRD_PAPER, root * problem.norm, delta, margins)
        needs = (Assumption("residualBound", Tag.proved if self.repaired else Tag.assumed),)
        moved = w + delta
        return Result(moved, moved, 0.0, bound, "residual", no_promise(problem), needs)
