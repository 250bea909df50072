"""What a file of a model folder is, for somebody who takes it for a certificate."""

from __future__ import annotations

from pathlib import Path

from expunge import regular
from expunge.certificate import strict_json
from expunge.certificate.envelope import Envelope
from expunge.certificate.statements import POLICY_TYPE, RELEASE_TYPE, predicate_type
from expunge.errors import InvalidInput, VerificationFailed
from expunge.folder.checking import read_given
from expunge.folder.proof import FORMAT

CERTIFICATE = "the certificate is the .dsse.json file of that number"
FOLDER = "to check it, check the folder"
STATEMENTS = {
    RELEASE_TYPE: ("the statement of a training or retrain, which deletes nobody", FOLDER),
    POLICY_TYPE: ("the policy of a model", FOLDER),
}


def require_certificate(path: Path) -> None:
    """Refuse a file that is a known kind of file and not a certificate.

    Whatever is not known is left to the checks, which fail by name.

    Raises
    ------
    InvalidInput
        With what the file is and what to check instead; or if it cannot be read.
    """
    found = _kind(read_given(path, regular.LARGE))
    if found is not None:
        kind, instead = found
        raise InvalidInput(f"{path.name} is not a certificate: it is {kind}; {instead}")


def _kind(content: bytes) -> tuple[str, str] | None:
    if content[:15].lower() == b"<!doctype html>":
        return "a page for people", CERTIFICATE
    if content[8:9] == b"{":
        return "a model file", "give the certificate, and this file with --model"
    try:
        value = strict_json.loads(content)
        if isinstance(value, dict) and value.get("format") == FORMAT:
            return "a proof that the log has a statement", CERTIFICATE
        return STATEMENTS.get(predicate_type(Envelope.from_json(content).payload))
    except VerificationFailed:
        return None
