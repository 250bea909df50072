"""Small networks of many forms, and their curvature written down densely, without `expunge`."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

CE = partial(F.cross_entropy, reduction="none")


def half_square(outputs, targets):
    """Return ½(f − y)², one per record."""
    return (outputs - targets) ** 2 / 2


class Block(nn.Module):
    """Attention over five tokens, pooled."""

    def __init__(self):
        super().__init__()
        self.layer = nn.TransformerEncoderLayer(4, 2, 6, 0.1, F.gelu, batch_first=True)
        self.head = nn.Linear(4, 3)

    def forward(self, x):
        """Return logits (b, 3)."""
        return self.head(self.layer(x).mean(1))


class Words(nn.Module):
    """Embedding with tied weights, a frozen scale, and a parameter that nothing uses."""

    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(7, 4)
        self.inner = nn.Linear(4, 4)
        self.out = nn.Linear(4, 7, bias=False)
        self.out.weight = self.table.weight
        self.scale = nn.Parameter(torch.tensor(1.5), requires_grad=False)
        self.idle = nn.Parameter(torch.ones(2))

    def forward(self, ids, mask):
        """Return logits (b, 7)."""
        weights = mask / mask.sum(1, keepdim=True)
        pooled = (self.table(ids) * weights[..., None]).sum(1)
        return self.out(torch.tanh(self.scale * self.inner(pooled)))


class Bilinear(nn.Module):
    """Two inputs, one number (b,)."""

    def __init__(self):
        super().__init__()
        self.left, self.right = nn.Linear(3, 4), nn.Linear(2, 4)

    def forward(self, a, b):
        """Return (b,) scores."""
        return (torch.tanh(self.left(a)) * torch.tanh(self.right(b))).sum(1)


@dataclass(frozen=True)
class Case:
    """A module in eval mode with eleven records."""

    module: nn.Module
    inputs: Any
    targets: torch.Tensor
    loss: Any

    @property
    def data(self):
        """The pair (inputs, targets)."""
        return self.inputs, self.targets


def mlp(dtype=torch.float64, seed=0):
    """Return a tanh MLP, p = 43."""
    torch.manual_seed(seed)
    net = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3))
    return Case(net.to(dtype).eval(), torch.randn(11, 4).to(dtype), torch.arange(11) % 3, CE)


def cnn(dtype=torch.float64):
    """Return a CNN with GroupNorm and a frozen BatchNorm."""
    torch.manual_seed(1)
    net = nn.Sequential(
        nn.Conv2d(2, 4, 3, padding=1),
        nn.GroupNorm(2, 4),
        nn.Tanh(),
        nn.Conv2d(4, 3, 3, stride=2),
        nn.BatchNorm2d(3),
        nn.Softplus(),
        nn.Flatten(),
        nn.Linear(12, 3),
    )
    net[4].running_mean.uniform_(-1, 1)
    net[4].running_var.uniform_(0.5, 2)
    return Case(net.to(dtype).eval(), torch.randn(11, 2, 5, 5).to(dtype), torch.arange(11) % 3, CE)


def attention(dtype=torch.float64):
    """Return a transformer's encoder layer with a head."""
    torch.manual_seed(2)
    net = Block().to(dtype).eval()
    return Case(net, torch.randn(11, 5, 4).to(dtype), torch.arange(11) % 3, CE)


def words(dtype=torch.float64):
    """Return an embedding with inputs passed by keyword."""
    torch.manual_seed(3)
    mask = torch.ones(11, 5)
    mask[::2, 3:] = 0
    inputs = {"ids": torch.randint(7, (11, 5)), "mask": mask.to(dtype)}
    return Case(Words().to(dtype).eval(), inputs, torch.arange(11) % 7, CE)


def scores(dtype=torch.float64):
    """Return a regression with two inputs and outputs (b,)."""
    torch.manual_seed(4)
    inputs = torch.randn(11, 3).to(dtype), torch.randn(11, 2).to(dtype)
    return Case(Bilinear().to(dtype).eval(), inputs, torch.randn(11).to(dtype), half_square)


CASES = {"mlp": mlp, "cnn": cnn, "attention": attention, "words": words, "scores": scores}


class Dense:
    """Every matrix of a case in full, by nested autograd on all records at once."""

    def __init__(self, case: Case):
        free = [(k, p) for k, p in case.module.named_parameters() if p.requires_grad]
        self.case, self.names = case, [name for name, _ in free]
        self.shapes = [parameter.shape for _, parameter in free]
        self.w = torch.cat([parameter.detach().flatten() for _, parameter in free])

    def outputs(self, w):
        """Return f_w of all records."""
        pieces = torch.split(w, [shape.numel() for shape in self.shapes])
        state = {
            name: piece.reshape(shape)
            for name, piece, shape in zip(self.names, pieces, self.shapes, strict=True)
        }
        inputs = self.case.inputs
        with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
            if isinstance(inputs, dict):
                return torch.func.functional_call(self.case.module, state, (), inputs)
            args = inputs if isinstance(inputs, tuple) else (inputs,)
            return torch.func.functional_call(self.case.module, state, args)

    def losses(self, w):
        """Return ℓ_i, all records."""
        return self.case.loss(self.outputs(w), self.case.targets)

    def mean(self, w):
        """Return L without weight decay."""
        return self.losses(w).mean()

    def gradient(self):
        """Return ∇L."""
        return torch.autograd.functional.jacobian(self.mean, self.w)

    def jacobian(self):
        """Return (n, c, p)."""
        J = torch.autograd.functional.jacobian(self.outputs, self.w)
        return J.reshape(len(J), -1, len(self.w))

    def matrix(self, kind):
        """Return a curvature matrix (p, p)."""
        return getattr(self, kind)()

    def hessian(self):
        """Return ∇²L."""
        return torch.autograd.functional.hessian(self.mean, self.w)

    def ggn(self):
        """Return the mean of JᵀHJ."""
        f = self.outputs(self.w).detach()
        total = torch.zeros(len(self.w), len(self.w), dtype=f.dtype)
        for i, J in enumerate(self.jacobian()):
            one = partial(self._loss_of_one, target=self.case.targets[i : i + 1])
            H = torch.autograd.functional.hessian(one, f[i].reshape(-1))
            total += J.T @ H @ J
        return total / len(f)

    def _loss_of_one(self, f, target):
        wide = f.reshape(1, -1) if self.case.loss is CE else f
        return self.case.loss(wide, target)[0]

    def fisher_empirical(self):
        """Return the mean of the records' ∇ℓ∇ℓᵀ."""
        g = torch.autograd.functional.jacobian(self.losses, self.w)
        return g.T @ g / len(g)

    def fisher_true(self):
        """Return the mean of Σ_k q_k ∇ℓ(k)∇ℓ(k)ᵀ, for cross-entropy."""
        q = torch.softmax(self.outputs(self.w).detach(), 1)
        total = torch.zeros(len(self.w), len(self.w), dtype=q.dtype)
        for k in range(q.shape[1]):
            label = torch.full_like(self.case.targets, k)
            g = torch.autograd.functional.jacobian(
                lambda w, label=label: CE(self.outputs(w), label), self.w
            )
            total += (q[:, k, None] * g).T @ g
        return total / len(q)


def relative(a, b):
    """Return ‖a − b‖/‖b‖."""
    a, b = a.detach().double(), b.detach().double()
    return float((a - b).norm() / b.norm())
