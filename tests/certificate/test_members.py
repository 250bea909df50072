"""The sealed table, against a dictionary that remembers everybody."""

from __future__ import annotations

import hashlib
import time
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from expunge.certificate import commit
from expunge.certificate.commit import MerkleSet, verify_absent, verify_member
from expunge.certificate.members import Members, Removal, Status
from expunge.errors import (
    AlreadyDeleted,
    ExpungeError,
    IncompletePerson,
    InvalidInput,
    UnknownRecord,
    VerificationFailed,
)


def digests_of(values: list[int]) -> commit.Bytes:
    hashes = [hashlib.sha256(bytes([v])).digest() for v in values]
    return np.frombuffer(b"".join(hashes), np.uint8).reshape(-1, 32)


def snapshot(members: Members) -> dict[str, bytes]:
    return {name: array.tobytes() for name, array in members.to_arrays().items()}


def delete(members: Members, rows: list[int], ids: list[str] | None) -> Removal:
    removal = members.preview(digests_of(rows), ids)
    members.apply(removal)
    return removal


def check_against_fresh_trees(members: Members) -> None:
    flags, leaves = members.retained.flags == 1, members.retained.leaves
    heads = members.heads()
    for head, chosen in (
        (heads.training, leaves),
        (heads.retained, leaves[flags]),
        (heads.deleted, leaves[~flags]),
    ):
        assert head == MerkleSet.build(chosen, members.depth).head
    assert not members.salt[~flags].any(), "salts of deleted records are destroyed"
    assert not members.row[~flags].any()


class Everybody:
    """What the table must say, in plain Python."""

    def __init__(self, rows: list[int], ids: list[str] | None) -> None:
        self.named = ids is not None
        self.trained = Counter(zip(ids or map(str, rows), rows, strict=True))
        self.live = self.trained.copy()

    def owned(self, counts: Counter[tuple[str, int]], who: str) -> int:
        return sum(k for (i, _), k in counts.items() if i == who)

    def expected_error(self, request: list[tuple[str, int]]) -> type[ExpungeError] | None:
        if not request:
            return InvalidInput
        want, people = Counter(request), {i for i, _ in request}
        if any(self.owned(self.trained, i) == 0 for i in people):
            return UnknownRecord
        if any(self.owned(self.live, i) == 0 for i in people):
            return AlreadyDeleted
        if any(self.live[key] == 0 for key in want):
            return UnknownRecord
        if any(want[key] > (self.live if self.named else self.trained)[key] for key in want):
            return InvalidInput
        if any(want[key] > self.live[key] for key in want):
            return AlreadyDeleted
        if self.named and any(self.owned(want, i) < self.owned(self.live, i) for i in people):
            return IncompletePerson
        return None


@given(
    st.lists(st.tuples(st.sampled_from("abcdefgh"), st.integers(0, 5)), min_size=1, max_size=80),
    st.booleans(),
    st.data(),
)
@settings(max_examples=200, deadline=None)
def test_random_sequences_of_requests(
    records: list[tuple[str, int]], named: bool, data: st.DataObject
) -> None:
    """Persons with several rows, equal rows, strangers, repeats: same answers as a dictionary."""
    rows = [r for _, r in records]
    members = Members.enrol(digests_of(rows), [i for i, _ in records] if named else None)
    truth = Everybody(rows, [i for i, _ in records] if named else None)
    for _ in range(data.draw(st.integers(1, 6))):
        if named and data.draw(st.booleans()):
            people = data.draw(st.sets(st.sampled_from("abcdefgh"), min_size=1, max_size=3))
            request = [key for key in truth.live.elements() if key[0] in people]
        else:
            pair = st.tuples(st.sampled_from("abcdefghx"), st.integers(0, 6))
            request = data.draw(st.lists(pair, max_size=4))
        if not named:
            request = [(str(r), r) for _, r in request]
        wanted = digests_of([r for _, r in request])
        ids = [i for i, _ in request] if named else None
        error = truth.expected_error(request)
        before = snapshot(members)
        if error is not None:
            with pytest.raises(error):
                members.preview(wanted, ids)
            assert snapshot(members) == before
            continue
        removal = members.preview(wanted, ids)
        assert snapshot(members) == before
        assert len(set(removal.positions.tolist())) == len(request)
        members.apply(removal)
        assert members.heads() == removal.after
        truth.live -= Counter(request)
        check_against_fresh_trees(members)
    for who in "abcdefghx" if named else "0123456":
        name = who if named else digests_of([int(who)]).tobytes().hex()
        live = truth.owned(truth.live, who)
        assert members.status(name) == Status(live, truth.owned(truth.trained, who) - live)


def test_errors_say_who_and_why() -> None:
    members = Members.enrol(digests_of([1, 2, 2, 3]), ["ann", "bob", "bob", "cyd"])
    cases = [
        ([9], ["zoe"], UnknownRecord, r"id 'zoe' \(row 0\) was never trained on"),
        ([1, 9], ["ann", "cyd"], UnknownRecord, r"'cyd' \(row 1\) was not trained on with these"),
        ([2], ["ann"], UnknownRecord, "not trained on with these values"),
        ([2], ["bob"], IncompletePerson, r"'bob' \(row 0\) has 2 records in the model, got 1"),
        ([1, 1], ["ann", "ann"], InvalidInput, "more often than it was trained on"),
        ([2, 2, 2], ["bob"] * 3, InvalidInput, "more often"),
        ([1], None, InvalidInput, "whose records"),
        ([], [], InvalidInput, "at least one"),
        ([1, 2], ["ann"], InvalidInput, "one id per row"),
        ([1], [""], InvalidInput, "non-empty"),
        ([1], [7], InvalidInput, "strings"),
        ([1], ["\ud800"], InvalidInput, "Unicode"),
    ]
    for rows, ids, error, message in cases:
        with pytest.raises(error, match=message):
            members.preview(digests_of(rows), ids)
    delete(members, [2, 2], ["bob", "bob"])
    with pytest.raises(AlreadyDeleted, match=r"'bob'.*deleted before; nothing was changed"):
        members.preview(digests_of([1, 2]), ["ann", "bob"])
    with pytest.raises(InvalidInput, match="at least one record"):
        Members.enrol(digests_of([]), None)


def test_without_ids_equal_rows_are_interchangeable() -> None:
    members = Members.enrol(digests_of([1, 1, 1, 2]), None)
    name = digests_of([1]).tobytes().hex()
    with pytest.raises(InvalidInput, match="without ids"):
        members.preview(digests_of([1]), ["ann"])
    with pytest.raises(InvalidInput, match="row 1 is asked for more often"):
        members.preview(digests_of([2, 2]), None)
    delete(members, [1], None)
    assert members.status(name) == Status(2, 1)
    with pytest.raises(AlreadyDeleted, match="row 2 has been deleted"):
        members.preview(digests_of([1, 1, 1]), None)
    delete(members, [1, 1], None)
    with pytest.raises(AlreadyDeleted):
        members.preview(digests_of([1]), None)
    assert members.heads().retained.count == 1


def test_find_returns_positions_in_request_order() -> None:
    ids = [f"p{i}" for i in range(100)]
    digests = digests_of(list(range(100)))
    members = Members.enrol(digests, ids)
    order = np.random.default_rng(0).permutation(100)
    asked = [ids[i] for i in order]
    positions = members.find(digests[order], asked)
    rebuilt = commit.leaves(members.salts(positions), asked, digests[order])
    assert np.array_equal(rebuilt, members.leaves(positions))
    assert MerkleSet.build(rebuilt, members.depth).head == members.heads().retained


def test_receipt_material_verifies() -> None:
    members = Members.enrol(digests_of(list(range(200))), None)
    removal = members.preview(digests_of([7]), None)
    leaf = members.leaves(removal.positions).tobytes()
    assert members.salts(removal.positions).any()
    members.apply(removal)
    heads, depth = members.heads(), members.depth
    assert depth == 3
    verify_member(leaf, members.deleted.prove(leaf), heads.deleted, depth)
    verify_absent(leaf, members.retained.prove(leaf), heads.retained, depth)
    assert not members.salts(removal.positions).any()


def test_stale_removals_are_refused_and_repeats_are_harmless() -> None:
    members = Members.enrol(digests_of([1, 2, 3]), None)
    first, second = (members.preview(digests_of([v]), None) for v in (1, 2))
    members.apply(first)
    after = snapshot(members)
    members.apply(first)
    members.repeat(first.positions)
    assert snapshot(members) == after
    with pytest.raises(InvalidInput, match="preview it again"):
        members.apply(second)
    assert snapshot(members) == after


def test_an_interrupted_apply_can_be_repeated() -> None:
    """Any subset of the bytes of an apply may have reached the disk."""
    rng = np.random.default_rng(0)
    rows = list(range(150))
    for trial in range(40):
        members = Members.enrol(digests_of(rows), None)
        before = {name: array.copy() for name, array in members.to_arrays().items()}
        removal = delete(members, rows[10 : 10 + 1 + trial % 7], None)
        done = members.to_arrays()
        torn = {}
        for name, array in before.items():
            reached = rng.random(len(array)) < rng.choice([0.0, 0.5, 1.0])
            torn[name] = np.where(
                reached.reshape(-1, *[1] * (array.ndim - 1)), done[name], array
            ).astype(array.dtype)
        again = Members.from_arrays(torn)
        again.repeat(removal.positions)
        assert snapshot(again) == snapshot(members)
        assert again.heads() == removal.after


def test_works_in_place_on_disk(tmp_path: Path) -> None:
    members = Members.enrol(digests_of(list(range(100))), [f"p{i % 60}" for i in range(100)])
    mapped = {}
    for name, array in members.to_arrays().items():
        np.save(tmp_path / f"{name}.npy", array)
        mapped[name] = np.load(tmp_path / f"{name}.npy", mmap_mode="r+")
    on_disk = Members.from_arrays(mapped)
    for table in (members, on_disk):
        delete(table, [5, 65], ["p5", "p5"])
    for array in mapped.values():
        array.flush()
    arrays = {name: np.load(tmp_path / f"{name}.npy") for name in mapped}
    assert snapshot(Members.from_arrays(arrays)) == snapshot(members)
    assert Members.from_arrays(arrays).status("p5") == Status(0, 2)


def test_damage_is_noticed() -> None:
    members = Members.enrol(digests_of([1, 2, 3]), None)
    arrays = members.to_arrays()
    for name in arrays:
        with pytest.raises(InvalidInput, match="is damaged: expected array"):
            Members.from_arrays({k: v for k, v in arrays.items() if k != name})
    with pytest.raises(InvalidInput, match="'salt'"):
        Members.from_arrays({**arrays, "salt": members.salt[:2]})
    with pytest.raises(InvalidInput, match="'live'"):
        Members.from_arrays({**arrays, "live": arrays["live"].astype(np.int8)})
    members.salt[members.find(digests_of([2]), None)] ^= 1
    with pytest.raises(VerificationFailed, match="damaged"):
        members.preview(digests_of([2]), None)


def test_secrets_are_not_shown() -> None:
    members = Members.enrol(digests_of([1, 2, 3]), None)
    removal = delete(members, [2], None)
    assert repr(members) == "Members(retained=2, deleted=1)"
    assert repr(removal) == "Removal(records=1)"


def test_the_table_holds_no_id_and_no_digest() -> None:
    members = Members.enrol(digests_of([1, 2]), ["ann-of-green-gables", "bob"])
    stored = b"".join(snapshot(members).values())
    assert b"ann-of" not in stored
    assert digests_of([1])[0, :8].tobytes() not in stored


def test_one_removal_is_quick() -> None:
    """A generous ceiling; the measured numbers are in docs/performance.md."""
    n = 50_000
    digests = np.frombuffer(np.random.default_rng(0).bytes(32 * n), np.uint8).reshape(n, 32)
    members = Members.enrol(digests, None)
    spent = []
    for i in range(100):
        start = time.perf_counter()
        members.apply(members.preview(digests[i : i + 1], None))
        spent.append(time.perf_counter() - start)
    assert np.median(spent) < 2e-3


@pytest.mark.parametrize("name", ["leaf", "live", "retained_nodes", "deleted_nodes", "salt", "row"])
def test_no_removal_from_a_damaged_table(name: str) -> None:
    """Whatever is altered on the way from a record to the root, no removal is prepared."""
    digests = digests_of(list(range(200)))
    for trial in range(30):
        members = Members.enrol(digests, [f"p{i}" for i in range(200)])
        delete(members, [7], ["p7"])
        place = members.find(digests[:1], ["p0"])
        array = members.to_arrays()[name]
        if name.endswith("nodes"):
            bucket = (1 << members.depth) + (int(members.leaves(place)[0, 0]) >> 5)
            array[[bucket >> trial % 4, (bucket >> trial % 3) ^ 1][trial % 2]] ^= 1
        elif name == "live":
            same = np.flatnonzero(
                members.retained.leaves[:, 0] >> 5 == members.leaves(place)[0, 0] >> 5
            )
            array[same[trial % len(same)]] ^= 1
        else:
            array[place] ^= 1
        with pytest.raises((VerificationFailed, UnknownRecord, AlreadyDeleted)):
            members.preview(digests[:1], ["p0"])


@pytest.mark.parametrize(
    ("name", "value"),
    [("offset", -1), ("offset", 10**6), ("live", 2), ("named", 255), ("place", -5), ("place", 999)],
)
def test_impossible_tables(name: str, value: int) -> None:
    members = Members.enrol(digests_of(list(range(100))), [f"p{i}" for i in range(100)])
    arrays = {key: array.copy() for key, array in members.to_arrays().items()}
    arrays[name][:] = np.array(value).astype(arrays[name].dtype)
    with pytest.raises((InvalidInput, VerificationFailed), match="damaged"):
        Members.from_arrays(arrays).find(digests_of([5]), ["p5"])


def test_known_tags_give_the_same_positions() -> None:
    digests, ids = digests_of([1, 2, 2, 3]), ["ann", "bob", "bob", "cyd"]
    members = Members.enrol(digests, ids)
    tags = members.tags(ids)
    assert np.array_equal(members.find(digests, ids), members.find(digests, ids, tags))
    live, deleted = members.standing(members.tags(["ann", "bob", "zoe"]))
    assert (live.tolist(), deleted.tolist()) == ([1, 2, 0], [0, 0, 0])
