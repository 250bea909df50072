"""What only an auditor with all data and the sealed state can find out."""

from __future__ import annotations

import shutil
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits

from expunge import modelfile
from expunge.certificate.policy import Policy
from expunge.demo.setting import Setting
from expunge.folder import operations
from expunge.folder.operations import Asked
from expunge.folder.records import Records, ids_of
from expunge.folder.store import opened
from expunge.folder.table import from_arrow
from expunge.linear import engine
from expunge.linear.losses import Array
from expunge.linear.rows import Rows
from expunge.report.facts import Accuracy, Findings, Realised, Timing

REPEATS = 3


@dataclass(frozen=True, repr=False)
class Moment:
    """One release as an auditor sees it.

    Attributes
    ----------
    gone : tuple of str
        Who left with it.
    weights : (p, 1) float64
        The parameters before noise.
    published : ReleasedModel
    """

    gone: tuple[str, ...]
    weights: Array
    published: modelfile.ReleasedModel


def look(setting: Setting, gone: tuple[str, ...]) -> Moment:
    """Open the sealed state of the current release."""
    with opened(setting.folder) as store:
        lineage = store.lineage()
    return Moment(gone, lineage.state.weights, modelfile.decode(lineage.content))


def find(setting: Setting, moments: Sequence[Moment], timings: Sequence[Timing]) -> Findings:
    """Retrain after every deletion and compare.

    Parameters
    ----------
    moments : sequence of Moment
        The training, then every deletion.
    """
    policy, records = _encoding(setting)
    rows, owners = _rows(setting, records)
    outside = _held_out(setting, records)
    alive = np.ones(len(owners), dtype=bool)
    first, releases = moments[0], []
    for moment in moments[1:]:
        alive &= ~np.isin(owners, moment.gone)
        state = _fit(rows.take(alive), policy)
        releases.append(
            Realised(
                mu=_distance(moment, state) / policy.sigma,
                idle=_distance(first, state) / policy.sigma,
                accuracy=_accuracy(_weights(moment.published), outside),
                retrained=_accuracy(state.weights, outside),
            )
        )
    peer = _peer(rows.take(alive), policy, tight=True)
    agreement = float(np.linalg.norm(peer - state.weights))
    before = _accuracy(_weights(first.published), outside)
    return Findings(releases, timings, _base(setting, outside, before), agreement)


def _distance(moment: Moment, retrained: engine.State) -> float:
    """Upper bound of the distance to the retrained minimiser, before noise."""
    return float(np.linalg.norm(moment.weights - retrained.weights)) + retrained.bound


def _base(setting: Setting, outside: Rows, before: float) -> Accuracy:
    positive = float((outside.target > 0).mean())
    people = len(set(setting.held_out.column(setting.identifier).to_pylist()))
    error = float(np.sqrt(before * (1 - before) / outside.count))
    return Accuracy(before, max(positive, 1 - positive), error, outside.count, people)


def time_batch(setting: Setting, asked: Asked) -> tuple[float, float]:
    """Return the seconds of deleting the batch, alone and with everything."""

    def forget(folder: Path) -> float:
        return operations.forget(
            folder, setting.batch, asked=asked, passphrase=setting.passphrase
        ).seconds

    return _in_copies(setting, forget)


def time_retrain(setting: Setting) -> tuple[float, float]:
    """Return the seconds of a retrain on what is retained, alone and with everything."""

    def retrain(folder: Path) -> float:
        return operations.retrain(
            folder, data=setting.retained, passphrase=setting.passphrase
        ).seconds

    return _in_copies(setting, retrain)


def _in_copies(setting: Setting, work: Callable[[Path], float]) -> tuple[float, float]:
    """Return the medians of what ``work`` returns and of how long it takes."""
    alone, whole = [], []
    for _ in range(REPEATS):
        copy = Path(shutil.copytree(setting.folder, setting.out / "copy"))
        start = time.perf_counter()
        alone.append(work(copy))
        whole.append(time.perf_counter() - start)
        shutil.rmtree(copy)
    return statistics.median(alone), statistics.median(whole)


def time_peer(setting: Setting) -> list[Timing]:
    """Time scikit-learn's fit of the retained rows, at its defaults and solved tightly."""
    policy, records = _encoding(setting)
    rows, owners = _rows(setting, records)
    kept = rows.take(~np.isin(owners, [*setting.single, *setting.batch]))
    labels = {"retrain, scikit-learn": False, "retrain, scikit-learn, tight": True}
    return [
        Timing(name, _median(partial(_peer, kept, policy, tight=tight)), whole=False, retrain=True)
        for name, tight in labels.items()
    ]


def _median(work: Callable[[], Any]) -> float:
    seconds = []
    for _ in range(REPEATS):
        start = time.perf_counter()
        work()
        seconds.append(time.perf_counter() - start)
    return statistics.median(seconds)


def _encoding(setting: Setting) -> tuple[Policy, Records]:
    with opened(setting.folder) as store:
        return store.policy, Records.of(store.policy, setting.label, setting.identifier)


def _rows(setting: Setting, records: Records) -> tuple[Rows, NDArray[np.str_]]:
    table = records.table(setting.data)
    return records.rows(table), np.array(ids_of(table))


def _held_out(setting: Setting, records: Records) -> Rows:
    return records.rows(
        from_arrow(
            setting.held_out,
            label=setting.label,
            identifier=setting.identifier,
            source="held-out people",
        )
    )


def _fit(rows: Rows, policy: Policy) -> engine.State:
    state, _ = engine.fit(
        rows, loss=policy.loss, l2=policy.l2, tolerance=policy.tolerance, classes=True
    )
    return state


def _peer(rows: Rows, policy: Policy, *, tight: bool) -> Array:
    """Fit with scikit-learn; return its parameters, intercept last, (p, 1).

    One BLAS thread is what it is fastest with on so few columns.
    """
    from sklearn.linear_model import LogisticRegression

    options = {"solver": "newton-cholesky", "tol": 1e-12} if tight else {}
    model = LogisticRegression(C=1 / policy.l2, **options)
    with threadpool_limits(1, user_api="blas"):
        model.fit(rows.X, rows.target[:, 0] > 0)
    return np.vstack([model.coef_.T, model.intercept_])


def _weights(model: modelfile.ReleasedModel) -> Array:
    return model.coef.T if model.intercept is None else np.vstack([model.coef.T, model.intercept])


def _accuracy(weights: Array, rows: Rows) -> float:
    margin = rows.X @ weights[:-1] + weights[-1]
    return float(((margin > 0) == (rows.target > 0)).mean())
