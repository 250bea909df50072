"""Attacks against vectors, and on laws where the best attack is known in closed form."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import binom, norm

from expunge.audit import fidelity, lira, population, rmia, svc, ulira, zrf
from expunge.audit.views import outputs_of
from expunge.errors import InvalidInput

AUC, BALANCED = norm.cdf(1 / np.sqrt(2)), norm.cdf(0.5)


def test_vectors():
    assert lira.ratio(2.0, (3.0, 1.0), (1.0, 0.25)) == pytest.approx(0.806853, abs=5e-7)
    assert lira.tail(2.0, (1.0, 0.25)) == pytest.approx(0.977250, abs=5e-7)
    x = rmia.log_ratios(np.log([0.9, 0.5]), np.log([[0.6, 0.5], [0.7, 0.4]]), a=0.3)
    z = rmia.log_ratios(np.log([0.4, 0.8, 0.6]), np.log([[0.5, 0.7, 0.6], [0.5, 0.9, 0.7]]), a=0.3)
    assert np.exp(x) == pytest.approx([1.16504854, 0.77821012], abs=5e-9)
    assert np.exp(z) == pytest.approx([0.59259259, 0.91954023, 0.77669903], abs=5e-9)
    assert rmia.scores(x, z) == pytest.approx([1, 2 / 3])
    assert rmia.scores(x, z, gamma=2.0) == pytest.approx([0, 0])
    p, uniform = np.array([[0.7, 0.2, 0.1]]), np.full((1, 3), 1 / 3)
    assert fidelity.jensen_shannon(p, uniform) == pytest.approx([0.07480640], abs=5e-9)
    told = zrf.row_scores(outputs_of(p, [0]), [outputs_of(uniform, [0])])
    assert told == pytest.approx([0.92519360], abs=5e-9)
    tow = fidelity.tug_of_war(0.95 - 0.88, 0.99 - 0.995, 0.84 - 0.883)
    assert tow == pytest.approx(0.88555995, abs=5e-9)
    assert pytest.approx(0.760250, abs=5e-7) == AUC
    assert pytest.approx(0.691462, abs=5e-7) == BALANCED


def gaussian_rows(rng, models, rows):
    """Margins N(c + 1, 1) with the row and N(c, 1) without it, c of each row its own."""
    centre = rng.normal(0, 3, size=rows)
    inside = rng.random((models, rows)) < 0.5
    return centre, inside, centre + inside + rng.normal(size=(models, rows))


@pytest.mark.parametrize("models", [64, 256])
def test_lira_reaches_the_best_attack(models):
    """Area 0.7602, hit rate 9.2 % at 1 %; a threshold on the margin itself does not."""
    rng = np.random.default_rng(models)
    centre, inside, shadows = gaussian_rows(rng, models, 20_000)
    member = rng.random(20_000) < 0.5
    phi = centre + member + rng.normal(size=20_000)
    for scores in (
        lira.online(phi, shadows, inside),
        lira.offline(phi, shadows, inside),
    ):
        found = rmia.attack(scores[member], scores[~member])
        assert found.area.value == pytest.approx(AUC, abs=0.02)
        assert found.rates[0.01][0] == pytest.approx(0.0924, abs=0.02)
    plain = rmia.attack(phi[member], phi[~member]).area.value
    assert plain < AUC - 0.1


def test_rmia_on_the_same_rows():
    """References say how hard a row is: far better than the loss, close to the best attack."""
    rng = np.random.default_rng(2)
    rows = 6000
    centre = rng.normal(0, 3, size=rows)
    member = np.arange(rows) < 2000
    crowd = np.arange(rows) >= 4000
    p = centre + member + rng.normal(size=rows)
    references = centre + rng.normal(size=(16, rows))
    logs = [-np.logaddexp(0, -v) for v in (p, references)]
    f = rmia.log_ratios(logs[0], logs[1], a=1.0)
    scores = rmia.scores(f, f[crowd])
    found = rmia.attack(scores[member], scores[~member & ~crowd]).area.value
    loss = rmia.attack(logs[0][member], logs[0][~member & ~crowd]).area.value
    assert loss < 0.62
    assert 0.66 < found < AUC + 0.01
    a = rmia.tune(
        (logs[0][member], logs[1][:, member]),
        (logs[0][~member & ~crowd], logs[1][:, ~member & ~crowd]),
        (logs[0][crowd], logs[1][:, crowd]),
    )
    assert a in rmia.GRID


def test_rmia_leaves_references_out_that_saw_the_row():
    rng = np.random.default_rng(3)
    logs = np.log(rng.random((4, 5)))
    kept = np.array([[1, 0, 1, 1, 0], [0, 1, 0, 1, 0], [0, 0, 1, 1, 1], [0, 0, 0, 1, 1]], bool)
    found = rmia.log_ratios(np.zeros(5), logs, a=0.5, left_out=kept)
    for j in range(5):
        mean = np.exp(logs[kept[:, j], j]).mean()
        assert np.exp(-found[j]) == pytest.approx((1.5 * mean + 0.5) / 2)
    with pytest.raises(InvalidInput, match="trained without it"):
        rmia.log_ratios(np.zeros(5), logs, left_out=np.zeros((4, 5), bool))
    with pytest.raises(InvalidInput, match="models, 5 rows"):
        rmia.log_ratios(np.zeros(5), logs[0])
    assert np.isfinite(rmia.log_ratios([-1e-320], [[-745.0]], a=1.0)).all()


def test_ulira_reaches_the_best_accuracy_and_its_intervals_hold():
    """Laws N(1, 1) and N(0, 1): 69.1 %, area 0.760; equal laws: 50 %, tests at their level."""
    rng = np.random.default_rng(4)
    found = ulira.attack(rng.normal(1, 1, size=(256, 20)), rng.normal(0, 1, size=(256, 20)), rng)
    assert found.accuracy == pytest.approx(BALANCED, abs=0.02)
    assert np.mean([row.area for row in found.rows]) == pytest.approx(AUC, abs=0.02)
    assert np.mean([row.held_out for row in found.rows]) == pytest.approx(BALANCED, abs=0.02)
    assert found.p < 0.05
    rows = [
        ulira.tell_apart(rng.normal(size=64), rng.normal(size=64), rng, relabellings=99)
        for _ in range(400)
    ]
    assert np.mean([row.accuracy for row in rows]) == pytest.approx(0.5, abs=0.015)
    most = binom.ppf(0.999, 400, 0.05)
    assert sum(row.p <= 0.05 for row in rows) <= most
    assert sum(not row.ci[0] <= 0.5 <= row.ci[1] for row in rows) <= most
    naive = [rmia.clopper_pearson(round(row.accuracy * 128), 128) for row in rows]
    assert sum(not low <= 0.5 <= high for low, high in naive) > binom.ppf(0.99, 400, 0.06)


def test_ulira_sees_a_change_of_spread_and_needs_runs():
    rng = np.random.default_rng(5)
    found = ulira.tell_apart(rng.normal(0, 3, 128), rng.normal(0, 1, 128), rng)
    assert found.accuracy > 0.65
    assert found.p < 0.01
    with pytest.raises(InvalidInput, match="at least 8"):
        ulira.tell_apart([1.0], [2.0], rng)
    with pytest.raises(InvalidInput, match="equally many"):
        ulira.tell_apart(np.ones(8), np.ones(9), rng)


def test_memorisation():
    inside = np.array([[1, 0], [0, 1], [1, 1], [0, 0]], bool)
    correct = np.array([[1, 0], [0, 1], [1, 1], [0, 1]])
    assert lira.memorisation(correct, inside) == pytest.approx([1.0, 0.5])
    assert ulira.most_memorised([0.1, 0.9, 0.5], 2) == [1, 2]
    with pytest.raises(InvalidInput, match="with it and one without"):
        lira.memorisation(correct, np.ones_like(inside))
    with pytest.raises(InvalidInput, match="two shadow models"):
        lira.online([0.0, 0.0], correct, inside[:, ::-1] & inside)


def planted(rng, n, shift):
    """Return answers on rows whose true label is raised by ``shift``, classes equally likely."""
    logits = rng.normal(size=(n, 3))
    y = rng.integers(3, size=n)
    logits[np.arange(n), y] += shift
    return outputs_of(logits, y)


def test_population_attack():
    rng = np.random.default_rng(6)
    S, T = planted(rng, 200, 1.0), planted(rng, 1000, 1.0)
    assert population.loss_attack(S, T).p > 0.01
    over, under = planted(rng, 200, 0.3), planted(rng, 200, 2.0)
    assert population.loss_attack(over, T).value < 0.5
    assert population.loss_attack(under, T).value > 0.5
    assert max(population.loss_attack(x, T).p for x in (over, under)) < 1e-3
    users = np.repeat(np.arange(20), 10), np.repeat(np.arange(100), 10)
    clustered = population.loss_attack(under, T, users=users, rng=rng)
    assert clustered.ci[0] < clustered.value < clustered.ci[1]
    assert clustered.p < 1e-3


def test_support_vectors_and_the_label_permutation():
    """The published modified entropy does not change when labels are permuted: its area is 1/2."""
    rng = np.random.default_rng(7)
    S, R, T = planted(rng, 100, 1.2), planted(rng, 400, 1.2), planted(rng, 300, 0.8)
    score = {
        v: lambda o, v=v: svc.feature(o, "modified-entropy", v) for v in ("correct", "published")
    }
    assert svc.depends_on_labels(score["correct"], T, rng)
    assert not svc.depends_on_labels(score["published"], T, rng)
    assert not svc.depends_on_labels(lambda o: o.entropy, T, rng)
    areas = {v: rmia.attack(-f(R), -f(T), rates=()).area.value for v, f in score.items()}
    assert areas["correct"] > 0.55
    assert areas["published"] < areas["correct"] - 0.04
    for name in ("correctness", "confidence", "entropy", "modified-entropy", "probabilities"):
        assert 0 <= svc.efficacy(S, R, T, name) <= 1
    assert svc.training_privacy(R, T, "confidence") > 0.5
    assert svc.efficacy(T, R, T) > svc.efficacy(R, R, T)
    with pytest.raises(InvalidInput, match="one of correctness"):
        svc.efficacy(S, R, T, "colour")
    with pytest.raises(InvalidInput, match="one class"):
        svc.depends_on_labels(score["correct"], T.relabelled(np.zeros(300, int)), rng)


def test_fidelity_against_scikit_learn():
    from sklearn.metrics import f1_score

    rng = np.random.default_rng(8)
    first, second = planted(rng, 400, 1.0), planted(rng, 400, 1.0)
    assert fidelity.macro_f1(first) == pytest.approx(
        f1_score(first.y, first.predicted, average="macro")
    )
    low, high = fidelity.macro_f1_interval(first, rng)
    same = fidelity.macro_f1_interval(first, rng, np.arange(400))
    assert low < fidelity.macro_f1(first) < high
    assert same == pytest.approx((low, high), abs=0.01)
    other = second.relabelled(first.y)
    assert fidelity.divergence(first, first) == pytest.approx(np.zeros(400))
    assert (fidelity.divergence(first, other) >= 0).all()
    p, q = other.p, first.p
    assert fidelity.divergence(first, other) == pytest.approx((p * np.log(p / q)).sum(axis=1))
    with pytest.raises(InvalidInput, match="same rows"):
        fidelity.gap(first, [second], rng)
