"""What is guaranteed, to whom, against which view, and how much of it is known to hold.

The numbers come from :mod:`expunge.gaussian`, whose functions are offered here too: this module
is the one to import.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import Literal, Self, TypeVar, get_args

from expunge.discrete import discrete_delta, discrete_sigma, discrete_tolerance
from expunge.errors import InvalidInput
from expunge.gaussian import (
    ROUNDING,
    classical_sigma,
    compose,
    delta_of,
    epsilon_of,
    guo_sigma,
    log_delta,
    mu_of,
    require_count,
    require_non_negative,
    sigma_for,
    success_probability,
    tolerance_for,
)

__all__ = [
    "Access",
    "Assumption",
    "Comparator",
    "Grade",
    "Guarantee",
    "Kind",
    "Level",
    "Tag",
    "Unit",
    "View",
    "classical_sigma",
    "compose",
    "delta_of",
    "discrete_delta",
    "discrete_sigma",
    "discrete_tolerance",
    "epsilon_of",
    "grade_of",
    "guo_sigma",
    "log_delta",
    "mu_of",
    "sigma_for",
    "success_probability",
    "tolerance_for",
]

Kind = Literal["exact", "epsilonDelta", "muGdp", "zcdp", "none"]
Unit = Literal["record", "person"]
Access = Literal["weights", "outputs"]
Level = Literal["output", "state"]
Comparator = Literal["retrain", "cleanUnlearn", "retainedOnlyLaw"]


_E = TypeVar("_E", bound=StrEnum)


class Grade(StrEnum):
    """How much of a guarantee is known to hold; computed by :func:`grade_of`, never typed."""

    exact = "exact"
    certified = "certified"
    conditional = "conditional"
    heuristic = "heuristic"


class Tag(StrEnum):
    """How an assumption is known: by construction, by measurement, by theorem, or not at all."""

    enforced = "enforced"
    measured = "measured"
    proved = "proved"
    assumed = "assumed"


class View(StrEnum):
    """What the adversary sees: one release after the deletion, all since, or also one before."""

    afterOnly = "afterOnly"
    transcript = "transcript"
    beforeAndAfter = "beforeAndAfter"


@dataclass(frozen=True)
class Assumption:
    """Something that the guarantee needs, and how it is known."""

    id: str
    tag: Tag

    def __post_init__(self) -> None:
        """Refuse an empty id and an unknown tag."""
        if not self.id:
            raise InvalidInput("an assumption needs a non-empty id")
        object.__setattr__(self, "tag", _member(Tag, self.tag))


def grade_of(kind: str, assumptions: Iterable[Assumption]) -> Grade:
    """Return the grade of a guarantee of this kind that rests on these assumptions.

    Examples
    --------
    >>> grade_of("muGdp", [Assumption("featureMapFixed", Tag.assumed)])
    <Grade.conditional: 'conditional'>
    """
    _require_choice("kind", kind, Kind)
    if kind == "none":
        return Grade.heuristic
    if any(assumption.tag is Tag.assumed for assumption in assumptions):
        return Grade.conditional
    return Grade.exact if kind == "exact" else Grade.certified


@dataclass(frozen=True)
class Guarantee:
    """What is promised, for which unit, against which view, compared with what.

    Attributes
    ----------
    kind : str
        exact, epsilonDelta, muGdp, zcdp or none.
    epsilon, delta, mu : float or None
        The numbers of the claim, for all covered releases together; None where they do not apply.
    unit : str
        record or person.
    deletions_covered, releases_covered : int
        Caps of the claim.
    view : View
        ``beforeAndAfter`` lies outside the definition and goes only with kind none, or with muGdp
        when every earlier release was itself private for the record.
    access, level, comparator : str
        weights or outputs; output or state; retrain, cleanUnlearn or retainedOnlyLaw.

    Raises
    ------
    InvalidInput
        If a value is outside its range or a number that the kind needs is missing.
    """

    kind: Kind
    epsilon: float | None
    delta: float | None
    mu: float | None
    unit: Unit
    deletions_covered: int
    releases_covered: int
    view: View = View.transcript
    access: Access = "weights"
    level: Level = "output"
    comparator: Comparator = "retrain"

    def __post_init__(self) -> None:
        """Check every field and that the numbers fit the kind."""
        _require_choice("kind", self.kind, Kind)
        _require_choice("unit", self.unit, Unit)
        _require_choice("access", self.access, Access)
        _require_choice("level", self.level, Level)
        _require_choice("comparator", self.comparator, Comparator)
        object.__setattr__(self, "view", _member(View, self.view))
        require_count("deletions_covered", self.deletions_covered)
        require_count("releases_covered", self.releases_covered)
        self._check_numbers()
        if self.view is View.beforeAndAfter and self.kind not in ("none", "muGdp"):
            raise InvalidInput(
                "the view beforeAndAfter is outside the definition (exact retraining fails it "
                f"too); it goes with kind none or muGdp, not {self.kind}"
            )

    def _check_numbers(self) -> None:
        numbers = {"epsilon": self.epsilon, "delta": self.delta, "mu": self.mu}
        for name, value in numbers.items():
            if value is not None:
                require_non_negative(name, value)
        if self.delta is not None and self.delta > 1:
            raise InvalidInput(f"delta must be at most 1; got {self.delta!r}")
        needed = {
            "exact": ("epsilon", "delta", "mu"),
            "muGdp": ("epsilon", "delta", "mu"),
            "epsilonDelta": ("epsilon", "delta"),
            "zcdp": ("epsilon", "delta"),
        }.get(self.kind, ())
        missing = [name for name in needed if numbers[name] is None]
        if missing:
            raise InvalidInput(f"a guarantee of kind {self.kind} needs {', '.join(missing)}")
        if self.kind == "exact" and any(numbers.values()):
            raise InvalidInput("a guarantee of kind exact has epsilon = delta = mu = 0")
        if self.kind == "none" and any(value is not None for value in numbers.values()):
            raise InvalidInput("kind none promises nothing: epsilon, delta and mu must be None")

    @classmethod
    def for_transcript(
        cls, epsilon: float, delta: float, releases: int, deletions: int, unit: Unit = "record"
    ) -> Self:
        """Return the μ-GDP guarantee of all ``releases`` releases since a deletion together.

        Examples
        --------
        >>> Guarantee.for_transcript(1.0, 1e-6, releases=1000, deletions=50).view.value
        'transcript'
        """
        mu = mu_of(epsilon, delta)
        return cls("muGdp", epsilon, delta, mu, unit, deletions, releases)

    @property
    def success_probability(self) -> float:
        """How often the best guess between the two worlds is right, rounded up; 1 without claim."""
        if self.mu is not None:
            return success_probability(self.mu)
        if self.epsilon is None or self.delta is None:
            return 1.0
        odds = math.exp(-self.epsilon)
        return min(1.0, (1 + self.delta * odds) / (1 + odds) * (1 + ROUNDING))


def _member(options: type[_E], value: str) -> _E:
    try:
        return options(value)
    except ValueError:
        known = ", ".join(option.value for option in options)
        raise InvalidInput(
            f"{options.__name__.lower()} must be one of {known}; got {value!r}"
        ) from None


def _require_choice(name: str, value: str, options: object) -> None:
    known = get_args(options)
    if value not in known:
        raise InvalidInput(f"{name} must be one of {', '.join(known)}; got {value!r}")
