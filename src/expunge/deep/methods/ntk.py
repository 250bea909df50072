"""Scrubbing by linearisation, with the neural tangent kernel [Golatkar et al., 2020b]."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn import functional as F

from expunge.deep.methods.common import Baseline, Part, Work
from expunge.deep.problem import Need
from expunge.deep.records import record_jacobians
from expunge.errors import InvalidInput
from expunge.guarantee import Tag

LARGEST = 2**29
"""Numbers to hold at once, 4 GiB in float64."""

WEIGHT_DECAY = 5e-4


@dataclass(frozen=True)
class NtkScrub(Baseline):
    """Move by the difference of the optima, with and without F, of the linearised network.

    With J_S the Jacobian of the outputs on S at w, q the predicted probabilities and y one-hot::

        w_lin(S) = −J_Sᵀ(J_S J_Sᵀ + |S|·wd·I)⁻¹ (q − y)_S
        Δ = w_lin(R) − w_lin(D),   e = (w − w_init) − w_lin(R)
        w ← w + (1 + 2·|cos(Δ, e)|·‖e‖/‖Δ‖) Δ

    The smaller of ``J_S J_Sᵀ`` and ``J_SᵀJ_S`` is factored. The published noise on top, along the
    Fisher matrix, is not added.

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
        outputs, size = rows * work.classes(), work.network.size
        numbers = min(size, outputs) ** 2 + (outputs * size if outputs < size else 0)
        if numbers > LARGEST:
            raise InvalidInput(
                f"{numbers * 8 / 2**30:.1f} GiB would be needed, at most {LARGEST * 8 / 2**30:g} "
                f"are taken, for {rows} records and {size} parameters: take fewer records, or "
                "fewer parameters with params"
            )
        pieces = (piece for part in parts for piece in _pieces(work, part))
        return linear_optimum(pieces, outputs, size, rows * wd)


def _pieces(work: Work, part: Part) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield Jacobians (b, c, p) and residuals q − y (b, c), in float64."""
    data, residuals = work.part(part), []
    for inputs, targets in data:
        with torch.no_grad():
            q = work.outputs(inputs).double().softmax(1)
        residuals.append(q - F.one_hot(targets, q.shape[1]))
    left = torch.cat(residuals)
    if not bool(torch.isfinite(left).all()):
        raise InvalidInput("the outputs are not finite: look for numbers that are none in the data")
    for J in record_jacobians(work.network, data):
        yield J.double(), left[: len(J)]
        left = left[len(J) :]


def linear_optimum(
    pieces: Iterable[tuple[Tensor, Tensor]], outputs: int, size: int, ridge: float
) -> Tensor:
    """Return ``−Jᵀ(JJᵀ + ridge·I)⁻¹r`` (p,) from blocks (b, c, p) and (b, c) of ``J`` and ``r``.

    ``J`` is (outputs, size); blocks are held together only if it has more columns than rows.

    Examples
    --------
    >>> J, r = torch.tensor([[[2.0]]]).double(), torch.tensor([[1.0]]).double()
    >>> round(linear_optimum([(J, r)], 1, 1, 1.0).item(), 12)
    -0.4
    """
    flat = ((J.flatten(0, 1), r.flatten()) for J, r in pieces)
    if outputs < size:
        blocks, rights = zip(*flat, strict=True)
        J, r = torch.cat(blocks), torch.cat(rights)
        return -J.T @ _solved(J @ J.T, r, ridge)
    J, r = next(flat)
    gram, right = J.T @ J, J.T @ r
    for J, r in flat:
        gram += J.T @ J
        right += J.T @ r
    return -_solved(gram, right, ridge)


def _solved(gram: Tensor, right: Tensor, ridge: float) -> Tensor:
    """Return ``(gram + ridge·I)⁻¹ right``."""
    gram.diagonal().add_(ridge)
    return torch.cholesky_solve(right[:, None], torch.linalg.cholesky(gram))[:, 0]


def stretch(delta: Tensor, error: Tensor) -> float:
    """Return ``1 + 2|cos(Δ, e)|·‖e‖/‖Δ‖``, 1 for ``Δ = 0``."""
    square = float(delta @ delta)
    return 1.0 if square == 0.0 else 1.0 + 2.0 * abs(float(delta @ error)) / square
