"""Which scheme fits: size, data and expectations in, schemes with cost and reasons out.

Every number is computed from what is given by the formulae of `noisy_bounds` and `sharded`; nothing
is a rule of thumb but the order, which is that of strength: exact or certified and cheap first.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from expunge.deep.noisy_bounds import kept_share
from expunge.deep.sharded import recomputed_fraction, touched_shards
from expunge.errors import InvalidInput
from expunge.gaussian import mu_of, require_count, require_positive, require_probability
from expunge.guarantee import Grade

SHARDS, SLICES = 20, 5
BYTES = 4
INDISTINCT = 0.05
WIDEST = 20_000
"""Features of a head whose d × d state is still small."""


@dataclass(frozen=True)
class Situation:
    """What is known before a scheme is chosen.

    Attributes
    ----------
    parameters, rows : int
        p of the network, n trained on.
    deletions : int
        Records expected to be deleted in the life of the model.
    requests : int
        In how many releases.
    retrain_seconds : float
        One training from nothing.
    features : int
        Width of the last hidden layer.
    public_backbone : bool
        Whether a network trained without the users' data can be frozen under a head.
    keeps_data : bool
        Whether the retained records will be at hand.
    whole_network : bool
        Whether all weights must have been trained on the users' data.
    adaptive : bool
        Whether people may choose what to delete after seeing released models.
    epsilon, delta : float
        The claim wanted.
    """

    parameters: int
    rows: int
    deletions: int
    requests: int
    retrain_seconds: float
    features: int = 512
    public_backbone: bool = False
    keeps_data: bool = True
    whole_network: bool = False
    adaptive: bool = False
    epsilon: float = 1.0
    delta: float = 1e-5

    def __post_init__(self) -> None:
        """Check every number."""
        for name in ("parameters", "rows", "deletions", "requests", "features"):
            require_count(name, getattr(self, name))
        require_positive("retrain_seconds", self.retrain_seconds)
        require_positive("epsilon", self.epsilon)
        require_probability("delta", self.delta)
        if not self.requests <= self.deletions <= self.rows:
            raise InvalidInput(
                f"requests ({self.requests}) cannot exceed deletions ({self.deletions}), nor these "
                f"the rows ({self.rows})"
            )


@dataclass(frozen=True)
class Advice:
    """One scheme: whether it fits, what a request costs, what is stored, and why.

    ``seconds`` is per request, None where it does not depend on the training; ``storage`` in bytes.
    """

    scheme: str
    fits: bool
    grade: Grade
    seconds: float | None
    storage: int
    reasons: tuple[str, ...]


def advise(situation: Situation) -> list[Advice]:
    """Return every scheme, those that fit first, in the order in which they should be considered.

    Examples
    --------
    >>> case = Situation(11_000_000, 50_000, 500, 500, 3600.0, public_backbone=True)
    >>> [advice.scheme for advice in advise(case) if advice.fits]
    ['certified head', 'sharded training (SISA)', 'retraining', 'enforced noise', 'heuristics']
    """
    makers = (_head, _sharded, _retrain, _private, _noised, _heuristic)
    found = [make(situation) for make in makers]
    return sorted(found, key=lambda advice: not advice.fits)


def _head(s: Situation) -> Advice:
    reasons = ["deletion from a convex head over frozen features is milliseconds, whoever asks"]
    fits = s.public_backbone and not s.whole_network
    if not s.public_backbone:
        reasons.append("needs a backbone that no deletable record has touched: there is none")
    if s.whole_network:
        reasons.append("all weights are to be trained on the users' data")
    if s.features > WIDEST:
        reasons.append(f"{s.features} features: every deletion then needs the retained rows")
    reasons.append(
        "conditional, if nobody can say that no user's record was in the backbone's training data"
    )
    storage = min(s.features, WIDEST) ** 2 * 8
    return Advice("certified head", fits, Grade.certified, None, storage, tuple(reasons))


def _sharded(s: Situation) -> Advice:
    each = s.deletions / s.requests
    touched = touched_shards(SHARDS, math.ceil(each))
    share = touched / SHARDS * recomputed_fraction(SLICES)
    reasons = [
        f"{SHARDS} shards of {SLICES} slices: a request of {each:.3g} records touches "
        f"{touched:.1f} shards, {100 * share:.0f} % of a training",
        "smaller shards learn less: compare the accuracy before deciding",
    ]
    fits = s.keeps_data and not s.adaptive and share < 0.5
    if not s.keeps_data:
        reasons.append("needs the retained records")
    if s.adaptive:
        reasons.append("no guarantee when requests are chosen after seeing released models")
    if share >= 0.5:
        reasons.append("requests are so large that most of it would be retrained")
    grade = Grade.heuristic if s.adaptive else Grade.exact
    storage = SHARDS * SLICES * s.parameters * BYTES
    seconds = share * s.retrain_seconds
    return Advice("sharded training (SISA)", fits, grade, seconds, storage, tuple(reasons))


def _retrain(s: Situation) -> Advice:
    total = s.requests * s.retrain_seconds
    reasons = (
        f"exact, {total / 3600:.3g} hours in all for {s.requests} requests; collect requests up to "
        "their due date to make fewer",
        *(() if s.keeps_data else ("needs the retained records",)),
    )
    storage = s.parameters * BYTES
    return Advice("retraining", s.keeps_data, Grade.exact, s.retrain_seconds, storage, reasons)


def _private(s: Situation) -> Advice:
    single = s.epsilon / s.deletions
    fits = single >= 0.5 and not s.adaptive
    reasons = [
        "nothing is done at a deletion; the model is private from the first release on",
        f"{s.deletions} deletions at ε = {s.epsilon:g} need ε = {single:.2g} per record in training"
        + ("" if fits else ": too little to learn much"),
    ]
    if s.adaptive:
        reasons.append("covers deletions chosen without looking at the model")
    return Advice(
        "differentially private training",
        fits,
        Grade.certified,
        0.0,
        s.parameters * BYTES,
        tuple(reasons),
    )


def _noised(s: Situation) -> Advice:
    share = kept_share(mu_of(s.epsilon, s.delta), s.parameters)
    reasons = [
        "clip, noise, train again on what is retained: about the cost of retraining",
        f"kept share {share:.1e}"
        + (
            ": the old model contributes nothing; what is bought is a signature"
            if share < INDISTINCT
            else ""
        ),
    ]
    if not s.keeps_data:
        reasons.append("needs the retained records to train again")
    return Advice(
        "enforced noise",
        s.keeps_data,
        Grade.certified,
        s.retrain_seconds,
        s.parameters * BYTES,
        tuple(reasons),
    )


def _heuristic(s: Situation) -> Advice:
    reasons = ("no guarantee: only an audit says what was forgotten, and never that all was",)
    return Advice("heuristics", True, Grade.heuristic, None, s.parameters * BYTES, reasons)
