"""What a solver of ``(A + λI)x = b`` returns, and the system as every solver sees it."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor

from expunge.errors import ExpungeError, InvalidInput

Status = Literal["ok", "not_converged", "negative_curvature", "diverged"]

WORDS: dict[Status, str] = {
    "ok": "the residual is within the tolerance",
    "not_converged": (
        "the residual is above the tolerance: allow more iterations, compute in float64, "
        "precondition, or add damping"
    ),
    "negative_curvature": (
        "the matrix is not positive definite, so what was found solves nothing: add more damping "
        "than its smallest eigenvalue is negative (expunge.deep.inverse.escalate), or take the "
        "Gauss-Newton matrix"
    ),
    "diverged": "the iteration grew without bound: choose a larger scale or more damping",
}

Product = Callable[[Tensor], Tensor]
"""``V ↦ AV`` for columns (p, k); `expunge.deep.curvature.Operator` or any symmetric matrix."""


@dataclass(frozen=True)
class Solution:
    """An approximate solution and how good it is.

    Attributes
    ----------
    value : (p,) or (p, k) tensor
        In float64 whatever the dtype of ``b``, as the residual of a rounded value can be far
        larger; on the operator's device.
    status : str
        The worst of the columns.
    iterations : int
    residual : float
        ``‖b − (A + λI)x‖/‖b‖``, the largest of the columns, recomputed from ``value``, with
        products in float64 where the operator has them.
    products : int
        Vectors multiplied, the check included.
    seconds : float
    info : mapping
        What else the solver found; ``residuals`` holds every column's.
    """

    value: Tensor = field(repr=False)
    status: Status
    iterations: int
    residual: float
    products: int
    seconds: float
    info: Mapping[str, Any]

    def require(self) -> Solution:
        """Return this solution if its status is ``ok``.

        Raises
        ------
        NotConverged
            Otherwise.
        """
        if self.status != "ok":
            raise NotConverged(self)
        return self


class NotConverged(ExpungeError):
    """A linear system was not solved to its tolerance; ``solution`` holds what was found."""

    def __init__(self, solution: Solution) -> None:
        extra = ""
        if "curvature" in solution.info:
            extra = f"; vᵀAv/‖v‖² = {solution.info['curvature']:.3g} was met"
        super().__init__(
            f"no solution after {solution.iterations} iterations (relative residual "
            f"{solution.residual:.2e}{extra}): {WORDS[solution.status]}"
        )
        self.solution = solution


class System:
    """``(A + λI)X = B`` with columns of norm 1, in float64, its products counted."""

    def __init__(self, operator: Product, b: Tensor, damping: float) -> None:
        if not (math.isfinite(damping) and damping >= 0.0):
            raise InvalidInput(f"damping must be a finite number, at least 0, not {damping}")
        if b.ndim not in (1, 2) or b.numel() == 0 or not bool(torch.isfinite(b).all()):
            raise InvalidInput(
                "the right-hand side must be finite numbers, (p,) or (p, k) with k of 1 or more; "
                f"it has the shape {(*b.shape,)}"
            )
        self.operator, self.damping, self.shape = operator, damping, b.shape
        device = getattr(operator, "device", b.device)
        columns = b.detach().to(device, torch.float64).reshape(len(b), -1)
        top = columns.abs().amax(0)
        safe = torch.where(top > 0, top, 1.0)
        norm = (columns / safe).norm(dim=0)
        self.norm = norm * safe
        self.B = columns / safe / torch.where(norm > 0, norm, 1.0)
        self.products, self.started = 0, time.perf_counter()
        self._exact: Product | None = None

    @property
    def precision(self) -> float:
        """Unit of rounding of the operator's products."""
        dtype = getattr(self.operator, "dtype", torch.float64)
        return float(torch.finfo(dtype).eps)

    def times(self, V: Tensor) -> Tensor:
        """Return ``(A + λI)V``."""
        self.products += V.shape[1]
        return self.operator(V) + self.damping * V

    def left(self, X: Tensor) -> Tensor:
        """Return ``B − (A + λI)X``, from float64 products where there are any."""
        if self._exact is None:
            exact = getattr(self.operator, "exact", None)
            self._exact = self.operator if exact is None else exact()
        self.products += X.shape[1]
        return self.B - self._exact(X) - self.damping * X

    def solution(
        self,
        X: Tensor,
        status: Status,
        iterations: int,
        residuals: Tensor | None = None,
        **info: Any,
    ) -> Solution:
        """Return ``X`` in the units of ``b``; measure what is left, if not given."""
        if residuals is None:
            residuals = self.left(X).norm(dim=0)
        worst = float(residuals.max())
        if status == "ok" and not math.isfinite(worst):
            status = "diverged"
        value = (X * self.norm).reshape(self.shape)
        seconds = time.perf_counter() - self.started
        info["residuals"] = residuals
        return Solution(value, status, iterations, worst, self.products, seconds, info)
