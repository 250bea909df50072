"""Metrics that compare laws of margins over many runs: KLoM, U-LiRA, RULI, the challenge's score.

One set of runs serves all: N models trained on S and R that then unlearn S, and 2N that are trained
on R. All rows of S are deleted together, so U-LiRA and RULI are those of this request, not of
requests for one row each.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial

import numpy as np

from expunge.audit import challenge, fidelity, klom, ulira
from expunge.audit.bands import rank_band, relabelled, within
from expunge.audit.intervals import Array, Interval
from expunge.audit.metric import Metric
from expunge.audit.parts import Part
from expunge.audit.setting import LETTERS, WORDS, Setting, forgotten
from expunge.audit.shadows import Arrays, digest, seeds
from expunge.audit.views import View, view
from expunge.errors import InvalidInput

LEAST_RUNS = 16
TARGETS = 50
MOST_ROWS = 1000
_DRAWS = 200
Statistic = Callable[[Array, Array], Array]
"""Numbers (q,) from margins (runs, rows) under two laws."""


@dataclass(frozen=True)
class Laws:
    """Margins (runs, rows) by part, S, R and T.

    Attributes
    ----------
    kept, unlearned : dict of str to (N, n) array
        Of one and the same model before and after unlearning.
    retrained : dict of str to (2N, n) array
    """

    kept: dict[str, Array] = field(repr=False)
    unlearned: dict[str, Array] = field(repr=False)
    retrained: dict[str, Array] = field(repr=False)

    def halves(self, letter: str) -> tuple[Array, Array]:
        """Return the retrained runs in two halves."""
        all_runs = self.retrained[letter]
        return all_runs[: len(all_runs) // 2], all_runs[len(all_runs) // 2 :]


def collect(setting: Setting) -> Laws:
    """Make the runs, or read those that are kept.

    Raises
    ------
    InvalidInput
        Without a pipeline, or with fewer than `LEAST_RUNS` runs.
    """
    pipeline, data = setting.pipeline, setting.data
    if pipeline is None or setting.runs < LEAST_RUNS:
        raise InvalidInput(
            f"laws need a pipeline and at least {LEAST_RUNS} runs, got {setting.runs}: 50 or more "
            "are better"
        )
    rows = {letter: _sample(setting, letter) for letter in LETTERS}

    def unlearn(number: int) -> Arrays:
        model = pipeline.train(data.trained, number)
        before = _margins(view(model), rows, "kept")
        after = forgotten(setting, model, data.forget, data.retain, number)
        return before | _margins(after, rows, "unlearned")

    def retrain(number: int) -> Arrays:
        return _margins(setting.train(data.retain, number), rows, "retrained")

    about = {"pipeline": dict(pipeline.about), "data": _digest(setting), "rows": MOST_ROWS}
    numbers = [seeds(setting.seed, c, p) for c, p in ((setting.runs, "U"), (2 * setting.runs, "Q"))]
    found = setting.runner.run("unlearned", unlearn, numbers[0], about)
    found |= setting.runner.run("retrained", retrain, numbers[1], about)
    kinds = ("kept", "unlearned", "retrained")
    return Laws(*({x: found[f"{kind}-{x}"] for x in LETTERS} for kind in kinds))


def _sample(setting: Setting, letter: str) -> Part:
    rows: Part = getattr(setting.data, LETTERS[letter])
    if len(rows) <= MOST_ROWS:
        return rows
    chosen = setting.rng(f"rows {letter}").choice(len(rows), MOST_ROWS, replace=False)
    return rows.take(np.sort(chosen))


def _margins(model: View, rows: dict[str, Part], kind: str) -> dict[str, Array]:
    return {f"{kind}-{x}": model.outputs(part.X, part.y).phi for x, part in rows.items()}


def _digest(setting: Setting) -> str:
    """Return a digest of what the runs are trained and judged on."""
    found: list[object] = []
    for letter in LETTERS:
        rows: Part = getattr(setting.data, LETTERS[letter])
        X = rows.X.toarray() if hasattr(rows.X, "toarray") else rows.X
        found += [X, rows.y]
    return digest(*found)


def divergence(setting: Setting, laws: Laws) -> Iterator[Metric]:
    """Yield KLoM, Gaussian, by quantiles and as published, mean and 95th percentile, on S, R, T."""
    forms: dict[str, Callable[[Array, Array], Array]] = {
        "klom": klom.gaussian,
        "klom-quantile": klom.quantile,
        "klom-benchmark": klom.benchmark,
    }
    for letter, word in WORDS.items():
        for form, rowwise in forms.items():
            rows = rowwise(laws.unlearned[letter], laws.halves(letter)[0])
            ci = fidelity.mean_interval(rows, setting.rng(f"{form}[{letter}]"))
            reading = (
                f"Margins of {word} differ from retraining by {{value:.3f}} nats %s; two halves "
                "of the retrained runs by {other:.3f}. 0: as under retraining; 0.125: half a "
                "standard deviation off."
            )
            yield from _compared(
                setting,
                laws,
                (f"{form}[{letter}]", f"{form}-95[{letter}]"),
                partial(_summarised, rowwise),
                letter,
                (reading % "on average", reading % "at the 95th percentile"),
                ci=ci,
            )


def _summarised(rowwise: Callable[[Array, Array], Array], u: Array, r: Array) -> Array:
    found = klom.summary(rowwise(u, r))
    return np.array([found.mean, found.high])


def forgetting_score(setting: Setting, laws: Laws) -> Iterator[Metric]:
    """Yield the challenge's F beside that of retraining, with both families and with one."""
    ratio = [
        (
            fidelity.accuracy(setting.candidate.of(letter)),
            float(np.mean([fidelity.accuracy(o.of(letter)) for o in setting.oracle_answers])),
        )
        for letter in ("R", "T")
    ]
    forms: dict[str, challenge.Families] = {"challenge": "both", "challenge-one": "single"}
    for name, families in forms.items():
        statistic = _single(partial(challenge.forgetting, families=families))
        score = float(statistic(laws.unlearned["S"], laws.halves("S")[0])[0])
        final = challenge.final_score(score, ratio[0], ratio[1])
        reading = (
            f"The 2023 challenge gives F = {{value:.3f}} (final score {final:.3f}); retraining "
            "scores {other:.3f} against itself, not 1."
        )
        yield from _compared(setting, laws, (name,), statistic, "S", (reading,))


def _single(statistic: Callable[[Array, Array], float]) -> Statistic:
    return lambda u, r: np.array([statistic(u, r)])


def likelihood(setting: Setting, laws: Laws) -> Iterator[Metric]:
    """Yield U-LiRA on the most memorised rows (RULI's privacy), and RULI's efficacy."""
    _, second = laws.halves("S")
    chosen = _targets(laws.kept["S"], second)
    told = f"the {len(chosen)} most memorised rows, all deleted together"
    few = Laws(*({"S": x["S"][:, chosen]} for x in (laws.kept, laws.unlearned, laws.retrained)))
    reading = (
        f"Knowing the algorithm, an attacker is right in {{value:.1%}} of guesses about {told} (50 "
        "% = cannot tell; two halves of the retrained runs: {other:.1%})."
    )
    accuracy = _single(ulira.mean_accuracy)
    yield from _compared(setting, few, ("ulira",), accuracy, "S", (reading,))
    alpha = setting.alpha_of("ulira-worst")
    u, h = few.unlearned["S"], few.halves("S")[0]
    yield _worst(ulira.attack(u, h, setting.rng("ulira-worst"), alpha=alpha), alpha)
    reading = (
        f"Models that unlearned {told} are told from models that still have them in {{value:.1%}} "
        "of guesses; retrained ones in {other:.1%}. Good: equal."
    )
    efficacy = _single(lambda a, _: ulira.mean_accuracy(a, few.kept["S"]))
    yield from _compared(setting, few, ("ruli-efficacy",), efficacy, "S", (reading,))


def _targets(kept: Array, retrained: Array) -> Array:
    """Return the rows whose margins training raises most, in standard deviations."""
    rise = kept.mean(axis=0) - retrained.mean(axis=0)
    spread = np.sqrt(kept.var(axis=0, ddof=1) + retrained.var(axis=0, ddof=1))
    return np.array(ulira.most_memorised(rise / np.maximum(spread, 1e-12), TARGETS))


def _worst(privacy: ulira.Rows, alpha: float) -> Metric:
    row = privacy.rows[privacy.worst]
    return Metric(
        "ulira-worst",
        row.held_out,
        row.ci,
        None,
        bool(privacy.p > alpha),
        row.runs,
        0.0,
        f"On the worst of {len(privacy.rows)} rows an attacker is right in {row.held_out:.1%} of "
        f"held-out guesses (50 % = cannot tell); p = {privacy.p:.2g} for all rows together.",
    )


def _compared(
    setting: Setting,
    laws: Laws,
    names: tuple[str, ...],
    statistic: Statistic,
    letter: str,
    readings: tuple[str, ...],
    *,
    ci: Interval | None = None,
) -> Iterator[Metric]:
    """Compare N unlearned with N retrained runs by relabelling, halves of retrained runs beside it.

    The interval belongs to the first name.
    """
    (first, second), pool = laws.halves(letter), laws.retrained[letter]
    values, others = statistic(laws.unlearned[letter], first), statistic(first, second)
    before = statistic(laws.kept[letter], first)
    levels = [setting.alpha_of(name) for name in names]
    drawn = relabelled(
        statistic,
        laws.unlearned[letter],
        pool,
        setting.rng(names[0]),
        draws=max(_DRAWS, math.ceil(10 / min(levels))),
    )
    for k, (name, reading) in enumerate(zip(names, readings, strict=True)):
        band, value = rank_band(drawn[:, k], levels[k]), float(values[k])
        yield Metric(
            name,
            value,
            ci if k == 0 else None,
            band,
            within(value, band),
            len(pool) + len(first),
            0.0,
            reading.format(value=value, other=float(others[k])),
            no_power=within(float(before[k]), band),
        )
