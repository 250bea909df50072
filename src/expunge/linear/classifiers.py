"""scikit-learn classifiers that can forget.

Parameters that scikit-learn has keep its names and meanings; a few more fix the guarantee before
the first request: ``epsilon``, ``delta``, ``releases``, ``sigma`` and ``noise``. Coefficients and
predictions are always those of the published, noised model.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import expit, softmax

from expunge.errors import InvalidInput
from expunge.linear.losses import Array
from expunge.linear.unlearner import Classifier, positive


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
    class_weight : dict of label to positive number, optional
        Multiplies the weights of rows. "balanced" is refused: it depends on who is in the data.
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
        class_weight: Mapping[Any, float] | None = None,
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
        self.class_weight = class_weight
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


class RidgeClassifier(Classifier):
    """Least squares on ±1 targets with an L2 penalty and certified deletion.

    Minimises ``Σ_i s_i (y_i − x_iᵀw − b)² + alpha‖w‖²`` per class, as scikit-learn does. A
    quadratic objective is known exactly from its O(d²) sums, so deletion needs retained data only
    when little is left of what was trained on.

    Parameters
    ----------
    alpha : float, default=1.0
        The L2 penalty, positive.
    fit_intercept, class_weight, epsilon, delta, releases, noise, random_state
        As for :class:`LogisticRegression`.
    sigma : float, default=1e-3
        Standard deviation of the noise, in units of a coefficient.

    Attributes
    ----------
    classes_, coef_, intercept_, policy_, n_features_in_, feature_names_in_
        As for :class:`LogisticRegression`.
    """

    _loss = "squared"

    def __init__(
        self,
        alpha: float = 1.0,
        *,
        fit_intercept: bool = True,
        class_weight: Mapping[Any, float] | None = None,
        epsilon: float = 1.0,
        delta: float = 1e-6,
        releases: int = 1000,
        sigma: float = 1e-3,
        noise: str = "gaussian",
        random_state: int | None = None,
    ) -> None:
        self.alpha = alpha
        self.fit_intercept = fit_intercept
        self.class_weight = class_weight
        self.epsilon = epsilon
        self.delta = delta
        self.releases = releases
        self.sigma = sigma
        self.noise = noise
        self.random_state = random_state

    def _l2(self) -> float:
        return positive(self, "alpha", self.alpha)


class LinearSVC(Classifier):
    """Linear support vector machine with squared hinge loss and certified deletion.

    Minimises ``C Σ_i s_i max(0, 1 − y_i(x_iᵀw + b))² + ½‖w‖² + ½(b/intercept_scaling)²``, one such
    problem per class for three classes or more, as scikit-learn does. The loss has no third
    derivative, so nothing but the penalty bounds a distance: every deletion needs the retained data
    (one pass, or a few), and the intercept is penalised.

    Parameters
    ----------
    C : float, default=1.0
        Inverse of the L2 penalty, positive.
    fit_intercept : bool, default=True
    intercept_scaling : float, default=1.0
        The constant feature whose coefficient is the intercept. Larger: less penalised, and more
        noise on the intercept (``intercept_scaling * sigma``).
    class_weight, epsilon, delta, releases, sigma, noise, random_state
        As for :class:`LogisticRegression`.

    Attributes
    ----------
    classes_, coef_, intercept_, policy_, n_features_in_, feature_names_in_
        As for :class:`LogisticRegression`.

    Examples
    --------
    >>> from sklearn.datasets import load_breast_cancer
    >>> X, y = load_breast_cancer(return_X_y=True)
    >>> X = X / X.max(axis=0)
    >>> svm = LinearSVC().fit(X, y)
    >>> svm.unlearn(X[:3], y[:3], retained=(X[3:], y[3:])).grade.value
    'certified'
    """

    _loss = "squared-hinge"

    def __init__(
        self,
        C: float = 1.0,
        *,
        fit_intercept: bool = True,
        intercept_scaling: float = 1.0,
        class_weight: Mapping[Any, float] | None = None,
        epsilon: float = 1.0,
        delta: float = 1e-6,
        releases: int = 1000,
        sigma: float = 0.01,
        noise: str = "gaussian",
        random_state: int | None = None,
    ) -> None:
        self.C = C
        self.fit_intercept = fit_intercept
        self.intercept_scaling = intercept_scaling
        self.class_weight = class_weight
        self.epsilon = epsilon
        self.delta = delta
        self.releases = releases
        self.sigma = sigma
        self.noise = noise
        self.random_state = random_state

    def _l2(self) -> float:
        return 1.0 / positive(self, "C", self.C)

    def _constant(self) -> float | None:
        if not self.fit_intercept:
            return None
        return positive(self, "intercept_scaling", self.intercept_scaling)
