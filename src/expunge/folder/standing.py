"""How a model folder stands; apart from the operations, which need the engine."""

from __future__ import annotations

from pathlib import Path

from expunge.folder.results import Status
from expunge.folder.store import opened

__all__ = ["Status", "status"]


def status(folder: Path, *, public: bool = False) -> Status:
    """Say how a folder stands; nothing changes, but for a release that was interrupted.

    Parameters
    ----------
    folder : Path
    public : bool
        Whether to be content with a copy of the public part.

    Raises
    ------
    FolderProblem
        If there is no model folder, it is damaged, or another process works on it.
    """
    with opened(folder, public=public) as store:
        return Status(
            folder=folder,
            policy=store.policy,
            latest=store.latest(),
            entries=len(store.ledger),
            checkpoint=store.ledger.checkpoint() or "",
        )
