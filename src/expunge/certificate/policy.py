"""The policy of a lineage: everything that is public and fixed before any request.

It is the first entry of the lineage's log (certificate.md §1, convex.md §2.1). Any change starts
a new lineage with a new policy.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, get_args

from expunge import guarantee as algebra
from expunge.certificate import schema
from expunge.certificate.statements import POLICY_TYPE, dump, open_statement
from expunge.discrete import GRID_BITS
from expunge.errors import CertificateRefused, InvalidInput
from expunge.guarantee import Tag, Unit
from expunge.modelfile import LOSSES
from expunge.noise import grid_exponent

PENALISED = ("squared-hinge", "huber")
"""Losses whose curvature jumps: only the penalty bounds a distance, so it must reach everything."""
NOISES = ("osEntropy", "seeded", "openDp")
SLACK = 1e-9
"""Relative slack of every comparison of printed numbers (certificate.md §5)."""

Label = str | int | float | bool


def claimed(epsilon: float, delta: float, mu: float) -> bool:
    """Whether μ-GDP implies (ε, δ), with the relative slack of a recheck."""
    return algebra.log_delta(epsilon, mu) <= math.log(delta) + SLACK if delta > 0 else mu == 0


def claimed_discrete(epsilon: float, delta: float, mu: float) -> bool:
    """Whether μ²/2-zCDP implies (ε, δ): discrete noise, all releases together."""
    return epsilon > 0 and algebra.discrete_delta(epsilon, mu, 1.0) <= delta * (1 + SLACK)


def _new_lineage() -> str:
    return os.urandom(32).hex()


def tolerance_of(
    noise: str, sigma: float, epsilon: float, delta: float, releases: int, dimension: int
) -> float:
    """Return the largest tolerance τ that noise of this source and σ can cover."""
    if noise == "openDp":
        return algebra.discrete_tolerance(sigma, epsilon, delta, releases, dimension)
    return algebra.tolerance_for(sigma, epsilon, delta, releases)


@dataclass(frozen=True, kw_only=True)
class Policy:
    """Loss, penalty, tolerance, noise and caps of one lineage of releases.

    Attributes
    ----------
    loss : str
        A name in `expunge.modelfile.LOSSES`.
    l2 : float
        Λ > 0 of (Λ/2)‖w‖², in units of the sum objective.
    l1 : float
        ν ≥ 0 of ν‖w‖₁, in the same units; above 0 with squared loss only.
    fit_intercept : bool
        Whether an intercept is fitted; it is never penalised.
    features, outputs : int
        Columns of the encoded data and of the parameter matrix.
    epsilon, delta : float
        What all covered releases together guarantee.
    releases, capacity : int
        Releases and deleted records (records, whatever the unit) that the claim covers.
    sigma, tolerance : float
        Standard deviation of the noise per parameter, and τ: the largest distance of the unnoised
        parameters from the optimum, for the fit and for every unlearning.
    feature_map : JSON-able object or None
        How raw records become features; None when arrays were handed over.
    feature_map_tag : Tag
        enforced: declared in advance; assumed: learned from the training data.
    classes : tuple or None
        The label set, in the order of the outputs.
    unit : str
        record or person.
    noise : str
        osEntropy, seeded or openDp (exact discrete noise).
    lineage : str
        64 hexadecimal digits that name the lineage, drawn when not given.

    Raises
    ------
    InvalidInput
        If a value is out of range.
    CertificateRefused
        If (τ, σ, releases) do not give (ε, δ); the message states the ε they really give.
    """

    loss: str
    l2: float
    fit_intercept: bool
    features: int
    outputs: int
    epsilon: float
    delta: float
    releases: int
    sigma: float
    tolerance: float
    capacity: int
    l1: float = 0.0
    feature_map: Any = None
    feature_map_tag: Tag = Tag.enforced
    classes: tuple[Label, ...] | None = None
    unit: Unit = "record"
    noise: str = "osEntropy"
    lineage: str = field(default_factory=_new_lineage)

    def __post_init__(self) -> None:
        """Check ranges, then that the numbers give what they claim."""
        for name in ("l2", "epsilon", "sigma", "tolerance"):
            number = getattr(self, name)
            if not (isinstance(number, int | float) and math.isfinite(number) and number > 0):
                raise InvalidInput(f"{name} must be a finite number above 0; got {number!r}")
        for name in ("features", "outputs", "releases", "capacity"):
            if type(getattr(self, name)) is not int or getattr(self, name) < 1:
                raise InvalidInput(f"{name} must be an int of at least 1")
        if not 0 < self.delta < 1:
            raise InvalidInput(f"delta must lie in (0, 1); got {self.delta!r}")
        if self.loss not in LOSSES:
            raise InvalidInput(f"loss must be one of {', '.join(LOSSES)}; got {self.loss!r}")
        self._check_penalties()
        if self.unit not in get_args(Unit):
            raise InvalidInput(f"unit must be record or person; got {self.unit!r}")
        if self.noise not in NOISES:
            raise InvalidInput(f"noise must be one of {', '.join(NOISES)}; got {self.noise!r}")
        plain = json.loads(_json_text(self.feature_map))
        object.__setattr__(self, "feature_map", plain)
        object.__setattr__(self, "feature_map_tag", Tag(self.feature_map_tag))
        holds = claimed_discrete if self.discrete else claimed
        if not holds(self.epsilon, self.delta, self.mu):
            raise CertificateRefused(
                f"tolerance {self.tolerance:g} and sigma {self.sigma:g} over {self.releases} "
                f"release(s) really give epsilon {self.epsilon_at(self.releases):.4g} at delta "
                f"{self.delta:g}, more than the {self.epsilon:g} asked for; raise sigma or "
                "epsilon, or lower the tolerance or the number of releases"
            )

    def _check_penalties(self) -> None:
        if not (isinstance(self.l1, int | float) and math.isfinite(self.l1) and self.l1 >= 0):
            raise InvalidInput(f"l1 must be a finite number of at least 0; got {self.l1!r}")
        if self.l1 > 0 and self.loss != "squared":
            raise InvalidInput(f"l1 goes with loss squared only; got {self.l1!r} with {self.loss}")
        if self.fit_intercept and self.loss in PENALISED:
            raise InvalidInput(
                f"no distance can be certified for loss {self.loss} with an intercept that is not "
                "penalised, since its curvature jumps; append a constant feature instead"
            )

    @property
    def discrete(self) -> bool:
        """Whether the noise is an exact discrete Gaussian on a grid."""
        return self.noise == "openDp"

    @property
    def shift(self) -> float:
        """Largest distance of unlearned and retrained parameters before the noise: 2τ.

        Discrete noise needs the parameters on its grid g, which adds g√dimension.
        """
        if not self.discrete:
            return 2 * self.tolerance
        grid = math.ldexp(1.0, -grid_exponent(self.sigma, GRID_BITS))
        return (2 * self.tolerance + grid * math.sqrt(self.dimension)) * (1 + 1e-15)

    def epsilon_at(self, releases: int) -> float:
        """The ε, at the policy's δ, that so many releases really give; for messages."""
        mu = self.mu_per_release * math.sqrt(releases)
        if not self.discrete:
            return algebra.epsilon_of(mu, self.delta)
        return mu * mu / 2 + mu * math.sqrt(-2 * math.log(self.delta))

    @property
    def mu_per_release(self) -> float:
        """μ of one release."""
        return self.shift / self.sigma

    @property
    def mu(self) -> float:
        """μ of all covered releases together."""
        return self.mu_per_release * math.sqrt(self.releases)

    @property
    def dimension(self) -> int:
        """Number of released parameters."""
        return (self.features + self.fit_intercept) * self.outputs

    def to_payload(self) -> bytes:
        """The policy as an in-toto statement, sorted keys, no spaces."""
        subject = [{"name": "lineage", "digest": {"sha256": self.lineage}}]
        return dump(POLICY_TYPE, subject, POLICY.write(self))

    @classmethod
    def from_payload(cls, payload: bytes) -> Policy:
        """Read a policy strictly.

        Raises
        ------
        VerificationFailed
            Of ``json``, ``type``, ``predicateType`` or ``schema``.
        """
        statement = open_statement(payload, POLICY_TYPE)
        policy: Policy = POLICY.read(statement.predicate, "predicate", [])
        return policy

    @cached_property
    def digest(self) -> str:
        """SHA-256 of the payload."""
        return hashlib.sha256(self.to_payload()).hexdigest()


def _json_text(value: Any) -> str:
    try:
        return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)
    except (TypeError, ValueError) as error:
        raise InvalidInput(f"the feature map must be JSON without NaN: {error}") from error


def _read_map(value: Any, path: str, unknown: schema.Unknown) -> Any:
    try:
        return json.loads(value)
    except (TypeError, ValueError):
        schema.fault(path, "a JSON document inside a string", value)


def _write_label(label: Label) -> Any:
    if isinstance(label, str | bool) or (isinstance(label, int) and 0 <= label < schema.LARGEST):
        return label
    return {type(label).__name__: repr(label)}


def _read_label(value: Any, path: str, unknown: schema.Unknown) -> Label:
    if isinstance(value, str | bool) or type(value) is int:
        return value
    try:
        ((kind, text),) = value.items()
        return float(text) if {"float": True, "int": False}[kind] else int(text)
    except (AttributeError, KeyError, TypeError, ValueError):
        schema.fault(path, 'a label, or {"float": text} or {"int": text}', value)


_MAP = schema.Kind(_read_map, _json_text)
_LABELS = schema.many(schema.Kind(_read_label, _write_label), least=1)

POLICY = schema.block(
    Policy,
    {"l2": "l2Total", "l1": "l1Total", "noise": "noiseSource"},
    lineage=schema.DIGEST,
    loss=schema.choice(LOSSES),
    l2=schema.EXACT,
    l1=schema.EXACT,
    fit_intercept=schema.FLAG,
    features=schema.integer(1),
    outputs=schema.integer(1),
    epsilon=schema.EXACT,
    delta=schema.EXACT,
    releases=schema.integer(1),
    sigma=schema.EXACT,
    tolerance=schema.EXACT,
    capacity=schema.integer(1),
    feature_map=schema.optional(_MAP),
    feature_map_tag=schema.choice(Tag, Tag),
    classes=schema.optional(_LABELS),
    unit=schema.choice(get_args(Unit)),
    noise=schema.choice(NOISES),
)
