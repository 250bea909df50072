"""Targets as a convex head's loss has them, and the head as a module to serve."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.special import expit, softmax
from torch import Tensor, nn

from expunge.deep.features import clipped
from expunge.deep.renewal import duplicate
from expunge.errors import InvalidInput
from expunge.modelfile import ReleasedModel

Array = NDArray[np.float64]
MODELS = ("logistic", "ovr", "ridge", "regression")


def loss_of(model: str, targets: NDArray[Any]) -> tuple[str, tuple[Any, ...] | None]:
    """Return the loss of a policy and the classes that the targets have; None for a regression.

    Raises
    ------
    InvalidInput
        If the model is unknown, or the targets are not such as it takes.
    """
    if model not in MODELS:
        raise InvalidInput(f"model must be one of {', '.join(MODELS)}; got {model!r}")
    if model == "regression":
        return "squared", None
    if targets.ndim != 1 or targets.dtype.kind not in "iub":
        raise InvalidInput(
            f"a {model} head needs one integer class per record, got {targets.dtype} of shape "
            f"{targets.shape}; model='regression' takes real targets"
        )
    classes = tuple(np.unique(targets).tolist())
    if len(classes) < 2:
        raise InvalidInput(f"at least two classes are needed, the data have only {classes[0]}")
    if model == "ridge":
        return "squared", classes
    several = "softmax" if model == "logistic" else "logistic-ovr"
    return "logistic" if len(classes) == 2 else several, classes


def encoded(
    targets: NDArray[Any], loss: str, classes: tuple[Any, ...] | None, live: NDArray[np.bool_]
) -> Array:
    """Return (n, C) targets: real, ±1 (one column for two classes) or one-hot; 0 where not live."""
    flat = np.asarray(targets).reshape(len(targets), -1)
    if classes is None:
        return np.asarray(np.where(live[:, None], flat, 0.0), dtype=np.float64)
    one_hot = (flat == np.array(classes)).astype(np.float64)
    if not one_hot[live].any(axis=1).all():
        raise InvalidInput(f"a target is none of the classes trained on, {classes}")
    if len(classes) == 2:
        one_hot = one_hot[:, 1:]
    signed = one_hot if loss == "softmax" else 2.0 * one_hot - 1.0
    return np.asarray(np.where(live[:, None], signed, 0.0), dtype=np.float64)


def probabilities(scores: Array, loss: str) -> Array:
    """Return class probabilities (n, K) from the scores of a logistic loss.

    Raises
    ------
    InvalidInput
        If the loss has none.
    """
    if loss == "softmax":
        return np.asarray(softmax(scores, axis=1))
    if loss not in ("logistic", "logistic-ovr"):
        raise InvalidInput(f"a head of loss {loss} has no probabilities: take model='logistic'")
    if scores.shape[1] == 1:
        return np.hstack([expit(-scores), expit(scores)])
    share = expit(scores)
    found: Array = share / share.sum(axis=1, keepdims=True)
    return found


class ServedHead(nn.Module):
    """A copy of a backbone with a published head: from inputs to scores (b, K) in float64."""

    coef: Tensor
    intercept: Tensor

    def __init__(self, backbone: nn.Module, released: ReleasedModel, clip: float | None) -> None:
        super().__init__()
        self.backbone, self.clip = duplicate(backbone).requires_grad_(False), clip
        first = next(backbone.parameters(), None)
        device = None if first is None else first.device
        constant = np.zeros(len(released.coef))
        if released.intercept is not None:
            constant = released.intercept
        self.register_buffer("coef", torch.tensor(released.coef, device=device))
        self.register_buffer("intercept", torch.tensor(constant, device=device))
        self.eval()

    def train(self, mode: bool = True) -> ServedHead:
        """Stay in eval mode: the head was fitted to features of it."""
        super().train(False)
        return self

    def forward(self, *args: Any, **kwargs: Any) -> Tensor:
        """Return the scores of a batch."""
        features = self.backbone(*args, **kwargs).flatten(1).double()
        scores: Tensor = clipped(features, self.clip) @ self.coef.T + self.intercept
        return scores
