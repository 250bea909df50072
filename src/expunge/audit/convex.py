"""Audits of the convex engine on audit data: pipelines, and the tests of `expunge.audit.trials`.

The pipeline under audit is a function from the sealed state, the rows to delete and the retained
rows to unnoised parameters; the noise is added here, as releases do. The engine is deterministic,
so its parameters are computed once and noised as often as a test asks.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from expunge.audit.canaries import Pairs, Signs, decoder
from expunge.audit.intervals import Array
from expunge.audit.trials import Canaries, Release, UnlearnVersusRetrain, likelihood_ratio
from expunge.certificate.policy import Policy
from expunge.errors import InvalidInput
from expunge.linear import engine
from expunge.linear.engine import State
from expunge.linear.rows import Rows, make_rows
from expunge.noise import NoiseSource, Seeded, release

Unlearn = Callable[[State, Rows, Rows], Array]
"""From the state of a fit, the rows to delete and the retained rows to parameters (p, C)."""
Noising = Callable[[Array, int], Array]
"""From unnoised parameters and a seed to a release."""


def unlearn(state: State, forget: Rows, retained: Rows) -> Array:
    """Delete as the engine does."""
    return engine.unlearn(state, forget, retained)[0].weights


def keep(state: State, forget: Rows, retained: Rows) -> Array:
    """Delete nothing."""
    return state.weights


@dataclass(frozen=True, repr=False)
class Bed:
    """Audit data with the policy of the certificate whose claim is audited.

    Attributes
    ----------
    policy : Policy
        Its loss, penalties, tolerance and σ are used.
    rows : Rows
        Inside the claim's domain: encoded, and scaled, as the policy says.
    gone : (n,) bool array
        The rows of S.
    """

    policy: Policy
    rows: Rows
    gone: NDArray[np.bool_]

    def fit(self, rows: Rows) -> State:
        """Fit from scratch under the policy."""
        return engine.fit(
            rows,
            loss=self.policy.loss,
            l2=self.policy.l2,
            l1=self.policy.l1,
            tolerance=self.policy.tolerance,
            classes=False,
        )[0]

    @cached_property
    def state(self) -> State:
        """The fit on all rows."""
        return self.fit(self.rows)

    @cached_property
    def forget(self) -> Rows:
        """The rows of S."""
        return self.rows.take(self.gone)

    @cached_property
    def retained(self) -> Rows:
        """All other rows."""
        return self.rows.take(~self.gone)

    @cached_property
    def retrained(self) -> Array:
        """The library's own fit on the retained rows: the comparator, unnoised."""
        return self.fit(self.retained).weights

    def noised(self, weights: Array, seed: int) -> Array:
        """Release parameters as the policy says, with seeded noise."""
        return noised(weights, self.policy.sigma, Seeded(seed))


def noised(weights: Array, sigma: float, source: NoiseSource) -> Array:
    """Return parameters with noise, on the grid of releases."""
    return release(weights, sigma, source, bytes(32)).weights


def against_retraining(
    bed: Bed, method: Unlearn = unlearn, *, runs: int = 1000, noising: Noising | None = None
) -> UnlearnVersusRetrain:
    """Return the test of a method against retraining, scored by its likelihood ratio.

    Parameters
    ----------
    bed : Bed
    method : callable
        The pipeline under audit.
    runs : int
        Evaluation runs of each side.
    noising : callable or None
        How the pipeline under audit adds its noise; None: as the policy says.
    """
    target = method(bed.state, bed.forget, bed.retained)
    noise = noising or bed.noised

    far = bed.state.weights if np.array_equal(target, bed.retrained) else target

    def releases(weights: Array, add: Noising) -> Release:
        return lambda seed: add(weights, seed)

    return UnlearnVersusRetrain(
        releases(target, noise),
        releases(bed.retrained, bed.noised),
        likelihood_ratio(far, bed.retrained),
        releases(bed.state.weights, bed.noised),
        runs,
    )


def with_canaries(
    bed: Bed,
    pairs: Pairs,
    method: Unlearn = unlearn,
    *,
    runs: int = 20,
    seed: int = 0,
    noising: Noising | None = None,
) -> Canaries:
    """Return the canary test of a method, decoded by the response of deleting nothing.

    Parameters
    ----------
    bed : Bed
        Its retained rows are the base rows B.
    pairs : Pairs
        Canaries, encoded as the rows are; ``pairs.y`` are targets.
    method : callable
        The pipeline under audit.
    runs, seed : int
        Runs of the audit; the seed of the calibration.
    """
    base, noise = bed.retained, noising or bed.noised
    if pairs.X.shape[2] != base.X.shape[1]:
        raise InvalidInput(f"canaries have {pairs.X.shape[2]} features, rows {base.X.shape[1]}")
    count = base.length

    def trained(signs: Signs) -> tuple[State, Rows]:
        rows = joined(base, *pairs.included(signs))
        return bed.fit(rows), rows.take(np.arange(count, rows.length))

    def faulty(signs: Signs) -> Array:
        return trained(signs)[0].weights

    decode = decoder(
        faulty, bed.retrained, len(pairs), bed.policy.sigma, np.random.default_rng(seed)
    )

    def unlearned(signs: Signs, number: int) -> Array:
        state, forget = trained(signs)
        return decode.contrasts(noise(method(state, forget, base), number), signs)

    def retrained(signs: Signs, number: int) -> Array:
        return decode.contrasts(bed.noised(bed.retrained, number), signs)

    def kept(signs: Signs, number: int) -> Array:
        return decode.contrasts(bed.noised(faulty(signs), number), signs)

    return Canaries(unlearned, retrained, kept, len(pairs), runs)


def joined(base: Rows, X: Array, target: Array) -> Rows:
    """Return base rows with more rows after them."""
    dense = base.X.toarray() if sp.issparse(base.X) else base.X
    return make_rows(
        np.vstack([np.asarray(dense, dtype=np.float64), X]),
        np.concatenate([base.target, np.asarray(target, float).reshape(len(X), -1)]),
        np.concatenate([base.weight, np.ones(len(X))]),
        intercept=base.intercept,
    )
