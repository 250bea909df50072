"""Torch modules under audit; the only file here that imports torch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor, nn
from torch.nn import functional as F

from expunge.audit.intervals import Array
from expunge.deep.network import evaluating
from expunge.deep.renewal import duplicate
from expunge.errors import InvalidInput

CHUNK = 1024


def answers(model: nn.Module, X: Any) -> Array:
    """Return a module's outputs (n, K) in eval mode, in chunks, as float64."""
    rows = tensor(model, X)
    with evaluating(model), torch.no_grad():
        found = [model(rows[k : k + CHUNK]) for k in range(0, len(rows), CHUNK)]
    return np.asarray(torch.cat(found).double().cpu().numpy())


def tensor(model: nn.Module, X: Any) -> Tensor:
    """Return rows as a tensor of the module's dtype and device."""
    found = X if isinstance(X, Tensor) else torch.as_tensor(np.asarray(X))
    like = next(model.parameters(), torch.zeros(1))
    return found.to(like) if found.is_floating_point() else found.to(like.device)


def input_gradients(model: nn.Module, X: Any, y: ArrayLike) -> Array:
    """Return ``∇_x ℓ`` (n, …) of the cross-entropy at each row."""
    rows = tensor(model, X).clone().requires_grad_()
    labels = torch.as_tensor(np.asarray(y, dtype=np.int64)).to(rows.device)
    with evaluating(model):
        loss = F.cross_entropy(model(rows), labels, reduction="sum")
    (found,) = torch.autograd.grad(loss, rows)
    return np.asarray(found.double().cpu().numpy())


def relearn(
    model: nn.Module,
    X: Any,
    y: ArrayLike,
    reached: Callable[[float, float], bool],
    *,
    lr: float = 1e-2,
    batch: int = 64,
    cap: int = 1000,
    seed: int = 0,
) -> int:
    """Return after how many steps on S alone a copy of the module reaches a criterion.

    SGD without momentum, normalisation in eval mode, no augmentation. The order of batches depends
    on the seed only, so it is the same for all models.

    Parameters
    ----------
    reached : callable
        From the mean loss and the accuracy on S to whether it is enough.
    cap : int
        Also returned if the criterion has not been reached by then (censored).
    """
    copy = duplicate(model)
    rows, labels = tensor(copy, X), torch.as_tensor(np.asarray(y, dtype=np.int64))
    rng = np.random.default_rng(seed)
    with evaluating(copy):
        optimiser = torch.optim.SGD(copy.parameters(), lr=lr)
        order: Sequence[NDArray[Any]] = []
        for step in range(cap):
            if reached(*_state(copy, rows, labels)):
                return step
            if not len(order):
                shuffled = rng.permutation(len(rows))
                order = [shuffled[k : k + batch] for k in range(0, len(rows), batch)]
            picked, order = torch.as_tensor(order[0]), order[1:]
            optimiser.zero_grad()
            loss = F.cross_entropy(copy(rows[picked]), labels[picked].to(rows.device))
            torch.autograd.backward(loss)
            optimiser.step()
    return cap


def _state(model: nn.Module, rows: Tensor, labels: Tensor) -> tuple[float, float]:
    with torch.no_grad():
        found = model(rows)
        loss = float(F.cross_entropy(found.double(), labels.to(found.device)))
        right = float((found.argmax(1) == labels.to(found.device)).double().mean())
    if not np.isfinite(loss):
        raise InvalidInput("relearning diverged: use a smaller learning rate (1e-3)")
    return loss, right


def stacked(first: Any, second: Any) -> Tensor:
    """Return two tensors of rows as one."""
    if not (isinstance(first, Tensor) and isinstance(second, Tensor)):
        raise InvalidInput(
            f"rows must be arrays, sparse matrices, data frames or tensors, not {type(first)}"
        )
    return torch.cat([first, second])
