"""What a report shows: statements of a folder, and what an auditor with all data found.

Only `Report.certificates` and `Report.training` come from the public log. Everything in
`Findings` is the auditor's: distances without noise depend on deleted people and belong in no
public document unless the data are public themselves.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from expunge.certificate.checks import Check, Verdict
from expunge.certificate.statement import Certificate, ModelRelease
from expunge.guarantee import epsilon_of


@dataclass(frozen=True)
class Realised:
    """How far one release really was from retraining, in units of its noise.

    Attributes
    ----------
    mu : float
        Upper end of ‖unnoised weights − retrained minimiser‖₂/σ, the minimiser's error included.
    idle : float
        The same for the first release, had it been published again instead.
    accuracy, retrained : float
        Shares of held-out rows that the published and the retrained model (without noise) get
        right.
    """

    mu: float
    idle: float
    accuracy: float
    retrained: float


@dataclass(frozen=True)
class Timing:
    """A duration; ``whole`` says whether reading, signing and storing are in it."""

    label: str
    seconds: float
    whole: bool
    retrain: bool


@dataclass(frozen=True)
class Accuracy:
    """Accuracy on held-out people, from 0 to 1, before any deletion and without any model.

    ``error`` is the standard error that the number of held-out rows leaves.
    """

    before: float
    majority: float
    error: float
    rows: int
    people: int


@dataclass(frozen=True)
class Findings:
    """What an auditor with all data and the sealed state found, release by release.

    Attributes
    ----------
    releases : sequence of Realised
        One for each certificate, in order.
    timings : sequence of Timing
    accuracy : Accuracy
    agreement : float
        ‖·‖₂ between the retrained minimisers of this program and of another one.
    """

    releases: Sequence[Realised]
    timings: Sequence[Timing]
    accuracy: Accuracy
    agreement: float

    @property
    def fastest_retrain(self) -> Timing:
        """The fastest computation of a retrain, by whatever program."""
        return min(
            (it for it in self.timings if it.retrain and not it.whole), key=lambda it: it.seconds
        )


@dataclass(frozen=True)
class Control:
    """A deliberate lie and what the checks said about it.

    ``claim`` says in a sentence what the operator claimed, ``truth`` what it did.
    """

    claim: str
    truth: str
    checks: tuple[Check, ...]

    @property
    def caught_by(self) -> tuple[str, ...]:
        """Names of the checks that failed."""
        return tuple(check.name for check in self.checks if check.verdict is Verdict.FAIL)


@dataclass(frozen=True)
class Report:
    """Everything on the page.

    Attributes
    ----------
    data, model : str
        A sentence each: what was trained on, and what for.
    training : ModelRelease
        Release 1.
    certificates : sequence of Certificate
        All deletions, in order; at least one.
    checks : tuple of Check
        The recheck of the last certificate.
    summary : str
        Its outcome in a sentence.
    repeat : sequence of (str, str)
        What can be checked, and the command that does it.
    findings, control
        The auditor's part, if there is one.
    note : str
        Said at the top; for instance that the data are public.
    """

    data: str
    model: str
    training: ModelRelease
    certificates: Sequence[Certificate]
    checks: tuple[Check, ...]
    summary: str
    repeat: Sequence[tuple[str, str]] = ()
    findings: Findings | None = None
    control: Control | None = None
    note: str = ""

    @property
    def last(self) -> Certificate:
        """The newest certificate."""
        return self.certificates[-1]

    @property
    def requests(self) -> int:
        """Number of requests of all certificates."""
        return sum(it.asked for it in self.certificates)

    @property
    def records(self) -> tuple[int, ...]:
        """Number of records that each certificate deleted."""
        totals = [0, *(it.commitments.deleted.count for it in self.certificates)]
        return tuple(after - before for before, after in pairwise(totals))

    @property
    def delta(self) -> float:
        """The δ at which every ε of the page is given."""
        return self.last.guarantee.delta or 1e-6

    @property
    def mu_certified(self) -> float:
        """The certified μ of one release."""
        return self.last.evidence.shift / self.last.evidence.sigma

    def epsilon(self, mu: float) -> float:
        """Return ε at the page's δ."""
        return epsilon_of(mu, self.delta)


def together(mus: Sequence[float]) -> list[float]:
    """Compose the first, the first two, … of independent releases.

    >>> together([3.0, 4.0])
    [3.0, 5.0]
    """
    return [math.hypot(*mus[: k + 1]) for k in range(len(mus))]
