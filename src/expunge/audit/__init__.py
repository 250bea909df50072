"""Audits: measure what a model remembers, and try to falsify what a certificate claims."""

from __future__ import annotations

from importlib import import_module
from typing import Any

_NAMES = {
    "Data": "parts",
    "Attestation": "attestation",
    "Canaries": "trials",
    "FAMILIES": "suite",
    "Falsification": "falsify",
    "Plan": "findings",
    "UnlearnVersusRetrain": "trials",
    "attest": "attestation",
    "check_all": "proving",
    "Metric": "metric",
    "Part": "parts",
    "Pipeline": "setting",
    "Report": "suite",
    "Runner": "shadows",
    "View": "views",
    "run": "suite",
    "view": "views",
}
__all__ = sorted(_NAMES)


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used (PEP 562)."""
    if name in _NAMES:
        return getattr(import_module(f"{__name__}.{_NAMES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
