"""What estimators are given: parameters, weights and ids, checked alike by all of them."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any, ParamSpec, TypeVar

import numpy as np
import scipy.sparse as sp
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator
from sklearn.utils.validation import _check_sample_weight

from expunge.errors import InvalidInput
from expunge.linear.losses import Array
from expunge.linear.rows import Matrix

FLOATS = [np.float64, np.float32]
_P = ParamSpec("_P")
_T = TypeVar("_T")


def all_or_nothing(method: Callable[_P, _T]) -> Callable[_P, _T]:
    """Give an estimator all its attributes back if a method of it raises."""

    @wraps(method)
    def tried(*args: _P.args, **kwargs: _P.kwargs) -> _T:
        attributes = vars(args[0])
        before = attributes.copy()
        try:
            return method(*args, **kwargs)
        except BaseException:
            attributes.clear()
            attributes.update(before)
            raise

    return tried


def positive(estimator: BaseEstimator, name: str, value: Any) -> float:
    """Return a parameter that must be a positive number."""
    number = isinstance(value, int | float | np.number) and not isinstance(value, bool)
    if number and 0 < value < np.inf:
        return float(value)
    raise InvalidInput(
        f"The {name!r} parameter of {type(estimator).__name__} must be a float in the range "
        f"(0, inf). Got {value!r} instead."
    )


def whole(estimator: BaseEstimator, name: str, value: Any, most: float = np.inf) -> int:
    """Return a parameter that must be a whole number from 1 to ``most``."""
    number = isinstance(value, int | np.integer) and not isinstance(value, bool)
    if number and 1 <= value <= most:
        return operator.index(value)
    raise InvalidInput(
        f"The {name!r} parameter of {type(estimator).__name__} must be an int in the range "
        f"[1, {most}{']' if most < np.inf else ')'}. Got {value!r} instead."
    )


def weights_of(sample_weight: ArrayLike, X: Matrix) -> Array:
    """Return weights (n,), finite and not negative, of the rows of ``X``."""
    weight: Array = _check_sample_weight(
        sample_weight, X, dtype=np.float64, ensure_non_negative=True
    )
    return weight


def kept(
    X: Matrix, y: NDArray[Any], sample_weight: ArrayLike | None, ids: Sequence[str] | None
) -> tuple[Matrix, NDArray[Any], Array | None, Sequence[str] | None]:
    """Leave out rows of weight 0: they were never trained on.

    Raises
    ------
    InvalidInput
        If no row is left, or there is not one id per row.
    """
    ids = None if ids is None else list(ids)
    if ids is not None and len(ids) != X.shape[0]:
        raise InvalidInput(f"expected {X.shape[0]} ids, one per row, got {len(ids)}")
    if sample_weight is None:
        return X, y, None, ids
    weight = weights_of(sample_weight, X)
    keep = np.flatnonzero(weight)
    if not len(keep):
        raise InvalidInput("no rows of positive weight to fit")
    if len(keep) == len(weight):
        return X, y, weight, ids
    X = sp.csr_array(X)[keep] if sp.issparse(X) else X[keep]
    return X, y[keep], weight[keep], None if ids is None else [ids[i] for i in keep.tolist()]
