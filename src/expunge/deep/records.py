"""Gradients and Jacobians of single records, and the diagonals of the Fisher matrices from them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Literal, get_args

import torch
from torch import Tensor

from expunge.deep.graphs import Loss, label_factors, pull
from expunge.deep.network import Network
from expunge.deep.objective import Objective
from expunge.deep.trees import Batch, cut, map_tree
from expunge.errors import InvalidInput

Diagonal = Literal["fisher_empirical", "fisher_true", "batch_grad_sq"]


def record_gradients(
    network: Network,
    loss: Loss,
    batches: Any,
    *,
    at: Tensor | None = None,
    chunk: int | None = None,
) -> Iterator[Tensor]:
    """Yield ``∇ℓ_i`` (b, p) of the records in their order, b at a time, without weight decay.

    Parameters as in `expunge.deep.curvature.product`; ``chunk`` defaults to what fits the memory.
    """
    o = Objective(network, loss, batches, at=at)
    yield from _per_chunk(o, chunk, lambda batch: _gradients(o, batch), 1)


def record_jacobians(
    network: Network, batches: Any, *, at: Tensor | None = None, chunk: int | None = None
) -> Iterator[Tensor]:
    """Yield ``J_i = ∂f_i/∂w`` (b, c, p) of the records in their order, b at a time."""
    o = Objective(network, lambda f, _: f.reshape(len(f), -1).sum(1), batches, at=at)
    outputs = _outputs(o, next(iter(o.batches)))
    unit = torch.eye(outputs[0].numel(), dtype=outputs.dtype, device=outputs.device)
    factors = unit.reshape(1, -1, *outputs.shape[1:])
    yield from _per_chunk(
        o,
        chunk,
        lambda batch: _pulled(o, batch, factors.expand(len(batch[1]), *factors.shape[1:])),
        len(unit),
    )


def diagonal(
    kind: Diagonal,
    network: Network,
    loss: Loss,
    batches: Any,
    *,
    wd: float = 0.0,
    at: Tensor | None = None,
    chunk: int | None = None,
) -> Tensor:
    """Return a diagonal (p,), summed in float64; parameters as in `expunge.deep.curvature.product`.

    Parameters
    ----------
    kind : {"fisher_empirical", "fisher_true", "batch_grad_sq"}
        The diagonal of the matrix of that name (``wd`` included). ``batch_grad_sq`` is neither: the
        mean over the loader's batches of the squared gradient of their mean loss. It depends on how
        the loader cuts them, and is here because Selective Synaptic Dampening was published with
        it [Foster et al., 2024].
    """
    if kind not in get_args(Diagonal):
        raise InvalidInput(f"kind must be one of {', '.join(get_args(Diagonal))}, not {kind!r}")
    o = Objective(network, loss, batches, wd=wd, at=at)
    total = torch.zeros(len(o.at), dtype=torch.float64, device=o.at.device)
    if kind == "batch_grad_sq":
        count = 0
        with o.still():
            for batch in o.batches:
                total += (o.slope(batch).double() / len(batch[1])) ** 2
                count += 1
        return (total / count + o.wd).to(o.at.dtype)
    if kind == "fisher_empirical":
        for found in _per_chunk(o, chunk, lambda batch: _gradients(o, batch), 1):
            total += (found.double() ** 2).sum(0)
    else:
        labels = _factors(o, next(iter(o.batches))).shape[1]
        pulled = _per_chunk(o, chunk, lambda b: _pulled(o, b, _factors(o, b)), labels)
        for found in pulled:
            total += (found.double() ** 2).sum((0, 1))
    return (total / o.batches.rows + o.wd).to(o.at.dtype)


def _per_chunk(
    o: Objective, chunk: int | None, work: Callable[[Batch], Tensor], each: int
) -> Iterator[Tensor]:
    record = 3 * each * len(o.at) * o.at.element_size()
    with o.still():
        for batch in o.batches.chunks(o.chunk(record, chunk)):
            yield work(batch).detach()


def _gradients(o: Objective, batch: Batch) -> Tensor:
    def one(weights: Tensor, inputs: Any, target: Tensor) -> Tensor:
        return o.losses(weights, _single(inputs, target))[0]

    try:
        return _vectorised(torch.func.grad(one), o, batch)
    except torch.OutOfMemoryError:
        raise
    except RuntimeError:  # an operation without a batching rule
        return torch.stack([o.slope(record) for record in _singles(batch)])


def _pulled(o: Objective, batch: Batch, factors: Tensor) -> Tensor:
    """Return ``J_iᵀ`` times each of the record's factors: (b, K, …) to (b, K, p)."""

    def one(weights: Tensor, inputs: Any, factor: Tensor) -> Tensor:
        single = map_tree(lambda t: t[None], inputs)
        back = torch.func.vjp(lambda w: o.network.outputs(w, single)[0], weights)[1]
        found: Tensor = torch.func.vmap(lambda c: back(c)[0])(factor)
        return found

    try:
        return _vectorised(one, o, (batch[0], factors))
    except torch.OutOfMemoryError:
        raise
    except RuntimeError:
        found = []
        for inputs, factor in _singles((batch[0], factors)):
            leaf = o.at.detach().requires_grad_()
            outputs = o.network.outputs(leaf, inputs)
            found.append(pull(outputs, leaf, factor[0][:, None], together=False))
        return torch.stack(found)


def _vectorised(one: Callable[..., Tensor], o: Objective, batch: Batch) -> Tensor:
    found: Tensor = torch.func.vmap(one, in_dims=(None, 0, 0))(o.at, *batch)
    return found


def _single(inputs: Any, target: Tensor) -> Batch:
    return map_tree(lambda t: t[None], inputs), target[None]


def _singles(batch: Batch) -> Iterator[Batch]:
    for i in range(len(batch[1])):
        yield cut(batch, i, i + 1)


def _outputs(o: Objective, batch: Batch) -> Tensor:
    with o.still(), torch.no_grad():
        outputs: Tensor = o.network.outputs(o.at, batch[0])
    return outputs


def _factors(o: Objective, batch: Batch) -> Tensor:
    targets = batch[1].to(o.at.dtype) if batch[1].is_floating_point() else batch[1]
    return label_factors(o.loss, _outputs(o, batch), targets)
