"""The audit is audited: every control must be caught by the steps named for it, retraining by none.

All data are drawn here, so that the controls can be run anywhere, before any audit that counts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from expunge import modelfile
from expunge.audit import canaries, convex, noise_checks, reconstruct
from expunge.audit.controls import CONTROLS, HONEST, Control
from expunge.audit.convex import Bed, noised
from expunge.audit.falsify import Falsification, falsify
from expunge.audit.findings import Plan
from expunge.audit.intervals import Array, area
from expunge.audit.trials import ExactP
from expunge.certificate import recheck
from expunge.certificate.blocks import Commitments, NoiseRecord, Subject, sealed_digest
from expunge.certificate.keys import KeySigner
from expunge.certificate.policy import Policy
from expunge.certificate.statement import Certificate
from expunge.guarantee import View, sigma_for
from expunge.linear import engine, lineage
from expunge.linear.losses import LOSSES
from expunge.linear.rows import make_rows
from expunge.noise import Seeded, release

TOLERANCE = 1e-6
RELEASES = 4
RUNS = 100
CANARY_RUNS = 5
PAIRS = 25
DELETED = 40
SINGLE = 50
LOUD = 1.0
"""Noise under which fresh perturbations hide a deleted row, and a reused one does not."""
POINTED_AT = 0.05
"""Mean rank p of reconstructions below which releases share their noise."""


@dataclass(frozen=True)
class Checked:
    """What the audit made of a control.

    Attributes
    ----------
    control : Control
    outcome : Falsification
    refuted_by : tuple of str
        Steps that refuted it.
    """

    control: Control
    outcome: Falsification
    refuted_by: tuple[str, ...]

    @property
    def right(self) -> bool:
        """Whether all steps named for it refuted it; for an honest pipeline, whether none did."""
        if not self.control.caught_by:
            return not self.refuted_by
        return set(self.control.caught_by) <= set(self.refuted_by)


def bed(seed: int = 0, *, rows: int = 400, features: int = 64) -> Bed:
    """Return audit data of two classes with wrong labels among them, and a policy with tight σ."""
    rng = np.random.default_rng(seed)
    target = rng.choice([-1.0, 1.0], size=rows)
    X = rng.normal(size=(rows, features)) + target[:, None] / np.sqrt(features)
    X /= np.linalg.norm(X, axis=1, keepdims=True)
    target = np.where(rng.random(rows) < 0.1, -target, target)
    policy = Policy(
        loss="logistic",
        l2=1.0,
        fit_intercept=False,
        features=features,
        outputs=1,
        epsilon=1.0,
        delta=1e-4,
        releases=RELEASES,
        sigma=sigma_for(2 * TOLERANCE, 1.0, 1e-4, RELEASES) * (1 + 1e-9),
        tolerance=TOLERANCE,
        capacity=max(DELETED, PAIRS),
        classes=(0, 1),
        noise="seeded",
    )
    made = make_rows(X, target, intercept=False)
    return Bed(policy, made, np.arange(rows) < DELETED)


@dataclass(frozen=True, repr=False)
class Issued:
    """A certificate with everything that an auditor is shown."""

    envelope: bytes
    outside: recheck.Outside
    files: dict[str, bytes]
    sealed: recheck.Sealed


def issue(control: Control, on: Bed, view: View = View.transcript, seed: int = 0) -> Issued:
    """Train, delete with a control, and certify it as if nothing were wrong."""
    policy = on.policy
    started, first = lineage.begin(policy, on.rows, Seeded(seed))
    removal = started.members.preview(started.digests(on.forget), None)
    weights = control.method(started.state, on.forget, on.retained)
    source = Seeded(seed if control.noise != "fresh" else seed + 1)
    found = release(weights, policy.sigma * control.scale, source, started.noise_key)
    model = lineage.to_model(policy, found.weights)
    content, annex = modelfile.encode(model), b"annex of a control"
    heads = removal.after
    certificate = Certificate.issue(
        policy,
        subject=[Subject(lineage.MODEL_NAME, modelfile.digest(content))],
        requests=(),
        commitments=Commitments(
            started.members.depth, heads.training, heads.deleted, heads.retained
        ),
        algorithm=lineage.ALGORITHM,
        model_before=modelfile.digest(started.content),
        noise=NoiseRecord.of(found),
        sealed_digest=sealed_digest(annex),
        release=2,
        previous=started.previous,
        view=view,
    )
    started.members.apply(removal)
    signer = KeySigner(Ed25519PrivateKey.generate())
    before = first.published.model.coef.T - started.state.weights
    tags = [first.published.statement.noise.tag] if first.published.statement.noise else []
    outside = recheck.Outside(
        trusted=[signer.public], now=datetime.now(UTC) + timedelta(seconds=1), tags=tags
    )
    sealed = _opened(started, on, weights, annex, before)
    envelope = certificate.sign(signer).to_json()
    return Issued(envelope, outside, {lineage.MODEL_NAME: content}, sealed)


def _opened(
    started: lineage.Lineage, on: Bed, weights: Array, annex: bytes, before: Array
) -> recheck.Sealed:
    members, left = started.members, on.retained
    arrays = members.to_arrays()
    return recheck.Sealed(
        weights=weights,
        rows=recheck.Rows(left.X, left.target, left.weight),
        salts=members.salts(members.find(started.digests(left), None)),
        ids=None,
        deleted_leaves=arrays["leaf"][arrays["live"] == 0],
        annex=annex,
        previous_noise=before,
    )


def check(control: Control, on: Bed, *, view: View = View.transcript, seed: int = 0) -> Checked:
    """Run the whole audit against a control."""

    def noising(weights: Array, number: int) -> Array:
        source = Seeded(0 if control.noise == "fixed" else number)
        return noised(weights, on.policy.sigma * control.scale, source)

    pairs = canaries.plant(
        np.asarray(on.rows.X), on.rows.target, PAIRS, np.random.default_rng(seed)
    )
    plan = Plan(
        (
            convex.against_retraining(on, control.method, runs=RUNS, noising=noising),
            convex.with_canaries(
                on, pairs, control.method, runs=CANARY_RUNS, seed=seed, noising=noising
            ),
        ),
        seed=seed,
    )
    shown = issue(control, on, view, seed)
    outcome = falsify(
        shown.envelope,
        shown.outside,
        files=shown.files,
        sealed=shown.sealed,
        plan=plan,
        thorough=True,
    )
    refuted = [f.name for f in outcome.findings if f.refutes and not f.void]
    first, second = (noising(shown.sealed.weights, seed + extra) for extra in (2, 3))
    if noise_checks.twice_released(first, second, on.policy.sigma).refuted:
        refuted.append("twiceReleased")
    if pointed_at(control, on, seed).mean_p < POINTED_AT:
        refuted.append("reconstruction")
    return Checked(control, outcome, tuple(refuted))


def pointed_at(control: Control, on: Bed, seed: int = 0) -> reconstruct.Exposure:
    """Return what the holder of two versions sees of single rows, under loud noise."""
    rng, rows, state = np.random.default_rng(seed), on.rows, on.state
    X = np.asarray(rows.X, dtype=np.float64)
    second = LOSSES[on.policy.loss].second(X @ state.weights, rows.target)
    hessian = (X * second).T @ X + on.policy.l2 * np.eye(rows.width)
    found = []
    for i in range(SINGLE):
        others = np.delete(np.arange(rows.length), i)
        new = engine.unlearn(state, rows.take(np.array([i])), rows.take(others))[0].weights
        first = rng.normal(size=new.shape)
        again = rng.normal(size=new.shape) if control.noise == "fresh" else first
        moved = state.weights + LOUD * first, new + LOUD * again
        estimate = reconstruct.reconstruct(hessian, *(w.ravel() for w in moved))
        found.append(reconstruct.rank(estimate, X[i], X[others]))
    return reconstruct.exposure(found)


def forget_versus_retain(on: Bed, method: convex.Unlearn = convex.unlearn) -> ExactP:
    """Return the audit that compares deleted with retained rows: a mistake.

    A perfect retrain has seen the retained rows and not the deleted ones, so it fails, and doing
    nothing passes. The gate must void it.
    """

    def p(weights: Array, seed: int) -> float:
        released = on.noised(weights, seed)
        sides = (on.forget, on.retained)
        losses = [LOSSES[on.policy.loss].value(rows.X @ released, rows.target) for rows in sides]
        return area(losses[0], losses[1]).p

    state = on.state
    weights = method(state, on.forget, on.retained)
    return ExactP(
        "forgetVersusRetain",
        lambda seed: p(weights, seed),
        lambda seed: p(on.retrained, seed),
        lambda seed: p(state.weights, seed),
    )


def check_all(
    on: Bed | None = None, controls: Sequence[Control] = (*CONTROLS, *HONEST), *, seed: int = 0
) -> tuple[Checked, ...]:
    """Run the audit against all controls and both honest pipelines."""
    place = bed(seed) if on is None else on
    return tuple(check(control, place, seed=seed + 10 * i) for i, control in enumerate(controls))
