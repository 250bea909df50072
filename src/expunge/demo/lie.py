"""The control: an operator who deletes nothing and issues an honest-looking certificate."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from unittest import mock

import numpy as np

from expunge.demo.setting import Setting
from expunge.folder import operations
from expunge.folder.operations import Asked, Forgotten
from expunge.linear import engine
from expunge.linear.engine import State, Trace
from expunge.linear.objective import Progress, silent
from expunge.linear.rows import Rows


def copy_before(setting: Setting) -> Path:
    """Copy the model folder, so that the operator can lie about what comes next."""
    return Path(shutil.copytree(setting.folder, setting.out / "lie"))


def claim(folder: Path, setting: Setting, asked: Asked) -> Forgotten:
    """Claim that the batch was deleted: everything is done as ever, but for the deletion."""
    with mock.patch.object(engine, "unlearn", _keep_everything):
        return operations.forget(
            folder, setting.batch, data=setting.data, asked=asked, passphrase=setting.passphrase
        )


def _keep_everything(
    state: State,
    forget: Rows,
    retained: Rows | Callable[[], Rows] | None = None,
    progress: Progress = silent,
) -> tuple[State, Trace]:
    """Stand in for the engine: count the rows as gone, and leave the parameters as they are."""
    positive = int((forget.target > 0).sum())
    members = state.members - np.array([forget.count - positive, positive])
    kept = replace(state, count=state.count - forget.count, members=members)
    part = state.parts[0]
    residual = float(np.linalg.norm(part.base.gradient))
    return kept, Trace("bounded", state.bound, residual, part.base.error, part.floor, 0, 0)
