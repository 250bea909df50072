"""Controls: small faulty pipelines over the convex engine that an audit has to catch.

Each is wrong in one way and issues an honest-looking certificate all the same;
`expunge.audit.proving.check` runs the audit against it and says which steps refuted. The honest
ones, exact retraining and the engine, must be refuted by none.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from expunge.audit import convex
from expunge.audit.convex import Unlearn
from expunge.audit.intervals import Array
from expunge.linear import engine
from expunge.linear.engine import State
from expunge.linear.losses import LOSSES
from expunge.linear.rows import Rows

Freshness = Literal["fresh", "reused", "fixed"]


@dataclass(frozen=True)
class Control:
    """A faulty pipeline.

    Attributes
    ----------
    name, fault : str
        The fault in words.
    caught_by : tuple of str
        Steps that must refute it.
    method : callable
        From state, forgotten and retained rows to parameters.
    scale : float
        Share of σ that is really added.
    noise : {"fresh", "reused", "fixed"}
        Whether releases of a lineage, or all runs, share their noise.
    """

    name: str
    fault: str
    caught_by: tuple[str, ...]
    method: Unlearn = convex.unlearn
    scale: float = 1.0
    noise: Freshness = "fresh"


def _derivatives(rows: Rows, W: Array, l2: float) -> tuple[Array, Array]:
    """Return gradient (p, 1) and Hessian (p, p) of the logistic objective without intercept."""
    loss, X = LOSSES["logistic"], np.asarray(rows.X, dtype=np.float64)
    first, _ = loss.first(X @ W, rows.target)
    second = loss.second(X @ W, rows.target)
    return X.T @ first + l2 * W, (X * second).T @ X + l2 * np.eye(X.shape[1])


def one_step(state: State, forget: Rows, retained: Rows) -> Array:
    """Take one Newton step where the tolerance needs two."""
    gradient, hessian = _derivatives(retained, state.weights, state.l2)
    return state.weights - np.linalg.solve(hessian, gradient)


def wrong_hessian(state: State, forget: Rows, retained: Rows) -> Array:
    """Take one step with the Hessian of all rows instead of the retained ones."""
    gradient, _ = _derivatives(retained, state.weights, state.l2)
    every = convex.joined(retained, np.asarray(forget.X), forget.target)
    return state.weights - np.linalg.solve(
        _derivatives(every, state.weights, state.l2)[1], gradient
    )


def stale_factor(state: State, forget: Rows, retained: Rows) -> Array:
    """Take one step with a Hessian factored at the start of the fit."""
    gradient, _ = _derivatives(retained, state.weights, state.l2)
    hessian = _derivatives(retained, np.zeros_like(state.weights), state.l2)[1]
    return state.weights - np.linalg.solve(hessian, gradient)


def retrain(state: State, forget: Rows, retained: Rows) -> Array:
    """Fit from scratch on the retained rows."""
    return engine.fit(
        retained,
        loss=state.loss,
        l2=state.l2,
        l1=state.l1,
        tolerance=state.tolerance,
        classes=False,
    )[0].weights


EXACT = ("recheck", "realised")
CONTROLS = (
    Control(
        "noop",
        "nothing is deleted",
        (*EXACT, "unlearnVersusRetrain", "canaries"),
        convex.keep,
    ),
    Control(
        "noise/200", "noise 200 times too small", ("noiseSize", "twiceReleased"), scale=1 / 200
    ),
    Control("noise/2", "noise half as large as stated", ("noiseSize", "twiceReleased"), scale=0.5),
    Control("wrongHessian", "a step with the Hessian of all rows", EXACT, wrong_hessian),
    Control("staleFactor", "a step with the factor of another point", EXACT, stale_factor),
    Control("oneStep", "one step where two are needed", EXACT, one_step),
    Control(
        "reusedNoise",
        "both releases of the lineage carry one noise",
        ("recheck", "noiseReuse", "reconstruction"),
        noise="reused",
    ),
    Control(
        "fixedSeed",
        "every run draws the same noise",
        ("unlearnVersusRetrain", "twiceReleased"),
        noise="fixed",
    ),
)
HONEST = (
    Control("retrain", "none: exact retraining", (), retrain),
    Control("unlearn", "none: the engine", ()),
)
