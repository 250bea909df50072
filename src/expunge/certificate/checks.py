"""Named checks, their verdicts, and what a set of them amounts to."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum


class Verdict(StrEnum):
    """Outcome of one check; ``NOT CHECKED`` is never counted as passed."""

    PASS = "PASS"
    FAIL = "FAIL"
    NOT_CHECKED = "NOT CHECKED"


@dataclass(frozen=True)
class Check:
    """One named check; ``reason`` says what is wrong, missing or noteworthy."""

    name: str
    verdict: Verdict
    reason: str = ""


def judge(name: str, faults: Sequence[str], note: str = "") -> Check:
    """FAIL with all faults, or PASS with a note."""
    if faults:
        return Check(name, Verdict.FAIL, "; ".join(faults))
    return Check(name, Verdict.PASS, note)


def unchecked(name: str, reason: str) -> Check:
    """NOT CHECKED, with what is missing."""
    return Check(name, Verdict.NOT_CHECKED, reason)


_REACHED = {
    "": "nothing could be checked",
    "a": "signature and algebra are consistent; model and data not seen",
    "b": "signature, algebra and model file are consistent; data not seen",
    "c": "signature, algebra, model file and retained data are consistent",
}


@dataclass(frozen=True)
class Report:
    """All checks made, and the highest level they reached: "" (none), a, b or c."""

    checks: tuple[Check, ...]
    level: str

    def __getitem__(self, name: str) -> Check:
        """The check of that name."""
        for check in self.checks:
            if check.name == name:
                return check
        raise KeyError(name)

    @property
    def failed(self) -> tuple[Check, ...]:
        """The checks that failed."""
        return tuple(check for check in self.checks if check.verdict is Verdict.FAIL)

    @property
    def passed(self) -> bool:
        """No check failed and at least level (a) was reached: the exit status of ``verify``."""
        return self.level != "" and not self.failed

    @property
    def summary(self) -> str:
        """One sentence for a person."""
        if self.failed:
            return "FAILED: " + ", ".join(check.name for check in self.failed)
        return _REACHED[self.level]
