"""The reference implementation of certified removal, run from a checkout that the user has.

It is research code under a non-commercial licence: nothing of it is here. Its script
``test_removal.py`` is executed as it is, in a process of its own, with stand-ins for what it
imports or asks for and a plain machine lacks: torchvision, which it needs for raw images only, and
a CUDA device, for which it gets the CPU. Our rows reach it as extracted features: a dictionary of
the tensors ``X_train``, ``y_train`` (0 or 1), ``X_test`` and ``y_test`` that ``torch.save`` writes
to ``EXTRACTOR_DATASET_extracted.pth`` in the script's ``--data-dir``. The script scales rows to
norm 1, trains one model with b ~ N(0, std²) in float32 and deletes training rows in a random order,
one Newton step each. Afterwards its variables hold the order, the seconds and the bound of the
gradient residual of each removal, and the weights before and after.
"""

from __future__ import annotations

import importlib.util
import io
import runpy
import sys
from contextlib import redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from types import ModuleType
from typing import Any

import numpy as np

from bench.convex import Case
from bench.peers.setting import Setting

SCRIPT = "test_removal.py"
STEPS = 100


@dataclass(frozen=True)
class Reference:
    """What the script did: order of removal, seconds and bound each, weights before and after."""

    order: np.ndarray
    seconds: np.ndarray
    bounds: np.ndarray
    before: np.ndarray
    after: np.ndarray

    def supported(self, budget: float) -> int:
        """Return how many of the removals its own bounds allow before it must train anew."""
        return int(np.searchsorted(np.cumsum(self.bounds), budget, side="right"))


def why_not(checkout: Path | None) -> str | None:
    """Return why the reference cannot be run, None if it can."""
    if checkout is None:
        return "the reference is left out: --certified-removal takes the folder of a checkout"
    if not (checkout / SCRIPT).is_file():
        return f"the reference is left out: {checkout} has no {SCRIPT}"
    if importlib.util.find_spec("torch") is None:
        return "the reference is left out, it needs PyTorch: pip install torch"
    return None


def removals(checkout: Path, case: Case, setting: Setting, count: int, seed: int = 0) -> Reference:
    """Run the script for ``count`` removals. Call it in a process of its own: it patches torch.

    Raises
    ------
    RuntimeError
        If the script gives up, with what it said.
    """
    import torch

    _stand_in(torch)
    torch.manual_seed(seed)
    told = io.StringIO()
    with TemporaryDirectory() as folder, redirect_stdout(told):
        torch.save(_features(torch, case), Path(folder) / "bench_case_extracted.pth")
        options = {
            "data-dir": folder,
            "result-dir": folder,
            "extractor": "bench",
            "dataset": "case",
            "train-mode": "binary",
            "lam": setting.l2,
            "std": setting.std,
            "num-steps": STEPS,
            "num-removes": count,
        }
        sys.argv = [SCRIPT, *(f"--{name}={value}" for name, value in options.items())]
        sys.path.insert(0, str(checkout))
        try:
            found = runpy.run_path(str(checkout / SCRIPT), run_name="__main__")
        except SystemExit as stop:
            raise RuntimeError(f"{SCRIPT} stopped with {stop.code}: {told.getvalue()}") from None
    names = ("perm", "times", "grad_norm_approx", "w", "w_approx")
    order, *rest = (found[name].detach().numpy() for name in names)
    seconds, bounds, before, after = (part.astype(np.float64) for part in rest)
    return Reference(order[:count], seconds, bounds, before[:, None], after[:, None])


def _features(torch: Any, case: Case) -> dict[str, Any]:
    parts = {"X_train": case.X, "y_train": case.y, "X_test": case.X_test, "y_test": case.y_test}
    return {name: torch.tensor(part, dtype=torch.float32) for name, part in parts.items()}


def _stand_in(torch: Any) -> None:
    """Give the script an empty torchvision, the CPU for every device, and leave no traces."""
    vision = ModuleType("torchvision")
    for name in ("datasets", "transforms"):
        part = ModuleType(f"torchvision.{name}")
        setattr(vision, name, part)
        sys.modules[part.__name__] = part
    sys.modules[vision.__name__] = vision
    sys.dont_write_bytecode = True
    real = torch.device

    class Known(type):
        def __instancecheck__(cls, value: object) -> bool:
            return isinstance(value, real)

    class Cpu(metaclass=Known):
        def __new__(cls, *_: object, **__: object) -> Any:
            return real("cpu")

    torch.device = Cpu
