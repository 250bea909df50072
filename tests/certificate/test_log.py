"""RFC 6962 trees and C2SP notes: published vectors, a naive reference, wrong proofs."""

from __future__ import annotations

import base64
import hashlib

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from expunge.certificate import log
from expunge.certificate.keys import KeySigner
from expunge.errors import InvalidInput, VerificationFailed

DATA = ["", "00", "10", "2021", "3031", "40414243", "5051525354555657", bytes(range(96, 112)).hex()]
LEAVES = [hashlib.sha256(b"\0" + bytes.fromhex(d)).digest() for d in DATA]
ROOTS = {
    0: "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855",
    1: "6e340b9cffb37a989ca544e6bb780a2c78901d3fb33738768511a30617afa01d",
    2: "fac54203e7cc696cf0dfcb42c92a1d9dbaf70ad9e621f4bd8d98662f00e3c125",
    3: "aeb6bcfe274b70a14fb067a5e5578264db0fa9b51af5e0ba159158f329e06e77",
    8: "5dc9da79a70659a9ad559cb701ded9a2ab9d823aad2f4960cfe370eff4604328",
}
RFC8032 = KeySigner(
    Ed25519PrivateKey.from_private_bytes(
        bytes.fromhex("9d61b19deffd5a60ba844af492ec2cc44449c5697b326919703bac031cae7f60")
    )
)
ORIGIN = "log.example/expunge"
NOTE_SIGNATURE = (
    "uZxSPs0Nr8N9pEDX0Dg29xhObwr7KVMQ0nBaj2aVL6v23Y71MZvd7Y8aijG9qXZmaOg4TxxmEP5bC49uRR29YKfUlQM="
)


def leaves_of(count: int) -> list[bytes]:
    return [hashlib.sha256(b"\0" + bytes([i])).digest() for i in range(count)]


def naive_root(leaves: list[bytes]) -> bytes:
    """RFC 6962 §2.1, word for word."""
    if len(leaves) < 2:
        return leaves[0] if leaves else hashlib.sha256(b"").digest()
    k = 1
    while 2 * k < len(leaves):
        k *= 2
    return hashlib.sha256(b"\1" + naive_root(leaves[:k]) + naive_root(leaves[k:])).digest()


def flipped(digest: bytes) -> bytes:
    return bytes([digest[0] ^ 1]) + digest[1:]


def wrong_proofs(proof: log.Proof) -> list[log.Proof]:
    changed = [(*proof[:i], flipped(proof[i]), *proof[i + 1 :]) for i in range(len(proof))]
    shorter = [proof[1:], proof[:-1]] if proof else []
    swapped = [proof[::-1]] if len(proof) > 1 else []
    return [*changed, *shorter, *swapped, (*proof, bytes(32)), (bytes(32), *proof)]


@pytest.mark.parametrize("size", ROOTS)
def test_root_vectors(size: int) -> None:
    assert log.root(LEAVES[:size]).hex() == ROOTS[size]


def test_leaf_is_over_the_pre_authentication_encoding() -> None:
    expected = hashlib.sha256(b"\0DSSEv1 1 t 2 ab").digest()
    assert log.leaf_hash("t", b"ab") == expected


def test_frontier_equals_the_definition_and_round_trips() -> None:
    frontier = log.Frontier()
    for n, leaf in enumerate(leaves_of(130)):
        assert frontier.root == naive_root(leaves_of(n))
        again = log.Frontier.from_bytes(n, frontier.to_bytes())
        assert again == frontier
        with pytest.raises(InvalidInput, match="peaks"):
            log.Frontier.from_bytes(n + 1 + (n + 1).bit_count() % 2, frontier.to_bytes() + b"x")
        frontier = frontier.append(leaf)


@pytest.mark.parametrize("size", range(1, 41))
def test_inclusion_proofs(size: int) -> None:
    leaves = leaves_of(size)
    root = naive_root(leaves)
    for i, leaf in enumerate(leaves):
        proof = log.inclusion_proof(i, leaves)
        log.verify_inclusion(leaf, i, size, proof, root)
        cases = [(leaf, i, size, wrong, root) for wrong in wrong_proofs(proof)]
        cases += [
            (flipped(leaf), i, size, proof, root),
            (leaf, i, size, proof, flipped(root)),
            (leaf, i + 1, size, proof, root),
            (leaf, i - 1, size, proof, root),
            (leaf, i, i, proof, root),
            (leaf, i + size, size, proof, root),
            (leaf, i, 0, proof, root),
        ]
        for case in cases:
            with pytest.raises(VerificationFailed, match="inclusion"):
                log.verify_inclusion(*case)


@pytest.mark.parametrize("size", range(41))
def test_consistency_proofs(size: int) -> None:
    leaves = leaves_of(size)
    root = naive_root(leaves)
    for old in range(size + 1):
        old_root = naive_root(leaves[:old])
        proof = log.consistency_proof(old, leaves)
        log.verify_consistency(old, old_root, size, root, proof)
        cases = [(old, old_root, size, root, wrong) for wrong in wrong_proofs(proof)]
        cases += [
            (old, flipped(old_root), size, root, proof),
            (old + size + 1, old_root, size, root, proof),
            (-1, old_root, size, root, proof),
        ]
        if old:
            cases.append((old, old_root, size, flipped(root), proof))
        if 0 < old < size:
            cases += [
                (old - 1, old_root, size, root, proof),
                (old + 1, old_root, size, root, proof),
            ]
        for case in cases:
            with pytest.raises(VerificationFailed) as caught:
                log.verify_consistency(*case)
            assert caught.value.check in {"consistency", "fork", "truncated"}


def test_the_names_of_inconsistency() -> None:
    roots = [naive_root(leaves_of(n)) for n in range(5)]
    for arguments, name in (
        ((4, roots[4], 3, roots[3], ()), "truncated"),
        ((4, roots[4], 4, roots[3], ()), "fork"),
        ((2, roots[2], 4, roots[4], ()), "consistency"),
    ):
        with pytest.raises(VerificationFailed) as caught:
            log.verify_consistency(*arguments)
        assert caught.value.check == name


@pytest.mark.parametrize("index", [-1, 3])
def test_proofs_of_what_is_not_there(index: int) -> None:
    with pytest.raises(InvalidInput, match=r"0\.\.2"):
        log.inclusion_proof(index, leaves_of(3))
    with pytest.raises(InvalidInput, match=r"0\.\.3"):
        log.consistency_proof(-1 if index < 0 else 4, leaves_of(3))


# --- notes --------------------------------------------------------------------------------------


def test_note_vector() -> None:
    root = bytes.fromhex(ROOTS[8])
    note = log.make_note(ORIGIN, 8, root, RFC8032)
    text = f"{ORIGIN}\n8\n{base64.b64encode(root).decode()}\n"
    assert note == f"{text}\n— {ORIGIN} {NOTE_SIGNATURE}\n"
    assert log.verify_note(note, ORIGIN, RFC8032.public) == log.Checkpoint(ORIGIN, 8, root)


def test_published_example_note() -> None:
    """The example of golang.org/x/mod/sumdb/note."""
    name, key_hash, key = [
        "PeterNeumann",
        "c74f20a3",
        "ARpc2QcUPDhMQegwxbzhKqiBfsVkmqq/LDE4izWy10TW",
    ]
    text = (
        "If you think cryptography is the answer to your problem,\n"
        "then you don't know what your problem is.\n"
    )
    line = (
        "— PeterNeumann x08go/ZJkuBS9UG/SffcvIAQxVBtiFupLLr8pAcElZInNIuGUgYN1FFYC2pZSNXg"
        "KvqfqdngotpRZb6KE6RyyBwJnAM="
    )
    public = Ed25519PublicKey.from_public_bytes(base64.b64decode(key)[1:])
    assert base64.b64decode(line.split(" ")[2])[:4].hex() == key_hash
    assert log.open_note(f"{text}\n{line}\n", name, public) == text
    with pytest.raises(VerificationFailed, match="foreign signature"):
        log.open_note(f"{text.upper()}\n{line}\n", name, public)


def test_signatures_of_others_are_passed_over() -> None:
    root = bytes.fromhex(ROOTS[8])
    witness = KeySigner(Ed25519PrivateKey.from_private_bytes(bytes(32)))
    note = log.make_note(ORIGIN, 8, root, RFC8032)
    line = log.make_note("witness.example", 8, root, witness).splitlines()[-1]
    log.verify_note(f"{note}{line}\n", ORIGIN, RFC8032.public)
    for origin, public in ((ORIGIN, witness.public), ("witness.example", RFC8032.public)):
        with pytest.raises(VerificationFailed, match="foreign signature"):
            log.verify_note(f"{note}{line}\n", origin, public)


def test_every_changed_character_of_a_note_fails() -> None:
    note = log.make_note(ORIGIN, 8, bytes.fromhex(ROOTS[8]), RFC8032)
    for i, character in enumerate(note):
        changed = "A" if character != "A" else "B"
        for wrong in (note[:i] + changed + note[i + 1 :], note[:i] + note[i + 1 :]):
            with pytest.raises(VerificationFailed) as caught:
                log.verify_note(wrong, ORIGIN, RFC8032.public)
            assert caught.value.check in {"foreign signature", "note"}


def test_a_signed_text_that_is_no_checkpoint() -> None:
    for text in (f"{ORIGIN}\n08\nAA==\n", f"{ORIGIN}\n8\nAA==\n", "only\n", f"{ORIGIN}\n-1\n\n"):
        with pytest.raises(VerificationFailed, match="note"):
            log.parse_note(text)
    root = base64.b64encode(bytes(32)).decode()
    with_extension = f"{ORIGIN}\n8\n{root}\nextension\n"
    assert log.parse_note(with_extension) == log.Checkpoint(ORIGIN, 8, bytes(32))


def test_a_note_of_another_log_with_the_same_key() -> None:
    """A signature line in this log's name under a text that names another log."""
    text = f"other.example\n8\n{base64.b64encode(bytes(32)).decode()}\n"
    own = log.make_note(ORIGIN, 8, bytes(32), RFC8032).splitlines()[-1]
    box = base64.b64decode(own.split(" ")[2])[:4] + RFC8032.sign(text.encode())
    note = f"{text}\n— {ORIGIN} {base64.b64encode(box).decode()}\n"
    with pytest.raises(VerificationFailed, match="expected a checkpoint of"):
        log.verify_note(note, ORIGIN, RFC8032.public)


@pytest.mark.parametrize("origin", ["", "a b", "a+b", "a\nb", "x" * 201])
def test_origins(origin: str) -> None:
    with pytest.raises(InvalidInput, match="origin"):
        log.make_note(origin, 0, log.EMPTY_ROOT, RFC8032)
