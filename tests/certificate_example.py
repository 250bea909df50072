"""The example of the certificate sheet, and helpers to change and sign it."""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from expunge.certificate import commit, statement
from expunge.certificate.checks import Report
from expunge.certificate.envelope import Envelope, sign
from expunge.certificate.keys import KeySigner

NOW = datetime(2026, 12, 1, tzinfo=UTC)
SIGNER = KeySigner(Ed25519PrivateKey.from_private_bytes(bytes(range(32))))
STRANGER = KeySigner(Ed25519PrivateKey.from_private_bytes(bytes(range(1, 33))))

EXAMPLE: dict[str, Any] = json.loads(
    """
{"_type":"https://in-toto.io/Statement/v1",
 "predicateType":"https://expunge.example/unlearning-certificate/v1",
 "subject":[{"name":"model.safetensors","digest":{"sha256":"%(1)s"}}],
 "predicate":{"schemaVersion":"1.0","certificateId":"0197c2a4-7a10-7c3e-9b1f-2f6d1c9e4a55",
  "production":true,"issuedAt":"2026-11-30T12:00:00Z","recheckBy":"2027-11-30T12:00:00Z",
  "issuer":{"name":"Example Ltd","role":"controller"},
  "requests":[{"commitment":"%(2)s","regime":"gdpr","basis":["17(1)(b)"],
    "receivedAt":"2026-11-20T08:00:00Z","dueAt":"2026-12-20T22:59:59Z","extension":null,
    "completedAt":"2026-11-30T11:58:00Z","outcome":"deleted"}],
  "commitments":{"scheme":"expunge-merkle/1","depth":4,"training":{"root":"%(4)s","count":357},
    "deleted":{"root":"%(5)s","count":10},"retained":{"root":"%(6)s","count":347}},
  "algorithm":{"id":"newton-to-tolerance","version":"0.1.0",
    "parameters":{"loss":"logistic","l2Total":"3.57"},
    "codeDigest":"%(7)s","environmentDigest":"%(8)s"},
  "modelBefore":{"sha256":"%(3)s"},"policy":{"logIndex":0,"sha256":"%(9)s"},
  "guarantee":{"grade":"certified","type":"muGdp","epsilon":"1","delta":"0.000001",
    "mu":"0.2367044","unit":"record","deletionsCovered":50,"releasesCovered":1000,
    "adversaryView":"transcript","access":"weights","level":"output","comparator":"retrain"},
  "assumptions":[{"id":"convexLoss","tag":"proved"},
    {"id":"unlearnedWithinTolerance","tag":"measured"},
    {"id":"comparatorWithinTolerance","tag":"enforced"},
    {"id":"noiseIndependentOfData","tag":"enforced"},
    {"id":"policyFixedBeforeRequests","tag":"enforced"}],
  "trust":["operatorRanStatedCode","retainedListComplete","sealedStateSecret",
    "continuousNoiseModel"],
  "evidence":{"mechanism":"gaussianOutput","gate":"distance","toleranceFit":"1e-6",
    "toleranceUnlearn":"1e-6","strongConvexity":null,"shift":"2e-6","sigma":"0.0002671922",
    "dimension":64,"sealedDigest":"%(a)s"},
  "noise":{"distribution":"isotropicGaussian","source":"osEntropy","outputGrid":"2^-22",
    "tag":"%(b)s"},
  "budget":{"lineage":"%(c)s","release":2,"previousCertificate":"%(d)s",
    "muSquaredPerRelease":"5.602895e-5","muSquaredSpent":"1.120579e-4",
    "muSquaredCap":"0.056029"},
  "scope":{"included":["publishedModel"],
    "excluded":["backups","predictionLogs","derivedModels"],"downstream":[]},
  "nonClaims":["notLegalAdvice","notProofOfComputation","holderOfOldModel"]}}
"""
    % {digit: digit * 64 for digit in "123456789abcd"}
)


def payload(changes: Mapping[str, Any] | None = None) -> bytes:
    """The example with fields of the predicate set by dotted path (list indices as digits)."""
    changed = copy.deepcopy(EXAMPLE)
    for path, value in (changes or {}).items():
        *parents, last = path.split(".")
        place: Any = changed["predicate"]
        for name in parents:
            place = place[int(name)] if name.isdigit() else place[name]
        place[int(last) if last.isdigit() else last] = value
    return json.dumps(changed).encode()


def envelope(changes: Mapping[str, Any] | None = None) -> Envelope:
    """The changed example, signed by the trusted key."""
    return sign(payload(changes), SIGNER)


def policy(**changes: Any) -> statement.Policy:
    """The policy of the example, seen as one of the library's own."""
    fields = {
        "loss": "logistic",
        "l2": 3.57,
        "fit_intercept": False,
        "features": 64,
        "outputs": 1,
        "epsilon": 1.0,
        "delta": 1e-6,
        "releases": 1000,
        "sigma": 0.0002671922,
        "tolerance": 1e-6,
        "capacity": 50,
        "lineage": "c" * 64,
    }
    return statement.Policy(**{**fields, **changes})


def facts(**changes: Any) -> dict[str, Any]:
    """What `Certificate.issue` needs besides the policy."""
    head = commit.TreeHead
    fields = {
        "subject": [statement.Subject("model.safetensors", "1" * 64)],
        "requests": [],
        "commitments": statement.Commitments(
            4, head("4" * 64, 357), head("5" * 64, 10), head("6" * 64, 347)
        ),
        "algorithm": statement.Algorithm("newton-to-tolerance", "0.1.0"),
        "model_before": "3" * 64,
        "noise": statement.NoiseRecord("osEntropy", 22, "b" * 64),
        "sealed_digest": "a" * 64,
        "release": 2,
        "issued_at": datetime(2026, 11, 30, 12, tzinfo=UTC),
    }
    return {**fields, **changes}


def failed(report: Report) -> set[str]:
    """Names of the checks that failed."""
    return {check.name for check in report.failed}
