"""Record commitments and the Merkle set, against a naive reference."""

from __future__ import annotations

import hashlib
import struct
from dataclasses import replace

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given, settings
from hypothesis import strategies as st

from expunge.certificate import commit
from expunge.certificate.commit import MerkleSet, TreeHead, verify_absent, verify_member
from expunge.errors import InvalidInput, VerificationFailed


def sha(*parts: bytes) -> bytes:
    return hashlib.sha256(b"".join(parts)).digest()


def naive_root(leaves: set[bytes], depth: int) -> str:
    """The root from the definition, with none of the code under test."""
    level = []
    for j in range(1 << depth):
        inside = [x for x in leaves if int.from_bytes(x, "big") >> (256 - depth) == j]
        level.append(sha(b"\2", *sorted(inside)))
    while len(level) > 1:
        level = [sha(b"\1", a, b) for a, b in zip(level[::2], level[1::2], strict=True)]
    return level[0].hex()


def as_array(leaves: list[bytes]) -> commit.Bytes:
    return np.frombuffer(b"".join(leaves), np.uint8).reshape(-1, 32)


# Leaves that share prefixes, so that buckets and sort ties are crowded.
leaf = st.builds(
    lambda head, tail: head + bytes(30 - len(head)) + tail,
    st.binary(max_size=2),
    st.binary(min_size=2, max_size=2),
)
leaf_sets = st.lists(leaf, unique=True, max_size=40)


def test_record_leaf_vector() -> None:
    """certificate.md §8."""
    salt = np.arange(32, dtype=np.uint8)[None]
    digest = as_array([sha(b"row bytes")])
    expected = "5530945ec4e2825e5eca57c6114c80626bbde1e44c93140d5e6defab7cff694a"
    assert commit.leaves(salt, ["user-42/row-7"], digest).tobytes().hex() == expected
    parts = b"\0", salt.tobytes(), commit.id_hash("user-42/row-7"), digest.tobytes()
    assert sha(*parts).hex() == expected


@pytest.mark.parametrize(
    ("count", "depth"), [(0, 0), (1, 0), (32, 0), (33, 1), (64, 1), (65, 2), (10**6, 15)]
)
def test_depth(count: int, depth: int) -> None:
    assert commit.depth_for(count) == depth


def test_dense_row_digest_is_the_documented_bytes() -> None:
    features = np.array([[1.5, -0.0], [2.0, 3.0]], dtype=np.float32)
    target, weight = np.array([[1.0], [-1.0]]), np.array([1.0, 2.0])
    got = commit.row_digests(features, target, weight)
    for i, row in enumerate([(1.5, 0.0, 1.0, 1.0), (2.0, 3.0, -1.0, 2.0)]):
        header = b"EXR1<f8d" + struct.pack("<II", 2, 1)
        assert got[i].tobytes() == sha(header, struct.pack("<4d", *row))


def test_sparse_row_digest_depends_on_values_only() -> None:
    header = b"EXR1<f8s" + struct.pack("<II", 5, 1)
    expected = sha(header, struct.pack("<2q", 1, 4), struct.pack("<4d", 2.0, 3.0, 1.0, 1.0))
    canonical = sp.csr_array(np.array([[0.0, 2.0, 0.0, 0.0, 3.0]]))
    untidy = sp.csr_array(
        (np.array([3.0, 0.0, 1.5, 0.5]), np.array([4, 0, 1, 1]), np.array([0, 4])), shape=(1, 5)
    )
    for X in (canonical, untidy):
        assert commit.row_digests(X, np.ones((1, 1)), np.ones(1)).tobytes() == expected
    assert untidy.nnz == 4, "the caller's matrix is left as it was"


@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("n", [0, 1, 1500])
def test_row_digests_do_not_depend_on_the_block(
    sparse: bool, n: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = np.random.default_rng(0)
    X = rng.normal(size=(n, 7)) * (rng.random((n, 7)) < 0.5)
    features = sp.csr_array(X) if sparse else X
    target, weight = rng.normal(size=(n, 3)), rng.random(n)
    whole = commit.row_digests(features, target, weight)
    monkeypatch.setattr(commit, "_BLOCK_BYTES", 1000)
    assert whole.shape == (n, 32)
    assert np.array_equal(whole, commit.row_digests(features, target, weight))
    assert len({bytes(x) for x in whole}) == n


@pytest.mark.parametrize("bad", [np.nan, np.inf])
@pytest.mark.parametrize("where", ["features", "sparse", "target", "weight"])
def test_row_digests_refuse_what_is_not_finite(where: str, bad: float) -> None:
    values = {"features": np.ones((2, 3)), "target": np.ones((2, 1)), "weight": np.ones(2)}
    values["features" if where == "sparse" else where].flat[1] = bad
    X = sp.csr_array(values["features"]) if where == "sparse" else values["features"]
    with pytest.raises(InvalidInput, match="finite"):
        commit.row_digests(X, values["target"], values["weight"])


def test_row_digests_refuse_shapes() -> None:
    with pytest.raises(InvalidInput, match="expected targets"):
        commit.row_digests(np.ones((2, 3)), np.ones((1, 1)), np.ones(2))


@given(leaf_sets, st.integers(0, 5), st.randoms())
@settings(max_examples=150, deadline=None)
def test_root_is_a_function_of_the_set(leaves: list[bytes], depth: int, random) -> None:
    made = MerkleSet.build(as_array(leaves), depth)
    assert made.head == TreeHead(naive_root(set(leaves), depth), len(leaves))
    random.shuffle(leaves)
    assert MerkleSet.build(as_array(leaves), depth).head == made.head
    assert made.complement().head == TreeHead(naive_root(set(), depth), 0)


@given(leaf_sets.filter(len), st.integers(0, 5), st.data())
@settings(max_examples=150, deadline=None)
def test_changes_equal_a_fresh_build(leaves: list[bytes], depth: int, data: st.DataObject) -> None:
    made = MerkleSet.build(as_array(leaves), depth)
    removed = made.complement()
    ordered = sorted(leaves)
    present = set(ordered)
    for _ in range(data.draw(st.integers(1, 5))):
        chosen = data.draw(st.lists(st.integers(0, len(ordered) - 1), unique=True, max_size=9))
        member = data.draw(st.booleans())
        positions = np.array(chosen, np.int64)
        before = made.head, removed.head
        updates = [made.preview(positions, member=member)]
        updates.append(removed.preview(positions, member=not member))
        assert (made.head, removed.head) == before, "a preview changes nothing"
        change = {ordered[i] for i in chosen}
        present = present | change if member else present - change
        for _ in range(data.draw(st.integers(1, 2))):
            made.apply(updates[0])
            removed.apply(updates[1])
        gone = set(ordered) - present
        assert made.head == updates[0].head == TreeHead(naive_root(present, depth), len(present))
        assert removed.head == updates[1].head == TreeHead(naive_root(gone, depth), len(gone))
        fresh = MerkleSet.build(as_array(sorted(present)), depth)
        assert np.array_equal(fresh.nodes[1:], made.nodes[1:])


@given(leaf_sets.filter(len), leaf, st.integers(0, 5))
@settings(max_examples=100, deadline=None)
def test_proofs(leaves: list[bytes], other: bytes, depth: int) -> None:
    made = MerkleSet.build(as_array(leaves), depth)
    inside = leaves[0]
    verify_member(inside, made.prove(inside), made.head, depth)
    with pytest.raises(VerificationFailed, match="is in the committed set"):
        verify_absent(inside, made.prove(inside), made.head, depth)
    if other not in leaves:
        verify_absent(other, made.prove(other), made.head, depth)
        with pytest.raises(VerificationFailed, match="not in the committed set"):
            verify_member(other, made.prove(other), made.head, depth)


def test_forged_proofs_fail_by_name() -> None:
    depth = 3
    made = MerkleSet.build(as_array([sha(bytes([i])) for i in range(60)]), depth)
    leaf = made.leaves[0].tobytes()
    proof = made.prove(leaf)
    stranger = made.leaves[-1].tobytes().hex()
    assert len(proof.bucket) > 1
    forged = {
        "root": replace(proof, bucket=proof.bucket[1:]),
        "unsorted": replace(proof, bucket=proof.bucket[::-1]),
        "foreign": replace(proof, bucket=(*proof.bucket, stranger)),
        "siblings": replace(proof, siblings=proof.siblings[1:]),
        "lead to": replace(proof, siblings=proof.siblings[::-1]),
        "hex": replace(proof, bucket=("x" * 64,)),
        "32 bytes": replace(proof, bucket=("00" * 31,)),
    }
    for message, wrong in forged.items():
        for verify in (verify_member, verify_absent):
            with pytest.raises(VerificationFailed, match=message) as caught:
                verify(leaf, wrong, made.head, depth)
            assert caught.value.check == "commitments"
    with pytest.raises(VerificationFailed, match="lead to"):
        verify_member(leaf, proof, TreeHead("00" * 32, 60), depth)
    with pytest.raises(VerificationFailed, match="siblings"):
        verify_member(leaf, proof, made.head, depth + 1)


def test_build_refuses_repeats_and_depths() -> None:
    with pytest.raises(InvalidInput, match="twice"):
        MerkleSet.build(as_array([bytes(32), sha(b""), bytes(32)]), 1)
    with pytest.raises(InvalidInput, match="depth"):
        MerkleSet.build(as_array([bytes(32)]), 33)


def test_repr_shows_counts_only() -> None:
    assert repr(MerkleSet.build(as_array([bytes(32)]), 2)) == "MerkleSet(count=1, depth=2)"
