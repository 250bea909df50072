"""Networks that other processes can import."""

from __future__ import annotations

from torch import nn


def small(seed):
    """Return six inputs, three outputs."""
    return nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Dropout(0.2), nn.Linear(8, 3))
