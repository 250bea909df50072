"""Thousands of deletions under one guarantee, without a retrain."""

from __future__ import annotations

import numpy as np
import pytest
from bench.convex import Case, fashion
from bench.lifetime import live
from sklearn.datasets import load_digits

from expunge.errors import DataMissing


def digits() -> Case:
    X, y = load_digits(return_X_y=True)
    X = X / np.linalg.norm(X, axis=1, keepdims=True)
    y = (y > 4).astype(int)
    return Case("digits", X[:1200], y[:1200], X[1200:], y[1200:], sigma=0.001)


def check(case: Case, count: int) -> None:
    life = live(case, count, checks=5, sigma=case.sigma, seed=0)
    assert life.releases == count + 1
    assert life.worst_mu <= life.mu_per_release
    assert life.spent <= life.cap * (1 + 1e-12)
    assert abs(life.accuracy - life.accuracy_retrained) <= 0.001


def test_a_thousand_of_twelve_hundred():
    check(digits(), 1000)


@pytest.mark.slow
def test_ten_thousand_of_twelve_thousand():
    try:
        case = fashion()
    except DataMissing as error:
        pytest.skip(str(error))
    check(case, 10_000)
