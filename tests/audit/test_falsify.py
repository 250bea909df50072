"""The order of the steps, what each may refute, and what nobody can decide."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import numpy as np
import pytest

from certificate_example import NOW, SIGNER, STRANGER, envelope
from expunge.audit import controls, convex, proving
from expunge.audit.falsify import falsify
from expunge.audit.findings import Claim, Finding, Plan
from expunge.audit.trials import Canaries, ExactP, UnlearnVersusRetrain, likelihood_ratio
from expunge.certificate import recheck
from expunge.certificate.statement import Certificate
from expunge.errors import InvalidInput, VerificationFailed
from expunge.guarantee import View, epsilon_of

HONEST, NOOP = controls.HONEST[1], controls.CONTROLS[0]
GAUSSIAN = Claim("mu", 1.0, 1e-5, 0.3139, View.transcript, "weights", 50)
BARE = Claim("epsilon", 1.0, 1e-5, None, View.transcript, "weights", 50)
EXACT = Claim("exact", 0.0, 0.0, 0.0, View.transcript, "weights", 50)


@pytest.fixture(scope="module")
def bed():
    return proving.bed(2)


@pytest.fixture(scope="module")
def honest(bed):
    return proving.issue(HONEST, bed)


def shown(issued, **more):
    return falsify(
        issued.envelope, issued.outside, files=issued.files, sealed=issued.sealed, **more
    )


def test_steps_come_in_order_and_end_with_a_refutation(bed, honest):
    plan = Plan((convex.against_retraining(bed, runs=50),))
    found = shown(honest, plan=plan, replay=lambda: honest.sealed.weights)
    names = [finding.name for finding in found.findings]
    assert names == [
        "recheck",
        "noiseSize",
        "noiseReuse",
        "realised",
        "replay",
        "unlearnVersusRetrain",
    ]
    assert found.verdict == "CONSISTENT"
    kept = proving.issue(NOOP, bed)
    found = shown(kept, plan=plan)
    assert [finding.name for finding in found.findings] == ["recheck"]
    assert found.verdict == "FALSIFIED"
    assert "FALSIFIED by recheck" in found.reading
    lazy = Plan((convex.against_retraining(bed, convex.keep, runs=50),))
    every = shown(kept, plan=lazy, thorough=True)
    assert every["realised"].refutes
    assert every["unlearnVersusRetrain"].refutes


def test_the_detectable_epsilon_is_printed(bed, honest):
    found = shown(honest)
    stated = bed.policy.mu_per_release
    assert found.detectable_mu == pytest.approx(2 * stated, rel=0.01)
    assert found.detectable_epsilon == epsilon_of(found.detectable_mu, 1e-4)
    assert "would have been detected" in found.reading
    alone = falsify(honest.envelope, honest.outside)
    assert alone.verdict == "CONSISTENT"
    assert alone.detectable_epsilon is None
    assert "says nothing" in alone.reading


@pytest.mark.parametrize("factor", [0.9, 2.0, 3.5, 30.0])
def test_the_realised_step_detects_what_it_says(bed, honest, factor):
    """Parameters moved by a multiple of the tolerance; sure beyond 3τ, silent within τ."""
    rng = np.random.default_rng(0)
    move = rng.normal(size=bed.retrained.shape)
    move *= factor * bed.policy.tolerance / np.linalg.norm(move)
    moved = replace(honest.sealed, weights=bed.retrained + move)
    found = falsify(
        honest.envelope, honest.outside, files=honest.files, sealed=moved, thorough=True
    )
    if factor < 1:
        assert found.verdict == "CONSISTENT"
    if factor > 3.1:
        assert found["realised"].refutes


def test_a_replay_that_gives_something_else_refutes(bed, honest):
    tau = bed.policy.tolerance
    near = honest.sealed.weights + 0.1 * tau
    assert shown(honest, replay=lambda: near).verdict == "CONSISTENT"
    found = shown(honest, replay=lambda: honest.sealed.weights + tau)
    assert found["replay"].refutes
    assert found.verdict == "FALSIFIED"
    with pytest.raises(InvalidInput, match="replay gave"):
        shown(honest, replay=lambda: np.zeros((2, 2)))


def test_other_material_decides_nothing(bed, honest):
    other = proving.issue(HONEST, bed, seed=9)
    found = falsify(
        honest.envelope, honest.outside, files=other.files, sealed=honest.sealed, thorough=True
    )
    assert (found.verdict, found.status) == (None, "void")
    assert "not what was certified" in found.reading
    missing = replace(honest.sealed, rows=other.sealed.rows, salts=other.sealed.salts)
    found = falsify(honest.envelope, honest.outside, files=honest.files, sealed=missing)
    assert found.status == "void"


def test_a_certificate_that_nobody_trusts_is_none(honest):
    stranger = replace(honest.outside, trusted=[STRANGER.public])
    with pytest.raises(VerificationFailed, match="signature"):
        falsify(honest.envelope, stranger)
    with pytest.raises(VerificationFailed, match="json"):
        falsify(b"{", honest.outside)
    unknown = envelope({"evidence.mechanism": "magic"}).to_json()
    outside = recheck.Outside(trusted=[SIGNER.public], now=NOW)
    with pytest.raises(VerificationFailed, match="mechanism"):
        falsify(unknown, outside)


def test_numbers_that_do_not_follow_refute():
    outside = recheck.Outside(trusted=[SIGNER.public], now=NOW)
    assert falsify(envelope().to_json(), outside).verdict == "CONSISTENT"
    for change in (
        {"guarantee.epsilon": "0.5"},
        {"guarantee.mu": "0.1"},
        {"evidence.sigma": "0.0001"},
        {"budget.muSquaredPerRelease": "1e-6"},
        {"guarantee.grade": "exact"},
    ):
        found = falsify(envelope(change).to_json(), outside)
        assert found.verdict == "FALSIFIED", change
        assert len(found.findings) == 1


def test_dates_and_test_noise_are_noted_and_refute_nothing(honest):
    late = replace(honest.outside, now=honest.outside.now + timedelta(days=4000))
    found = falsify(honest.envelope, late)
    assert found.verdict == "CONSISTENT"
    assert "clock" in found.findings[0].reason
    assert "production" in found.findings[0].reason


def test_a_promise_of_nothing_cannot_be_refuted():
    changes = {
        "guarantee.type": "none",
        "guarantee.epsilon": None,
        "guarantee.delta": None,
        "guarantee.mu": None,
        "guarantee.grade": "heuristic",
        "evidence.mechanism": "none",
    }
    outside = recheck.Outside(trusted=[SIGNER.public], now=NOW)
    with pytest.raises(InvalidInput, match="promises nothing"):
        falsify(envelope(changes).to_json(), outside)


def test_the_claim_of_one_release():
    claim = Claim.of(Certificate.from_payload(envelope().payload))
    assert claim.form == "mu"
    assert claim.mu == pytest.approx(2e-6 / 0.0002671922, rel=1e-6)
    assert claim.mu >= 2e-6 / 0.0002671922
    assert (claim.epsilon, claim.delta, claim.deletions) == (1.0, 1e-6, 50)


def test_a_bound_on_mu_does_not_refute_a_bare_epsilon():
    assert GAUSSIAN.refuted(0.0, 0.4)
    assert not GAUSSIAN.refuted(5.0, 0.3)
    assert BARE.refuted(1.1, 0.0)
    assert not BARE.refuted(0.9, 50.0)
    assert EXACT.refuted(0.0, 1e-9)
    assert not EXACT.refuted(0.0, 0.0)


def gaussian_test(mu, runs=100, d=6):
    shift = np.zeros(d)
    shift[0] = mu

    def release(centre):
        return lambda seed: centre + np.random.default_rng(seed).normal(size=d)

    far = shift if mu else np.eye(d)[0]
    return UnlearnVersusRetrain(
        release(shift),
        release(np.zeros(d)),
        likelihood_ratio(far, np.zeros(d)),
        release(5 * np.eye(d)[0]),
        runs,
    )


def test_runs_against_runs():
    rng = np.random.default_rng(1)
    large = gaussian_test(3.0)
    assert large.subjects == ("candidate", "retrain", "nothing")
    for claim in (GAUSSIAN, BARE):
        assert large.run(claim, 0.05, "candidate", rng).refutes
        same = large.run(claim, 0.05, "retrain", rng)
        assert not same.refutes
        assert same.ceiling > 3
        assert large.run(claim, 0.05, "nothing", rng).refutes
    assert large.run(GAUSSIAN, 0.05, "candidate", rng).detectable_mu == pytest.approx(
        0.99, abs=0.01
    )


@pytest.mark.slow
def test_power_of_runs_against_runs():
    """The theory's simulation: R = 1000 and 500 selection, claim μ 0.3139, and ε = 1."""
    for mu, by_mu, by_epsilon in ((0.3139, 0.0, 0.0), (0.628, 0.89, 0.05), (1.256, 1.0, 1.0)):
        rng, hits = np.random.default_rng(3), np.zeros(2)
        test = gaussian_test(mu, 1000, d=1)
        for _ in range(60):
            for k, claim in enumerate((GAUSSIAN, BARE)):
                hits[k] += test.run(claim, 0.05, "candidate", rng).refutes
        assert hits / 60 == pytest.approx([by_mu, by_epsilon], abs=0.13)


def test_noise_that_is_always_the_same_refutes():
    test = replace(gaussian_test(0.0), unlearn=lambda seed: np.arange(6.0))
    found = test.run(GAUSSIAN, 0.05, "candidate", np.random.default_rng(0))
    assert found.refutes
    assert "degenerate" in found.reason
    exact = replace(test, retrain=lambda seed: np.arange(6.0))
    assert not exact.run(EXACT, 0.05, "candidate", np.random.default_rng(0)).refutes


def test_planted_noise_and_other_exact_p_values():
    def uniform(seed):
        return float(np.random.default_rng(seed).random())

    test = ExactP("poison", lambda seed: 1e-9, uniform, lambda seed: 1e-12)
    rng = np.random.default_rng(0)
    found = test.run(GAUSSIAN, 0.05, "candidate", rng)
    assert found.refutes
    assert found.ceiling is None
    bounded = replace(test, least=1 / 100)
    assert bounded.run(GAUSSIAN, 0.05, "candidate", rng).ceiling == pytest.approx(0.6815, abs=1e-3)
    flagged = sum(test.run(GAUSSIAN, 0.05, "retrain", rng).flagged for _ in range(400))
    assert 5 < flagged < 40


def test_canaries_within_the_claim_only():
    test = Canaries(lambda b, s: b * 1.0, lambda b, s: b * 1.0, pairs=51, runs=1)
    with pytest.raises(InvalidInput, match="claim covers 50"):
        test.run(GAUSSIAN, 0.05, "candidate", np.random.default_rng(0))
    with pytest.raises(InvalidInput, match="deletes nothing"):
        replace(test, pairs=5).run(GAUSSIAN, 0.05, "nothing", np.random.default_rng(0))


def test_weights_are_not_looked_at_where_outputs_are_claimed(bed):
    outside = recheck.Outside(trusted=[SIGNER.public], now=NOW)
    outputs = envelope({"guarantee.access": "outputs"}).to_json()
    with pytest.raises(InvalidInput, match="covers outputs only"):
        falsify(outputs, outside, plan=Plan((gaussian_test(0.0),)))
    seen = replace(gaussian_test(0.0, runs=20), access="outputs")
    assert falsify(outputs, outside, plan=Plan((seen,))).verdict == "CONSISTENT"


def test_tests_share_alpha_and_pass_on_retraining_first(honest):
    tests = tuple(replace(gaussian_test(0.0, 20), name=f"t{k}") for k in range(4))
    found = shown(honest, plan=Plan(tests, alpha=0.04))
    assert [finding.share for finding in found.findings[-4:]] == [0.01] * 4
    assert all(finding.oracle.runs == 5 for finding in found.findings[-4:])
    biased = replace(gaussian_test(0.0, 60), retrain=gaussian_test(0.0).nothing)
    broken = replace(biased, unlearn=gaussian_test(0.0).unlearn)
    assert shown(honest, plan=Plan((broken,))).verdict == "FALSIFIED"
    with pytest.raises(InvalidInput, match="different names"):
        Plan((tests[0], tests[0]))
    with pytest.raises(InvalidInput, match="5 oracles"):
        Plan(oracles=4)


def test_the_same_seed_gives_the_same_answer(honest, bed):
    plan = Plan((convex.against_retraining(bed, runs=30),), seed=5)
    first, second = (shown(honest, plan=plan) for _ in range(2))
    assert first.findings == second.findings


def test_no_reason_holds_a_noiseless_number(bed, honest):
    for finding in shown(honest, replay=lambda: honest.sealed.weights).findings:
        if finding.sealed:
            assert f"{finding.statistic:.3g}" not in finding.reason
    assert not Finding("x", False, "y").flagged
