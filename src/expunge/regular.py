"""Reading files that somebody else may have made.

Only regular files are opened, never through a link, never waiting for a pipe, and never more is
read than a file of its kind can have.
"""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

SMALL = 1 << 16
STATEMENT = 1 << 20
PAGE = 1 << 24
LARGE = 1 << 31
"""Most bytes of settings, of a signed statement or proof, of a page, of anything else."""

_FLAGS = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC


def descriptor(path: Path, limit: int, *, writable: bool = False) -> int:
    """Open a regular file of at most ``limit`` bytes and return its descriptor.

    Raises
    ------
    OSError
        If it is missing, a link, no regular file, too large, or cannot be opened.
    """
    try:
        found = os.open(path, _FLAGS | (os.O_RDWR if writable else os.O_RDONLY))
    except ValueError:
        raise OSError(errno.EINVAL, "its name is not one that a file can have", "?") from None
    except OSError as error:
        if error.errno == errno.ELOOP:
            error.strerror = "it is a link, which is not followed"
        raise
    status = os.fstat(found)
    if stat.S_ISREG(status.st_mode) and status.st_size <= limit:
        return found
    os.close(found)
    if stat.S_ISREG(status.st_mode):
        reason = f"it has {status.st_size} bytes, more than the {limit} expected"
        raise OSError(errno.EFBIG, reason, str(path))
    raise OSError(errno.EINVAL, "it is no regular file", str(path))


def read(path: Path, limit: int) -> bytes:
    """Return the content of a regular file of at most ``limit`` bytes; errors as `descriptor`."""
    with os.fdopen(descriptor(path, limit), "rb") as file:
        content = file.read(limit + 1)
    if len(content) > limit:
        raise OSError(errno.EFBIG, f"it has more than the {limit} bytes expected", str(path))
    return content
