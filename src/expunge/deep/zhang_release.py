"""What a request to Zhang et al.'s method returns: a release with its account, a secret state."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import nn

from expunge.deep.methods.common import Work
from expunge.deep.problem import Unlearned
from expunge.deep.zhang_bounds import NEEDS, Account
from expunge.deep.zhang_claim import (
    INDISTINGUISHABLE,
    NOT_COVERED,
    TRUST,
    Constants,
    payload,
    premises,
    promise,
    signal,
)
from expunge.errors import CertificateRefused
from expunge.guarantee import Tag

NO_BALL = (
    "claim: REFUSED; no ball is enforced, so no noise is enough: give radius, or train with "
    "Recipe(max_norm=...)"
)

KEPT = (
    "claim: REFUSED; buffers are released as the forgotten records left them: use GroupNorm, or "
    "Problem(buffers='reestimate')"
)


@dataclass(frozen=True, repr=False)
class Hidden:
    """The noiseless state between requests: secret, and no model to hand out.

    Attributes
    ----------
    model : nn.Module
        The projected model without noise, from which the next request starts.
    retained, deleted, releases : int
        Records left; records deleted and models released so far.
    bound : float
        The largest Δ of a request so far.
    terms : tuple
        Radius, σ, ε and δ, which stay the same for all requests.
    """

    model: nn.Module
    retained: int
    deleted: int
    releases: int
    bound: float
    terms: tuple[float | None, ...]

    def __repr__(self) -> str:
        return f"Hidden(releases={self.releases}, retained={self.retained})"


@dataclass(frozen=True, repr=False, kw_only=True)
class Released(Unlearned):
    """A released model, with what its noise is worth.

    Attributes
    ----------
    account : Account or None
        None if no ball is enforced.
    payload : mapping
        What an auditor recomputes ε from (`expunge.deep.zhang_claim.recheck`), whether or not it is
        enough; empty without a ball, and where old buffers are released.
    refusal : str or None
        Why nothing is claimed.
    """

    account: Account | None
    payload: Mapping[str, Any]
    refusal: str | None

    def __post_init__(self) -> None:
        """Refuse a guarantee that the noise does not pay for."""
        unpaid = self.account is None or self.account.refused or self.refusal is not None
        if self.guarantee is not None and unpaid:
            raise CertificateRefused(self.refusal or self._block())

    def certificate(self) -> Mapping[str, Any]:
        """Return the payload of the claim, ``conditional`` at best.

        Raises
        ------
        CertificateRefused
            If nothing may be claimed; the message holds the ε that the noise implies.
        """
        if self.refusal is not None:
            raise CertificateRefused(self.refusal)
        return self.payload

    def report(self) -> str:
        """Return what belongs into every report on this release."""
        known = {name: found.value for name, found in self.evidence.items()}
        how = "estimated" if self.evidence["smallest"].tag is Tag.assumed else "measured"
        largest = f"λ_max={known['largest']:.4g} ({how}); " if "largest" in known else ""
        dropped = f"dropped, norm {known['dropped']:.3g}" if known["dropped"] else "kept"
        lines = [
            self._block(),
            f"grade {self.grade}; reference: the same procedure without the forgotten records",
            f"residual part {known['residualPart']:.3g} ({dropped}), forget part "
            f"{known['forgetPart']:.3g}; step {known['step']:.3g}",
            f"λ={known['damping']:.4g}, λ_min={known['smallest']:.4g} ({how}), {largest}"
            f"{known['solver']}: relative residual {known['residual']:.2g} after "
            f"{known['iterations']} iterations",
            f"not covered: {'; '.join(NOT_COVERED)}",
            f"taken on trust: {'; '.join(TRUST)}",
        ]
        return "\n".join([*lines, *(it for it in self.warnings if it != self.refusal)])

    def _block(self) -> str:
        return self.refusal or NO_BALL if self.account is None else self.account.block()


@dataclass(frozen=True)
class Terms:
    """What a claim rests on besides the account.

    Attributes
    ----------
    constants : Constants or None
    deletions : int
        Records deleted by all requests so far.
    seeded : bool
        Whether the noise can be drawn again.
    facts : mapping
        Of the run, for the payload.
    """

    constants: Constants | None
    deletions: int
    seeded: bool
    facts: Mapping[str, Any]


def needed(constants: Constants | None) -> tuple[str, ...]:
    """Return the symbols of what the bound of the step takes as assumed."""
    if constants is None:
        return NEEDS
    given = {"M": constants.hessian_lipschitz, "G": constants.residual}
    return tuple(symbol for symbol, it in given.items() if it.tag is Tag.assumed or symbol == "G")


def claimed(work: Work, account: Account | None, terms: Terms, seconds: float) -> Released:
    """Return the release of a finished run, with a guarantee only where the noise pays for it."""
    smallest = work.evidence["smallest"]
    named = {"λ_min": smallest} if terms.constants is None else terms.constants.named(smallest)
    refusal, record = NO_BALL, dict[str, Any]()
    if work.evidence["buffers"].value == "keep":
        refusal = KEPT
    elif account is not None:
        refusal = account.block() if account.refused else ""
        further = ["noiseIndependentOfData"] if terms.seeded else []
        if len(work.network.names) < len(list(work.model.named_parameters())):
            further.append("unchangedPartNeverSawForget")
        work.assumptions += premises(account, named, further)
        record = payload(account, named, work.assumptions, terms.facts)
        if not refusal:
            work.guarantee = promise(account, terms.deletions)
            _compare_with_noise(work, account)
    if refusal:
        work.warnings.append(refusal)
    found = work.result("zhang" if account is None else account.method, seconds)
    known = {name: getattr(found, name) for name in Unlearned.__dataclass_fields__}
    return Released(**known, account=account, payload=record, refusal=refusal or None)


def _compare_with_noise(work: Work, account: Account) -> None:
    share = signal(account, work.network.size)
    if share < INDISTINGUISHABLE:
        work.warnings.append(
            f"‖w‖/‖noise‖ is at most {share:.2g}: the release is noise, indistinguishable from "
            "that of a model that was never trained"
        )
