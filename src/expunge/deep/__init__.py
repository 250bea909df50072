"""Deep networks: curvature, unlearning as published, baselines, and what can be said about each."""

from __future__ import annotations

from importlib import import_module
from typing import Any

_NAMES = {
    "CertifiedHead": "head",
    "METHODS": "methods",
    "Problem": "problem",
    "Recipe": "descent",
    "ShardPlan": "sharded",
    "Situation": "advice",
    "TangentModel": "tangent",
    "Unlearned": "problem",
    "advise": "advice",
    "cross_entropy": "training",
    "delete_records": "sharded",
    "row_ids": "problem",
    "train": "training",
    "train_logged": "training",
    "train_shards": "sharded",
}
__all__ = sorted(_NAMES)


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used (PEP 562)."""
    if name in _NAMES:
        return getattr(import_module(f"{__name__}.{_NAMES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
