"""The networks of Zhang et al.'s experiments, of any width, with GroupNorm instead of BatchNorm.

BatchNorm's running statistics hold the forgotten records and are not part of the weights that are
noised; GroupNorm has the same parameters and no such statistics.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional

GROUPS = 8


def mlp(inputs: int = 784, width: int = 32, classes: int = 10) -> nn.Module:
    """Return inputs-width-width-classes with ReLU."""
    return nn.Sequential(
        nn.Flatten(),
        nn.Linear(inputs, width),
        nn.ReLU(),
        nn.Linear(width, width),
        nn.ReLU(),
        nn.Linear(width, classes),
    )


def norm(channels: int) -> nn.Module:
    """Return GroupNorm with at most 8 groups."""
    return nn.GroupNorm(math.gcd(GROUPS, channels), channels)


def all_cnn(width: int = 96, classes: int = 10) -> nn.Module:
    """Return the All-CNN with ``width`` and twice as many channels, a mean and a linear layer."""
    wide = 2 * width
    plan = [(3, width, 3, 1), (width, width, 3, 1), (width, wide, 3, 2), (wide, wide, 3, 1)]
    plan += [(wide, wide, 3, 1), (wide, wide, 3, 2), (wide, wide, 3, 1), (wide, wide, 1, 1)]
    layers: list[nn.Module] = []
    for before, after, size, stride in plan:
        conv = nn.Conv2d(before, after, size, stride, size // 2, bias=False)
        layers += [conv, norm(after), nn.ReLU()]
    return nn.Sequential(*layers, nn.AvgPool2d(8), nn.Flatten(), nn.Linear(wide, classes))


class PreActBlock(nn.Module):
    """Two convolutions, each after normalisation and ReLU; a 1 × 1 one where the shape changes."""

    def __init__(self, before: int, after: int, stride: int) -> None:
        super().__init__()
        self.first, self.second = norm(before), norm(after)
        self.conv1 = nn.Conv2d(before, after, 3, stride, 1, bias=False)
        self.conv2 = nn.Conv2d(after, after, 3, 1, 1, bias=False)
        same = stride == 1 and before == after
        self.short = None if same else nn.Conv2d(before, after, 1, stride, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Return (n, after, h/stride, w/stride)."""
        ready = functional.relu(self.first(x))
        kept = x if self.short is None else self.short(ready)
        moved: Tensor = self.conv2(functional.relu(self.second(self.conv1(ready))))
        return moved + kept


def resnet18(width: int = 64, classes: int = 10) -> nn.Module:
    """Return a pre-activation ResNet-18 for 32 × 32 images, its four stages from ``width`` on."""
    layers: list[nn.Module] = [nn.Conv2d(3, width, 3, 1, 1, bias=False), norm(width)]
    before = width
    for stage in range(4):
        for stride in (1 if stage == 0 else 2, 1):
            layers.append(PreActBlock(before, width * 2**stage, stride))
            before = width * 2**stage
    return nn.Sequential(
        *layers, nn.ReLU(), nn.AvgPool2d(4), nn.Flatten(), nn.Linear(before, classes)
    )


def made(maker: Callable[[], nn.Module], seed: int, device: str = "cpu") -> nn.Module:
    """Return an untrained network drawn from a seed."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return maker().to(device)
