"""Zero-retrain forgetting: how close the candidate's answers on S are to those of untrained models.

It rewards randomness on S, which retraining does not show: read it against the oracle band only.

References
----------
Chundawat et al. Can bad teaching induce forgetting? AAAI 2023.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from expunge.audit.fidelity import jensen_shannon, same_rows
from expunge.audit.intervals import Array
from expunge.audit.views import Outputs
from expunge.errors import InvalidInput


def row_scores(candidate: Outputs, untrained: Sequence[Outputs]) -> Array:
    """Return ``1 − JS(p_u, p_init)`` (n,) in nats, averaged over untrained models (five, say).

    Raises
    ------
    InvalidInput
        If there is no untrained model, or they answered other rows.
    """
    if not untrained:
        raise InvalidInput("ZRF needs at least one untrained model of the same architecture")
    same_rows(candidate, untrained)
    return np.asarray(1.0 - np.mean([jensen_shannon(candidate.p, o.p) for o in untrained], axis=0))
