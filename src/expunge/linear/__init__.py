"""Convex models that can forget: the engine, and scikit-learn estimators on top of it."""

from __future__ import annotations

from importlib import import_module
from typing import Any

_NAMES = {
    "ElasticNet": "regressors",
    "GammaRegressor": "regressors",
    "HuberRegressor": "regressors",
    "KernelRidge": "kernel_ridge",
    "LinearSVC": "classifiers",
    "LogisticRegression": "classifiers",
    "PoissonRegressor": "regressors",
    "Ridge": "regressors",
    "RidgeClassifier": "classifiers",
    "Rows": "rows",
    "make_rows": "rows",
}
__all__ = sorted(_NAMES)


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used (PEP 562)."""
    if name in _NAMES:
        return getattr(import_module(f"{__name__}.{_NAMES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
