"""Small deletion problems and plain torch to check methods by: vectors, gradients, optimisers."""

from __future__ import annotations

from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import nn

from expunge.deep.descent import Recipe
from expunge.deep.network import view
from expunge.deep.problem import Problem
from expunge.deep.training import cross_entropy, train_logged

ROWS, GONE = 72, 8
RECIPE = Recipe(lr=0.02, epochs=4, batch_size=16, weight_decay=1e-3)


def rows(classes=3, dtype=torch.float64):
    """Return 72 records of six features in two or three classes."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(ROWS, 6, generator=generator, dtype=dtype)
    return x, (x[:, 0] > 0).long() + (x[:, 1] > 0.5).long() * (classes == 3)


def net(classes=3, dtype=torch.float64):
    """Return an untrained MLP."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        made = nn.Sequential(nn.Linear(6, 10), nn.Tanh(), nn.Linear(10, classes))
    return made.to(dtype)


def problem(classes=3, dtype=torch.float64, *, model=None, params=None, **options):
    """Return a problem whose first eight records are to be forgotten."""
    x, y = rows(classes, dtype)
    start = net(classes, dtype) if model is None else model
    trained, log = train_logged(start, (x, y), RECIPE, sensitive=range(GONE), params=params)
    given = {
        "train": RECIPE,
        "stored": log,
        "trained_ids": list(range(ROWS)),
        "forget_ids": list(range(GONE)),
        "retain_ids": list(range(GONE, ROWS)),
        "params": params,
        **options,
    }
    return Problem(trained, cross_entropy, (x[:GONE], y[:GONE]), (x[GONE:], y[GONE:]), **given)


def of_a_class(task):
    """Return the same problem with F the records of class 2."""
    whole = [
        torch.cat(pair) for pair in zip(part(task, "forget"), part(task, "retain"), strict=True)
    ]
    gone = whole[1] == 2
    where = torch.arange(len(gone))
    return replace(
        task,
        forget=(whole[0][gone], whole[1][gone]),
        retain=(whole[0][~gone], whole[1][~gone]),
        forget_ids=where[gone].tolist(),
        retain_ids=where[~gone].tolist(),
    )


def part(task, which):
    """Return all inputs and all targets of F or R."""
    (batch,) = getattr(task, which).chunks(10_000)
    return batch


def bits(model):
    """Return copies of all parameters and buffers."""
    return {name: t.clone() for name, t in model.state_dict().items()}


def same(a, b):
    """Whether two such copies agree in every bit."""
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


def vector(model):
    """Return all parameters in one vector."""
    return torch.cat([p.detach().reshape(-1) for p in model.parameters()])


def outputs(w, x, classes=3):
    """Return the logits of `net` for a vector of its parameters, written down."""
    a, b, c, d = torch.split(w, [60, 10, 10 * classes, classes])
    return torch.tanh(x @ a.reshape(10, 6).T + b) @ c.reshape(classes, 10).T + d


def ce(w, batch, classes=3):
    """Return the mean cross-entropy of a batch for a vector of parameters."""
    return F.cross_entropy(outputs(w, batch[0], classes), batch[1])


def kl(w, w0, x, temperature=1.0, classes=3):
    """Return T² times the mean divergence of teacher ``w0`` from student ``w``."""
    student = F.log_softmax(outputs(w, x, classes) / temperature, 1)
    teacher = F.softmax(outputs(w0, x, classes) / temperature, 1)
    return F.kl_div(student, teacher, reduction="batchmean") * temperature**2


def slope(f, w):
    """Return ∇f(w)."""
    return torch.autograd.functional.jacobian(f, w)


class Adam:
    """Adam with weight decay in the gradient, written down."""

    def __init__(self, wd=0.0):
        self.wd, self.m, self.v, self.t = wd, 0.0, 0.0, 0

    def step(self, w, g, lr):
        """Return the next weights."""
        g = g + self.wd * w
        self.t += 1
        self.m, self.v = 0.9 * self.m + 0.1 * g, 0.999 * self.v + 0.001 * g * g
        m, v = self.m / (1 - 0.9**self.t), self.v / (1 - 0.999**self.t)
        return w - lr * m / (v.sqrt() + 1e-8)


class Sgd:
    """SGD with momentum and weight decay in the gradient, written down."""

    def __init__(self, momentum=0.0, wd=0.0):
        self.momentum, self.wd, self.b = momentum, wd, 0.0

    def step(self, w, g, lr):
        """Return the next weights."""
        self.b = self.momentum * self.b + g + self.wd * w
        return w - lr * self.b


def start(task):
    """Return the trained weights (p,)."""
    return view(task.model).vector()
