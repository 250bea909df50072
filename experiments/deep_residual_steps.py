"""The steps of `experiments.deep_residual`: networks stopped early, steps from them, polishing."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from scipy.optimize import minimize
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn import functional

from expunge.deep.curvature import Operator
from expunge.deep.network import view

SAFE = 1.05
"""λ/|λ_min| from which the damped Hessian is positive definite with something to spare."""


@dataclass(frozen=True)
class Plan:
    """How much is run."""

    epochs: tuple[int, ...] = (5, 20, 100, 400)
    ratios: tuple[float, ...] = (
        0.1,
        0.3,
        0.55,
        0.8,
        0.95,
        1.06,
        1.3,
        2.0,
        5.0,
        20.0,
        100.0,
        1000.0,
    )
    seeds: tuple[int, ...] = (0, 1, 2)
    width: int = 16
    rows: int | None = None
    polish: int = 500
    decays: tuple[float, ...] = (1e-2, 5e-2)
    strong_epochs: int = 100


QUICK = Plan((2, 5), (0.5, 1.06, 10.0), (0,), 4, 300, 50, (1e-2,), 3)


@dataclass(frozen=True)
class Data:
    """Digits in [0, 1]: what is trained on, which of it to forget, and a test set."""

    X: Tensor
    y: Tensor
    X_test: Tensor
    y_test: Tensor
    forget: Tensor

    @property
    def kept(self) -> tuple[Tensor, Tensor]:
        """What is retained."""
        return self.X[~self.forget], self.y[~self.forget]

    @property
    def gone(self) -> tuple[Tensor, Tensor]:
        """What is to be forgotten."""
        return self.X[self.forget], self.y[self.forget]


@dataclass(frozen=True)
class Outcome:
    """One way to take a step from one start.

    ``local`` is the distance to the local retrain, ``same`` that to a retrain with the same
    schedule and initialisation, both in units of the distance before the step.
    """

    seed: int
    epochs: int
    handling: str
    ratio: float
    damping: float
    step: float
    slope: float
    test: float
    retain: float
    forget: float
    local: float
    same: float


@dataclass(frozen=True)
class Start:
    """A trained network with what its steps need; ``w`` (p,), ``basis`` (p, p)."""

    seed: int
    epochs: int
    w: Tensor
    residual: Tensor
    forget: Tensor
    values: Tensor
    basis: Tensor
    local: Tensor
    same: Tensor
    other: Tensor

    @property
    def smallest(self) -> float:
        """λ_min of ∇²L_R."""
        return float(self.values[0])

    def step(self, damping: float, *, keep: bool) -> Tensor:
        """Return (H_R + λI)⁻¹ applied to the forget part, and to the residual part if ``keep``."""
        pull = self.forget - self.residual if keep else self.forget
        return self.basis @ ((self.basis.T @ pull) / (self.values + damping))


def digits(plan: Plan, seed: int, share: float | None = 0.1) -> Data:
    """Split the digits 80:20; forget a share of the training set, or class 0 if None."""
    X, y = (torch.from_numpy(a) for a in load_digits(return_X_y=True))
    order = torch.from_numpy(np.random.default_rng(seed).permutation(len(y)))[: plan.rows]
    cut = int(0.8 * len(order))
    train, test = order[:cut], order[cut:]
    forget = y[train] == 0
    if share is not None:
        forget = torch.arange(cut) < round(share * cut)
    return Data(X[train] / 16, y[train], X[test] / 16, y[test], forget)


class Model:
    """A 64-w-10 tanh network as a function of its weights, in float64."""

    def __init__(self, width: int, seed: int) -> None:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            layers = nn.Sequential(nn.Linear(64, width), nn.Tanh(), nn.Linear(width, 10))
        self.net = view(layers.double())
        self.w = self.net.vector()

    def accuracy(self, w: Tensor, X: Tensor, y: Tensor) -> float:
        """Return how many per cent are right."""
        return 100 * float((self.net.outputs(w, X).argmax(1) == y).double().mean())

    def gradient(self, w: Tensor, X: Tensor, y: Tensor, wd: float) -> tuple[float, Tensor]:
        """Return L and ∇L."""
        leaf = w.detach().requires_grad_()
        value = functional.cross_entropy(self.net.outputs(leaf, X), y) + wd / 2 * leaf @ leaf
        (slope,) = torch.autograd.grad(value, leaf)
        return float(value.detach()), slope

    def train(self, X: Tensor, y: Tensor, epochs: int, wd: float, seed: int) -> Tensor:
        """Return the weights after Adam, rate 2e-3, batches of 128."""
        generator = torch.Generator().manual_seed(seed)
        w = self.w.clone().requires_grad_()
        adam = torch.optim.Adam([w], 2e-3)
        for _ in range(epochs):
            for index in torch.randperm(len(y), generator=generator).split(128):
                w.grad = self.gradient(w, X[index], y[index], wd)[1]
                adam.step()
        return w.detach()

    def polish(self, w: Tensor, X: Tensor, y: Tensor, wd: float, limit: int) -> Tensor:
        """Go on from ``w`` with L-BFGS on all rows, to ‖∇L‖ ≤ 1e-8 or ``limit`` iterations."""

        def both(v: np.ndarray) -> tuple[float, np.ndarray]:
            value, slope = self.gradient(torch.from_numpy(v), X, y, wd)
            return value, slope.numpy()

        options = {"maxiter": limit, "maxfun": 4 * limit, "gtol": 2e-10, "ftol": 0, "maxcor": 30}
        found = minimize(both, w.numpy().copy(), jac=True, method="L-BFGS-B", options=options)
        return torch.from_numpy(found.x)

    def curvature(self, w: Tensor, X: Tensor, y: Tensor, wd: float) -> tuple[Tensor, Tensor]:
        """Return eigenvalues, ascending, and eigenvectors of the Hessian."""
        loss = nn.CrossEntropyLoss(reduction="none")
        matrix = Operator("hessian", self.net, loss, (X, y), wd=wd, at=w).dense()
        values, basis = torch.linalg.eigh(matrix)
        return values, basis


def parts(model: Model, data: Data, w: Tensor, wd: float) -> tuple[Tensor, Tensor]:
    """Return the residual part (n/(n−m))∇L_D and the forget part (m/(n−m))∇L_F."""
    n, m = len(data.y), int(data.forget.sum())
    whole = model.gradient(w, data.X, data.y, wd)[1]
    gone = model.gradient(w, *data.gone, wd)[1]
    return n / (n - m) * whole, m / (n - m) * gone


def start(model: Model, data: Data, epochs: int, plan: Plan, seed: int) -> Start:
    """Train, and find everything that the steps and the distances need."""
    w = model.train(data.X, data.y, epochs, 0.0, seed)
    elsewhere = Model(plan.width, seed + 1000)
    return Start(
        seed,
        epochs,
        w,
        *parts(model, data, w, 0.0),
        *model.curvature(w, *data.kept, 0.0),
        model.polish(w, *data.kept, 0.0, plan.polish),
        model.train(*data.kept, epochs, 0.0, seed),
        elsewhere.train(*data.kept, epochs, 0.0, seed + 1000),
    )


def calibrate(model: Model, data: Data, w: Tensor, seed: int) -> Tensor:
    """R3: two SGD steps, rate 0.05, on 1 % of what is retained."""
    X, y = data.kept
    generator = torch.Generator().manual_seed(seed)
    for _ in range(2):
        index = torch.randperm(len(y), generator=generator)[: max(1, len(y) // 100)]
        w = w - 0.05 * model.gradient(w, X[index], y[index], 0.0)[1]
    return w


def outcomes(model: Model, data: Data, at: Start, plan: Plan) -> Iterator[Outcome]:
    """Yield every handling at every damping, and the model as it was."""
    yield measure(model, data, at, "before", 0.0, at.w)
    for ratio in plan.ratios:
        damping = ratio * abs(at.smallest)
        short = at.w + at.step(damping, keep=False)
        yield measure(model, data, at, "left out", ratio, short)
        yield measure(model, data, at, "kept (R2)", ratio, at.w + at.step(damping, keep=True))
        mended = calibrate(model, data, short, at.seed)
        yield measure(model, data, at, "left out, calibrated (R3)", ratio, mended)


def measure(model: Model, data: Data, at: Start, handling: str, ratio: float, w: Tensor) -> Outcome:
    """Return what one vector of weights is worth."""
    local, same = (float((w - to).norm() / (at.w - to).norm()) for to in (at.local, at.same))
    return Outcome(
        at.seed,
        at.epochs,
        handling,
        ratio,
        ratio * abs(at.smallest),
        float((w - at.w).norm()),
        float(model.gradient(w, *data.kept, 0.0)[1].norm()),
        model.accuracy(w, data.X_test, data.y_test),
        model.accuracy(w, *data.kept),
        model.accuracy(w, *data.gone),
        local,
        same,
    )


@dataclass(frozen=True)
class Strong:
    """R1 for one weight decay and one forget set: what polishing brings."""

    decay: float
    forgotten: str
    floor: float
    polished: float
    price: float
    left: tuple[float, ...]
    other: float


def strong(plan: Plan, decay: float, share: float | None, seed: int) -> Strong:
    """Train with weight decay, polish on D, step without the residual, compare with polishing on R.

    ``left`` is the remaining distance to the local retrain for λ ≈ 0, 0.01 and λ_max, in per cent.
    """
    data = digits(plan, seed, share)
    model, elsewhere = Model(plan.width, seed), Model(plan.width, seed + 1000)
    plain = model.train(data.X, data.y, plan.strong_epochs, 0.0, seed)
    rough = model.train(data.X, data.y, plan.strong_epochs, decay, seed)
    limit = 10 * plan.polish
    w = model.polish(rough, data.X, data.y, decay, limit)
    local = model.polish(w, *data.kept, decay, limit)
    far = elsewhere.train(*data.kept, plan.strong_epochs, decay, seed + 1000)
    far = elsewhere.polish(far, *data.kept, decay, limit)
    values, basis = model.curvature(w, *data.kept, decay)
    pull = basis.T @ parts(model, data, w, decay)[1]
    nothing = max(0.0, -SAFE * float(values[0])) + 1e-6
    left = []
    for damping in (nothing, 0.01, float(values[-1])):
        there = w + basis @ (pull / (values + damping))
        left.append(100 * float((there - local).norm() / (w - local).norm()))
    test = data.X_test, data.y_test
    return Strong(
        decay,
        "a class" if share is None else f"{share:.0%}",
        float(model.gradient(rough, data.X, data.y, decay)[1].norm()),
        float(model.gradient(w, data.X, data.y, decay)[1].norm()),
        model.accuracy(plain, *test) - model.accuracy(w, *test),
        tuple(left),
        float((far - w).norm() / (local - w).norm()),
    )


def run(plan: Plan) -> tuple[list[Start], list[Outcome], list[Strong]]:
    """Return everything that is reported."""
    starts, found = [], []
    for seed in plan.seeds:
        model, data = Model(plan.width, seed), digits(plan, seed)
        for epochs in plan.epochs:
            starts.append(start(model, data, epochs, plan, seed))
            found += outcomes(model, data, starts[-1], plan)
    shares = (0.01, 0.1, None)
    return starts, found, [strong(plan, wd, share, 0) for wd in plan.decays for share in shares]
