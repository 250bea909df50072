"""The suite: every metric that the models, data and pipeline given allow, in one report."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal

from expunge.audit import attacks, laws, measures, planted, relearning
from expunge.audit.intervals import ALPHA
from expunge.audit.metric import FEWEST_ORACLES, Metric, grey, utility_lost
from expunge.audit.parts import Data, Part, data_of
from expunge.audit.setting import Pipeline, Setting, answers, views
from expunge.audit.shadows import Runner
from expunge.audit.views import View, view
from expunge.errors import InvalidInput

Verdict = Literal["FALSIFIED", "CONSISTENT"]
_GUARDS = ("accuracy[R]", "accuracy[T]")
_LAWS = {
    "klom": laws.divergence,
    "ulira": laws.likelihood,
    "challenge": laws.forgetting_score,
}
_FAMILIES: dict[str, Callable[[Setting], Iterable[Metric]]] = {
    "utility": measures.utility,
    "agreement": measures.agreement,
    "loss": attacks.loss_attack,
    "svc": attacks.support_vectors,
    "rmia": attacks.ratio_attack,
    "lira": attacks.offline_likelihood,
    "zrf": measures.randomness,
    "relearn": relearning.again,
    "confusion": planted.interclass,
    "poison": planted.poisoned,
}
FAMILIES = (*_FAMILIES, *_LAWS)
"""Names of the families of metrics."""


@dataclass(frozen=True)
class Report:
    """What an audit measured.

    Attributes
    ----------
    metrics : tuple of Metric
    skipped : dict of str to str
        Families that were not measured, and why.
    utility_lost : bool
        Whether accuracy on R or T lies below the oracle band; membership results are then greyed.
    claim : tuple of str
        Metrics registered before the run: "these lie in the oracle band".
    verdict : {"FALSIFIED", "CONSISTENT"} or None
        On the claim; None without one, or if it cannot be decided.
    status : {"ok", "void"}
        ``void``: the claim cannot be decided, because retrained models fail its tests too or the
        candidate has lost its utility.
    oracles : int
    alpha : float
        Shared by the registered metrics; of each of the others.
    seed : int
    seconds : float
    """

    metrics: tuple[Metric, ...]
    skipped: dict[str, str]
    utility_lost: bool
    claim: tuple[str, ...]
    verdict: Verdict | None
    status: Literal["ok", "void"]
    oracles: int
    alpha: float
    seed: int
    seconds: float
    sizes: dict[str, int] = field(default_factory=dict)

    def __getitem__(self, name: str) -> Metric:
        """Return a metric by name."""
        for metric in self.metrics:
            if metric.name == name:
                return metric
        raise KeyError(f"no metric is called {name!r}; skipped: {self.skipped}")

    @property
    def void(self) -> tuple[str, ...]:
        """Names of the tests that cannot decide."""
        return tuple(m.name for m in self.metrics if m.status == "void")

    @property
    def flagged(self) -> tuple[str, ...]:
        """Names of the metrics by which the candidate differs from retraining."""
        return tuple(m.name for m in self.metrics if m.flagged)

    def to_json(self) -> str:
        """Return everything as JSON; numbers that are not finite as null."""
        told = _plain(asdict(self))
        for one, metric in zip(told["metrics"], self.metrics, strict=True):
            one |= {"status": metric.status, "flagged": metric.flagged}
        told |= {"void": list(self.void), "flagged": list(self.flagged)}
        return json.dumps(told, indent=1, allow_nan=False)


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _plain(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(one) for one in value]
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else None
    return value


def run(
    candidate: Any,
    oracles: Sequence[Any],
    data: Data | Sequence[Any],
    *,
    metrics: Sequence[str] | None = None,
    claim: Sequence[str] | None = None,
    original: Any = None,
    references: Sequence[Any] = (),
    untrained: Sequence[Any] = (),
    pipeline: Pipeline | None = None,
    runs: int = 100,
    alpha: float = ALPHA,
    seed: int = 0,
    runner: Runner | None = None,
) -> Report:
    """Measure how much of S a model still knows, beside models that never saw it.

    Parameters
    ----------
    candidate : model
        The unlearned model: a callable giving logits or probabilities, an estimator, a torch
        module, or a `View`.
    oracles : sequence of models
        At least five, retrained on R by the whole pipeline with independent seeds, and used for
        nothing else.
    data : Data, or (S, R, T) or (S, R, T, Z) of (X, y) or (X, y, users)
        Rows to forget, retained rows, rows never seen of the same classes as S, and a crowd.
    metrics : sequence of str, optional
        Of `FAMILIES`; by default all that can be measured with what is given.
    claim : sequence of str, optional
        Names of metrics, registered before the run, that are claimed to lie in the oracle band.
        They share alpha. All other metrics are diagnostics.
    original : model, optional
        Before unlearning: if it is not flagged either, a metric has no power here.
    references : sequence of models, optional
        Retrained on R and used by attacks only: four for RMIA, sixteen or more for LiRA.
    untrained : sequence of models, optional
        For ZRF, five say.
    pipeline : Pipeline, optional
        How to train and to unlearn, for the attacks that do so themselves.
    runs : int
        Shadow models a law; twice as many are retrained.
    runner : Runner, optional
        Where runs are made and kept, and who is told.

    Raises
    ------
    InvalidInput
        If there are fewer than five oracles, a family or a claim is unknown, models answer
        different rows or classes, or a family that was asked for cannot be measured.

    Examples
    --------
    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> def part(n):
    ...     y = rng.integers(2, size=n)
    ...     return rng.normal(size=(n, 1)) + 2.0 * y[:, None], y
    >>> models = [lambda X, a=a: a * np.hstack([-X, X]) for a in rng.normal(1, 0.1, size=6)]
    >>> report = run(models[0], models[1:], (part(50), part(100), part(200)))
    >>> report["loss-auc"].in_band, report.verdict
    (True, None)
    """
    started = time.perf_counter()
    wanted = _wanted(metrics)
    if len(oracles) < FEWEST_ORACLES:
        raise InvalidInput(
            f"an audit needs at least {FEWEST_ORACLES} retrained models, got {len(oracles)}: train "
            "more on R, with independent seeds"
        )
    registered = tuple(claim or ())
    if not 0 < alpha < 1 or len(set(registered)) != len(registered):
        raise InvalidInput("alpha must be in (0, 1), and a claim names each metric once")
    setting = _setting(
        data_of(data), candidate, oracles, original, references=views(references),
        untrained=views(untrained), pipeline=pipeline, runs=runs, alpha=alpha,
        registered=registered, seed=seed, runner=runner or Runner(),
    )  # fmt: skip
    found, skipped = _measure(setting, wanted, strict=metrics is not None)
    missing = [name for name in registered if name not in {m.name for m in found}]
    if missing:
        raise InvalidInput(
            f"the claim names {', '.join(missing)}, which was not measured; there are "
            f"{', '.join(m.name for m in found)}"
        )
    lost = utility_lost([m for m in found if m.name in _GUARDS])
    found = grey(found) if lost else tuple(found)
    verdict = _verdict([m for m in found if m.name in registered])
    status: Literal["ok", "void"] = "void" if registered and verdict is None else "ok"
    sizes = {letter: len(rows) for letter, rows in _sizes(setting.data)}
    return Report(
        found, skipped, lost, registered, verdict, status, len(oracles), alpha, seed,
        time.perf_counter() - started, sizes,
    )  # fmt: skip


def _wanted(metrics: Sequence[str] | None) -> tuple[str, ...]:
    wanted = FAMILIES if metrics is None else tuple(metrics)
    unknown = [name for name in wanted if name not in FAMILIES]
    if unknown or isinstance(metrics, str):
        raise InvalidInput(
            f"unknown families of metrics: {', '.join(unknown)}; there are {', '.join(FAMILIES)}"
        )
    return wanted


def _sizes(data: Data) -> Iterator[tuple[str, Part]]:
    yield from (("S", data.forget), ("R", data.retain), ("T", data.unseen))
    if data.population is not None:
        yield "Z", data.population


def _setting(
    data: Data, candidate: Any, oracles: Sequence[Any], original: Any, **more: Any
) -> Setting:
    models = {"candidate": view(candidate)}
    if original is not None:
        models["original"] = view(original)
    told = {name: answers(model, data) for name, model in models.items()}
    others: tuple[View, ...] = views(oracles)
    return Setting(
        data,
        models,
        others,
        told["candidate"],
        told.get("original"),
        tuple(answers(oracle, data) for oracle in others),
        **more,
    )


def _measure(
    setting: Setting, wanted: Sequence[str], *, strict: bool
) -> tuple[tuple[Metric, ...], dict[str, str]]:
    """Return metrics stamped with the seconds of their family, and why others were skipped."""
    found: list[Metric] = []
    skipped: dict[str, str] = {}
    shared: laws.Laws | None = None
    for name in wanted:
        started = time.perf_counter()
        reason = _lacking(setting, name)
        if reason and not strict:
            skipped[name] = reason
            continue
        if reason:
            raise InvalidInput(f"{name} cannot be measured: {reason}")
        setting.runner.progress(f"audit: {name}")
        if name in _LAWS:
            shared = laws.collect(setting) if shared is None else shared
            new = list(_LAWS[name](setting, shared))
        else:
            new = list(_FAMILIES[name](setting))
        seconds = time.perf_counter() - started
        found += [replace(metric, seconds=seconds) for metric in new]
    return tuple(found), skipped


def _lacking(setting: Setting, name: str) -> str:
    """Return what a family needs and does not have; empty if it has everything."""
    models = (*setting.models.values(), *setting.oracles)
    nets = all(hasattr(model.model, "parameters") for model in models)
    linear = hasattr(setting.models["candidate"].model, "coef_")
    needs = {
        "rmia": [
            (setting.data.population is not None, "population rows Z"),
            (bool(setting.references or setting.pipeline), "references or a pipeline"),
        ],
        "lira": [(len(setting.references) >= attacks.OFFLINE, f"{attacks.OFFLINE} references")],
        "zrf": [(bool(setting.untrained), "untrained models")],
        "relearn": [
            (setting.original is not None, "the original model"),
            (nets, "torch modules"),
        ],
        "confusion": [(setting.pipeline is not None, "a pipeline")],
        "poison": [
            (setting.pipeline is not None, "a pipeline"),
            (linear or nets, "models that show their weights"),
        ],
    } | {law: [(setting.pipeline is not None, "a pipeline")] for law in _LAWS}
    return ", ".join(word for given, word in needs.get(name, []) if not given)


def _verdict(claimed: Sequence[Metric]) -> Verdict | None:
    """Return the verdict on "all of these lie in the oracle band"."""
    if any(m.flagged for m in claimed):
        return "FALSIFIED"
    return "CONSISTENT" if claimed and all(m.status == "ok" for m in claimed) else None
