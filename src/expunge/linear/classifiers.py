"""scikit-learn classifiers that can forget.

Parameters that scikit-learn has keep its names and meanings; a few more fix the guarantee before
the first request: ``epsilon``, ``delta``, ``releases``, ``sigma`` and ``noise``. Coefficients and
predictions are always those of the published, noised model.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import expit, softmax
from sklearn.base import ClassifierMixin
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import validate_data

from expunge.errors import InvalidInput
from expunge.linear.inputs import FLOATS, all_or_nothing, kept, positive
from expunge.linear.lineage import Lineage
from expunge.linear.losses import Array
from expunge.linear.unlearner import Unlearner


class _Classifier(ClassifierMixin, Unlearner):
    """What classifiers share: labels."""

    classes_: NDArray[Any]
    class_weight: Mapping[Any, float] | None

    @all_or_nothing
    def fit(
        self,
        X: ArrayLike,
        y: ArrayLike,
        sample_weight: ArrayLike | None = None,
        ids: Sequence[str] | None = None,
    ) -> Self:
        """Fit, publish release 1, and keep the sealed state for deletions.

        Parameters
        ----------
        X : (n, d) array, data frame or CSR matrix
        y : (n,) array of labels
        sample_weight : (n,) array, optional
            Rows of weight 0 are left out: they were never trained on.
        ids : sequence of n str, optional
            Whose rows these are; a person may own several. Without ids a row is known by its
            values.

        Raises
        ------
        InvalidInput, ToleranceUnreachable
            If the data are unusable, or the tolerance cannot be proved on them.
        """
        checked: Any = validate_data(self, X, y, accept_sparse="csr", dtype=FLOATS)
        check_classification_targets(checked[1])
        rows, labels, weight, ids = kept(checked[0], checked[1], sample_weight, ids)
        found = np.unique(labels)
        if len(found) < 2:
            raise InvalidInput(
                f"{type(self).__name__} needs samples of at least 2 classes in the data, but the "
                f"data contains only one class: {found.tolist()[0]!r}"
            )
        loss = self._loss_of(len(found))
        target = _targets(found, labels, loss)
        weight = self._weighted(weight, labels)
        self._check_class_weight(found.tolist())
        self._train(rows, target, weight, ids, loss=loss, classes=tuple(found.tolist()))
        self.classes_ = found
        return self

    def decision_function(self, X: ArrayLike) -> Array:
        """Return the scores of the released model: (n,) for two classes, else (n, K)."""
        scores = self._scores(X)
        return scores[:, 0] if scores.shape[1] == 1 else scores

    def predict(self, X: ArrayLike) -> NDArray[Any]:
        """Return the labels that the released model predicts, (n,)."""
        scores = self.decision_function(X)
        index = (scores > 0).astype(int) if scores.ndim == 1 else scores.argmax(axis=1)
        labels: NDArray[Any] = self.classes_[index]
        return labels

    def _loss_of(self, classes: int) -> str:
        return self._loss

    def _fixed(self) -> dict[str, Any]:
        given = self.class_weight
        pairs = None if given is None else sorted([str(k), float(v)] for k, v in given.items())
        return super()._fixed() | {"class_weight": pairs}

    def _weighted(self, weight: Array | None, y: NDArray[Any]) -> Array | None:
        """Multiply the weights of rows by those of their classes; 1 for a class without one."""
        given = self.class_weight
        if given is None:
            return weight
        if not isinstance(given, Mapping):
            raise InvalidInput(
                f"The 'class_weight' parameter of {type(self).__name__} must be None or a dict of "
                f"numbers, got {given!r}: weights that are computed from class counts change for "
                "everybody when somebody is deleted. Compute them from public figures, or once and "
                "declare them"
            )
        for label, value in given.items():
            positive(self, f"class_weight[{label!r}]", value)
        by_row = np.array([float(given.get(label, 1.0)) for label in y.tolist()])
        return by_row if weight is None else weight * by_row

    def _check_class_weight(self, known: Sequence[Any]) -> None:
        """Refuse weights of labels that are not there while others have none, as for a typo."""
        given = self.class_weight or {}
        strange = [label for label in given if label not in known]
        if strange and any(label not in given for label in known):
            raise InvalidInput(
                f"class_weight names the labels {strange}, which the data do not have; they have "
                f"{list(known)}"
            )

    def _adopt(self, lineage: Lineage) -> None:
        self.classes_ = np.array(lineage.policy.classes)
        super()._adopt(lineage)

    def _encode(self, y: NDArray[Any], loss: str) -> Array:
        return _targets(self.classes_, y, loss)


class LogisticRegression(_Classifier):
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


class RidgeClassifier(_Classifier):
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


class LinearSVC(_Classifier):
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


def _targets(classes: NDArray[Any], y: NDArray[Any], loss: str) -> Array:
    """Return one column of ±1 for two classes, else one-hot (softmax) or ±1 columns."""
    index = np.minimum(np.searchsorted(classes, y), len(classes) - 1)
    if not (classes[index] == y).all():
        strange = np.unique(y[classes[index] != y]).tolist()
        raise InvalidInput(f"labels {strange} were not trained on; known: {classes}")
    if len(classes) == 2:
        return np.where(index == 1, 1.0, -1.0)[:, None]
    one_hot = np.eye(len(classes))[index]
    return one_hot if loss == "softmax" else 2.0 * one_hot - 1.0
