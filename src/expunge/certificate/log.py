"""The mathematics of the append-only log: RFC 6962 Merkle trees and C2SP signed notes.

Proofs are made as in RFC 6962 §2.1 and checked as in RFC 9162 §2.1.3 and §2.1.4. A checkpoint is a
signed note (C2SP signed-note, tlog-checkpoint): origin, size and root with an Ed25519 signature.
Every ``verify`` function raises ``VerificationFailed`` unless what it says has been shown.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Self

from cryptography.exceptions import InvalidSignature

from expunge.certificate.envelope import pae
from expunge.certificate.keys import PublicKey, Signer, raw
from expunge.errors import InvalidInput, VerificationFailed

EMPTY_ROOT = hashlib.sha256(b"").digest()
Proof = tuple[bytes, ...]
_ED25519 = b"\1"
_SIZE = re.compile(r"0|[1-9][0-9]{0,18}")
_NAME = re.compile(r"[^\s+]{1,200}")


def leaf_hash(payload_type: str, payload: bytes) -> bytes:
    """Return the leaf of a statement: SHA-256(0x00 ‖ PAE), whatever its signatures."""
    return hashlib.sha256(b"\0" + pae(payload_type, payload)).digest()


def _node(left: bytes, right: bytes) -> bytes:
    return hashlib.sha256(b"\1" + left + right).digest()


@dataclass(frozen=True)
class Frontier:
    """A log of ``size`` leaves by the roots of its perfect subtrees, largest first.

    Appending costs O(log n) and needs nothing else.

    Examples
    --------
    >>> Frontier().append(hashlib.sha256(bytes(1)).digest()).root.hex()[:16]
    '6e340b9cffb37a98'
    """

    size: int = 0
    peaks: tuple[bytes, ...] = ()

    def append(self, leaf: bytes) -> Frontier:
        """Return the log with one more leaf hash (32 bytes)."""
        peaks, rest = list(self.peaks), self.size
        while rest & 1:
            leaf = _node(peaks.pop(), leaf)
            rest >>= 1
        return Frontier(self.size + 1, (*peaks, leaf))

    @property
    def root(self) -> bytes:
        """Root of the whole log."""
        if not self.peaks:
            return EMPTY_ROOT
        return reduce(lambda right, left: _node(left, right), reversed(self.peaks))

    def to_bytes(self) -> bytes:
        """Return the peaks end to end."""
        return b"".join(self.peaks)

    @classmethod
    def from_bytes(cls, size: int, data: bytes) -> Self:
        """Read the peaks of a log of ``size`` leaves; raise ``InvalidInput`` if it has others."""
        if len(data) != 32 * size.bit_count():
            raise InvalidInput(f"expected {size.bit_count()} peaks of 32 bytes, got {len(data)}")
        return cls(size, tuple(data[i : i + 32] for i in range(0, len(data), 32)))


def root(leaves: Iterable[bytes]) -> bytes:
    """Return the root over leaf hashes (RFC 6962 §2.1)."""
    return reduce(Frontier.append, leaves, Frontier()).root


def inclusion_proof(index: int, leaves: Sequence[bytes]) -> Proof:
    """Return the audit path of leaf ``index``, from the leaf up (RFC 6962 §2.1.1). O(n)."""
    if not 0 <= index < len(leaves):
        raise InvalidInput(f"expected an index in 0..{len(leaves) - 1}, got {index}")
    path: list[bytes] = []
    start, stop = 0, len(leaves)
    while stop - start > 1:
        middle = start + _split(stop - start)
        if index < middle:
            path.append(root(leaves[middle:stop]))
            stop = middle
        else:
            path.append(root(leaves[start:middle]))
            start = middle
    return tuple(reversed(path))


def consistency_proof(old_size: int, leaves: Sequence[bytes]) -> Proof:
    """Return the proof that the first ``old_size`` leaves are a prefix (RFC 6962 §2.1.2). O(n)."""
    if not 0 <= old_size <= len(leaves):
        raise InvalidInput(f"expected a size in 0..{len(leaves)}, got {old_size}")
    if old_size in (0, len(leaves)):
        return ()
    path: list[bytes] = []
    start, stop, left_edge = 0, len(leaves), True
    while stop != old_size:
        middle = start + _split(stop - start)
        if old_size <= middle:
            path.append(root(leaves[middle:stop]))
            stop = middle
        else:
            path.append(root(leaves[start:middle]))
            start, left_edge = middle, False
    if not left_edge:
        path.append(root(leaves[start:stop]))
    return tuple(reversed(path))


def _split(count: int) -> int:
    """Return the largest power of two below ``count`` ≥ 2."""
    return 1 << ((count - 1).bit_length() - 1)


def verify_inclusion(leaf: bytes, index: int, size: int, proof: Proof, root: bytes) -> None:
    """Check that leaf hash ``leaf`` is entry ``index`` of the log with this size and root.

    Raises
    ------
    VerificationFailed
        ``inclusion``.
    """
    place, last, node = index, size - 1, leaf
    sound = 0 <= index < size
    for sibling in proof:
        sound = sound and last > 0
        if place & 1 or place == last:
            node = _node(sibling, node)
            while place and not place & 1:
                place, last = place >> 1, last >> 1
        else:
            node = _node(node, sibling)
        place, last = place >> 1, last >> 1
    if not sound or last != 0 or node != root:
        raise VerificationFailed(
            "inclusion", f"the proof does not show entry {index} in the log of size {size}"
        )


def verify_consistency(
    old_size: int, old_root: bytes, size: int, root: bytes, proof: Proof
) -> None:
    """Check that the log of size and root ``size``, ``root`` continues the older one.

    Raises
    ------
    VerificationFailed
        ``truncated`` (the newer log is shorter), ``fork`` (same size, other root), or
        ``consistency``.
    """
    if old_size > size:
        raise VerificationFailed(
            "truncated", f"a checkpoint covers {old_size} entries, the log has {size}"
        )
    if old_size == size and old_root != root:
        raise VerificationFailed("fork", f"two roots for one log of size {size}")
    if not _consistent(old_size, old_root, size, root, proof):
        raise VerificationFailed(
            "consistency", f"the log of size {size} is not shown to continue that of {old_size}"
        )


def _consistent(old_size: int, old_root: bytes, size: int, root: bytes, proof: Proof) -> bool:
    if old_size == size:
        return not proof
    if old_size <= 0:
        return old_size == 0 and old_root == EMPTY_ROOT and not proof
    path = proof if old_size & (old_size - 1) else (old_root, *proof)
    if not path:
        return False
    place, last = old_size - 1, size - 1
    while place & 1:
        place, last = place >> 1, last >> 1
    old = new = path[0]
    for sibling in path[1:]:
        if last == 0:
            return False
        if place & 1 or place == last:
            old, new = _node(sibling, old), _node(sibling, new)
            while place and not place & 1:
                place, last = place >> 1, last >> 1
        else:
            new = _node(new, sibling)
        place, last = place >> 1, last >> 1
    return last == 0 and old == old_root and new == root


# --- checkpoints --------------------------------------------------------------------------------


@dataclass(frozen=True)
class Checkpoint:
    """What a checkpoint note says: the log's name, its size, its root (32 bytes)."""

    origin: str
    size: int
    root: bytes


def make_note(origin: str, size: int, root: bytes, signer: Signer) -> str:
    """Return the checkpoint as a signed note.

    Raises
    ------
    InvalidInput
        If the origin is empty, too long, or has spaces or a plus sign in it.
    """
    text = f"{checked_origin(origin)}\n{size}\n{base64.b64encode(root).decode()}\n"
    box = _key_hash(origin, signer.public) + signer.sign(text.encode())
    return f"{text}\n— {origin} {base64.b64encode(box).decode()}\n"


def verify_note(note: str, origin: str, public: PublicKey) -> Checkpoint:
    """Return the checkpoint in a note that the log ``origin`` signed with this key.

    Raises
    ------
    VerificationFailed
        ``foreign signature``, if there is no valid signature of this name and key, or the note is
        of another log; ``note``, if it is no checkpoint.
    """
    checkpoint = parse_note(open_note(note, origin, public))
    if checkpoint.origin != origin:
        raise VerificationFailed(
            "foreign signature",
            f"expected a checkpoint of {origin}, got {checkpoint.origin[:80]!r}",
        )
    return checkpoint


def open_note(note: str, name: str, public: PublicKey) -> str:
    """Return the text of a signed note; signatures of others are passed over.

    Raises
    ------
    VerificationFailed
        ``note`` or ``foreign signature``.
    """
    text, gap, rest = note.rpartition("\n\n")
    lines = rest.split("\n")
    if not gap or not text or lines.pop() or not lines or re.search(r"[\x00-\x09\x0b-\x1f]", note):
        raise VerificationFailed("note", "expected text, an empty line, and signature lines")
    text += "\n"
    expected = _key_hash(name, public)
    boxes = [_signature_line(line) for line in lines]
    own = [box[4:] for who, box in boxes if who == name and box[:4] == expected]
    try:
        for signature in own:
            public.verify(signature, text.encode())
    except InvalidSignature:
        own = []
    if not own:
        raise VerificationFailed(
            "foreign signature", f"the note has no valid signature of {name} with the trusted key"
        )
    return text


def parse_note(text: str) -> Checkpoint:
    """Read the text of a checkpoint, without a signature check; extension lines are ignored."""
    lines = text.split("\n")
    if len(lines) >= 3 and _NAME.fullmatch(lines[0]) and _SIZE.fullmatch(lines[1]):
        found = _base64(lines[2])
        if len(found) == 32:
            return Checkpoint(lines[0], int(lines[1]), found)
    raise VerificationFailed("note", "expected lines with origin, size, and root in base64")


def checked_origin(origin: str) -> str:
    """Return the name of a log; raise ``InvalidInput`` if a note cannot carry it."""
    if _NAME.fullmatch(origin) is None:
        raise InvalidInput(
            f"expected an origin of 1..200 characters, no space or +, got {origin!r}"
        )
    return origin


def _key_hash(name: str, public: PublicKey) -> bytes:
    return hashlib.sha256(name.encode() + b"\n" + _ED25519 + raw(public)).digest()[:4]


def _signature_line(line: str) -> tuple[str, bytes]:
    dash, _, rest = line.partition(" ")
    name, _, box = rest.partition(" ")
    found = _base64(box)
    if dash != "—" or len(found) < 5:
        raise VerificationFailed("note", "expected signature lines of the form '— name base64'")
    return name, found


def _base64(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except (ValueError, binascii.Error):
        return b""
