"""How a release becomes the current one: before or after, and nothing in between.

Everything new is written to ``sealed/pending-<release>/``, which mirrors the folder, and flushed to
the disk. Then the ledger's transaction commits: that is the moment at which the release happens.
Then the files are moved to their places and the records marked as deleted. Each of these moves may
be repeated, so the owner's next command finishes them after a crash, or, if the ledger does not
know the release, throws the directory away. Whoever only checks a folder changes nothing in it, and
reads what has not been moved where it lies.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from expunge import regular
from expunge.certificate.members import Members
from expunge.errors import FolderProblem
from expunge.folder import layout
from expunge.folder.durable import sync, write
from expunge.folder.layout import Layout
from expunge.folder.ledger import Ledger
from expunge.linear.state import map_members

REMOVED = "removed"
_NAME = re.compile(r"(pending|done)-([0-9]{4,})")
_STATEMENT_FILES = (layout.CERTIFICATES, layout.ANNEX, layout.REQUESTS)


@dataclass(frozen=True)
class Interrupted:
    """A release on its way: where its files lie, its number, and whether the ledger knows it."""

    place: Layout
    number: int
    happened: bool


def stage(
    place: Layout, release: int, files: Mapping[str, bytes], removed: NDArray[np.int64] | None
) -> None:
    """Write a release beside the current one.

    Parameters
    ----------
    place : Layout
    release : int
    files : mapping of path in the folder to content
    removed : (k,) int64 or None
        Positions in the table of members that this release deletes.
    """
    root = place.pending(release)
    root.mkdir(mode=0o700)
    for name in layout.DIRECTORIES:
        (root / name).mkdir()
    for name, content in files.items():
        write(root / name, content, secret=name.startswith(layout.SEALED))
    if removed is not None:
        write(root / REMOVED, np.asarray(removed, "<i8").tobytes(), secret=True)
    for directory in (*(root / name for name in layout.DIRECTORIES), root, root.parent):
        sync(directory)


def interrupted(place: Layout, ledger: Ledger, lineage: str) -> Interrupted | None:
    """Return the release that was interrupted, if there is one; nothing is changed.

    Raises
    ------
    FolderProblem
        If something else lies where it would.
    """
    last = ledger.last_release(lineage)
    for kind, number, path in _leftovers(place):
        if kind == "pending":
            ahead = Layout(path)
            require_directories(ahead)
            return Interrupted(ahead, number, last is not None and last[0] == number)
    return None


def settle(place: Layout, ledger: Ledger, lineage: str) -> None:
    """Finish the release that the ledger knows, and discard what it does not know.

    Raises
    ------
    FolderProblem
        If there are files that expunge would not have left there; then none is moved.
    """
    for kind, _, path in list(_leftovers(place)):
        if kind == "done":
            shutil.rmtree(path)
    while (found := interrupted(place, ledger, lineage)) is not None:
        if found.happened:
            _apply(place, found)
        _drop(found.place.root)


def require_directories(place: Layout) -> None:
    """Raise ``FolderProblem`` unless the directories of a folder are real ones, as far as there."""
    for name in ("", *layout.DIRECTORIES):
        path = place.at(name)
        if os.path.islink(path) or (os.path.lexists(path) and not os.path.isdir(path)):
            raise FolderProblem(f"{path} is a link, or no directory: a model folder has real ones")


def removed_positions(ahead: Layout, members: Members) -> NDArray[np.int64] | None:
    """Return what an interrupted release removes from the table of members, if anything.

    Raises
    ------
    FolderProblem
        If these are not distinct positions in the table.
    """
    path, count = ahead.at(REMOVED), len(members.tag)
    if not os.path.lexists(path):
        return None
    try:
        content = regular.read(path, 8 * count)
    except OSError as error:
        raise FolderProblem(f"cannot read {path}: {error.strerror}") from error
    positions = np.frombuffer(content[: len(content) // 8 * 8], "<i8").astype(np.int64)
    sound = len(content) % 8 == 0 and len(np.unique(positions)) == len(positions) > 0
    if not sound or positions.min() < 0 or positions.max() >= count:
        raise FolderProblem(f"{path} is damaged; restore the whole folder from one copy")
    return positions


def _leftovers(place: Layout) -> Iterator[tuple[str, int, Path]]:
    """Yield kind, number and path of the directories of releases on their way."""
    with os.scandir(place.at(layout.SEALED)) as entries:
        found = sorted(entries, key=lambda entry: entry.name)
    for entry in found:
        if not entry.name.startswith(("pending-", "done-")):
            continue
        name = _NAME.fullmatch(entry.name)
        if name is None or not entry.is_dir(follow_symlinks=False):
            raise FolderProblem(f"{entry.path} is nothing that expunge has made; take it away")
        yield name[1], int(name[2]), Path(entry.path)


def _apply(place: Layout, found: Interrupted) -> None:
    names = list(_files(found))
    members = place.at(layout.MEMBERS)
    table = map_members(members, writable=True)
    if (positions := removed_positions(found.place, table)) is not None:
        table.repeat(positions)
    del table
    sync(members)
    for name in names:
        os.replace(found.place.at(name), place.at(name))
    for name in (*layout.DIRECTORIES, "."):
        sync(place.at(name))


def _files(found: Interrupted) -> Iterator[str]:
    """Yield the files to be moved, by their paths in the folder: those of a release, no others."""
    stem = re.compile(rf"{found.number:04d}(-[a-z]+)?\.[a-z.]+")
    for directory in ("", *layout.DIRECTORIES):
        if not os.path.lexists(found.place.at(directory)):
            continue
        with os.scandir(found.place.at(directory)) as entries:
            inside = sorted(entries, key=lambda entry: entry.name)
        for entry in inside:
            name = f"{directory}/{entry.name}" if directory else entry.name
            if name in (REMOVED, *layout.DIRECTORIES):
                continue
            own = name in (layout.MODEL, layout.STATE, layout.STATE_MAC) or (
                directory in _STATEMENT_FILES and stem.fullmatch(entry.name)
            )
            if not own or not entry.is_file(follow_symlinks=False):
                raise FolderProblem(f"{entry.path} is no file of a release; take it away")
            yield name


def _drop(pending: Path) -> None:
    """Remove a directory so that a crash never leaves half of it under its name."""
    done = pending.with_name(pending.name.replace("pending", "done"))
    os.rename(pending, done)
    sync(done.parent)
    shutil.rmtree(done)
