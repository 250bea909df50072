"""The curvature of one chunk of records as a graph: built once, applied to any number of vectors.

The second derivative of a sum is one backward pass through the graph of its gradient. Keeping that
graph makes a product about as dear as a gradient; building it anew costs twice as much again, as
forward over reverse does. Everything here is a *sum* over the records of the chunk, without weight
decay.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any, Literal, Protocol, get_args

import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.nn.attention import SDPBackend, sdpa_kernel

from expunge.deep.network import Network
from expunge.deep.trees import Batch
from expunge.errors import InvalidInput

Kind = Literal["hessian", "ggn", "fisher_empirical", "fisher_true"]
KINDS: tuple[Kind, ...] = get_args(Kind)

Loss = Callable[[Any, Tensor], Tensor]
"""From outputs and targets of b records to their b losses."""


class Graph(Protocol):
    """A symmetric matrix of one chunk."""

    def apply(self, V: Tensor, *, together: bool) -> Tensor:
        """Return the products with the rows of ``V`` (k, p), ``together`` or one after another."""
        ...


def record_losses(network: Network, loss: Loss, weights: Tensor, batch: Batch) -> Tensor:
    """Return the losses (b,) of a batch's records, differentiable with respect to ``weights``.

    Raises
    ------
    InvalidInput
        If the loss does not return one number per record.
    """
    inputs, targets = batch
    return _each(loss, network.outputs(weights, inputs), _like(targets, weights))


def build(kind: Kind, network: Network, loss: Loss, at: Tensor, batch: Batch) -> Graph:
    """Return the graph of ``kind`` at weights ``at`` (p,) on a batch."""
    leaf = at.detach().requires_grad_()
    if kind == "hessian":
        (gradient,) = _grad(record_losses(network, loss, leaf, batch).sum(), leaf, create=True)
        return _Hessian(leaf, gradient)
    if kind == "fisher_empirical":
        return _sandwich(leaf, record_losses(network, loss, leaf, batch), _identity)
    targets = _like(batch[1], leaf)
    outputs = _tensor(network.outputs(leaf, batch[0]))
    return _sandwich(leaf, outputs, _middle(kind, loss, outputs.detach(), targets))


def forward_product(
    kind: Kind, network: Network, loss: Loss, at: Tensor, batch: Batch, v: Tensor
) -> Tensor:
    """Return one product (p,) by forward over reverse, without a graph of the gradient.

    Raises
    ------
    NotImplementedError, RuntimeError
        If the module uses an operation without a forward derivative.
    """
    leaf = at.detach().requires_grad_()
    with forward_ad.dual_level():
        dual: Tensor = forward_ad.make_dual(leaf, v)  # type: ignore[no-untyped-call]
        if kind == "hessian":
            (gradient,) = _grad(record_losses(network, loss, dual, batch).sum(), dual)
            found = _unpack(gradient)[1]
            return torch.zeros_like(v) if found is None else found.detach()
        if kind == "fisher_empirical":
            outputs, moved = _unpack(record_losses(network, loss, dual, batch))
            middle: _Middle = _identity
        else:
            outputs, moved = _unpack(_tensor(network.outputs(dual, batch[0])))
            middle = _middle(kind, loss, outputs.detach(), _like(batch[1], leaf))
    if moved is None:
        return torch.zeros_like(v)
    inner = middle(moved.detach()[None], False)
    return pull(outputs, leaf, inner, together=False)[0]


def _unpack(dual: Tensor) -> tuple[Tensor, Tensor | None]:
    pair = forward_ad.unpack_dual(dual)  # type: ignore[no-untyped-call]
    return pair.primal, pair.tangent


@contextmanager
def repeatable() -> Iterator[None]:
    """Choose operations that are deterministic, twice differentiable and in full precision.

    The switches are those of the whole process, restored at the end: not for several threads.
    """
    deterministic: Any = torch.utils.deterministic
    fill = deterministic.fill_uninitialized_memory
    before = torch.are_deterministic_algorithms_enabled()
    lenient = torch.is_deterministic_algorithms_warn_only_enabled()
    fast = torch.backends.mha.get_fastpath_enabled()
    cudnn = torch.backends.cudnn
    with ExitStack() as stack:
        stack.callback(torch.backends.mha.set_fastpath_enabled, fast)
        stack.callback(torch.use_deterministic_algorithms, before, warn_only=lenient)
        stack.callback(setattr, deterministic, "fill_uninitialized_memory", fill)
        deterministic.fill_uninitialized_memory = False
        torch.use_deterministic_algorithms(True, warn_only=True)
        torch.backends.mha.set_fastpath_enabled(False)
        stack.enter_context(sdpa_kernel(SDPBackend.MATH))
        if torch.cuda.is_available():
            flags = cudnn.flags(cudnn.enabled, deterministic=True, allow_tf32=False)
            stack.enter_context(flags)
        yield


_Middle = Callable[[Tensor, bool], Tensor]
"""From k output tangents (k, b, …) to k cotangents, and whether to do them together."""


@dataclass(frozen=True)
class _Hessian:
    leaf: Tensor
    gradient: Tensor

    def apply(self, V: Tensor, *, together: bool) -> Tensor:
        return pull(self.gradient, self.leaf, V, together=together)


@dataclass(frozen=True)
class _Sandwich:
    """``JᵀMJ`` with ``J`` the outputs' derivative: a product with J is one with (Jᵀ)ᵀ."""

    leaf: Tensor
    outputs: Tensor
    dummy: Tensor
    pulled: Tensor
    middle: _Middle

    def apply(self, V: Tensor, *, together: bool) -> Tensor:
        moved = pull(self.pulled, self.dummy, V, together=together)
        inner = self.middle(moved, together)
        return pull(self.outputs, self.leaf, inner, together=together)


def _sandwich(leaf: Tensor, outputs: Tensor, middle: _Middle) -> Graph:
    dummy = torch.zeros_like(outputs).requires_grad_()
    (pulled,) = _grad(outputs, leaf, dummy, create=True)
    return _Sandwich(leaf, outputs, dummy, pulled, middle)


def _middle(kind: Kind, loss: Loss, outputs: Tensor, targets: Tensor) -> _Middle:
    if kind == "ggn":
        return _loss_hessian(loss, outputs, targets)
    factor = label_factors(loss, outputs, targets)
    factor = factor.reshape(*factor.shape[:2], -1)

    def fisher(moved: Tensor, together: bool) -> Tensor:
        scores = torch.einsum("bkc,jbc->jbk", factor, moved.reshape(*moved.shape[:2], -1))
        return torch.einsum("bkc,jbk->jbc", factor, scores).reshape(moved.shape)

    return fisher


def _loss_hessian(loss: Loss, outputs: Tensor, targets: Tensor) -> _Middle:
    free = outputs.detach().requires_grad_()
    (slope,) = _grad(_each(loss, free, targets).sum(), free, create=True)
    return lambda moved, together: pull(slope, free, moved, together=together)


def _identity(moved: Tensor, together: bool) -> Tensor:
    return moved


def label_factors(loss: Loss, outputs: Tensor, targets: Tensor) -> Tensor:
    """Return ``√q_k · ∂ℓ(f, k)/∂f`` for every record and label k, (b, K, …).

    Labels are 0 … c−1 for outputs (b, c), 0 and 1 for one output per record; ``q_k`` is
    ``exp(−ℓ(f, k))``.

    Raises
    ------
    InvalidInput
        If these ``q`` are not a distribution: the loss is not the negative log-likelihood of a
        label.
    """
    single = outputs.numel() == len(outputs)
    if not single and outputs.ndim != 2:
        raise InvalidInput(
            f"the true Fisher matrix needs outputs (records, classes), not {(*outputs.shape,)}"
        )
    free, factors = outputs.detach().requires_grad_(), []
    total = torch.zeros(len(outputs), dtype=outputs.dtype, device=outputs.device)
    for label in range(2 if single else outputs.shape[1]):
        each = _each(loss, free, torch.full_like(targets, label))
        (slope,) = _grad(each.sum(), free)
        q = torch.exp(-each.detach())
        total = total + q
        factors.append(q.sqrt().reshape(-1, *[1] * (outputs.ndim - 1)) * slope)
    slack = float(torch.finfo(outputs.dtype).eps) ** 0.5
    if not bool(torch.all(torch.abs(total - 1.0) <= slack)):
        raise InvalidInput(
            "the true Fisher matrix needs a loss that is the negative log-likelihood of a label "
            "(cross-entropy), but e^(−loss) summed over the labels is not 1: take 'ggn' instead"
        )
    return torch.stack(factors, 1)


def pull(outputs: Tensor, leaf: Tensor, V: Tensor, *, together: bool) -> Tensor:
    """Return the vector-Jacobian products of ``outputs`` with the rows of ``V``."""
    if not outputs.requires_grad:
        return leaf.new_zeros((len(V), *leaf.shape))
    if together and len(V) > 1:
        try:
            return torch.autograd.grad(
                outputs,
                leaf,
                V,
                retain_graph=True,
                is_grads_batched=True,
                materialize_grads=True,
            )[0]
        except RuntimeError:
            pass  # an operation that cannot be vectorised: one row after the other
    return torch.stack([_grad(outputs, leaf, v, keep=True)[0] for v in V])


def _grad(
    outputs: Tensor,
    leaf: Tensor,
    v: Tensor | None = None,
    *,
    create: bool = False,
    keep: bool = False,
) -> tuple[Tensor, ...]:
    if not outputs.requires_grad:
        return (torch.zeros_like(leaf),)
    return torch.autograd.grad(
        outputs,
        leaf,
        v,
        retain_graph=create or keep,
        create_graph=create,
        allow_unused=True,
        materialize_grads=True,
    )


def _each(loss: Loss, outputs: Any, targets: Tensor) -> Tensor:
    each = loss(outputs, targets)
    if not isinstance(each, Tensor) or each.shape != (len(targets),):
        came = f"shape {(*each.shape,)}" if isinstance(each, Tensor) else type(each).__name__
        raise InvalidInput(
            f"the loss must return one number per record, shape ({len(targets)},), not {came}: use "
            "reduction='none', and sum what belongs to one record"
        )
    return each


def _tensor(outputs: Any) -> Tensor:
    if not isinstance(outputs, Tensor):
        raise InvalidInput(
            f"the module must return a tensor for this product, not {type(outputs).__name__}: wrap "
            "it in a module that returns the logits"
        )
    return outputs


def _like(targets: Tensor, weights: Tensor) -> Tensor:
    return targets.to(weights.dtype) if targets.is_floating_point() else targets
