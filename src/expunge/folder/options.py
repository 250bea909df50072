"""What is chosen at training, once for all releases, and the policy it makes."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from expunge.certificate.policy import PENALISED, Policy, tolerance_of
from expunge.certificate.schema import NAME
from expunge.certificate.words import percent
from expunge.errors import InvalidInput, VerificationFailed
from expunge.folder.encoding import Encoding
from expunge.folder.files import column_names
from expunge.folder.labels import LabelEncoding
from expunge.folder.records import Records
from expunge.folder.results import guarantee
from expunge.folder.schema import load_schema
from expunge.folder.table import Table, read
from expunge.linear.rows import Rows
from expunge.noise import Discrete, NoiseSource, OsEntropy, source_of

MODELS = {
    "logistic": "logistic",
    "linear-svc": "squared-hinge",
    "ridge-classifier": "squared",
    "ridge": "squared",
    "poisson": "poisson",
    "gamma": "gamma",
}
"""The losses of the models; a logistic model of three classes or more has another."""
NUMBERS = ("ridge", "poisson", "gamma")
MULTI_CLASS = ("multinomial", "ovr")
VACUOUS = 0.999


@dataclass(frozen=True, kw_only=True)
class Training:
    """Choices that the policy fixes before any request.

    Attributes
    ----------
    label, identifier : str
        Columns of the label and of the person.
    keys : Path
        Directory of keys.
    model : str
        One of `MODELS`.
    schema : Path or None
        A declared encoding; None: learned from the table, which makes certificates conditional.
    ignore : tuple of str
        Columns that are not features.
    penalty : float
        Λ of (Λ/2)‖w‖², in units of the sum objective.
    l1 : float
        ν of ν‖w‖₁, in the same units, for ridge: an elastic net.
    epsilon, delta, releases
        What all releases together guarantee, and how many they are.
    sigma : float or None
        Standard deviation of the noise; None: 0.01 for logistic and linear-svc, else 0.001.
    multi_class : str
        multinomial or ovr, for a logistic model of three classes or more.
    noise : str
        gaussian, or discrete: the exact discrete Gaussian of OpenDP.
    issuer : str
        Who certifies, as printed.
    seed : int or None
        Seeds the noise, for tests: every certificate then says "not for production".
    """

    label: str
    identifier: str
    keys: Path
    model: str = "logistic"
    schema: Path | None = None
    ignore: tuple[str, ...] = ()
    penalty: float = 1.0
    l1: float = 0.0
    epsilon: float = 1.0
    delta: float = 1e-6
    releases: int = 1000
    sigma: float | None = None
    multi_class: str = "multinomial"
    noise: str = "gaussian"
    issuer: str = "unnamed"
    seed: int | None = None

    def __post_init__(self) -> None:
        """Check the choices that the policy does not."""
        for name, options in (("model", MODELS), ("multi_class", MULTI_CLASS)):
            if getattr(self, name) not in options:
                raise InvalidInput(
                    f"{name} must be one of {', '.join(options)}; got {getattr(self, name)!r}"
                )
        if not (math.isfinite(self.penalty) and self.penalty > 0):
            raise InvalidInput(f"penalty must be a finite number above 0; got {self.penalty!r}")
        if self.l1 and self.model != "ridge":
            raise InvalidInput(f"an L1 penalty goes with the model ridge, not with {self.model}")
        if self.seed is not None and self.seed < 0:
            raise InvalidInput(f"the seed must be at least 0, got {self.seed}")
        try:
            NAME.read(self.issuer, "the issuer", [])
        except VerificationFailed as error:
            raise InvalidInput(error.reason) from None

    def read(self, data: Path) -> tuple[Table, Records]:
        """Read the table, and declare or learn how it is encoded.

        Raises
        ------
        InvalidInput
            If table or schema are unusable, or do not fit each other.
        """
        declared = None if self.schema is None else _with_ignored(load_schema(self.schema), self)
        ignore = [*self.ignore, *_unused(declared, data)]
        table = read(data, label=self.label, identifier=self.identifier, ignore=ignore)
        if declared is None:
            encoding = Encoding.learn(table, ignored=self.ignore)
        else:
            encoding = Encoding.declared(declared)
        labels = self._labels(table, None if declared is None else declared.get("label"))
        loss = self._loss(labels)
        free = loss not in PENALISED
        return table, Records(self.label, self.identifier, encoding, labels, loss, intercept=free)

    def policy(self, rows: Rows, records: Records) -> Policy:
        """Return the policy for these rows.

        Raises
        ------
        InvalidInput, CertificateRefused
            If a number is out of range, or they contradict each other, or promise nothing.
        """
        usual = 0.01 if self.model in ("logistic", "linear-svc") else 0.001
        sigma = usual if self.sigma is None else self.sigma
        noise = source_of(self.noise, self.seed).name
        promise = (sigma, self.epsilon, self.delta, self.releases)
        policy = Policy(
            loss=records.loss,
            l2=self.penalty,
            l1=self.l1,
            fit_intercept=records.intercept,
            features=rows.X.shape[1],
            outputs=rows.target.shape[1],
            epsilon=self.epsilon,
            delta=self.delta,
            releases=self.releases,
            sigma=sigma,
            tolerance=tolerance_of(noise, *promise, rows.width * rows.target.shape[1]),
            capacity=rows.count,
            feature_map=records.feature_map,
            feature_map_tag=records.encoding.tag,
            classes=records.labels.classes,
            unit="person",
            noise=noise,
        )
        chance = guarantee(policy).success_probability
        if chance >= VACUOUS:
            raise InvalidInput(
                f"epsilon {self.epsilon:g} and delta {self.delta:g} promise nothing: whoever sees "
                f"the models may be right {percent(chance)} of the time about who was deleted from "
                "them. Choose a smaller epsilon or delta"
            )
        return policy

    def _labels(self, table: Table, declared: Any) -> LabelEncoding:
        if self.model in NUMBERS:
            labels = LabelEncoding(None)
            if declared is not None and LabelEncoding.declared(declared) != labels:
                raise InvalidInput(
                    f"the schema declares classes, and {self.model} predicts a number"
                )
            return labels
        labels = (
            LabelEncoding.learn(table) if declared is None else LabelEncoding.declared(declared)
        )
        if labels.classes is None:
            raise InvalidInput(
                f"the schema declares the label a number, and {self.model} predicts classes; "
                "use ridge, or declare `classes`"
            )
        return labels

    def _loss(self, labels: LabelEncoding) -> str:
        if self.model != "logistic":
            return MODELS[self.model]
        if labels.classes is not None and len(labels.classes) == 2:
            return "logistic"
        return "softmax" if self.multi_class == "multinomial" else "logistic-ovr"


def _unused(declared: dict[str, Any] | None, data: Path) -> list[str]:
    """Return the columns of the table that the schema ignores."""
    ignored = () if declared is None else declared.get("ignore", ())
    return [name for name in column_names(data) if name in ignored] if ignored else []


def _with_ignored(schema: dict[str, Any], training: Training) -> dict[str, Any]:
    ignored = schema.get("ignore", ())
    if not training.ignore or not isinstance(ignored, list | tuple):
        return schema
    return schema | {"ignore": [*ignored, *(it for it in training.ignore if it not in ignored)]}


def noise_for(policy: Policy, seed: int | None, release: int) -> NoiseSource | Discrete:
    """Return fresh noise for one release; a seed gives every release its own.

    Raises
    ------
    InvalidInput
        If a seed is given for a folder that was not trained with one.
    """
    if seed is None:
        return Discrete() if policy.discrete else OsEntropy()
    if policy.noise != "seeded":
        raise InvalidInput(
            "a seed makes noise that can be repeated, and this folder is for production; leave the "
            "seed out (for tests, train a folder with a seed)"
        )
    return source_of("gaussian", seed, release)
