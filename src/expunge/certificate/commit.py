"""Commitments to records, and a Merkle tree over a *set* of them (scheme ``expunge-merkle/1``).

A record's leaf is ``SHA-256(0x00 ‖ salt ‖ idHash ‖ rowDigest)``. A set of leaves of depth b is cut
into 2^b buckets by the top b bits of the leaf; a bucket is hashed as
``SHA-256(0x02 ‖ its leaves in ascending order)`` and above the buckets stands a perfect binary tree
of ``SHA-256(0x01 ‖ left ‖ right)``. The root depends on the set and on b only, not on the order of
the data, and changing one leaf rehashes one bucket and b nodes. A proof is the content of one
bucket and b siblings; the same proof shows that a leaf is in the set or that it is not.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from expunge.errors import InvalidInput, VerificationFailed

SCHEME = "expunge-merkle/1"
BUCKET = 32
"""Upper end of the expected number of leaves in a bucket at training time."""
MAX_DEPTH = 32

Bytes = NDArray[np.uint8]
_Floats = NDArray[np.float64]
_SHA = hashlib.sha256
_ID_PREFIX = b"expunge/id/v1\0"
_BLOCK_BYTES = 1 << 20


def hash_each(start: Any, messages: Iterable[bytes]) -> Bytes:
    """Return the digests (n, size) of messages hashed on from the hash object ``start``."""
    digests = []
    for message in messages:
        state = start.copy()
        state.update(message)
        digests.append(state.digest())
    return np.frombuffer(b"".join(digests), np.uint8).reshape(-1, start.digest_size)


def bytes_of(block: NDArray[Any]) -> Iterator[bytes]:
    """Yield the bytes of every row of a two-dimensional array."""
    raw, width = block.tobytes(), block.shape[1] * block.itemsize
    return (raw[i : i + width] for i in range(0, len(raw), width))


# --- rows and leaves ----------------------------------------------------------------------------


def row_digests(
    features: NDArray[np.floating] | sp.csr_array,
    target: NDArray[np.float64],
    weight: NDArray[np.float64],
) -> Bytes:
    """Return the SHA-256 digests (n, 32) of rows in canonical form.

    Dense row: ``"EXR1" ‖ "<f8d" ‖ d ‖ C`` (little-endian uint32) and then, as little-endian
    float64, the d features, the C targets, the weight. CSR row: ``"EXR1" ‖ "<f8s" ‖ d ‖ C``, the
    ascending column numbers of the non-zeros (int64), their values, targets, weight. Negative zeros
    are written as zeros. A dense and a sparse row of equal values have different digests: digest
    the rows of a request in the form in which they were trained on.

    Parameters
    ----------
    features : (n, d) floating array or CSR array
        As trained on, cast to float64.
    target : (n, C) float64
    weight : (n,) float64

    Raises
    ------
    InvalidInput
        If shapes disagree or a value is NaN or infinite.
    """
    n, d = features.shape
    if target.ndim != 2 or len(target) != n or weight.shape != (n,):
        raise InvalidInput(
            f"expected targets ({n}, C) and weights ({n},) for {n} rows, "
            f"got {target.shape} and {weight.shape}"
        )
    sparse = sp.issparse(features)
    header = b"EXR1" + (b"<f8s" if sparse else b"<f8d") + struct.pack("<II", d, target.shape[1])
    start = _SHA(header)
    tail = _canonical(np.column_stack([target, weight]))
    step = max(1, _BLOCK_BYTES // (8 * (d + tail.shape[1])))
    form: Callable[[Any, _Floats], Iterator[bytes]] = _sparse_rows if sparse else _dense_rows
    parts = [
        hash_each(start, form(features[i : i + step], tail[i : i + step]))
        for i in range(0, n, step)
    ]
    return np.concatenate(parts) if parts else np.zeros((0, 32), np.uint8)


def _canonical(values: NDArray[Any]) -> _Floats:
    canonical: _Floats = values.astype("<f8") + 0.0
    if not np.isfinite(canonical).all():
        raise InvalidInput("rows must hold finite numbers (no NaN, no infinity) to be committed to")
    return canonical


def _dense_rows(features: NDArray[Any], tail: _Floats) -> Iterator[bytes]:
    return bytes_of(np.hstack([_canonical(features), tail]))


def _sparse_rows(features: sp.csr_array, tail: _Floats) -> Iterator[bytes]:
    block = sp.csr_array(features, copy=True)
    block.sum_duplicates()
    block.eliminate_zeros()
    index, value = block.indices.astype("<i8").tobytes(), _canonical(block.data).tobytes()
    for (i, j), end in zip(pairwise((8 * block.indptr).tolist()), bytes_of(tail), strict=True):
        yield index[i:j] + value[i:j] + end


def id_hash(record_id: str) -> bytes:
    """Return ``SHA-256("expunge/id/v1" ‖ 0x00 ‖ record id in UTF-8)``."""
    return _SHA(_ID_PREFIX + record_id.encode()).digest()


def leaves(salts: Bytes, ids: Sequence[str], digests: Bytes) -> Bytes:
    """Return the leaves (n, 32) of records.

    Parameters
    ----------
    salts : (n, 32) uint8
        Fresh from operating-system entropy for every record.
    ids : sequence of n str
    digests : (n, 32) uint8
        From :func:`row_digests`.

    Examples
    --------
    >>> salt = np.arange(32, dtype=np.uint8)[None]
    >>> digest = np.frombuffer(hashlib.sha256(b"row bytes").digest(), np.uint8)[None]
    >>> leaves(salt, ["user-42/row-7"], digest).tobytes().hex()[:16]
    '5530945ec4e2825e'
    """
    hashed = hash_each(_SHA(_ID_PREFIX), (i.encode() for i in ids))
    return hash_each(_SHA(b"\0"), bytes_of(np.hstack([salts, hashed, digests])))


# --- the set tree -------------------------------------------------------------------------------


@dataclass(frozen=True)
class TreeHead:
    """Root (hex) and number of leaves of a set."""

    root: str
    count: int


@dataclass(frozen=True)
class SetProof:
    """One bucket in full and the siblings from it up to the root, all hex."""

    bucket: tuple[str, ...]
    siblings: tuple[str, ...]


@dataclass(frozen=True, repr=False)
class Update:
    """What a change of a set writes: membership of ``positions``, and new hashes of ``nodes``."""

    positions: NDArray[np.int64]
    member: bool
    nodes: NDArray[np.int64]
    hashes: Bytes
    head: TreeHead


def depth_for(count: int) -> int:
    """Return the depth for a training set of ``count`` records: max(0, ⌈log₂(count/32)⌉)."""
    return (max(1, -(-count // BUCKET)) - 1).bit_length()


@dataclass(repr=False, eq=False)
class MerkleSet:
    """A subset of a fixed universe of leaves, with every node of its tree.

    Two complementary sets (retained and deleted) share ``leaves`` and ``flags``. All arrays may be
    memory-mapped; changes touch only the rows they must.

    Attributes
    ----------
    leaves : (n, 32) uint8
        The universe, ascending.
    offset : (2^b + 1,) int64
        Bucket j of the universe is ``leaves[offset[j]:offset[j + 1]]``.
    flags : (n,) uint8
        A leaf is a member where its flag equals ``keep``.
    keep : int
        0 or 1.
    nodes : (2^(b+1), 32) uint8
        Heap order: the root is 1, the children of k are 2k and 2k + 1, bucket j is 2^b + j.
    """

    leaves: Bytes
    offset: NDArray[np.int64]
    flags: Bytes
    keep: int
    nodes: Bytes

    def __post_init__(self) -> None:
        self.recount()

    def recount(self) -> None:
        """Count the members: O(n) bytes are read."""
        self.count = int(np.count_nonzero(self.flags == self.keep))

    def __repr__(self) -> str:
        """Say how many leaves there are."""
        return f"MerkleSet(count={self.count}, depth={self.depth})"

    @classmethod
    def build(cls, leaves: Bytes, depth: int) -> MerkleSet:
        """Build the tree of distinct leaves (n, 32), given in any order.

        Raises
        ------
        InvalidInput
            If a leaf occurs twice, or the depth is not in 0..32.
        """
        if not 0 <= depth <= MAX_DEPTH:
            raise InvalidInput(f"expected a depth in 0..{MAX_DEPTH}, got {depth}")
        ordered = leaves[ascending(leaves)]
        if (ordered[1:] == ordered[:-1]).all(axis=1).any():
            raise InvalidInput("a leaf occurs twice: every record needs its own salt")
        bucket = _buckets(ordered, depth)
        offset = np.searchsorted(bucket, np.arange((1 << depth) + 1)).astype(np.int64)
        raw, cuts = ordered.tobytes(), (32 * offset).tolist()
        hashes = [_SHA(b"\2" + raw[i:j]).digest() for i, j in pairwise(cuts)]
        return cls(ordered, offset, np.ones(len(ordered), np.uint8), 1, _tree(hashes))

    def complement(self) -> MerkleSet:
        """Return the set of the leaves that are not members, sharing leaves and flags.

        The receiver must be the whole universe, so that the complement is empty.
        """
        empty = _tree([_SHA(b"\2").digest()] * (1 << self.depth))
        return MerkleSet(self.leaves, self.offset, self.flags, 1 - self.keep, empty)

    @property
    def depth(self) -> int:
        """Number of levels b above the buckets."""
        return (len(self.offset) - 1).bit_length() - 1

    @property
    def head(self) -> TreeHead:
        """Root and count now."""
        return TreeHead(self.nodes[1].tobytes().hex(), self.count)

    def preview(self, positions: NDArray[np.int64], *, member: bool) -> Update:
        """Return what has to be written for ``positions`` to be members, or not to be.

        Nothing is changed. Costs O(k log n) for k distinct positions. Positions that already are
        as asked are rehashed all the same, so an update that was written in part can be repeated.
        """
        flag = self.keep if member else 1 - self.keep
        changed = int(np.count_nonzero(self.flags[positions] != flag))
        count = self.count + (changed if member else -changed)
        hashes = self._rehashed(positions, flag)
        root = hashes.get(1) or self.nodes[1].tobytes()
        nodes = np.fromiter(hashes, np.int64, len(hashes))
        values = np.frombuffer(b"".join(hashes.values()), np.uint8).reshape(-1, 32)
        return Update(positions, member, nodes, values, TreeHead(root.hex(), count))

    def require_sound(self, positions: NDArray[np.int64], leaves: Bytes | None = None) -> None:
        """Recompute what lies between ``positions`` and the root: O(k log n).

        Raises ``VerificationFailed`` (``commitments``) if it, or ``leaves`` (k, 32) there, are not
        what is stored.
        """
        same = leaves is None or np.array_equal(leaves, self.leaves[positions])
        now = self._rehashed(positions, None)
        if not same or any(self.nodes[k].tobytes() != value for k, value in now.items()):
            raise VerificationFailed("commitments", "the table of records is damaged")

    def _rehashed(self, positions: NDArray[np.int64], flag: int | None) -> dict[int, bytes]:
        """Return every node above ``positions`` if these have ``flag`` (None: as they are)."""
        ordered, base = np.sort(positions), 1 << self.depth
        hashes = {
            base + j: _SHA(b"\2" + self._content(j, ordered, flag)).digest()
            for j in set(_buckets(self.leaves[ordered], self.depth).tolist())
        }
        raw, level = self.nodes.reshape(-1).data, set(hashes)
        for _ in range(self.depth):
            level = {k >> 1 for k in level}
            for k in level:
                left = hashes.get(2 * k) or raw[64 * k : 64 * k + 32]
                right = hashes.get(2 * k + 1) or raw[64 * k + 32 : 64 * k + 64]
                hashes[k] = _SHA(b"".join((b"\1", left, right))).digest()
        return hashes

    def _content(self, bucket: int, positions: NDArray[np.int64], flag: int | None) -> bytes:
        start, stop = int(self.offset[bucket]), int(self.offset[bucket + 1])
        flags = np.array(self.flags[start:stop])
        if flag is not None:
            i, j = positions.searchsorted(np.array((start, stop)))
            flags[positions[i:j] - start] = flag
        members: Bytes = self.leaves[start:stop][flags == self.keep]
        return members.tobytes()

    def apply(self, update: Update) -> None:
        """Write an update; writing it again changes nothing."""
        self.nodes[update.nodes] = update.hashes
        self.flags[update.positions] = self.keep if update.member else 1 - self.keep
        self.count = update.head.count

    def prove(self, leaf: bytes) -> SetProof:
        """Return the proof that ``leaf`` is a member, or that it is not."""
        bucket = _bucket(leaf, self.depth)
        content = self._content(bucket, np.zeros(0, np.int64), None).hex()
        path = [((1 << self.depth) + bucket) >> level for level in range(self.depth)]
        siblings = [self.nodes[k ^ 1].tobytes().hex() for k in path]
        return SetProof(
            tuple(content[i : i + 64] for i in range(0, len(content), 64)), tuple(siblings)
        )


def verify_member(leaf: bytes, proof: SetProof, head: TreeHead, depth: int) -> None:
    """Check that ``leaf`` is in the set with this head; raise ``VerificationFailed`` if not shown.

    Examples
    --------
    >>> made = MerkleSet.build(np.eye(3, 32, dtype=np.uint8), depth=1)
    >>> leaf = made.leaves[0].tobytes()
    >>> verify_member(leaf, made.prove(leaf), made.head, 1)
    >>> verify_absent(bytes(32), made.prove(bytes(32)), made.head, 1)
    """
    if leaf not in _verified_bucket(leaf, proof, head, depth):
        raise VerificationFailed("commitments", "the record is not in the committed set")


def verify_absent(leaf: bytes, proof: SetProof, head: TreeHead, depth: int) -> None:
    """Check that ``leaf`` is not in the set with this head; raise if that is not shown."""
    if leaf in _verified_bucket(leaf, proof, head, depth):
        raise VerificationFailed("commitments", "the record is in the committed set")


def _verified_bucket(leaf: bytes, proof: SetProof, head: TreeHead, depth: int) -> list[bytes]:
    try:
        content = [bytes.fromhex(h) for h in proof.bucket]
        siblings = [bytes.fromhex(h) for h in proof.siblings]
    except (TypeError, ValueError):
        raise VerificationFailed("commitments", "the proof is not made of hex digests") from None
    if not 0 <= depth <= MAX_DEPTH or len(siblings) != depth:
        reason = f"expected {depth} siblings in the proof, got {len(siblings)}"
        raise VerificationFailed("commitments", reason)
    if any(len(h) != 32 for h in (leaf, *content, *siblings)):
        raise VerificationFailed("commitments", "every digest in a proof must have 32 bytes")
    index = _bucket(leaf, depth)
    if any(a >= b for a, b in pairwise(content)) or any(
        _bucket(c, depth) != index for c in content
    ):
        raise VerificationFailed("commitments", "the bucket is unsorted or holds foreign leaves")
    node = _SHA(b"\2" + b"".join(content)).digest()
    for sibling in siblings:
        pair = sibling + node if index & 1 else node + sibling
        node = _SHA(b"\1" + pair).digest()
        index >>= 1
    if node.hex() != head.root:
        raise VerificationFailed("commitments", "the proof does not lead to the committed root")
    return content


def ascending(leaves: Bytes) -> NDArray[np.int64]:
    """Return the order that sorts leaves (n, 32) as byte strings."""
    head = np.ascontiguousarray(leaves[:, :8]).view(">u8").ravel().astype(np.uint64)
    order = np.argsort(head, kind="stable")
    ordered = head[order]
    if (ordered[1:] == ordered[:-1]).any():
        words = np.ascontiguousarray(leaves).view(">u8").astype(np.uint64)
        order = np.lexsort(words.T[::-1])
    return order


def _bucket(leaf: bytes, depth: int) -> int:
    return int.from_bytes(leaf[:4], "big") >> (32 - depth)


def _buckets(leaves: Bytes, depth: int) -> NDArray[np.int64]:
    top = np.ascontiguousarray(leaves[:, :4]).view(">u4").ravel().astype(np.int64)
    return top >> (32 - depth)


def _tree(buckets: list[bytes]) -> Bytes:
    levels = [buckets]
    while len(levels[-1]) > 1:
        below = iter(levels[-1])
        levels.append([_SHA(b"\1" + a + b).digest() for a, b in zip(below, below, strict=True)])
    heap = bytes(32) + b"".join(h for level in reversed(levels) for h in level)
    return np.frombuffer(bytearray(heap), np.uint8).reshape(-1, 32)
