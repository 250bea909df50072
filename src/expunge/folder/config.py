"""What a folder remembers for its owner's convenience: where data and keys are, and column names.

Nothing here is signed, and nothing that is certified depends on it.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, fields
from typing import Self

from expunge.errors import FolderProblem

FORMAT = "expunge-folder/1"


@dataclass(frozen=True)
class Config:
    """Paths of the training table and of the keys, the columns of label and id, the issuer."""

    data: str
    keys: str
    label: str
    identifier: str
    issuer: str

    def to_json(self) -> bytes:
        """Return the content of ``config.json``."""
        return json.dumps({"format": FORMAT, **asdict(self)}, indent=2).encode() + b"\n"

    @classmethod
    def from_json(cls, content: bytes) -> Self:
        """Read ``config.json``; raise ``FolderProblem`` if it is damaged or of another version."""
        try:
            found = json.loads(content)
        except (ValueError, RecursionError) as error:
            raise FolderProblem(f"config.json is not JSON ({error}); restore it") from None
        names = {field.name for field in fields(cls)}
        if not isinstance(found, dict) or found.pop("format", None) != FORMAT:
            raise FolderProblem(f"config.json is not of format {FORMAT}; restore it")
        if set(found) != names or not all(map(_is_text, found.values())):
            raise FolderProblem(f"config.json must have the texts {', '.join(sorted(names))}")
        return cls(**found)


def _is_text(value: object) -> bool:
    """Whether a value is a text that can be printed and name a file."""
    return isinstance(value, str) and not any(
        character == "\0" or "\ud800" <= character <= "\udfff" for character in value
    )
