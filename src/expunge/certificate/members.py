"""The sealed table of who was trained on.

It answers, without the training data, whether a record is one that the model was trained on and
still retains, and keeps the three committed sets (training, deleted, retained) of
:mod:`expunge.certificate.commit` up to date. It holds neither ids nor rows: per record a salted
leaf, the salt, a keyed tag of the id and a keyed tag of the row. When a record is deleted its salt
and row tag are overwritten; leaf and id tag stay, so that a second request is recognised.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from expunge.certificate import commit, lookup, stored
from expunge.certificate.commit import Bytes, MerkleSet, TreeHead, Update
from expunge.certificate.lookup import Words
from expunge.errors import (
    AlreadyDeleted,
    IncompletePerson,
    InvalidInput,
    UnknownRecord,
    VerificationFailed,
)

_Index = NDArray[np.int64]


@dataclass(frozen=True)
class Heads:
    """Heads of the three committed sets; all have depth :attr:`Members.depth`."""

    training: TreeHead
    deleted: TreeHead
    retained: TreeHead


@dataclass(frozen=True)
class Status:
    """How many records of an id are live and how many are deleted; 0 and 0 if never trained on."""

    live: int
    deleted: int


@dataclass(frozen=True, repr=False)
class Removal:
    """A removal that has not happened yet.

    Attributes
    ----------
    positions : (k,) int64
        Places of the removed leaves in the table, in the order of the request. Enough to repeat
        a removal that was interrupted: see :meth:`Members.repeat`.
    before, after : Heads
    """

    positions: _Index
    before: Heads
    after: Heads
    retained: Update
    deleted: Update

    def __repr__(self) -> str:
        """Say how many records are removed, not which."""
        return f"Removal(records={len(self.positions)})"


@dataclass(repr=False, eq=False)
class Members:
    """Who was trained on; see the module's description.

    Build it with :meth:`enrol` or :meth:`from_arrays`. All arrays may be memory-mapped. Not
    thread-safe.

    Attributes
    ----------
    key : (32,) uint8
        Key of the tags.
    named : bool
        Whether the records had ids; without, the id of a record is the hex of its row digest.
    tag, tag_low : (n,) uint64
        Both halves of the id tags, ascending by the first.
    place : (n,) int64
        Position of the record of a tag among the leaves.
    salt : (n, 32) uint8
        By position; zero for deleted records.
    row : (n,) uint64
        Row tags by position; zero for deleted records.
    training : (32,) uint8
        Root of the training set.
    retained, deleted : MerkleSet
        Complementary sets over the leaves of the training set.
    """

    key: Bytes
    named: bool
    tag: Words
    tag_low: Words
    place: _Index
    salt: Bytes
    row: Words
    training: Bytes
    retained: MerkleSet
    deleted: MerkleSet

    def __repr__(self) -> str:
        """Show counts only."""
        return f"Members(retained={self.retained.count}, deleted={self.deleted.count})"

    @classmethod
    def enrol(cls, digests: Bytes, ids: Sequence[str] | None) -> Members:
        """Commit to the records of a training set, with fresh key and salts.

        Parameters
        ----------
        digests : (n, 32) uint8
            From :func:`expunge.certificate.commit.row_digests`.
        ids : sequence of n str, or None
            The person (or record) that a row belongs to; an id may own several rows. None: rows
            are known by their values alone, and equal rows are interchangeable.

        Raises
        ------
        InvalidInput
            If there are no rows, lengths differ, or an id is empty or not a string.

        Examples
        --------
        >>> members = Members.enrol(np.eye(3, 32, dtype=np.uint8), ["ann", "bob", "bob"])
        >>> members.status("bob")
        Status(live=2, deleted=0)
        """
        if len(digests) == 0:
            raise InvalidInput("expected at least one record to train on, got none")
        names = lookup.names(digests, ids)
        key = os.urandom(32)
        tags = lookup.tags(key, names)
        salt = np.frombuffer(os.urandom(32 * len(names)), np.uint8).reshape(-1, 32)
        leaf = commit.leaves(salt, names, digests)
        order = commit.ascending(leaf)
        retained = MerkleSet.build(leaf[order], commit.depth_for(len(leaf)))
        place = np.empty_like(order)
        place[order] = np.arange(len(order))
        by_tag = np.argsort(tags[:, 0], kind="stable")
        return cls(
            key=np.frombuffer(key, np.uint8),
            named=ids is not None,
            tag=tags[by_tag, 0],
            tag_low=tags[by_tag, 1],
            place=place[by_tag],
            salt=salt[order],
            row=(lookup.first_word(digests) ^ tags[:, 2])[order],
            training=retained.nodes[1].copy(),
            retained=retained,
            deleted=retained.complement(),
        )

    # --- questions ------------------------------------------------------------------------------

    @property
    def depth(self) -> int:
        """Depth of all three trees."""
        return self.retained.depth

    def heads(self) -> Heads:
        """Return the heads of the training, deleted and retained sets now."""
        training = TreeHead(self.training.tobytes().hex(), len(self.tag))
        return Heads(training, self.deleted.head, self.retained.head)

    def status(self, record_id: str) -> Status:
        """Say how many records of an id are live and how many deleted.

        Without ids at training, the id of a record is the hex of its row digest.
        """
        live, deleted = self.standing(self.tags([lookup.checked(record_id)]))
        return Status(int(live[0]), int(deleted[0]))

    def tags(self, ids: Sequence[str]) -> Words:
        """Return the keyed tags (n, 3) by which ids are known here; they can be reused."""
        return lookup.tags(self.key.tobytes(), ids)

    def standing(self, tags: Words) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
        """Return how many records of each of n *distinct* ids are live, and how many deleted."""
        owner, position = self._records(tags)
        live = np.bincount(owner[self.retained.flags[position] == 1], minlength=len(tags))
        return live, np.bincount(owner, minlength=len(tags)) - live

    def salts(self, positions: _Index) -> Bytes:
        """Return the salts (k, 32) at ``positions`` (for receipts and audits), zero if deleted."""
        return np.array(self.salt[positions])

    def leaves(self, positions: _Index) -> Bytes:
        """Return the leaves (k, 32) at ``positions``."""
        return np.array(self.retained.leaves[positions])

    def find(
        self,
        digests: Bytes,
        ids: Sequence[str] | None,
        tags: Words | None = None,
        *,
        among: NDArray[np.bool_] | None = None,
    ) -> _Index:
        """Return the positions (k,) of live records, one for every row asked for.

        Costs O(k log n). Equal rows of one id get different positions. Ids and rows are compared by
        their keyed tags of 128 and 64 bits; :meth:`preview` recomputes the leaves themselves.
        ``tags`` (k, 3) are those of the ids, from :meth:`tags`, where they are known already.
        ``among`` (n,) says which positions count as live; by default those that are.

        Raises
        ------
        UnknownRecord
            If an id was never trained on, or not with these values.
        AlreadyDeleted
            If the records of an id were deleted before.
        InvalidInput
            If a row is asked for more often than it was trained on, or ids are given where
            there were none at training or the other way round.
        VerificationFailed
            ``commitments``: the table has been damaged.
        """
        names = self._request(digests, ids)
        tags = self.tags(names) if tags is None else tags
        return self._search(digests, ids, tags, among)[0]

    def preview(self, digests: Bytes, ids: Sequence[str] | None) -> Removal:
        """Return the removal of the given rows, changing nothing.

        Parameters and errors as for :meth:`find`; and all live rows of every id must be there.

        Raises
        ------
        IncompletePerson
            If an id owns live rows that are not among those given.
        VerificationFailed
            ``commitments``: the table does not fit its own leaves or trees.
        """
        names = self._request(digests, ids)
        positions, have, person = self._search(digests, ids, self.tags(names))
        self.retained.require_sound(positions, commit.leaves(self.salt[positions], names, digests))
        self.deleted.require_sound(positions)
        if self.named:
            missing = have - np.bincount(person, minlength=len(have))
            if missing.any():
                i = int(np.argmax(missing[person] > 0))
                raise IncompletePerson(
                    f"{lookup.called(ids, i)} has {have[person[i]]} records in the model, got "
                    f"{have[person[i]] - missing[person[i]]}; hand over all rows of the person"
                )
        return self._removal(positions)

    def _removal(self, positions: _Index) -> Removal:
        before = self.heads()
        retained = self.retained.preview(positions, member=False)
        deleted = self.deleted.preview(positions, member=True)
        after = Heads(before.training, deleted.head, retained.head)
        return Removal(positions, before, after, retained, deleted)

    # --- changes --------------------------------------------------------------------------------

    def apply(self, removal: Removal) -> None:
        """Carry out a removal: O(k log n) bytes are written, in place; repeating it is harmless.

        Raises
        ------
        InvalidInput
            If the table has changed since the removal was previewed.
        """
        if self.heads() not in (removal.before, removal.after):
            raise InvalidInput(
                "the table has changed since this removal was previewed; preview it again"
            )
        self.retained.apply(removal.retained)
        self.deleted.apply(removal.deleted)
        self.salt[removal.positions] = 0
        self.row[removal.positions] = 0

    def repeat(self, positions: _Index) -> None:
        """Carry out again a removal whose :meth:`apply` may have been interrupted anywhere.

        Parameters
        ----------
        positions : (k,) int64
            ``Removal.positions`` of that removal; some or all may be deleted already.
        """
        self.retained.recount()
        self.deleted.recount()
        self.apply(self._removal(positions))

    # --- storage --------------------------------------------------------------------------------

    def to_arrays(self) -> dict[str, NDArray[Any]]:
        """Return every array by name, without copies; the key and the salts are secrets."""
        return {
            "key": self.key,
            "named": np.array([self.named], np.uint8),
            "tag": self.tag,
            "tag_low": self.tag_low,
            "place": self.place,
            "salt": self.salt,
            "row": self.row,
            "training": self.training,
            "leaf": self.retained.leaves,
            "offset": self.retained.offset,
            "live": self.retained.flags,
            "retained_nodes": self.retained.nodes,
            "deleted_nodes": self.deleted.nodes,
        }

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, NDArray[Any]]) -> Members:
        """Wrap the arrays of :meth:`to_arrays`, without copies.

        Raises
        ------
        InvalidInput
            If an array is missing, or is not such as :meth:`to_arrays` gives.
        """
        plain = stored.checked(arrays)
        shared = plain["leaf"], plain["offset"], plain["live"]
        own = ("key", "tag", "tag_low", "place", "salt", "row", "training")
        return cls(
            named=bool(plain["named"][0]),
            retained=MerkleSet(*shared, 1, plain["retained_nodes"]),
            deleted=MerkleSet(*shared, 0, plain["deleted_nodes"]),
            **{name: plain[name] for name in own},
        )

    # --- search ---------------------------------------------------------------------------------

    def _search(
        self,
        digests: Bytes,
        ids: Sequence[str] | None,
        tags: Words,
        among: NDArray[np.bool_] | None = None,
    ) -> tuple[_Index, NDArray[np.intp], NDArray[np.intp]]:
        """Return positions (k,), live records per person (m,), and the person of each row (k,)."""
        person, distinct = lookup.numbered(tags)
        owner, position = self._records(distinct)
        total = np.bincount(owner, minlength=len(distinct))
        live = self.retained.flags[position] == 1 if among is None else among[position]
        owner, position = owner[live], position[live]
        have = np.bincount(owner, minlength=len(distinct))
        lookup.refuse(total[person] == 0, ids, UnknownRecord, "was never trained on")
        lookup.refuse(have[person] == 0, ids, AlreadyDeleted, "has been deleted before")
        found, unknown, surplus = lookup.match(
            (owner, self.row[position], position), (person, lookup.first_word(digests) ^ tags[:, 2])
        )
        lookup.refuse(unknown, ids, UnknownRecord, "was not trained on with these values")
        spent = surplus & (self.named | (np.bincount(person) > total)[person])
        lookup.refuse(spent, ids, InvalidInput, "is asked for more often than it was trained on")
        lookup.refuse(surplus, ids, AlreadyDeleted, "has been deleted before")
        return found, have, person

    def _request(self, digests: Bytes, ids: Sequence[str] | None) -> Sequence[str]:
        if len(digests) == 0:
            raise InvalidInput("expected at least one record, got none")
        if self.named and ids is None:
            raise InvalidInput("the model was trained with ids: say whose records these are")
        if not self.named and ids is not None:
            raise InvalidInput("the model was trained without ids: ask by the rows alone")
        return lookup.names(digests, ids)

    def _records(self, tags: Words) -> tuple[NDArray[np.intp], _Index]:
        """Return (number of the tag, position) of every record, live or not, of distinct tags."""
        start = self.tag.searchsorted(tags[:, 0], "left")
        length = self.tag.searchsorted(tags[:, 0], "right") - start
        owner = np.repeat(np.arange(len(tags)), length)
        index = np.arange(len(owner)) + np.repeat(start - (np.cumsum(length) - length), length)
        same = self.tag_low[index] == tags[owner, 1]
        position = self.place[index[same]]
        if not ((position >= 0) & (position < len(self.tag))).all():
            raise VerificationFailed("commitments", "the table of records is damaged")
        return owner[same], position
