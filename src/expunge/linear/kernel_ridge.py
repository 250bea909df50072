"""Kernel ridge regression as a scikit-learn estimator, with deletions that are exact to the bit."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator, MultiOutputMixin, RegressorMixin
from sklearn.utils.validation import check_is_fitted, validate_data

from expunge.certificate.commit import row_digests
from expunge.certificate.members import Members
from expunge.errors import ExpungeError, InvalidInput
from expunge.guarantee import Assumption, Grade, Guarantee, Tag, grade_of
from expunge.linear.inputs import all_or_nothing, kept, positive, weights_of, whole
from expunge.linear.kernel import KERNELS, Dual, Kernel, fit
from expunge.linear.losses import Array
from expunge.linear.rounded import MAX_BITS

ASSUMPTIONS = (
    Assumption("kernelOfTwoRowsOnly", Tag.enforced),
    Assumption("systemPositiveDefinite", Tag.measured),
    Assumption("roundingDecided", Tag.measured),
    Assumption("policyFixedBeforeRequests", Tag.enforced),
)


@dataclass(frozen=True)
class Deletion:
    """What a deletion did and guarantees.

    Attributes
    ----------
    deleted, retained : int
        Rows that this deletion removed, and rows that are left.
    guarantee : Guarantee
        Of kind exact: ε = δ = μ = 0.
    assumptions : tuple of Assumption
        What the guarantee needs, and how it is known; limits are in docs/kernels.md.
    """

    deleted: int
    retained: int
    guarantee: Guarantee
    assumptions: tuple[Assumption, ...] = ASSUMPTIONS

    @property
    def grade(self) -> Grade:
        """How much of the guarantee is known to hold."""
        return grade_of(self.guarantee.kind, self.assumptions)


@dataclass(frozen=True, repr=False)
class _Sealed:
    """What deletions need: the system, the members, the member of every row, rows trained on."""

    dual: Dual
    members: Members
    places: NDArray[np.int64]
    trained: int


class KernelRidge(MultiOutputMixin, RegressorMixin, BaseEstimator):
    """Kernel ridge regression with deletions that are exact to the bit, without noise.

    Minimises ``Σ_i s_i‖y_i − f(x_i)‖² + alpha‖f‖²`` over the functions f of the kernel's space, as
    scikit-learn does: ``f(x) = Σ_i k(x, x_i) a_i``. The published coefficients are the exact ``a``
    rounded to a grid, so a model after deletions has the bits of a fit on the retained rows.

    **The published model contains its training rows**: ``X_fit_`` is in it as it stands, and with
    ``dual_coef_`` the targets can be computed. Deletion takes the deleted rows out of the next
    release. Where rows must not be published at all, use random features and
    :class:`~expunge.linear.Ridge`, see docs/kernels.md.

    Parameters
    ----------
    alpha : float, default=1.0
        The penalty, positive.
    kernel : {"linear", "polynomial", "rbf", "laplacian"}, default="linear"
        As in scikit-learn. Functions are refused: that their values depend on two rows and nothing
        else, and are positive semidefinite, could not be known.
    gamma : float, optional
        Of the last three; 1 / number of features if not given.
    degree : int, default=3
        Of the polynomial, positive.
    coef0 : float, default=1
        Of the polynomial, not negative.
    bits : int, default=40
        Fineness of the grid, 1 to 42: its spacing is ``2^−bits max|y|/alpha`` within a factor of 2
        (per column of y; with weights, alpha over the largest weight).

    Attributes
    ----------
    dual_coef_ : (n,) or (n, C) array
        The coefficients ``a`` of the retained rows.
    X_fit_ : (n, d) array
        The retained rows, in the order of the training.
    kernel_ : Kernel
        The kernel with all its numbers.
    n_features_in_ : int
    feature_names_in_ : array, if the columns had names

    Examples
    --------
    >>> from sklearn.datasets import load_diabetes
    >>> X, y = load_diabetes(return_X_y=True)
    >>> model = KernelRidge(kernel="rbf", gamma=2.0).fit(X, y)
    >>> model.unlearn(X[:5], y[:5]).grade.value
    'exact'
    >>> fresh = KernelRidge(kernel="rbf", gamma=2.0).fit(X[5:], y[5:])
    >>> bool((model.dual_coef_ == fresh.dual_coef_).all())
    True
    """

    dual_coef_: Array
    X_fit_: Array
    kernel_: Kernel
    _state: _Sealed

    def __init__(
        self,
        alpha: float = 1.0,
        *,
        kernel: str = "linear",
        gamma: float | None = None,
        degree: int = 3,
        coef0: float = 1,
        bits: int = 40,
    ) -> None:
        self.alpha = alpha
        self.kernel = kernel
        self.gamma = gamma
        self.degree = degree
        self.coef0 = coef0
        self.bits = bits

    @all_or_nothing
    def fit(
        self,
        X: ArrayLike,
        y: ArrayLike,
        sample_weight: ArrayLike | None = None,
        ids: Sequence[str] | None = None,
    ) -> Self:
        """Fit, and keep what deletions need.

        Parameters
        ----------
        X : (n, d) array or data frame
        y : (n,) or (n, C) array
        sample_weight : (n,) array, optional
            Rows of weight 0 are left out: they were never trained on.
        ids : sequence of n str, optional
            Whose rows these are; a person may own several. Without ids a row is known by its
            values, and of equal rows the first leaves first.

        Raises
        ------
        InvalidInput
            If the data or a parameter are unusable.
        ToleranceUnreachable
            If alpha is too small beside the rounding of the kernel's values.
        """
        checked: Any = validate_data(
            self, X, y, dtype=np.float64, order="C", multi_output=True, y_numeric=True
        )
        rows: Any
        rows, values, weight, ids = kept(checked[0], checked[1], sample_weight, ids)
        weight = np.ones(len(rows)) if weight is None else weight
        target = _columns(values)
        kernel, alpha = self._kernel(rows.shape[1]), positive(self, "alpha", self.alpha)
        bits = whole(self, "bits", self.bits, MAX_BITS)
        dual = fit(kernel, rows, alpha / weight, target, bits)
        digests = row_digests(rows, target, weight)
        members = Members.enrol(digests, ids)
        self._single, self.kernel_ = values.ndim == 1, kernel
        places = members.find(digests, ids)
        self._publish(np.array(rows), _Sealed(dual, members, places, len(rows)))
        return self

    def predict(self, X: ArrayLike) -> Array:
        """Return the published model's predictions, (n,) or (n, C)."""
        check_is_fitted(self)
        rows: Any = validate_data(self, X, reset=False, dtype=np.float64, order="C")
        predicted: Array = self.kernel_.cross(rows, self.X_fit_) @ self.dual_coef_
        return predicted

    def unlearn(
        self,
        X: ArrayLike,
        y: ArrayLike,
        *,
        sample_weight: ArrayLike | None = None,
        ids: Sequence[str] | None = None,
    ) -> Deletion:
        """Delete rows: the model becomes, bit for bit, that of a fit on the rows that are left.

        Parameters
        ----------
        X : (k, d) array or data frame
            The rows to delete, with the values of the training.
        y : (k,) or (k, C) array
            Their targets.
        sample_weight : (k,) array, optional
            Their weights, if the training had weights.
        ids : sequence of k str, optional
            Whose rows these are; required if the training had ids. All rows of a person must be
            there.

        Raises
        ------
        UnknownRecord, AlreadyDeleted, IncompletePerson, LastOfClass, InvalidInput
            If the rows cannot be deleted.
        ToleranceUnreachable
            If the rounding cannot be decided. Whatever is raised, the estimator is unchanged.
        """
        state = self._sealed()
        checked: Any = validate_data(
            self, X, y, reset=False, dtype=np.float64, order="C", multi_output=True, y_numeric=True
        )
        rows, values = checked
        weight = np.ones(len(rows)) if sample_weight is None else weights_of(sample_weight, rows)
        digests = row_digests(rows, _columns(values), weight)
        removal = state.members.preview(digests, None if ids is None else list(ids))
        gone = np.isin(state.places, removal.positions)
        dual, left = state.dual.without(gone), self.X_fit_[~gone]
        result = Deletion(len(rows), len(left), _guarantee(state))
        state.members.apply(removal)
        self._publish(left, replace(state, dual=dual, places=state.places[~gone]))
        return result

    def __getstate__(self) -> dict[str, Any]:
        """Leave what deletions need out of pickles and copies, which are publications."""
        state: dict[str, Any] = dict(super().__getstate__())
        return {k: v for k, v in state.items() if k != "_state"}

    def _sealed(self) -> _Sealed:
        check_is_fitted(self)
        if not hasattr(self, "_state"):
            raise ExpungeError(
                "this estimator is a copy: it predicts, and cannot unlearn; unlearn in the "
                "original, or fit anew on the retained rows, which gives the same bits"
            )
        return self._state

    def _publish(self, rows: Array, state: _Sealed) -> None:
        coef = state.dual.coef
        self._state, self.X_fit_ = state, rows
        self.dual_coef_ = coef[:, 0].copy() if self._single else coef.copy()

    def _kernel(self, features: int) -> Kernel:
        if callable(self.kernel) or self.kernel not in KERNELS:
            raise InvalidInput(
                f"The 'kernel' parameter of KernelRidge must be one of {', '.join(KERNELS)} (a "
                "function's values are not known to depend on two rows and nothing else). Got "
                f"{self.kernel!r} instead."
            )
        gamma = 1.0 / features if self.gamma is None else positive(self, "gamma", self.gamma)
        coef0 = float(self.coef0)
        if not 0 <= coef0 < math.inf:
            raise InvalidInput(
                "The 'coef0' parameter of KernelRidge must be a float in the range [0, inf). Got "
                f"{self.coef0!r} instead."
            )
        return Kernel(self.kernel, gamma, whole(self, "degree", self.degree, 100), coef0)


def _columns(y: NDArray[Any]) -> Array:
    """Return targets (n, C) of our own: whose array it was may change it later."""
    return np.array(y, dtype=np.float64).reshape(len(y), -1)


def _guarantee(state: _Sealed) -> Guarantee:
    return Guarantee(
        kind="exact",
        epsilon=0.0,
        delta=0.0,
        mu=0.0,
        unit="person" if state.members.named else "record",
        deletions_covered=state.trained,
        releases_covered=state.trained,
    )
