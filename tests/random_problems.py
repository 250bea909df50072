"""Random problems and deletions, and the property that every engine path must have."""

from __future__ import annotations

import numpy as np

from expunge.errors import NeedsRetainedData, ToleranceUnreachable
from expunge.linear.engine import fit, unlearn
from expunge.linear.rows import make_rows
from oracles import minimiser

REGRESSION = ("squared", "poisson", "gamma", "huber")
KINKED = ("squared-hinge", "huber")


def problem(seed, loss):
    """A random problem, often an ugly one: separable, duplicated, scaled, wide, weighted."""
    rng = np.random.default_rng(seed)
    n, d, K = int(rng.integers(6, 60)), int(rng.integers(1, 12)), int(rng.integers(2, 5))
    X = rng.standard_normal((n, d))
    if rng.random() < 0.3:
        X *= 10.0 ** rng.uniform(-4, 4)
    if rng.random() < 0.3:
        X *= 10.0 ** rng.uniform(-2, 2, size=d)
    if rng.random() < 0.2:
        X[:, : max(1, d // 2)] = X[:, -1:]
    if rng.random() < 0.3:
        X[n // 2 :] = X[: n - n // 2]
    score = X @ rng.standard_normal((d, K)) * rng.choice([0.0, 1.0, 30.0])
    score += rng.standard_normal((n, K)) * rng.choice([0.0, 1.0])
    label = score.argmax(axis=1)
    label[:K] = np.arange(K)
    if loss == "logistic":
        target = np.where(label == 0, 1.0, -1.0)[:, None]
    elif loss == "softmax":
        target = np.eye(K)[label]
    elif loss in ("logistic-ovr", "squared-hinge"):
        target = 2.0 * np.eye(K)[label] - 1.0
    elif loss in ("squared", "huber"):
        target = score * 10.0 ** rng.uniform(-3, 3)
    else:
        mean = np.exp(np.clip(score[:, :1], -5, 5))
        target = rng.poisson(mean) * 1.0 if loss == "poisson" else mean * rng.gamma(2, 0.5, (n, 1))
    weight = rng.uniform(0.1, 3.0, n) if rng.random() < 0.3 else np.ones(n)
    if rng.random() < 0.3:
        weight = np.where(np.arange(n) < 6, weight, weight * rng.integers(0, 2, n))
    return (
        X,
        target,
        weight,
        10.0 ** rng.uniform(-3, 2),
        bool(rng.integers(0, 2)) and loss not in KINKED,
        rng,
    )


def deletions(rng, alive, target, loss):
    """A few requests of one row or many, never the last row of a class."""
    for _ in range(int(rng.integers(1, 4))):
        left = np.flatnonzero(alive)
        size = 1 if rng.random() < 0.5 else int(rng.integers(1, max(2, len(left))))
        gone = rng.choice(left, size=min(size, len(left) - 1), replace=False)
        after = alive.copy()
        after[gone] = False
        labels = target[after] > 0
        counts = labels.sum(axis=0)
        if loss not in REGRESSION and (counts.min() < 1 or (~labels).sum(axis=0).min() < 1):
            continue
        if len(gone):
            alive = after
            yield gone


def assert_no_understatement(seed, loss, *, l1=False):
    """Fit and delete on a random problem: no distance to the truth exceeds its stated bound.

    Return how many states were compared with the truth. The oracle gives up on some problems with
    kinks.
    """
    X, target, weight, l2, intercept, rng = problem(seed, loss)
    tolerance = 10.0 ** rng.uniform(-6, -1)
    nu = 10.0 ** rng.uniform(-3, 2) if l1 else 0.0
    rows, classes = make_rows(X, target, weight, intercept=intercept), loss not in REGRESSION
    try:
        state, _ = fit(rows, loss=loss, l2=l2, l1=nu, tolerance=tolerance, classes=classes)
    except ToleranceUnreachable:
        return 0
    alive, compared = weight > 0, 0
    for gone in deletions(rng, alive, target, loss):
        alive[gone] = False
        left = rows.without(~alive)
        try:
            free = unlearn(state, rows.take(gone))[0]
        except (NeedsRetainedData, ToleranceUnreachable):
            free = None
        try:
            state, _ = unlearn(state, rows.take(gone), left)
        except ToleranceUnreachable:
            return compared
        try:
            truth = minimiser(X[alive], target[alive], weight[alive], loss, l2, intercept, nu)
        except AssertionError:
            if loss in KINKED or l1:
                return compared
            raise
        for found in (state, free):
            if found is not None:
                distance = np.linalg.norm(found.weights - truth)
                assert distance <= found.bound + 1e-13 * np.linalg.norm(truth)
                assert found.bound <= tolerance
                compared += 1
    return compared
