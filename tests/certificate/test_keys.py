"""Keys on disk, passphrases, sealing."""

from __future__ import annotations

import stat
import subprocess
from pathlib import Path

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, x25519
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from expunge.certificate import keys
from expunge.certificate.keys import KeySigner
from expunge.errors import KeyUnusable

FORM = (serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8)


def private_file(path: Path, key: object, mode: int = 0o600) -> Path:
    path.write_bytes(key.private_bytes(*FORM, serialization.NoEncryption()))
    path.chmod(mode)
    return path


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, bytes]:
    directory = tmp_path_factory.mktemp("base") / "deep" / "keys"
    return directory, keys.generate_key_files(directory).encode()


def test_rfc_8032_key_id() -> None:
    secret = "9d61b19deffd5a60ba844af492ec2cc44449c5697b326919703bac031cae7f60"
    signer = KeySigner(Ed25519PrivateKey.from_private_bytes(bytes.fromhex(secret)))
    assert keys.raw(signer.public).hex().startswith("d75a9801")
    expected = "06e3fd8fda29bb60ab59557de61edb0aecdb231134be30e75b455f8e1b792fa9"
    assert signer.keyid == keys.keyid(signer.public) == expected


def test_generated_files(made: tuple[Path, bytes]) -> None:
    directory, passphrase = made
    modes = {p.name: stat.S_IMODE(p.stat().st_mode) for p in directory.iterdir()}
    assert modes == {
        "issuer.pem": 0o600,
        "log.pem": 0o600,
        "sealing.key": 0o600,
        "issuer.pub.pem": modes["issuer.pub.pem"],
        "log.pub.pem": modes["log.pub.pem"],
    }
    assert len(passphrase) == 26
    assert set(passphrase) <= set(b"ABCDEFGHIJKLMNOPQRSTUVWXYZ234567")
    ids = set()
    for role in ("issuer", "log"):
        assert b"ENCRYPTED" in (directory / f"{role}.pem").read_bytes()
        signer = keys.load_signer(directory / f"{role}.pem", passphrase)
        public = keys.load_public(directory / f"{role}.pub.pem")
        public.verify(signer.sign(b"message"), b"message")
        ids |= {signer.keyid, keys.keyid(public)}
    assert len(ids) == 2
    assert len(keys.load_sealing_key(directory / "sealing.key")) == 32
    assert [p.name for p in directory.parent.iterdir()] == ["keys"], "nothing is left behind"


def test_keys_are_never_overwritten(made: tuple[Path, bytes], tmp_path: Path) -> None:
    directory, _ = made
    before = {p: p.read_bytes() for p in directory.iterdir()}
    with pytest.raises(KeyUnusable, match="never overwritten"):
        keys.generate_key_files(directory)
    assert {p: p.read_bytes() for p in directory.iterdir()} == before
    assert list(directory.parent.iterdir()) == [directory]
    (tmp_path / "file").touch()
    with pytest.raises(KeyUnusable, match="cannot make keys"):
        keys.generate_key_files(tmp_path / "file")


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o660, 0o666])
def test_files_that_others_can_use_are_refused(tmp_path: Path, mode: int) -> None:
    path = private_file(tmp_path / "k.pem", Ed25519PrivateKey.generate(), mode)
    with pytest.raises(KeyUnusable, match="chmod 600"):
        keys.load_signer(path, None)
    (tmp_path / "s").write_text("00" * 32)
    (tmp_path / "s").chmod(mode)
    with pytest.raises(KeyUnusable, match="chmod 600"):
        keys.load_sealing_key(tmp_path / "s")


def test_passphrases(made: tuple[Path, bytes], tmp_path: Path) -> None:
    locked = made[0] / "issuer.pem"
    for passphrase, message in ((None, "give its"), (b"wrong", "wrong"), (b"", "passphrase")):
        with pytest.raises(KeyUnusable, match=message):
            keys.load_signer(locked, passphrase)
    bare = private_file(tmp_path / "bare.pem", Ed25519PrivateKey.generate())
    keys.load_signer(bare, None)
    with pytest.raises(KeyUnusable, match="give no passphrase"):
        keys.load_signer(bare, b"superfluous")


def test_wrong_kinds_of_key(made: tuple[Path, bytes], tmp_path: Path) -> None:
    for i, other in enumerate(
        (ec.generate_private_key(ec.SECP256R1()), x25519.X25519PrivateKey.generate())
    ):
        with pytest.raises(KeyUnusable, match="expected an Ed25519 key"):
            keys.load_signer(private_file(tmp_path / f"{i}.pem", other), None)
        pem = other.public_key().public_bytes(
            serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
        )
        with pytest.raises(KeyUnusable, match="expected an Ed25519 key"):
            keys.load_public(pem)
    with pytest.raises(KeyUnusable, match="not a private key"):
        keys.load_signer(private_text(tmp_path / "text", b"hello"), None)
    with pytest.raises(KeyUnusable, match="BEGIN PUBLIC KEY"):
        keys.load_public((made[0] / "issuer.pem").read_bytes())
    for load in (lambda p: keys.load_signer(p, None), keys.load_public, keys.load_sealing_key):
        with pytest.raises(KeyUnusable, match="cannot read"):
            load(tmp_path / "missing")
    for text in (b"00" * 31, b"zz" * 32, b"\xff"):
        with pytest.raises(KeyUnusable, match="64 hexadecimal digits"):
            keys.load_sealing_key(private_text(tmp_path / "sealing", text))


def private_text(path: Path, content: bytes) -> Path:
    path.write_bytes(content)
    path.chmod(0o600)
    return path


@pytest.mark.parametrize(
    "options",
    [
        ["-scrypt"],
        ["-v2", "aes-256-cbc", "-v2prf", "hmacWithSHA256", "-iter", "600000"],
    ],
)
def test_openssl_encryption_for_human_passphrases(tmp_path: Path, options: list[str]) -> None:
    bare = private_file(tmp_path / "bare.pem", Ed25519PrivateKey.generate())
    out = tmp_path / "locked.pem"
    command = ["openssl", "pkcs8", "-topk8", "-in", str(bare), "-out", str(out)]
    try:
        subprocess.run([*command, *options, "-passout", "pass:horse"], check=True)
    except FileNotFoundError:
        pytest.skip("openssl is not installed")
    out.chmod(0o600)
    expected = keys.load_signer(bare, None).keyid
    assert keys.load_signer(out, b"horse").keyid == expected


def test_passphrase_from_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (keys.PASSPHRASE, keys.PASSPHRASE_FILE):
        monkeypatch.delenv(name, raising=False)
    assert keys.passphrase_from_environment() is None
    monkeypatch.setenv(keys.PASSPHRASE, "grün")
    assert keys.passphrase_from_environment() == "grün".encode()
    (tmp_path / "p").write_bytes(b"from file \n")
    monkeypatch.setenv(keys.PASSPHRASE_FILE, str(tmp_path / "p"))
    assert keys.passphrase_from_environment() == b"from file "
    monkeypatch.setenv(keys.PASSPHRASE_FILE, str(tmp_path / "missing"))
    with pytest.raises(KeyUnusable, match="EXPUNGE_KEY_PASSPHRASE_FILE"):
        keys.passphrase_from_environment()


def test_sealing() -> None:
    key = bytes(range(32))
    sealed = keys.seal(key, b"annex")
    assert keys.unseal(key, sealed) == b"annex"
    assert keys.seal(key, b"annex") != sealed, "a fresh nonce every time"
    assert b"annex" not in sealed
    wrong = [(bytes(32), sealed), (key, sealed[:10]), (key, b""), (key, sealed[:-1])]
    wrong += [
        (key, bytes(b ^ (1 if i == j else 0) for j, b in enumerate(sealed)))
        for i in range(len(sealed))
    ]
    for other, content in wrong:
        with pytest.raises(KeyUnusable, match="altered"):
            keys.unseal(other, content)
    with pytest.raises(KeyUnusable, match="32 bytes"):
        keys.seal(b"short", b"annex")


def test_secrets_are_not_shown(made: tuple[Path, bytes]) -> None:
    signer = keys.load_signer(made[0] / "issuer.pem", made[1])
    assert repr(signer) == f"KeySigner(keyid={signer.keyid[:16]}…)"
