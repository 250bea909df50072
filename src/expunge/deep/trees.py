"""Batches as trees of tensors: tuples and dicts, nested, all with one row per record."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

Batch = tuple[Any, Tensor]
"""Inputs (a tensor, a tuple passed by position, or a dict passed by keyword) and targets."""


def map_tree(f: Callable[[Tensor], Tensor], tree: Any) -> Any:
    """Return the tree with ``f`` of every tensor; lists become tuples."""
    if isinstance(tree, Mapping):
        return {key: map_tree(f, value) for key, value in tree.items()}
    if isinstance(tree, tuple | list):
        return tuple(map_tree(f, value) for value in tree)
    return f(tree)


def leaves(tree: Any) -> Iterator[Any]:
    """Yield what is at the leaves, tensors or not, in order."""
    if isinstance(tree, Mapping | tuple | list):
        for value in tree.values() if isinstance(tree, Mapping) else tree:
            yield from leaves(value)
    else:
        yield tree


def cut(batch: Batch, start: int, stop: int) -> Batch:
    """Return rows ``start`` to ``stop``, as views."""
    if start == 0 and stop >= len(batch[1]):
        return batch
    rows: Batch = map_tree(lambda t: t[start:stop], batch)
    return rows


def alike(a: Batch, b: Batch) -> bool:
    """Whether two batches differ in their number of rows at most."""
    return bool(_form(a) == _form(b))


def _form(tree: Any) -> Any:
    if isinstance(tree, Mapping):
        return tuple((key, _form(value)) for key, value in tree.items())
    if isinstance(tree, tuple | list):
        return tuple(_form(value) for value in tree)
    return tree.shape[1:], tree.dtype, tree.device


def merge(batches: list[Batch]) -> Batch:
    """Return all rows of batches that are alike as one batch."""
    if len(batches) == 1:
        return batches[0]
    rows: list[list[Tensor]] = [list(leaves(batch)) for batch in batches]
    columns = iter([torch.cat(parts) for parts in zip(*rows, strict=True)])
    merged: Batch = map_tree(lambda _: next(columns), batches[0])
    return merged
