"""The losses of the convex engine, in one table.

Every loss is a function of the margins ``m = X W`` of a row (one per output) and of its target.
Derivatives are taken in the margins. A loss is *self-concordant* in the generalised sense when
``|ℓ'''| ≤ ℓ''`` (times the spread of the margins for softmax): then a change of the margins by at
most ``s`` changes the curvature by at most the factor ``exp(±s)`` [Bach, 2010].
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Loss:
    """One loss: its derivatives and its constants.

    Attributes
    ----------
    name : str
        Key in :data:`LOSSES`.
    value : callable
        ``(margins (b, C), target (b, C)) -> (b,)`` the loss of each row.
    first : callable
        ``(margins, target) -> (c, majorant)``: first derivative ``(b, C)``, and an upper bound
        ``(b, C)`` of the second derivative, for rounding errors. For softmax the bound is the
        vector of probabilities.
    second : callable
        ``(margins, target) -> (b, C)`` second derivative; for softmax the probabilities ``p``,
        which stand for the block ``diag(p) − p pᵀ``.
    coupled : bool
        True if the outputs share one Hessian block of size ``C·p`` (softmax); False if every output
        has the same (see ``joint``) or its own ``p × p`` Hessian.
    spread : float
        ``spread · ‖change of the margins‖₂`` bounds the change that self-concordance speaks of:
        1 for a scalar margin, √2 for softmax, 0 if the curvature is constant (or kinked).
    rough : bool
        Whether ``first`` is a difference of a number as large as ``second`` (log links), which
        loses its leading digits.
    third : float
        ``sup |ℓ'''|``, used by the published bounds only (nan where they do not apply).
    steepest : float
        Least upper bound of the curvature: the largest eigenvalue of a row's block.
    kinked : bool
        Whether the second derivative jumps: then nothing is known of the curvature between two
        points, and a model is certified by ``‖∇F‖/Λ`` only.
    """

    name: str
    value: Callable[[Array, Array], Array]
    first: Callable[[Array, Array], tuple[Array, Array]]
    second: Callable[[Array, Array], Array]
    coupled: bool
    spread: float
    third: float
    steepest: float = float("inf")
    rough: bool = False
    kinked: bool = False

    @property
    def joint(self) -> bool:
        """Whether one Hessian serves all outputs: coupled ones, or those of constant curvature."""
        return self.coupled or (self.spread == 0.0 and not self.kinked)

    def __reduce__(self) -> tuple[Callable[[str], Loss], tuple[str]]:
        """Travel between processes as a name."""
        return _named, (self.name,)


def _named(name: str) -> Loss:
    return LOSSES[name]


def _logistic_value(margin: Array, target: Array) -> Array:
    value: Array = np.logaddexp(0.0, -target * margin).sum(axis=1)
    return value


def _logistic_first(margin: Array, target: Array) -> tuple[Array, Array]:
    doubt = expit(-target * margin)
    return -target * doubt, doubt * (1.0 - doubt) + 1e-15 * doubt


def _logistic_second(margin: Array, target: Array) -> Array:
    curvature: Array = expit(margin) * expit(-margin)
    return curvature


def _probabilities(margin: Array) -> Array:
    p: Array = np.exp(margin - margin.max(axis=1, keepdims=True))
    p /= p.sum(axis=1, keepdims=True)
    return p


def _softmax_value(margin: Array, target: Array) -> Array:
    top = margin.max(axis=1)
    value: Array = np.log(np.exp(margin - top[:, None]).sum(axis=1)) + top
    value -= (margin * target).sum(axis=1)
    return value


def _softmax_first(margin: Array, target: Array) -> tuple[Array, Array]:
    p = _probabilities(margin)
    return p - target, p


def _squared_value(margin: Array, target: Array) -> Array:
    value: Array = 0.5 * ((margin - target) ** 2).sum(axis=1)
    return value


def _squared_first(margin: Array, target: Array) -> tuple[Array, Array]:
    return margin - target, np.ones_like(margin)


def _exp(margin: Array) -> Array:
    """Return e^m, finite: beyond 700 the value of the loss is infinite, so nothing ends there."""
    power: Array = np.exp(np.minimum(margin, LARGEST))
    return power


def _poisson_value(margin: Array, target: Array) -> Array:
    value: Array = (_exp(margin) - target * margin).sum(axis=1)
    value[(margin > LARGEST).any(axis=1)] = np.inf
    return value


def _poisson_first(margin: Array, target: Array) -> tuple[Array, Array]:
    mean = _exp(margin)
    return mean - target, mean


def _gamma_value(margin: Array, target: Array) -> Array:
    value: Array = (target * _exp(-margin) + margin).sum(axis=1)
    value[(-margin > LARGEST).any(axis=1)] = np.inf
    return value


def _gamma_first(margin: Array, target: Array) -> tuple[Array, Array]:
    ratio = target * _exp(-margin)
    return 1.0 - ratio, ratio


def _squared_hinge_value(margin: Array, target: Array) -> Array:
    value: Array = (np.maximum(1.0 - target * margin, 0.0) ** 2).sum(axis=1)
    return value


def _squared_hinge_first(margin: Array, target: Array) -> tuple[Array, Array]:
    return -2.0 * target * np.maximum(1.0 - target * margin, 0.0), np.full_like(margin, 2.0)


def _huber_value(margin: Array, target: Array) -> Array:
    off = np.abs(margin - target)
    value: Array = np.where(off <= 1.0, 0.5 * off * off, off - 0.5).sum(axis=1)
    return value


def _huber_first(margin: Array, target: Array) -> tuple[Array, Array]:
    return np.clip(margin - target, -1.0, 1.0), np.ones_like(margin)


LARGEST = 700.0
LOSSES: dict[str, Loss] = {
    loss.name: loss
    for loss in (
        Loss(
            "logistic",
            _logistic_value,
            _logistic_first,
            _logistic_second,
            coupled=False,
            spread=1.0,
            third=1.0 / (6.0 * 3.0**0.5),
            steepest=0.25,
        ),
        Loss(
            "softmax",
            _softmax_value,
            _softmax_first,
            lambda margin, target: _probabilities(margin),
            coupled=True,
            spread=2.0**0.5,
            third=float("nan"),
            steepest=0.5,
        ),
        Loss(
            "squared",
            _squared_value,
            _squared_first,
            lambda margin, target: np.ones((len(margin), 1)),
            coupled=False,
            spread=0.0,
            third=0.0,
            steepest=1.0,
        ),
        Loss(
            "poisson",
            _poisson_value,
            _poisson_first,
            lambda margin, target: _exp(margin),
            coupled=False,
            spread=1.0,
            third=float("inf"),
            rough=True,
        ),
        Loss(
            "gamma",
            _gamma_value,
            _gamma_first,
            lambda margin, target: target * _exp(-margin),
            coupled=False,
            spread=1.0,
            third=float("inf"),
            rough=True,
        ),
        Loss(
            "squared-hinge",
            _squared_hinge_value,
            _squared_hinge_first,
            lambda margin, target: np.where(target * margin < 1.0, 2.0, 0.0),
            coupled=False,
            spread=0.0,
            third=float("nan"),
            steepest=2.0,
            kinked=True,
        ),
        Loss(
            "huber",
            _huber_value,
            _huber_first,
            lambda margin, target: np.where(np.abs(margin - target) <= 1.0, 1.0, 0.0),
            coupled=False,
            spread=0.0,
            third=float("nan"),
            steepest=1.0,
            kinked=True,
        ),
    )
}
