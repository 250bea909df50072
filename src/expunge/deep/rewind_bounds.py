"""Distance and privacy of rewinding, descending and Langevin steps: pure functions of numbers.

Losses are means over n records of which m are deleted; ``G`` bounds every record's gradient of the
data term, ``L`` the smoothness of the objective, η is the constant step. Gradients on D and on R
then differ by at most ``2mG/n``, for ``∇L_D − ∇L_R = (m/n)(∇L_F − ∇L_R)``. For a network L is an
assumption; for a linear head on clipped features :func:`head_constants` computes it.

Sources: Mu and Klabjan (NeurIPS 2025) for rewinding; Neel, Roth and Sharifi-Malvajerdi (2021) for
descending; Chien et al. (NeurIPS 2024) for Langevin, with the shifted-interpolation bound instead
of theirs.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from expunge.errors import InvalidInput
from expunge.gaussian import (
    ROUNDING,
    mu_of,
    require_count,
    require_non_negative,
    require_positive,
)

MOST_STEPS = 1_000_000

_UP = 1.0 + ROUNDING


@dataclass(frozen=True)
class Constants:
    """Bounds of a loss: G per record, smoothness L, strong convexity (0: convex, None: neither)."""

    gradient: float
    smoothness: float
    convexity: float | None

    def __post_init__(self) -> None:
        """Check every number."""
        require_positive("gradient", self.gradient)
        require_positive("smoothness", self.smoothness)
        if self.convexity is not None:
            require_non_negative("convexity", self.convexity)
            if self.convexity > self.smoothness:
                raise InvalidInput(
                    f"convexity ({self.convexity:g}) cannot exceed smoothness ({self.smoothness:g})"
                )


def head_constants(
    loss: Literal["logistic", "softmax"], radius: float, weight_decay: float
) -> Constants:
    """Return the constants of a linear head on rows ``‖x‖ ≤ X`` with a constant 1 appended.

    Softmax: ``G = √2·√(X² + 1)``, ``L = (X² + 1)/2 + wd``; logistic: ``√(X² + 1)`` and
    ``(X² + 1)/4 + wd``. True of full gradients only: a softmax gradient clipped per record is not
    that of a convex loss.

    Examples
    --------
    >>> head_constants("logistic", 0.0, 0.0)
    Constants(gradient=1.0000000000000002, smoothness=0.25000000000000006, convexity=0.0)
    """
    require_non_negative("radius", radius)
    require_non_negative("weight_decay", weight_decay)
    square = radius * radius + 1.0
    if loss == "softmax":
        top, curve = math.sqrt(2.0 * square), square / 2.0
    elif loss == "logistic":
        top, curve = math.sqrt(square), square / 4.0
    else:
        raise InvalidInput(f"loss must be logistic or softmax, not {loss!r}")
    up = 1.0 + 1e-16 + 2**-52
    return Constants(top * up, curve * up + weight_decay, weight_decay)


def rewind_distance(
    constants: Constants, *, deleted: int, rows: int, lr: float, steps: int, rewound: int
) -> float:
    """Return Δ between K steps on R from iterate T − K, and T steps on R from the same start.

    Parameters
    ----------
    constants : Constants
    deleted, rows : int
        m ≤ n.
    lr : float
        η, constant; at most ``1/L`` (``2/L`` if only convex).
    steps, rewound : int
        T ≥ K ≥ 0. K = 0 publishes the model as it was.

    Raises
    ------
    InvalidInput
        If a number is out of range, or the step too large for the bound.

    Notes
    -----
    Strongly convex with λ: ``(2mG/(nλ))(1 − q^{T−K})q^K``, ``q = 1 − ηλ``; convex:
    ``2ηmG(T − K)/n``; neither: ``(2mG/(nL))((1 + ηL)^{T−K} − 1)(1 + ηL)^K``, which is
    astronomically large for ``ηLT ≫ 1``.

    Examples
    --------
    >>> head = head_constants("softmax", 0.0, 1e-3)
    >>> at = dict(deleted=1, rows=40_000, lr=1.0, steps=2000)
    >>> [round(rewind_distance(head, rewound=k, **at), 4) for k in (0, 1000)]
    [0.0612, 0.0164]
    """
    _check(constants, deleted, rows, lr)
    if not 0 <= rewound <= steps:
        raise InvalidInput(f"rewound must be between 0 and {steps} steps, not {rewound}")
    push = 2.0 * deleted * constants.gradient / rows
    return push * _growth(constants, lr, steps - rewound) * _carry(constants, lr, rewound) * _UP


def descent_distance(
    constants: Constants, *, deleted: int, rows: int, lr: float, steps: int, extra: int
) -> float:
    """Return Δ between K' steps on R from iterate T on D, and T + K' steps on R.

    Strongly convex objectives only [Neel et al., 2021]: ``(2mG/(nλ))(1 − q^T)q^{K'}``.

    Examples
    --------
    >>> head = head_constants("softmax", 0.0, 1e-3)
    >>> at = dict(deleted=1, rows=40_000, lr=1.0, steps=2000)
    >>> descent_distance(head, extra=1000, **at) < descent_distance(head, extra=0, **at)
    True
    """
    if not constants.convexity:
        raise InvalidInput("descending forgets only under strong convexity: add weight decay")
    _check(constants, deleted, rows, lr)
    push = 2.0 * deleted * constants.gradient / rows
    return push * _growth(constants, lr, steps) * _carry(constants, lr, extra) * _UP


def batch_distance(gradient: float, lr: float, shares: list[tuple[int, int]]) -> float:
    """Return Δ of a convex objective over mini-batches, before rewinding: ``Σ 2ηG·m_t/b_t``.

    ``shares`` holds, for every step made on D before the checkpoint, the members of F in its batch
    and the size of the batch. The reference leaves them out of the same batches.

    Examples
    --------
    >>> round(batch_distance(1.0, 0.1, [(1, 10), (0, 10), (2, 10)]), 9)
    0.06
    """
    require_positive("gradient", gradient)
    require_positive("lr", lr)
    for gone, size in shares:
        if not 0 <= gone <= size or size < 1:
            raise InvalidInput(f"a batch of {size} cannot hold {gone} deleted records")
    return sum(2.0 * lr * gradient * gone / size for gone, size in shares) * _UP


def langevin_mu(
    constants: Constants,
    *,
    deleted: int,
    rows: int,
    lr: float,
    sigma: float,
    steps: int | None,
    extra: int,
) -> float:
    """Return μ of K more Langevin steps on R after T on D, against T + K steps on R.

    Every step adds ``√(2η)σN(0, I)``. ``steps`` None is T → ∞.

    Notes
    -----
    ``μ = (s/σ_s)·q^K·S1(T)/√S2(T + K)`` with ``s = 2ηmG/n``, ``σ_s = √(2η)σ``, ``S1 = Σ q^k`` and
    ``S2 = Σ q^{2k}``: the proof of docs/deep-noisy.md with a shift in the first T steps only.

    Raises
    ------
    InvalidInput
        If the objective is not strongly convex, or η exceeds 1/L.
    """
    if not constants.convexity:
        raise InvalidInput(
            "Langevin steps forget only under strong convexity: for a network nothing useful is "
            "proved"
        )
    _check(constants, deleted, rows, lr)
    require_positive("sigma", sigma)
    q = 1.0 - lr * constants.convexity
    ratio = 2.0 * lr * deleted * constants.gradient / rows / (math.sqrt(2.0 * lr) * sigma)
    if steps is None:
        return ratio * q**extra * math.sqrt((1.0 + q) / (1.0 - q)) * _UP
    require_count("steps", steps)
    total = _sum(q * q, steps + extra)
    return ratio * q**extra * _sum(q, steps) / math.sqrt(total) * _UP


def langevin_steps(
    constants: Constants,
    epsilon: float,
    delta: float,
    *,
    deleted: int,
    rows: int,
    lr: float,
    sigma: float,
    steps: int | None = None,
) -> int:
    """Return the least K with which :func:`langevin_mu` meets (ε, δ)."""
    target = mu_of(epsilon, delta)

    def holds(extra: int) -> bool:
        found = langevin_mu(
            constants,
            deleted=deleted,
            rows=rows,
            lr=lr,
            sigma=sigma,
            steps=steps,
            extra=extra,
        )
        return found <= target

    high = 1
    while not holds(high):
        high *= 2
        if high > MOST_STEPS:
            raise InvalidInput(f"a million steps do not reach ε = {epsilon:g}: raise sigma")
    low = 0
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if holds(middle) else (middle + 1, high)
    return low


def _check(constants: Constants, deleted: int, rows: int, lr: float) -> None:
    require_count("deleted", deleted)
    require_count("rows", rows)
    if deleted > rows:
        raise InvalidInput(f"{deleted} of {rows} records cannot be deleted")
    require_positive("lr", lr)
    convex = constants.convexity is not None and constants.convexity == 0.0
    limit = (2.0 if convex else 1.0) / constants.smoothness
    if constants.convexity is not None and lr > limit * (1.0 + 1e-12):
        raise InvalidInput(f"lr must be at most {limit:g} for this bound, not {lr:g}")


def _growth(constants: Constants, lr: float, count: int) -> float:
    """Return how far a push of 1 in every gradient carries in so many steps."""
    return lr * _sum(_factor(constants, lr), count)


def _carry(constants: Constants, lr: float, count: int) -> float:
    """Return how much a distance can grow, or must shrink, in so many steps."""
    size = count * math.log(_factor(constants, lr)) if count else 0.0
    return math.exp(size) if size < 700.0 else math.inf


def _factor(constants: Constants, lr: float) -> float:
    if constants.convexity is None:
        return 1.0 + lr * constants.smoothness
    return max(1.0 - lr * constants.convexity, 0.0) or 5e-324


def _sum(ratio: float, count: int) -> float:
    """Return Σ_{k<count} ratio^k without cancellation."""
    if ratio == 1.0:
        return float(count)
    size = count * math.log(ratio)
    return math.expm1(size) / (ratio - 1.0) if size < 700.0 else math.inf
