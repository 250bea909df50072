"""scikit-learn regressors that can forget.

Parameters that scikit-learn has keep its names and meanings; a few more fix the guarantee before
the first request: ``epsilon``, ``delta``, ``releases``, ``sigma`` and ``noise``. Coefficients and
predictions are always those of the published, noised model.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import MultiOutputMixin, RegressorMixin
from sklearn.metrics import d2_tweedie_score
from sklearn.utils.validation import validate_data

from expunge.errors import InvalidInput
from expunge.linear.inputs import FLOATS, all_or_nothing, kept, positive
from expunge.linear.losses import Array
from expunge.linear.unlearner import Unlearner
from expunge.modelfile import ReleasedModel


class _Penalised(RegressorMixin, Unlearner):
    """Regressors with a penalty alpha."""

    def __init__(
        self,
        alpha: float = 1.0,
        *,
        fit_intercept: bool = True,
        epsilon: float = 1.0,
        delta: float = 1e-6,
        releases: int = 1000,
        sigma: float = 1e-3,
        noise: str = "gaussian",
        random_state: int | None = None,
    ) -> None:
        self.alpha = alpha
        self.fit_intercept = fit_intercept
        self.epsilon = epsilon
        self.delta = delta
        self.releases = releases
        self.sigma = sigma
        self.noise = noise
        self.random_state = random_state

    def _l2(self) -> float:
        return positive(self, "alpha", self.alpha)


class Ridge(MultiOutputMixin, _Penalised):
    """Ridge regression with certified deletion, from O(d²) sums.

    Minimises ``Σ_i s_i ‖y_i − x_iᵀw − b‖² + alpha‖w‖²``, as scikit-learn does.

    Parameters
    ----------
    alpha : float, default=1.0
        The L2 penalty, positive.
    fit_intercept, epsilon, delta, releases, noise, random_state
        As for :class:`~expunge.linear.LogisticRegression`.
    sigma : float, default=1e-3
        Standard deviation of the noise, in units of a coefficient.

    Attributes
    ----------
    coef_ : (d,) or (C, d) array
        The released coefficients.
    intercept_ : float or (C,) array
    policy_, n_features_in_, feature_names_in_
        As for :class:`~expunge.linear.LogisticRegression`.

    Examples
    --------
    >>> from sklearn.datasets import load_diabetes
    >>> X, y = load_diabetes(return_X_y=True)
    >>> model = Ridge().fit(X, y)
    >>> model.unlearn(X[:5], y[:5]).grade.value
    'certified'
    """

    _loss = "squared"

    @all_or_nothing
    def fit(
        self,
        X: ArrayLike,
        y: ArrayLike,
        sample_weight: ArrayLike | None = None,
        ids: Sequence[str] | None = None,
    ) -> Self:
        """Fit, publish release 1, and keep the sealed state for deletions.

        Parameters and errors as for :meth:`expunge.linear.LogisticRegression.fit`; ``y`` is (n,) or
        (n, C).
        """
        checked: Any = validate_data(
            self, X, y, accept_sparse="csr", dtype=FLOATS, **self._y_rules()
        )
        rows, values, weight, ids = kept(checked[0], checked[1], sample_weight, ids)
        self._single = values.ndim == 1
        self._train(
            rows, self._encode(values, self._loss), weight, ids, loss=self._loss, classes=None
        )
        return self

    def predict(self, X: ArrayLike) -> Array:
        """Return the released model's predictions, (n,) or (n, C)."""
        scores = self._scores(X)
        return scores[:, 0] if self._single else scores

    def _y_rules(self) -> dict[str, Any]:
        return {"multi_output": True, "y_numeric": True}

    def _encode(self, y: NDArray[Any], loss: str) -> Array:
        return np.asarray(y, dtype=np.float64).reshape(len(y), -1)

    def _show(self, model: ReleasedModel) -> None:
        super()._show(model)
        if self._single:
            self.coef_, self.intercept_ = self.coef_[0], float(np.ravel(self.intercept_)[0])


class _SingleTarget(_Penalised):
    """Regressors of one target; ``_total`` is the sum of weights at the fit, a public constant."""

    @all_or_nothing
    def fit(
        self,
        X: ArrayLike,
        y: ArrayLike,
        sample_weight: ArrayLike | None = None,
        ids: Sequence[str] | None = None,
    ) -> Self:
        """Fit, publish release 1, and keep the sealed state for deletions.

        Parameters and errors as for :meth:`expunge.linear.LogisticRegression.fit`.
        """
        checked: Any = validate_data(self, X, y, accept_sparse="csr", dtype=FLOATS, y_numeric=True)
        rows, values, weight, ids = kept(checked[0], checked[1], sample_weight, ids)
        self._total = float(len(values) if weight is None else weight.sum())
        self._train(
            rows, self._encode(values, self._loss), weight, ids, loss=self._loss, classes=None
        )
        return self

    def predict(self, X: ArrayLike) -> Array:
        """Return the released model's predictions, (n,)."""
        return self._scores(X)[:, 0]

    def _encode(self, y: NDArray[Any], loss: str) -> Array:
        values: Array = np.asarray(y, dtype=np.float64)[:, None] / self._unit()
        return values

    def _show(self, model: ReleasedModel) -> None:
        super()._show(model)
        self.coef_, self.intercept_ = self.coef_[0], float(np.ravel(self.intercept_)[0])


class ElasticNet(_SingleTarget):
    """Linear regression with L1 and L2 penalties and certified deletion, from O(d²) sums.

    Minimises ``(1/2n) Σ_i s_i (y_i − x_iᵀw − b)² + α·l1_ratio·‖w‖₁ + ½·α·(1 − l1_ratio)‖w‖²`` as
    scikit-learn does, n the sum of weights *at the first fit*: a public constant from then on.
    The published coefficients carry noise, so none of them is 0; setting those below a few sigma to
    0 is free post-processing.

    Parameters
    ----------
    alpha : float, default=1.0
        Strength of both penalties, positive.
    l1_ratio : float, default=0.5
        Share of the L1 penalty, at least 0 and below 1. A Lasso (1) is refused: without an L2 part
        the minimiser may jump when one row is deleted, so no distance can be proved.
    fit_intercept, epsilon, delta, releases, noise, random_state
        As for :class:`~expunge.linear.LogisticRegression`.
    sigma : float, default=1e-3
        Standard deviation of the noise, in units of a coefficient.

    Attributes
    ----------
    coef_ : (d,) array
        The released coefficients.
    intercept_ : float
    policy_, n_features_in_, feature_names_in_
        As for :class:`~expunge.linear.LogisticRegression`.
    """

    _loss = "squared"

    def __init__(
        self,
        alpha: float = 1.0,
        *,
        l1_ratio: float = 0.5,
        fit_intercept: bool = True,
        epsilon: float = 1.0,
        delta: float = 1e-6,
        releases: int = 1000,
        sigma: float = 1e-3,
        noise: str = "gaussian",
        random_state: int | None = None,
    ) -> None:
        super().__init__(
            alpha,
            fit_intercept=fit_intercept,
            epsilon=epsilon,
            delta=delta,
            releases=releases,
            sigma=sigma,
            noise=noise,
            random_state=random_state,
        )
        self.l1_ratio = l1_ratio

    def _l2(self) -> float:
        return super()._l2() * (1.0 - self._ratio()) * self._total

    def _l1(self) -> float:
        return super()._l2() * self._ratio() * self._total

    def _ratio(self) -> float:
        ratio = self.l1_ratio
        if not isinstance(ratio, int | float | np.number) or not 0 <= ratio < 1:
            raise InvalidInput(
                f"The 'l1_ratio' parameter of {type(self).__name__} must be a float in the range "
                f"[0, 1), got {ratio!r}: without an L2 part the minimiser may jump when one row is "
                "deleted, and no distance can be proved. 0.99 is nearly a Lasso"
            )
        return float(ratio)


class HuberRegressor(_SingleTarget):
    """Robust linear regression of fixed scale with certified deletion.

    Minimises ``Σ_i s_i h(y_i − x_iᵀw − b) + ½·alpha‖w‖² + ½·alpha(b/intercept_scaling)²``, with
    ``h(r) = ½r²`` for ``|r| ≤ threshold``, beyond it ``threshold·(|r| − ½·threshold)``.
    scikit-learn's estimates the scale from everybody's residuals; here it is a public constant: its
    model with ``epsilon`` e and found ``scale_`` s is this one with ``threshold = e·s`` and
    ``alpha·s``. The loss has no third derivative, so nothing but the penalty bounds a distance:
    every deletion needs the retained data, and the intercept is penalised.

    Parameters
    ----------
    alpha : float, default=1.0
        The L2 penalty, positive.
    threshold : float, default=1.35
        Residual beyond which the loss is linear, in units of y.
    fit_intercept : bool, default=True
    intercept_scaling : float, default=1.0
        The constant feature whose coefficient is the intercept. Larger: less penalised, and more
        noise on the intercept (``intercept_scaling * sigma``).
    epsilon, delta, releases, noise, random_state
        As for :class:`~expunge.linear.LogisticRegression`; ``epsilon`` is that of the guarantee.
    sigma : float, default=1e-3
        Standard deviation of the noise, in units of a coefficient.

    Attributes
    ----------
    coef_ : (d,) array
        The released coefficients. The model file and the certificate speak of ``coef_/threshold``.
    intercept_ : float
    policy_, n_features_in_, feature_names_in_
        As for :class:`~expunge.linear.LogisticRegression`.
    """

    _loss = "huber"

    def __init__(
        self,
        alpha: float = 1.0,
        *,
        threshold: float = 1.35,
        fit_intercept: bool = True,
        intercept_scaling: float = 1.0,
        epsilon: float = 1.0,
        delta: float = 1e-6,
        releases: int = 1000,
        sigma: float = 1e-3,
        noise: str = "gaussian",
        random_state: int | None = None,
    ) -> None:
        super().__init__(
            alpha,
            fit_intercept=fit_intercept,
            epsilon=epsilon,
            delta=delta,
            releases=releases,
            sigma=sigma,
            noise=noise,
            random_state=random_state,
        )
        self.threshold = threshold
        self.intercept_scaling = intercept_scaling

    def _unit(self) -> float:
        return positive(self, "threshold", self.threshold)

    def _constant(self) -> float | None:
        if not self.fit_intercept:
            return None
        return positive(self, "intercept_scaling", self.intercept_scaling)


class _LogLink(_SingleTarget):
    """Generalised linear models with a logarithmic link."""

    _power: ClassVar[int]

    def predict(self, X: ArrayLike) -> Array:
        """Return the means that the released model predicts, (n,)."""
        mean: Array = np.exp(self._scores(X)[:, 0])
        return mean

    def score(self, X: ArrayLike, y: ArrayLike, sample_weight: ArrayLike | None = None) -> float:
        """Return D², the fraction of deviance explained."""
        mean = self.predict(X)
        return float(d2_tweedie_score(y, mean, sample_weight=sample_weight, power=self._power))

    def _l2(self) -> float:
        return positive(self, "alpha", self.alpha) * self._total

    def _encode(self, y: NDArray[Any], loss: str) -> Array:
        values = super()._encode(y, loss)
        if (values < 0).any() or (self._power == 2 and (values == 0).any()):
            raise InvalidInput(
                f"{type(self).__name__}: some value(s) of y are out of the valid range; expected "
                + ("positive numbers" if self._power == 2 else "numbers of at least 0")
            )
        return values

    def __sklearn_tags__(self) -> Any:
        """Targets have a sign."""
        tags = super().__sklearn_tags__()
        tags.target_tags.positive_only = True
        return tags


class PoissonRegressor(_LogLink):
    """Poisson regression with a logarithmic link and certified deletion.

    Minimises the mean half deviance plus ``(alpha/2)‖w‖²``, as scikit-learn does. In sum units the
    penalty is alpha times the sum of weights *at the first fit*: a public constant from then on,
    which deletions do not change.

    Parameters
    ----------
    alpha : float, default=1.0
        The L2 penalty, positive.
    fit_intercept, epsilon, delta, releases, sigma, noise, random_state
        As for :class:`~expunge.linear.LogisticRegression`.

    Attributes
    ----------
    coef_ : (d,) array
        The released coefficients.
    intercept_ : float
    policy_, n_features_in_, feature_names_in_
        As for :class:`~expunge.linear.LogisticRegression`.
    """

    _loss = "poisson"
    _power = 1


class GammaRegressor(_LogLink):
    """Gamma regression with a logarithmic link and certified deletion; targets are positive.

    Parameters and attributes as for :class:`PoissonRegressor`.
    """

    _loss = "gamma"
    _power = 2
