"""A measured number with its interval, what retraining gives, and what may be said about it.

Retrained models ("oracles") give the *band*: where one more retrained model would lie. They also
have to pass the same test themselves, or the test cannot decide (`Gate`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from expunge.audit.bands import (
    Gate,
    Scale,
    detectable_means,
    gate,
    leave_one_out,
    prediction_band,
    within,
)
from expunge.audit.intervals import ALPHA, Interval
from expunge.errors import InvalidInput

Status = Literal["ok", "void", "greyed"]
Group = Literal["utility", "membership", "remnant"]

FEWEST_ORACLES = 5


@dataclass(frozen=True)
class Metric:
    """One number of an audit.

    Attributes
    ----------
    name : str
    value : float
    ci : (low, high) or None
        95 % confidence interval over rows (or users).
    band : (low, high) or None
        Where one more retrained model lies with probability 1 − α; for a test with an exact null
        law, where the statistic lies under it.
    in_band : bool or None
    runs : int
        Models that the number needed, the candidate not counted.
    seconds : float
    reading : str
        One sentence for a person.
    group : {"utility", "membership", "remnant"}
        Membership results are greyed when the utility guard fails.
    gate : Gate or None
    no_power : bool or None
        Whether the model before unlearning is not flagged either; None if it was not given.
    detectable : (low, high) or None
        True means beyond these would be flagged with probability 0.8 at least.
    greyed : bool
        Whether the candidate has lost utility, so that leaking nothing means nothing.
    cannot : str
        Why nothing can be decided, whatever the gate says; empty otherwise.
    """

    name: str
    value: float
    ci: Interval | None
    band: Interval | None
    in_band: bool | None
    runs: int
    seconds: float
    reading: str
    group: Group = "membership"
    gate: Gate | None = None
    no_power: bool | None = None
    detectable: Interval | None = None
    greyed: bool = False
    cannot: str = ""

    @property
    def status(self) -> Status:
        """``void`` if retrained models fail the test too, ``greyed`` if utility was lost."""
        if self.cannot or (self.gate is not None and self.gate.void):
            return "void"
        return "greyed" if self.greyed else "ok"

    @property
    def flagged(self) -> bool:
        """Whether the candidate differs from retraining, and the test can decide."""
        return self.in_band is False and self.status != "void"


@dataclass(frozen=True)
class Estimate:
    """What a metric found on one model.

    Attributes
    ----------
    value : float
    ci : (low, high) or None
    step : float
        The smallest change that the number of rows allows; 0 if it is continuous.
    p : float or None
        Of a test that needs no oracle, two-sided.
    """

    value: float
    ci: Interval | None = None
    step: float = 0.0
    p: float | None = None


def judge(
    name: str,
    candidate: Estimate,
    oracles: Sequence[float],
    *,
    reading: str,
    original: float | None = None,
    scale: Scale = "plain",
    alpha: float = ALPHA,
    runs: int | None = None,
    seconds: float = 0.0,
    group: Group = "membership",
    cannot: str = "",
) -> Metric:
    """Compare a candidate with retrained models, two-sided, and let these pass the same test first.

    Parameters
    ----------
    candidate : Estimate
    oracles : sequence of float
        The statistic of each retrained model, at least five.
    original : float, optional
        The statistic of the model before unlearning: if it is not flagged, nothing would be.
    reading : str
        A sentence, with ``{value}``, ``{low}`` and ``{high}`` of the band filled in.

    Raises
    ------
    InvalidInput
        If there are fewer than five oracles.
    """
    if len(oracles) < FEWEST_ORACLES:
        raise InvalidInput(
            f"{name}: a band needs at least {FEWEST_ORACLES} held-out retrained models, got "
            f"{len(oracles)}: train more, with independent seeds"
        )
    band = prediction_band(oracles, scale=scale, step=candidate.step, alpha=alpha)
    return Metric(
        name,
        candidate.value,
        candidate.ci,
        band,
        within(candidate.value, band),
        len(oracles) if runs is None else runs,
        seconds,
        reading.format(value=candidate.value, low=band[0], high=band[1]),
        group,
        leave_one_out(oracles, scale=scale, step=candidate.step, alpha=alpha),
        None if original is None else within(original, band),
        detectable_means(oracles, scale=scale, step=candidate.step, alpha=alpha),
        cannot=cannot,
    )


def judge_alone(
    name: str,
    candidate: Estimate,
    oracles: Sequence[Estimate],
    *,
    reading: str,
    original: Estimate | None = None,
    null: Interval,
    alpha: float = ALPHA,
    runs: int | None = None,
    seconds: float = 0.0,
    group: Group = "membership",
) -> Metric:
    """Put a candidate to a test with a null law of its own, which oracles must pass as well.

    This is how a wrong comparison is found: deleted rows against *retained* rows "detects" every
    perfect retrain, so the gate makes it void.

    Parameters
    ----------
    candidate, oracles, original : Estimate
        With ``p``.
    null : (low, high)
        Where the statistic lies under the null hypothesis with probability 1 − alpha.
    """
    return Metric(
        name,
        candidate.value,
        candidate.ci,
        null,
        not _fails(candidate, alpha),
        len(oracles) if runs is None else runs,
        seconds,
        reading.format(value=candidate.value, low=null[0], high=null[1]),
        group,
        gate([_fails(oracle, alpha) for oracle in oracles], alpha),
        None if original is None else not _fails(original, alpha),
    )


def _fails(found: Estimate, alpha: float) -> bool:
    if found.p is None:
        raise InvalidInput("a test without oracles needs a p-value")
    return found.p <= alpha


def utility_lost(accuracies: Sequence[Metric]) -> bool:
    """Return whether some accuracy lies below its oracle band."""
    return any(m.band is not None and m.value < m.band[0] for m in accuracies)


def grey(metrics: Sequence[Metric]) -> tuple[Metric, ...]:
    """Return the metrics with those on membership marked as meaningless."""
    return tuple(replace(m, greyed=True) if m.group == "membership" else m for m in metrics)
