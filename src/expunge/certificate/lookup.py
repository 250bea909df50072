"""Finding records by keyed tags: the search half of :mod:`expunge.certificate.members`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from hashlib import blake2b

import numpy as np
from numpy.typing import NDArray

from expunge.certificate.commit import Bytes, bytes_of, hash_each
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
    return [checked(name) for name in ids]


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
    number: dict[bytes, int] = {}
    person = [number.setdefault(tag, len(number)) for tag in bytes_of(tags[:, :2])]
    return np.array(person), np.frombuffer(b"".join(number), np.uint64).reshape(-1, 2)


def match(
    have: tuple[NDArray[np.intp], Words, NDArray[np.int64]], want: tuple[NDArray[np.intp], Words]
) -> tuple[NDArray[np.int64], NDArray[np.bool_], NDArray[np.bool_]]:
    """Give every wanted (person, row tag) a position of its own among (person, row tag, position).

    Returns positions (−1 where there is none), which rows are unknown, and which are known but
    wanted more often than they are there.
    """
    *there, positions = (column.tolist() for column in have)
    pool = dict(zip(_distinct(*there), positions, strict=True))
    wanted = list(_distinct(*(column.tolist() for column in want)))
    chosen = np.array([pool.get(key, -1) for key in wanted], np.int64)
    lost = chosen < 0
    unknown = np.zeros_like(lost)
    for i in np.flatnonzero(lost):
        unknown[i] = wanted[i] >> 64 << 64 not in pool
    return chosen, unknown, lost & ~unknown


def _distinct(persons: Sequence[int], rows: Sequence[int]) -> Iterator[int]:
    """Yield ``person ‖ row ‖ k`` as one number for the k-th time that a pair occurs."""
    seen: dict[int, int] = {}
    for person, row in zip(persons, rows, strict=True):
        pair = person << 64 | row
        k = seen.get(pair, 0)
        seen[pair] = k + 1
        yield pair << 64 | k
