"""Canaries on the digits bed of the theory: what is caught, how often, and at which level."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.special import expit

from expunge.audit import signed_rank
from expunge.audit.canaries import (
    Decoder,
    Pairs,
    coins,
    decoder,
    margin_contrasts,
    measure,
    plant,
)
from expunge.audit.intervals import clopper_pearson
from expunge.errors import InvalidInput
from oracles import digits38

L2, SIGMA, PAIRS, CLAIM = 3.57, 8.923538e-3, 25, 0.3139


def derivatives(X, y, w):
    a = expit(-y * (X @ w))
    return L2 * w - X.T @ (y * a), (X * (a * (1 - a))[:, None]).T @ X + L2 * np.eye(len(w))


def fit(X, y, w, steps=6):
    for _ in range(steps):
        gradient, hessian = derivatives(X, y, w)
        w = w - np.linalg.solve(hessian, gradient)
    return w


class Digits:
    """Base rows are all of digits 3 and 8; canaries come on top and are deleted again."""

    def __init__(self, seed=1):
        X, y = digits38()
        self.X, self.y = X, y[:, 0]
        self.rng = np.random.default_rng(seed)
        self.base = fit(self.X, self.y, np.zeros(64), 12)
        self.pairs = plant(self.X, self.y, PAIRS, self.rng)
        self.decoder = decoder(self.train, self.base, PAIRS, SIGMA, self.rng)

    def with_canaries(self, b):
        X, y = self.pairs.included(b)
        return np.vstack([self.X, X]), np.concatenate([self.y, y])

    def train(self, b):
        return fit(*self.with_canaries(b), self.base)

    def nothing(self, b):
        return self.train(b)

    def wrong_hessian(self, b):
        w = self.train(b)
        hessian = derivatives(*self.with_canaries(b), w)[1]
        return w - np.linalg.solve(hessian, derivatives(self.X, self.y, w)[0])

    def newton(self, b):
        return fit(self.X, self.y, self.train(b), 1)

    def gradient_steps(self, b):
        w = self.train(b)
        for _ in range(5):
            gradient, hessian = derivatives(self.X, self.y, w)
            w = w - gradient / np.linalg.norm(hessian, 2)
        return w

    def retrain(self, b):
        return self.base

    def audit(self, method, runs, decode=None):
        found = []
        for _ in range(runs):
            b = coins(PAIRS, self.rng)
            theta = method(b) + SIGMA * self.rng.normal(size=64)
            v = (decode or self.decoder).contrasts(theta, b)
            found.append(signed_rank.signed_rank(v, self.rng))
        return found

    def pooled(self, found):
        return signed_rank.pooled_mu([one.randomised(self.rng.random()) for one in found])


def rates(found):
    small = np.mean([one.p <= 0.05 for one in found])
    refuted = np.mean([signed_rank.mu_of_p(one.p) > CLAIM for one in found])
    return small, refuted


@pytest.fixture
def bed():
    return Digits()


def test_doing_nothing_is_caught_in_every_run(bed):
    found = bed.audit(bed.nothing, 200)
    assert rates(found) == (1.0, 1.0)
    assert bed.pooled(found) == pytest.approx(5.29, abs=0.35)
    found = bed.audit(bed.gradient_steps, 100)
    assert rates(found)[0] > 0.99


def test_exact_retraining_keeps_the_level(bed):
    """400 runs, and the theory's 4.8 % and 3 % are within reach."""
    found = bed.audit(bed.retrain, 400)
    small, refuted = rates(found)
    assert clopper_pearson(round(400 * small), 400, 0.01)[0] <= 0.05
    assert clopper_pearson(round(400 * refuted), 400, 0.01)[0] <= 0.05
    assert clopper_pearson(round(400 * refuted), 400, 0.01)[1] > 0.02
    low = sum(one.p_below <= 0.05 for one in found)
    assert clopper_pearson(low, 400, 0.01)[0] <= 0.05
    assert bed.pooled(found) == 0.0


def test_small_leaks_are_seen_now_and_then(bed):
    small, refuted = rates(bed.audit(bed.wrong_hessian, 400))
    assert 0.06 < small < 0.19
    assert 0.03 < refuted < 0.14
    small, _ = rates(bed.audit(bed.newton, 200))
    assert clopper_pearson(round(200 * small), 200, 0.01)[0] <= 0.08


def test_the_common_shift_is_needed():
    """Without its column the bound for doing nothing falls far below."""
    bed = Digits(5)
    own = coins(PAIRS, bed.rng)
    still = bed.train(own)
    flips = [own * np.where(np.arange(PAIRS) == j, -1, 1) for j in range(PAIRS)]
    E = np.array([own[j] * (still - bed.train(f)) / 2 for j, f in enumerate(flips)]).T
    poor = Decoder(bed.base, np.linalg.solve(E.T @ E + SIGMA**2 * np.eye(PAIRS), E.T))
    with_shift = bed.audit(bed.nothing, 60)
    without = bed.audit(bed.nothing, 60, poor)
    median = [np.median([one.p for one in found]) for found in (with_shift, without)]
    assert median[0] < median[1] / 50


def test_the_decoder_by_normal_equations():
    rng = np.random.default_rng(2)
    E, shift, base = rng.normal(size=(9, 4)), rng.normal(size=9), rng.normal(size=9)
    found = decoder(lambda b: base + shift + E @ b, base, 4, 0.3, rng)
    A = np.column_stack([E, shift])
    expected = np.linalg.solve(A.T @ A + 0.09 * np.eye(5), A.T)[:4]
    assert found.operator == pytest.approx(expected, abs=1e-10)
    exact = decoder(lambda b: base + shift + E @ b, base, 4, 1e-9, rng)
    b = coins(4, rng)
    assert exact.contrasts(base + shift + E @ b, b) == pytest.approx(np.ones(4), abs=1e-6)


def test_a_fault_without_response_proves_nothing():
    rng = np.random.default_rng(3)
    found = decoder(lambda b: np.zeros(40), np.zeros(40), PAIRS, 0.1, rng)
    out = measure(
        lambda b, seed: found.contrasts(rng.normal(size=40), b),
        pairs=PAIRS,
        runs=1,
        delta=0.0,
        rng=rng,
    )
    assert out.p == (1.0,)
    assert out.mu == out.epsilon == 0


def test_a_black_box_needs_reference_models(bed):
    """Margins less those of retrained models see doing nothing; raw ones hardly do.

    Neither comes near decoding, which sees it every time.
    """
    b_rows, labels = bed.pairs.X, bed.pairs.y

    def noisy(w):
        return w + SIGMA * bed.rng.normal(size=64)

    def margins(w):
        return labels[:, None] * (b_rows @ w)

    references = np.array([margins(noisy(bed.base)) for _ in range(4)])
    hits = np.zeros(2)
    for _ in range(60):
        b = coins(PAIRS, bed.rng)
        own = margins(noisy(bed.nothing(b)))
        for k, others in enumerate((references, np.zeros((1, PAIRS, 2)))):
            v = margin_contrasts(own, others, b)
            hits[k] += signed_rank.signed_rank(v, bed.rng).p <= 0.05
    assert hits[0] > 22
    assert hits[1] < 22
    assert hits[0] > 1.5 * hits[1]


def test_black_box_contrasts_keep_the_level(bed):
    b_rows, labels = bed.pairs.X, bed.pairs.y
    references = np.tile(labels[:, None] * (b_rows @ bed.base), (4, 1, 1))
    hits = 0
    for _ in range(400):
        b = coins(PAIRS, bed.rng)
        w = bed.base + SIGMA * bed.rng.normal(size=64)
        v = margin_contrasts(labels[:, None] * (b_rows @ w), references, b)
        hits += signed_rank.signed_rank(v, bed.rng).p <= 0.05
    assert clopper_pearson(hits, 400, 0.01)[0] <= 0.05


def test_coins_reach_the_contrasts_only_as_signs(bed):
    """Negative control: a contrast that looks at the coins is flagged on retraining."""
    hits = 0
    for _ in range(50):
        b = coins(PAIRS, bed.rng)
        cheat = np.abs(bed.decoder.contrasts(bed.base + SIGMA * bed.rng.normal(size=64), b))
        hits += signed_rank.signed_rank(cheat, bed.rng).p <= 0.05
    assert hits == 50


def test_pairs_are_of_the_lengths_of_the_data():
    rng = np.random.default_rng(4)
    X, y = digits38()
    pairs = plant(X, y, 30, rng)
    assert np.linalg.norm(pairs.X, axis=2) == pytest.approx(np.ones((30, 2)))
    assert set(pairs.y[:, 0]) == {-1.0, 1.0}
    b = coins(30, rng)
    rows, labels = pairs.included(b)
    assert (rows == np.where((b > 0)[:, None], pairs.X[:, 0], pairs.X[:, 1])).all()
    assert (labels == pairs.y).all()
    assert len(Pairs(pairs.X[:3], pairs.y[:3])) == 3


def test_repeats_pool(bed):
    def contrasts(b, seed):
        noise = SIGMA * np.random.default_rng(seed).normal(size=64)
        return bed.decoder.contrasts(bed.nothing(b) + noise, b)

    found = measure(contrasts, pairs=PAIRS, runs=20, delta=1e-5, rng=bed.rng)
    assert found.epsilon == pytest.approx(4.46, abs=5e-3)
    assert found.mu > 4
    assert found.runs == 20


def test_what_is_refused(bed):
    with pytest.raises(InvalidInput, match="as many parameters"):
        decoder(lambda b: np.zeros(4), np.zeros(4), 4, 0.1, bed.rng)
    with pytest.raises(InvalidInput, match="margins"):
        margin_contrasts(np.zeros((3, 2)), np.zeros((4, 2, 2)), coins(3, bed.rng))
    with pytest.raises(InvalidInput, match="at least one pair"):
        plant(np.zeros((0, 3)), [], 2, bed.rng)
