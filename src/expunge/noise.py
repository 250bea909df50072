"""The noise of a release: where it comes from, the grid it is put on, and its tag.

A release is w + σz with z standard normal and fresh, snapped to a public grid after the noise, so
that low-order bits carry nothing. z is never stored; its keyed tag shows if it was used twice.
"""

from __future__ import annotations

import hashlib
import hmac
import importlib
import math
import os
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtri

from expunge.discrete import GRID_BITS
from expunge.errors import InvalidInput

Array = NDArray[np.float64]

TAG_KEY_BYTES = 32


class NoiseSource(Protocol):
    """Something that gives standard normal numbers, fresh at every call."""

    @property
    def name(self) -> str:
        """The name printed in certificates."""

    @property
    def production(self) -> bool:
        """Whether a certificate may be used outside tests."""

    def normal(self, shape: tuple[int, ...]) -> Array:
        """Return independent N(0, 1) numbers in float64."""


class OsEntropy:
    """Standard normal numbers from the operating system's entropy: for real releases.

    One sign bit and a 63-bit uniform k per number, through the inverse normal distribution
    function at (k + ½)/2⁶⁴ ≤ ½: symmetric, accurate in the tails, never beyond ±9.2.

    Examples
    --------
    >>> OsEntropy().normal((2, 3)).shape
    (2, 3)
    """

    name = "osEntropy"
    production = True

    def normal(self, shape: tuple[int, ...]) -> Array:
        """Return independent N(0, 1) numbers in float64."""
        count = math.prod(shape)
        return _normal_from_words(np.frombuffer(os.urandom(8 * count), "<u8")).reshape(shape)

    def __repr__(self) -> str:
        """Name the source."""
        return "OsEntropy()"


class Seeded:
    """Reproducible standard normal numbers: for tests only, and certificates say so.

    Whoever knows the seed can remove the noise. It is not kept, and never shown.

    Examples
    --------
    >>> Seeded(3)
    Seeded(<hidden>)
    >>> Seeded(3).production
    False
    """

    name = "seeded"
    production = False

    def __init__(self, seed: int) -> None:
        self._generator = np.random.default_rng(seed)

    def normal(self, shape: tuple[int, ...]) -> Array:
        """Return the next independent N(0, 1) numbers in float64."""
        return self._generator.standard_normal(shape)

    def __repr__(self) -> str:
        """Hide the seed."""
        return "Seeded(<hidden>)"


class Discrete:
    """Exact discrete Gaussian noise by OpenDP: real releases without float64 as an assumption.

    Weights are rounded to a grid g = 2^-j of at most σ/2^24 *before* g times an exact integer
    Gaussian of parameter σ/g is added. The shift grows to at most 2τ + g√d and the accounting is
    :func:`expunge.guarantee.discrete_delta`. Needs the optional dependency ``opendp``.

    Source: Canonne, Kamath & Steinke 2020.
    """

    name = "openDp"
    production = True

    def integers(self, scale: float, count: int) -> NDArray[np.int64]:
        """Return ``count`` integers from the discrete Gaussian of parameter ``scale``."""
        try:
            dp = importlib.import_module("opendp.prelude")
        except ImportError as error:
            raise InvalidInput(
                "discrete noise needs OpenDP; install it with: pip install 'expunge[hardened]'"
            ) from error
        dp.enable_features("contrib")
        space = dp.vector_domain(dp.atom_domain(T=dp.i64)), dp.l2_distance(T=float)
        draw = dp.m.make_gaussian(*space, scale=scale)
        return np.array(draw([0] * count), dtype=np.int64)

    def __repr__(self) -> str:
        """Name the source."""
        return "Discrete()"


def source_of(kind: str, seed: int | None, release: int = 1) -> NoiseSource | Discrete:
    """Return the source that a user chose: ``gaussian`` or ``discrete``; a seed is for tests.

    A seed gives every release its own noise, also after a state has been saved and loaded.

    Raises
    ------
    InvalidInput
        If the kind is unknown.
    """
    if kind not in ("gaussian", "discrete"):
        raise InvalidInput(f"noise must be 'gaussian' or 'discrete', got {kind!r}")
    if seed is not None:
        return Seeded(int.from_bytes(hashlib.sha256(f"{seed}/{release}".encode()).digest()))
    return Discrete() if kind == "discrete" else OsEntropy()


@dataclass(frozen=True, eq=False)
class Release:
    """Weights as published, and what the certificate says about their noise.

    Attributes
    ----------
    weights : ndarray of float64
        The noised weights, every one a multiple of 2^-grid_exponent. Not in ``repr``.
    source : str
        Name of the noise source.
    production : bool
        False for seeded noise.
    grid_exponent : int
        j of the grid 2^-j; may be negative.
    tag : str
        HMAC-SHA-256 of the noise under the sealed key, hex. Equal tags mean that noise was reused.
    """

    weights: Array = field(repr=False)
    source: str
    production: bool
    grid_exponent: int
    tag: str


def grid_exponent(sigma: float, bits: int = 10) -> int:
    """Return j such that 2^-j is the largest power of two at most σ/2^bits.

    Raises
    ------
    InvalidInput
        If σ is not a finite number between 2^-900 and 2^900.

    Examples
    --------
    >>> grid_exponent(0.0002671922)
    22
    """
    if not (math.isfinite(sigma) and 2.0**-900 <= sigma <= 2.0**900):
        raise InvalidInput(f"sigma must lie between 2^-900 and 2^900; got {sigma!r}")
    return bits + 1 - math.frexp(sigma)[1]


def on_grid(weights: Array, exponent: int) -> bool:
    """Tell whether every weight is a finite multiple of 2^-exponent.

    Examples
    --------
    >>> on_grid(np.array([0.5, -1.25]), 2), on_grid(np.array([0.5, 0.3]), 2)
    (True, False)
    """
    return bool(np.isfinite(weights).all() and (_snap(weights, exponent) == weights).all())


def release(weights: Array, sigma: float, source: NoiseSource | Discrete, key: bytes) -> Release:
    """Noise weights for publication.

    Parameters
    ----------
    weights : ndarray of float64, any shape
        The noiseless weights; a sealed-state secret. Left as they are.
    sigma : float
        Standard deviation of the noise per coordinate.
    source : OsEntropy, Seeded or Discrete
        Where the noise comes from.
    key : bytes
        The sealed 32-byte key of the tag.

    Raises
    ------
    InvalidInput
        If weights are not finite float64, σ is out of range, or the key has another length.

    Examples
    --------
    >>> release(np.zeros(4), 0.5, Seeded(1), bytes(32)).grid_exponent
    11
    """
    if weights.dtype != np.float64 or not np.isfinite(weights).all():
        raise InvalidInput(f"weights must be finite float64 numbers; got {weights.dtype}")
    if len(key) != TAG_KEY_BYTES:
        raise InvalidInput(f"the tag key must be {TAG_KEY_BYTES} bytes; got {len(key)}")
    if isinstance(source, Discrete):
        published, noise, exponent = _add_discrete(weights, sigma, source)
    else:
        exponent = grid_exponent(sigma)
        normal = source.normal(weights.shape)
        published = _snap(weights + sigma * normal, exponent)
        noise = normal.astype("<f8").tobytes()
    tag = hmac.new(key, noise, hashlib.sha256).hexdigest()
    return Release(published, source.name, source.production, exponent, tag)


def _add_discrete(weights: Array, sigma: float, source: Discrete) -> tuple[Array, bytes, int]:
    exponent = grid_exponent(sigma, GRID_BITS)
    units = source.integers(math.ldexp(sigma, exponent), weights.size).reshape(weights.shape)
    total = np.rint(np.ldexp(weights, exponent)) + units
    if not (np.abs(total) < 2.0**53).all():
        raise InvalidInput(
            "weights are too large for exact discrete noise of this sigma (over 2^28 sigma); "
            "use the continuous mode or a larger sigma"
        )
    return np.ldexp(total, -exponent), units.astype("<i8").tobytes(), exponent


def _snap(values: Array, exponent: int) -> Array:
    """Round to multiples of 2^-exponent; adding 0 turns −0 into 0."""
    snapped: Array = np.ldexp(np.rint(np.ldexp(values, exponent)), -exponent) + 0.0
    return snapped


def _normal_from_words(words: NDArray[np.uint64]) -> Array:
    uniform = ((words >> np.uint64(1)).astype(np.float64) + 0.5) * 2.0**-64
    magnitude = -ndtri(uniform)
    return np.where(words & np.uint64(1), magnitude, -magnitude)
