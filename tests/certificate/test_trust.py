"""The trust policy: roles, times, thresholds."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from expunge.certificate.envelope import cosign, sign
from expunge.certificate.keys import KeySigner
from expunge.certificate.trust import Role, TrustedKey, TrustPolicy
from expunge.errors import InvalidInput, VerificationFailed

NOON = datetime(2026, 6, 1, 12, tzinfo=UTC)
SIGNERS = [KeySigner(Ed25519PrivateKey.from_private_bytes(bytes([i]) * 32)) for i in range(4)]
OLD, NEW, OFFICER, LOG = SIGNERS
POLICY = TrustPolicy(
    (
        TrustedKey("old", OLD.public, frozenset({Role.issuer}), None, NOON),
        TrustedKey("new", NEW.public, frozenset({Role.issuer}), NOON),
        TrustedKey("officer", OFFICER.public, frozenset({Role.issuer, Role.officer})),
        TrustedKey("log", LOG.public, frozenset({Role.log})),
    ),
    {Role.issuer: 2},
)


def test_rotation_and_thresholds() -> None:
    before, after = NOON - timedelta(seconds=1), NOON
    for signer, good, bad in ((OLD, before, after), (NEW, after, before)):
        envelope = cosign(sign(b"{}", signer), OFFICER)
        assert POLICY.payload(envelope, Role.issuer, good) == b"{}"
        with pytest.raises(VerificationFailed, match="signature"):
            POLICY.payload(envelope, Role.issuer, bad)
        with pytest.raises(VerificationFailed, match="signature"):
            POLICY.payload(sign(b"{}", signer), Role.issuer, good)
        with pytest.raises(VerificationFailed, match="signature"):
            POLICY.payload(envelope, Role.log, good)
    assert POLICY.payload(sign(b"{}", OFFICER), Role.officer, NOON) == b"{}"


def test_file_round_trip() -> None:
    again = TrustPolicy.from_json(POLICY.to_json())
    assert again.to_json() == POLICY.to_json()
    assert [k.valid_from for k in again.keys] == [None, NOON, None, None]
    assert again.threshold(Role.issuer) == 2
    simple = TrustPolicy.of(OLD.public, LOG.public)
    assert simple.keys_for(Role.issuer, NOON) == (OLD.public,)
    assert simple.keys_for(Role.auditor, NOON) == ()


@pytest.mark.parametrize("count", [0, 4, -1])
def test_thresholds_that_nobody_can_meet(count: int) -> None:
    with pytest.raises(InvalidInput, match="threshold"):
        TrustPolicy(POLICY.keys, {Role.issuer: count})
    twice = (POLICY.keys[0], POLICY.keys[0])
    with pytest.raises(InvalidInput, match="1 keys"):
        TrustPolicy(twice, {Role.issuer: 2})


def test_one_key_for_certificates_and_log_is_refused() -> None:
    with pytest.raises(InvalidInput, match="make another"):
        TrustPolicy.of(OLD.public, OLD.public)


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("schemaVersion",), "2.0"),
        (("keys",), {}),
        (("thresholds",), []),
        (("thresholds", "issuer"), "2"),
        (("thresholds", "issuer"), True),
        (("thresholds", "chief"), 1),
        (("treshold",), 2),
        (("keys", 0, "roles"), ["chief"]),
        (("keys", 0, "roles"), [["issuer"]]),
        (("keys", 0, "roles"), "issuer"),
        (("keys", 0, "pem"), "not a key"),
        (("keys", 0, "name"), None),
        (("keys", 0, "validUntil"), "tomorrow"),
        (("keys", 0, "validUntil"), 7),
        (("keys", 0, "validUnti"), None),
        (("keys", 0), "key"),
    ],
)
def test_misspelt_policies_are_refused(path: tuple[str | int, ...], value: object) -> None:
    document = json.loads(POLICY.to_json())
    place = document
    for step in path[:-1]:
        place = place[step]
    place[path[-1]] = value
    with pytest.raises(InvalidInput):
        TrustPolicy.from_json(json.dumps(document).encode())
