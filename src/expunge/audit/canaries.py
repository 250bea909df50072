"""Canaries for claims about sets: which row of each pair was trained on and deleted?

Base rows B stay. Of each of k pairs of canaries a secret fair coin includes one; the model is
trained on B and the k included rows, these are deleted in one request, and the release θ comes
back. Number of rows, their order, hyper-parameters and whatever is fitted and kept must not depend
on the coins. One contrast a pair is computed from θ, never from the coins, and signed by them:
under the comparator the signs are fair (`expunge.audit.signed_rank`).

What this sees is the contrast within pairs; a shift common to all canaries it does not see.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from expunge.audit import signed_rank
from expunge.audit.intervals import ALPHA, Array
from expunge.errors import InvalidInput

Signs = NDArray[np.int64]
SPREAD = 0.3
"""Length of the noise that makes a canary of a data row, in units of the row's length."""


def coins(pairs: int, rng: np.random.Generator) -> Signs:
    """Return fair signs (k,): +1 includes the first row of a pair, −1 the second."""
    return 2 * rng.integers(2, size=pairs) - 1


@dataclass(frozen=True, repr=False)
class Pairs:
    """Pairs of canaries.

    Attributes
    ----------
    X : (k, 2, d) float64
    y : (k,) or (k, C) array
        The label, or target, of both rows of a pair.
    """

    X: Array
    y: NDArray[Any]

    def __len__(self) -> int:
        """Number of pairs."""
        return len(self.y)

    def included(self, signs: Signs) -> tuple[Array, NDArray[Any]]:
        """Return the rows (k, d) and labels (k,) that these coins include."""
        return self.X[np.arange(len(self)), (1 - signs) // 2], self.y


def plant(
    X: ArrayLike, y: ArrayLike, pairs: int, rng: np.random.Generator, spread: float = SPREAD
) -> Pairs:
    """Return pairs made of data rows, noise added, brought back to their length, labels random.

    Parameters
    ----------
    X : (n, d) array_like
        Rows of the data; they may be in B as well, since the noise makes other rows of them.
    y : (n,) or (n, C) array_like
        Their labels or targets, from which those of the pairs are drawn.
    """
    rows, known = np.asarray(X, dtype=np.float64), np.asarray(y)
    if rows.ndim != 2 or not len(rows) or len(known) != len(rows) or pairs < 1:
        raise InvalidInput(
            f"expected rows (n, d), a label each and at least one pair, got {rows.shape}, "
            f"{known.shape} and {pairs}"
        )
    start = rows[rng.integers(len(rows), size=(pairs, 2))]
    length = np.linalg.norm(start, axis=2, keepdims=True)
    noise = rng.normal(size=start.shape) * (spread / np.sqrt(rows.shape[1]))
    moved = start + length * noise
    moved *= length / np.maximum(np.linalg.norm(moved, axis=2, keepdims=True), 1e-300)
    return Pairs(moved, known[rng.integers(len(rows), size=pairs)])


@dataclass(frozen=True, repr=False)
class Decoder:
    """Contrasts decoded from released parameters by ridge regression on a fault's response.

    Attributes
    ----------
    base : (p,) float64
        The noise-free fit on B.
    operator : (k, p) float64
        From ``θ − base`` to the contrasts β̂.
    """

    base: Array
    operator: Array

    def contrasts(self, release: Array, signs: Signs) -> Array:
        """Return ``b_j β̂_j`` (k,)."""
        moved = np.asarray(release, dtype=np.float64).ravel() - self.base
        return np.asarray(signs * (self.operator @ moved))


def decoder(
    fault: Callable[[Signs], Array],
    base: Array,
    pairs: int,
    sigma: float,
    rng: np.random.Generator,
) -> Decoder:
    """Calibrate on the failure to be detected: k + 1 noise-free runs of it.

    Parameters
    ----------
    fault : callable
        From coins to the unnoised output of the faulty pipeline: by default training itself, which
        is what comes out where nothing is deleted.
    base : (p, ...) float64
        The noise-free fit on B.
    pairs : int
        k, with k + 1 ≤ p.
    sigma : float
        Standard deviation of the noise of a release; its square is the penalty.
    rng : Generator
        Draws coins of its own, independent of those of the audit.
    """
    if pairs + 1 > base.size:
        raise InvalidInput(
            f"{pairs} contrasts and their common shift need as many parameters, got {base.size}"
        )
    own = coins(pairs, rng)
    flat, still = base.ravel(), fault(own).ravel()
    effects = np.empty((flat.size, pairs + 1))
    for j in range(pairs):
        flipped = own.copy()
        flipped[j] = -own[j]
        effects[:, j] = own[j] * (still - fault(flipped).ravel()) / 2
    effects[:, -1] = still - effects[:, :-1] @ own - flat
    stacked = np.vstack([effects, sigma * np.eye(pairs + 1)])
    target = np.vstack([np.eye(flat.size), np.zeros((pairs + 1, flat.size))])
    solved = np.linalg.lstsq(stacked, target, rcond=None)[0]
    return Decoder(flat, np.asarray(solved[:pairs], dtype=np.float64))


def margin_contrasts(margins: ArrayLike, references: ArrayLike, signs: Signs) -> Array:
    """Return contrasts for a black box: margins less their mean over retrains on B.

    Parameters
    ----------
    margins : (k, 2) array_like
        Of the release, on both rows of each pair.
    references : (m, k, 2) array_like
        Of m ≥ 4 models trained on B. Without them the audit has almost no power.
    """
    own, others = np.asarray(margins, float), np.asarray(references, float)
    if own.shape != (len(signs), 2) or others.ndim != 3 or others.shape[1:] != own.shape:
        raise InvalidInput(
            f"expected margins ({len(signs)}, 2) and (m, {len(signs)}, 2), got {own.shape} and "
            f"{others.shape}"
        )
    calibrated = own - others.mean(axis=0)
    return np.asarray(signs * (calibrated[:, 0] - calibrated[:, 1]))


@dataclass(frozen=True)
class Outcome:
    """What R independent runs with fresh coins show, each bound at confidence 1 − alpha.

    Attributes
    ----------
    epsilon, mu : float
        Lower bounds; they hold one at a time, not together.
    p : tuple of float
        One a run; randomised where there are several runs.
    pairs : int
    """

    epsilon: float
    mu: float
    p: tuple[float, ...]
    pairs: int

    @property
    def runs(self) -> int:
        """Number of runs."""
        return len(self.p)


def measure(
    contrasts: Callable[[Signs, int], Array],
    *,
    pairs: int,
    runs: int,
    delta: float,
    rng: np.random.Generator,
    alpha: float = ALPHA,
) -> Outcome:
    """Run the audit: coins, contrasts, exact p-values, bounds.

    Parameters
    ----------
    contrasts : callable
        From coins and a seed to signed contrasts: trains, deletes, and decodes one release.
    """
    found = []
    for _ in range(runs):
        signs = coins(pairs, rng)
        seed = int(rng.integers(2**63))
        found.append(signed_rank.signed_rank(contrasts(signs, seed), rng))
    if runs == 1:
        p = found[0].p
        epsilon = signed_rank.epsilon_of_p(p, delta=delta, alpha=alpha)
        return Outcome(epsilon, signed_rank.mu_of_p(p, alpha=alpha), (p,), pairs)
    uniform = [one.randomised(float(rng.random())) for one in found]
    hits = sum(p <= signed_rank.HIT_LEVEL for p in uniform)
    epsilon = signed_rank.hits_bound(hits, runs, delta=delta, alpha=alpha)
    return Outcome(epsilon, signed_rank.pooled_mu(uniform, alpha=alpha), tuple(uniform), pairs)
