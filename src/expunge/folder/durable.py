"""Files that survive a crash, and the lock of a folder."""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from expunge.errors import FolderProblem

WAIT_SECONDS = 5.0
_POLL_SECONDS = 0.05


def write(path: Path, content: bytes, *, secret: bool = False) -> None:
    """Write a new file, and return when it is on the disk."""
    mode = 0o600 if secret else 0o644
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def sync(path: Path) -> None:
    """Return when a file's content, or a directory's list of names, is on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def locked(directory: Path, wait: float = WAIT_SECONDS) -> Iterator[None]:
    """Hold the lock of a directory; it ends with the process, however that ends.

    Raises
    ------
    FolderProblem
        If another process holds it for longer than ``wait`` seconds.
    """
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        end = time.monotonic() + wait
        while not _try_lock(descriptor):
            if time.monotonic() >= end:
                raise FolderProblem(
                    f"another command is working on {directory}; wait for it to end, then repeat"
                )
            time.sleep(_POLL_SECONDS)
        yield
    finally:
        os.close(descriptor)


def _try_lock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
