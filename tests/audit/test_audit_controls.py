"""Every control is caught by the steps named for it; exact retraining and the engine by none."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from expunge.audit import controls, convex, noise_checks, proving
from expunge.audit.falsify import falsify
from expunge.audit.findings import Plan
from expunge.audit.intervals import clopper_pearson
from expunge.guarantee import View
from expunge.noise import Seeded
from oracles import minimiser


@pytest.fixture(scope="module")
def bed():
    return proving.bed(7)


@pytest.mark.parametrize("control", controls.CONTROLS, ids=lambda one: one.name)
def test_every_control_is_caught_by_the_steps_named(bed, control):
    found = proving.check(control, bed)
    assert set(control.caught_by) <= set(found.refuted_by)
    assert found.right
    if set(control.caught_by) - {"twiceReleased", "reconstruction"}:
        assert found.outcome.verdict == "FALSIFIED"


@pytest.mark.parametrize("control", controls.HONEST, ids=lambda one: one.name)
@pytest.mark.parametrize("view", [View.transcript, View.afterOnly])
def test_the_honest_are_caught_by_none(bed, control, view):
    found = proving.check(control, bed, view=view, seed=3)
    assert found.refuted_by == ()
    assert found.right
    assert found.outcome.verdict == "CONSISTENT"
    assert found.outcome.level == "c"


def test_reused_noise_leaves_the_view_of_one_release_consistent(bed):
    reused = next(one for one in controls.CONTROLS if one.name == "reusedNoise")
    after = proving.check(reused, bed, view=View.afterOnly)
    assert after.outcome.verdict == "CONSISTENT"
    assert after.outcome["noiseReuse"].sealed
    assert "does not cover" in after.outcome["noiseReuse"].reason
    assert proving.check(reused, bed).outcome.verdict == "FALSIFIED"


def test_a_control_that_is_not_caught_is_not_right(bed):
    """Negative control: an honest pipeline under a faulty name."""
    mislabelled = replace(controls.CONTROLS[0], method=convex.unlearn)
    assert not proving.check(mislabelled, bed).right
    suspect = replace(controls.HONEST[0], method=convex.keep)
    assert not proving.check(suspect, bed).right


def test_the_faulty_steps_are_what_they_say(bed):
    """Independent Newton steps; all miss the tolerance, exact retraining does not."""
    X, y = np.asarray(bed.rows.X), bed.rows.target
    left = ~bed.gone
    truth = minimiser(X[left], y[left], np.ones(left.sum()), "logistic", 1.0, False)
    w = bed.state.weights

    def slope(rows):
        a = 1 / (1 + np.exp(y[rows] * (X[rows] @ w)))
        return w - X[rows].T @ (y[rows] * a), (X[rows] * (a * (1 - a))).T @ X[rows] + np.eye(64)

    given = bed.state, bed.forget, bed.retained
    every = np.ones(len(y), bool)
    one = w - np.linalg.solve(slope(left)[1], slope(left)[0])
    wrong = w - np.linalg.solve(slope(every)[1], slope(left)[0])
    assert controls.one_step(*given) == pytest.approx(one, abs=1e-10)
    assert controls.wrong_hessian(*given) == pytest.approx(wrong, abs=1e-10)
    tau = bed.policy.tolerance
    for method in (convex.keep, controls.one_step, controls.wrong_hessian, controls.stale_factor):
        assert np.linalg.norm(method(*given) - truth) > 100 * tau
    for method in (convex.unlearn, controls.retrain):
        assert np.linalg.norm(method(*given) - truth) <= tau


def test_forget_against_retain_is_void(bed):
    """Retraining fails it and doing nothing passes: the gate says that it cannot decide."""
    test = proving.forget_versus_retain(bed)
    shown = proving.issue(controls.HONEST[0], bed)
    found = falsify(
        shown.envelope, shown.outside, files=shown.files, sealed=shown.sealed, plan=Plan((test,))
    )
    assert found.status == "void"
    assert found.verdict is None
    assert found["forgetVersusRetain"].oracle.failures == 5
    assert "retrained models fail" in found.reading


def test_what_the_holder_of_two_versions_sees(bed):
    """A reused perturbation is no perturbation at any size; a loud fresh one hides every row."""
    fresh, reused = (
        proving.pointed_at(one, bed) for one in (controls.HONEST[0], controls.CONTROLS[6])
    )
    assert reused.top1 == 1.0
    assert reused.mean_p < 0.01
    assert fresh.mean_p > 0.3


def test_half_the_noise_is_seen_without_the_sealed_state(bed):
    rng, hits = np.random.default_rng(0), 0
    sigma, w = bed.policy.sigma, bed.retrained
    for _ in range(100):
        pair = [convex.noised(w, sigma / 2, Seeded(int(rng.integers(2**60)))) for _ in range(2)]
        hits += noise_checks.twice_released(*pair, sigma).refuted
    assert hits > 90


@pytest.mark.slow
def test_false_alarms_of_exact_retraining_are_within_their_level():
    """200 audits of small retrained models: every step within Clopper–Pearson of its level."""
    small = proving.bed(1, rows=120, features=30)
    flagged: dict[str, int] = {}
    bounds: dict[str, int] = {}
    for seed in range(200):
        found = proving.check(controls.HONEST[seed % 2], small, seed=seed)
        assert found.outcome.status == "decided"
        for name in found.refuted_by:
            flagged[name] = flagged.get(name, 0) + 1
        for finding in found.outcome.findings:
            if finding.share is not None:
                bounds[finding.name] = bounds.get(finding.name, 0) + finding.flagged
    assert set(flagged) <= {"unlearnVersusRetrain", "canaries"}
    for count in (*flagged.values(), *bounds.values()):
        assert clopper_pearson(count, 200, 0.01)[0] <= 0.025
