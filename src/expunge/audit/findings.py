"""What a certificate claims, what a step finds about it, and the plan of an audit."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol, Self

import numpy as np

from expunge.audit.bands import Gate
from expunge.certificate.statement import Certificate
from expunge.errors import InvalidInput
from expunge.gaussian import epsilon_of
from expunge.guarantee import Access, View

Subject = Literal["candidate", "retrain", "nothing"]
Form = Literal["mu", "epsilon", "exact"]


@dataclass(frozen=True)
class Claim:
    """What one release claims: the constant that a test tries to refute.

    Attributes
    ----------
    form : {"mu", "epsilon", "exact"}
        ``exact`` claims ε = 0: any bound above 0 refutes it.
    epsilon, delta : float
        Of all covered releases together.
    mu : float or None
        Of one release; None where the mechanism promises no Gaussian shape.
    view, access
        Which adversary is covered.
    deletions : int
        Records that the claim covers.
    """

    form: Form
    epsilon: float
    delta: float
    mu: float | None
    view: View
    access: Access
    deletions: int

    @classmethod
    def of(cls, certificate: Certificate) -> Self:
        """Return the claim of a certificate.

        Raises
        ------
        InvalidInput
            If it promises nothing: then only a registered band can be tested.
        """
        guarantee = certificate.guarantee
        if guarantee.kind == "none":
            raise InvalidInput(
                "the certificate promises nothing that could be refuted; register metrics as a "
                "claim with audit.run instead"
            )
        epsilon, delta = guarantee.epsilon or 0.0, guarantee.delta or 0.0
        form: Form = "epsilon"
        mu = None
        if guarantee.kind == "muGdp":
            form, mu = "mu", math.sqrt(certificate.budget.mu_squared_per_release)
        elif guarantee.kind == "exact":
            form, mu = "exact", 0.0
        return cls(
            form,
            epsilon,
            delta,
            mu,
            guarantee.view,
            guarantee.access,
            guarantee.deletions_covered,
        )

    def limit(self) -> float:
        """Return the number that a bound must exceed, in the unit of the claim."""
        return self.epsilon if self.mu is None else self.mu

    def pick(self, epsilon: float, mu: float) -> float:
        """Return which of two numbers is in the unit of the claim."""
        return epsilon if self.form == "epsilon" else mu

    def refuted(self, epsilon: float, mu: float) -> bool:
        """Whether valid lower bounds refute it. A bound on μ never refutes a bare (ε, δ)."""
        if self.form == "exact":
            return epsilon > 0 or mu > 0
        return self.pick(epsilon, mu) > self.limit()


@dataclass(frozen=True)
class Finding:
    """What one step of an attempt to falsify found.

    Attributes
    ----------
    name : str
    refutes : bool
    reason : str
        One sentence; it never holds a noiseless number.
    share : float or None
        Its share of α; None for a step without chance.
    statistic, bound, ceiling : float or None
        Bound and ceiling in the unit of the claim: μ, or ε at its δ.
    detectable_mu : float or None
        The smallest true μ that refutes the claim with probability 0.8.
    access : {"weights", "outputs"} or None
        What of the release was looked at.
    sealed : bool
        Whether the numbers depend on deleted records without noise: for the annex only.
    oracle : Gate or None
        How often retrained models failed the same test.
    no_power : bool or None
        Whether doing nothing is not flagged either; None if that was not tried.
    void : bool
        Whether the step cannot decide.
    """

    name: str
    refutes: bool
    reason: str
    share: float | None = None
    statistic: float | None = None
    bound: float | None = None
    ceiling: float | None = None
    detectable_mu: float | None = None
    access: Access | None = None
    sealed: bool = False
    oracle: Gate | None = None
    no_power: bool | None = None
    void: bool = False

    @property
    def flagged(self) -> bool:
        """Whether anything was seen, were it less than the claim allows."""
        return self.refutes or bool(self.bound)

    def detectable_epsilon(self, delta: float) -> float | None:
        """Return the ε at δ of the Gaussian mechanism with the detectable μ."""
        if self.detectable_mu is None or not 0 < delta < 1:
            return None
        return epsilon_of(self.detectable_mu, delta) if math.isfinite(self.detectable_mu) else None


class Trial(Protocol):
    """A statistical test that is registered before the run."""

    @property
    def name(self) -> str:
        """Its name in the attestation."""

    @property
    def access(self) -> Access:
        """What of the release it looks at."""

    @property
    def subjects(self) -> tuple[Subject, ...]:
        """What it can be run on: the candidate, retraining, and perhaps doing nothing."""

    def run(
        self, claim: Claim, alpha: float, subject: Subject, rng: np.random.Generator
    ) -> Finding:
        """Run it on a subject at level alpha."""


@dataclass(frozen=True)
class Plan:
    """Tests registered before any run: q of them share α, and retraining passes each first.

    Attributes
    ----------
    tests : sequence of Trial
    alpha : float
    oracles : int
        Retrained candidates that every test is also run on.
    seed : int
    """

    tests: Sequence[Trial] = ()
    alpha: float = 0.05
    oracles: int = 5
    seed: int = 0
    names: tuple[str, ...] = field(init=False)

    def __post_init__(self) -> None:
        """Check names and numbers."""
        names = tuple(test.name for test in self.tests)
        if len(set(names)) < len(names):
            raise InvalidInput(f"registered tests need different names, got {', '.join(names)}")
        if not 0 < self.alpha < 1 or self.oracles < 5:
            raise InvalidInput(
                f"expected alpha in (0, 1) and at least 5 oracles, got {self.alpha} and "
                f"{self.oracles}"
            )
        object.__setattr__(self, "names", names)

    @property
    def share(self) -> float:
        """The level of each test."""
        return self.alpha / max(1, len(self.tests))
