"""Retraining instead of deleting: scikit-learn and statsmodels, cold and warm, one row less."""

from __future__ import annotations

import importlib.util
import sys
import warnings
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from sklearn import linear_model

from bench.convex import Case, timed
from bench.peers.setting import Setting, residual


@dataclass(frozen=True)
class Retrain:
    """One way to retrain on the rows left: seconds (best of three), and ‖∇F‖ where it stopped."""

    name: str
    seconds: float
    residual: float


def retrains(case: Case, setting: Setting, gone: int, target: float) -> list[Retrain]:
    """Retrain without row ``gone``: to default tolerances, and to a residual of ``target``."""
    keep = np.delete(np.arange(len(case.y)), gone)
    found = list(_sklearn(case, setting, keep, target))
    if importlib.util.find_spec("statsmodels"):
        found += _statsmodels(case, setting, keep)
    else:
        print("statsmodels is left out: pip install statsmodels", file=sys.stderr)
    return found


def _sklearn(case: Case, setting: Setting, keep: np.ndarray, target: float) -> Iterator[Retrain]:
    penalty = setting.penalty(case)
    X, y = case.X[keep], case.y[keep]
    tight = {
        "solver": "newton-cholesky",
        "tol": target / len(y) / X.shape[1] ** 0.5,
        "max_iter": 100,
    }
    for kind, options in (("default", {}), ("to_our_residual", tight)):
        for start in ("cold", "warm"):
            model = linear_model.LogisticRegression(
                C=1.0 / penalty, fit_intercept=False, warm_start=start == "warm", **options
            )
            model.fit(case.X, case.y)
            trained = model.coef_.copy()

            def again(model: object = model, trained: np.ndarray = trained) -> None:
                model.coef_ = trained.copy()
                model.fit(X, y)

            seconds = timed(again, repeat=3)
            left = residual(case, keep, model.coef_, penalty)
            yield Retrain(f"sklearn_{start}_{kind}", seconds, left)


def _statsmodels(case: Case, setting: Setting, keep: np.ndarray) -> Iterator[Retrain]:
    """Retrain by the GLM, the one model there with an L2 penalty (``Logit`` has L1 only)."""
    import statsmodels.api as sm

    penalty = setting.penalty(case)

    def fit(rows: np.ndarray, start: np.ndarray | None) -> np.ndarray:
        model = sm.GLM(case.y[rows], case.X[rows], family=sm.families.Binomial())
        options = {"alpha": penalty / len(rows), "L1_wt": 0.0, "opt_method": "L-BFGS-B"}
        return np.asarray(model.fit_regularized(start_params=start, **options).params)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        trained = fit(np.arange(len(case.y)), None)
        for name, start in (("cold", None), ("warm", trained)):
            seconds = timed(lambda start=start: fit(keep, start), repeat=3)
            left = residual(case, keep, fit(keep, start), penalty)
            yield Retrain(f"statsmodels_{name}_default", seconds, left)
