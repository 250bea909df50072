"""scikit-learn estimators that can forget.

Parameters that scikit-learn has keep its names and meanings; a few more fix the guarantee before
the first request: ``epsilon``, ``delta``, ``releases``, ``sigma`` and ``noise``. Coefficients and
predictions are always those of the published, noised model.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import expit, softmax
from sklearn.base import MultiOutputMixin, RegressorMixin
from sklearn.metrics import d2_tweedie_score
from sklearn.utils.validation import validate_data

from expunge.errors import InvalidInput
from expunge.linear.losses import Array
from expunge.linear.unlearner import FLOATS, Classifier, Unlearner, kept, positive
from expunge.modelfile import ReleasedModel


class LogisticRegression(Classifier):
    """Logistic regression, binary or multinomial, with certified deletion.

    Minimises ``C Σ_i s_i ℓ_i + ½‖w‖²`` as scikit-learn does; the intercept is not penalised. The
    published coefficients are the minimiser, located to within the tolerance that the four
    guarantee parameters imply, plus N(0, sigma²) on every coefficient and intercept.

    Parameters
    ----------
    C : float, default=1.0
        Inverse of the L2 penalty, positive.
    fit_intercept : bool, default=True
    multi_class : {"multinomial", "ovr"}, default="multinomial"
        For three classes or more: one softmax model, or one binary model a class.
    epsilon, delta : float, default=1.0, 1e-6
        Someone who sees every release since a deletion cannot tell them, beyond (ε, δ), from the
        releases of a model trained without the deleted rows.
    releases : int, default=1000
        How many releases the guarantee covers, the training included.
    sigma : float, default=0.01
        Standard deviation of the noise, in units of a coefficient. Larger: more deletions without
        the retained data. With rows of norm B the scores move by about ``sigma * B``.
    noise : {"gaussian", "discrete"}, default="gaussian"
        Gaussian from the operating system's entropy, or the exact discrete Gaussian of OpenDP
        (``pip install 'expunge[hardened]'``), for which float64 is not an assumption.
    random_state : int, optional
        Seeds the noise, for tests: certificates then say "not for production".

    Attributes
    ----------
    classes_ : (K,) array
    coef_ : (1, d) or (K, d) array
        The released coefficients.
    intercept_ : (1,) or (K,) array
    policy_ : Policy
        Everything public that was fixed before any request.
    n_features_in_ : int
    feature_names_in_ : array, if the columns had names

    References
    ----------
    Guo, Goldstein, Hannun, van der Maaten. Certified data removal from machine learning models.
    ICML 2020. The bound is expunge's own, see docs/theory.md.

    Examples
    --------
    >>> from sklearn.datasets import load_breast_cancer
    >>> X, y = load_breast_cancer(return_X_y=True)
    >>> X = X / X.max(axis=0)
    >>> clf = LogisticRegression().fit(X, y)
    >>> certificate = clf.unlearn(X[:3], y[:3], retained=(X[3:], y[3:]))
    >>> certificate.grade.value, certificate.guarantee.epsilon
    ('certified', 1.0)
    >>> clf.unlearn(X[:1], y[:1])  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    ...
    expunge.errors.AlreadyDeleted: ...
    """

    _loss = "logistic"

    def __init__(
        self,
        C: float = 1.0,
        *,
        fit_intercept: bool = True,
        multi_class: str = "multinomial",
        epsilon: float = 1.0,
        delta: float = 1e-6,
        releases: int = 1000,
        sigma: float = 0.01,
        noise: str = "gaussian",
        random_state: int | None = None,
    ) -> None:
        self.C = C
        self.fit_intercept = fit_intercept
        self.multi_class = multi_class
        self.epsilon = epsilon
        self.delta = delta
        self.releases = releases
        self.sigma = sigma
        self.noise = noise
        self.random_state = random_state

    def predict_proba(self, X: ArrayLike) -> Array:
        """Return class probabilities (n, K) of the released model."""
        scores = self._scores(X)
        if scores.shape[1] == 1:
            return np.hstack([expit(-scores), expit(scores)])
        if self.policy_.loss == "softmax":
            return np.asarray(softmax(scores, axis=1))
        share = expit(scores)
        total: Array = share / share.sum(axis=1, keepdims=True)
        return total

    def predict_log_proba(self, X: ArrayLike) -> Array:
        """Return logarithms of the class probabilities."""
        return np.log(self.predict_proba(X))

    @classmethod
    def _losses(cls) -> tuple[str, ...]:
        return ("logistic", "softmax", "logistic-ovr")

    def _l2(self) -> float:
        return 1.0 / positive(self, "C", self.C)

    def _loss_of(self, classes: int) -> str:
        if self.multi_class not in ("multinomial", "ovr"):
            raise InvalidInput(
                "The 'multi_class' parameter of LogisticRegression must be 'multinomial' or 'ovr'. "
                f"Got {self.multi_class!r} instead."
            )
        if classes == 2:
            return "logistic"
        return "softmax" if self.multi_class == "multinomial" else "logistic-ovr"


class _Penalised(Unlearner):
    """Models whose penalty is called alpha."""

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


class RidgeClassifier(Classifier, _Penalised):
    """Least squares on ±1 targets with an L2 penalty and certified deletion.

    Minimises ``Σ_i s_i (y_i − x_iᵀw − b)² + alpha‖w‖²`` per class, as scikit-learn does. A
    quadratic objective is known exactly from its O(d²) sums, so deletion needs retained data only
    when little is left of what was trained on.

    Parameters
    ----------
    alpha : float, default=1.0
        The L2 penalty, positive.
    fit_intercept, epsilon, delta, releases, noise, random_state
        As for :class:`LogisticRegression`.
    sigma : float, default=1e-3
        Standard deviation of the noise, in units of a coefficient.

    Attributes
    ----------
    classes_, coef_, intercept_, policy_, n_features_in_, feature_names_in_
        As for :class:`LogisticRegression`.
    """

    _loss = "squared"


class Ridge(MultiOutputMixin, RegressorMixin, _Penalised):
    """Ridge regression with certified deletion, from O(d²) sums.

    Minimises ``Σ_i s_i ‖y_i − x_iᵀw − b‖² + alpha‖w‖²``, as scikit-learn does.

    Parameters
    ----------
    alpha : float, default=1.0
        The L2 penalty, positive.
    fit_intercept, epsilon, delta, releases, noise, random_state
        As for :class:`LogisticRegression`.
    sigma : float, default=1e-3
        Standard deviation of the noise, in units of a coefficient.

    Attributes
    ----------
    coef_ : (d,) or (C, d) array
        The released coefficients.
    intercept_ : float or (C,) array
    policy_, n_features_in_, feature_names_in_
        As for :class:`LogisticRegression`.

    Examples
    --------
    >>> from sklearn.datasets import load_diabetes
    >>> X, y = load_diabetes(return_X_y=True)
    >>> model = Ridge().fit(X, y)
    >>> model.unlearn(X[:5], y[:5]).grade.value
    'certified'
    """

    _loss = "squared"

    def fit(
        self,
        X: ArrayLike,
        y: ArrayLike,
        sample_weight: ArrayLike | None = None,
        ids: Sequence[str] | None = None,
    ) -> Self:
        """Fit, publish release 1, and keep the sealed state for deletions.

        Parameters and errors as for :meth:`LogisticRegression.fit`; ``y`` is (n,) or (n, C).
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


class _LogLink(RegressorMixin, _Penalised):
    """Generalised linear models with a logarithmic link."""

    _power: ClassVar[int]

    def fit(
        self,
        X: ArrayLike,
        y: ArrayLike,
        sample_weight: ArrayLike | None = None,
        ids: Sequence[str] | None = None,
    ) -> Self:
        """Fit, publish release 1, and keep the sealed state for deletions.

        Parameters and errors as for :meth:`LogisticRegression.fit`.
        """
        checked: Any = validate_data(self, X, y, accept_sparse="csr", dtype=FLOATS, y_numeric=True)
        rows, values, weight, ids = kept(checked[0], checked[1], sample_weight, ids)
        self._total = float(len(values) if weight is None else weight.sum())
        self._train(
            rows, self._encode(values, self._loss), weight, ids, loss=self._loss, classes=None
        )
        return self

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
        values = np.asarray(y, dtype=np.float64)
        if (values < 0).any() or (self._power == 2 and (values == 0).any()):
            raise InvalidInput(
                f"{type(self).__name__}: some value(s) of y are out of the valid range; expected "
                + ("positive numbers" if self._power == 2 else "numbers of at least 0")
            )
        return values[:, None]

    def _show(self, model: ReleasedModel) -> None:
        super()._show(model)
        self.coef_, self.intercept_ = self.coef_[0], float(np.ravel(self.intercept_)[0])

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
        As for :class:`LogisticRegression`.

    Attributes
    ----------
    coef_ : (d,) array
        The released coefficients.
    intercept_ : float
    policy_, n_features_in_, feature_names_in_
        As for :class:`LogisticRegression`.
    """

    _loss = "poisson"
    _power = 1


class GammaRegressor(_LogLink):
    """Gamma regression with a logarithmic link and certified deletion; targets are positive.

    Parameters and attributes as for :class:`PoissonRegressor`.
    """

    _loss = "gamma"
    _power = 2
