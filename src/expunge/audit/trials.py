"""The statistical tests of a claim: runs against runs, canaries, and any exact p-value.

Each can be run on the candidate, on retraining (which has to pass) and on a pipeline that deletes
nothing (which should not).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from expunge.audit import canaries, lower_bounds, power, signed_rank
from expunge.audit.canaries import Signs
from expunge.audit.findings import Claim, Finding, Subject, Trial
from expunge.audit.intervals import Array
from expunge.errors import InvalidInput
from expunge.guarantee import Access

_T = TypeVar("_T")

Release = Callable[[int], Array]
"""From a seed to a release, independent from seed to seed."""


@dataclass(frozen=True)
class UnlearnVersusRetrain:
    """Independent runs of unlearning against independent runs of retraining.

    Attributes
    ----------
    unlearn, retrain : callable
        From a seed to a release (parameters, or outputs on fixed rows). Unlearning trains afresh
        unless training is deterministic.
    score : callable
        From a release to a number; sign and threshold are chosen on selection runs.
    nothing : callable or None
        The same for a pipeline that deletes nothing.
    runs : int
        Evaluation runs of each side; half as many again select.
    """

    unlearn: Release
    retrain: Release
    score: Callable[[Array], float]
    nothing: Release | None = None
    runs: int = 1000
    access: Access = "weights"
    name: str = "unlearnVersusRetrain"

    @property
    def subjects(self) -> tuple[Subject, ...]:
        """See `Trial`."""
        return _subjects(self.nothing)

    def run(
        self, claim: Claim, alpha: float, subject: Subject, rng: np.random.Generator
    ) -> Finding:
        """Run both sides and bound ε and μ."""
        make = _chosen(subject, self.unlearn, self.retrain, self.nothing)
        selection = max(1, self.runs // 2)
        sides = [
            [side(int(seed)) for seed in rng.integers(2**63, size=self.runs + selection)]
            for side in (self.retrain, make)
        ]
        by = "epsilon" if claim.form == "epsilon" else "mu"
        found = lower_bounds.split_bound(
            *([self.score(release) for release in side] for side in sides),
            selection=selection,
            delta=claim.delta,
            by=by,
            alpha=alpha,
        )
        best = lower_bounds.ceiling(self.runs, delta=claim.delta, alpha=alpha)
        fault = ""
        noisy = self.access == "weights" and claim.form != "exact"
        if noisy and any(map(lower_bounds.degenerate, sides)):
            fault = "degenerate noise: two runs of one side released the same to the bit"
        return self._finding(claim, alpha, found, best, fault)

    def _finding(
        self,
        claim: Claim,
        alpha: float,
        found: lower_bounds.Bound,
        best: lower_bounds.Bound,
        fault: str,
    ) -> Finding:
        bound = claim.pick(found.epsilon, found.mu)
        told = f"{self.runs} runs a side show at least {bound:.3g} of {claim.limit():.3g} claimed"
        return Finding(
            self.name,
            bool(fault) or claim.refuted(found.epsilon, found.mu),
            fault or told,
            share=alpha,
            statistic=1 - (found.false_positives + found.false_negatives) / (2 * found.runs),
            bound=bound,
            ceiling=claim.pick(best.epsilon, best.mu),
            detectable_mu=power.detectable_mu(
                self.runs,
                claim_mu=claim.mu,
                claim_epsilon=claim.epsilon,
                delta=claim.delta,
                alpha=alpha,
            ),
            access=self.access,
        )


def likelihood_ratio(unlearned: Array, retrained: Array) -> Callable[[Array], float]:
    """Return the best score for Gaussian output: along w̄_u − w̃_r, from noise-free runs."""
    direction = (unlearned - retrained).ravel()
    length = float(np.linalg.norm(direction))
    unit = direction / length if length else direction
    return lambda release: float((release.ravel() - retrained.ravel()) @ unit)


Contrasts = Callable[[Signs, int], Array]
"""From coins and a seed to the signed contrasts of one run."""


@dataclass(frozen=True)
class Canaries:
    """Pairs of canaries, see `expunge.audit.canaries`.

    Attributes
    ----------
    unlearn, retrain, nothing : callable
        Train on base rows and included canaries, delete the canaries, decode; train on the base
        rows alone; train and delete nothing.
    pairs, runs : int
    """

    unlearn: Contrasts
    retrain: Contrasts
    nothing: Contrasts | None = None
    pairs: int = 25
    runs: int = 20
    access: Access = "weights"
    name: str = "canaries"

    @property
    def subjects(self) -> tuple[Subject, ...]:
        """See `Trial`."""
        return _subjects(self.nothing)

    def run(
        self, claim: Claim, alpha: float, subject: Subject, rng: np.random.Generator
    ) -> Finding:
        """Run the audit and bound ε and μ.

        Raises
        ------
        InvalidInput
            If the claim does not cover as many deletions as there are pairs.
        """
        if self.pairs > claim.deletions:
            raise InvalidInput(
                f"{self.pairs} pairs delete as many records, the claim covers {claim.deletions}"
            )
        contrasts = _chosen(subject, self.unlearn, self.retrain, self.nothing)
        found = canaries.measure(
            contrasts, pairs=self.pairs, runs=self.runs, delta=claim.delta, rng=rng, alpha=alpha
        )
        return _from_coins(self, claim, alpha, found, 2.0**-self.pairs)


@dataclass(frozen=True)
class ExactP:
    """Any p-value that is exact given the release, such as that of planted Gaussian noise.

    Attributes
    ----------
    unlearn, retrain, nothing : callable
        From a seed to p.
    least : float
        The smallest p there can be: 1/(N + 1) for N Monte Carlo draws; 0 for a Gaussian statistic.
    """

    name: str
    unlearn: Callable[[int], float]
    retrain: Callable[[int], float]
    nothing: Callable[[int], float] | None = None
    least: float = 0.0
    access: Access = "weights"

    @property
    def subjects(self) -> tuple[Subject, ...]:
        """See `Trial`."""
        return _subjects(self.nothing)

    def run(
        self, claim: Claim, alpha: float, subject: Subject, rng: np.random.Generator
    ) -> Finding:
        """Draw one p-value and bound ε and μ."""
        p = _chosen(subject, self.unlearn, self.retrain, self.nothing)(int(rng.integers(2**63)))
        epsilon = signed_rank.epsilon_of_p(p, delta=claim.delta, alpha=alpha)
        found = canaries.Outcome(epsilon, signed_rank.mu_of_p(p, alpha=alpha), (p,), 0)
        return _from_coins(self, claim, alpha, found, self.least)


def _from_coins(
    test: Trial, claim: Claim, alpha: float, found: canaries.Outcome, least: float
) -> Finding:
    runs, bound = found.runs, claim.pick(found.epsilon, found.mu)
    hits = sum(p <= alpha for p in found.p)
    top = _ceiling(claim, alpha, runs, least)
    return Finding(
        test.name,
        claim.refuted(found.epsilon, found.mu),
        f"{hits} of {runs} run(s) have p ≤ {alpha:g}; they show at least {bound:.3g} of "
        f"{claim.limit():.3g} claimed",
        share=alpha,
        statistic=found.p[0] if runs == 1 else float(np.mean(found.p)),
        bound=bound,
        ceiling=top,
        detectable_mu=signed_rank.detectable_mu(
            runs=runs,
            claim_mu=claim.mu,
            claim_epsilon=claim.epsilon,
            delta=claim.delta,
            alpha=alpha,
        ),
        access=test.access,
    )


def _ceiling(claim: Claim, alpha: float, runs: int, least: float) -> float | None:
    if runs == 1:
        best = (
            signed_rank.epsilon_of_p(least, delta=claim.delta, alpha=alpha),
            signed_rank.mu_of_p(least, alpha=alpha),
        )
    else:
        best = (
            signed_rank.hits_bound(runs, runs, delta=claim.delta, alpha=alpha),
            signed_rank.pooled_mu([least] * runs, alpha=alpha),
        )
    found = claim.pick(*best)
    return found if math.isfinite(found) else None


def _subjects(nothing: object) -> tuple[Subject, ...]:
    return ("candidate", "retrain") if nothing is None else ("candidate", "retrain", "nothing")


def _chosen(subject: Subject, unlearn: _T, retrain: _T, nothing: _T | None) -> _T:
    found = {"candidate": unlearn, "retrain": retrain, "nothing": nothing}[subject]
    if found is None:
        raise InvalidInput("the test was given no pipeline that deletes nothing")
    return found
