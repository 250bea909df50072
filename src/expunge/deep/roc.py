"""How well scores tell two samples apart: AUC with an interval, and a fitted score; numpy only."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import brentq, minimize
from scipy.special import expit, logit
from scipy.stats import norm, rankdata

from expunge.errors import InvalidInput

Floats = NDArray[np.float64]

RIDGE = 1e-3
"""Penalty of the fitted score, on standardised features and the mean loss."""


def delong(positives: Floats, negatives: Floats) -> tuple[float, float]:
    """Return the AUC and its standard error [DeLong, DeLong & Clarke-Pearson, 1988].

    Ties count one half. The standard error is 0 where nothing varies (AUC 0 or 1, or all tied).

    Examples
    --------
    >>> found = delong([0.9, 0.8, 0.7, 0.55, 0.4], [0.6, 0.5, 0.45, 0.3, 0.2, 0.1])
    >>> [round(value, 6) for value in found]
    [0.866667, 0.117851]
    """
    p, q = np.asarray(positives, dtype=np.float64), np.asarray(negatives, dtype=np.float64)
    m, n = len(p), len(q)
    if min(m, n) < 2:
        raise InvalidInput(f"an AUC with an interval needs 2 rows on each side, not {m} and {n}")
    if not (np.isfinite(p).all() and np.isfinite(q).all()):
        raise InvalidInput("scores must be finite: the model's outputs are not")
    ranks = rankdata(np.concatenate([p, q]))
    above = (ranks[:m] - rankdata(p)) / n
    below = 1.0 - (ranks[m:] - rankdata(q)) / m
    return float(above.mean()), float(np.sqrt(above.var(ddof=1) / m + below.var(ddof=1) / n))


def auc_interval(
    positives: Floats, negatives: Floats, level: float = 0.95
) -> tuple[float, float, float]:
    """Return the AUC and its two-sided interval.

    By `delong` on the logit scale. Where that standard error is 0, and with it the one of Hanley &
    McNeil at AUC 0 or 1, theirs is taken at the end of the interval instead of at the estimate
    [Newcombe, 2006, method 5].

    Examples
    --------
    >>> [round(value, 3) for value in auc_interval([2.0] * 40, [1.0] * 40)]
    [1.0, 0.95, 1.0]
    """
    auc, error = delong(positives, negatives)
    z = float(norm.isf((1.0 - level) / 2.0))
    if error > 0.0 and 0.0 < auc < 1.0:
        wide = z * error / (auc * (1.0 - auc))
        return auc, float(expit(logit(auc) - wide)), float(expit(logit(auc) + wide))
    m, n = len(positives), len(negatives)

    def beyond(end: float) -> float:
        return abs(end - auc) - z * _hanley_mcneil(end, m, n)

    low = 0.0 if auc == 0.0 else float(brentq(beyond, 0.0, auc - 1e-9))
    high = 1.0 if auc == 1.0 else float(brentq(beyond, auc + 1e-9, 1.0))
    return auc, low, high


def _hanley_mcneil(auc: float, m: int, n: int) -> float:
    """Return the standard error at an AUC, with the mean of both sizes in the variance's terms."""
    size = (m + n) / 2 - 1
    spread = (1.0 - auc) / (2.0 - auc) + auc / (1.0 + auc)
    return float(np.sqrt(auc * (1.0 - auc) * (1.0 + size * spread) / (m * n)))


def fitted_score(positives: Floats, negatives: Floats, new: Floats) -> Floats:
    """Return the scores of new rows by logistic regression; above 0 they look like positives.

    Both sides weigh the same, however many rows they have. Features are standardised by the rows
    that the score is fitted on.

    Parameters
    ----------
    positives, negatives, new : (rows, features)
    """
    rows = np.concatenate([positives, negatives])
    if not (np.isfinite(rows).all() and np.isfinite(new).all()):
        raise InvalidInput("features must be finite: the model's outputs are not")
    signs = np.repeat([1.0, -1.0], [len(positives), len(negatives)])
    weights = np.repeat(
        [0.5 / len(positives), 0.5 / len(negatives)], [*map(len, (positives, negatives))]
    )
    centre, scale = rows.mean(axis=0), rows.std(axis=0)
    scale[scale == 0.0] = 1.0
    Z = _with_one((rows - centre) / scale)

    def objective(beta: Floats) -> tuple[float, Floats]:
        margins = signs * (Z @ beta)
        slopes = -signs * weights * expit(-margins)
        penalty = np.concatenate([beta[:-1], [0.0]])
        value = weights @ np.logaddexp(0.0, -margins) + RIDGE / 2 * penalty @ penalty
        return float(value), Z.T @ slopes + RIDGE * penalty

    found = minimize(objective, np.zeros(Z.shape[1]), jac=True, method="L-BFGS-B", tol=1e-12)
    scores: Floats = _with_one((new - centre) / scale) @ found.x
    return scores


def _with_one(X: Floats) -> Floats:
    return np.column_stack([X, np.ones(len(X))])
