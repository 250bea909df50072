"""How fast a network learns the forget set again: knowledge that was hidden comes back at once.

The numbers are step counts, censored at a cap; how to count them on a torch module is in
`expunge.audit.networks`. Not for strictly convex models, which end where they end whatever the
start.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike
from scipy.stats import chi2

from expunge.audit.intervals import Array, vector
from expunge.errors import InvalidInput

CAP = 1000
TOO_FAST = 3
SLACK = 1.05
MARGIN = 0.05
Criterion = Callable[[float, float], bool]


def loss_within(loss: float, slack: float = SLACK) -> Criterion:
    """Return the criterion of relearn time: mean loss on S ≤ slack·ℓ_S(M_o)."""
    return lambda found, _: found <= slack * loss


def accuracy_within(accuracy: float, margin: float = MARGIN) -> Criterion:
    """Return the criterion of the anamnesis index: accuracy on S ≥ (1 − margin)·acc_S(M_o).

    References
    ----------
    Chundawat et al. Zero-shot machine unlearning. 2023.
    """
    return lambda _, found: found >= (1 - margin) * accuracy


def steps_to(losses: ArrayLike, target: float, cap: int = CAP) -> int:
    """Return the first step of a trajectory that is at most the target, else the cap.

    >>> steps_to([2.0, 1.0, 0.4, 0.1], 0.5), steps_to([2.0, 1.0], 0.5)
    (2, 1000)
    """
    below = np.flatnonzero(vector("losses", losses) <= target)
    return min(int(below[0]), cap) if len(below) else cap


@dataclass(frozen=True)
class Relearned:
    """Relearn times beside those of retrained models.

    Attributes
    ----------
    ratio : float
        Median time of the candidate over the median of the oracles; far below 1 is suspicious.
    p : float
        Log-rank test of "one law of times", censoring accounted for.
    void : str
        Why the ratio means nothing; empty if it does.
    """

    ratio: float
    p: float
    void: str


def compare(candidate: ArrayLike, oracles: ArrayLike, cap: int = CAP) -> Relearned:
    """Compare relearn times (in steps) of one candidate with those of retrained models.

    Parameters
    ----------
    candidate : (b,) array_like
        One a batch order.
    oracles : (m, b) array_like
        For the same batch orders.
    cap : int
        Times at the cap are censored.
    """
    own = vector("relearn times", candidate)
    others = np.atleast_2d(np.asarray(oracles, dtype=np.float64))
    if others.shape[1] != len(own) or (others < 0).any() or (own < 0).any():
        raise InvalidInput(
            f"expected {len(own)} relearn times, not negative, of each oracle, got {others.shape}"
        )
    middle = float(np.median(others))
    void = ""
    if (others >= cap).any():
        void = f"a retrained model had not learnt S within {cap} steps: raise the learning rate"
    elif (np.median(others, axis=1) <= TOO_FAST).any():
        void = f"a retrained model learns S within {TOO_FAST} steps: lower the learning rate"
    ratio = float(np.median(own)) / middle if middle > 0 else float("nan")
    return Relearned(ratio, log_rank(own, others.ravel(), cap), void)


def log_rank(first: ArrayLike, second: ArrayLike, cap: float) -> float:
    """Return the two-sided p-value of the log-rank test of equal laws, times ≥ cap censored.

    Examples
    --------
    >>> round(log_rank([1, 2, 3, 4], [10, 20, 30, 40], 100), 4)
    0.0067
    """
    a, b = vector("times", first), vector("times", second)
    gap = variance = 0.0
    for t in np.unique(np.concatenate([a[a < cap], b[b < cap]])):
        at_risk = int((a >= t).sum()), int((b >= t).sum())
        events = int((a == t).sum()) + int((b == t).sum())
        total = sum(at_risk)
        gap += float((a == t).sum()) - events * at_risk[0] / total
        if total > 1:
            share = at_risk[0] * at_risk[1] / total**2
            variance += share * events * (total - events) / (total - 1)
    return float(chi2.sf(gap * gap / variance, 1)) if variance > 0 else 1.0


def curve(times: ArrayLike, cap: int = CAP) -> Array:
    """Return the share (cap + 1,) of runs that have relearned after 0, 1, … steps."""
    found = vector("relearn times", times)
    return np.array([(found <= t).mean() for t in range(cap)] + [float((found < cap).mean())])
