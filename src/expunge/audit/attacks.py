"""Metrics of the suite that attack one model: is this row one that it was trained on?"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from expunge.audit import lira, population, rmia, svc
from expunge.audit.metric import Estimate, Metric, judge, judge_alone
from expunge.audit.setting import WORDS, Answers, Setting, answers
from expunge.audit.shadows import halves, seeds
from expunge.audit.views import View
from expunge.errors import InvalidInput

REFERENCES = 4
OFFLINE = 16


def loss_attack(setting: Setting, against: str = "T") -> Iterator[Metric]:
    """Yield the population attack against the oracle band, and as a test of its own.

    Parameters
    ----------
    against : {"T", "R"}
        "R" is the comparison of deleted with retained rows that is often seen in the literature;
        every perfect retrain fails it, so its gate is void.
    """
    users = setting.users("S"), setting.users(against)

    def found(model: Answers) -> Estimate:
        return population.loss_attack(
            model.forget, model.of(against), users=users, rng=setting.rng("loss")
        )

    def value(model: Answers) -> float:
        return population.loss_attack(model.forget, model.of(against)).value

    own = found(setting.candidate)
    suffix = "" if against == "T" else f"[S-vs-{against}]"
    yield setting.judged(
        f"loss-auc{suffix}",
        value,
        "Area {value:.3f} of the loss attack on deleted rows against "
        f"{WORDS[against]}; retraining gives {{low:.3f}} to {{high:.3f}}. 0.5: the average "
        "deleted row looks like a row never seen; below, it looks suspiciously bad.",
        own=own,
        scale="logit",
    )
    name = f"loss-test{suffix}"
    reach = (own.ci or (0.0, 1.0))[1] - own.value
    yield judge_alone(
        name,
        own,
        [found(oracle) for oracle in setting.oracle_answers],
        reading="Area {value:.3f} against one half, by the test of equal laws; void if retrained "
        "models fail it too.",
        original=None if setting.original is None else found(setting.original),
        null=(max(0.0, 0.5 - reach), min(1.0, 0.5 + reach)),
        alpha=setting.alpha_of(name),
    )


def support_vectors(setting: Setting) -> Iterator[Metric]:
    """Yield MIA-Efficacy for five features, for reproduction."""
    names: tuple[svc.Feature, ...] = (
        "correctness",
        "confidence",
        "entropy",
        "modified-entropy",
        "probabilities",
    )
    for name in names:
        yield setting.judged(
            f"svc-efficacy[{name}]",
            _efficacy(name),
            "The support vector attack calls {value:.1%} of the deleted rows unseen; of a "
            "retrained model it says so of {low:.1%} to {high:.1%}. Higher is not better.",
            step=1 / len(setting.data.forget),
            scale="logit",
        )


def _efficacy(name: svc.Feature) -> Callable[[Answers], float]:
    return lambda found: svc.efficacy(found.forget, found.retain, found.unseen, name)


def ratio_attack(setting: Setting) -> Iterator[Metric]:
    """Yield RMIA on S, and on R if the pipeline can train references on halves of R."""
    crowd = setting.data.population
    if crowd is None or not (setting.references or setting.pipeline):
        raise InvalidInput("RMIA needs population rows Z, and references or a pipeline")
    references = setting.references or _retrained(setting, "reference", REFERENCES)
    told = [answers(model, setting.data) for model in references]
    yield from _ratio(setting, "S", told, None)
    if setting.pipeline is not None:
        kept = halves(len(setting.data.retain), REFERENCES, setting.seed, setting.data.retain.users)
        numbers = seeds(setting.seed, REFERENCES, "half")
        models = [
            setting.train(setting.data.retain.take(np.flatnonzero(chosen)), number)
            for chosen, number in zip(kept, numbers, strict=True)
        ]
        yield from _ratio(setting, "R", [answers(m, setting.data) for m in models], ~kept)


def _ratio(
    setting: Setting, letter: str, references: Sequence[Answers], left_out: NDArray[np.bool_] | None
) -> Iterator[Metric]:
    members = np.array([-r.of(letter).loss for r in references])
    others = np.array([-r.unseen.loss for r in references])
    crowd = np.array([-r.population.loss for r in references if r.population is not None])

    def scored(model: Answers) -> rmia.Attack:
        assert model.population is not None
        z = rmia.log_ratios(-model.population.loss, crowd)
        x = rmia.log_ratios(-model.of(letter).loss, members, left_out=left_out)
        return rmia.attack(
            rmia.scores(x, z), rmia.scores(rmia.log_ratios(-model.unseen.loss, others), z)
        )

    yield from attacked(setting, "rmia", letter, scored, len(references))


def offline_likelihood(setting: Setting) -> Iterator[Metric]:
    """Yield offline LiRA on S from reference models, of which none has seen S or T."""
    if len(setting.references) < OFFLINE:
        raise InvalidInput(f"LiRA needs at least {OFFLINE} reference models")
    told = [answers(model, setting.data) for model in setting.references]
    inside = np.array([r.forget.phi for r in told])
    outside = np.array([r.unseen.phi for r in told])

    def scored(model: Answers) -> rmia.Attack:
        both = np.concatenate([model.forget.phi, model.unseen.phi])
        found = lira.offline(both, np.concatenate([inside, outside], axis=1))
        count = len(model.forget)
        return rmia.attack(found[:count], found[count:])

    yield from attacked(setting, "lira", "S", scored, len(told))


def attacked(
    setting: Setting,
    kind: str,
    letter: str,
    scored: Callable[[Answers], rmia.Attack],
    references: int,
) -> Iterator[Metric]:
    """Yield area and hit rates of a per-row attack."""
    area = f"{kind}-auc[{letter}]"
    own = scored(setting.candidate)
    oracles = [scored(oracle) for oracle in setting.oracle_answers]
    before = None if setting.original is None else scored(setting.original)
    word, count = WORDS[letter], len(setting.candidate.of(letter))
    yield judge(
        area,
        Estimate(own.area.value, own.area.ci, own.area.step),
        [oracle.area.value for oracle in oracles],
        reading=f"Area {{value:.3f}} of the per-row attack on {word}; retraining gives "
        "{low:.3f} to {high:.3f}.",
        original=None if before is None else before.area.value,
        scale="logit",
        alpha=setting.alpha_of(area),
        runs=len(oracles) + references,
    )
    for level, (value, ci) in own.rates.items():
        name = f"{kind}-tpr[{letter}]@{level:g}"
        yield judge(
            name,
            Estimate(value, ci, 1 / count),
            [oracle.rates[level][0] for oracle in oracles],
            reading=f"At {level:.1%} false alarms the attacker recognises {{value:.1%}} of the "
            f"{word} (retraining: {{low:.1%}} to {{high:.1%}}).",
            original=None if before is None else before.rates[level][0],
            scale="logit",
            alpha=setting.alpha_of(name),
            runs=len(oracles) + references,
        )


def _retrained(setting: Setting, purpose: str, count: int) -> tuple[View, ...]:
    R = setting.data.retain
    return tuple(setting.train(R, number) for number in seeds(setting.seed, count, purpose))
