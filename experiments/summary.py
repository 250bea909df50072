"""Means with intervals, and tables, for the pages of the experiments."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
from scipy import stats


def mean(values: Sequence[float]) -> str:
    """Return mean ± 95 % half-width (Student), or the value alone.

    >>> mean([1.0]), mean([1.0, 2.0, 3.0])
    ('1', '2 ± 2.5')
    """
    if len(values) < 2 or not np.isfinite(values).all():
        return f"{np.mean(values):.3g}"
    half = stats.t.ppf(0.975, len(values) - 1) * np.std(values, ddof=1) / np.sqrt(len(values))
    return f"{np.mean(values):.3g} ± {half:.2g}"


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """Return the lines of a Markdown table, and an empty one.

    >>> table(["a"], [["1"]])
    ['| a |', '|---|', '| 1 |', '']
    """
    lines = [f"| {' | '.join(head)} |", "|" + "---|" * len(head)]
    return [*lines, *(f"| {' | '.join(row)} |" for row in rows), ""]
