"""Metrics of the suite on answers alone: utility, fidelity, likeness to untrained models."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import numpy as np

from expunge.audit import fidelity, zrf
from expunge.audit.intervals import Array, clopper_pearson
from expunge.audit.metric import Estimate, Metric, judge
from expunge.audit.setting import LETTERS, WORDS, Setting, on
from expunge.audit.views import Outputs

NATS = 1e-9
"""Divergences below this are rounding."""


def utility(setting: Setting) -> Iterator[Metric]:
    """Yield accuracy, macro-F1 and the accuracy gap on S, R and T, and ToW."""
    rng, gaps = setting.rng("utility"), []
    for letter, word in WORDS.items():
        own, users = setting.candidate.of(letter), setting.users(letter)
        others = [oracle.of(letter) for oracle in setting.oracle_answers]
        hits = int(own.correct.sum())
        ci = (
            clopper_pearson(hits, len(own))
            if users is None
            else fidelity.mean_interval(own.correct, rng, users)
        )
        share = setting.judged(
            f"accuracy[{letter}]",
            on(letter, fidelity.accuracy),
            f"Right on {{value:.1%}} of {word}; retraining gives {{low:.1%}} to {{high:.1%}}.",
            own=Estimate(fidelity.accuracy(own), ci, 1 / len(own)),
            scale="logit",
            group="utility",
        )
        yield share
        yield setting.judged(
            f"macro-f1[{letter}]",
            on(letter, fidelity.macro_f1),
            f"Macro-F1 {{value:.3f}} on {word}; retraining gives {{low:.3f}} to {{high:.3f}}.",
            own=Estimate(
                fidelity.macro_f1(own),
                fidelity.macro_f1_interval(own, rng, users),
                1 / len(own),
            ),
            scale="logit",
            group="utility",
        )
        gap = fidelity.gap(own, others, rng, users)
        gaps.append(gap[0])
        yield _shifted(share, f"accuracy-gap[{letter}]", gap, word)
    yield _tow(setting, gaps)


def _shifted(share: Metric, name: str, gap: tuple[float, tuple[float, float]], word: str) -> Metric:
    """Return the gap to the mean oracle, with the accuracy's band moved by that mean."""
    mean = share.value - gap[0]
    assert share.band is not None
    detectable = share.detectable
    return replace(
        share,
        name=name,
        value=gap[0],
        ci=gap[1],
        band=(share.band[0] - mean, share.band[1] - mean),
        detectable=None if detectable is None else (detectable[0] - mean, detectable[1] - mean),
        reading=f"Right on {gap[0]:+.1%} more of {word} than the mean of retraining.",
    )


def _tow(setting: Setting, gaps: Sequence[float]) -> Metric:
    table = np.array(
        [[fidelity.accuracy(o.of(x)) for x in LETTERS] for o in setting.oracle_answers]
    )
    others = [
        fidelity.tug_of_war(*(row - np.delete(table, i, axis=0).mean(axis=0)))
        for i, row in enumerate(table)
    ]
    original = None
    if setting.original is not None:
        before = [fidelity.accuracy(setting.original.of(x)) for x in LETTERS]
        original = fidelity.tug_of_war(*(np.array(before) - table.mean(axis=0)))
    return judge(
        "tow",
        Estimate(fidelity.tug_of_war(*gaps), step=1 / len(setting.data.forget)),
        others,
        reading="Tug-of-war {value:.3f}, 1 is ideal; retraining against itself gives {low:.3f} to "
        "{high:.3f}.",
        original=original,
        scale="logit",
        alpha=setting.alpha_of("tow"),
        group="utility",
    )


def agreement(setting: Setting) -> Iterator[Metric]:
    """Yield disagreement with retraining, and divergence from it, on S, R and T."""
    rng = setting.rng("agreement")
    kinds: dict[str, tuple[Callable[[Outputs, Outputs], Array], str]] = {
        "disagreement": (
            fidelity.disagreement,
            "Predicts another label than retraining on {value:.2%} of %s; two retrainings differ "
            "on {low:.2%} to {high:.2%}.",
        ),
        "kl": (
            fidelity.divergence,
            "{value:.3g} nats from retraining on %s; two retrainings are {low:.3g} to {high:.3g} "
            "apart.",
        ),
    }
    for letter, word in WORDS.items():
        others = [oracle.of(letter) for oracle in setting.oracle_answers]
        own = setting.candidate.of(letter)
        fidelity.same_rows(own, others)
        for kind, (row, reading) in kinds.items():
            mine = np.mean([row(own, other) for other in others], axis=0)
            ci = fidelity.mean_interval(mine, rng, setting.users(letter))
            original = None
            if setting.original is not None:
                before = setting.original.of(letter)
                original = float(np.mean([row(before, other).mean() for other in others]))
            name, step = f"{kind}[{letter}]", NATS if kind == "kl" else 1 / len(own)
            yield judge(
                name,
                Estimate(float(mine.mean()), ci, step),
                _against_each_other(others, row, step),
                reading=reading.replace("%s", word),
                original=original,
                scale="log",
                alpha=setting.alpha_of(name),
                group="utility",
            )


def _against_each_other(
    models: Sequence[Outputs], row: Callable[[Outputs, Outputs], Array], step: float
) -> list[float]:
    """Return each oracle's mean distance from the others, spread out for what they share.

    Let the distance of models k and l be ``a_k + a_l``. Oracle i is at ``a_i(m − 2)/(m − 1)`` plus
    what all share, a candidate at ``a_u`` plus that: the oracles' spread is too small by
    ``(m − 2)/(m − 1)``, and a band of it would be left in 9 % of cases instead of 5 %. So it is
    stretched, on the logarithmic scale of the band.
    """
    found = [
        float(np.mean([row(own, other).mean() for j, other in enumerate(models) if j != i]))
        for i, own in enumerate(models)
    ]
    logs, m = np.log(np.maximum(found, step / 2)), len(models)
    return [float(v) for v in np.exp(logs.mean() + (logs - logs.mean()) * (m - 1) / (m - 2))]


def randomness(setting: Setting) -> Iterator[Metric]:
    """Yield ZRF on S."""
    S = setting.data.forget
    blank = [model.outputs(S.X, S.y) for model in setting.untrained]
    mine = zrf.row_scores(setting.candidate.forget, blank)
    yield setting.judged(
        "zrf",
        lambda a: float(zrf.row_scores(a.forget, blank).mean()),
        "Likeness {value:.3f} to untrained models on deleted rows; retraining gives {low:.3f} to "
        "{high:.3f}. Descriptive.",
        own=Estimate(
            float(mine.mean()),
            fidelity.mean_interval(mine, setting.rng("zrf"), setting.users("S")),
            NATS,
        ),
        scale="logit",
        group="remnant",
        extra=len(blank),
    )
