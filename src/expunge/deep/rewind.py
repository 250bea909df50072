"""Rewind to a checkpoint, descend, or shake: gradient descent whose steps can be taken back.

Full-batch descent of the mean objective at a constant rate, in float64. A deletion makes K more
steps on R: from the iterate K before the end (R2D), from the end (D2D), or with noise in every step
(Langevin). Noise and grade follow from `expunge.deep.rewind_bounds`: `certified` for a linear head
on clipped rows, whose constants are computed; `conditional` for anything else. Checkpoints and
unnoised iterates are secrets.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn

from expunge.deep.batches import Batches, as_batches
from expunge.deep.curvature import gradient
from expunge.deep.graphs import Loss
from expunge.deep.network import view
from expunge.deep.renewal import duplicate
from expunge.deep.rewind_bounds import (
    Constants,
    descent_distance,
    head_constants,
    langevin_steps,
    rewind_distance,
)
from expunge.deep.training import cross_entropy
from expunge.errors import InvalidInput
from expunge.gaussian import epsilon_of, mu_of
from expunge.guarantee import Assumption, Grade, Guarantee, Tag, View, grade_of
from expunge.noise import NoiseSource, OsEntropy

ROUNDING = 1e-9
"""Added to every distance, relative to the iterate: float64 in a few thousand steps."""


@dataclass(frozen=True)
class Course:
    """A descent: what determines it but the data.

    Attributes
    ----------
    constants : Constants
        Of the objective; assumed, unless `head_course` computed them.
    radius : float, optional
        X of a softmax head on rows ``‖x‖ ≤ X``, which is checked: the constants are then proved.
    loss : callable
        From outputs and targets of b records to their b losses.
    lr, weight_decay : float
    steps, rewound : int
        T, and K: how far back the stored checkpoint is.
    """

    constants: Constants
    loss: Loss
    lr: float
    weight_decay: float
    steps: int
    rewound: int
    radius: float | None = None

    def __post_init__(self) -> None:
        """Check that the bounds apply."""
        if self.radius is not None and (
            self.loss is not cross_entropy
            or self.constants != head_constants("softmax", self.radius, self.weight_decay)
        ):
            raise InvalidInput(
                "a radius goes with the constants of a softmax head: use head_course"
            )
        if not 0 <= self.rewound <= self.steps:
            raise InvalidInput(f"rewound must be between 0 and {self.steps}, not {self.rewound}")
        if self.constants.convexity is not None:
            rewind_distance(
                self.constants, deleted=1, rows=1, lr=self.lr, steps=self.steps, rewound=0
            )


@dataclass(frozen=True)
class Descended:
    """The end of a course, unnoised, and the checkpoint: secrets, for the holder of the data."""

    course: Course
    rows: int
    end: Tensor = field(repr=False)
    checkpoint: Tensor = field(repr=False)


@dataclass(frozen=True)
class Rewound:
    """A released model, its secret course, and the claim."""

    model: nn.Module
    secret: Descended
    distance: float
    sigma: float
    guarantee: Guarantee
    assumptions: tuple[Assumption, ...]

    @property
    def grade(self) -> Grade:
        """Of the claim."""
        return grade_of(self.guarantee.kind, self.assumptions)


def head_course(radius: float, weight_decay: float, steps: int, rewound: int) -> Course:
    """Return the course of a softmax head, `torch.nn.Linear` on rows of norm at most ``radius``.

    Its constants are computed and the rate is the largest that the bounds allow, 1/L.
    """
    constants = head_constants("softmax", radius, weight_decay)
    lr = (1.0 - 1e-15) / constants.smoothness
    return Course(constants, cross_entropy, lr, weight_decay, steps, rewound, radius)


def descend(model: nn.Module, data: Any, course: Course) -> Descended:
    """Make the T steps on D from the weights of ``model``; it is not changed.

    Raises
    ------
    InvalidInput
        If the course has a radius, and the model is not a linear layer or a row is longer.
    """
    start = view(model).vector().double()
    early = _steps(model, data, course, start, course.steps - course.rewound)
    end = _steps(model, data, course, early, course.rewound)
    return Descended(course, as_batches(data).rows, end, early)


def rewind(
    model: nn.Module,
    secret: Descended,
    retain: Any,
    *,
    epsilon: float,
    delta: float,
    source: NoiseSource | None = None,
) -> Rewound:
    """Make K steps on R from the checkpoint, and publish with noise [Mu and Klabjan, 2025].

    Compared with all T steps on R from the same start plus the same noise. Later deletions start
    from the returned ``secret`` again, whose checkpoint still comes from D: their m must count
    every record deleted so far, which it does, being ``n − |R|``.

    Parameters
    ----------
    retain : data
        R, a part of D.
    source : NoiseSource, optional
        The operating system's entropy, if none is given.

    Raises
    ------
    InvalidInput
        If R is not smaller than D, or the bound is not finite.
    """
    course = secret.course
    end = _steps(model, retain, course, secret.checkpoint, course.rewound)
    deleted = _deleted(secret, retain)
    distance = rewind_distance(
        course.constants,
        deleted=deleted,
        rows=secret.rows,
        lr=course.lr,
        steps=course.steps,
        rewound=course.rewound,
    )
    new = replace(secret, end=end)
    return _release(model, new, distance, deleted, epsilon, delta, source)


def descend_further(
    model: nn.Module,
    secret: Descended,
    retain: Any,
    extra: int,
    *,
    epsilon: float,
    delta: float,
    source: NoiseSource | None = None,
) -> Rewound:
    """Make K' steps on R from the end, and publish with noise [Neel et al., 2021].

    Strongly convex objectives only; compared with T + K' steps on R from the same start.
    """
    course = secret.course
    deleted = _deleted(secret, retain)
    distance = descent_distance(
        course.constants,
        deleted=deleted,
        rows=secret.rows,
        lr=course.lr,
        steps=course.steps,
        extra=extra,
    )
    new = replace(secret, end=_steps(model, retain, course, secret.end, extra))
    return _release(model, new, distance, deleted, epsilon, delta, source)


def langevin(
    model: nn.Module,
    data: Any,
    course: Course,
    sigma: float,
    source: NoiseSource | None = None,
) -> Tensor:
    """Return the end (p,) of T steps that each add ``√(2η)σN(0, I)``; it may be published."""
    noise = source or OsEntropy()
    shake = math.sqrt(2.0 * course.lr) * sigma

    def add(w: Tensor) -> Tensor:
        return w + shake * torch.from_numpy(noise.normal((*w.shape,))).to(w.device)

    return _steps(model, data, course, view(model).vector().double(), course.steps, add)


def langevin_unlearn(
    model: nn.Module,
    published: Tensor,
    retain: Any,
    course: Course,
    sigma: float,
    *,
    rows: int,
    epsilon: float,
    delta: float,
    source: NoiseSource | None = None,
) -> tuple[Tensor, int]:
    """Make the least number of noisy steps on R that meets (ε, δ) [Chien et al., 2024].

    Starts from what was published, so earlier deletions stay covered. Strongly convex only.
    Compared with T + K steps on R from the same start.

    Returns
    -------
    (p,) tensor, to be published, and the number of steps K.
    """
    deleted = rows - as_batches(retain).rows
    extra = langevin_steps(
        course.constants,
        epsilon,
        delta,
        deleted=deleted,
        rows=rows,
        lr=course.lr,
        sigma=sigma,
        steps=course.steps,
    )
    at = duplicate(model)
    view(at).load(published.to(view(at).dtype))
    return langevin(at, retain, replace(course, steps=extra, rewound=0), sigma, source), extra


def backwards(
    model: nn.Module, data: Any, course: Course, end: Tensor, count: int, rounds: int = 200
) -> Tensor:
    """Return the iterate ``count`` steps before ``end``, by solving θ = θ' + η∇L(θ) for each.

    A fixed point of a contraction if ``ηL < 1``; the error grows geometrically with the steps, is
    not part of any bound, and has to be added to the distance. A stored checkpoint has none.
    """
    if not course.lr * course.constants.smoothness < 0.999:
        raise InvalidInput("taking steps back needs lr well below 1/smoothness: store a checkpoint")
    network, w = view(duplicate(model).double()), end.double()
    for _ in range(count):
        guess = w
        for _ in range(rounds):
            slope = gradient(network, course.loss, data, wd=course.weight_decay, at=guess)
            new = w + course.lr * slope
            if bool((new == guess).all()):
                break
            guess = new
        w = guess
    return w


def _steps(
    model: nn.Module,
    data: Any,
    course: Course,
    w: Tensor,
    count: int,
    after: Callable[[Tensor], Tensor] | None = None,
) -> Tensor:
    network = view(duplicate(model).double())
    batches = as_batches(data, device=network.device)
    if course.radius is not None:
        _check_head(model, batches, course.radius)
    for _ in range(count):
        w = w - course.lr * gradient(network, course.loss, batches, wd=course.weight_decay, at=w)
        w = w if after is None else after(w)
    return w


def _check_head(model: nn.Module, batches: Batches, radius: float) -> None:
    if type(model) is not nn.Linear:
        raise InvalidInput(f"a head is a torch.nn.Linear, not {type(model).__name__}")
    for inputs, _ in batches:
        longest = float(inputs.double().norm(dim=1).max())
        if not longest <= radius * (1.0 + 1e-12):
            raise InvalidInput(
                f"a row has norm {longest:.6g}, but the course says at most {radius:g}: clip rows "
                "before training"
            )


def _deleted(secret: Descended, retain: Any) -> int:
    deleted: int = secret.rows - as_batches(retain).rows
    if deleted < 1:
        raise InvalidInput(
            f"the course saw {secret.rows} records and {secret.rows - deleted} are said to be "
            "retained: nothing is deleted"
        )
    return deleted


def _release(
    model: nn.Module,
    secret: Descended,
    distance: float,
    deleted: int,
    epsilon: float,
    delta: float,
    source: NoiseSource | None,
) -> Rewound:
    if not math.isfinite(distance):
        raise InvalidInput(
            "the bound is not finite: without convexity a distance grows exponentially with the "
            "steps before the checkpoint"
        )
    noise = source or OsEntropy()
    distance = distance + ROUNDING * float(secret.end.norm())
    mu = mu_of(epsilon, delta)
    sigma = distance / mu * (1.0 + ROUNDING)
    w = secret.end + sigma * torch.from_numpy(noise.normal((*secret.end.shape,)))
    released = duplicate(model)
    view(released).load(w.to(view(released).dtype))
    constants = Tag.proved if secret.course.radius is not None else Tag.assumed
    assumptions = (
        Assumption("smoothnessAndGradientBound", constants),
        Assumption("fullBatchConstantRate", Tag.enforced),
        Assumption("noiseIndependentOfData", Tag.enforced if noise.production else Tag.assumed),
    )
    guarantee = Guarantee(
        "muGdp", epsilon_of(mu, delta), delta, mu, "record", deleted, 1, View.afterOnly
    )
    return Rewound(released, secret, distance, sigma, guarantee, assumptions)
