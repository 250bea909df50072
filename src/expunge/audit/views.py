"""What an attacker sees of a model: scores of rows, computed in float64 from logits where given.

A model is anything of these: a callable from rows to logits or probabilities, an estimator with
``predict_proba`` or ``decision_function`` (scikit-learn's or expunge's), a torch module.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import expit, logsumexp, softmax

from expunge.audit.intervals import Array
from expunge.errors import MALFORMED, InvalidInput

Gives = Literal["logits", "probabilities"]
Labels = NDArray[np.intp]

FLOOR = -745.0
"""Logarithm of the smallest probability that is told from 0."""
_SUM = 1e-3
_AGREE = 1e-6
_LOG_TINY = float(np.log(1e-30))


@dataclass(frozen=True)
class Outputs:
    """A model's answers on n rows with known labels, made by `outputs_of`.

    Attributes
    ----------
    log_p : (n, K) array
        Log-probabilities, normalised.
    y : (n,) array of int
        Column of the true label.
    """

    log_p: Array = field(repr=False)
    y: Labels = field(repr=False)

    def __len__(self) -> int:
        return len(self.y)

    @cached_property
    def others(self) -> Array:
        """Log-probability (n,) of all labels but the true one."""
        return _without(self.log_p, self.y)

    @cached_property
    def phi(self) -> Array:
        """Margin (n,): logit of the true label less the log-sum-exp of the others."""
        return np.asarray(self.log_p[np.arange(len(self.y)), self.y] - self.others)

    @cached_property
    def loss(self) -> Array:
        """Cross-entropy (n,), ``ln(1 + e^{−φ})``."""
        return np.asarray(np.logaddexp(0.0, -self.phi))

    @cached_property
    def p_y(self) -> Array:
        """Probability (n,) of the true label."""
        return np.asarray(expit(self.phi))

    @cached_property
    def p(self) -> Array:
        """Probabilities (n, K)."""
        return np.asarray(np.exp(self.log_p))

    @cached_property
    def predicted(self) -> Labels:
        """Column (n,) of the largest probability."""
        return np.asarray(self.log_p.argmax(axis=1))

    @cached_property
    def correct(self) -> Array:
        """1 where the prediction is the true label, else 0 (n,)."""
        return np.asarray(self.predicted == self.y, dtype=np.float64)

    @cached_property
    def entropy(self) -> Array:
        """``−Σ_j p_j ln p_j`` (n,)."""
        return np.asarray(-(self.p * self.log_p).sum(axis=1))

    @cached_property
    def modified_entropy(self) -> Array:
        """``−(1 − p_y) ln p_y − Σ_{j≠y} p_j ln(1 − p_j)`` (n,), logs of max(·, 1e-30).

        References
        ----------
        Song, Mittal. Systematic evaluation of privacy risks of machine learning models. 2021.
        """
        rows = np.arange(len(self.y))
        not_p = np.log1p(-np.minimum(self.p, 0.9))
        not_p[rows, self.predicted] = _without(self.log_p, self.predicted)
        terms = self.p * np.maximum(not_p, _LOG_TINY)
        terms[rows, self.y] = np.exp(self.others) * np.maximum(-self.loss, _LOG_TINY)
        return np.asarray(-terms.sum(axis=1))

    def relabelled(self, y: Labels) -> Outputs:
        """Return the same answers with other labels."""
        return Outputs(self.log_p, np.asarray(y, dtype=np.intp))

    def take(self, index: Any) -> Outputs:
        """Return some of the rows."""
        return Outputs(self.log_p[index], self.y[index])


def _without(log_p: Array, column: Labels) -> Array:
    """Return the log-probability (n,) of all columns but one, without cancellation."""
    rest = log_p.copy()
    rest[np.arange(len(column)), column] = -np.inf
    return np.asarray(np.maximum(logsumexp(rest, axis=1), FLOOR), dtype=np.float64)


def outputs_of(answers: ArrayLike, y: ArrayLike, *, gives: Gives | None = None) -> Outputs:
    """Return what an attacker sees, from a model's raw answers.

    Parameters
    ----------
    answers : (n, K) array_like, or (n,) or (n, 1) of a binary model
        Logits or probabilities; one column is the logit, or probability, of label 1.
    y : (n,) array_like of int
        Columns of the true labels.
    gives : {"logits", "probabilities"}, optional
        What they are. By default rows of several columns that are not negative and sum to 1 are
        probabilities, and all others logits.

    Raises
    ------
    InvalidInput
        If shapes do not match, labels are no columns, answers are not numbers, or "probabilities"
        are none.

    Examples
    --------
    >>> found = outputs_of([[2.0, 0.0, -1.0]], [0])
    >>> round(float(found.phi[0]), 8)
    1.68673831
    """
    log_p = log_probabilities(answers, gives)
    labels = np.asarray(y)
    if labels.shape != (len(log_p),):
        raise InvalidInput(
            f"expected one label for each of {len(log_p)} rows, got the shape {labels.shape}"
        )
    if labels.dtype.kind not in "iub" or (len(labels) and not _are_columns(labels, log_p.shape[1])):
        raise InvalidInput(
            f"labels must be whole numbers from 0 to {log_p.shape[1] - 1}, the columns of the "
            "model's answers: give view(model, classes=...) the label of each column"
        )
    return Outputs(log_p, labels.astype(np.intp))


def _are_columns(labels: NDArray[Any], count: int) -> bool:
    return bool(labels.min() >= 0 and labels.max() < count)


def log_probabilities(answers: ArrayLike, gives: Gives | None = None) -> Array:
    """Return normalised log-probabilities (n, K ≥ 2), see `outputs_of`."""
    found = _numbers(answers)
    single = found.shape[1] == 1
    if gives is None:
        gives = "probabilities" if not single and _look_like_probabilities(found) else "logits"
    if gives == "logits":
        logits = np.hstack([np.zeros_like(found), found]) if single else found
        normalised = logits - logsumexp(logits, axis=1, keepdims=True)
        return np.asarray(np.maximum(normalised, FLOOR))
    if gives != "probabilities":
        raise InvalidInput(f"gives must be 'logits' or 'probabilities', not {gives!r}")
    shares = np.hstack([1.0 - found, found]) if single else found
    if not _look_like_probabilities(shares):
        raise InvalidInput(
            "these are no probabilities (not negative, rows that sum to 1): are they logits?"
        )
    with np.errstate(divide="ignore"):
        logs = np.log(shares)
    return np.asarray(np.maximum(logs - logsumexp(logs, axis=1, keepdims=True), FLOOR))


def _numbers(answers: ArrayLike) -> Array:
    """Return answers as an (n, K) array without NaN or +∞."""
    try:
        found = np.asarray(answers, dtype=np.float64)
    except MALFORMED as error:
        raise InvalidInput(f"a model must answer with numbers, not {type(answers)}") from error
    found = found[:, None] if found.ndim == 1 else found
    if found.ndim != 2 or found.shape[1] < 1:
        raise InvalidInput(f"a model must answer with (rows, classes), not {found.shape}")
    if np.isnan(found).any() or np.isposinf(found).any():
        raise InvalidInput(
            "the model's answers contain NaN or infinity: it diverged, or an input is not finite"
        )
    if (found.max(axis=1) == -np.inf).any():
        raise InvalidInput("some row has no possible class: all its logits are −∞")
    return found


def _look_like_probabilities(found: Array) -> bool:
    return bool((found >= 0).all() and (np.abs(found.sum(axis=1) - 1.0) <= _SUM).all())


@dataclass(frozen=True)
class View:
    """A model as an attacker sees it, made by `view`.

    Attributes
    ----------
    answer : callable
        From rows to log-probabilities (n, K).
    classes : (K,) array or None
        The label of each column; None if labels are the columns.
    model : object
        What it is a view of.
    """

    answer: Callable[[Any], Array]
    classes: NDArray[Any] | None = None
    model: Any = field(default=None, repr=False)

    def outputs(self, X: Any, y: Any) -> Outputs:
        """Return the answers on rows with labels.

        Raises
        ------
        InvalidInput
            If a label is unknown, or the model does not answer every row.
        """
        return outputs_of(self.answer(X), self.columns(y), gives="logits")

    def columns(self, y: Any) -> Labels:
        """Return the column of each label."""
        labels = np.asarray(y)
        if self.classes is None:
            return labels
        order = np.argsort(self.classes)
        place = np.searchsorted(self.classes, labels, sorter=order)
        found = order[np.minimum(place, len(order) - 1)]
        unknown = self.classes[found] != labels
        if unknown.any():
            raise InvalidInput(
                f"the model does not know the label {labels[unknown][0]!r}; it knows "
                f"{', '.join(map(str, self.classes[:10]))}"
            )
        return np.asarray(found, dtype=np.intp)


def view(model: Any, *, gives: Gives | None = None, classes: ArrayLike | None = None) -> View:
    """Return a model as an attacker sees it.

    Parameters
    ----------
    model : callable, estimator, torch module, or View
        An estimator's ``decision_function`` is used as its logits when its ``predict_proba`` says
        the same (to 1e-6) or when it has none; else the logarithms of its probabilities.
    gives : {"logits", "probabilities"}, optional
        What a callable or a torch module returns, see `outputs_of`.
    classes : (K,) array_like, optional
        The label of each column; by default the model's ``classes_``, or 0, 1, ….

    Raises
    ------
    InvalidInput
        If the model is none of these.

    Examples
    --------
    >>> found = view(lambda X: np.column_stack([X, -X]), classes=["no", "yes"])
    >>> found.outputs(np.array([0.5, 0.0]), ["no", "yes"]).loss.round(4).tolist()
    [0.3133, 0.6931]
    """
    if isinstance(model, View):
        return model
    names = getattr(model, "classes_", None) if classes is None else classes
    known = None if names is None else np.asarray(names)
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(model, torch.nn.Module):
        from expunge.audit.networks import answers

        return View(lambda X: log_probabilities(answers(model, X), gives), known, model)
    if hasattr(model, "predict_proba") or hasattr(model, "decision_function"):
        return View(lambda X: _estimator(model, X), known, model)
    if callable(model):
        return View(lambda X: log_probabilities(model(X), gives), known, model)
    raise InvalidInput(
        f"{type(model).__name__} is no model that can be audited: give a callable from rows to "
        "logits or probabilities, an estimator with predict_proba, or a torch module"
    )


def _estimator(model: Any, X: Any) -> Array:
    """Return log-probabilities of an estimator, from its logits where these are its logits."""
    shares = np.asarray(model.predict_proba(X)) if hasattr(model, "predict_proba") else None
    if not hasattr(model, "decision_function"):
        return log_probabilities(shares if shares is not None else [], "probabilities")
    logits = _numbers(model.decision_function(X))
    if shares is None or _says_the_same(logits, shares):
        return log_probabilities(logits, "logits")
    return log_probabilities(shares, "probabilities")


def _says_the_same(logits: Array, shares: NDArray[Any]) -> bool:
    full = np.hstack([np.zeros_like(logits), logits]) if logits.shape[1] == 1 else logits
    return full.shape == shares.shape and bool(
        np.allclose(softmax(full, axis=1), shares, rtol=0.0, atol=_AGREE)
    )
