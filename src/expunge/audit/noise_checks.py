"""Checks of the noise of releases: its size, whether it was drawn afresh, whether at all.

With the unnoised parameters, ‖θ − w‖²/σ² is χ² with d degrees of freedom. Without them, two
releases of the same parameters give ‖θ₁ − θ₂‖²/(2σ²), the same law.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import chdtr, chdtrc, gammainccinv, gammaincinv

from expunge.audit.intervals import Array, two_sided
from expunge.errors import InvalidInput

LEVEL = 1e-6
COSINE = 5.0
_POWER = 0.8


@dataclass(frozen=True)
class Size:
    """Whether noise is as large as claimed.

    Attributes
    ----------
    energy : float
        χ² with ``dimension`` degrees of freedom if it is.
    p : float
        Two-sided.
    dimension : int
    """

    energy: float
    p: float
    dimension: int

    @property
    def refuted(self) -> bool:
        """Whether it is not, at the two-sided level 1e-6."""
        return self.p < LEVEL


def noise_size(released: ArrayLike, unnoised: ArrayLike, sigma: float) -> Size:
    """Compare released with unnoised parameters.

    >>> noise_size(np.full(64, 0.005), np.zeros(64), 1.0).refuted
    True
    """
    return _size(_difference(released, unnoised), sigma)


def twice_released(first: ArrayLike, second: ArrayLike, sigma: float) -> Size:
    """Compare two independent releases of the same parameters."""
    return _size(_difference(first, second) / math.sqrt(2), sigma)


def _difference(a: ArrayLike, b: ArrayLike) -> Array:
    one, other = (np.asarray(v, dtype=np.float64) for v in (a, b))
    if one.shape != other.shape or not one.size:
        raise InvalidInput(f"expected parameters of one shape, got {one.shape} and {other.shape}")
    return (one - other).ravel()


def _size(noise: Array, sigma: float) -> Size:
    if not (math.isfinite(sigma) and sigma > 0):
        raise InvalidInput(f"sigma must be a finite number above 0, got {sigma!r}")
    energy = float(np.sum((noise / sigma) ** 2))
    p = two_sided(float(chdtr(noise.size, energy)), float(chdtrc(noise.size, energy)))
    return Size(energy, p, noise.size)


def detectable_scale(dimension: int) -> float:
    """Return the largest share of σ whose noise is found too small in 80 % of cases.

    >>> [round(detectable_scale(d), 2) for d in (10, 64, 5000)]
    [0.15, 0.56, 0.94]
    """
    limit = gammaincinv(dimension / 2, LEVEL / 2)
    return float(np.sqrt(limit / gammainccinv(dimension / 2, 1 - _POWER)))


@dataclass(frozen=True)
class Reuse:
    """How alike the noises of two releases are.

    Attributes
    ----------
    cosine : float
    reach : float
        ``|cosine|·√d``; about |N(0, 1)| for independent noise.
    same : bool
        Equal to the bit.
    """

    cosine: float
    reach: float
    same: bool

    @property
    def found(self) -> bool:
        """Whether they are the same noise, or too alike."""
        return self.same or self.reach > COSINE


def noise_reuse(first: ArrayLike, second: ArrayLike) -> Reuse:
    """Compare the noises θ − w of two releases.

    >>> noise_reuse(np.arange(1.0, 65), np.arange(1.0, 65)).found
    True
    """
    a, b = (np.asarray(v, dtype=np.float64).ravel() for v in (first, second))
    if a.shape != b.shape:
        raise InvalidInput(f"expected noises of one shape, got {a.shape} and {b.shape}")
    norms = float(np.linalg.norm(a) * np.linalg.norm(b))
    cosine = float(a @ b) / norms if norms else 0.0
    return Reuse(cosine, abs(cosine) * math.sqrt(a.size), bool(np.array_equal(a, b)))


def repeated(tags: Sequence[str]) -> tuple[str, ...]:
    """Return the noise tags of a ledger that occur more than once.

    >>> repeated(["a", "b", "a"])
    ('a',)
    """
    return tuple(sorted(tag for tag, count in Counter(tags).items() if count > 1))
