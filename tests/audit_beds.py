"""Small beds with known answers for audits: exact retraining of logistic models, and Gaussians."""

from __future__ import annotations

import numpy as np
from scipy.special import expit

from expunge.audit.parts import Part
from expunge.audit.setting import Pipeline

CLASSES = np.array([0, 1])


class Linear:
    """A released binary linear model; what scikit-learn's would show."""

    classes_ = CLASSES

    def __init__(self, w):
        self.coef_ = w[None]

    def decision_function(self, X):
        return X @ self.coef_[0]


def fit_logistic(X, y, l2, steps=12):
    """Return the minimiser of the sum objective by Newton's method; labels 0 and 1."""
    w = np.zeros(X.shape[1])
    for _ in range(steps):
        p = expit(X @ w)
        H = (X * (p * (1 - p))[:, None]).T @ X + l2 * np.eye(len(w))
        w = w - np.linalg.solve(H, X.T @ (p - y) + l2 * w)
    return w


def draw(rng, n, d=8, flip=0.2):
    """Return rows of two classes, wrong labels among them: there is what to memorise."""
    y = rng.integers(2, size=n)
    X = rng.normal(size=(n, d)) + 0.5 * (2 * y[:, None] - 1) / np.sqrt(d)
    return Part(X, np.where(rng.random(n) < flip, 1 - y, y))


class Noisy:
    """Exact logistic regression released with N(0, sigma²) on every weight."""

    def __init__(self, l2=0.1, sigma=0.05):
        self.l2, self.sigma, self.known = l2, sigma, {}

    def minimiser(self, rows):
        key = (rows.X.tobytes(), rows.y.tobytes())
        if key not in self.known:
            self.known[key] = fit_logistic(rows.X, rows.y, self.l2)
        return self.known[key]

    def train(self, rows, seed):
        w = self.minimiser(rows)
        return Linear(w + self.sigma * np.random.default_rng(seed).normal(size=len(w)))

    def retrain(self, model, forget, retain, seed):
        return self.train(retain, seed + 1_000_003)

    def nothing(self, model, forget, retain, seed):
        return model

    def exact(self):
        return Pipeline(self.train, self.retrain, {"unlearn": "retrain"})

    def noop(self):
        return Pipeline(self.train, self.nothing, {"unlearn": "nothing"})
