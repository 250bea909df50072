"""Metrics that plant something in the data, train, unlearn it, and look for what is left."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import ndtri

from expunge.audit import confusion, poison
from expunge.audit.intervals import Array
from expunge.audit.metric import Estimate, Metric, judge, judge_alone
from expunge.audit.parts import Part, joined
from expunge.audit.setting import Setting, forgotten
from expunge.audit.shadows import seeds
from expunge.audit.views import View, outputs_of, view
from expunge.errors import InvalidInput

ORACLES = 5


def interclass(setting: Setting) -> Iterator[Metric]:
    """Yield the confusion of two classes that is left on T and on S, after swapped labels."""
    pipeline, data = setting.pipeline, setting.data
    if pipeline is None:
        raise InvalidInput("interclass confusion needs a pipeline")
    D = data.trained
    labels, counts = np.unique(D.y, return_counts=True)
    a, b = labels[np.argsort(-counts, kind="stable")[:2]]
    rng, count = setting.rng("confusion"), len(data.forget) - len(data.forget) % 2
    chosen, mixed = confusion.swapped(D.y, a, b, max(count, 2), rng)
    rest = np.setdiff1d(np.arange(len(D)), chosen)
    S, R, true = D.labelled(mixed).take(chosen), D.take(rest), D.take(chosen)
    number, *others = seeds(setting.seed, ORACLES + 1, "confusion")
    before = view(pipeline.train(joined(S, R), number))
    after = forgotten(setting, before.model, S, R, number)
    retrained = [setting.train(R, other) for other in others]
    for letter, rows, word in (("T", data.unseen, "rows never seen"), ("S", true, "deleted rows")):

        def found(model: View, rows: Part = rows) -> Estimate:
            pair = model.columns(np.array([a, b]))
            return confusion.confusion(model.outputs(rows.X, rows.y), int(pair[0]), int(pair[1]))

        name = f"confusion[{letter}]"
        yield judge(
            name,
            found(after),
            [found(model).value for model in retrained],
            reading=f"{{value:.1%}} of {word} of two classes are confused after their swapped "
            "labels were unlearned; retraining gives {low:.1%} to {high:.1%}.",
            original=found(before).value,
            scale="logit",
            alpha=setting.alpha_of(name),
            runs=ORACLES + 2,
            group="remnant",
        )


def poisoned(setting: Setting) -> Iterator[Metric]:
    """Yield the Gaussian-poison statistic of a model that was trained on planted noise."""
    pipeline, S, R = setting.pipeline, setting.data.forget, setting.data.retain
    if pipeline is None or not isinstance(S.X, np.ndarray) or S.X.dtype.kind != "f":
        raise InvalidInput("poison canaries need a pipeline, and rows that are arrays of numbers")
    sigma = poison.scale_for_tables(S.X)
    planted, noise = poison.plant(S.X, sigma, setting.rng("poison"))
    number = seeds(setting.seed, 1, "poison")[0]
    bad = Part(planted.astype(S.X.dtype), S.y, S.users)
    before = view(pipeline.train(joined(bad, R), number))

    def found(model: View) -> Estimate:
        told = poison.remembered(noise, gradients(model, S.X, S.y), sigma)
        return Estimate(told.z, p=told.p)

    alpha = setting.alpha_of("poison")
    reach = -float(ndtri(alpha / 2))
    yield judge_alone(
        "poison",
        found(forgotten(setting, before.model, bad, R, number)),
        [found(oracle) for oracle in setting.oracles],
        original=found(before),
        reading="The correlation with the exact noise that was planted is z = {value:.2f}; a model "
        "that does not remember it gives {low:.2f} to {high:.2f}.",
        null=(-reach, reach),
        alpha=alpha,
        runs=len(setting.oracles) + 2,
        group="remnant",
    )


def gradients(model: View, X: Array, y: ArrayLike) -> Array:
    """Return the input gradients of a linear estimator or a torch module.

    Raises
    ------
    InvalidInput
        If the model shows neither ``coef_`` nor gradients.
    """
    if hasattr(model.model, "coef_"):
        told = outputs_of(model.answer(X), model.columns(y), gives="logits")
        return poison.linear_input_gradients(model.model.coef_, told)
    if hasattr(model.model, "parameters"):
        from expunge.audit.networks import input_gradients

        return input_gradients(model.model, X, model.columns(y))
    raise InvalidInput(
        f"{type(model.model).__name__} shows no weights: poison canaries need a linear estimator "
        "(coef_) or a torch module"
    )
