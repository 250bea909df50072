"""The exact μ of one Gaussian release, and of many: arithmetic, not statistics.

A release N(w_u, σ²I) where retraining would have released N(w̃_r, σ²I), w_u and w̃_r deterministic
and the noise independent of the data, is exactly μ-GDP with μ = ‖w_u − w̃_r‖/σ. This does not hold
where the noise acts on the objective or scales with the data, nor where w_u is itself random.

All of these are noiseless functions of deleted records: for the auditor's annex, never public.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from expunge.audit.intervals import Array
from expunge.certificate.distance import distance_bound
from expunge.certificate.residual import Source
from expunge.errors import InvalidInput
from expunge.gaussian import epsilon_of


@dataclass(frozen=True)
class Realised:
    """The interval [low, high] that holds the realised μ; one number where w̃_r is known."""

    low: float
    high: float

    def refutes(self, mu: float) -> bool:
        """Whether the claim of ``mu`` for this release is wrong, definitely."""
        return self.low > mu * (1 + 1e-9)

    def epsilon(self, delta: float) -> tuple[float, float]:
        """Return the exact ε at δ that belong to the ends of the interval."""
        return epsilon_of(self.low, delta), epsilon_of(self.high, delta)


def realised(
    unlearned: ArrayLike,
    retrained: ArrayLike,
    noise: ArrayLike,
    *,
    error: float = 0.0,
) -> Realised:
    """Return the realised μ of a release.

    Parameters
    ----------
    unlearned, retrained : (p, C) array_like
        Unnoised parameters of the release and of the comparator.
    noise : float or (pC, pC) array_like
        σ, or the covariance Σ of the noise over the raveled parameters.
    error : float
        How far ``retrained`` may be from the comparator w̃_r, or from the minimiser, Euclidean.

    Raises
    ------
    InvalidInput
        If shapes differ, a number is not finite or the noise is not positive.

    Examples
    --------
    >>> realised([3.0, 4.0], [0.0, 0.0], 2.0, error=0.5)
    Realised(low=2.25, high=2.75)
    """
    u, r = (np.asarray(v, dtype=np.float64) for v in (unlearned, retrained))
    if u.shape != r.shape or not np.isfinite(u - r).all():
        raise InvalidInput(f"expected finite parameters of one shape, got {u.shape} and {r.shape}")
    if not (math.isfinite(error) and error >= 0):
        raise InvalidInput(f"the error must be a finite number of at least 0, got {error!r}")
    whitened, largest = _whitened((u - r).ravel(), noise)
    slack = error * largest
    return Realised(max(0.0, whitened - slack), whitened + slack)


def _whitened(moved: Array, noise: ArrayLike) -> tuple[float, float]:
    """Return ‖Σ^{−1/2} moved‖, and the factor by which Σ^{−1/2} lengthens at most."""
    size = np.asarray(noise, dtype=np.float64)
    if size.ndim == 0:
        if not (math.isfinite(float(size)) and size > 0):
            raise InvalidInput(f"sigma must be a finite number above 0, got {float(size)!r}")
        return float(np.linalg.norm(moved)) / float(size), 1 / float(size)
    if size.shape != (len(moved), len(moved)):
        raise InvalidInput(f"expected a covariance {(len(moved),) * 2}, got {size.shape}")
    values, vectors = np.linalg.eigh(size)
    if not values[0] > 0:
        raise InvalidInput("the covariance of the noise must be positive definite")
    return float(np.linalg.norm((vectors.T @ moved) / np.sqrt(values))), float(values[0] ** -0.5)


def transcript(each: Iterable[Realised]) -> Realised:
    """Return the realised μ of several releases together: √Σμ².

    >>> transcript([Realised(3.0, 3.0), Realised(4.0, 4.0)])
    Realised(low=5.0, high=5.0)
    """
    found = list(each)
    return Realised(math.hypot(*(one.low for one in found)), math.hypot(*(o.high for o in found)))


def before_and_after(
    original: ArrayLike,
    retrained: ArrayLike,
    noise: ArrayLike,
    after: Realised,
    *,
    error: float = 0.0,
    shared: bool = False,
) -> Realised:
    """Return what holders of both versions face, against a world that never collected S.

    A warning, not part of any claim but ``beforeAndAfter``. Infinite if the two releases share
    their noise: it cancels.
    """
    if shared:
        return Realised(math.inf, math.inf)
    return transcript([realised(original, retrained, noise, error=error), after])


def minimiser_error(rows: Source, weights: Array, loss: str, l2: float, l1: float = 0.0) -> float:
    """Return a proved bound of how far weights (p, C) are from the minimiser on the rows.

    Recomputed as for a recheck, by code that shares nothing with the engine.
    """
    intercept = weights.shape[0] > rows.width
    return distance_bound(rows, weights, loss, l2, intercept, l1=l1).bound
