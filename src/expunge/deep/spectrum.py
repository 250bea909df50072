"""The ends of a symmetric matrix's spectrum, estimated from products."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from expunge.errors import InvalidInput


@dataclass(frozen=True)
class Spectrum:
    """Extreme Ritz values: an estimate, never a bound.

    Attributes
    ----------
    smallest, largest : float
        θ; the true smallest eigenvalue is at most ``smallest``, the largest at least ``largest``.
    slack : (float, float)
        ``‖Aq − θq‖`` of the two: some eigenvalue is that close to θ, not always the extreme one.
    products : int
    """

    smallest: float
    largest: float
    slack: tuple[float, float]
    products: int


def lanczos(
    operator: Callable[[Tensor], Tensor],
    size: int,
    *,
    steps: int = 80,
    seed: int = 0,
    device: torch.device | str = "cpu",
) -> Spectrum:
    """Run Lanczos' iteration with full reorthogonalisation from a random start.

    Parameters
    ----------
    operator : callable
        ``v ↦ Av`` for (p,) vectors in float64.
    size : int
        p. The basis holds ``8·p·steps`` bytes.
    steps : int
        Products, fewer if the start spans an invariant subspace.

    Raises
    ------
    InvalidInput
        If ``steps`` is less than 1, or a product is not finite.

    Examples
    --------
    >>> A = torch.diag(torch.linspace(-1.0, 4.0, 50, dtype=torch.float64))
    >>> found = lanczos(lambda v: A @ v, 50)
    >>> round(found.smallest, 6), round(found.largest, 6)
    (-1.0, 4.0)
    """
    if steps < 1:
        raise InvalidInput(f"steps must be at least 1, got {steps}")
    generator = torch.Generator().manual_seed(seed)
    q = torch.randn(size, generator=generator, dtype=torch.float64).to(device)
    basis = torch.empty(min(steps, size), size, dtype=torch.float64, device=device)
    alpha, beta = [], [0.0]
    q, done = q / q.norm(), 0
    while done < len(basis):
        basis[done] = q
        r = operator(q).double()
        alpha.append(float(q @ r))
        done += 1
        for _ in range(2):
            r = r - basis[:done].T @ (basis[:done] @ r)
        beta.append(float(r.norm()))
        if not torch.isfinite(r).all():
            raise InvalidInput("a product with the matrix is not finite")
        if beta[-1] <= 1e-12 * max(map(abs, alpha)):
            break
        q = r / beta[-1]
    off = torch.tensor(beta[1:done], dtype=torch.float64)
    T = torch.diag(torch.tensor(alpha, dtype=torch.float64))
    T += torch.diag(off, 1) + torch.diag(off, -1)
    values, vectors = torch.linalg.eigh(T)
    ends = beta[done] * vectors[-1].abs()
    return Spectrum(float(values[0]), float(values[-1]), (float(ends[0]), float(ends[-1])), done)
