"""The SQLite file below :mod:`expunge.folder.ledger`: opened with suspicion, typed, guarded."""

from __future__ import annotations

import os
import shutil
import sqlite3
import stat
import tempfile
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from expunge import regular
from expunge.errors import FolderProblem

BUSY_SECONDS = 10.0
_LONGEST = 4 << 20
_SETTINGS = ("trusted_schema=OFF", "synchronous=FULL", "foreign_keys=ON")


class Database:
    """A connection. Every method raises ``FolderProblem`` if the file is locked or damaged.

    Parameters
    ----------
    path : Path
    mode : str
        ``rwc`` makes the file, ``rw`` opens it, ``ro`` reads it with nothing written beside it;
        then nobody may be writing to it.
    """

    def __init__(self, path: Path, mode: str) -> None:
        self._path = Path(path)
        self._copy: tempfile.TemporaryDirectory[str] | None = None
        with self.guarded():
            where, how = self._readable() if mode == "ro" else (self._path, mode)
            uri = f"{where.absolute().as_uri()}?mode={how}"
            self._db = sqlite3.connect(uri, uri=True, timeout=BUSY_SECONDS, isolation_level=None)
            self._db.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, _LONGEST)
            for setting in _SETTINGS:
                self._db.execute(f"PRAGMA {setting}")

    def _readable(self) -> tuple[Path, str]:
        """Return where and how to read: changes that are not in the file yet need a copy of it."""
        wal = self._path.with_name(self._path.name + "-wal")
        if not os.path.lexists(wal) or not wal.lstat().st_size:
            return self._path, "ro&immutable=1"
        self._copy = tempfile.TemporaryDirectory(prefix="expunge-")
        for path in (self._path, wal):
            with (
                os.fdopen(regular.descriptor(path, regular.LARGE), "rb") as source,
                open(Path(self._copy.name) / path.name, "wb") as target,
            ):
                shutil.copyfileobj(source, target)
        return Path(self._copy.name) / self._path.name, "rw"

    def close(self) -> None:
        """Close the file."""
        self._db.close()
        if self._copy is not None:
            self._copy.cleanup()

    def execute(self, statement: str, values: Sequence[Any] = ()) -> None:
        """Execute a statement that returns nothing."""
        with self.guarded():
            self._db.execute(statement, values)

    def rows(
        self, kinds: tuple[type, ...], query: str, values: Sequence[Any] = ()
    ) -> list[tuple[Any, ...]]:
        """Return the rows of a query, whose cells have to be of these ``kinds``."""
        with self.guarded():
            found = self._db.execute(query, values).fetchall()
        if any(tuple(map(type, row)) != kinds for row in found):
            raise FolderProblem(f"{self._path} has cells of wrong types; restore it from a copy")
        return found

    def one(self, kind: type, query: str) -> Any:
        """Return the only cell of a query's first row."""
        for row in self.rows((kind,), query):
            return row[0]
        raise FolderProblem(f"{self._path} is not a whole log; restore it from a copy")

    def schema(self) -> set[str]:
        """Return the statements that made what is in the file, but for automatic indexes."""
        made = "SELECT sql FROM sqlite_master WHERE sql IS NOT NULL OR type<>'index'"
        return {row[0] for row in self.rows((str,), made)}

    def require(self, version: int, least: Collection[str], most: Collection[str]) -> None:
        """Raise ``FolderProblem`` unless version and schema are such: no views, no odd triggers."""
        found = self.one(int, "PRAGMA user_version")
        if found != version:
            raise FolderProblem(f"{self._path}: expected a log of version {version}, got {found}")
        if not set(least) <= self.schema() <= set(most):
            raise FolderProblem(
                f"the tables in {self._path} are not those of a log; restore it from a copy"
            )

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """Commit at the end, or nothing."""
        with self.guarded():
            self._db.execute("BEGIN IMMEDIATE")
            try:
                yield
                self._db.execute("COMMIT")
            except BaseException:
                if self._db.in_transaction:
                    self._db.execute("ROLLBACK")
                raise

    @contextmanager
    def guarded(self) -> Iterator[None]:
        """Turn errors of SQLite into ``FolderProblem``."""
        try:
            yield
        except sqlite3.Error as error:
            raise FolderProblem(
                f"the log {self._path} cannot be used ({error}): if no other program is writing "
                "to it, restore it from a copy"
            ) from error


def require_regular(path: Path) -> None:
    """Raise ``FolderProblem`` unless the file, and what SQLite keeps beside it, are its own."""
    if not os.path.lexists(path):
        raise FolderProblem(f"there is no log at {path}")
    for suffix in ("", "-wal", "-shm", "-journal"):
        beside = path.with_name(path.name + suffix)
        if not os.path.lexists(beside):
            continue
        status = beside.lstat()
        if not stat.S_ISREG(status.st_mode) or status.st_size > regular.LARGE:
            raise FolderProblem(f"{beside} is a link, no regular file, or too large")
        if suffix == "-journal":
            raise FolderProblem(f"{beside} is none of a log's files; restore the folder")
