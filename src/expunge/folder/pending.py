"""How a release becomes the current one: before or after, and nothing in between.

Everything new is written to ``sealed/pending-<release>/``, which mirrors the folder, and flushed to
the disk. Then the ledger's transaction commits: that is the moment at which the release happens.
Then the files are moved to their places and the records marked as deleted. Each of these moves may
be repeated, so whoever opens the folder next finishes them after a crash, or, if the ledger does
not know the release, throws the directory away.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from expunge.folder import layout
from expunge.folder.durable import sync, write
from expunge.folder.layout import Layout
from expunge.folder.ledger import Ledger
from expunge.linear.state import map_members

REMOVED = "removed"


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


def settle(place: Layout, ledger: Ledger, lineage: str) -> None:
    """Finish the releases that the ledger knows, and discard those that it does not."""
    sealed = place.at(layout.SEALED)
    found = sorted(sealed.iterdir())
    for leftover in found:
        if leftover.name.startswith("done-"):
            shutil.rmtree(leftover)
    for pending in found:
        if not pending.name.startswith("pending-"):
            continue
        last = ledger.last_release(lineage)
        if last is not None and last[0] >= int(pending.name.removeprefix("pending-")):
            _apply(place, pending)
        _drop(pending)


def _apply(place: Layout, pending: Path) -> None:
    removed = pending / REMOVED
    if removed.exists():
        members = place.at(layout.MEMBERS)
        table = map_members(members, writable=True)
        table.repeat(np.frombuffer(removed.read_bytes(), "<i8"))
        del table
        sync(members)
    for file in sorted(pending.rglob("*")):
        if file.is_file() and file != removed:
            os.replace(file, place.at(str(file.relative_to(pending))))
    for name in (*layout.DIRECTORIES, "."):
        sync(place.at(name))


def _drop(pending: Path) -> None:
    """Remove a directory so that a crash never leaves half of it under its name."""
    done = pending.with_name(pending.name.replace("pending", "done"))
    os.rename(pending, done)
    sync(done.parent)
    shutil.rmtree(done)
