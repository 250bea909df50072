"""A life of deletions without a retrain: ``python -m bench.lifetime [--quick]``.

10,000 of the 12,000 pullovers and shirts of Fashion-MNIST ask to be forgotten, one after the other,
under one guarantee for all releases. Prints ``name<TAB>value<TAB>unit`` lines.
"""

from __future__ import annotations

import argparse
import time
from collections import Counter
from dataclasses import dataclass

import numpy as np
from sklearn.base import clone

from bench.convex import Case, fashion, show
from expunge.guarantee import epsilon_of
from expunge.linear import LogisticRegression
from expunge.linear.lineage import Step
from expunge.linear.rows import Rows


@dataclass(frozen=True)
class Stop:
    """An audit after ``deleted`` deletions: the model against a noiseless retrain.

    ``mu`` is its distance over σ; ``accuracy`` the mean over draws of the noise of a release;
    ``accuracy_optimum`` that of the retrained minimiser, without noise.
    """

    deleted: int
    mu: float
    accuracy: float
    accuracy_optimum: float


@dataclass(frozen=True)
class Life:
    """What a life of deletions showed; distances and μ are an auditor's knowledge.

    Accuracies are means over draws of the noise, of the last release and of a retrain's.
    """

    seconds: float
    releases: int
    accuracy: float
    accuracy_retrained: float
    mu_per_release: float
    spent: float
    cap: float
    paths: dict[str, int]
    stops: tuple[Stop, ...]

    @property
    def worst_mu(self) -> float:
        """Largest distance to a retrain, over σ."""
        return max(stop.mu for stop in self.stops)


def live(
    case: Case,
    count: int,
    checks: int,
    sigma: float,
    seed: int | None = None,
    **options: float,
) -> Life:
    """Delete ``count`` rows one by one; retrain at ``checks`` points to see the truth.

    A ``seed`` makes the noise repeatable, for tests; ``options`` are the estimator's.
    """
    fresh = LogisticRegression(sigma=sigma, releases=count + 1, random_state=seed, **options)
    model = clone(fresh).fit(case.X, case.y)
    rows = model.rows(case.X, case.y)
    order = np.random.default_rng(0).permutation(len(case.y))[:count]
    due = set(np.linspace(0, count, checks + 1, dtype=int)[1:] - 1)
    stops = [audit(case, model, model, 0)]
    seconds, paths = 0.0, Counter[str]()
    for t, i in enumerate(order):
        start = time.perf_counter()
        step = delete(model, rows, i)
        seconds += time.perf_counter() - start
        paths[step.trace.path] += 1
        if t in due:
            keep = np.setdiff1d(np.arange(len(case.y)), order[: t + 1])
            fresh.fit(case.X[keep], case.y[keep])
            stops.append(audit(case, model, fresh, t + 1))
    return Life(
        seconds,
        model._lineage.number,
        accuracy(case, model._lineage.state.weights, sigma, 1),
        accuracy(case, fresh._lineage.state.weights, sigma, 2),
        model.policy_.mu_per_release,
        step.published.statement.budget.mu_squared_spent,
        step.published.statement.budget.mu_squared_cap,
        dict(paths),
        tuple(stops),
    )


def delete(model: LogisticRegression, rows: Rows, row: int) -> Step:
    """Delete one row, from ``rows`` too, with its release and certificate."""
    lineage, index = model._lineage, np.array([row])
    forget = rows.take(index)
    rows.drop(index)
    noise = model._source(lineage.policy, lineage.number + 1)
    step = lineage.prepare(forget, noise, retained=rows)
    lineage.accept(step)
    return step


def audit(case: Case, model: LogisticRegression, fresh: LogisticRegression, deleted: int) -> Stop:
    """Compare a model with ``fresh``, trained on what it retains."""
    ours, truth, sigma = model._lineage.state.weights, fresh._lineage.state.weights, model.sigma
    moved = float(np.linalg.norm(ours - truth))
    released = accuracy(case, ours, sigma, seed=3, draws=1000)
    return Stop(deleted, moved / sigma, released, accuracy(case, truth, 0.0, seed=3, draws=1))


def accuracy(case: Case, weights: np.ndarray, sigma: float, seed: int, draws: int = 100) -> float:
    """Return the mean accuracy of ``draws`` releases; one release is right by luck of its noise.

    A row of ``weights`` (p, 1) beyond the features is the intercept.
    """
    noise = np.random.default_rng(seed).standard_normal((len(weights), draws))
    W, d = weights + sigma * noise, case.X_test.shape[1]
    scores = case.X_test @ W[:d] + W[d:].sum(axis=0)
    return float(((scores > 0) == case.y_test[:, None]).mean())


def main() -> None:
    """Run it and print what came out."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="500 deletions")
    life = live(fashion(), 500 if parser.parse_args().quick else 10_000, 10, sigma=0.01)
    show("lifetime", "deletions", value=life.releases - 1, unit="deletions")
    show("lifetime", "each", value=life.seconds / (life.releases - 1), unit="s")
    show("lifetime", "accuracy", value=life.accuracy, unit="fraction")
    show("lifetime", "accuracy_retrained", value=life.accuracy_retrained, unit="fraction")
    show("lifetime", "mu_realised_worst", value=life.worst_mu, unit="mu, one release")
    show("lifetime", "mu_certified", value=life.mu_per_release, unit="mu, one release")
    total = epsilon_of(life.mu_per_release * life.releases**0.5, 1e-6)
    show("lifetime", "epsilon_certified", value=total, unit="epsilon, all releases")
    show("lifetime", "budget_spent", value=life.spent / life.cap, unit="fraction")
    for path, times in life.paths.items():
        show("lifetime", f"path_{path}", value=times, unit="deletions")


if __name__ == "__main__":
    main()
