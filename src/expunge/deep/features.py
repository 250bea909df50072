"""Features of a frozen backbone: computed once, in fixed chunks, streamed to disk.

A run that was interrupted goes on where it stopped, to the same bits. Features are computed in the
backbone's own precision and kept, clipped, in float64.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from expunge.deep.batches import as_batches
from expunge.deep.core import fingerprint, record_digests, same_device
from expunge.deep.feature_cache import Array, FeatureCache, FeatureSpec, begin
from expunge.deep.network import UnsupportedModel, evaluating, refuse_batch_statistics
from expunge.deep.trees import Batch, cut, map_tree
from expunge.errors import InvalidInput

CHUNK = 256
Progress = Callable[[int, int], None]


def silent(done: int, total: int) -> None:
    """Show nothing."""


def spec_of(
    backbone: nn.Module, clip: float | None = None, preprocessing: Mapping[str, Any] | None = None
) -> FeatureSpec:
    """Return the specification of a backbone's features.

    Raises
    ------
    InvalidInput
        If ``clip`` is not positive or the preprocessing does not go into JSON.
    """
    if clip is not None and not (np.isfinite(clip) and clip > 0):
        raise InvalidInput(f"clip must be a positive norm or None, got {clip!r}")
    spec = FeatureSpec(fingerprint(backbone), clip, dict(preprocessing or {}))
    try:
        spec.to_json()
    except (TypeError, ValueError) as error:
        raise InvalidInput(f"the preprocessing must be JSON without NaN: {error}") from error
    return spec


def features_of(backbone: nn.Module, data: Any, *, clip: float | None = None) -> Array:
    """Return the features (n, d) of records that need no cache, such as those to predict for.

    Raises
    ------
    UnsupportedModel
        If a record's features depend on other records or on chance.
    """
    with frozen(backbone):
        return np.concatenate(
            [_forward(backbone, b, clip) for b in _batches(backbone, data).chunks(CHUNK)]
        )


def norm_of(backbone: nn.Module, core: Any, *, quantile: float = 1.0) -> float:
    """Return a norm to clip to: a quantile of the norms of the *core* data's features.

    Never give it users' data: a constant fitted to people cannot forget them.
    """
    if not 0.0 < quantile <= 1.0:
        raise InvalidInput(f"quantile must be in (0, 1], got {quantile}")
    norms = np.linalg.norm(features_of(backbone, core), axis=1)
    return float(np.quantile(norms, quantile))


@contextmanager
def frozen(backbone: nn.Module) -> Iterator[None]:
    """Hold a backbone in eval mode, without gradients, its buffers as they are.

    Raises
    ------
    UnsupportedModel
        If a layer normalises by the statistics of the batch, or a buffer changes.
    """
    with evaluating(backbone), torch.no_grad():
        refuse_batch_statistics(backbone)
        yield


def compute_features(
    backbone: nn.Module,
    data: Any,
    directory: str | Path,
    *,
    clip: float | None = None,
    preprocessing: Mapping[str, Any] | None = None,
    chunk: int = CHUNK,
    progress: Progress = silent,
) -> FeatureCache:
    """Compute the features of all records, or what an interrupted run has left of them.

    Parameters
    ----------
    backbone : nn.Module
        From inputs to features (b, …), which are flattened; run in eval mode in its own dtype.
    data : what `as_batches` takes
    directory : path
        New, or of an earlier run with the same backbone, clip, preprocessing and records.
    clip : float, optional
        Norm to which longer feature vectors are scaled down: given, or from `norm_of` core data.
    preprocessing : mapping, optional
        What was done to the records before; goes into certificates by its values.
    chunk : int
        Records at once.
    progress : callable
        ``progress(rows done, rows)``.

    Raises
    ------
    UnsupportedModel
        If a record's features depend on other records or on chance.
    InvalidInput
        If the directory holds features of something else.
    FolderProblem
        If it has been altered.
    """
    spec, place = spec_of(backbone, clip, preprocessing), Path(directory)
    batches = _batches(backbone, data)
    with frozen(backbone):
        first = next(iter(batches.chunks(chunk)))
        _probe(backbone, first, clip)
        like = _forward(backbone, first, clip), _numpy(first[1])
        cache = begin(place, spec, batches.rows, chunk, *like)
        for k, batch in enumerate(batches.chunks(chunk)):
            records = record_digests(batch)
            if not cache.done(k, records):
                cache.fill(k, _forward(backbone, batch, clip), _numpy(batch[1]), records)
            progress(min((k + 1) * chunk, batches.rows), batches.rows)
    return cache


def _batches(backbone: nn.Module, data: Any) -> Any:
    return as_batches(data, device=same_device(backbone))


def _forward(backbone: nn.Module, batch: Batch, clip: float | None) -> Array:
    found = _call(backbone, batch[0])
    if not isinstance(found, Tensor) or found.ndim < 2 or len(found) != len(batch[1]):
        came = tuple(found.shape) if isinstance(found, Tensor) else type(found).__name__
        raise InvalidInput(
            f"a backbone must return a tensor (b, …) of features for {len(batch[1])} records, not "
            f"{came}: wrap it in a module that returns one vector per record"
        )
    rows = clipped(found.flatten(1).double(), clip).cpu().numpy()
    if not np.isfinite(rows).all():
        raise InvalidInput("the backbone's features must be finite numbers")
    return np.asarray(rows, dtype=np.float64)


def _call(backbone: nn.Module, inputs: Any) -> Any:
    first = next(backbone.parameters(), None)
    if first is not None:
        dtype = first.dtype
        inputs = map_tree(lambda t: t.to(dtype) if t.is_floating_point() else t, inputs)
    if isinstance(inputs, dict):
        return backbone(**inputs)
    return backbone(*inputs) if isinstance(inputs, tuple) else backbone(inputs)


def _numpy(tensor: Tensor) -> Any:
    return tensor.detach().cpu().numpy()


def clipped(features: Tensor, clip: float | None) -> Tensor:
    """Return features (b, d) with longer rows scaled down to the norm ``clip``."""
    if clip is None:
        return features
    norms = torch.linalg.vector_norm(features, dim=1, keepdim=True)
    return features * torch.clamp(clip / norms.clamp(min=torch.finfo(features.dtype).tiny), max=1.0)


def _probe(backbone: nn.Module, batch: Batch, clip: float | None) -> None:
    few = cut(batch, 0, 2)
    first, again = (_forward(backbone, few, clip) for _ in range(2))
    alone = _forward(backbone, cut(batch, 0, 1), clip)
    if not np.array_equal(first, again):
        raise UnsupportedModel(
            "two evaluations of the same records differ in eval mode: the backbone draws random "
            "numbers (dropout called as a function?)"
        )
    if np.linalg.norm(first[0] - alone[0]) > 1e-3 * np.linalg.norm(alone[0]) + 1e-6:
        raise UnsupportedModel(
            "the features of a record depend on the other records of its batch: use GroupNorm, or "
            "statistics that are frozen in eval mode"
        )
