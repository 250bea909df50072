"""The file that goes with a statement: proof that the log has it, and the signed checkpoint."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

from expunge.certificate import log, strict_json
from expunge.certificate.keys import PublicKey
from expunge.certificate.recheck import Inclusion
from expunge.errors import VerificationFailed
from expunge.folder.ledger import Ledger

FORMAT = "expunge-proof/1"


@dataclass(frozen=True)
class InclusionProof:
    """Entry ``index`` lies on ``path`` below the root of the ``checkpoint`` note."""

    index: int
    path: tuple[bytes, ...]
    checkpoint: str

    @classmethod
    def at(cls, ledger: Ledger, index: int, checkpoint: str) -> Self:
        """Prove an entry against the newest ``checkpoint`` of a log."""
        return cls(index, ledger.inclusion(index), checkpoint)

    def inclusion(self, origin: str, log_key: PublicKey) -> Inclusion:
        """Check the note and return the proof for a recheck.

        Raises
        ------
        VerificationFailed
            If the log ``origin`` did not sign the note with this key.
        """
        signed = log.verify_note(self.checkpoint, origin, log_key)
        return Inclusion(self.index, signed.size, signed.root, self.path)

    def to_json(self) -> bytes:
        """Return the content of the file."""
        return strict_json.dumps(
            {
                "format": FORMAT,
                "index": self.index,
                "path": [node.hex() for node in self.path],
                "checkpoint": self.checkpoint,
            }
        )

    @classmethod
    def from_json(cls, content: bytes) -> Self:
        """Read the file; raise ``VerificationFailed`` (``log``) if it is none."""
        match strict_json.loads(content):
            case {
                "format": "expunge-proof/1",
                "index": int(index),
                "path": [*path],
                "checkpoint": str(checkpoint),
            } if all(isinstance(node, str) for node in path) and not isinstance(index, bool):
                try:
                    return cls(index, tuple(bytes.fromhex(node) for node in path), checkpoint)
                except ValueError:
                    pass
        raise VerificationFailed("log", "the file is no inclusion proof of expunge")
