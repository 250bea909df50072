"""Enforced noise: clip, noise, train again on R. The guarantee needs nothing of the network.

Everything kept of the old model has norm at most ``μν/2`` against a noise of norm ``ν√p``, so for
a whole network at a useful ε the old model contributes nothing: these methods make a model that was
trained again from noise *signable*. Every figure of theirs goes with its `control`, the same run
started from zero. That radii, steps and rates were not chosen by looking at runs that start from
the trained model cannot be checked here: it is on trust. Bounds: `expunge.deep.noisy_bounds`.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from typing import ClassVar, Literal, Self

import numpy as np
import torch
from torch import Tensor, nn

from expunge.deep.descent import Recipe
from expunge.deep.methods.common import Baseline, Work
from expunge.deep.network import Network, UnsupportedModel, view
from expunge.deep.noisy_bounds import (
    Reference,
    Schedule,
    clipped_delta,
    clipping_steps,
    kept_share,
    schedule_for,
)
from expunge.deep.problem import Need, moving_buffers
from expunge.deep.renewal import duplicate
from expunge.deep.training import train
from expunge.errors import InvalidInput
from expunge.gaussian import compose, epsilon_of, mu_of
from expunge.guarantee import Assumption, Guarantee, Tag, View
from expunge.noise import NoiseSource, OsEntropy, Seeded

INDISTINCT = 0.05
"""Share kept below which the result is no better than training from a random initialisation."""

Start = Literal["model", "zero"]


@dataclass(frozen=True, kw_only=True)
class Noised(Baseline):
    """What the methods share: clipped start, noise, recovery on R, the claim.

    Attributes
    ----------
    epsilon, delta : float
        The claim, in the sense of ``reference``.
    reference : {"self", "exists"}
        Compared with the same procedure started anywhere else, or with noise trained on R.
    recovery : Recipe, optional
        Noiseless training on R of what was noised, by a new optimiser; the original recipe, if
        none is given.
    start : {"model", "zero"}
        ``zero`` is the null control: nothing of the old model is used.
    noise_seed : int, optional
        Repeatable noise for tests, never for production. By default the operating system's.
    """

    requires: ClassVar[tuple[Need, ...]] = ("retain",)

    epsilon: float = 1.0
    delta: float = 1e-5
    reference: Reference = "self"
    recovery: Recipe | None = None
    start: Start = "model"
    noise_seed: int | None = None

    def control(self) -> Self:
        """Return the null control of this method."""
        return replace(self, start="zero")

    def change(self, work: Work) -> None:
        """Noise the copy, then train it on R."""
        if self.start not in ("model", "zero"):
            raise InvalidInput(f"start must be model or zero, not {self.start!r}")
        recipe = self.recovery or work.problem.train
        if recipe is None:
            raise InvalidInput(
                f"{self.name} trains again on the retained records: give recovery, a Recipe, or "
                "Problem(train=...)"
            )
        _reset_buffers(work)
        x = work.network.vector().double()
        if self.start == "zero":
            x = torch.zeros_like(x)
        mu = self.noise(work, x, _Noise(self.noise_seed))
        self._claim(work, mu)
        recipe = replace(recipe, seed=work.problem.seed)
        data, problem = work.part("retain"), work.problem
        work.replace(train(work.model, data, recipe, loss=problem.loss, params=problem.params))
        work.rows["retain"] += recipe.epochs * data.rows
        work.note("recovery", recipe.digest(), Tag.enforced)

    @abstractmethod
    def noise(self, work: Work, x: Tensor, noise: _Noise) -> float:
        """Load a noised vector, made from ``x`` (p,) float64, into the copy; return its μ."""

    def _claim(self, work: Work, mu: float) -> None:
        share = kept_share(mu, work.network.size)
        work.note("mu", mu, Tag.proved)
        work.note("keptShare", share, Tag.proved)
        work.note("start", self.start, Tag.enforced)
        if share < INDISTINCT:
            work.warnings.append(
                f"kept share {share:.2g}: indistinguishable from retraining from random "
                "initialisation; the old model contributed nothing"
            )
        work.assumptions = [
            Assumption("retainDisjointFromForget", work.problem.disjoint),
            Assumption("clippedAndNoised", Tag.enforced),
            Assumption("scheduleFrozenForTheRun", Tag.enforced),
        ]
        if len(work.network.names) < len(list(work.model.named_parameters())):
            work.assumptions.append(Assumption("unchangedPartNeverSawForget", Tag.assumed))
        if self.noise_seed is not None:
            work.assumptions.append(Assumption("noiseIndependentOfData", Tag.assumed))
            work.warnings.append("seeded noise: not for production")
        work.guarantee = Guarantee(
            "muGdp",
            epsilon_of(mu, self.delta),
            self.delta,
            mu,
            "record",
            max(1, work.problem.removed),
            1,
            View.afterOnly,
            comparator="cleanUnlearn" if self.reference == "self" else "retainedOnlyLaw",
        )


@dataclass(frozen=True, kw_only=True)
class NoisyFineTune(Noised):
    """Clip the model, then a few clipped noisy steps on R [Koloskova et al., 2025].

    Attributes
    ----------
    start_radius, step_radius, lr, weight_decay, steps
        C0, C1, γ, λ, T of `expunge.deep.noisy_bounds.Schedule`; ``steps`` None takes the T of
        least σ. Not to be chosen by looking at runs that start from the trained model.
    batch_size : int
        Of the noisy steps.
    """

    name: ClassVar[str] = "noisy-finetune"

    start_radius: float = 0.1
    step_radius: float = 1.0
    lr: float = 0.05
    weight_decay: float = 1.0
    steps: int | None = None
    batch_size: int = 256

    def schedule(self) -> Schedule:
        """Return the schedule with the least noise that meets the claim."""
        return schedule_for(
            self.epsilon,
            self.delta,
            start_radius=self.start_radius,
            step_radius=self.step_radius,
            lr=self.lr,
            weight_decay=self.weight_decay,
            steps=self.steps,
            reference=self.reference,
        )

    def noise(self, work: Work, x: Tensor, noise: _Noise) -> float:
        """Take the noisy steps."""
        schedule = self.schedule()
        x = run_schedule(schedule, work, work.network, x, noise, self.batch_size)
        work.network.load(x.to(work.network.dtype))
        work.note("schedule", asdict(schedule), Tag.enforced)
        return schedule.mu(self.reference)


@dataclass(frozen=True, kw_only=True)
class OutputPerturbation(Noised):
    """Clip the model and noise it once: what every other method has to beat.

    Attributes
    ----------
    radius : float
        C0 > 0.
    """

    name: ClassVar[str] = "output-perturbation"

    radius: float = 0.03

    def noise(self, work: Work, x: Tensor, noise: _Noise) -> float:
        """Noise once."""
        if not self.radius > 0.0:
            raise InvalidInput(f"radius must be above 0, not {self.radius}")
        factor = 2.0 if self.reference == "self" else 1.0
        target = mu_of(self.epsilon, self.delta)
        sigma = factor * self.radius / target * (1.0 + 1e-9)
        x = clipped(x, self.radius) + sigma * noise.like(x)
        work.network.load(x.to(work.network.dtype))
        work.note("sigma", sigma, Tag.enforced)
        return factor * self.radius / sigma * (1.0 + 1e-9)


@dataclass(frozen=True, kw_only=True)
class ModelClipping(Noised):
    """Rounds of training on R, clipping the model, and noising it [Koloskova et al., 2025].

    Its claim is one pair (ε, δ), not a μ: what is printed as μ is that of a Gaussian with that
    pair, for comparison.

    Attributes
    ----------
    radius : float
        C2.
    ratio : float
        ρ = 2·C2/σ; the number of rounds follows from it and the claim.
    lr, batch_size, updates
        SGD between two rounds.
    """

    name: ClassVar[str] = "model-clipping"

    radius: float = 0.3
    ratio: float = 4.0
    lr: float = 0.05
    batch_size: int = 256
    updates: int = 5

    def noise(self, work: Work, x: Tensor, noise: _Noise) -> float:
        """Make the rounds."""
        if self.reference != "self":
            raise InvalidInput("model clipping has no bound against exists: take reference='self'")
        sigma = 2.0 * self.radius / self.ratio
        rounds = clipping_steps(self.epsilon, self.delta, self.radius, sigma)
        batches = work.endless("retain", self.batch_size)
        for _ in range(rounds):
            for _ in range(self.updates):
                x = x - self.lr * direction(work, work.network, x, batches)
            x = clipped(x, self.radius) + sigma * noise.like(x)
        work.network.load(x.to(work.network.dtype))
        work.note("rounds", rounds, Tag.enforced)
        work.note("sigma", sigma, Tag.enforced)
        return self.ratio

    def _claim(self, work: Work, mu: float) -> None:
        sigma = 2.0 * self.radius / self.ratio
        rounds = clipping_steps(self.epsilon, self.delta, self.radius, sigma)
        super()._claim(work, mu)
        delta = clipped_delta(self.epsilon, self.radius, sigma, rounds)
        assert work.guarantee is not None
        work.guarantee = replace(
            work.guarantee, kind="epsilonDelta", epsilon=self.epsilon, delta=delta, mu=None
        )
        work.evidence.pop("mu")


@dataclass(frozen=True, kw_only=True)
class BlockwiseNoise(NoisyFineTune):
    """Noisy steps on one group of parameters after the other [after Dolgova and Stich, 2026].

    A finished block is not touched until all are: the others still carry the old model. The budget
    is split as ``μ_j² ∝ √p_j·C0_j``, which spends the least noise energy.

    Attributes
    ----------
    start_radius : float
        C0 of every block, enforced.
    blocks : tuple of str
        Glob patterns that split the parameters, in the order in which they are noised; by default
        one block per module that owns parameters.
    """

    name: ClassVar[str] = "blockwise-noise"

    blocks: tuple[str, ...] = ()

    def noise(self, work: Work, x: Tensor, noise: _Noise) -> float:
        """Noise block by block."""
        work.network.load(x.to(work.network.dtype))
        parts = split_blocks(work.network, self.blocks)
        shares = np.sqrt([part.size for part in parts])
        mus = mu_of(self.epsilon, self.delta) * np.sqrt(shares / shares.sum())
        spent = []
        for part, mu in zip(parts, mus.tolist(), strict=True):
            own = self.schedule()
            schedule = replace(own, sigma=own.sigma * own.mu(self.reference) / mu * (1.0 + 1e-9))
            block = part.vector().double()
            block = run_schedule(schedule, work, part, block, noise, self.batch_size)
            part.load(block.to(part.dtype))
            spent.append(schedule.mu(self.reference))
        work.note("blocks", len(parts), Tag.enforced)
        return compose(spent)


class _Noise:
    """Standard normal vectors, from the operating system unless a seed is given."""

    def __init__(self, seed: int | None) -> None:
        self._source: NoiseSource = OsEntropy() if seed is None else Seeded(seed)

    def like(self, x: Tensor) -> Tensor:
        """Return float64 noise of the shape and device of ``x``."""
        return torch.from_numpy(self._source.normal((*x.shape,))).to(x.device)


def run_schedule(
    schedule: Schedule, work: Work, network: Network, x: Tensor, noise: _Noise, batch_size: int
) -> Tensor:
    """Return ``x_T`` of a noisy phase on R; the iterates before are not kept."""
    x = clipped(x, schedule.start_radius)
    batches = work.endless("retain", batch_size)
    for _ in range(schedule.steps):
        v = direction(work, network, x, batches)
        x = schedule.contraction * x - schedule.lr * clipped(v, schedule.step_radius)
        x = x + schedule.sigma * noise.like(x)
    return x


def direction(
    work: Work, network: Network, x: Tensor, batches: Iterator[tuple[object, Tensor]]
) -> Tensor:
    """Return the mean gradient of R's next batch at ``x``, float64, without weight decay."""
    network.load(x.to(network.dtype))
    chosen = network.parameters
    loss = work.loss(next(batches))
    slopes = torch.autograd.grad(loss, chosen, allow_unused=True, materialize_grads=True)
    return torch.cat([slope.reshape(-1) for slope in slopes]).double()


def clipped(x: Tensor, radius: float) -> Tensor:
    """Return ``x`` scaled to norm at most ``radius``, rounding included.

    Examples
    --------
    >>> clipped(torch.tensor([3.0, 4.0]), 1.0).norm().item() <= 1.0
    True
    >>> clipped(torch.tensor([0.3, 0.4]), 1.0)
    tensor([0.3000, 0.4000])
    """
    norm = float(x.double().norm())
    if not math.isfinite(norm):
        raise InvalidInput("the model, or its gradient, holds numbers that are not finite")
    if norm <= radius:
        return x
    return x * (radius / norm * (1.0 - 4.0 * torch.finfo(x.dtype).eps))


def split_blocks(network: Network, patterns: tuple[str, ...]) -> list[Network]:
    """Return views of disjoint groups of parameters that together are all of them.

    Raises
    ------
    InvalidInput
        If the patterns leave a parameter out or choose one twice.
    """
    if not patterns:
        owners = dict.fromkeys(name.rpartition(".")[0] for name in network.names)
        groups = [[n for n in network.names if n.rpartition(".")[0] == owner] for owner in owners]
    else:
        groups = [list(view(network.module, pattern).names) for pattern in patterns]
    found = [name for group in groups for name in group]
    if sorted(found) != sorted(network.names):
        wrong = set(network.names).symmetric_difference(found) or {
            n for n in found if found.count(n) > 1
        }
        raise InvalidInput(
            f"blocks must split the parameters, but {sorted(wrong)[0]} is in none, in two, or not "
            "one that may change"
        )
    return [Network(network.module, tuple(group)) for group in groups]


def _reset_buffers(work: Work) -> None:
    """Set running statistics to their initial values, or refuse a model that has them."""
    norms, others = moving_buffers(work.problem)
    if not norms and not others:
        return
    if others or work.problem.buffers != "reestimate":
        raise UnsupportedModel(
            f"training moved the buffer {(others + norms)[0]}, which the guarantee does not cover: "
            "use GroupNorm"
            + ("" if others else ", or Problem(buffers='reestimate') to compute it again from R")
        )
    model = duplicate(work.model).eval()
    for layer in model.modules():
        if isinstance(layer, nn.modules.batchnorm._NormBase):
            layer.reset_running_stats()
    work.replace(model)
