"""One exception tree. Every message says what was expected, what came, and what to do."""

from __future__ import annotations


class ExpungeError(Exception):
    """Base of everything that expunge raises on purpose."""


class InvalidInput(ExpungeError, ValueError):
    """Data or a parameter is not what the function takes."""


class UnknownRecord(InvalidInput):
    """A record asked to be deleted was never trained on (or its values differ)."""


class AlreadyDeleted(InvalidInput):
    """A record asked to be deleted has been deleted before."""


class IncompletePerson(InvalidInput):
    """A person owns more records than were handed over for deletion."""


class LastOfClass(InvalidInput):
    """The deletion would leave a class without records."""


class RetainedMismatch(InvalidInput):
    """The rows given as retained data are not the rows that the model retains."""


class ToleranceUnreachable(ExpungeError):
    """The optimum cannot be located as closely as the policy demands."""


class NeedsRetainedData(ExpungeError):
    """The data-free bound exceeds the public tolerance and no retained rows were given."""


class CertificateRefused(ExpungeError):
    """A certificate would claim more than the evidence gives."""


class InvalidCalibration(CertificateRefused):
    """A published calibration was asked for outside the range in which it is true."""


class BudgetExhausted(CertificateRefused):
    """The releases, or the deletions, that the policy covers are used up."""


class VerificationFailed(ExpungeError):
    """A check of a certificate, log or model failed; ``check`` names it."""

    def __init__(self, check: str, reason: str) -> None:
        super().__init__(f"{check}: {reason}")
        self.check = check
        self.reason = reason


class KeyUnusable(ExpungeError):
    """A signing or sealing key is missing, unreadable, unprotected or of the wrong type."""


class FolderProblem(ExpungeError):
    """A model folder is missing, occupied, locked or damaged."""


class DataMissing(ExpungeError):
    """A data set for the demonstration or a benchmark is not installed."""


class Unfinished(FolderProblem):
    """A release HAS happened, but not all of its files are in place; opening finishes them."""


MALFORMED = (
    ArithmeticError,
    AttributeError,
    IndexError,
    KeyError,
    RecursionError,
    TypeError,
    ValueError,
)
"""What reading content of another form than expected raises; never shown to anybody as it is."""
