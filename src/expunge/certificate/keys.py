"""Signing keys (Ed25519) and the key that seals annexes (AES-256-GCM).

Private keys are PKCS#8 PEM files that nobody but their owner may read. Their passphrase is
*generated*, because the encryption that goes with the format derives keys with few rounds, which
130 random bits make irrelevant. Anything with ``keyid``, ``public`` and ``sign`` can stand in for
a key file: a hardware token, a key service.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import secrets
import shutil
import stat
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from cryptography.exceptions import InvalidTag, UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from expunge.errors import KeyUnusable

PublicKey = Ed25519PublicKey
PASSPHRASE_FILE = "EXPUNGE_KEY_PASSPHRASE_FILE"
PASSPHRASE = "EXPUNGE_KEY_PASSPHRASE"
_ALPHABET = "ABCDEFGHIJKLMNOPQRSTUVWXYZ234567"
_SEALED = b"expunge/sealed/v1\0"
_NONCE = 12


class Signer(Protocol):
    """What signs: a key file here, or a token or key service behind the same three names."""

    @property
    def keyid(self) -> str:
        """SHA-256 (hex) of the DER SubjectPublicKeyInfo."""

    @property
    def public(self) -> PublicKey:
        """The public key that verifies the signatures."""

    def sign(self, message: bytes) -> bytes:
        """Return the Ed25519 signature (64 bytes) of a message."""


@dataclass(frozen=True, repr=False)
class KeySigner:
    """A private key in memory as a :class:`Signer`."""

    private: Ed25519PrivateKey

    def __repr__(self) -> str:
        """Show which key it is, not the key."""
        return f"KeySigner(keyid={self.keyid[:16]}…)"

    @property
    def public(self) -> PublicKey:
        """The public key."""
        return self.private.public_key()

    @property
    def keyid(self) -> str:
        """SHA-256 (hex) of the DER SubjectPublicKeyInfo."""
        return keyid(self.public)

    def sign(self, message: bytes) -> bytes:
        """Return the signature (64 bytes) of a message."""
        return self.private.sign(message)


def raw(public: PublicKey) -> bytes:
    """Return the 32 bytes of a public key."""
    return public.public_bytes(serialization.Encoding.Raw, serialization.PublicFormat.Raw)


def to_pem(public: PublicKey) -> bytes:
    """Return a public key as SubjectPublicKeyInfo PEM."""
    form = serialization.PublicFormat.SubjectPublicKeyInfo
    return public.public_bytes(serialization.Encoding.PEM, form)


def keyid(public: PublicKey) -> str:
    """Return the SHA-256 (hex) of the DER SubjectPublicKeyInfo of a public key."""
    form = serialization.PublicFormat.SubjectPublicKeyInfo
    return hashlib.sha256(public.public_bytes(serialization.Encoding.DER, form)).hexdigest()


def generate_key_files(directory: Path) -> str:
    """Make a directory with new keys, in one step, and return the passphrase of the private ones.

    ``issuer.pem`` and ``log.pem`` (private, encrypted), ``issuer.pub.pem`` and ``log.pub.pem``,
    ``sealing.key`` (32 random bytes in hex). Private files have mode 0600.

    Raises
    ------
    KeyUnusable
        If the directory is there and not empty, or cannot be made: keys are never overwritten.
    """
    passphrase = "".join(secrets.choice(_ALPHABET) for _ in range(26))
    lock = serialization.BestAvailableEncryption(passphrase.encode())
    files = {"sealing.key": secrets.token_hex(32).encode() + b"\n"}
    for role in ("issuer", "log"):
        private = Ed25519PrivateKey.generate()
        files[f"{role}.pem"] = private.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, lock
        )
        files[f"{role}.pub.pem"] = to_pem(private.public_key())
    directory = Path(directory)
    try:
        directory.parent.mkdir(parents=True, exist_ok=True)
        made = Path(tempfile.mkdtemp(prefix=".keys-", dir=directory.parent))
        try:
            for name, content in files.items():
                _write(made / name, content, 0o644 if name.endswith(".pub.pem") else 0o600)
            made.rename(directory)
        except BaseException:
            shutil.rmtree(made, ignore_errors=True)
            raise
    except OSError as error:
        raise KeyUnusable(
            f"cannot make keys in {directory}: {error.strerror}; "
            "name a directory that does not exist yet (existing keys are never overwritten)"
        ) from error
    return passphrase


def load_signer(path: Path, passphrase: bytes | None) -> KeySigner:
    """Read a private key file.

    Raises
    ------
    KeyUnusable
        If the file is missing, readable by others, not an Ed25519 key in PKCS#8 PEM, or the
        passphrase is missing, wrong or superfluous.
    """
    content = _read_private(path)
    try:
        private = serialization.load_pem_private_key(content, passphrase)
    except TypeError:
        state = "is encrypted: give its" if passphrase is None else "is not encrypted: give no"
        raise KeyUnusable(f"{path} {state} passphrase") from None
    except (ValueError, UnsupportedAlgorithm):
        raise KeyUnusable(f"{path}: wrong passphrase, or not a private key in PEM") from None
    if not isinstance(private, Ed25519PrivateKey):
        raise KeyUnusable(f"{path}: expected an Ed25519 key, got {type(private).__name__}")
    return KeySigner(private)


def load_public(source: Path | str | bytes) -> PublicKey:
    """Read an Ed25519 public key in PEM, from a file (path) or from its content (bytes).

    Raises
    ------
    KeyUnusable
        If there is no such file or it is not an Ed25519 public key.
    """
    name = "the key" if isinstance(source, bytes) else str(source)
    try:
        content = source if isinstance(source, bytes) else Path(source).read_bytes()
        public = serialization.load_pem_public_key(content)
    except OSError as error:
        raise KeyUnusable(f"cannot read {name}: {error.strerror}") from error
    except (ValueError, UnsupportedAlgorithm):
        raise KeyUnusable(f"{name}: expected a public key in PEM (BEGIN PUBLIC KEY)") from None
    if not isinstance(public, Ed25519PublicKey):
        raise KeyUnusable(f"{name}: expected an Ed25519 key, got {type(public).__name__}")
    return public


def load_sealing_key(path: Path) -> bytes:
    """Read a sealing key file and return its 32 bytes; raise ``KeyUnusable`` if it is not one."""
    with contextlib.suppress(ValueError):
        key = bytes.fromhex(_read_private(path).decode("ascii").strip())
        if len(key) == 32:
            return key
    raise KeyUnusable(f"{path}: expected 64 hexadecimal digits (32 bytes)")


def passphrase_from_environment() -> bytes | None:
    """Return the passphrase in the file named by ``EXPUNGE_KEY_PASSPHRASE_FILE``, or else in
    ``EXPUNGE_KEY_PASSPHRASE``, or None. A final line break in the file is not part of it.

    Raises
    ------
    KeyUnusable
        If the file cannot be read.
    """
    if path := os.environ.get(PASSPHRASE_FILE):
        try:
            return Path(path).read_bytes().rstrip(b"\r\n")
        except OSError as error:
            raise KeyUnusable(f"cannot read {PASSPHRASE_FILE}={path}: {error.strerror}") from error
    return os.fsencode(os.environ.get(PASSPHRASE, "")) or None


def seal(key: bytes, content: bytes) -> bytes:
    """Encrypt and authenticate with AES-256-GCM under a fresh nonce: ``magic ‖ nonce ‖ box``.

    Examples
    --------
    >>> key = bytes(32)
    >>> unseal(key, seal(key, b"annex"))
    b'annex'
    """
    nonce = os.urandom(_NONCE)
    return _SEALED + nonce + AESGCM(_checked(key)).encrypt(nonce, content, _SEALED)


def unseal(key: bytes, sealed: bytes) -> bytes:
    """Return what :func:`seal` sealed; raise ``KeyUnusable`` for another key or altered bytes."""
    start = len(_SEALED) + _NONCE
    if sealed.startswith(_SEALED) and len(sealed) >= start:
        with contextlib.suppress(InvalidTag):
            return AESGCM(_checked(key)).decrypt(
                sealed[len(_SEALED) : start], sealed[start:], _SEALED
            )
    raise KeyUnusable("the sealed file was altered, or was sealed with another key")


def _checked(key: bytes) -> bytes:
    if len(key) != 32:
        raise KeyUnusable(f"expected a sealing key of 32 bytes, got {len(key)}")
    return key


def _read_private(path: Path) -> bytes:
    try:
        with open(path, "rb") as file:
            mode = os.fstat(file.fileno()).st_mode
            if sys.platform != "win32" and mode & (stat.S_IRWXG | stat.S_IRWXO):
                raise KeyUnusable(
                    f"{path} can be used by others (mode {stat.S_IMODE(mode):04o}): chmod 600 it"
                )
            return file.read()
    except OSError as error:
        raise KeyUnusable(f"cannot read {path}: {error.strerror}") from error


def _write(path: Path, content: bytes, mode: int) -> None:
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
