"""Fisher forgetting: noise where R does not care [Golatkar et al., 2020a]."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from expunge.deep.methods.common import Baseline, Work, last_layers
from expunge.deep.problem import Need
from expunge.deep.records import diagonal
from expunge.errors import InvalidInput


@dataclass(frozen=True)
class FisherForgetting(Baseline):
    """``w ← w + N(0, diag v)`` with ``v = α·min(1/(F_R + 1e-8), 1e3)``.

    ``F_R`` is the diagonal of the true Fisher matrix on R. In a tensor of two or more dimensions v
    is averaged over dimension 1; in one of a single dimension it is ten times as large; in the last
    layer the cap is 1e2. Weight decay is no part of ``F_R``.

    Attributes
    ----------
    alpha : float
        0 changes nothing. Nothing between 1e-9 and 1e-6 is right for all networks.
    forgotten_class : int, optional
        Its row of the last layer, bias included, gets mean 0 and variance 1e-4.
    """

    name: ClassVar[str] = "fisher"
    requires: ClassVar[tuple[Need, ...]] = ("retain",)

    alpha: float = 1e-6
    forgotten_class: int | None = None

    def change(self, work: Work) -> None:
        """Add the noise."""
        center, variance = self._law(work)
        noise = torch.randn(len(center), generator=work.generator, dtype=torch.float64)
        noise = noise.to(center.device) * variance.sqrt()
        work.network.load((center + noise).to(work.network.dtype))
        work.note("noise", math.sqrt(float(variance.sum())))

    def _law(self, work: Work) -> tuple[Tensor, Tensor]:
        """Return mean and variance (p,) in float64."""
        if not (math.isfinite(self.alpha) and self.alpha >= 0.0):
            raise InvalidInput(f"alpha must be at least 0, not {self.alpha}")
        network, last = work.network, set(last_layers(work.network, 1).names)
        fisher = diagonal("fisher_true", network, work.problem.loss, work.part("retain"))
        work.rows["retain"] += work.part("retain").rows
        center = network.unflatten(network.vector().double())
        spread = {}
        for name, values in network.unflatten(fisher.double()).items():
            v = (1.0 / (values + 1e-8)).clamp(max=1e2 if name in last else 1e3) * self.alpha
            v = v.mean(1, keepdim=True).expand_as(v).clone() if v.ndim > 1 else 10.0 * v
            if name in last and self.forgotten_class is not None:
                if not 0 <= self.forgotten_class < len(v):
                    raise InvalidInput(
                        f"forgotten_class must be below {len(v)}, not {self.forgotten_class}"
                    )
                center[name][self.forgotten_class] = 0.0
                v[self.forgotten_class] = 1e-4
            spread[name] = v
        return network.flatten(center), network.flatten(spread)
