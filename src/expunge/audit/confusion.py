"""Interclass confusion: labels of two classes are swapped on S; what of it is left?

References
----------
Goel et al. Towards adversarial evaluations for inexact machine unlearning. 2022.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from expunge.audit.intervals import clopper_pearson
from expunge.audit.metric import Estimate
from expunge.audit.views import Outputs
from expunge.errors import InvalidInput


def swapped(
    y: NDArray[Any], a: Any, b: Any, count: int, rng: np.random.Generator
) -> tuple[NDArray[np.intp], NDArray[Any]]:
    """Return the rows chosen as S, and all labels with those of S swapped between two classes.

    Parameters
    ----------
    y : (n,) array
    a, b : labels
    count : int
        Rows of S, half of each class as far as that goes.

    Raises
    ------
    InvalidInput
        If a class has too few rows.
    """
    labels = np.asarray(y)
    halves = count - count // 2, count // 2
    chosen = []
    for label, size in zip((a, b), halves, strict=True):
        rows = np.flatnonzero(labels == label)
        if len(rows) < size or size < 1:
            raise InvalidInput(f"class {label!r} has {len(rows)} rows; {max(size, 1)} are needed")
        chosen.append(rng.choice(rows, size=size, replace=False))
    mixed = labels.copy()
    mixed[chosen[0]], mixed[chosen[1]] = b, a
    return np.sort(np.concatenate(chosen)), mixed


def confusion(outputs: Outputs, a: int, b: int) -> Estimate:
    """Return the share of rows of two classes that are taken for the other, with exact interval.

    Parameters
    ----------
    outputs : Outputs
        Of unseen rows, or of S under their true labels.
    a, b : int
        Columns of the two classes.
    """
    concerned = (outputs.y == a) | (outputs.y == b)
    trials = int(concerned.sum())
    if not trials:
        raise InvalidInput("no row is of one of the two classes")
    hits = confused(outputs, a, b)
    return Estimate(hits / trials, clopper_pearson(hits, trials), 1.0 / trials)


def confused(outputs: Outputs, a: int, b: int) -> int:
    """Return E = #{y = A → B} + #{y = B → A}."""
    there = (outputs.y == a) & (outputs.predicted == b)
    back = (outputs.y == b) & (outputs.predicted == a)
    return int(there.sum() + back.sum())
