"""Exact retraining of small logistic models: every test rejects at its level, no more."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from scipy.stats import binom

from audit_beds import Noisy, draw
from expunge.audit import attacks, suite
from expunge.audit.parts import Data
from expunge.audit.suite import run


def problem(seed, sigma=0.3):
    rng = np.random.default_rng(seed)
    bed = Noisy(l2=0.5, sigma=sigma)
    data = Data(*(draw(rng, n, 6) for n in (50, 80, 150, 80)))
    return bed, data


def tally(count, rate, repeats):
    return count <= binom.ppf(0.999, repeats, rate)


def test_level_of_bands_and_tests():
    """200 problems, each with five oracles and a retrain for candidate."""
    repeats, out, void = 200, Counter(), Counter()
    for seed in range(repeats):
        bed, data = problem(seed)
        models = [bed.train(data.retain, 100 * seed + k) for k in range(10)]
        setting = suite._setting(
            data, models[0], models[1:6], None, references=suite.views(models[6:])
        )
        for metric in (*attacks.loss_attack(setting), *attacks.ratio_attack(setting)):
            out[metric.name] += metric.in_band is False
            void[metric.name] += metric.status == "void"
    assert set(out) == {"loss-auc", "loss-test", "rmia-auc[S]"}
    for name, count in out.items():
        assert tally(count, 0.05, repeats), (name, count)
        assert tally(void[name], 0.05, repeats), (name, void[name])
    assert out["loss-auc"] >= binom.ppf(0.001, repeats, 0.05)


FAMILIES = ("utility", "agreement", "loss", "svc", "rmia", "lira", "zrf", "confusion", "poison")


@pytest.mark.slow
@pytest.mark.parametrize(("families", "repeats"), [(FAMILIES, 200), (("klom", "ulira"), 200)])
def test_level_of_the_suite(families, repeats):
    """Flags of an exact retrain, by metric: at most those of tests at 5 %."""
    out = Counter()
    for seed in range(repeats):
        bed, data = problem(seed)
        models = [bed.train(data.retain, 100 * seed + k) for k in range(22)]
        report = run(
            models[0], models[1:6], data, references=models[6:], pipeline=bed.exact(),
            untrained=[lambda X: np.zeros((len(X), 2))], runs=16, seed=seed, metrics=families,
        )  # fmt: skip
        for metric in report.metrics:
            out[metric.name] += metric.flagged
    print(dict(out.most_common()))
    for name, count in out.items():
        assert tally(count, 0.05, repeats), (name, count)
