"""A directory of keys: made once, kept apart from model folders, referred to by its path."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from cryptography.hazmat.primitives import serialization

from expunge.certificate.keys import (
    PASSPHRASE,
    PASSPHRASE_FILE,
    KeySigner,
    generate_key_files,
    load_public,
    load_sealing_key,
    load_signer,
)
from expunge.certificate.trust import TrustPolicy
from expunge.errors import KeyUnusable
from expunge.folder.durable import sync, write
from expunge.folder.layout import TRUST

Passphrase = Callable[[], bytes | None]
"""Gives the passphrase; called only if a key is encrypted."""

ROLES = ("issuer", "log")


@dataclass(frozen=True, repr=False)
class Keys:
    """The signer of statements, the signer of checkpoints, and the key that seals annexes."""

    issuer: KeySigner
    log: KeySigner
    sealing: bytes

    @property
    def trust(self) -> TrustPolicy:
        """The trust policy that names these two signers."""
        return TrustPolicy.of(self.issuer.public, self.log.public)


def make_keys(
    directory: Path, *, encrypted: bool = True, passphrase_file: Path | None = None
) -> str | None:
    """Make keys and their trust policy in a new directory, in one step.

    Parameters
    ----------
    directory : Path
        Must not exist, or be empty.
    encrypted : bool
        Whether the private keys are encrypted with a generated passphrase.
    passphrase_file : Path, optional
        Where to write the passphrase, readable by its owner only.

    Returns
    -------
    str or None
        The passphrase, which is kept nowhere else.

    Raises
    ------
    KeyUnusable
        If the directory is not empty, or a file cannot be written.
    """
    if directory.exists() and (not directory.is_dir() or any(directory.iterdir())):
        raise KeyUnusable(f"{directory} is not empty: keys are never overwritten; name a new one")
    try:
        directory.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".keys-", dir=directory.parent) as made:
            fresh = Path(made) / "keys"
            passphrase: str | None = generate_key_files(fresh)
            if not encrypted:
                _decrypt(fresh, passphrase)
                passphrase = None
            write(fresh / TRUST, public_keys(fresh).to_json())
            if passphrase is not None and passphrase_file is not None:
                write(passphrase_file, passphrase.encode() + b"\n", secret=True)
            os.rename(fresh, directory)
            sync(directory.parent)
    except OSError as error:
        raise KeyUnusable(f"cannot write {error.filename}: {error.strerror}") from error
    return passphrase


def _decrypt(directory: Path, passphrase: str | None) -> None:
    for role in ROLES:
        path = directory / f"{role}.pem"
        signer = load_signer(path, None if passphrase is None else passphrase.encode())
        plain = signer.private.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
        path.unlink()
        write(path, plain, secret=True)


def public_keys(directory: Path) -> TrustPolicy:
    """Return the trust policy of a directory's public keys.

    Raises
    ------
    KeyUnusable
        If they are missing or damaged.
    """
    if not directory.is_dir():
        raise KeyUnusable(f"{directory} is no directory of keys; make one with `expunge keys new`")
    issuer, log = (load_public(directory / f"{role}.pub.pem") for role in ROLES)
    return TrustPolicy.of(issuer, log)


def open_keys(directory: Path, passphrase: Passphrase) -> Keys:
    """Load the private keys of a directory.

    Raises
    ------
    KeyUnusable
        If a key is missing, damaged or readable by others, or the passphrase is wrong.
    """
    if not directory.is_dir():
        raise KeyUnusable(f"{directory} is no directory of keys; make one with `expunge keys new`")
    sealing = load_sealing_key(directory / "sealing.key")
    issuer = directory / "issuer.pem"
    secret = passphrase() if _is_encrypted(issuer) else None
    if secret is None and _is_encrypted(issuer):
        raise KeyUnusable(
            f"{issuer} is encrypted: put the name of the file with its passphrase into "
            f"{PASSPHRASE_FILE}, or the passphrase itself into {PASSPHRASE}"
        )
    signers = [load_signer(directory / f"{role}.pem", secret) for role in ROLES]
    return Keys(signers[0], signers[1], sealing)


def _is_encrypted(path: Path) -> bool:
    try:
        return b"ENCRYPTED" in path.read_bytes()
    except OSError as error:
        raise KeyUnusable(f"cannot read {path}: {error.strerror}") from error
