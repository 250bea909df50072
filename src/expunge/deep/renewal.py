"""Copies of a module: exact ones, and ones that start again from nothing."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import nn

from expunge.deep.network import view
from expunge.errors import InvalidInput


def reinitialised(
    model: nn.Module, seed: int, params: str | Sequence[str] | None = None
) -> nn.Module:
    """Return a copy whose every module has drawn new weights, and whose buffers are new as well.

    All tensors are overwritten with NaN first, so that nothing of the old model can remain in what
    has no ``reset_parameters``.

    Parameters
    ----------
    params : str or sequence of str, optional
        Renew only the modules that own these parameters, and keep all others.

    Raises
    ------
    InvalidInput
        If some tensor is not set by any module's ``reset_parameters``; if parameters are frozen and
        ``params`` does not say what becomes of them; if a module would be renewed in part.
    """
    fresh = duplicate(model)
    tensors = {**dict(fresh.named_parameters()), **dict(fresh.named_buffers())}
    new = _to_renew(fresh, params)
    old = {name: t.detach().clone() for name, t in tensors.items() if name not in new}
    with torch.no_grad(), seeded(seed, view(fresh, params).device):
        for name in new:
            if tensors[name].is_floating_point() or tensors[name].is_complex():
                tensors[name].fill_(torch.nan)
        owners = {name.rpartition(".")[0] for name in new}
        for name, module in reversed(list(fresh.named_modules())):
            if params is None or name in owners:
                _reset(module)
        for name, t in old.items():
            tensors[name].copy_(t)
    left = [name for name in new if bool(tensors[name].isnan().any())]
    if left:
        raise InvalidInput(
            f"nothing sets {', '.join(sorted(left))} anew: the module that owns it has no "
            "reset_parameters; give it one, or give Problem(fresh=...) a function that makes a new "
            "model from a seed"
        )
    return fresh


def _reset(module: nn.Module) -> None:
    for name in ("reset_parameters", "_reset_parameters"):
        if (reset := getattr(module, name, None)) is not None:
            reset()
            return


def _to_renew(model: nn.Module, params: str | Sequence[str] | None) -> set[str]:
    """Return the names of the parameters and buffers to set anew."""
    named = dict(model.named_parameters())
    if params is None:
        frozen = [name for name, parameter in named.items() if not parameter.requires_grad]
        if frozen:
            raise InvalidInput(
                f"parameters are frozen ({', '.join(frozen[:3])}): say with params which ones are "
                "to be renewed, the frozen ones having been trained on other data"
            )
        return {*named, *dict(model.named_buffers())}
    chosen = set(view(model, params).names)
    owners = {name.rpartition(".")[0] for name in chosen}
    for name in named:
        if name.rpartition(".")[0] in owners and name not in chosen:
            raise InvalidInput(
                f"{name} belongs to a module of which params renews another parameter: choose "
                "whole modules"
            )
    return chosen | {name for name, _ in model.named_buffers() if name.rpartition(".")[0] in owners}


def moving_norms(
    model: nn.Module, params: str | Sequence[str] | None = None
) -> list[tuple[str, nn.modules.batchnorm._NormBase]]:
    """Return the normalisation layers whose running statistics are trained with ``params``.

    They are the layers that own one of these parameters; of layers without parameters, all if
    ``params`` is None, otherwise none.
    """
    owners = {name.rpartition(".")[0] for name in view(model, params).names}
    return [
        (name, layer)
        for name, layer in model.named_modules()
        if isinstance(layer, nn.modules.batchnorm._NormBase)
        and (name in owners or (params is None and not list(layer.parameters(recurse=False))))
    ]


def duplicate(model: nn.Module) -> nn.Module:
    """Return a deep copy without gradients."""
    made = copy.deepcopy(model)
    for parameter in made.parameters():
        parameter.grad = None
    return made


@contextmanager
def seeded(seed: int, device: torch.device) -> Iterator[None]:
    """Seed the global generators, and give them back their states at the end."""
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        torch.manual_seed(seed)
        yield
