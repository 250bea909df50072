"""Noise of a release. Statistical tests reject at 1e-9, so that a failure means a defect."""

from __future__ import annotations

import hashlib
import hmac
import importlib.util
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from expunge import noise
from expunge.errors import InvalidInput
from expunge.noise import Discrete, OsEntropy, Release, Seeded, grid_exponent, on_grid, release

KEY = bytes(range(32))
LEVEL = 1e-9
needs_opendp = pytest.mark.skipif(
    importlib.util.find_spec("opendp") is None, reason="optional dependency opendp"
)


class Fixed:
    """Noise that a test chooses."""

    name = "fixed"
    production = False

    def __init__(self, values) -> None:
        self.values = np.asarray(values, dtype=np.float64)

    def normal(self, shape: tuple[int, ...]) -> np.ndarray:
        return self.values.reshape(shape)


# --- operating-system entropy -------------------------------------------------------------------


@pytest.fixture(scope="module")
def sample() -> np.ndarray:
    return OsEntropy().normal((400_000,))


def test_distribution_is_normal(sample: np.ndarray) -> None:
    assert stats.kstest(sample, "norm").pvalue > LEVEL


def test_moments(sample: np.ndarray) -> None:
    bound = stats.norm.isf(LEVEL / 2)
    variances = {1: 1, 2: 2, 3: 15, 4: 96}
    means = {1: 0, 2: 1, 3: 0, 4: 3}
    for power, variance in variances.items():
        error = (sample**power).mean() - means[power]
        assert abs(error) <= bound * math.sqrt(variance / sample.size), f"moment {power}"


def test_squared_norms_are_chi_squared(sample: np.ndarray) -> None:
    squares = (sample.reshape(-1, 64) ** 2).sum(axis=1)
    assert stats.kstest(squares, "chi2", args=(64,)).pvalue > LEVEL


def test_counts_in_bins_including_the_tails(sample: np.ndarray) -> None:
    edges = np.concatenate([[-np.inf], np.linspace(-3.5, 3.5, 57), [np.inf]])
    observed, _ = np.histogram(np.clip(sample, -1e3, 1e3), np.clip(edges, -1e3, 1e3))
    expected = sample.size * np.diff(stats.norm.cdf(edges))
    assert stats.chisquare(observed, expected).pvalue > LEVEL


def test_neighbours_are_uncorrelated(sample: np.ndarray) -> None:
    bound = stats.norm.isf(LEVEL / 2) / math.sqrt(sample.size)
    for lag in (1, 2, 64):
        assert abs(np.mean(sample[:-lag] * sample[lag:])) <= bound


def test_a_wrong_scale_would_be_noticed(sample: np.ndarray) -> None:
    """Negative control: the tests above see noise that is 5 % too small."""
    assert stats.kstest(0.95 * sample, "norm").pvalue < LEVEL


def test_tails_are_finite_and_symmetric(monkeypatch: pytest.MonkeyPatch) -> None:
    words = np.array([0, 1, 2**64 - 2, 2**64 - 1], dtype="<u8")
    monkeypatch.setattr(noise.os, "urandom", lambda count: words.tobytes())
    extremes = OsEntropy().normal((4,))
    assert np.isfinite(extremes).all()
    assert extremes[0] == -extremes[1]
    assert extremes[1] == pytest.approx(-stats.norm.ppf(2.0**-65))
    assert 9.0 < extremes[1] < 9.3
    assert np.abs(extremes[2:]).max() < 1e-18


def test_never_the_same_twice() -> None:
    source = OsEntropy()
    first, second = source.normal((4, 3)), source.normal((4, 3))
    assert first.shape == (4, 3)
    assert first.dtype == np.float64
    assert not np.isin(first, second).any()


def test_nothing_is_a_valid_amount() -> None:
    assert OsEntropy().normal((0, 3)).shape == (0, 3)


def test_numpy_seed_does_not_reach_it() -> None:
    np.random.seed(0)  # noqa: NPY002
    first = OsEntropy().normal((3,))
    np.random.seed(0)  # noqa: NPY002
    assert not np.array_equal(first, OsEntropy().normal((3,)))


# --- seeded noise -------------------------------------------------------------------------------


def test_seeded_noise_repeats_and_moves_on() -> None:
    one, two = Seeded(5), Seeded(5)
    first = one.normal((10,))
    assert np.array_equal(first, two.normal((10,)))
    assert not np.array_equal(first, one.normal((10,)))


def test_seeded_noise_is_marked_and_hides_its_seed() -> None:
    source = Seeded(987654321)
    assert (source.name, source.production) == ("seeded", False)
    assert (OsEntropy().name, OsEntropy().production) == ("osEntropy", True)
    assert "987654321" not in f"{source!r} {source} {vars(source)}"


# --- grid ---------------------------------------------------------------------------------------


@given(st.floats(-890, 890).map(lambda power: 2.0**power))
def test_grid_is_the_largest_power_of_two_below_a_thousandth(sigma: float) -> None:
    step = math.ldexp(1.0, -grid_exponent(sigma))
    assert step <= sigma / 1024 < 2 * step


@pytest.mark.parametrize(
    ("sigma", "exponent"), [(1024.0, 0), (1.0, 10), (0.999, 11), (2.0**20, -10), (0.0002671922, 22)]
)
def test_grid_exponent_values(sigma: float, exponent: int) -> None:
    assert grid_exponent(sigma) == exponent


@pytest.mark.parametrize("sigma", [0.0, -1.0, math.nan, math.inf, 1e-300, 1e300])
def test_sigma_out_of_range_is_refused(sigma: float) -> None:
    with pytest.raises(InvalidInput, match="sigma must lie"):
        release(np.zeros(3), sigma, Seeded(0), KEY)


# --- release ------------------------------------------------------------------------------------


@given(st.integers(0, 2**32), st.floats(-30, 30).map(lambda power: 2.0**power))
def test_release_is_the_snapped_sum(seed: int, sigma: float) -> None:
    weights = np.random.default_rng(seed + 1).normal(size=(3, 5))
    published = release(weights, sigma, Seeded(seed), KEY)
    noisy = weights + sigma * Seeded(seed).normal((3, 5))
    step = math.ldexp(1.0, -published.grid_exponent)
    assert published.weights.shape == (3, 5)
    assert on_grid(published.weights, published.grid_exponent)
    assert np.abs(published.weights - noisy).max() <= step / 2
    assert np.abs(published.weights - noisy).max() <= sigma / 2048


def test_snapping_happens_after_the_noise() -> None:
    weights, normal = np.array([0.4 / 1024]), np.array([0.4 / 1024])
    assert release(weights, 1.0, Fixed(normal), KEY).weights[0] == 1 / 1024


def test_low_bits_and_signed_zero_carry_nothing() -> None:
    published = release(np.array([-1e-9, 1e-9, 0.0]), 1.0, Fixed([0.0, 0.0, 0.0]), KEY)
    assert published.weights.tobytes() == np.zeros(3).tobytes()


def test_on_grid_notices_an_off_grid_weight() -> None:
    published = release(np.zeros(8), 1.0, Seeded(2), KEY)
    moved = published.weights.copy()
    moved[3] = np.nextafter(moved[3], np.inf)
    assert not on_grid(moved, published.grid_exponent)
    assert not on_grid(np.array([np.nan]), 10)


def test_weights_are_left_alone_and_unseen() -> None:
    weights = np.array([0.123456789, -3.25])
    before = weights.copy()
    published = release(weights, 0.5, Seeded(1), KEY)
    assert np.array_equal(weights, before)
    text = repr(published)
    assert "array" not in text
    assert "weights" not in text
    assert published.tag in text


def test_tag_is_the_keyed_hash_of_the_noise() -> None:
    normal = np.array([1.5, -0.25])
    expected = hmac.new(KEY, normal.astype("<f8").tobytes(), hashlib.sha256).hexdigest()
    assert release(np.zeros(2), 1.0, Fixed(normal), KEY).tag == expected


def test_n11_reused_noise_shows_in_the_tag_whatever_was_published() -> None:
    first = release(np.zeros(4), 1.0, Seeded(7), KEY)
    reused = release(np.ones(4), 0.1, Seeded(7), KEY)
    fresh = release(np.zeros(4), 1.0, Seeded(8), KEY)
    other_key = release(np.zeros(4), 1.0, Seeded(7), bytes(32))
    assert first.tag == reused.tag
    assert len({first.tag, fresh.tag, other_key.tag}) == 3


def test_seeded_release_is_not_for_production() -> None:
    assert release(np.zeros(2), 1.0, Seeded(0), KEY).production is False
    published = release(np.zeros(2), 1.0, OsEntropy(), KEY)
    assert isinstance(published, Release)
    assert (published.production, published.source) == (True, "osEntropy")


def test_released_noise_has_the_promised_size() -> None:
    sigma, size = 0.01, 20_000
    published = release(np.full(size, 3.0), sigma, OsEntropy(), KEY)
    square = (((published.weights - 3.0) / sigma) ** 2).sum()
    assert stats.chi2.ppf(LEVEL, size) < square < stats.chi2.isf(LEVEL, size)


@pytest.mark.parametrize(
    ("weights", "key", "message"),
    [
        (np.array([1.0, np.nan]), KEY, "finite float64"),
        (np.array([1, 2]), KEY, "got int64"),
        (np.zeros(2, dtype=np.float32), KEY, "got float32"),
        (np.zeros(2), b"short", "32 bytes; got 5"),
    ],
)
def test_bad_weights_and_keys_are_refused(weights, key: bytes, message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        release(weights, 1.0, Seeded(0), key)


# --- discrete mode ------------------------------------------------------------------------------


class FixedIntegers(Discrete):
    """Discrete noise that a test chooses."""

    def __init__(self, values) -> None:
        self.values = np.asarray(values, dtype=np.int64)

    def integers(self, scale: float, count: int) -> np.ndarray:
        assert 2.0**24 <= scale < 2.0**25
        assert count == self.values.size
        return self.values


def test_discrete_release_rounds_before_the_noise() -> None:
    published = release(np.array([[0.4 / 2**24, -0.6 / 2**24]]), 1.0, FixedIntegers([5, 0]), KEY)
    assert published.grid_exponent == 24
    assert published.weights.tolist() == [[5 / 2**24, -1 / 2**24]]
    noise_bytes = np.array([5, 0], dtype="<i8").tobytes()
    assert published.tag == hmac.new(KEY, noise_bytes, hashlib.sha256).hexdigest()


def test_discrete_release_refuses_weights_that_float64_cannot_hold() -> None:
    with pytest.raises(InvalidInput, match="too large"):
        release(np.array([2.0**30]), 1.0, FixedIntegers([0]), KEY)


@pytest.mark.skipif(importlib.util.find_spec("opendp") is not None, reason="opendp is installed")
def test_discrete_mode_says_what_to_install() -> None:
    with pytest.raises(InvalidInput, match=r"expunge\[hardened\]"):
        release(np.zeros(2), 1.0, Discrete(), KEY)


@needs_opendp
def test_discrete_noise_is_gaussian_on_its_grid() -> None:
    sigma, size = 0.013, 50_000
    published = release(np.full(size, 0.5), sigma, Discrete(), KEY)
    assert on_grid(published.weights, published.grid_exponent)
    assert (published.source, published.production) == ("openDp", True)
    assert stats.kstest((published.weights - 0.5) / sigma, "norm").pvalue > LEVEL
    assert published.tag != release(np.full(size, 0.5), sigma, Discrete(), KEY).tag


@needs_opendp
def test_p9_discrete_gaussian_probabilities() -> None:
    scale, size = 1.5, 100_000
    draws = Discrete().integers(scale, size)
    support = np.arange(-12, 13)
    mass = np.exp(-(support**2) / (2 * scale**2))
    inner = np.abs(support) <= 5
    observed = np.array([(draws == k).sum() for k in support[inner]])
    rest = size - observed.sum()
    expected = size * mass / mass.sum()
    tail = expected[~inner].sum()
    result = stats.chisquare([*observed, rest], [*expected[inner], tail])
    assert result.pvalue > LEVEL
