"""A module as a function of one vector: the parameters chosen, flattened in their order.

Nothing here changes the module but :meth:`Network.load`. Frozen parameters and buffers are the
module's own at the time of a call.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import UninitializedParameter

from expunge.deep.trees import map_tree
from expunge.errors import InvalidInput

_BatchNorm = nn.modules.batchnorm._BatchNorm


class UnsupportedModel(InvalidInput):
    """A module does what sums over records cannot bear; the message names the layer."""


@dataclass(frozen=True)
class Network:
    """A view of a module as ``w ↦ f_w``, made by :func:`view`.

    Attributes
    ----------
    module : nn.Module
        The module itself, not a copy.
    names : tuple of str
        The parameters that make up ``w``, in ``named_parameters()`` order; tied ones appear once.
    """

    module: nn.Module
    names: tuple[str, ...]

    @property
    def parameters(self) -> tuple[nn.Parameter, ...]:
        """The module's own parameters, in the order of ``names``."""
        return tuple(self.module.get_parameter(name) for name in self.names)

    @property
    def size(self) -> int:
        """Number of coordinates p."""
        return sum(parameter.numel() for parameter in self.parameters)

    @property
    def dtype(self) -> torch.dtype:
        """Of the parameters."""
        return self.parameters[0].dtype

    @property
    def device(self) -> torch.device:
        """Of the parameters."""
        return self.parameters[0].device

    def vector(self) -> Tensor:
        """Return the parameters now, as a new detached (p,) vector."""
        return torch.cat([parameter.detach().reshape(-1) for parameter in self.parameters])

    def load(self, vector: Tensor) -> None:
        """Write a (p,) vector into the module, in place.

        Raises
        ------
        InvalidInput
            If the vector has another length.
        """
        pieces = self.unflatten(vector.detach())
        with torch.no_grad():
            for name, parameter in zip(self.names, self.parameters, strict=True):
                parameter.copy_(pieces[name])

    def unflatten(self, vector: Tensor) -> dict[str, Tensor]:
        """Return a (p,) vector as named tensors of the parameters' shapes (views, differentiable).

        Raises
        ------
        InvalidInput
            If the vector has another length.
        """
        if vector.shape != (self.size,):
            raise InvalidInput(
                f"expected a vector of {self.size} coordinates ({', '.join(self.names[:3])}"
                f"{', …' if len(self.names) > 3 else ''}), not the shape {(*vector.shape,)}"
            )
        shapes = [parameter.shape for parameter in self.parameters]
        pieces = torch.split(vector, [shape.numel() for shape in shapes])
        return {
            name: piece.view(shape)
            for name, piece, shape in zip(self.names, pieces, shapes, strict=True)
        }

    def flatten(self, pieces: Mapping[str, Tensor]) -> Tensor:
        """Return named tensors as one (p,) vector; the inverse of :meth:`unflatten`."""
        return torch.cat([pieces[name].reshape(-1) for name in self.names])

    def outputs(self, weights: Tensor | Mapping[str, Tensor], inputs: Any) -> Any:
        """Return ``f_w(inputs)`` with the module's own frozen parameters and buffers.

        Differentiable with respect to ``weights``, also under ``torch.func``. Everything is
        computed in the dtype of ``weights``, floating-point inputs included.

        Parameters
        ----------
        weights : (p,) tensor, or dict of tensors by name
        inputs : tensor, tuple (passed by position) or dict (passed by keyword)
        """
        chosen = self.unflatten(weights) if isinstance(weights, Tensor) else dict(weights)
        dtype = chosen[self.names[0]].dtype
        if dtype != self.dtype:
            chosen = self._rest(dtype) | chosen
        inputs = map_tree(lambda t: t.to(dtype) if t.is_floating_point() else t, inputs)
        if isinstance(inputs, Mapping):
            return torch.func.functional_call(self.module, chosen, (), dict(inputs))
        positional = inputs if isinstance(inputs, tuple) else (inputs,)
        return torch.func.functional_call(self.module, chosen, positional)

    def _rest(self, dtype: torch.dtype) -> dict[str, Tensor]:
        """Return frozen parameters and buffers, cast."""
        own = [*self.module.named_parameters(), *self.module.named_buffers()]
        return {
            name: t.detach().to(dtype)
            for name, t in own
            if name not in self.names and t.is_floating_point()
        }


def view(module: nn.Module, params: str | Sequence[str] | None = None) -> Network:
    """Return ``module`` as a function of the parameters whose names match.

    Parameters
    ----------
    module : nn.Module
    params : str or sequence of str, optional
        Patterns over ``named_parameters()`` in the manner of file names (``"head.*"``); all, if
        none is given. Parameters that do not require gradients are never taken. A parameter that
        plays no part in the loss is: its gradient is 0.

    Raises
    ------
    InvalidInput
        If a pattern matches nothing that requires gradients, or the parameters chosen differ in
        dtype or device, or are not real floating-point numbers.

    Examples
    --------
    >>> net = nn.Sequential(nn.Linear(3, 2), nn.Tanh(), nn.Linear(2, 1))
    >>> view(net).size, view(net, "2.*").names
    (11, ('2.weight', '2.bias'))
    """
    named = dict(module.named_parameters())
    lazy = [
        name for name, parameter in named.items() if isinstance(parameter, UninitializedParameter)
    ]
    if lazy:
        raise InvalidInput(f"the module has not been initialised ({lazy[0]}): run it once first")
    free = [name for name, parameter in named.items() if parameter.requires_grad]
    patterns = ["*"] if params is None else [params] if isinstance(params, str) else list(params)
    for pattern in patterns:
        if not any(fnmatchcase(name, pattern) for name in free):
            raise InvalidInput(_unmatched(pattern, list(named), free))
    names = tuple(name for name in free if any(fnmatchcase(name, p) for p in patterns))
    if not names:
        raise InvalidInput("no parameter was chosen: params is empty")
    kinds = {(named[name].dtype, named[name].device) for name in names}
    if len(kinds) > 1:
        listed = ", ".join(sorted(f"{dtype} on {device}" for dtype, device in kinds))
        raise InvalidInput(
            f"the parameters must share one dtype and one device, they have {listed}"
        )
    if not named[names[0]].is_floating_point():
        raise InvalidInput(f"parameters must be real numbers, not {named[names[0]].dtype}")
    return Network(module, names)


def _unmatched(pattern: str, named: list[str], free: list[str]) -> str:
    frozen = [name for name in named if name not in free and fnmatchcase(name, pattern)]
    if not named:
        return "the module has no parameters"
    if frozen:
        return (
            f"the parameters that {pattern!r} matches are frozen ({', '.join(frozen[:3])}): call "
            "requires_grad_(True) on those that should be free"
        )
    return f"no parameter matches {pattern!r}; there are {', '.join(free[:10]) or 'none'}"


@contextmanager
def evaluating(module: nn.Module) -> Iterator[None]:
    """Put every submodule into eval mode, and restore its mode at the end, also after an error.

    Raises
    ------
    UnsupportedModel
        At the end, if a buffer has changed; it is given back its value first.
    """
    modes = [(part, part.training) for part in module.modules()]
    before = {name: buffer.detach().clone() for name, buffer in module.named_buffers()}
    module.eval()
    changed: list[str] = []
    try:
        yield
    finally:
        for part, mode in modes:
            part.training = mode
        changed = _restore(module, before)
    if changed:
        owner = changed[0].rpartition(".")[0]
        raise UnsupportedModel(
            f"layer {owner or 'itself'} ({type(module.get_submodule(owner)).__name__}) changed its "
            f"buffer {changed[0]} in eval mode: a sum over records needs a model that does not "
            "change while it is evaluated"
        )


def _restore(module: nn.Module, before: Mapping[str, Tensor]) -> list[str]:
    """Give buffers their old values back; return the names of those that had changed."""
    now = dict(module.named_buffers())
    changed = [name for name in now if name not in before]
    for name, old in before.items():
        if name in now and _same_bits(now[name], old):
            continue
        changed.append(name)
        owner, _, leaf = name.rpartition(".")
        if name in now and now[name].shape == old.shape and now[name].dtype == old.dtype:
            with torch.no_grad():
                now[name].copy_(old)
        else:
            setattr(module.get_submodule(owner), leaf, old)
    return changed


def _same_bits(a: Tensor, b: Tensor) -> bool:
    if a.shape != b.shape or a.dtype != b.dtype or a.device != b.device:
        return False
    flat = [t.detach().contiguous().reshape(-1).view(torch.uint8) for t in (a, b)]
    return bool(torch.equal(flat[0], flat[1]))


def refuse_batch_statistics(module: nn.Module) -> None:
    """Refuse layers whose output for one record depends on the others of its batch.

    Raises
    ------
    UnsupportedModel
        Naming the first batch-normalisation layer that is in train mode or keeps no statistics.
    """
    for name, layer in module.named_modules():
        if not isinstance(layer, _BatchNorm):
            continue
        kept = layer.running_mean is not None and layer.running_var is not None
        if layer.training or not kept:
            raise UnsupportedModel(
                f"layer {name or 'itself'} ({type(layer).__name__}) normalises by the statistics "
                "of the batch, so the loss is not a sum over records: use GroupNorm"
                + (", or eval mode (the buffers are then frozen)" if kept else "")
            )
