"""What a release after Zhang et al.'s step may claim, and the record from which it is recomputed.

Two mechanisms can be claimed. ``zhang`` pays for the bound of the step and rests on constants that
nobody knows of a network. ``output_perturbation`` pays for the diameter of the ball; it is what is
left when the bound is vacuous, and then the step contributes nothing. Neither is ever more than
``conditional``: that C and σ were fixed before the data were seen is assumed.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from expunge.deep.zhang_bounds import Account
from expunge.errors import CertificateRefused, VerificationFailed
from expunge.guarantee import Assumption, Guarantee, Tag, View, grade_of

if TYPE_CHECKING:
    from expunge.deep.problem import Evidence

NOT_COVERED = (
    "models published earlier",
    "tuning, preprocessing, early stopping and record selection that saw the forgotten records",
    "the fact and the time of the request",
)

TRUST = (
    "noiseless states and the noise stay secret",
    "the operating system's generator",
    "rounding of float64 noise",
)

INDISTINGUISHABLE = 0.05
"""Ratio ‖w‖/‖noise‖ below which a release is as good as one of the zero vector."""


@dataclass(frozen=True)
class Constants:
    """What the bounds suppose of the network, with how each value is known.

    Attributes
    ----------
    hessian_lipschitz, residual : Evidence
        M and G of :func:`~expunge.deep.zhang_bounds.newton_bound`.
    gradient_lipschitz, batch_norm : Evidence, optional
        L and B of :func:`~expunge.deep.zhang_bounds.lissa_bound`, which is printed beside Δ.
    failure : float
        ρ of that bound.
    """

    hessian_lipschitz: Evidence
    residual: Evidence
    gradient_lipschitz: Evidence | None = None
    batch_norm: Evidence | None = None
    failure: float = 0.1

    def named(self, smallest: Evidence) -> dict[str, Evidence]:
        """Return what is given by symbol, together with λ_min."""
        given = {
            "L": self.gradient_lipschitz,
            "M": self.hessian_lipschitz,
            "λ_min": smallest,
            "G": self.residual,
            "B": self.batch_norm,
        }
        return {symbol: constant for symbol, constant in given.items() if constant is not None}


_PREMISES = {
    "L": "gradientLipschitz",
    "M": "hessianLipschitz",
    "λ_min": "smallestEigenvalue",
    "G": "residualGradientAtRetrain",
    "B": "batchHessianNorm",
}
_FIXED = (
    Assumption("parametersInBall", Tag.enforced),
    Assumption("everyReleasedTensorNoised", Tag.enforced),
    Assumption("radiusAndNoiseFixedBeforeData", Tag.assumed),
)


def premises(
    account: Account, constants: Mapping[str, Evidence], further: Sequence[str] = ()
) -> tuple[Assumption, ...]:
    """Return what a claim of this account rests on.

    Parameters
    ----------
    account : Account
    constants : mapping of str to Evidence
        As :meth:`Constants.named` gives them. They count only where the bound is not vacuous. G is
        always assumed: nobody has the retrained model.
    further : sequence of str
        Ids of what else is assumed, in either case.
    """
    found = _FIXED + tuple(Assumption(name, Tag.assumed) for name in further)
    if account.vacuous:
        return found
    return found + tuple(
        Assumption(_PREMISES[symbol], Tag.assumed if symbol == "G" else Tag(constant.tag))
        for symbol, constant in constants.items()
    )


def promise(account: Account, deletions: int) -> Guarantee:
    """Return what all releases so far guarantee together about ``deletions`` deleted records.

    The reference is the same procedure started from a model that never saw them (``cleanUnlearn``).

    Raises
    ------
    CertificateRefused
        If the noise is too small; the message is the account's block with the implied ε.
    """
    if account.refused:
        raise CertificateRefused(account.block())
    certain = account.vacuous or not account.failure
    return Guarantee(
        "muGdp" if certain else "epsilonDelta",
        account.implied,
        account.delta,
        account.mu if certain else None,
        "record",
        deletions,
        account.releases,
        View.afterOnly if account.releases == 1 else View.transcript,
        comparator="cleanUnlearn",
    )


def signal(account: Account, parameters: int) -> float:
    """Return the largest ‖w‖/‖noise‖ that a model in the ball can have, C/(σ√p)."""
    return account.radius / (account.sigma * math.sqrt(parameters)) if account.sigma else math.inf


def payload(
    account: Account,
    constants: Mapping[str, Evidence],
    assumptions: Sequence[Assumption],
    facts: Mapping[str, Any],
) -> dict[str, Any]:
    """Return a record from which an auditor recomputes ε, whether or not anything is claimed.

    Plain JSON; None stands for an infinite number, and for the ε of a refused claim.

    Parameters
    ----------
    account, constants, assumptions
        As of the release.
    facts : mapping
        ``version``, ``n``, ``m``, ``p``, ``schedule`` (hash of the settings), ``buffers``,
        ``precision``, ``residuals`` and whatever else belongs to the run.
    """
    kind = "none" if account.refused else "muGdp"
    share = signal(account, facts["p"])
    return {
        "method": account.method,
        "grade": str(grade_of(kind, assumptions)),
        "reference": "self",
        "epsilon": None if account.refused else account.implied,
        "impliedEpsilon": _finite(account.implied),
        "delta": account.delta,
        "mu": _finite(account.mu),
        "bound": _finite(account.bound),
        "ball": account.diameter,
        "shift": account.shift,
        "sigma": account.sigma,
        "sigmaNeeded": _finite(account.needed),
        "askedEpsilon": account.epsilon,
        "failure": account.failure,
        "release": account.releases,
        "paperMode": account.paper,
        "constants": [
            {"name": name, "value": found.value, "tag": str(found.tag)}
            for name, found in constants.items()
        ],
        "assumptions": [{"id": each.id, "tag": each.tag.value} for each in assumptions],
        "nullControl": {
            "signalToNoise": _finite(share),
            "indistinguishable": share < INDISTINGUISHABLE,
        },
        "trust": list(TRUST),
        "notCovered": list(NOT_COVERED),
        **facts,
    }


def recheck(record: Mapping[str, Any]) -> None:
    """Recompute a payload's ε, Δ, method and grade from its own numbers.

    Raises
    ------
    VerificationFailed
        If a number is missing, or is not what the others give.
    """
    missing = [name for name in _NEEDED if name not in record]
    if missing:
        raise VerificationFailed("payload", f"lacks {', '.join(missing)}")
    account = Account(
        math.inf if record["bound"] is None else float(record["bound"]),
        float(record["ball"]) / 2,
        float(record["sigma"]),
        float(record["askedEpsilon"]),
        float(record["delta"]),
        int(record["release"]),
        float(record["failure"]),
        bool(record["paperMode"]),
    )
    assumptions = [Assumption(each["id"], each["tag"]) for each in record["assumptions"]]
    grade = grade_of("none" if account.refused else "muGdp", assumptions)
    expected = {
        "method": account.method,
        "shift": account.shift,
        "mu": _finite(account.mu),
        "impliedEpsilon": _finite(account.implied),
        "sigmaNeeded": _finite(account.needed),
        "epsilon": None if account.refused else account.implied,
        "grade": str(grade),
    }
    for name, value in expected.items():
        if record[name] != value:
            raise VerificationFailed(name, f"the payload says {record[name]}, it is {value}")


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


_NEEDED = (
    *("method", "version", "grade", "reference", "epsilon", "impliedEpsilon", "delta", "mu"),
    *("bound", "ball", "shift", "sigma", "sigmaNeeded", "askedEpsilon", "failure", "release"),
    *("paperMode", "n", "m", "p", "constants", "assumptions", "schedule", "buffers", "precision"),
    *("residuals", "nullControl", "trust", "notCovered"),
)
