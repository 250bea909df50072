"""What comes of an operation on a model folder."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from expunge.certificate import claims
from expunge.certificate.policy import Policy
from expunge.certificate.statement import Certificate, ModelRelease, Release
from expunge.guarantee import Grade, Guarantee, View, grade_of


def guarantee(policy: Policy) -> Guarantee:
    """Return what the certificates under a policy promise."""
    return claims.guarantee_block(policy, View.transcript)


def grade(policy: Policy) -> Grade:
    """Return the grade of the certificates under a policy."""
    return grade_of(guarantee(policy).kind, claims.assumption_list(policy))


@dataclass(frozen=True)
class Trained:
    """A new folder: its first statement and policy, rows and people trained on, time of the fit."""

    folder: Path
    statement: ModelRelease
    proof_path: Path
    policy: Policy
    records: int
    people: int
    seconds: float

    @property
    def guarantee(self) -> Guarantee:
        """What certificates under this policy promise."""
        return guarantee(self.policy)

    @property
    def grade(self) -> Grade:
        """The grade of certificates under this policy."""
        return grade(self.policy)


@dataclass(frozen=True)
class Forgotten:
    """A deletion that has happened.

    Attributes
    ----------
    people, records : int
        How many were deleted by it.
    certificate : Certificate
    certificate_path, proof_path, page_path : Path
    data : Path
        The table that their rows came from, which still has them.
    releases_left : int
    seconds, total : float
        Time of the deletion itself: new parameters, noise and certificate; and with reading the
        data and writing files. Like `path` (bounded, measured or refreshed) the first depends on
        the deleted rows, and is not for the public.
    """

    people: int
    records: int
    certificate: Certificate
    certificate_path: Path
    proof_path: Path
    page_path: Path
    data: Path
    releases_left: int
    seconds: float = field(repr=False)
    total: float = field(repr=False)
    path: str = field(repr=False)


@dataclass(frozen=True)
class Retrained:
    """A retrain that has happened; ``seconds`` is the time of the fit."""

    statement: ModelRelease
    guarantee: Guarantee
    statement_path: Path
    proof_path: Path
    records: int
    releases_left: int
    seconds: float


@dataclass(frozen=True)
class Status:
    """How a folder stands; everything here is public.

    ``latest`` is the statement of the current release; ``entries`` is the size of the log and
    ``checkpoint`` its newest signed note.
    """

    folder: Path
    policy: Policy
    latest: Release
    entries: int
    checkpoint: str

    @property
    def guarantee(self) -> Guarantee:
        """What certificates under this policy promise."""
        return guarantee(self.policy)

    @property
    def grade(self) -> Grade:
        """The grade of certificates under this policy."""
        return grade(self.policy)

    @property
    def releases_left(self) -> int:
        """Releases that the policy still covers."""
        return self.policy.releases - self.latest.budget.release
