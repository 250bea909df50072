"""Finding records by keyed tags: the search half of :mod:`expunge.certificate.members`."""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b
from typing import Any

import numpy as np
from numpy.typing import NDArray

from expunge.certificate.commit import Bytes, hash_each
from expunge.errors import InvalidInput

Words = NDArray[np.uint64]


def names(digests: Bytes, ids: Sequence[str] | None) -> Sequence[str]:
    """Return the ids of rows: those given, or the hex of the row digests.

    Raises
    ------
    InvalidInput
        If there are more or fewer ids than rows, or an id is empty or not a string.
    """
    if ids is None:
        text = digests.tobytes().hex()
        return [text[i : i + 64] for i in range(0, len(text), 64)]
    if len(ids) != len(digests):
        raise InvalidInput(f"expected one id per row, got {len(ids)} ids for {len(digests)} rows")
    return ids if {*map(type, ids)} == {str} and all(ids) else [checked(name) for name in ids]


def checked(name: str) -> str:
    """Return an id; raise ``InvalidInput`` if it is empty or not a string."""
    if not isinstance(name, str) or not name:
        raise InvalidInput(f"expected ids that are non-empty strings, got {name!r}")
    return name


def called(ids: Sequence[str] | None, i: int) -> str:
    """Return what to call row i of a request in a message."""
    return f"row {i}" if ids is None else f"id {ids[i]!r} (row {i})"


def refuse(
    bad: NDArray[np.bool_], ids: Sequence[str] | None, error: type[InvalidInput], what: str
) -> None:
    """Raise ``error`` for the first row that is bad, if one is."""
    if bad.any():
        raise error(f"{called(ids, int(np.argmax(bad)))} {what}; nothing was changed")


def tags(key: bytes, ids: Sequence[str]) -> Words:
    """Return (n, 3) words: the id tag in two halves, and a pad that hides the row tag."""
    try:
        encoded = [name.encode() for name in ids]
    except UnicodeEncodeError:
        raise InvalidInput("ids must be valid Unicode text") from None
    digests = hash_each(blake2b(key=key, digest_size=24), encoded)
    return digests.view("<u8").astype(np.uint64)


def first_word(digests: Bytes) -> Words:
    """Return the first eight bytes of digests (n, 32) as numbers (n,)."""
    return np.ascontiguousarray(digests[:, :8]).view("<u8").ravel().astype(np.uint64)


def numbered(tags: Words) -> tuple[NDArray[np.intp], Words]:
    """Number the distinct id tags of rows: the number (k,) of every row's, and the tags (m, 2)."""
    person, first = _groups(tags[:, 0], tags[:, 1])
    return person, tags[first, :2]


def match(
    have: tuple[NDArray[np.intp], Words, NDArray[np.int64]], want: tuple[NDArray[np.intp], Words]
) -> tuple[NDArray[np.int64], NDArray[np.bool_], NDArray[np.bool_]]:
    """Give every wanted (person, row tag) a position of its own among (person, row tag, position).

    Returns positions (−1 where there is none), which rows are unknown, and which are known but
    wanted more often than they are there.
    """
    here = len(have[0])
    pair, _ = _groups(*(np.concatenate([a, b]) for a, b in zip(have, want, strict=False)))
    count = np.bincount(pair[:here], minlength=int(pair.max()) + 1)
    order = np.argsort(pair[:here], kind="stable")
    wanted = pair[here:]
    rank = _rank(wanted)
    unknown, lost = count[wanted] == 0, rank >= count[wanted]
    place = np.where(lost, 0, (np.cumsum(count) - count)[wanted] + rank)
    return np.where(lost, -1, have[2][order][place]), unknown, lost & ~unknown


def _groups(high: NDArray[Any], low: NDArray[Any]) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Number equal pairs alike, ascending: the number of each, and where each first occurs."""
    order = np.lexsort((low, high))
    high, low = high[order], low[order]
    new = np.ones(len(order), np.bool_)
    new[1:] = (high[1:] != high[:-1]) | (low[1:] != low[:-1])
    number = np.empty(len(order), np.intp)
    number[order] = np.cumsum(new) - 1
    return number, order[new]


def _rank(group: NDArray[np.intp]) -> NDArray[np.intp]:
    """Return how many earlier elements are of the same group."""
    order = np.argsort(group, kind="stable")
    ordered = group[order]
    rank = np.empty(len(group), np.intp)
    rank[order] = np.arange(len(group)) - ordered.searchsorted(ordered)
    return rank
