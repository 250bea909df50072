"""L-CODEC: a Newton step on the units that a record depends on [Mehta et al., 2022]."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from expunge.deep.curvature import Operator, gradient
from expunge.deep.inverse import SMALL
from expunge.deep.methods.common import Baseline, Work, tensors
from expunge.deep.methods.influence import Pooled, solve
from expunge.deep.problem import Need
from expunge.deep.trees import Batch
from expunge.errors import InvalidInput


@dataclass(frozen=True)
class LCodec(Baseline):
    """For every record of F, a step ``w_S ← w_S + (1/(n−1))(H_S + λI)⁻¹g_S`` on its units S.

    A unit is an output of a linear layer, or a channel of a convolution: a row of its weight, and
    its bias. Other layers are left as they are. The record is perturbed, and units are added one by
    one while their activations together predict the record's loss better, measured by the
    coefficient of Azadkia and Chatterjee (`foci`). ``H = (n H_D − H_i)/(n−1)`` with true Hessians,
    weight decay included; H_D is that of all records at the trained weights, formed once for few
    parameters, otherwise multiplied by in conjugate gradients: then every record costs many passes
    over D. λ is raised where H_S + λI is not positive definite. n falls by one with every record.

    Attributes
    ----------
    damping : float
        λ.
    select : bool
        If not, S is everything that may change.
    perturbations : int
        Of a record.
    spread : float
        Standard deviation of a perturbation.
    noise : bool
        Add the published noise of ``epsilon`` and ``delta``. Its constants (1/4 for the Hessian's
        Lipschitz constant, 1 for the gradient's) are not of the network: no guarantee follows.
    """

    name: ClassVar[str] = "l-codec"
    requires: ClassVar[tuple[Need, ...]] = ("retain", "forget")

    damping: float = 1e-3
    select: bool = True
    perturbations: int = 64
    spread: float = 0.1
    noise: bool = False
    epsilon: float = 0.1
    delta: float = 0.01

    def change(self, work: Work) -> None:
        """Remove one record after the other."""
        forget = work.part("forget")
        n = work.problem.total
        whole = _Whole(work)
        tally = _Tally()
        for i in range(forget.rows):
            self._remove(work, work.take("forget", torch.tensor([i])), n - i, whole, tally)
        for part, rows in whole.pooled.rows.items():
            work.rows[part] += rows * tally.passes
        if self.noise:
            sigma = self._sigma(n, forget.rows)
            drawn = torch.randn(work.network.size, generator=work.generator, dtype=torch.float64)
            w = work.network.vector()
            work.network.load((w.double() + sigma * drawn.to(w.device)).to(w.dtype))
            work.note("sigma", sigma)
        work.note("steps", forget.rows - tally.skipped)
        work.note("skipped", tally.skipped)
        work.note("coordinates", sum(tally.sizes) / max(1, len(tally.sizes)))
        work.note("largestDamping", max(tally.dampings, default=self.damping))
        if tally.skipped:
            work.warnings.append(f"no unit was selected for {tally.skipped} records: not removed")

    def _remove(self, work: Work, record: Batch, n: int, whole: _Whole, tally: _Tally) -> None:
        problem, network = work.problem, work.network
        chosen = self._coordinates(work, record)
        if not len(chosen):
            tally.skipped += 1
            return
        w = network.vector()
        at = w.double()
        slope = gradient(network, problem.loss, record, wd=problem.wd, at=at)[chosen]
        own = Operator("hessian", network, problem.loss, record, wd=problem.wd, at=at)

        def product(V: Tensor) -> Tensor:
            wide = torch.zeros(len(at), *V.shape[1:], dtype=V.dtype, device=V.device)
            wide[chosen] = V
            return (n * whole(wide, chosen, tally) - own(wide)[chosen]) / (n - 1)

        damping, found = solve(product, slope, self.damping, form=whole.matrix is not None)
        at[chosen] += found.value / (n - 1)
        network.load(at.to(w.dtype))
        tally.sizes.append(len(chosen))
        tally.dampings.append(damping)

    def _coordinates(self, work: Work, record: Batch) -> Tensor:
        """Return the coordinates of w that are to change."""
        network = work.network
        if not self.select:
            return torch.arange(network.size, device=network.device)
        x = record[0]
        if not isinstance(x, Tensor) or not x.is_floating_point():
            raise InvalidInput("l-codec perturbs the inputs: one tensor of real numbers is needed")
        shape = (self.perturbations, *x.shape[1:])
        noise = torch.randn(shape, generator=work.generator, dtype=torch.float64)
        moved = x + self.spread * noise.to(x)
        activity, units, losses = _observe(
            work, (moved, record[1].expand(len(moved), *record[1].shape[1:]))
        )
        mask = {
            name: torch.zeros_like(parameter, dtype=torch.bool)
            for name, parameter in zip(network.names, network.parameters, strict=True)
        }
        for found in foci(activity, losses):
            layer, row = units[found]
            for name in tensors(layer):
                if name in mask:
                    mask[name][row] = True
        return torch.nonzero(network.flatten(mask))[:, 0]

    def _sigma(self, n: int, m: int) -> float:
        scale = 2.0 * 0.25 * m**2 / (n**2 * self.damping**3 * self.epsilon)
        return scale * math.sqrt(2.0 * math.log(1.25 / self.delta))


@dataclass
class _Tally:
    skipped: int = 0
    passes: int = 0
    sizes: list[int] = field(default_factory=list)
    dampings: list[float] = field(default_factory=list)


_CHOSEN = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d)


class _Whole:
    """The Hessian of D at the trained weights, formed once where it is small."""

    def __init__(self, work: Work) -> None:
        self.pooled = Pooled(work, "hessian", ("forget", "retain"))
        small = self.pooled.size <= SMALL
        self.matrix = self.pooled.dense() if small else None
        self.formed = self.pooled.size if small else 0

    def __call__(self, wide: Tensor, chosen: Tensor, tally: _Tally) -> Tensor:
        tally.passes, self.formed = tally.passes + self.formed, 0
        if self.matrix is not None:
            return self.matrix[chosen] @ wide
        tally.passes += 1 if wide.ndim == 1 else wide.shape[1]
        return self.pooled(wide)[chosen]


def _observe(work: Work, batch: Batch) -> tuple[Tensor, list[tuple[str, int]], Tensor]:
    """Return activations (k, units), the units' layers and rows, and losses (k,)."""
    seen, own = dict[str, Tensor](), set(work.network.names)

    def watch(name: str) -> Any:
        def hook(module: nn.Module, _inputs: Any, outputs: Tensor) -> None:
            found = outputs.detach().double()
            found = found.movedim(-1 if isinstance(module, nn.Linear) else 1, -1)
            seen[name] = found.reshape(len(found), -1, found.shape[-1]).mean(1)

        return hook

    handles = [
        module.register_forward_hook(watch(name))
        for name, module in work.model.named_modules()
        if isinstance(module, _CHOSEN) and not own.isdisjoint(tensors(name))
    ]
    try:
        with torch.no_grad():
            losses = work.problem.loss(work.outputs(batch[0]), batch[1]).double()
    finally:
        for handle in handles:
            handle.remove()
    if not seen:
        raise InvalidInput(
            "l-codec chooses among the outputs of linear layers and convolutions, and none of them "
            "may change"
        )
    units = [(name, row) for name, found in seen.items() for row in range(found.shape[1])]
    return torch.cat(list(seen.values()), 1), units, losses


def foci(activity: Tensor, y: Tensor) -> list[int]:
    """Return columns (k, d) that together predict y (k,), in the order in which they help.

    Forward selection by ``Σ_i min(R_i, R_M(i)) − L_i²/k``, where R_i counts the values up to y_i,
    L_i those from it, and M(i) is the nearest neighbour of i in the columns chosen; it ends when
    no column adds to it [Azadkia & Chatterjee, 2021].

    Examples
    --------
    >>> t = torch.linspace(0, 1, 50)
    >>> foci(torch.stack([torch.sin(40 * t), t], 1), t**2)
    [1]
    """
    k = len(y)
    spread = activity.std(0)
    live = torch.nonzero(spread > 0)[:, 0]
    if not len(live) or float(y.std()) == 0.0:
        return []
    columns = (activity[:, live] - activity[:, live].mean(0)) / spread[live]
    rank = (y[None, :] <= y[:, None]).sum(1).double()
    above = (y[None, :] >= y[:, None]).sum(1).double()
    base = float((above**2).sum() / k)
    distance = torch.diag(torch.full((k,), torch.inf, dtype=activity.dtype, device=y.device))
    chosen: list[int] = []
    best = 0.0
    while len(chosen) < len(live):
        scores = torch.full((len(live),), -torch.inf, dtype=torch.float64)
        for j in range(len(live)):
            if j not in chosen:
                apart = (columns[:, None, j] - columns[None, :, j]) ** 2
                near = (distance + apart).argmin(1)
                scores[j] = torch.minimum(rank, rank[near]).sum() - base
        top = int(scores.argmax())
        if float(scores[top]) <= best:
            break
        best = float(scores[top])
        chosen.append(top)
        distance = distance + (columns[:, None, top] - columns[None, :, top]) ** 2
    return [int(live[j]) for j in chosen]
