"""A network linearised at frozen weights: ``f(x) + J(x)v``, with J the outputs' derivative.

Everything is in float64 and in eval mode, on a private copy, so that nobody's later training moves
the core. ``Jv`` is in forward mode, ``Jᵀu`` in reverse mode. For a last linear layer J is
``I ⊗ [φ, 1]`` with φ the layer's inputs, and only φ is ever formed.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from expunge.deep.core import same_device
from expunge.deep.graphs import repeatable
from expunge.deep.network import UnsupportedModel, evaluating, refuse_batch_statistics, view
from expunge.deep.records import record_jacobians
from expunge.deep.trees import cut
from expunge.errors import InvalidInput

CHUNK = 256
"""Records of one JVP or VJP."""

BYTES = 2**29
"""Of one block of Jacobian rows."""


class Tangent:
    """The linearisation of a copy of a module with respect to chosen parameters.

    Parameters
    ----------
    module : nn.Module
        From inputs to outputs (b, c), or (b,), which count as (b, 1).
    params : str or sequence of str, optional
        As of `expunge.deep.network.view`.

    Attributes
    ----------
    network : Network
        Of the float64 copy.
    at : (p,) tensor
        Its weights.
    layer : str or None
        The last linear layer, if its weight (and bias) are all that is chosen; set by `probe`.
    width : int
        Number of outputs c; set by `probe`.

    Examples
    --------
    >>> tangent = Tangent(nn.Linear(2, 3))
    >>> x, v = torch.ones(4, 2), torch.ones(tangent.size, dtype=torch.float64)
    >>> tangent.forward(x, v)[1][0]
    tensor([3., 3., 3.], dtype=torch.float64)
    """

    def __init__(self, module: nn.Module, params: str | Sequence[str] | None = None) -> None:
        free = view(module, params).names
        made = copy.deepcopy(module).double().eval()
        for name, parameter in made.named_parameters():
            parameter.requires_grad_(name in free)
            parameter.grad = None
        self.network, self.params = view(made), params
        self.at = self.network.vector()
        refuse_batch_statistics(made)
        self.layer: str | None = None
        self.width = 0

    def __repr__(self) -> str:
        return f"Tangent(p={self.size}{', last layer' if self.layer else ''})"

    @property
    def size(self) -> int:
        """Number of coordinates p of v."""
        return len(self.at)

    @property
    def device(self) -> torch.device:
        """Where it is computed."""
        return same_device(self.network.module)

    @contextmanager
    def still(self) -> Iterator[None]:
        """Hold the copy still, and the operations repeatable, during a pass."""
        with evaluating(self.network.module), repeatable():
            yield

    def outputs(self, weights: Tensor, inputs: Any) -> Tensor:
        """Return the network's outputs (b, c) at ``weights``."""
        found = self.network.outputs(weights, inputs)
        if not isinstance(found, Tensor) or found.ndim not in (1, 2):
            came = tuple(found.shape) if isinstance(found, Tensor) else type(found).__name__
            raise InvalidInput(f"the network must return outputs (b, c), not {came}")
        return found.reshape(len(found), -1)

    def forward(self, inputs: Any, v: Tensor) -> tuple[Tensor, Tensor]:
        """Return ``f(x)`` and ``J(x)v``, both (b, c)."""
        pair: Any = torch.func.jvp(lambda w: self.outputs(w, inputs), (self.at,), (v,))
        return pair[0].detach(), pair[1].detach()

    def backward(self, inputs: Any, u: Tensor) -> Tensor:
        """Return ``Σ_i J(x_i)ᵀu_i`` (p,) for ``u`` (b, c)."""
        pull = torch.func.vjp(lambda w: self.outputs(w, inputs), self.at)[1]
        found: Tensor = pull(u)[0]
        return found.detach()

    def rows(self, inputs: Any, count: int) -> tuple[Tensor, Tensor]:
        """Return the rows that the quadratic is made of, and what the core answers to each.

        Last layer: ``[φ, 1]`` (b, d), and ``f`` (b, c): the outputs share the rows. Otherwise
        ``J`` (b·c, p), output after output of a record, and ``f`` (b·c, 1).
        """
        if self.layer is not None:
            return self._inputs_of_layer(inputs)
        J, f = self.jacobian(inputs, count)
        return J, f.reshape(-1, 1)

    def jacobian(self, inputs: Any, count: int) -> tuple[Tensor, Tensor]:
        """Return ``J`` (b·c, p), output after output of a record, and ``f`` (b, c)."""
        marks = torch.zeros(count, device=self.device)
        parts = list(record_jacobians(self.network, (inputs, marks), at=self.at, chunk=count))
        with torch.no_grad():
            f = self.outputs(self.at, inputs)
        return torch.cat(parts).reshape(-1, self.size), f

    def spread(self, V: Tensor) -> Tensor:
        """Return ``v`` (p,) for the columns ``V`` (d, c) of a last layer, or (p, 1) otherwise."""
        if self.layer is None:
            return V[:, 0]
        width = self._layer().in_features
        return self.network.flatten(self._named(V[:width].T, V[width:].reshape(-1)))

    def _named(self, weight: Tensor, bias: Tensor) -> dict[str, Tensor]:
        both = {"weight": weight, "bias": bias}
        return {name: both[name.rpartition(".")[2]] for name in self.network.names}

    def _layer(self) -> nn.Linear:
        layer = self.network.module.get_submodule(self.layer or "")
        if not isinstance(layer, nn.Linear):
            raise TypeError("a last layer is linear")
        return layer

    def _inputs_of_layer(self, inputs: Any) -> tuple[Tensor, Tensor]:
        seen, f = self._watch(self._layer(), inputs)
        phi = seen[0][0]
        if len(self.network.names) == 2:
            phi = torch.cat([phi, phi.new_ones(len(phi), 1)], 1)
        return phi, f

    def _watch(self, layer: nn.Module, inputs: Any) -> tuple[list[tuple[Tensor, Tensor]], Tensor]:
        """Return what goes into a layer and comes out at every call, and the network's outputs."""
        seen: list[tuple[Tensor, Tensor]] = []
        handle = layer.register_forward_hook(lambda _m, args, out: seen.append((args[0], out)))
        try:
            with torch.no_grad():
                f = self.network.outputs(self.at, inputs)
        finally:
            handle.remove()
        return seen, f

    def _last_layer(self, inputs: Any) -> str | None:
        """Return the linear layer that is chosen, if its outputs are the network's."""
        owners = {name.rpartition(".")[0] for name in self.network.names}
        layer = self.network.module.get_submodule(min(owners))
        whole = {name.rpartition(".")[2] for name in self.network.names} >= {"weight"}
        if len(owners) > 1 or type(layer) is not nn.Linear or not whole:
            return None
        seen, f = self._watch(layer, inputs)
        return min(owners) if len(seen) == 1 and seen[0][1] is f and f.ndim == 2 else None

    def per_block(self) -> int:
        """Return how many records' Jacobian rows to form at once."""
        return CHUNK if self.layer is not None else max(1, min(CHUNK, BYTES // (80 * self.size)))

    def probe(self, inputs: Any, count: int) -> float:
        """Look for a last layer, and measure how much rows change with the company of others.

        Returns
        -------
        float
            A bound of the change, relative to the rows' norm: 4 times what was seen.

        Raises
        ------
        UnsupportedModel
            If records depend on each other or on chance.
        """
        few = min(count, 8)
        batch = cut((inputs, torch.zeros(count)), 0, few)[0]
        with self.still():
            self.layer = self._last_layer(batch)
            self.width = self.outputs(self.at, batch).shape[1]
            together, f = self.rows(batch, few)
            again = self.rows(batch, few)[0]
            single = [cut((batch, torch.zeros(few)), i, i + 1)[0] for i in range(few)]
            alone = [self.rows(inputs, 1) for inputs in single]
        if not torch.equal(together, again):
            raise UnsupportedModel(
                "two evaluations of the same records differ in eval mode: the network draws random "
                "numbers (dropout called as a function?)"
            )
        off = float((together - torch.cat([a for a, _ in alone])).norm() / together.norm())
        off = max(off, float((f - torch.cat([g for _, g in alone])).norm() / (f.norm() + 1e-300)))
        if not off <= 1e-9:
            raise UnsupportedModel(
                "the outputs for a record depend on the other records of its batch: use GroupNorm, "
                "or statistics that are frozen in eval mode"
            )
        return max(1e-15, 4.0 * off)


class ServedTangent(nn.Module):
    """A published linearised network: from inputs to ``f(x) + J(x)v`` (b, c) in float64."""

    v: Tensor

    def __init__(self, tangent: Tangent, v: Tensor) -> None:
        super().__init__()
        self.core, self._tangent = tangent.network.module, tangent
        self.register_buffer("v", v)

    def forward(self, inputs: Any) -> Tensor:
        """Return the outputs for a batch of inputs, as the core takes them."""
        with self._tangent.still():
            f, moved = self._tangent.forward(inputs, self.v)
        return f + moved
