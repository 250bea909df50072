"""Policy, statements, their strict reading and issuing."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

import certificate_example as example
from certificate_example import EXAMPLE, facts, payload, policy
from expunge import guarantee
from expunge.certificate import algebra, clocks, statement
from expunge.certificate.checks import Verdict
from expunge.certificate.clocks import Regime
from expunge.certificate.statement import Certificate, ModelRelease, Policy
from expunge.certificate.statements import CERTIFICATE_TYPE
from expunge.errors import (
    BudgetExhausted,
    CertificateRefused,
    InvalidInput,
    VerificationFailed,
)
from expunge.guarantee import Grade, Tag, View


def utc(text: str) -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=UTC)


def test_request_and_annex_digests() -> None:
    salt = bytes(range(32))
    expected = hashlib.sha256(b"\x03" + salt + b"request-1").hexdigest()
    assert statement.request_commitment(salt, "request-1") == expected
    assert statement.sealed_digest(b"annex") == hashlib.sha256(b"\x04annex").hexdigest()
    with pytest.raises(InvalidInput, match="32 bytes"):
        statement.request_commitment(b"short", "request-1")


# --- the policy ---------------------------------------------------------------------------------


def test_policy_numbers() -> None:
    made = policy()
    assert made.mu_per_release == pytest.approx(0.007485248447, rel=1e-9)
    assert made.mu == pytest.approx(0.236704339436, rel=1e-9)
    assert made.shift == 2e-6
    assert made.dimension == 64
    assert policy(fit_intercept=True, outputs=3).dimension == 195


@given(
    epsilon=st.floats(0.01, 20),
    delta=st.floats(1e-12, 0.1),
    tolerance=st.floats(1e-12, 1e3),
    releases=st.integers(1, 10**6),
    labels=st.lists(
        st.text() | st.booleans() | st.integers() | st.floats(allow_nan=False), min_size=1
    ),
)
def test_calibrated_policies_hold_and_read_back(
    epsilon: float, delta: float, tolerance: float, releases: int, labels: list[Any]
) -> None:
    sigma = guarantee.sigma_for(2 * tolerance, epsilon, delta, releases)
    made = policy(
        epsilon=epsilon,
        delta=delta,
        tolerance=tolerance,
        releases=releases,
        sigma=sigma,
        classes=tuple(labels) if _writable(labels) else None,
        feature_map={"scale": [-0.1, 3], "names": ["a"]},
        feature_map_tag=Tag.assumed,
    )
    assert Policy.from_payload(made.to_payload()) == made
    assert made.digest == hashlib.sha256(made.to_payload()).hexdigest()


def _writable(labels: list[Any]) -> bool:
    try:
        json.dumps(labels, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        return False
    return True


def test_a_policy_that_claims_too_much_says_what_it_really_gives() -> None:
    with pytest.raises(CertificateRefused, match=r"really give epsilon 1\.\d+ at delta 1e-06"):
        policy(sigma=0.0002)


@pytest.mark.parametrize(
    "changes",
    [
        {"loss": "hinge"},
        {"l2": 0.0},
        {"sigma": math.inf},
        {"delta": 1.0},
        {"releases": 0},
        {"capacity": 2.5},
        {"unit": "household"},
        {"noise": "dice"},
        {"feature_map": {"mean": math.nan}},
        {"feature_map": {1, 2}},
    ],
)
def test_policies_out_of_range_are_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput):
        policy(**changes)


def test_lineages_are_distinct_by_default() -> None:
    fields = {f.name: getattr(policy(), f.name) for f in dataclasses.fields(Policy)}
    del fields["lineage"]
    assert Policy(**fields).lineage != Policy(**fields).lineage


# --- reading ------------------------------------------------------------------------------------


def test_the_example_reads() -> None:
    certificate = Certificate.from_payload(payload())
    assert certificate.grade is Grade.certified
    assert certificate.guarantee.mu == 0.2367044
    assert certificate.guarantee.view is View.transcript
    assert certificate.commitments.deleted.count == 10
    assert certificate.noise is not None
    assert certificate.noise.output_grid == 22
    assert certificate.requests[0].due_at == utc("2026-12-20T22:59:59")
    assert certificate.unknown == ()
    assert certificate.statement == EXAMPLE
    assert json.loads(certificate.to_json()) == EXAMPLE


def test_unknown_fields_are_shown_not_refused() -> None:
    certificate = Certificate.from_payload(payload({"weather": "fine", "noise.colour": "pink"}))
    assert set(certificate.unknown) == {"predicate.weather", "predicate.noise.colour"}


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("evidence.sigma", "8.9e-03"),
        ("evidence.sigma", 1),
        ("evidence.dimension", 0),
        ("evidence.dimension", True),
        ("evidence.gate", "none"),
        ("guarantee.grade", "perfect"),
        ("guarantee.type", "renyi"),
        ("guarantee.mu", None),
        ("guarantee.releasesCovered", "1000"),
        ("assumptions.0.tag", "hoped"),
        ("commitments.scheme", "rfc6962"),
        ("commitments.training.root", "A" * 64),
        ("issuedAt", "2026-11-30T12:00:00+00:00"),
        ("issuedAt", "2026-02-30T12:00:00Z"),
        ("issuedAt", "2026-11-30T12:00:00.5Z"),
        ("requests.0.basis", "17"),
        ("requests.0.outcome", "forgotten"),
        ("noise.outputGrid", "1e-6"),
        ("production", "yes"),
        ("trust", None),
        ("issuer", []),
        ("issuer.name", "Evil\x1b[31m Ltd"),
        ("issuer.name", "two\nlines"),
        ("certificateId", "7"),
    ],
)
def test_fields_out_of_the_schema_fail_by_name(path: str, value: Any) -> None:
    with pytest.raises(VerificationFailed) as caught:
        Certificate.from_payload(payload({path: value}))
    assert caught.value.check == "schema"


def test_a_missing_field_fails_by_name() -> None:
    changed = json.loads(payload())
    del changed["predicate"]["noise"]["tag"]
    with pytest.raises(VerificationFailed, match="'tag' is missing"):
        Certificate.from_payload(json.dumps(changed).encode())


@pytest.mark.parametrize(
    ("change", "check"),
    [
        ({"_type": "https://in-toto.io/Statement/v0.1"}, "type"),
        ({"predicateType": "https://expunge.example/model-release/v1"}, "predicateType"),
        ({"subject": []}, "schema"),
    ],
)
def test_frames_fail_by_name(change: dict[str, Any], check: str) -> None:
    with pytest.raises(VerificationFailed) as caught:
        Certificate.from_payload(json.dumps({**EXAMPLE, **change}).encode())
    assert caught.value.check == check


def test_another_major_version_is_not_read() -> None:
    with pytest.raises(VerificationFailed) as caught:
        Certificate.from_payload(payload({"schemaVersion": "2.0"}))
    assert caught.value.check == "schemaVersion"
    assert Certificate.from_payload(payload({"schemaVersion": "1.7"})).grade is Grade.certified


# --- issuing ------------------------------------------------------------------------------------


def test_what_is_issued_passes_its_own_algebra_and_reads_back() -> None:
    made = Certificate.issue(policy(), **facts())
    assert all(check.verdict is Verdict.PASS for check in algebra.check_numbers(made))
    assert Certificate.from_payload(made.payload) == made
    assert made.statement["predicateType"] == CERTIFICATE_TYPE
    predicate = made.statement["predicate"]
    assert set(predicate) == set(EXAMPLE["predicate"])
    for name in ("guarantee", "evidence", "noise", "assumptions", "policy", "commitments"):
        if isinstance(predicate[name], dict):
            assert set(predicate[name]) == set(EXAMPLE["predicate"][name])
    assert predicate["guarantee"]["mu"] == "0.2367044"
    assert predicate["budget"]["muSquaredPerRelease"] == "5.602895e-5"
    assert predicate["budget"]["muSquaredSpent"] == "0.0001120579"
    assert made.statement["predicate"]["policy"] == {"logIndex": None, "sha256": policy().digest}
    assert algebra.check_policy(made, policy(), policy().to_payload()).verdict is Verdict.PASS
    other = policy(capacity=51)
    assert algebra.check_policy(made, other, other.to_payload()).verdict is Verdict.FAIL


def test_requests_read_back() -> None:
    received = utc("2026-11-20T08:00:00")
    extension = statement.Extension(received, "complexity", utc("2027-02-20T23:59:59"))
    request = statement.Request(
        "2" * 64,
        Regime.gdpr,
        ("17(1)(b)",),
        received,
        clocks.due_at(received, Regime.gdpr, ZoneInfo("Europe/Berlin")),
        received + timedelta(days=3),
        extension=extension,
    )
    made = Certificate.issue(policy(), **facts(requests=[request]))
    assert made.requests == (request,)


@pytest.mark.parametrize(
    ("changes", "grade", "in_trust"),
    [
        ({}, Grade.certified, True),
        ({"feature_map": {"a": 1}}, Grade.certified, False),
        ({"feature_map": {"a": 1}, "feature_map_tag": Tag.assumed}, Grade.conditional, False),
    ],
)
def test_grade_follows_from_the_feature_map(
    changes: dict[str, Any], grade: Grade, in_trust: bool
) -> None:
    made = Certificate.issue(policy(**changes), **facts())
    assert made.grade is grade
    assert ("featuresPerRecord" in made.trust) is in_trust


def test_seeded_noise_is_not_for_production() -> None:
    seeded = statement.NoiseRecord("seeded", 22, "b" * 64)
    assert not Certificate.issue(policy(noise="seeded"), **facts(noise=seeded)).production
    assert not Certificate.issue(policy(), **facts(noise=seeded)).production
    assert Certificate.issue(policy(), **facts()).production


def test_discrete_noise_claims_zcdp_and_needs_no_ideal_noise() -> None:
    sigma = guarantee.discrete_sigma(2e-6, 1.0, 1e-6, 1000, 64)
    hardened = policy(noise="openDp", sigma=sigma)
    assert 2e-6 < hardened.shift < 2.001e-6
    noise = statement.NoiseRecord("openDp", 36, "b" * 64, "discreteGaussian")
    made = Certificate.issue(hardened, **facts(noise=noise))
    assert made.guarantee.kind == "zcdp"
    assert made.production
    assert "continuousNoiseModel" not in made.trust
    with pytest.raises(CertificateRefused, match="really give"):
        policy(noise="openDp", sigma=0.99 * sigma)
    with pytest.raises(CertificateRefused, match="not discrete"):
        Certificate.issue(hardened, **facts())


def test_one_release_claims_less() -> None:
    made = Certificate.issue(policy(), **facts(view=View.afterOnly))
    assert made.guarantee.mu == pytest.approx(0.007485248447, rel=1e-6)


def test_releases_and_capacity_are_refused_beyond_the_policy() -> None:
    with pytest.raises(BudgetExhausted, match=r"really be 1\.0\d+ at delta 1e-06"):
        Certificate.issue(policy(), **facts(release=1001))
    with pytest.raises(BudgetExhausted, match="10 records are deleted and the policy covers 9"):
        Certificate.issue(policy(capacity=9), **facts())


def test_what_would_not_hold_is_refused() -> None:
    heads = facts()["commitments"]
    wrong = dataclasses.replace(heads, retained=dataclasses.replace(heads.retained, count=348))
    with pytest.raises(CertificateRefused, match="counts"):
        Certificate.issue(policy(), **facts(commitments=wrong))
    with pytest.raises(CertificateRefused, match="clock"):
        Certificate.issue(policy(), **facts(recheck_by=utc("2026-01-01")))
    with pytest.raises(VerificationFailed, match="digest"):
        Certificate.issue(policy(), **facts(sealed_digest="secret"))


def test_release_statements() -> None:
    given = facts()
    for name in ("requests", "model_before", "release"):
        del given[name]
    made = ModelRelease.issue(policy(), **given)
    assert made.reason == "training"
    assert made.budget.release == 1
    assert ModelRelease.from_payload(made.payload) == made
    again = ModelRelease.issue(policy(), **given, reason="retrain", release=3, previous="d" * 64)
    assert again.budget.mu_squared_spent == pytest.approx(3 * made.budget.mu_squared_spent)
    with pytest.raises(BudgetExhausted):
        ModelRelease.issue(policy(), **given, release=1001)
    with pytest.raises(VerificationFailed, match="predicateType"):
        Certificate.from_payload(made.payload)


def test_signing_keeps_the_bytes() -> None:
    made = Certificate.issue(policy(), **facts())
    assert made.sign(example.SIGNER).payload == made.payload


def test_importing_certificates_loads_no_model_library() -> None:
    modules = [path.stem for path in Path(statement.__file__).parent.glob("[a-z]*.py")]
    code = "\n".join(f"import expunge.certificate.{name}" for name in modules)
    check = "import sys; print([m for m in ('sklearn', 'torch', 'matplotlib') if m in sys.modules])"
    found = subprocess.run(
        [sys.executable, "-c", f"{code}\n{check}"], capture_output=True, text=True, check=True
    )
    assert found.stdout.strip() == "[]"


# --- batches ------------------------------------------------------------------------------------


def test_the_count_of_a_request_is_left_out_where_it_is_one() -> None:
    request = Certificate.from_payload(payload()).requests[0]
    assert request.count == 1
    many = dataclasses.replace(request, count=10_000)
    made = Certificate.issue(policy(), **facts(requests=[request, many]))
    single, batch = made.statement["predicate"]["requests"]
    assert "count" not in single
    assert batch["count"] == 10_000
    assert made.requests == (request, many)
    assert made.asked == 10_001


@pytest.mark.parametrize("count", [0, -1, True, 1.0, "2", None, 2**53])
def test_a_count_is_a_positive_integer(count: object) -> None:
    with pytest.raises(VerificationFailed):
        Certificate.from_payload(payload({"requests.0.count": count}))
