"""The parts of the data that an audit looks at: rows with labels, and with owners where there are.

S was asked to be forgotten, R was kept, T was never seen and has the same classes (and users) as S,
Z is a crowd for RMIA. All four are disjoint.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any

import numpy as np
from numpy.typing import NDArray

from expunge.errors import InvalidInput


@dataclass(frozen=True)
class Part:
    """Rows.

    Attributes
    ----------
    X : array, sparse matrix, data frame or tensor
        Whatever the models take.
    y : (n,) array
    users : (n,) array or None
        Who owns each row.
    """

    X: Any = field(repr=False)
    y: NDArray[Any] = field(repr=False)
    users: NDArray[Any] | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        count = int(self.X.shape[0]) if hasattr(self.X, "shape") else len(self.X)
        if self.y.ndim != 1 or count != len(self.y) or not count:
            raise InvalidInput(
                f"expected rows and one label each, got {count} rows and labels {self.y.shape}"
            )
        if self.users is not None and len(self.users) != count:
            raise InvalidInput(f"there are {count} rows and {len(self.users)} users: give one each")

    def __len__(self) -> int:
        return len(self.y)

    def take(self, index: NDArray[Any]) -> Part:
        """Return the rows at these positions."""
        users = None if self.users is None else self.users[index]
        return Part(_rows(self.X, index), self.y[index], users)

    def labelled(self, y: NDArray[Any]) -> Part:
        """Return the same rows with other labels."""
        return Part(self.X, y, self.users)


def part(given: Part | Sequence[Any]) -> Part:
    """Return rows from ``(X, y)`` or ``(X, y, users)``."""
    if isinstance(given, Part):
        return given
    if not isinstance(given, tuple | list) or len(given) not in (2, 3):
        raise InvalidInput("expected rows as (X, y) or (X, y, users)")
    X, y, users = (*given, None) if len(given) == 2 else given
    rows = np.asarray(X) if isinstance(X, list) else X
    return Part(rows, np.asarray(y), None if users is None else np.asarray(users))


@dataclass(frozen=True)
class Data:
    """S, R, T and, for RMIA, Z."""

    forget: Part
    retain: Part
    unseen: Part
    population: Part | None = None

    @property
    def trained(self) -> Part:
        """D, with S first."""
        return joined(self.forget, self.retain)


def data_of(given: Data | Sequence[Any]) -> Data:
    """Return the parts of ``(S, R, T)`` or ``(S, R, T, Z)``.

    Raises
    ------
    InvalidInput
        If there are more or fewer, or some class of S does not occur in T.
    """
    if isinstance(given, Data):
        return given
    if not isinstance(given, tuple | list) or len(given) not in (3, 4):
        raise InvalidInput(
            "data must be (S, R, T) or (S, R, T, Z): rows to forget, retained, never seen, and a "
            "crowd for RMIA"
        )
    found = Data(*(None if one is None else part(one) for one in given))  # type: ignore[arg-type]
    absent = set(np.unique(found.forget.y).tolist()) - set(np.unique(found.unseen.y).tolist())
    if absent:
        raise InvalidInput(
            f"T has no rows of {', '.join(map(str, sorted(absent)[:5]))}, which S has: T must have "
            "the same classes as S, or every comparison shows the classes"
        )
    return found


def joined(first: Part, second: Part) -> Part:
    """Return the rows of both, one after the other."""
    users = None
    if first.users is not None and second.users is not None:
        users = np.concatenate([first.users, second.users])
    return Part(_stacked(first.X, second.X), np.concatenate([first.y, second.y]), users)


def _rows(X: Any, index: NDArray[Any]) -> Any:
    return X.iloc[index] if hasattr(X, "iloc") else X[index]


def _stacked(first: Any, second: Any) -> Any:
    if isinstance(first, np.ndarray):
        return np.concatenate([first, second])
    if hasattr(first, "iloc"):
        return import_module("pandas").concat([first, second], ignore_index=True)
    if hasattr(first, "tocsr"):
        from scipy.sparse import vstack

        return vstack([first, second], format="csr")
    from expunge.audit.networks import stacked

    return stacked(first, second)
