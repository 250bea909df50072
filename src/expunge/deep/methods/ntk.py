"""Scrubbing by linearisation, with the neural tangent kernel [Golatkar et al., 2020b]."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from expunge.deep.batches import Batches
from expunge.deep.methods.common import Baseline, Part, Work
from expunge.deep.problem import Need
from expunge.deep.records import record_jacobians
from expunge.errors import InvalidInput
from expunge.guarantee import Tag

LARGEST = 20_000
"""Side of the largest matrix to factor."""

WEIGHT_DECAY = 5e-4


@dataclass(frozen=True)
class NtkScrub(Baseline):
    """Move by the difference of the optima, with and without F, of the linearised network.

    With J_S the Jacobian of the outputs on S at w, q the predicted probabilities and y one-hot::

        w_lin(S) = −J_Sᵀ(J_S J_Sᵀ + |S|·wd·I)⁻¹ (q − y)_S
        Δ = w_lin(R) − w_lin(D),   e = (w − w_init) − w_lin(R)
        w ← w + (1 + 2·|cos(Δ, e)|·‖e‖/‖Δ‖) Δ

    The smaller of ``J_S J_Sᵀ`` and ``J_SᵀJ_S`` is factored.

    Attributes
    ----------
    weight_decay : float, optional
        ``wd``; the problem's, or 5e-4 if that is 0: the system needs some.
    """

    name: ClassVar[str] = "ntk"
    requires: ClassVar[tuple[Need, ...]] = ("retain", "forget", "stored")

    weight_decay: float | None = None

    def change(self, work: Work) -> None:
        """Move along Δ."""
        work.classes()
        wd = self.weight_decay if self.weight_decay is not None else work.problem.wd or WEIGHT_DECAY
        if not wd > 0.0:
            raise InvalidInput(f"weight_decay must be above 0, not {wd}")
        work.note("weightDecay", wd, Tag.assumed)
        kept = self._linear(work, ("retain",), wd)
        delta = kept - self._linear(work, ("retain", "forget"), wd)
        w = work.network.vector()
        assert work.problem.stored is not None
        start = work.problem.stored.initial.to(w.device).double()
        if start.shape != w.shape:
            raise InvalidInput("the stored initial weights are of other parameters than params")
        factor = stretch(delta, w.double() - start - kept)
        work.note("factor", factor)
        work.network.load((w.double() + factor * delta).to(w.dtype))

    def _linear(self, work: Work, parts: tuple[Part, ...], wd: float) -> Tensor:
        rows = sum(work.part(part).rows for part in parts)
        for part in parts:
            work.rows[part] += work.part(part).rows
        sides = min(work.network.size, rows * work.classes())
        if sides > LARGEST:
            raise InvalidInput(
                f"a matrix of side {sides} would have to be factored (at most {LARGEST}): take "
                "fewer records, or fewer parameters with params"
            )
        pieces = [piece for part in parts for piece in _pieces(work, work.part(part))]
        return linear_optimum(pieces, work.network.size, rows * wd)


def _pieces(work: Work, data: Batches) -> list[tuple[Tensor, Tensor]]:
    """Return Jacobians (b, c, p) and residuals q − y (b, c), in float64."""
    jacobians = torch.cat(list(record_jacobians(work.network, data))).double()
    found, start = [], 0
    for inputs, targets in data:
        with torch.no_grad():
            q = work.outputs(inputs).double().softmax(1)
        residual = q - torch.nn.functional.one_hot(targets, q.shape[1])
        found.append((jacobians[start : start + len(targets)], residual))
        start += len(targets)
    return found


def linear_optimum(pieces: list[tuple[Tensor, Tensor]], size: int, ridge: float) -> Tensor:
    """Return ``−Jᵀ(JJᵀ + ridge·I)⁻¹r`` (p,) for blocks J (b, c, p) and r (b, c) of ``J`` and ``r``.

    Examples
    --------
    >>> J, r = torch.tensor([[[2.0]]]), torch.tensor([[1.0]])
    >>> round(linear_optimum([(J.double(), r.double())], 1, 1.0).item(), 12)
    -0.4
    """
    outputs = sum(r.numel() for _, r in pieces)
    if size <= outputs:
        device = pieces[0][0].device
        gram = ridge * torch.eye(size, dtype=torch.float64, device=device)
        right = torch.zeros(size, dtype=torch.float64, device=device)
        for J, r in pieces:
            flat = J.flatten(0, 1)
            gram += flat.T @ flat
            right += flat.T @ r.flatten()
        return -torch.cholesky_solve(right[:, None], torch.linalg.cholesky(gram))[:, 0]
    J = torch.cat([block.flatten(0, 1) for block, _ in pieces])
    kernel = J @ J.T + ridge * torch.eye(outputs, dtype=J.dtype, device=J.device)
    r = torch.cat([block.flatten() for _, block in pieces])
    dual = torch.cholesky_solve(r[:, None], torch.linalg.cholesky(kernel))[:, 0]
    return -J.T @ dual


def stretch(delta: Tensor, error: Tensor) -> float:
    """Return ``1 + 2|cos(Δ, e)|·‖e‖/‖Δ‖``, 1 for ``Δ = 0``."""
    square = float(delta @ delta)
    return 1.0 if square == 0.0 else 1.0 + 2.0 * abs(float(delta @ error)) / square
