"""Gaussian-poison canaries: does the model still remember the exact noise that was planted?

Rows of S are trained on as ``x_i + ξ_i``. After unlearning, ξ_i is correlated with the input
gradient at the *clean* x_i. If the model is independent of ξ the statistic is exactly N(0, 1),
whatever the model; at the poisoned point it is not.

References
----------
Pawelczyk et al. Machine unlearning fails to remove data poisoning attacks. ICLR 2025.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import ndtr

from expunge.audit.intervals import Array, two_sided
from expunge.audit.views import Outputs
from expunge.errors import InvalidInput

PIXEL_VARIANCE = 0.32


def scale_for_tables(X: ArrayLike) -> float:
    """Return σ_p = 0.8·median‖x‖/√d of tabular rows (n, d)."""
    rows = np.asarray(X, dtype=np.float64)
    flat = rows.reshape(len(rows), -1)
    return 0.8 * float(np.median(np.linalg.norm(flat, axis=1))) / math.sqrt(flat.shape[1])


def plant(X: ArrayLike, sigma: float, rng: np.random.Generator) -> tuple[Array, Array]:
    """Return rows with noise planted, and the noise ξ ~ N(0, σ_p²) of every coordinate.

    Clip the rows to the certificate's domain afterwards if they have to be; the test stays exact,
    with the ξ returned here.
    """
    if not (sigma > 0 and math.isfinite(sigma)):
        raise InvalidInput(f"sigma must be a positive number, got {sigma}")
    rows = np.asarray(X, dtype=np.float64)
    noise = rng.standard_normal(rows.shape) * sigma
    return rows + noise, noise


@dataclass(frozen=True)
class Remembered:
    """The poison statistic.

    Attributes
    ----------
    z : float
        N(0, 1) for a model independent of the noise; large if it remembers.
    p_one_sided : float
        ``1 − Φ(z)``, for bounds on ε and μ.
    p : float
        Two-sided.
    rows : int
        Rows with a gradient.
    """

    z: float
    p_one_sided: float
    p: float
    rows: int


def remembered(noise: ArrayLike, gradients: ArrayLike, sigma: float) -> Remembered:
    """Return ``z = Σ t_i/√k``, ``t_i = −⟨ξ_i, g_i⟩/(σ_p‖g_i‖)``; rows without gradient dropped.

    Parameters
    ----------
    noise, gradients : (k, …) array_like
        ξ as planted, and ``∇_xℓ`` of the unlearned model at the *clean* rows.
    sigma : float
    """
    xi, g = (np.asarray(v, dtype=np.float64) for v in (noise, gradients))
    if xi.shape != g.shape or xi.ndim < 2:
        raise InvalidInput(f"noise {xi.shape} and gradients {g.shape} must be (rows, …) alike")
    xi, g = xi.reshape(len(xi), -1), g.reshape(len(g), -1)
    if not np.isfinite(g).all():
        raise InvalidInput("some input gradient is not finite: the model diverged")
    size = np.linalg.norm(g, axis=1)
    kept = size > 0
    if not kept.any():
        return Remembered(0.0, 0.5, 1.0, 0)
    t = -(xi[kept] * g[kept]).sum(axis=1) / (sigma * size[kept])
    z = float(t.sum() / math.sqrt(len(t)))
    low, high = float(ndtr(z)), float(ndtr(-z))
    return Remembered(z, high, two_sided(low, high), len(t))


def linear_input_gradients(coef: ArrayLike, outputs: Outputs) -> Array:
    """Return ``∇_xℓ`` (n, d) of a linear classifier.

    Parameters
    ----------
    coef : (K, d) or, for two classes, (1, d) or (d,) array_like
        Weights of the logits.
    outputs : Outputs
        Of the rows at which the gradient is taken.
    """
    weights = np.atleast_2d(np.asarray(coef, dtype=np.float64))
    if len(weights) == 1:
        weights = np.vstack([np.zeros_like(weights), weights])
    if len(weights) != outputs.log_p.shape[1]:
        raise InvalidInput(f"coef has {len(weights)} rows for {outputs.log_p.shape[1]} classes")
    pull = outputs.p.copy()
    pull[np.arange(len(outputs)), outputs.y] = -np.exp(outputs.others)
    return np.asarray(pull @ weights)
