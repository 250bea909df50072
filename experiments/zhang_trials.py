"""One trial of `experiments.zhang`: a trained network, its retrains, what a release is worth."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from experiments.images import Images
from expunge.deep.curvature import Operator
from expunge.deep.descent import Recipe
from expunge.deep.inverse import cg, lissa
from expunge.deep.measure import f1, mean_loss, membership, relearn_steps, weight_distance
from expunge.deep.methods.zhang import Released, Zhang
from expunge.deep.network import view
from expunge.deep.problem import Evidence, Problem
from expunge.deep.training import cross_entropy, train
from expunge.deep.zhang_bounds import sigma_needed
from expunge.deep.zhang_step import extremes
from expunge.guarantee import Tag

Pair = tuple[Tensor, Tensor]
EPSILON, DELTA = 1.0, 1e-5
CONJUGATE = cg(tol=1e-3)
PUBLISHED = lissa(tol=0.9)
"""10 repeats of 1,000 steps on 10 records; what it leaves unsolved is in the tables."""


@dataclass(frozen=True)
class Case:
    """A network, its data and its training; ``forget`` records are drawn to be forgotten."""

    name: str
    images: Images
    network: Callable[[int], nn.Module]
    recipe: Recipe
    forget: int
    series: lissa = PUBLISHED
    lanczos: int = 80

    @property
    def radius(self) -> float:
        """C."""
        assert self.recipe.max_norm is not None
        return self.recipe.max_norm


@dataclass(frozen=True)
class Trial:
    """What one seed gives before anything is unlearned.

    ``same`` is retrained on R from the same initialisation and order, ``other`` from another seed,
    ``warm`` from the trained model until its loss on R is that of ``same``. ``known`` is the loss
    of the trained model on F, ``ends`` the estimated ends of the spectrum of ``∇²L_R``.
    """

    case: Case
    seed: int
    forget: Pair
    retain: Pair
    unseen: Pair
    trained: nn.Module
    same: nn.Module
    other: nn.Module
    warm: nn.Module
    cold_seconds: float
    warm_seconds: float
    known: float
    ends: tuple[float, float]

    @property
    def wd(self) -> float:
        """Weight decay of the objective."""
        return self.case.recipe.weight_decay

    def operator(self) -> Operator:
        """Return ``∇²L_R`` at the trained model."""
        return Operator("hessian", view(self.trained), cross_entropy, self.retain, wd=self.wd)

    @property
    def smallest(self) -> Evidence:
        """λ_min of ``∇²L_R`` at the trained model, by Lanczos."""
        return Evidence(self.ends[0], Tag.assumed)

    @property
    def damping(self) -> float:
        """λ just above ``‖∇²L_R‖``, as the theorem asks for."""
        return 1.01 * max(map(abs, self.ends))

    def method(self, **options: Any) -> Zhang:
        """Return the method with this damping, if no other is given."""
        chosen = {"damping": self.damping, "smallest": self.smallest, **options}
        return Zhang(**chosen)

    @property
    def test(self) -> Pair:
        """The test set."""
        return self.case.images.X_test, self.case.images.y_test

    def problem(self) -> Problem:
        """Return what a method is given."""
        return Problem(
            self.trained,
            cross_entropy,
            self.forget,
            self.retain,
            train=replace(self.case.recipe, seed=self.seed),
            seed=self.seed,
            trained_ids=range(len(self.case.images.y)),
            forget_ids=range(len(self.forget[1])),
            retain_ids=range(len(self.forget[1]), len(self.case.images.y)),
        )


def split(case: Case, seed: int) -> tuple[Pair, Pair, Pair]:
    """Return F, R, and as many test records as F has, class by class, as far as there are."""
    images = case.images
    order = torch.from_numpy(np.random.default_rng(seed).permutation(len(images.y)))
    gone, kept = order[: case.forget], order[case.forget :]
    unseen = []
    for label, count in zip(*images.y[gone].unique(return_counts=True), strict=True):
        unseen.append(torch.nonzero(images.y_test == label)[: int(count), 0])
    chosen = torch.cat(unseen)
    return (
        (images.X[gone], images.y[gone]),
        (images.X[kept], images.y[kept]),
        (images.X_test[chosen], images.y_test[chosen]),
    )


def prepare(case: Case, seed: int) -> Trial:
    """Train on D, retrain on R three times."""
    forget, retain, unseen = split(case, seed)
    recipe, everything = replace(case.recipe, seed=seed), _joined(forget, retain)
    trained = train(case.network(seed), everything, recipe)
    began = time.perf_counter()
    same = train(case.network(seed), retain, recipe)
    cold = time.perf_counter() - began
    other = train(case.network(seed + 1000), retain, replace(recipe, seed=seed + 1000))
    warm, seconds = warmed(trained, retain, recipe, mean_loss(same, retain))
    known = mean_loss(trained, forget)
    parts = (forget, retain, unseen)
    network, wd = view(trained), recipe.weight_decay
    ends = extremes(Operator("hessian", network, cross_entropy, retain, wd=wd), case.lanczos)[:2]
    return Trial(case, seed, *parts, trained, same, other, warm, cold, seconds, known, ends)


def warmed(
    model: nn.Module, retain: Pair, recipe: Recipe, target: float
) -> tuple[nn.Module, float]:
    """Train on R from a trained model until its loss is ``target``.

    From one epoch to those of the recipe; the time of looking at the loss does not count.
    """
    seconds = 0.0
    for epoch in range(recipe.epochs):
        began = time.perf_counter()
        model = train(model, retain, replace(recipe, epochs=1, seed=recipe.seed + epoch))
        seconds += time.perf_counter() - began
        if mean_loss(model, retain) <= target:
            break
    return model, seconds


def _joined(forget: Pair, retain: Pair) -> Pair:
    return torch.cat([forget[0], retain[0]]), torch.cat([forget[1], retain[1]])


@dataclass(frozen=True)
class Row:
    """What one model is worth. Times are in seconds, distances those of all weights.

    ``seconds`` is what the paper counts, gradient and solver; ``total`` all that was done, the
    check of the curvature included.
    """

    name: str
    retain: float
    forget: float
    test: float
    attack: float
    auc: float
    low: float
    high: float
    relearn: float
    seconds: float
    total: float
    cold: float
    warm: float
    moved: float
    to_same: float
    to_other: float
    implied: float


def judged(
    trial: Trial,
    name: str,
    model: nn.Module,
    seconds: float = math.nan,
    total: float = math.nan,
    implied: float = math.nan,
    cap: int = 200,
) -> Row:
    """Measure a model."""
    attack = membership(model, trial.forget, trial.unseen, seed=trial.seed)
    relearned = relearn_steps(model, trial.forget, 1.05 * trial.known, cap=cap, orders=1)
    return Row(
        name,
        f1(model, trial.retain),
        f1(model, trial.forget),
        f1(model, trial.test),
        attack.accuracy,
        attack.auc,
        attack.low,
        attack.high,
        relearned.median,
        seconds,
        total,
        trial.cold_seconds / seconds,
        trial.warm_seconds / seconds,
        weight_distance(model, trial.trained),
        weight_distance(model, trial.same),
        weight_distance(model, trial.other),
        implied,
    )


def release(trial: Trial, name: str, method: Zhang) -> Row:
    """Unlearn and measure."""
    found = method.unlearn(trial.problem())
    return judged(
        trial, name, found.model, found.evidence["stepSeconds"].value, found.seconds, worth(found)
    )


def worth(found: Released) -> float:
    """Return the ε that the noise of a release really gives."""
    return math.inf if found.account is None else found.account.implied


def rows(trial: Trial) -> list[Row]:
    """Return the main table of one seed."""
    needed = sigma_needed(2 * trial.case.radius, EPSILON, DELTA)
    found = [
        judged(trial, "before", trial.trained),
        judged(trial, "retrain", trial.same, trial.cold_seconds, trial.cold_seconds, 0.0),
        judged(trial, "retrain, other seed", trial.other),
        judged(trial, "retrain, warm", trial.warm, trial.warm_seconds, trial.warm_seconds),
    ]
    for gradient in ("retained", "forget"):
        for name, solver in (("LiSSA", trial.case.series), ("CG", CONJUGATE)):
            method = trial.method(gradient=gradient, solver=solver)
            found.append(release(trial, f"Zhang, {gradient} gradient, {name}", method))
    certified = trial.method(solver=CONJUGATE, sigma=needed)
    found.append(release(trial, "Zhang, certified noise", certified))
    zero = view(train(trial.trained, trial.retain, Recipe(epochs=0)))
    noise = torch.randn(zero.size, generator=torch.Generator().manual_seed(trial.seed))
    zero.load(needed * noise)
    return [*found, judged(trial, "null control: that noise alone", zero.module)]


@dataclass(frozen=True)
class Inverse:
    """Seconds of a whole inverse against one solution; ``columns`` products were timed for it."""

    parameters: int
    columns: int
    exact: float
    series: float
    conjugate: float


def inverse_times(trial: Trial, columns: int = 32, side: int = 2000) -> Inverse:
    """Time LiSSA and CG, and estimate the exact inverse: p products and a Cholesky factor.

    Where p is larger than what is measured, products are extrapolated by p and the factor by p³.
    """
    problem = trial.problem()
    spent = [
        trial.method(solver=solver).unlearn(problem).evidence["stepSeconds"].value
        for solver in (trial.case.series, CONJUGATE)
    ]
    operator = trial.operator()
    p = operator.size
    count, side = max(1, min(columns, p, 2**26 // p)), min(side, p)
    unit = torch.zeros(p, count, dtype=operator.dtype)
    unit.diagonal().fill_(1.0)
    operator(unit[:, :1])
    began = time.perf_counter()
    operator(unit)
    products = (time.perf_counter() - began) * p / count
    square = torch.randn(side, side, dtype=torch.float64)
    square = square @ square.T + side * torch.eye(side, dtype=torch.float64)
    began = time.perf_counter()
    torch.cholesky_inverse(torch.linalg.cholesky(square))
    factor = (time.perf_counter() - began) * (p / side) ** 3
    return Inverse(p, count, products + factor, *spent)
