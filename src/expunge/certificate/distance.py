"""How far parameters can be from the optimum on the retained rows: the gate, recomputed (level c).

The distance is at most the least of what applies:

- r/Λ, r = ‖∇F‖ (r_Λ of the duality gap with an L1 penalty), when every coordinate is penalised: for
  every loss;
- the bounds of `curvature`, from the whole Hessian, for quadratic and self-concordant losses while
  it has at most `MAX_DIRECT` rows;
- beyond, with a free intercept, the bound of `floor`.

Squared hinge and Huber loss have no curvature to go by (it jumps), so nothing is shown for them
with a free intercept. Everything is bounded with its rounding error.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from expunge.certificate.curvature import TINY, Point, scalar_bound, softmax_bound
from expunge.certificate.floor import floor_bound
from expunge.certificate.residual import CURVATURES, Array, Source, gradient

MAX_DIRECT = 4096
"""Rows of the largest Hessian that is formed: C·p for softmax, p otherwise."""


@dataclass(frozen=True, repr=False)
class Distance:
    """Residual, the bound of its rounding error, and the distance bound. For the sealed annex.

    None of the three may be published: they depend on deleted records and carry no noise.
    """

    residual: float
    rounding: float
    bound: float


def distance_bound(
    rows: Source,
    weights: Array,
    loss: str,
    l2: float,
    intercept: bool,
    *,
    l1: float = 0.0,
    enough: float = 0.0,
) -> Distance:
    """Bound the Euclidean distance from ``weights`` to the minimiser on ``rows``.

    Parameters
    ----------
    rows, weights, loss, l2, intercept, l1
        As for `residual.gradient`.
    enough : float
        A bound of at most this is returned as it is, without looking for a sharper one.

    Returns
    -------
    Distance
        ``bound`` is inf where nothing can be shown.

    Raises
    ------
    InvalidInput
        If the loss is unknown, a penalty does not fit or the shapes disagree.
    """
    g = gradient(rows, weights, loss, l2, intercept, l1)
    if not math.isfinite(g.residual + g.error):
        return Distance(math.inf, math.inf, math.inf)
    simple = math.inf if intercept else (g.residual * (1 + TINY) + g.error) / l2
    if simple <= enough or loss not in CURVATURES:
        return Distance(g.residual, g.error, simple)
    bound = _curved_bound(Point(rows, weights, g, loss, l2, intercept, l1 == 0), enough)
    return Distance(g.residual, g.error, min(simple, bound))


def _curved_bound(point: Point, enough: float) -> float:
    joint = point.loss == "softmax"
    if (point.weights.size if joint else len(point.weights)) > MAX_DIRECT:
        return floor_bound(point) if point.intercept else math.inf
    return softmax_bound(point) if joint else scalar_bound(point, enough)
