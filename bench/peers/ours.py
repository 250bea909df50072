"""Our deletions, timed one by one, in a process of its own."""

from __future__ import annotations

import time
from dataclasses import dataclass

import numpy as np

from bench.convex import Case, timed
from bench.peers.setting import Setting
from expunge.linear.engine import unlearn


@dataclass(frozen=True)
class Ours:
    """Seconds of training, of matching the rows once, and of each deletion; weights without noise.

    ``released`` is all of ``unlearn``: input checks, members, engine, noise, model file,
    certificate. ``engine`` is the deletion alone. ``covered`` is how many the claim covers.
    """

    fit: float
    match: float
    released: np.ndarray
    engine: np.ndarray
    before: np.ndarray
    after: np.ndarray
    covered: int


def removals(case: Case, setting: Setting, order: np.ndarray) -> Ours:
    """Delete the rows in ``order`` one by one, once with a release each and once without."""
    model, X, y = setting.estimator(case), case.X, case.y
    fit = timed(lambda: model.fit(X, y))
    state, before = model._lineage.state, model._lineage.state.weights
    live, again = model.rows(X, y), model.rows(X, y)
    match = timed(lambda: model._lineage.match(live))
    released, engine = [], []
    for i in order:
        start = time.perf_counter()
        live.drop(np.array([i]))
        model.unlearn(X[i : i + 1], y[i : i + 1], retained=live)
        released.append(time.perf_counter() - start)
    for i in order:
        row = again.take(np.array([i]))
        start = time.perf_counter()
        again.drop(np.array([i]))
        state, _ = unlearn(state, row, again)
        engine.append(time.perf_counter() - start)
    return Ours(
        fit,
        match,
        np.array(released),
        np.array(engine),
        before,
        model._lineage.state.weights,
        min(setting.releases, len(y)) - 1,
    )
