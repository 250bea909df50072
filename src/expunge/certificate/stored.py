"""The arrays of :mod:`expunge.certificate.members` as they come from a file."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from expunge.errors import InvalidInput


def checked(arrays: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
    """Return the arrays of a table of records, without copies, if they can be one.

    That they are the ones which were written is shown by the trees, for the records in question.

    Raises
    ------
    InvalidInput
        If one is missing or has another type or shape than expected, or a flag or the cut into
        buckets is impossible.
    """
    n, nodes = len(arrays.get("tag", ())), len(arrays.get("retained_nodes", ()))
    for name, (dtype, shape) in _layout(n, nodes).items():
        array = arrays.get(name)
        if array is None or array.dtype != dtype or array.shape != shape:
            came = "none" if array is None else f"{array.dtype}{array.shape}"
            raise InvalidInput(
                f"the table of records is damaged: expected array {name!r} {dtype}{shape}, "
                f"got {came}; restore the sealed state from a copy"
            )
    offset = arrays["offset"]
    cut = n > 0 and nodes > 1 and nodes & (nodes - 1) == 0 and offset[0] == 0 and offset[-1] == n
    flags = np.concatenate([arrays["named"], arrays["live"]])
    if not cut or (np.diff(offset) < 0).any() or flags.max() > 1:
        raise InvalidInput(
            "the table of records is damaged: its flags or buckets are impossible; restore the "
            "sealed state from a copy"
        )
    return {name: np.asarray(array) for name, array in arrays.items()}


def _layout(n: int, nodes: int) -> dict[str, tuple[np.dtype[Any], tuple[int, ...]]]:
    byte, word, index = np.dtype(np.uint8), np.dtype(np.uint64), np.dtype(np.int64)
    return {
        "key": (byte, (32,)),
        "named": (byte, (1,)),
        "tag": (word, (n,)),
        "tag_low": (word, (n,)),
        "place": (index, (n,)),
        "salt": (byte, (n, 32)),
        "row": (word, (n,)),
        "training": (byte, (32,)),
        "leaf": (byte, (n, 32)),
        "offset": (index, (nodes // 2 + 1,)),
        "live": (byte, (n,)),
        "retained_nodes": (byte, (nodes, 32)),
        "deleted_nodes": (byte, (nodes, 32)),
    }
