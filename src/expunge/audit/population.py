"""The population attack on losses: do deleted rows score like rows never seen?

It sees an average shift only, and misses the few rows that a model has memorised.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr

from expunge.audit.intervals import ALPHA, area, clustered_area, percentile, two_sided
from expunge.audit.metric import Estimate
from expunge.audit.views import Outputs


def loss_attack(
    forget: Outputs,
    unseen: Outputs,
    *,
    users: tuple[NDArray[Any] | None, NDArray[Any] | None] = (None, None),
    rng: np.random.Generator | None = None,
    alpha: float = ALPHA,
) -> Estimate:
    """Return the area under the ROC curve of −loss, deleted rows against rows never seen.

    Parameters
    ----------
    forget, unseen : Outputs
        Of the same classes in the same shares: a shift of classes moves the area for a retrained
        model too.
    users : pair of (n,) arrays or None
        Owners of the rows; whole users are then drawn by the bootstrap, whose standard error also
        gives the p-value, the rank test being for independent rows.
    rng : Generator
        Needed with users.

    References
    ----------
    Yeom et al. Privacy risk in machine learning. CSF 2018.
    """
    found = area(-forget.loss, -unseen.loss, alpha)
    if users[0] is None and users[1] is None:
        return Estimate(found.value, found.ci, found.step, found.p)
    generator = np.random.default_rng(0) if rng is None else rng
    drawn = clustered_area(-forget.loss, -unseen.loss, users, generator)
    deviation = (found.value - 0.5) / max(float(drawn.std(ddof=1)), 1e-12)
    p = two_sided(float(ndtr(deviation)), float(ndtr(-deviation)))
    return Estimate(found.value, percentile(drawn, alpha), found.step, p)
