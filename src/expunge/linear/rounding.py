"""Rigorous bounds of the rounding errors of a gradient (docs/theory.md; theory of sums: Higham)."""

from __future__ import annotations

import numpy as np

from expunge.linear.losses import LARGEST, Array, Loss
from expunge.linear.rows import Block, Source
from expunge.linear.shards import chain_length

UNIT = 2.0**-53


def gamma(k: float) -> float:
    """Return Higham's γ_k = ku/(1 − ku), the relative error of k roundings."""
    return k * UNIT / (1.0 - k * UNIT)


def slope_sums(block: Block, loss: Loss, first: Array, bound: Array) -> Array:
    """Return Σs‖x‖‖c‖, Σs‖x‖²b and Σs‖x‖ (times b for rough losses) of a block.

    ``first`` (b, C) is c = ℓ', ``bound`` (b, C) the majorant of ℓ'' that the loss gives with it.
    """
    scaled = block.weight * block.norm
    slope = np.abs(first[:, 0]) if first.shape[1] == 1 else np.linalg.norm(first, axis=1)
    plain = scaled.sum() if loss.coupled else scaled @ bound[:, 0] if loss.rough else 0.0
    return np.array([scaled @ slope, (scaled * block.norm) @ bound.max(axis=1), plain])


def gradient_error(rows: Source, loss: Loss, W: Array, sums: Array) -> float:
    """Bound the Euclidean rounding error of a gradient at ``W`` from its :func:`slope_sums`."""
    top, size, outputs = rows.radius, float(np.linalg.norm(W)), W.shape[1]
    margin = gamma(rows.terms + 1) * size
    if loss.coupled:
        spread = 2.0 * margin * float(np.exp(min(2.0 * margin * top, LARGEST)))
        rounding = (outputs + 8) * UNIT * (1.0 + (outputs - 1) / np.e)
    else:
        spread = margin * (float(np.exp(min(margin * top, LARGEST))) if loss.spread else 1.0)
        rounding = 8 * UNIT
    chain = gamma(chain_length(rows.length) + 3) + 8 * UNIT
    slope, square, plain = sums.tolist()
    return float(1.01 * (chain * slope + spread * square + rounding * plain))


def coordinate_errors(
    block: Block, loss: Loss, W: Array, sums: tuple[int, int], first: Array, bound: Array
) -> Array:
    """Bound the rounding error of every coordinate of a block's gradient: (p, C).

    ``sums`` are the numbers of terms of a margin, and of rows in the whole sum.
    """
    size, (terms, length) = block.absolute(), sums
    margin = gamma(terms + 1) * size.margins(np.abs(W))
    outputs = W.shape[1]
    with np.errstate(over="ignore"):
        if loss.coupled:
            top = margin.max(axis=1, keepdims=True)
            mixed = margin + (bound * margin).sum(axis=1, keepdims=True)
            q = bound * mixed * np.exp(np.minimum(2.0 * top, LARGEST))
            q += (outputs + 8) * UNIT * (1.0 + (outputs - 1) / np.e)
        else:
            q = bound * margin * (np.exp(np.minimum(margin, LARGEST)) if loss.spread else 1.0)
            q += 8 * UNIT * bound if loss.rough else 0.0
    q += (gamma(chain_length(length) + 3) + 8 * UNIT) * np.abs(first)
    return size.transposed_product(q * block.weight[:, None])
