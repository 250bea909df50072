"""The auditor's statement: round trip, tampering, and what it must not say."""

from __future__ import annotations

import base64
import copy
import hashlib
import json
from dataclasses import replace
from datetime import UTC, datetime

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from expunge.audit import controls, convex, proving
from expunge.audit.attestation import AUDIT_TYPE, STANDING, Attestation, attest, verify
from expunge.audit.falsify import falsify
from expunge.audit.findings import Plan
from expunge.certificate.blocks import Issuer, sealed_digest
from expunge.certificate.envelope import Envelope, sign
from expunge.certificate.keys import KeySigner
from expunge.certificate.trust import Role, TrustedKey, TrustPolicy
from expunge.errors import VerificationFailed

AUDITOR = KeySigner(Ed25519PrivateKey.from_private_bytes(bytes(range(2, 34))))
OTHER = KeySigner(Ed25519PrivateKey.from_private_bytes(bytes(range(3, 35))))
WHO = Issuer("Independent Audits Ltd", "auditor")


@pytest.fixture(scope="module")
def bed():
    return proving.bed(4)


@pytest.fixture(scope="module")
def issued(bed):
    return proving.issue(controls.HONEST[1], bed)


@pytest.fixture(scope="module")
def found(bed, issued):
    plan = Plan((convex.against_retraining(bed, runs=30),), seed=11)
    return falsify(
        issued.envelope, issued.outside, files=issued.files, sealed=issued.sealed, plan=plan
    )


@pytest.fixture(scope="module")
def made(bed, found):
    checked = [proving.check(one, bed) for one in (controls.CONTROLS[0], controls.HONEST[0])]
    return attest(found, WHO, controls=checked, issued_at=datetime(2026, 12, 1, tzinfo=UTC))


def test_round_trip(issued, found, made):
    attestation, annex = made
    signed = attestation.sign(AUDITOR).to_json()
    read = verify(signed, issued.envelope, [AUDITOR.public])
    assert read == attestation
    assert read.verdict == "CONSISTENT"
    assert read.certificate == found.certificate
    assert read.claim == found.claim
    assert [step.name for step in read.steps] == [one.name for one in found.findings]
    assert read.seed == 11
    assert read.standing == STANDING
    assert read.sealed_digest == sealed_digest(annex)
    assert read.detectable_mu80 >= found.detectable_mu
    last = read.steps[-1]
    assert last.share == 0.05
    assert last.oracle.runs == 5
    assert last.bound <= found.findings[-1].bound
    assert [one.right for one in read.controls] == [True, True]
    assert "canaries" in read.controls[0].refuted_by
    assert Attestation.from_payload(attestation.payload) == attestation


def test_it_is_an_in_toto_statement_about_the_certificate(issued, made):
    statement = json.loads(made[0].payload)
    assert statement["predicateType"] == AUDIT_TYPE
    assert statement["subject"] == [
        {"name": "certificate", "digest": {"sha256": made[0].certificate}}
    ]
    predicate = statement["predicate"]
    assert predicate["claim"]["type"] == "mu"
    assert predicate["status"] == "decided"
    assert set(predicate["environment"]) == {"expunge", "python", "numpy", "scipy", "system"}


def test_noiseless_numbers_are_in_the_annex_only(found, made):
    attestation, annex = made
    text, hidden = attestation.payload.decode(), json.loads(annex)
    assert len(bytes.fromhex(hidden["nonce"])) == 32
    sealed = [one for one in found.findings if one.sealed]
    assert {one.name for one in sealed} == {"noiseSize", "noiseReuse", "realised"}
    for one in sealed:
        assert hidden["steps"][one.name]["statistic"] == repr(one.statistic)
        if one.statistic:
            assert repr(one.statistic)[:8] not in text
    for step in attestation.steps:
        if step.name in hidden["steps"]:
            assert step.statistic is None
            assert step.bound is None


def test_another_key_does_not_count(issued, made):
    signed = made[0].sign(OTHER).to_json()
    with pytest.raises(VerificationFailed, match="signature"):
        verify(signed, issued.envelope, [AUDITOR.public])
    with pytest.raises(VerificationFailed, match="signature"):
        verify(made[0].sign(AUDITOR).to_json(), issued.envelope, [AUDITOR.public, OTHER.public], 2)


def test_the_role_of_a_trust_policy(issued, made):
    now = datetime(2026, 12, 1, tzinfo=UTC)
    policy = TrustPolicy((TrustedKey("auditor", AUDITOR.public, frozenset({Role.auditor})),), {})
    signed = made[0].sign(AUDITOR).to_json()
    assert verify(signed, issued.envelope, policy.keys_for(Role.auditor, now))
    with pytest.raises(VerificationFailed, match="signature"):
        verify(signed, issued.envelope, policy.keys_for(Role.issuer, now))


def test_another_certificate(bed, made):
    other = proving.issue(controls.HONEST[1], bed, seed=8)
    with pytest.raises(VerificationFailed, match="another certificate"):
        verify(made[0].sign(AUDITOR).to_json(), other.envelope, [AUDITOR.public])


def test_every_flipped_byte_of_the_payload_is_noticed(issued, made):
    envelope = json.loads(made[0].sign(AUDITOR).to_json())
    payload = base64.b64decode(envelope["payload"])
    for position in range(0, len(payload), 37):
        changed = bytearray(payload)
        changed[position] ^= 1
        envelope["payload"] = base64.b64encode(bytes(changed)).decode()
        with pytest.raises(VerificationFailed, match="signature"):
            verify(json.dumps(envelope).encode(), issued.envelope, [AUDITOR.public])


def resigned(made, change):
    """What a dishonest auditor with the right key could sign."""
    statement = copy.deepcopy(json.loads(made[0].payload))
    change(statement)
    payload = json.dumps(statement, sort_keys=True).encode()
    return sign(payload, AUDITOR).to_json()


def refute_a_step(statement):
    statement["predicate"]["steps"][0]["refutes"] = True


def void_a_step(statement):
    statement["predicate"]["steps"][-1]["void"] = True


def claim_more(statement):
    statement["predicate"]["claim"]["epsilon"] = "2"


def say_verified(statement):
    statement["predicate"]["verdict"] = "VERIFIED"


def drop_the_standing_text(statement):
    statement["predicate"]["standing"] = []


def change_the_standing_text(statement):
    statement["predicate"]["standing"][0] = "This model is safe."


def rename_the_subject(statement):
    statement["subject"][0]["name"] = "model.safetensors"


def another_type(statement):
    statement["predicateType"] = "https://expunge.example/unlearning-certificate/v1"


def drop_the_seed(statement):
    del statement["predicate"]["seed"]


def newer_schema(statement):
    statement["predicate"]["schemaVersion"] = "2.0"


@pytest.mark.parametrize(
    ("change", "check"),
    [
        (refute_a_step, "verdict"),
        (void_a_step, "verdict"),
        (claim_more, "claim"),
        (say_verified, "schema"),
        (drop_the_standing_text, "schema"),
        (change_the_standing_text, "schema"),
        (rename_the_subject, "schema"),
        (another_type, "predicateType"),
        (drop_the_seed, "schema"),
        (newer_schema, "schemaVersion"),
    ],
)
def test_what_does_not_hold_together(issued, made, change, check):
    with pytest.raises(VerificationFailed) as caught:
        verify(resigned(made, change), issued.envelope, [AUDITOR.public])
    assert caught.value.check == check


def test_unknown_fields_are_shown(issued, made):
    def add(statement):
        statement["predicate"]["extra"] = 1

    read = verify(resigned(made, add), issued.envelope, [AUDITOR.public])
    assert read.unknown == ("predicate.extra",)


def test_a_refutation_is_attested_too(bed):
    kept = proving.issue(controls.CONTROLS[0], bed)
    found = falsify(kept.envelope, kept.outside, files=kept.files, sealed=kept.sealed)
    attestation, _ = attest(found, WHO)
    assert attestation.verdict == "FALSIFIED"
    assert attestation.steps[-1].refutes
    signed = attestation.sign(AUDITOR).to_json()
    assert verify(signed, kept.envelope, [AUDITOR.public]).verdict == "FALSIFIED"


def test_a_void_run_has_no_verdict(bed, issued):
    other = proving.issue(controls.HONEST[1], bed, seed=9)
    found = falsify(issued.envelope, issued.outside, files=other.files)
    attestation, _ = attest(found, WHO)
    assert (attestation.verdict, attestation.status) == (None, "void")


def test_a_long_or_strange_reason_fits(bed, issued, found):
    long = replace(found.findings[0], reason="a\nb" + "x" * 500)
    changed = replace(found, findings=(long, *found.findings[1:]))
    attestation, _ = attest(changed, WHO)
    assert len(attestation.steps[0].reason) <= 200
    assert "\n" not in attestation.steps[0].reason


def test_the_envelope_is_plain_dsse(made):
    envelope = Envelope.from_json(made[0].sign(AUDITOR).to_json())
    assert envelope.payload == made[0].payload
    assert made[0].digest == hashlib.sha256(envelope.payload).hexdigest()
