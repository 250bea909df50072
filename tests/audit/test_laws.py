"""Divergence of margins, the challenge's score, and what is planted: vectors, bias, known laws."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.special import digamma
from scipy.stats import binom, kstest

from audit_beds import fit_logistic
from expunge.audit import challenge, confusion, klom, poison, reconstruct, relearn
from expunge.audit.views import outputs_of
from expunge.errors import InvalidInput
from oracles import digits38

U, R = [1, 2, 2.5, 3, 4, 4.5], [0, 1, 1.5, 2, 3, 5]


def test_vectors():
    assert klom.gaussian(U, R, correct=False) == pytest.approx([0.16722835], abs=5e-9)
    assert klom.gaussian(U, R) == pytest.approx([0.16722835 - 1 / 3], abs=5e-9)
    assert klom.benchmark(U, R) == pytest.approx([4.76945222], abs=5e-9)
    assert klom.benchmark(U, R, bins=5) == pytest.approx([3.46542455], abs=5e-9)


def exact_bias(u, r):
    """Return the mean of the uncorrected estimate for two samples of one Gaussian."""
    a, b = u - 1, r - 1
    logs = (digamma(b / 2) - np.log(b / 2) - digamma(a / 2) + np.log(a / 2)) / 2
    return logs + (1 + 1 / u + 1 / r) / 2 * b / (b - 2) - 0.5


@pytest.mark.parametrize(("u", "r"), [(50, 100), (100, 100), (20, 20)])
def test_bias_of_the_gaussian_form(u, r):
    """0.0308 against the correction 0.03 at 50/100; 0.1147 against 0.1 at 20/20."""
    rng = np.random.default_rng(u)
    found = klom.gaussian(rng.normal(size=(u, 20_000)), rng.normal(size=(r, 20_000)), correct=False)
    assert found.mean() == pytest.approx(exact_bias(u, r), abs=0.002)
    assert klom.bias(u, r) == pytest.approx(exact_bias(u, r), rel=0.15)


def test_heavy_tails_need_the_quantile_form():
    rng = np.random.default_rng(1)
    u, r = rng.standard_t(3, size=(2, 100, 4000))
    assert klom.gaussian(u, r, correct=False).mean() > 0.08  # 0.02 is subtracted
    assert abs(klom.quantile(u, r).mean()) < 0.01


@pytest.mark.parametrize(
    ("n", "value"), [(20, 2.99), (50, 0.85), (100, 0.33), (200, 0.15), (1000, 0.024)]
)
def test_the_benchmark_form_is_not_0_for_identical_laws(n, value):
    rng = np.random.default_rng(n)
    rows = 1500 if n < 1000 else 150
    found = klom.benchmark(rng.normal(size=(n, rows)), rng.normal(size=(n, rows))).mean()
    assert found == pytest.approx(value, rel=0.08)


def test_half_a_standard_deviation_is_an_eighth():
    rng = np.random.default_rng(2)
    u, r = rng.normal(0.5, 1, size=(100, 4000)), rng.normal(size=(200, 4000))
    assert klom.gaussian(u, r).mean() == pytest.approx(0.125, abs=0.01)
    assert klom.quantile(u, r).mean() == pytest.approx(0.12, abs=0.02)
    with pytest.raises(InvalidInput, match="same rows"):
        klom.gaussian(u, r[:, :5])


@pytest.mark.parametrize("runs", [128, 512])
def test_retraining_does_not_score_1(runs):
    """F of retraining against itself: about 0.2 with both families, 0.35 to 0.44 with one."""
    rng = np.random.default_rng(runs)
    u, r = rng.normal(size=(2, runs, 200))
    found = [challenge.row_epsilon(a, b) for a, b in zip(u.T, r.T, strict=True)]
    assert 1.3 < np.median(found) < 1.7
    assert challenge.forgetting(u, r) == pytest.approx(0.22, abs=0.06)
    assert challenge.forgetting(u, r, families="single") == pytest.approx(0.38, abs=0.07)


def test_the_challenge_by_brute_force():
    """Every point of the grid, both families."""
    rng = np.random.default_rng(3)
    for _ in range(20):
        u, r = rng.normal(0, 1, 30), rng.normal(0.4, 1.5, 30)
        positive, negative = (u, r) if np.median(u) >= np.median(r) else (r, u)
        low = min(u.min(), r.min())
        grid = low + np.arange(int((max(u.max(), r.max()) - low) * 100) + 2) / 100
        rates = [((negative >= t).mean(), (positive < t).mean()) for t in grid]
        inner, outer = (u, r) if u.std() <= r.std() else (r, u)
        centre = np.median(inner)
        far = max(abs(u - centre).max(), abs(r - centre).max())
        rates += [
            ((abs(outer - centre) <= t).mean(), (abs(inner - centre) > t).mean())
            for t in np.arange(int(far * 100) + 2) / 100
        ]
        values = [
            np.log(top / bottom)
            for a, b in rates
            if a > 0 and b > 0
            for top, bottom in ((1 - 1e-5 - a, b), (1 - 1e-5 - b, a))
            if top > 0
        ]
        assert challenge.row_epsilon(u, r) == pytest.approx(max(values))
    assert challenge.row_epsilon([0, 1.0, 2], [5.0, 6, 7]) == 50
    assert challenge.row_epsilon([0, 0.001], [-5.0, 6]) == 50
    assert challenge.row_scores([0.4, 0.5, 1.2, 50], 512) == pytest.approx([1, 0.5, 0.25, 0])
    assert challenge.final_score(0.2, (0.9, 1.0), (0.8, 0.8)) == pytest.approx(0.18)


def test_poison_is_standard_normal_for_an_independent_model():
    """Exactly N(0, 1), also after clipping; what has learnt the noise is seen on one side."""
    rng = np.random.default_rng(4)
    z = []
    for _ in range(400):
        X = rng.normal(size=(25, 6))
        planted, noise = poison.plant(X, 0.7, rng)
        assert np.allclose(np.clip(planted, -1, 1), np.clip(X + noise, -1, 1))
        gradients = rng.standard_t(2, size=X.shape) * np.abs(X)
        gradients[:3] = 0
        found = poison.remembered(noise, gradients, 0.7)
        assert found.rows == 22
        z.append(found.z)
    assert kstest(z, "norm").pvalue > 0.001
    assert poison.remembered(noise, -noise, 0.7).z > 5
    assert poison.remembered(noise, noise, 0.7).p < 1e-6
    assert poison.remembered(noise, 0 * noise, 0.7).p == 1.0
    with pytest.raises(InvalidInput, match="alike"):
        poison.remembered(noise, noise[1:], 0.7)


def test_poison_is_weak_on_a_small_convex_head():
    """Digits 3 against 8: mean z of doing nothing 0.46 at k = 50 of 357."""
    X, y = digits38()
    y = (y.ravel() > 0).astype(int)
    rng, sigma, z = np.random.default_rng(0), poison.scale_for_tables(X), []
    for _ in range(200):
        chosen = rng.choice(len(X), 50, replace=False)
        mixed = X.copy()
        mixed[chosen], noise = poison.plant(X[chosen], sigma, rng)
        w = fit_logistic(mixed, y, 3.57, steps=6)
        told = outputs_of(X[chosen] @ w, y[chosen])
        z.append(poison.remembered(noise, poison.linear_input_gradients(w, told), sigma).z)
    assert np.mean(z) == pytest.approx(0.46, abs=0.15)


def test_linear_input_gradients_by_differences():
    rng = np.random.default_rng(5)
    W, X, y = rng.normal(size=(3, 4)), rng.normal(size=(5, 4)), rng.integers(3, size=5)
    found = poison.linear_input_gradients(W, outputs_of(X @ W.T, y, gives="logits"))
    for j in range(4):
        shift = np.zeros(4)
        shift[j] = 1e-6
        up, down = (outputs_of((X + s * shift) @ W.T, y).loss for s in (1, -1))
        assert found[:, j] == pytest.approx((up - down) / 2e-6, abs=1e-6)


@pytest.mark.parametrize(
    ("sigma", "shared", "pointed"), [(0.0, False, True), (1.0, False, False), (1.0, True, True)]
)
def test_reconstruction_points_at_the_row_unless_noise_is_fresh(sigma, shared, pointed):
    """The cosine alone would not tell: it is 0.4 and more under any noise."""
    X, y = digits38()
    y = (y.ravel() > 0).astype(int)
    rng = np.random.default_rng(6)
    order = rng.permutation(357)
    public, D, T = order[:100], order[100:300], order[300:]
    w = fit_logistic(X[D], y[D], 3.57)
    p = 1 / (1 + np.exp(-X[public] @ w))
    H = 2 * (X[public] * (p * (1 - p))[:, None]).T @ X[public] + 3.57 * np.eye(64)
    found = []
    for k in range(50):
        left = np.delete(D, k)
        noise = sigma * rng.normal(size=(2, 64))
        released = w + noise[0], fit_logistic(X[left], y[left], 3.57) + noise[1 - shared]
        decoys = X[np.concatenate([left, T])]
        found.append(reconstruct.rank(reconstruct.reconstruct(H, *released), X[D[k]], decoys))
    told = reconstruct.exposure(found)
    assert (told.top1 == 1.0) == pointed
    if pointed:
        assert np.mean([one.cosine for one in found]) > 0.99
    else:
        assert told.mean_p == pytest.approx(0.5, abs=0.15)
        assert told.top1 <= 0.04
        assert np.mean([one.cosine for one in found]) > 0.35
    with pytest.raises(InvalidInput, match="other than the deleted"):
        reconstruct.rank(X[0], X[1], X[:5])
    with pytest.raises(InvalidInput, match="at least 50"):
        reconstruct.exposure(found[:49])


def test_confusion_counts():
    told = outputs_of(np.eye(3)[[0, 1, 1, 0, 2, 1]] * 5, [0, 1, 0, 1, 2, 2])
    assert confusion.confused(told, 0, 1) == 2
    assert confusion.confusion(told, 0, 1).value == 0.5
    rng = np.random.default_rng(7)
    y = np.array(["a"] * 10 + ["b"] * 10 + ["c"] * 5)
    chosen, mixed = confusion.swapped(y, "a", "b", 6, rng)
    assert len(chosen) == 6
    assert (mixed[chosen] != y[chosen]).all()
    assert (np.delete(mixed, chosen) == np.delete(y, chosen)).all()
    assert sorted(mixed) == sorted(y)
    with pytest.raises(InvalidInput, match="has 5 rows"):
        confusion.swapped(y, "a", "c", 12, rng)


def test_relearn_counting():
    found = relearn.compare([2.0, 2, 2], np.full((5, 3), 20.0) + np.arange(3))
    assert found.ratio == pytest.approx(2 / 21)
    assert found.p < 0.01
    assert found.void == ""
    assert "cap" not in relearn.compare([20.0], np.full((5, 1), 20.0)).void
    assert "raise" in relearn.compare([2.0], np.full((5, 1), 1000.0)).void
    assert "lower" in relearn.compare([2.0], np.full((5, 1), 3.0)).void
    assert relearn.curve([1, 3, 1000], cap=4) == pytest.approx([0, 1 / 3, 1 / 3, 2 / 3, 2 / 3])
    rng = np.random.default_rng(8)
    p = [
        relearn.log_rank(rng.exponential(10, 20), rng.exponential(10, 40), 25.0) for _ in range(500)
    ]
    assert np.sum(np.array(p) <= 0.05) <= binom.ppf(0.9999, 500, 0.055)
    with pytest.raises(InvalidInput, match="relearn times"):
        relearn.compare([1.0, 2.0], np.ones((5, 3)))
