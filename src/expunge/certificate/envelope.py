"""DSSE envelopes with Ed25519 signatures (secure-systems-lab/dsse, protocol 1.0).

The signature is over PAE(payload type, payload bytes), so the bytes that were signed are the bytes
that are parsed, and no canonical JSON is needed. The key id in an envelope is a hint that nobody
authenticates: which keys signed is found by trying the trusted keys.
"""

from __future__ import annotations

import base64
import binascii
import contextlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

from cryptography.exceptions import InvalidSignature

from expunge.certificate import strict_json
from expunge.certificate.keys import PublicKey, Signer, keyid
from expunge.errors import InvalidInput, VerificationFailed

IN_TOTO = "application/vnd.in-toto+json"
MAX_SIGNATURES = 32


def pae(payload_type: str, payload: bytes) -> bytes:
    """Return the pre-authentication encoding: the bytes that are signed.

    Examples
    --------
    >>> pae("http://example.com/HelloWorld", b"hello world")
    b'DSSEv1 29 http://example.com/HelloWorld 11 hello world'
    """
    kind = payload_type.encode()
    return b"DSSEv1 %d %b %d %b" % (len(kind), kind, len(payload), payload)


@dataclass(frozen=True)
class Signature:
    """One signature and the hint which key made it ("" for none)."""

    keyid: str
    sig: bytes


@dataclass(frozen=True)
class Envelope:
    """A payload, its type, and signatures over both."""

    payload_type: str
    payload: bytes
    signatures: tuple[Signature, ...]

    @property
    def signed(self) -> bytes:
        """The bytes that the signatures are over."""
        return pae(self.payload_type, self.payload)

    def to_json(self) -> bytes:
        """Return the JSON form, in standard base64."""
        signatures = [{"keyid": s.keyid, "sig": _encode(s.sig)} for s in self.signatures]
        return strict_json.dumps(
            {
                "payload": _encode(self.payload),
                "payloadType": self.payload_type,
                "signatures": signatures,
            }
        )

    @classmethod
    def from_json(cls, data: bytes) -> Self:
        """Read the JSON form, in standard or URL-safe base64. Unknown fields are ignored.

        Raises
        ------
        VerificationFailed
            ``json``: more than 1 MiB, not strict JSON, or not the fields of an envelope.
        """
        value = _fields(strict_json.loads(data), ("payload", "payloadType", "signatures"))
        payload, kind, found = value["payload"], value["payloadType"], value["signatures"]
        if not isinstance(kind, str) or not isinstance(found, list):
            raise VerificationFailed(
                "json", "an envelope has a text payloadType and a signature list"
            )
        if len(found) > MAX_SIGNATURES:
            raise VerificationFailed(
                "json", f"expected at most {MAX_SIGNATURES} signatures, got {len(found)}"
            )
        return cls(kind, _decode(payload, "payload"), tuple(_signature(item) for item in found))


def sign(payload: bytes, signer: Signer, payload_type: str = IN_TOTO) -> Envelope:
    """Return an envelope with one signature."""
    return cosign(Envelope(payload_type, payload, ()), signer)


def cosign(envelope: Envelope, signer: Signer) -> Envelope:
    """Return the envelope with one more signature over the same payload."""
    made = Signature(signer.keyid, signer.sign(envelope.signed))
    return replace(envelope, signatures=(*envelope.signatures, made))


def verify_signatures(
    envelope: Envelope, trusted: Sequence[PublicKey], threshold: int = 1
) -> list[str]:
    """Return the ids of the distinct trusted keys that signed, in the order of ``trusted``.

    Parameters
    ----------
    envelope : Envelope
    trusted : sequence of public keys
        Only these count; key ids in the envelope are not looked at. A key given twice counts once.
    threshold : int
        How many of them have to have signed, ≥ 1.

    Raises
    ------
    VerificationFailed
        ``signature``, if fewer did.
    """
    if threshold < 1:
        raise InvalidInput(f"expected a threshold of at least 1, got {threshold}")
    signers = [
        name
        for name, key in {keyid(key): key for key in trusted}.items()
        if signature_of(envelope, key) is not None
    ]
    if len(signers) < threshold:
        raise VerificationFailed(
            "signature",
            f"expected valid signatures of {threshold} trusted key(s), got {len(signers)}: the "
            "content was altered, or signed by a key that is not in the trust policy",
        )
    return signers


def signature_of(envelope: Envelope, public: PublicKey) -> Signature | None:
    """Return the first valid signature of a key, whatever its hint says, or None."""
    message = envelope.signed
    for signature in envelope.signatures:
        with contextlib.suppress(InvalidSignature):
            public.verify(signature.sig, message)
            return signature
    return None


def verified_payload(envelope: Envelope, trusted: Sequence[PublicKey], threshold: int = 1) -> bytes:
    """Return the payload of an in-toto envelope that enough trusted keys signed.

    Raises
    ------
    VerificationFailed
        ``type``, if the payload type is another one; ``signature`` as
        :func:`verify_signatures`.
    """
    if envelope.payload_type != IN_TOTO:
        raise VerificationFailed(
            "type", f"expected payloadType {IN_TOTO}, got {envelope.payload_type[:80]!r}"
        )
    verify_signatures(envelope, trusted, threshold)
    return envelope.payload


def _encode(data: bytes) -> str:
    return base64.b64encode(data).decode()


def _decode(text: object, name: str) -> bytes:
    if isinstance(text, str):
        altchars = b"-_" if "-" in text or "_" in text else None
        try:
            return base64.b64decode(text, altchars, validate=True)
        except (ValueError, binascii.Error):
            pass
    raise VerificationFailed("json", f"expected base64 in {name!r} of the envelope")


def _fields(value: object, names: Sequence[str]) -> dict[str, Any]:
    if not isinstance(value, dict) or not value.keys() >= set(names):
        raise VerificationFailed("json", f"expected an object with {', '.join(names)}")
    return value


def _signature(value: object) -> Signature:
    fields = _fields(value, ("sig",))
    hint = fields.get("keyid") or ""
    if not isinstance(hint, str):
        raise VerificationFailed("json", "expected a text keyid in a signature")
    return Signature(hint, _decode(fields["sig"], "sig"))
