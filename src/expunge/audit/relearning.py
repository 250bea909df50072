"""Metrics of the suite that teach networks the forget set again: relearn time, anamnesis index."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from expunge.audit import relearn
from expunge.audit.intervals import Array
from expunge.audit.metric import Estimate, Metric, judge
from expunge.audit.relearn import Criterion
from expunge.audit.setting import Setting
from expunge.audit.shadows import seeds
from expunge.audit.views import View
from expunge.errors import InvalidInput

ORDERS = 5
RATES = (1e-2, 1e-3)


def again(setting: Setting) -> Iterator[Metric]:
    """Yield the ratios of steps, candidate over the median of retrained models.

    The learning rate is the first that an oracle can be judged with. Ratios are void where none is.

    Raises
    ------
    InvalidInput
        Without the model before unlearning, or if a model is no torch module.
    """
    if setting.original is None:
        raise InvalidInput("relearn time needs the model before unlearning, for its loss on S")
    before = setting.original.forget
    criteria: dict[str, tuple[Criterion, str]] = {
        "relearn": (relearn.loss_within(float(before.loss.mean())), "loss"),
        "anamnesis": (relearn.accuracy_within(float(before.correct.mean())), "accuracy"),
    }
    rows = setting.data.forget.X, setting.oracles[0].columns(setting.data.forget.y)
    numbers = seeds(setting.seed, ORDERS, "relearn")
    for name, (reached, word) in criteria.items():
        lr = _rate(setting.oracles[0], rows, reached, numbers)
        own, *others = (
            _times(model, rows, reached, lr, numbers)
            for model in (setting.models["candidate"], *setting.oracles)
        )
        yield _judged(setting, name, word, own, np.array(others))


def _judged(setting: Setting, name: str, word: str, own: Array, others: Array) -> Metric:
    found = relearn.compare(own, others)
    middle = max(float(np.median(others)), 1e-12)
    return judge(
        name,
        Estimate(found.ratio, step=1 / middle),
        [float(np.median(times)) / middle for times in others],
        reading=f"The {word} on deleted rows comes back after {{value:.2f}} times the steps that "
        "retrained models need ({low:.2f} to {high:.2f}; log-rank p = "
        f"{found.p:.2g}). Much below 1: the knowledge was hidden, not removed.",
        scale="log",
        alpha=setting.alpha_of(name),
        group="remnant",
        cannot=found.void,
    )


def _rate(
    oracle: View, rows: tuple[object, NDArray[np.intp]], reached: Criterion, numbers: Sequence[int]
) -> float:
    """Return the learning rate, fixed on an oracle."""
    for lr in RATES:
        times = _times(oracle, rows, reached, lr, numbers[:1])
        if relearn.TOO_FAST < times[0] < relearn.CAP:
            return lr
    return RATES[0]


def _times(
    model: View,
    rows: tuple[object, NDArray[np.intp]],
    reached: Criterion,
    lr: float,
    numbers: Sequence[int],
) -> Array:
    from expunge.audit.networks import relearn as steps

    if not hasattr(model.model, "parameters"):
        raise InvalidInput(f"relearn time is for torch modules, not {type(model.model).__name__}")
    return np.array([steps(model.model, *rows, reached, lr=lr, seed=n) for n in numbers], float)
