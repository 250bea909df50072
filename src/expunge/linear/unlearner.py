"""What all estimators share: training a lineage, deleting from it, showing the published model.

What deletions need stays in a sealed state that is never shown, pickled or copied: a copy of an
estimator predicts, and cannot unlearn.
"""

from __future__ import annotations

import json
import operator
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np
import scipy.sparse as sp
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import _check_sample_weight, check_is_fitted, validate_data

from expunge.certificate.policy import Policy, tolerance_of
from expunge.certificate.statement import Certificate
from expunge.errors import ExpungeError, InvalidInput
from expunge.linear.lineage import Lineage, Step, begin
from expunge.linear.losses import Array
from expunge.linear.rows import Matrix, Rows, make_rows
from expunge.linear.state import open_lineage, save_lineage
from expunge.modelfile import ReleasedModel, decode
from expunge.noise import Discrete, NoiseSource, source_of

Retained = Rows | Callable[[], Rows] | tuple[Any, ...]


class Unlearner(BaseEstimator):
    """What all estimators share: training a lineage, and deleting from it."""

    _loss: ClassVar[str]
    _single = False
    coef_: Array
    intercept_: Array | float
    _lineage: Lineage

    def unlearn(
        self,
        X: ArrayLike,
        y: ArrayLike,
        *,
        sample_weight: ArrayLike | None = None,
        ids: Sequence[str] | None = None,
        retained: Retained | None = None,
    ) -> Certificate:
        """Delete rows and publish a new model.

        Parameters
        ----------
        X : (k, d) array, data frame or CSR matrix
            The rows to delete, with the values of the training.
        y : (k,) array
            Their targets.
        sample_weight : (k,) array, optional
            Their weights, if the training had weights.
        ids : sequence of k str, optional
            Whose rows these are; required if the training had ids. All rows of a person must be
            there.
        retained : tuple, Rows or callable returning Rows, optional
            All rows retained after this deletion: the arguments of :meth:`rows`, or what it
            returns, which is matched with the training once for many deletions. Needed, and looked
            at, only if the deletion cannot be proved from the sealed state.

        Returns
        -------
        Certificate
            Unsigned; ``certificate.sign(signer)`` signs it.

        Raises
        ------
        UnknownRecord, AlreadyDeleted, IncompletePerson, LastOfClass
            If the rows cannot be deleted.
        NeedsRetainedData, RetainedMismatch, ToleranceUnreachable, BudgetExhausted
            If the deletion cannot be certified. Whatever is raised, the estimator is unchanged.
        """
        lineage = self._sealed()
        step = lineage.prepare(
            self.rows(X, y, sample_weight),
            self._source(lineage.policy, lineage.number + 1),
            ids=ids,
            retained=None if retained is None else lambda: self._retained(retained),
        )
        lineage.accept(step)
        self._publish(step)
        if not isinstance(step.published.statement, Certificate):
            raise TypeError("a deletion is certified")
        return step.published.statement

    def rows(
        self,
        X: ArrayLike,
        y: ArrayLike,
        sample_weight: ArrayLike | None = None,
        ids: Sequence[str] | None = None,
    ) -> Rows:
        """Return rows in the form that ``unlearn(retained=…)`` takes without further work.

        ``ids`` are required if the training had them. ``rows.drop(index)`` removes rows in place,
        for long sequences of deletions.
        """
        check_is_fitted(self)
        checked: Any = validate_data(
            self, X, y, reset=False, accept_sparse="csr", dtype=FLOATS, **self._y_rules()
        )
        features, targets = checked
        weight = None if sample_weight is None else _weights(sample_weight, features)
        intercept = self._policy().fit_intercept
        names = None if ids is None else list(ids)
        target = self._encode(targets, self._policy().loss)
        weight = self._weighted(weight, targets)
        return make_rows(self._featured(features), target, weight, intercept=intercept, ids=names)

    def save_state(self, directory: str | Path) -> None:
        """Write the sealed state to a new directory that only its owner can read.

        Continue from it in one place only: two holders of one state spend one budget twice.

        Raises
        ------
        FolderProblem
            If the directory exists.
        """
        save_lineage(self._sealed(), Path(directory))
        names = getattr(self, "feature_names_in_", None)
        seen = {
            "features": None if names is None else names.tolist(),
            "single": self._single,
            "fixed": self._fixed(),
        }
        (Path(directory) / "estimator.json").write_text(json.dumps(seen))

    def load_state(self, directory: str | Path) -> Self:
        """Continue from a saved state: the estimator becomes the one that was saved.

        Raises
        ------
        FolderProblem
            If the directory holds no readable state.
        InvalidInput
            If the state is of another kind of model.
        """
        lineage = open_lineage(Path(directory))
        seen = json.loads((Path(directory) / "estimator.json").read_text())
        if lineage.policy.loss not in self._losses():
            raise InvalidInput(
                f"{type(self).__name__} cannot continue a state of loss {lineage.policy.loss!r}"
            )
        if seen["fixed"] != self._fixed():
            raise InvalidInput(
                f"the state was made with {seen['fixed']}, the {type(self).__name__} constructed "
                f"here has {self._fixed()}; construct it with the same"
            )
        self._single = bool(seen["single"])
        self.__dict__.pop("feature_names_in_", None)
        if seen["features"] is not None:
            self.feature_names_in_ = np.array(seen["features"], dtype=object)
        self._adopt(lineage)
        return self

    def __getstate__(self) -> dict[str, Any]:
        """Leave the sealed state out of pickles and copies: one holder spends the budget."""
        state: dict[str, Any] = dict(super().__getstate__())
        return {k: v for k, v in state.items() if k != "_lineage"}

    def __sklearn_tags__(self) -> Any:
        """Accept sparse input."""
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        return tags

    @classmethod
    def _losses(cls) -> tuple[str, ...]:
        return (cls._loss,)

    def _y_rules(self) -> dict[str, Any]:
        return {}

    def _l2(self) -> float:
        raise NotImplementedError

    def _l1(self) -> float:
        return 0.0

    def _unit(self) -> float:
        """Return what one unit of the published model's parameters is worth."""
        return 1.0

    def _constant(self) -> float | None:
        """Return the constant feature whose coefficient is the intercept; None for a free one."""
        return None

    def _fixed(self) -> dict[str, Any]:
        """Return what a saved state supposes of the constructor's parameters."""
        return {"constant": self._constant(), "unit": self._unit()}

    def _encode(self, y: NDArray[Any], loss: str) -> Array:
        raise NotImplementedError

    def _weighted(self, weight: Array | None, y: NDArray[Any]) -> Array | None:
        return weight

    def _featured(self, X: Matrix) -> Matrix:
        """Append the constant feature, if there is one."""
        constant = self._constant()
        if constant is None:
            return X
        column = np.full((X.shape[0], 1), constant, dtype=X.dtype)
        if sp.issparse(X):
            return sp.csr_array(sp.hstack([X, sp.csr_array(column)], format="csr"))
        return np.hstack([np.asarray(X), column])

    def _retained(self, retained: Retained) -> Rows:
        if isinstance(retained, tuple):
            rows = self.rows(*retained)
        else:
            rows = retained() if callable(retained) else retained
        if self._sealed().members.named and rows.ids is None:
            raise InvalidInput(
                "the model was trained with ids: give the retained rows' ids too, as in "
                "retained=(X, y, sample_weight, ids)"
            )
        return rows

    def _source(self, policy: Policy, release: int) -> NoiseSource | Discrete:
        seed = self.random_state if policy.noise == "seeded" else None
        return source_of("discrete" if policy.discrete else "gaussian", seed, release)

    def _sealed(self) -> Lineage:
        check_is_fitted(self)
        if not hasattr(self, "_lineage"):
            raise ExpungeError(
                "this estimator is a copy: the sealed state stays with the original, so that the "
                "privacy budget is spent once; unlearn there, or move it with save_state"
            )
        return self._lineage

    def _policy(self) -> Policy:
        policy: Policy = self.policy_
        return policy

    def _train(
        self,
        X: Matrix,
        target: Array,
        weight: Array | None,
        ids: Sequence[str] | None,
        *,
        loss: str,
        classes: tuple[Any, ...] | None,
    ) -> None:
        sigma, epsilon, delta = (
            positive(self, name, getattr(self, name)) for name in ("sigma", "epsilon", "delta")
        )
        sigma, releases = sigma / self._unit(), operator.index(self.releases)
        free = bool(self.fit_intercept) and self._constant() is None
        rows = make_rows(self._featured(X), target, weight, intercept=free)
        source = source_of(self.noise, self.random_state)
        policy = Policy(
            loss=loss,
            l2=self._l2(),
            l1=self._l1(),
            fit_intercept=free,
            features=rows.X.shape[1],
            outputs=rows.target.shape[1],
            sigma=sigma,
            epsilon=epsilon,
            delta=delta,
            releases=releases,
            tolerance=tolerance_of(
                source.name, sigma, epsilon, delta, releases, rows.width * rows.target.shape[1]
            ),
            capacity=rows.count,
            classes=classes,
            unit="record" if ids is None else "person",
            noise=source.name,
        )
        self._lineage, step = begin(policy, rows, source, ids=ids)
        self.policy_ = policy
        self._publish(step)

    def _adopt(self, lineage: Lineage) -> None:
        self._lineage = lineage
        self.policy_ = lineage.policy
        self.n_features_in_ = lineage.policy.features - (self._constant() is not None)
        self._show(decode(lineage.content))

    def _publish(self, step: Step) -> None:
        self._show(step.published.model)

    def _show(self, model: ReleasedModel) -> None:
        coef, constant = self._unit() * model.coef, self._constant()
        if constant is not None:
            self.coef_, self.intercept_ = coef[:, :-1], constant * coef[:, -1]
        else:
            none = np.zeros(len(coef))
            self.coef_ = coef
            self.intercept_ = none if model.intercept is None else self._unit() * model.intercept

    def _scores(self, X: ArrayLike) -> Array:
        check_is_fitted(self)
        rows: Any = validate_data(self, X, reset=False, accept_sparse="csr", dtype=FLOATS)
        return np.asarray(rows @ np.atleast_2d(self.coef_).T) + self.intercept_


FLOATS = [np.float64, np.float32]


class Classifier(ClassifierMixin, Unlearner):
    """What classifiers share: labels."""

    classes_: NDArray[Any]
    class_weight: Mapping[Any, float] | None

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
                f"data contains only one class: {found[0]!r}"
            )
        loss = self._loss_of(len(found))
        target = _targets(found, labels, loss)
        weight = self._weighted(weight, labels)
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

    def _adopt(self, lineage: Lineage) -> None:
        self.classes_ = np.array(lineage.policy.classes)
        super()._adopt(lineage)

    def _encode(self, y: NDArray[Any], loss: str) -> Array:
        return _targets(self.classes_, y, loss)


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


def positive(estimator: BaseEstimator, name: str, value: Any) -> float:
    number = isinstance(value, int | float | np.number) and not isinstance(value, bool)
    if number and 0 < value < np.inf:
        return float(value)
    raise InvalidInput(
        f"The {name!r} parameter of {type(estimator).__name__} must be a float in the range "
        f"(0, inf). Got {value!r} instead."
    )


def _weights(sample_weight: ArrayLike, X: Matrix) -> Array:
    weight: Array = _check_sample_weight(
        sample_weight, X, dtype=np.float64, ensure_non_negative=True
    )
    return weight


def kept(
    X: Matrix, y: NDArray[Any], sample_weight: ArrayLike | None, ids: Sequence[str] | None
) -> tuple[Matrix, NDArray[Any], Array | None, Sequence[str] | None]:
    """Leave out rows of weight 0: they were never trained on."""
    ids = None if ids is None else list(ids)
    if ids is not None and len(ids) != X.shape[0]:
        raise InvalidInput(f"expected {X.shape[0]} ids, one per row, got {len(ids)}")
    if sample_weight is None:
        return X, y, None, ids
    weight = _weights(sample_weight, X)
    keep = np.flatnonzero(weight)
    if len(keep) == len(weight):
        return X, y, weight, ids
    X = sp.csr_array(X)[keep] if sp.issparse(X) else X[keep]
    return X, y[keep], weight[keep], None if ids is None else [ids[i] for i in keep.tolist()]
