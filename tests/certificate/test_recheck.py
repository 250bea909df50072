"""Recheck level (a): what is right passes, every fault is caught under its name."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

import numpy as np
import pytest

import certificate_example as example
from certificate_example import NOW, SIGNER, STRANGER, envelope, failed, payload
from expunge.certificate import log, statement
from expunge.certificate.blocks import batch_commitment
from expunge.certificate.envelope import IN_TOTO, Envelope, Signature, cosign, sign
from expunge.certificate.recheck import Inclusion, Outside, Verdict, recheck

OUTSIDE = Outside(trusted=[SIGNER.public], now=NOW)


# --- level (a) ----------------------------------------------------------------------------------


def test_the_example_holds() -> None:
    report = recheck(envelope().to_json(), OUTSIDE)
    assert report.level == "a"
    assert report.passed
    assert "data not seen" in report.summary
    assert report["model"].verdict is Verdict.NOT_CHECKED


@pytest.mark.parametrize(
    ("changes", "name"),
    [
        ({"guarantee.mu": "0.2"}, "understated"),
        ({"guarantee.epsilon": "0.9"}, "understated"),
        ({"guarantee.delta": "1e-7"}, "understated"),
        ({"guarantee.delta": "0"}, "understated"),
        ({"evidence.sigma": "0.0002"}, "understated"),
        ({"evidence.sigma": "0"}, "understated"),
        ({"evidence.shift": "1e-6"}, "understated"),
        ({"evidence.toleranceFit": "2e-6"}, "understated"),
        ({"evidence.gate": "residual"}, "understated"),
        ({"evidence.gate": "residual", "evidence.strongConvexity": "0.5"}, "understated"),
        ({"guarantee.releasesCovered": 2000}, "understated"),
        ({"guarantee.adversaryView": "beforeAndAfter"}, "understated"),
        ({"guarantee.level": "state"}, "understated"),
        ({"guarantee.type": "zcdp"}, "understated"),
        ({"evidence.mechanism": "none"}, "understated"),
        ({"evidence.mechanism": "exact"}, "understated"),
        ({"evidence.mechanism": "discreteGaussianOutput"}, "understated"),
        ({"budget.release": 1001}, "budget"),
        ({"budget.muSquaredSpent": "5.6e-5"}, "budget"),
        ({"budget.muSquaredPerRelease": "5.5e-5"}, "budget"),
        ({"budget.muSquaredCap": "1e-4"}, "budget"),
        ({"guarantee.deletionsCovered": 9}, "capacity"),
        ({"commitments.retained.count": 348}, "counts"),
        ({"commitments.depth": 5}, "counts"),
        ({"assumptions.0.tag": "assumed"}, "grade"),
        ({"guarantee.grade": "exact"}, "grade"),
        ({"production": False}, "production"),
        ({"noise.source": "seeded"}, "production"),
        ({"requests.0.completedAt": "2026-11-19T08:00:00Z"}, "clock"),
        ({"issuedAt": "2026-11-30T11:00:00Z"}, "clock"),
        ({"issuedAt": "2026-12-02T00:00:00Z"}, "clock"),
        ({"recheckBy": "2026-11-30T12:00:01Z"}, "clock"),
        ({"evidence.sigma": "8.9e-03"}, "schema"),
    ],
)
def test_every_change_of_the_algebra_fails_by_name(changes: dict[str, Any], name: str) -> None:
    report = recheck(envelope(changes).to_json(), OUTSIDE)
    assert name in failed(report)
    assert not report.passed
    assert report.summary.startswith("FAILED")


@pytest.mark.parametrize(
    "changes",
    [
        {"guarantee.mu": None, "guarantee.type": "epsilonDelta"},
        {"evidence.gate": "residual", "evidence.strongConvexity": "1"},
        {"guarantee.adversaryView": "afterOnly", "guarantee.mu": "0.0075"},
        {"guarantee.epsilon": "1.0", "evidence.shift": "0.000002"},
        {
            "evidence.mechanism": "none",
            **{f"guarantee.{name}": None for name in ("epsilon", "delta", "mu")},
            "guarantee.type": "none",
            "guarantee.grade": "heuristic",
            "noise": None,
        },
        {
            "evidence.mechanism": "exact",
            **{f"guarantee.{name}": "0" for name in ("epsilon", "delta", "mu")},
            "guarantee.type": "exact",
            "guarantee.grade": "exact",
            **{f"evidence.{name}": "0" for name in ("toleranceFit", "toleranceUnlearn", "shift")},
        },
    ],
)
def test_other_honest_forms_hold(changes: dict[str, Any]) -> None:
    report = recheck(envelope(changes).to_json(), OUTSIDE)
    assert failed(report) == set()
    assert report.level == "a"


def test_completion_after_the_due_date_is_a_warning() -> None:
    late = {"requests.0.dueAt": "2026-11-25T22:59:59Z"}
    report = recheck(envelope(late).to_json(), OUTSIDE)
    assert report.passed
    assert report["clock"].reason.startswith("late")
    extension = {
        "notifiedAt": "2026-11-24T00:00:00Z",
        "reasonCode": "number",
        "newDueAt": "2027-02-20T22:59:59Z",
    }
    extended = {**late, "requests.0.extension": extension}
    assert recheck(envelope(extended).to_json(), OUTSIDE)["clock"].reason == ""
    extension["notifiedAt"] = "2026-11-26T00:00:00Z"
    assert failed(recheck(envelope(extended).to_json(), OUTSIDE)) == {"clock"}


@pytest.mark.parametrize("changes", [{"evidence.mechanism": "laplace"}, {"schemaVersion": "2.0"}])
def test_what_is_not_understood_never_passes(changes: dict[str, Any]) -> None:
    report = recheck(envelope(changes).to_json(), OUTSIDE)
    assert failed(report) == set()
    assert report.level == ""
    assert not report.passed
    assert any("not recheckable" in check.reason for check in report.checks)


def test_wrong_keys_fail_as_signature() -> None:
    signed = envelope()
    assert failed(recheck(signed.to_json(), replace(OUTSIDE, trusted=[STRANGER.public]))) == {
        "signature"
    }
    both = replace(OUTSIDE, trusted=[SIGNER.public, STRANGER.public], threshold=2)
    assert failed(recheck(cosign(signed, SIGNER).to_json(), both)) == {"signature"}
    assert recheck(cosign(signed, STRANGER).to_json(), both).passed


def test_any_flipped_bit_fails_as_signature() -> None:
    signed = envelope()
    rng = np.random.default_rng(0)
    for bit in rng.choice(8 * len(signed.payload), 300, replace=False):
        flipped = bytearray(signed.payload)
        flipped[bit // 8] ^= 1 << bit % 8
        changed = replace(signed, payload=bytes(flipped))
        assert failed(recheck(changed.to_json(), OUTSIDE)) == {"signature"}


def test_frames_fail_by_name() -> None:
    renamed = replace(envelope(), payload_type="application/json")
    assert failed(recheck(renamed.to_json(), OUTSIDE)) == {"signature", "type"}
    signed_as = sign(payload(), SIGNER, "application/json")
    assert failed(recheck(signed_as.to_json(), OUTSIDE)) == {"type"}
    policy = sign(example.policy().to_payload(), SIGNER)
    assert failed(recheck(policy.to_json(), OUTSIDE)) == {"predicateType"}


@pytest.mark.parametrize(
    "body",
    [
        payload().replace(b'"production": true', b'"production": true, "production": true'),
        payload().replace(b'"dimension": 64', b'"dimension": 64.0'),
        payload().replace(b'"dimension": 64', b'"dimension": NaN'),
        b"\xff",
    ],
)
def test_loose_json_fails_as_json(body: bytes) -> None:
    assert failed(recheck(sign(body, SIGNER).to_json(), OUTSIDE)) == {"json"}
    assert failed(recheck(b" " * (1 << 20) + b"{}", OUTSIDE)) == {"json"}


def test_policy_log_lineage_and_tags() -> None:
    policy = example.policy()
    made = statement.Certificate.issue(policy, **example.facts(log_index=0))
    signed = made.sign(SIGNER).to_json()
    leaves = [log.leaf_hash(IN_TOTO, policy.to_payload()), log.leaf_hash(IN_TOTO, made.payload)]
    proof = Inclusion(1, 2, log.root(leaves), tuple(log.inclusion_proof(1, leaves)))
    outside = replace(
        OUTSIDE,
        policy=policy.to_payload(),
        inclusion=proof,
        lineage=policy.lineage,
        tags={"0" * 64},
    )
    report = recheck(signed, outside)
    assert report.passed
    names = ("policy", "log", "replay", "noiseTag")
    assert all(report[name].verdict is Verdict.PASS for name in names)
    other = example.policy(capacity=49)
    wrong = {
        "policy": replace(outside, policy=other.to_payload()),
        "log": replace(outside, inclusion=replace(proof, index=0)),
        "replay": replace(outside, lineage="e" * 64),
        "noiseTag": replace(outside, tags={"b" * 64}),
    }
    for name, changed in wrong.items():
        assert failed(recheck(signed, changed)) == {name}
    assert failed(recheck(signed, replace(outside, request="2" * 64))) == {"replay"}
    assert failed(recheck(signed, replace(outside, policy=b"{}"))) == {"policy"}
    asked = replace(OUTSIDE, request="2" * 64)
    assert recheck(envelope().to_json(), asked)["replay"].verdict is Verdict.PASS


def test_signatures_that_are_no_signatures_fail_by_name() -> None:
    empty = Envelope(IN_TOTO, payload(), (Signature("", b"short"),))
    assert failed(recheck(empty.to_json(), OUTSIDE)) == {"signature"}
    assert failed(recheck(b"[]", OUTSIDE)) == {"json"}
    later = replace(OUTSIDE, now=NOW + timedelta(days=400))
    assert failed(recheck(envelope().to_json(), later)) == {"clock"}


def test_a_request_is_shown_to_be_in_its_batch() -> None:
    commitments = [statement.request_commitment(bytes([i]) * 32, str(i)) for i in range(11)]
    one = example.EXAMPLE["predicate"]["requests"][0]
    batch = {**one, "commitment": batch_commitment(commitments), "count": 11}
    leaves = sorted(map(bytes.fromhex, commitments))
    single = one["commitment"]

    def verdict(request: str, membership: tuple[int, log.Proof] | None) -> Verdict:
        outside = replace(OUTSIDE, request=request, membership=membership)
        return recheck(envelope({"requests": [batch, one]}).to_json(), outside)["replay"].verdict

    for place, leaf in enumerate(leaves):
        path = log.inclusion_proof(place, leaves)
        assert verdict(leaf.hex(), (place, path)) is Verdict.PASS
        assert verdict(leaf.hex(), (place + 1, path)) is Verdict.FAIL
        assert verdict("0" * 64, (place, path)) is Verdict.FAIL
        assert verdict(leaf.hex(), None) is Verdict.NOT_CHECKED
    assert verdict(single, None) is Verdict.PASS
    assert verdict(batch["commitment"], (0, ())) is Verdict.FAIL
    foreign = replace(OUTSIDE, request=leaves[0].hex(), lineage="e" * 64)
    assert failed(recheck(envelope({"requests": [batch]}).to_json(), foreign)) == {"replay"}
