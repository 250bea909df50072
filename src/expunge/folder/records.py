"""From a table of people to the rows of a model, and who of them is still in it."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from expunge.certificate.lookup import Words
from expunge.certificate.members import Members
from expunge.certificate.policy import PENALISED, Policy
from expunge.errors import (
    MALFORMED,
    AlreadyDeleted,
    FolderProblem,
    InvalidInput,
    RetainedMismatch,
    UnknownRecord,
)
from expunge.folder.encoding import Encoding
from expunge.folder.files import some
from expunge.folder.labels import LabelEncoding
from expunge.folder.table import Table, read
from expunge.linear.lineage import Lineage
from expunge.linear.rows import Rows, make_rows

LIVE, DELETED, UNKNOWN = 1, 0, -1


@dataclass(frozen=True)
class Records:
    """How a table becomes rows: the columns' names, the encodings, and the form of the target.

    ``loss`` is that of the policy; ``intercept`` whether a free one is fitted. Where none can be,
    since the loss is kinked, rows get a constant feature 1, whose coefficient is penalised.
    """

    label: str
    identifier: str
    encoding: Encoding
    labels: LabelEncoding
    loss: str
    intercept: bool

    @classmethod
    def of(cls, policy: Policy, label: str, identifier: str) -> Self:
        """Take the encodings from a folder's policy."""
        found = policy.feature_map
        if not isinstance(found, dict) or set(found) != {"encoding", "label"}:
            raise FolderProblem("the policy of this folder has no encoding of a table")
        try:
            encoding = Encoding.from_json(found["encoding"])
            labels = LabelEncoding.from_json(found["label"])
        except MALFORMED as error:
            raise FolderProblem(f"the encoding in the policy cannot be read: {error}") from error
        return cls(label, identifier, encoding, labels, policy.loss, policy.fit_intercept)

    @property
    def feature_map(self) -> dict[str, Any]:
        """The encodings as the policy prints them."""
        return {"encoding": self.encoding.to_json(), "label": self.labels.to_json()}

    def table(self, path: Path) -> Table:
        """Read the columns that are needed, and no others."""
        return read(
            path, label=self.label, identifier=self.identifier, columns=self.encoding.inputs
        )

    def rows(self, table: Table) -> Rows:
        """Encode a table."""
        features, target = self.encoding.encode(table), self._target(table)
        if self.loss in PENALISED:
            features = np.column_stack([features, np.ones(len(features))])
        self._check(target)
        return make_rows(features, target, intercept=self.intercept)

    def _check(self, target: NDArray[np.float64]) -> None:
        if (self.loss == "poisson" and (target < 0).any()) or (
            self.loss == "gamma" and (target <= 0).any()
        ):
            least = "of at least 0" if self.loss == "poisson" else "above 0"
            raise InvalidInput(
                f"{self.loss} models predict numbers {least}; column {self.label!r} has others: "
                "correct the rows, or use ridge"
            )

    def _target(self, table: Table) -> NDArray[np.float64]:
        codes = self.labels.encode(table)
        if self.labels.classes is None:
            return np.asarray(codes, np.float64)
        count = len(self.labels.classes)
        if count == 2:
            return np.where(codes == 1, 1.0, -1.0)
        one_hot: NDArray[np.float64] = np.eye(count)[codes]
        return one_hot if self.loss == "softmax" else 2.0 * one_hot - 1.0


def ids_of(table: Table) -> list[str]:
    """Return whose every row is, (n,)."""
    ids: list[str] = _ids(table).to_pylist()
    return ids


def _ids(table: Table) -> pa.ChunkedArray:
    if table.ids is None:
        raise InvalidInput(f"{table.source} was read without an id column; name one")
    return table.ids


def standing(members: Members, tags: Words) -> NDArray[np.int8]:
    """Return for the tags of distinct ids whether each is LIVE, DELETED or UNKNOWN."""
    live, deleted = members.standing(tags)
    found: NDArray[np.int8] = np.where(live > 0, LIVE, np.where(deleted > 0, DELETED, UNKNOWN))
    return found


def require_live(members: Members, ids: Sequence[str]) -> None:
    """Raise `UnknownRecord` or `AlreadyDeleted` unless the model holds rows of every id."""
    state = standing(members, members.tags(ids))
    unknown = [name for name, it in zip(ids, state, strict=True) if it == UNKNOWN]
    if unknown:
        raise UnknownRecord(
            f"the model was never trained on {some(unknown)}. Ids are compared exactly; correct or "
            "remove them. Nothing was changed"
        )
    deleted = [name for name, it in zip(ids, state, strict=True) if it == DELETED]
    if deleted:
        raise AlreadyDeleted(
            f"{some(deleted)} had been deleted before; remove them from the request. Nothing was "
            "changed"
        )


def staying(table: Table, members: Members, leaving: Collection[str] = ()) -> tuple[Table, Words]:
    """Return the rows of everybody who stays: live in ``members``, and not ``leaving``.

    With them come the tags (n, 3) of their ids, see :meth:`Members.tags`.

    Raises
    ------
    RetainedMismatch
        If the table has rows of people whom the model was never trained on.
    """
    coded = _ids(table).combine_chunks().dictionary_encode()
    people = coded.dictionary.to_pylist()
    tags = members.tags(people)
    state = standing(members, tags)
    strangers = [name for name, it in zip(people, state, strict=True) if it == UNKNOWN]
    if strangers:
        raise RetainedMismatch(
            f"{table.source} has rows of {len(strangers)} people on whom the model was not "
            f"trained: {some(strangers)}. Give the table of the training, with or without the "
            "people deleted since"
        )
    gone = pc.is_in(coded.dictionary, value_set=pa.array(list(leaving), pa.string()))
    stays = (state == LIVE) & ~gone.to_numpy(zero_copy_only=False).astype(np.bool_)
    person = coded.indices.to_numpy()
    mask = stays[person]
    return table.select(mask), tags[person[mask]]


def require_retained(
    lineage: Lineage, rows: Rows, ids: Sequence[str], count: int, tags: Words | None = None
) -> None:
    """Raise `RetainedMismatch` unless these are exactly ``count`` live rows of the model."""
    try:
        lineage.members.find(lineage.digests(rows), ids, tags)
    except (UnknownRecord, AlreadyDeleted) as error:
        raise RetainedMismatch(
            f"the data are not those of the training: {error}. Give the table as it was trained on"
        ) from None
    if len(ids) != count:
        raise RetainedMismatch(
            f"the model retains {count} rows of other people, the data have {len(ids)}: "
            f"{count - len(ids)} are missing. Give the whole table of the training"
        )
