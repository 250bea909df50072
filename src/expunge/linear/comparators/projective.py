"""The projective residual update of Izzo et al. (2021) for linear regression."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from scipy.linalg import cho_factor, cho_solve

from expunge.errors import InvalidInput
from expunge.guarantee import Assumption, Tag
from expunge.linear.comparators.problem import Problem, Result, no_promise
from expunge.linear.residuals import gram_of


@dataclass(frozen=True)
class Projective:
    """Move within the span of the deleted rows until they are predicted as if left out.

    That is ``w + P_U(w_R − w)``, P_U the projector on the deleted rows' span: O(k²d) with cached
    rows of the hat matrix. What lies outside the span, ``(I − P_U)(w_R − w)``, stays; nothing is
    promised. The exact update costs one solve more.
    """

    def unlearn(self, problem: Problem) -> Result:
        """Fit the leave-out predictions of the deleted rows by the shortest move."""
        if problem.loss != "squared" or problem.per_record:
            raise InvalidInput("the projective update needs the squared loss with a fixed penalty")
        forgotten = problem.forgotten
        U, y = np.asarray(forgotten.X @ np.eye(len(problem.weights))), forgotten.target
        factor = cho_factor(gram_of(problem.rows) + problem.ridge * np.eye(U.shape[1]))
        hat = U @ cho_solve(factor, U.T)
        left_out = y - np.linalg.solve(np.eye(len(U)) - hat, y - U @ problem.weights)
        move = U.T @ np.linalg.lstsq(U @ U.T, left_out - U @ problem.weights, rcond=None)[0]
        moved = problem.weights + move
        needs = (Assumption("retainedMinimiserInSpanOfDeletedRows", Tag.assumed),)
        return Result(moved, moved, 0.0, math.inf, "distance", no_promise(problem), needs)
