"""What the model predicts: a class, or a number."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from expunge.errors import InvalidInput
from expunge.folder.columns import require_keys
from expunge.folder.files import closest, some
from expunge.folder.table import Table
from expunge.folder.values import Place, canonical_category, text_of, to_categories, to_numbers

MAX_CLASSES = 100
_INTEGER = re.compile(r"-?(0|[1-9][0-9]*)")


@dataclass(frozen=True)
class LabelEncoding:
    """The classes in the order of the model's scores, or None for a number.

    Learned classes need no assumption about who stays: the last record of a class is never deleted
    (`LastOfClass`), so the retained rows have the same classes.
    """

    classes: tuple[str | int | bool, ...] | None

    def __post_init__(self) -> None:
        if self.classes is None:
            return
        texts = self._texts()
        twice = [t for i, t in enumerate(texts) if t in texts[:i]]
        if len(texts) < 2 or twice:
            problem = f"{some(twice)} twice" if twice else f"{len(texts)} of them"
            raise InvalidInput(f"expected at least two distinct classes, got {problem}")
        if len({type(value) for value in self.classes}) > 1:
            raise InvalidInput("classes must all be texts, all whole numbers or all truth values")

    @classmethod
    def declared(cls, options: Mapping[str, Any]) -> LabelEncoding:
        """Read ``{"classes": [...]}`` or ``{"type": "number"}``.

        >>> LabelEncoding.declared({"classes": ["ill", "well"]})
        LabelEncoding(classes=('ill', 'well'))
        """
        if isinstance(options, Mapping) and options.get("type") == "number":
            require_keys(options, "the label", ("type",))
            return cls(None)
        require_keys(options, "the label", ("classes",))
        if not isinstance(options["classes"], list | tuple):
            raise InvalidInput("the label: `classes` must be a list of values")
        return cls(tuple(_plain(value) for value in options["classes"]))

    @classmethod
    def learn(cls, table: Table) -> LabelEncoding:
        """Take the classes from a table's label column, sorted.

        Texts that are all whole numbers are whole numbers, and all true or false truth values, so
        that CSV and Parquet give the same classes.

        Raises
        ------
        InvalidInput
            For fewer than two classes, more than `MAX_CLASSES`, or labels that are not whole.
        """
        _, texts = to_categories(*_cells(table))
        found = {text for text in texts if text is not None}
        if len(found) > MAX_CLASSES:
            raise InvalidInput(
                f"{table.source}: label {table.label_name!r} has {len(found)} distinct values, "
                f"more than {MAX_CLASSES} classes; use a regression model, or group them"
            )
        if len(found) < 2:
            raise InvalidInput(
                f"{table.source}: label {table.label_name!r} has the single class {some([*found])}"
                "; at least two are needed"
            )
        if found <= {"true", "false"}:
            return cls((False, True))
        if all(_INTEGER.fullmatch(text) for text in found):
            return cls(tuple(sorted(map(int, found))))
        return cls(tuple(sorted(found)))

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> LabelEncoding:
        """Read what `to_json` wrote."""
        return cls.declared(document)

    def to_json(self) -> dict[str, Any]:
        """Return the JSON for the public policy."""
        return {"type": "number"} if self.classes is None else {"classes": list(self.classes)}

    def encode(self, table: Table) -> NDArray[np.int64] | NDArray[np.float64]:
        """Return each row's position in `classes`, int64 (n,), or its target, float64 (n,).

        Raises
        ------
        InvalidInput
            For a label that is no declared class, missing, or no number; names row and remedy.
        """
        cells, place = _cells(table)
        if self.classes is None:
            target = to_numbers(cells, place)
            if np.isnan(target).any():
                row = int(np.isnan(target).argmax())
                raise InvalidInput(f"{place.row(row)} is missing; leave the row out")
            return target
        codes, texts = to_categories(cells, place)
        known = self._texts()
        position = np.array([known.index(t) if t in known else -1 for t in texts])[codes]
        if (position < 0).any():
            row = int((position < 0).argmax())
            text = texts[codes[row]]
            raise InvalidInput(
                f"{place.row(row)} is {text!r}, which is not a class of the model ({some(known)})."
                f"{closest(str(text), known)} Correct it, or leave the row out"
            )
        return position

    def _texts(self) -> list[str]:
        return [str(canonical_category(text_of(v, "a class"))) for v in self.classes or ()]


def _cells(table: Table) -> tuple[pa.Array, Place]:
    if table.label is None or table.label_name is None:
        raise InvalidInput(f"{table.source} was read without a label column; name one")
    return table.label.combine_chunks(), Place(table.source, table.label_name)


def _plain(value: Any) -> str | int | bool:
    text = text_of(value, "a class")
    if isinstance(value, float):
        return int(text)
    return value if isinstance(value, bool | int) else text
