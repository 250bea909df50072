"""What all estimators share: training a lineage, deleting from it, showing the published model.

What deletions need stays in a sealed state that is never shown, pickled or copied: a copy of an
estimator predicts, and cannot unlearn.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np
import scipy.sparse as sp
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator
from sklearn.utils.validation import check_is_fitted, validate_data

from expunge.certificate.policy import Policy, tolerance_of
from expunge.certificate.statement import Certificate
from expunge.errors import ExpungeError, InvalidInput
from expunge.linear.inputs import FLOATS, all_or_nothing, positive, weights_of, whole
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
        weight = None if sample_weight is None else weights_of(sample_weight, features)
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
        names = getattr(self, "feature_names_in_", None)
        seen = {
            "features": None if names is None else names.tolist(),
            "single": self._single,
            "fixed": self._fixed(),
        }
        save_lineage(self._sealed(), seen, Path(directory))

    @all_or_nothing
    def load_state(self, directory: str | Path) -> Self:
        """Continue from a saved state: the estimator becomes the one that was saved.

        Raises
        ------
        FolderProblem
            If the directory holds no readable state.
        InvalidInput
            If the state is that of another estimator.
        """
        lineage, seen = open_lineage(Path(directory))
        if seen.get("fixed") != self._fixed():
            raise InvalidInput(
                f"the state was made with {seen.get('fixed')}, the estimator constructed here has "
                f"{self._fixed()}; construct it with the same"
            )
        self._single = bool(seen.get("single"))
        self.__dict__.pop("feature_names_in_", None)
        if seen.get("features") is not None:
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
        """Return what a saved state supposes of the estimator and its parameters."""
        kind = type(self).__name__
        return {"estimator": kind, "constant": self._constant(), "unit": self._unit()}

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
        if isinstance(retained, tuple) and 2 <= len(retained) <= 4:
            return self._with_ids(self.rows(*retained))
        rows = retained() if callable(retained) else retained
        if not isinstance(rows, Rows):
            raise InvalidInput(
                "expected retained rows as a tuple (X, y), (X, y, sample_weight) or (X, y, "
                f"sample_weight, ids), or as what rows() returns; got {type(rows).__name__}"
            )
        return self._with_ids(rows)

    def _with_ids(self, rows: Rows) -> Rows:
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
        sigma, releases = sigma / self._unit(), whole(self, "releases", self.releases)
        seed: Any = self.random_state
        if not isinstance(seed, int | np.integer | None):
            raise InvalidInput(f"random_state must be None or an int, got {seed!r}")
        free = bool(self.fit_intercept) and self._constant() is None
        rows = make_rows(self._featured(X), target, weight, intercept=free)
        source = source_of(self.noise, None if seed is None else int(seed))
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
