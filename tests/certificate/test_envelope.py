"""DSSE: published vectors, interoperability, mutations."""

from __future__ import annotations

import base64
import json
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.utils import encode_dss_signature
from securesystemslib import dsse
from securesystemslib.signer import CryptoSigner, SSlibKey

from expunge.certificate import keys
from expunge.certificate.envelope import (
    IN_TOTO,
    MAX_SIGNATURES,
    Envelope,
    Signature,
    cosign,
    pae,
    sign,
    verified_payload,
    verify_signatures,
)
from expunge.certificate.keys import KeySigner
from expunge.errors import InvalidInput, VerificationFailed

SECRET = "9d61b19deffd5a60ba844af492ec2cc44449c5697b326919703bac031cae7f60"
RFC8032 = KeySigner(Ed25519PrivateKey.from_private_bytes(bytes.fromhex(SECRET)))
OTHER = KeySigner(Ed25519PrivateKey.from_private_bytes(bytes(32)))
PAYLOAD = b'{"_type":"https://in-toto.io/Statement/v1"}'
SIGNATURE = (
    "2WAfaHm5jluo0w+0rk8uVkluELJYWjSmU9x7EUzx+AyteDGJ4/nqyJXfmAUVFIAoQafWm7AxBZNw5M9ixNHiCA=="
)


def failure(check: str, call, *arguments) -> None:
    with pytest.raises(VerificationFailed) as caught:
        call(*arguments)
    assert caught.value.check == check


def test_pae_vector() -> None:
    expected = b"DSSEv1 29 http://example.com/HelloWorld 11 hello world"
    assert pae("http://example.com/HelloWorld", b"hello world") == expected
    assert pae("é", "é".encode()) == b"DSSEv1 2 \xc3\xa9 2 \xc3\xa9", "lengths are in bytes"


def test_dsse_specification_example_verifies_over_our_encoding() -> None:
    """The ECDSA P-256 example of the DSSE protocol's test vectors."""
    public = ec.EllipticCurvePublicNumbers(
        46950820868899156662930047687818585632848591499744589407958293238635476079160,
        5640078356564379163099075877009565129882514886557779369047442380624545832820,
        ec.SECP256R1(),
    ).public_key()
    raw = base64.b64decode(
        "A3JqsQGtVsJ2O2xqrI5IcnXip5GToJ3F+FnZ+O88SjtR6rDAajabZKciJTfUiHqJPcIAriEGAHTVeCUjW2JIZA=="
    )
    half = len(raw) // 2
    r, s = int.from_bytes(raw[:half], "big"), int.from_bytes(raw[half:], "big")
    message = pae("http://example.com/HelloWorld", b"hello world")
    public.verify(encode_dss_signature(r, s), message, ec.ECDSA(hashes.SHA256()))


def test_rfc_8032_vector() -> None:
    envelope = sign(PAYLOAD, RFC8032)
    assert base64.b64encode(envelope.signatures[0].sig).decode() == SIGNATURE
    assert verify_signatures(envelope, [RFC8032.public]) == [RFC8032.keyid]
    assert verified_payload(envelope, [RFC8032.public]) == PAYLOAD


def test_json_round_trip_in_both_alphabets() -> None:
    envelope = cosign(sign(bytes(range(256)), RFC8032), OTHER)
    data = envelope.to_json()
    assert Envelope.from_json(data) == envelope
    value = json.loads(data)
    assert list(value) == ["payload", "payloadType", "signatures"]
    value["payload"] = base64.urlsafe_b64encode(envelope.payload).decode()
    value["unknown"] = {"is": "ignored"}
    for signature, kept in zip(value["signatures"], envelope.signatures, strict=True):
        signature["sig"] = base64.urlsafe_b64encode(kept.sig).decode()
        del signature["keyid"]
    read = Envelope.from_json(json.dumps(value).encode())
    assert read.payload == envelope.payload
    assert [s.keyid for s in read.signatures] == ["", ""]
    assert verify_signatures(read, [RFC8032.public, OTHER.public], 2)


def test_every_flipped_bit_of_payload_and_signature_fails() -> None:
    envelope = sign(PAYLOAD * 6, RFC8032)
    signature = envelope.signatures[0]
    for bit in range(8 * len(envelope.payload)):
        wrong = bytearray(envelope.payload)
        wrong[bit // 8] ^= 1 << bit % 8
        altered = replace(envelope, payload=bytes(wrong))
        failure("signature", verified_payload, altered, [RFC8032.public])
    for bit in range(8 * len(signature.sig)):
        wrong = bytearray(signature.sig)
        wrong[bit // 8] ^= 1 << bit % 8
        altered = replace(envelope, signatures=(replace(signature, sig=bytes(wrong)),))
        failure("signature", verified_payload, altered, [RFC8032.public])


def test_payload_and_type_cannot_trade_bytes() -> None:
    envelope = sign(b"11 hello", RFC8032, "type")
    for kind, payload in (("type 8", b"11 hello"), ("typ", b"e11 hello"), ("type", b"hello")):
        failure(
            "signature",
            verify_signatures,
            Envelope(kind, payload, envelope.signatures),
            [RFC8032.public],
        )


def test_changed_type_fails_by_name() -> None:
    for envelope in (
        replace(sign(PAYLOAD, RFC8032), payload_type="application/json"),
        sign(PAYLOAD, RFC8032, "application/json"),
    ):
        failure("type", verified_payload, envelope, [RFC8032.public])


def test_only_distinct_trusted_keys_count() -> None:
    both = [RFC8032.public, OTHER.public]
    once = sign(PAYLOAD, RFC8032)
    twice = cosign(once, RFC8032)
    renamed = replace(
        twice, signatures=(once.signatures[0], Signature("x", once.signatures[0].sig))
    )
    for envelope in (once, twice, renamed):
        failure("signature", verify_signatures, envelope, both, 2)
        failure("signature", verify_signatures, envelope, [RFC8032.public] * 2, 2)
        failure("signature", verify_signatures, envelope, [OTHER.public])
        failure("signature", verify_signatures, envelope, [])
        assert verify_signatures(envelope, [RFC8032.public] * 2) == [RFC8032.keyid]
    signed = cosign(twice, OTHER)
    assert verify_signatures(signed, both, 2) == [RFC8032.keyid, OTHER.keyid]
    failure("signature", verify_signatures, replace(once, signatures=()), both)
    with pytest.raises(InvalidInput, match="threshold"):
        verify_signatures(once, both, 0)


def test_key_ids_are_hints_only() -> None:
    good = sign(PAYLOAD, RFC8032).signatures[0].sig
    bad = sign(PAYLOAD, OTHER).signatures[0].sig
    lied = Envelope(IN_TOTO, PAYLOAD, (Signature(OTHER.keyid, good),))
    assert verify_signatures(lied, [RFC8032.public]) == [RFC8032.keyid]
    failure("signature", verify_signatures, lied, [OTHER.public])
    claimed = Envelope(IN_TOTO, PAYLOAD, (Signature(RFC8032.keyid, bad),))
    failure("signature", verify_signatures, claimed, [RFC8032.public])


@pytest.mark.parametrize(
    "change",
    [
        {"payload": "not base64!"},
        {"payload": "QQ"},
        {"payload": "QUJD\n"},
        {"payload": "éé=="},
        {"payload": 7},
        {"payload": None},
        {"payloadType": None},
        {"signatures": None},
        {"signatures": [{}]},
        {"signatures": ["x"]},
        {"signatures": [{"sig": "?"}]},
        {"signatures": [{"sig": "QQ==", "keyid": 7}]},
        {"signatures": [{"sig": "QQ=="}] * (MAX_SIGNATURES + 1)},
        {"more": 1.5},
    ],
)
def test_malformed_envelopes(change: dict[str, object]) -> None:
    value = {**json.loads(sign(PAYLOAD, RFC8032).to_json()), **change}
    failure("json", Envelope.from_json, json.dumps(value).encode())


@pytest.mark.parametrize(
    "data", [b"", b"[]", b"{}", b'{"payload":"","payload":""}', b" " * (1 << 20) + b"{}"]
)
def test_malformed_bodies(data: bytes) -> None:
    failure("json", Envelope.from_json, data)


def test_short_signatures_do_not_crash() -> None:
    envelope = Envelope(IN_TOTO, PAYLOAD, (Signature("", b""), Signature("", bytes(65))))
    failure("signature", verify_signatures, envelope, [RFC8032.public])


# --- other implementations ----------------------------------------------------------------------


def test_securesystemslib_verifies_ours() -> None:
    data = json.loads(sign(PAYLOAD, RFC8032).to_json())
    key = SSlibKey.from_crypto(RFC8032.public, keyid=RFC8032.keyid)
    theirs = dsse.Envelope.from_dict(data)
    assert list(theirs.verify([key], 1)) == [RFC8032.keyid]
    assert theirs.pae() == sign(PAYLOAD, RFC8032).signed


def test_we_verify_securesystemslib() -> None:
    theirs = dsse.Envelope(PAYLOAD, IN_TOTO, {})
    theirs.sign(CryptoSigner(RFC8032.private))
    ours = Envelope.from_json(json.dumps(theirs.to_dict()).encode())
    assert verified_payload(ours, [RFC8032.public]) == PAYLOAD


@pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl is not installed")
def test_openssl_verifies_ours(tmp_path: Path) -> None:
    """The recipe of certificate.md §2 for a third party with standard tools."""
    envelope = Envelope.from_json(sign(PAYLOAD, RFC8032).to_json())
    (tmp_path / "issuer.pem").write_bytes(keys.to_pem(RFC8032.public))
    (tmp_path / "sig.bin").write_bytes(envelope.signatures[0].sig)
    header = f"DSSEv1 {len(envelope.payload_type)} {envelope.payload_type} {len(envelope.payload)} "
    command = "openssl pkeyutl -verify -pubin -inkey issuer.pem -rawin -in pae.bin -sigfile sig.bin"
    for payload, expected in ((envelope.payload, 0), (envelope.payload.upper(), 1)):
        (tmp_path / "pae.bin").write_bytes(header.encode() + payload)
        done = subprocess.run(command.split(), cwd=tmp_path, capture_output=True, check=False)
        assert done.returncode == expected
