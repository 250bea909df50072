"""The support vector attack of the unlearning literature, for reproduction only.

It calls *retained* rows members, so a perfect retrain does not score 50 %: read its number only
beside the same number of retrained models. O(n²) in the rows of T.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import numpy as np

from expunge.audit.intervals import Array
from expunge.audit.views import Outputs
from expunge.errors import InvalidInput

Feature = Literal["correctness", "confidence", "entropy", "modified-entropy", "probabilities"]
Variant = Literal["correct", "published"]


def published_modified_entropy(outputs: Outputs) -> Array:
    """Return "modified entropy" (n,) as widely copied code computes it: it ignores the labels.

    Every column that is the label of *some* row is treated as if it were the label of all, and
    ``ln p`` stands in place of ``ln(1 − p)``.
    """
    columns = np.unique(outputs.y)
    weights = outputs.p.copy()
    weights[:, columns] = 1.0 - weights[:, columns]
    logs = np.log(np.maximum(outputs.p, 1e-30))
    return np.asarray(-(weights * logs).sum(axis=1))


def feature(outputs: Outputs, name: Feature, variant: Variant = "correct") -> Array:
    """Return what the attacker looks at, (n,), or (n, K) for "probabilities"."""
    if name == "modified-entropy" and variant == "published":
        return published_modified_entropy(outputs)
    table: dict[str, Callable[[], Array]] = {
        "correctness": lambda: outputs.correct,
        "confidence": lambda: outputs.p_y,
        "entropy": lambda: outputs.entropy,
        "modified-entropy": lambda: outputs.modified_entropy,
        "probabilities": lambda: outputs.p,
    }
    if name not in table:
        raise InvalidInput(f"feature must be one of {', '.join(table)}, not {name!r}")
    return table[name]()


def depends_on_labels(
    score: Callable[[Outputs], Array], outputs: Outputs, rng: np.random.Generator
) -> bool:
    """Return whether a score changes when the labels of the rows are permuted among them.

    A score that is said to use labels, and does not, is a mistake in its code.

    Raises
    ------
    InvalidInput
        If all rows have one label.
    """
    if len(np.unique(outputs.y)) < 2:
        raise InvalidInput("rows of one class cannot show whether a score depends on labels")
    moved = outputs.relabelled(rng.permutation(outputs.y))
    while np.array_equal(moved.y, outputs.y):
        moved = outputs.relabelled(rng.permutation(outputs.y))
    return not np.array_equal(score(outputs), score(moved))


def efficacy(
    forget: Outputs,
    retain: Outputs,
    unseen: Outputs,
    name: Feature = "confidence",
    *,
    variant: Variant = "correct",
) -> float:
    """Return *MIA-Efficacy*: the share of deleted rows that the attack calls unseen.

    Fits ``SVC(C=3, gamma="auto", kernel="rbf")`` on the first n_T rows of R (label 1) and all of T
    (label 0).

    References
    ----------
    Jia et al. Model sparsity can simplify machine unlearning. NeurIPS 2023.
    """
    count = len(unseen)
    members = retain.take(slice(count))
    guess = _fitted(_columns(members, name, variant), _columns(unseen, name, variant))
    return 1.0 - float(guess(_columns(forget, name, variant)).mean())


def training_privacy(
    retain: Outputs, unseen: Outputs, name: Feature = "confidence", *, variant: Variant = "correct"
) -> float:
    """Return the balanced share of rows of R and T that the attack gets right.

    It is fitted on one half of each (at most n_T/2 rows of R) and judged on the rest of both.
    """
    half = len(unseen) // 2
    if half < 1 or len(retain) < 2:
        raise InvalidInput("training privacy needs at least two rows of R and of T")
    taken = min(half, len(retain) // 2)
    inside, outside = _columns(retain, name, variant), _columns(unseen, name, variant)
    guess = _fitted(inside[:taken], outside[:half])
    hits = guess(inside[taken:]).mean(), (1 - guess(outside[half:])).mean()
    return float(np.mean(hits))


def _columns(outputs: Outputs, name: Feature, variant: Variant) -> Array:
    found = feature(outputs, name, variant)
    return found[:, None] if found.ndim == 1 else found


def _fitted(members: Array, others: Array) -> Callable[[Array], Array]:
    """Return the fitted attack: from features to 1 (seen) or 0."""
    from sklearn.svm import SVC

    if not (len(members) and len(others)):
        raise InvalidInput("the attack needs rows of R and of T")
    labels = np.concatenate([np.ones(len(members)), np.zeros(len(others))])
    fitted = SVC(C=3, gamma="auto", kernel="rbf").fit(np.vstack([members, others]), labels)
    return lambda X: np.asarray(fitted.predict(X), dtype=np.float64)
