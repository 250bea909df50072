"""Recheck level (a) on a parsed certificate: its numbers, counts, grade, dates.

Every comparison has a relative slack of 1e-9 (certificate.md §5). The mechanism registry maps a
mechanism to a pure function; one that is not registered is not recheckable and never passes.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable
from datetime import datetime
from typing import TYPE_CHECKING

from expunge.certificate import decimals
from expunge.certificate.checks import Check, judge, unchecked
from expunge.certificate.commit import depth_for
from expunge.certificate.policy import SLACK, Policy, claimed, claimed_discrete
from expunge.errors import InvalidInput
from expunge.guarantee import View, grade_of

if TYPE_CHECKING:
    from expunge.certificate.statement import Certificate


def at_least(stated: float, needed: float) -> bool:
    """``stated`` ≥ ``needed`` up to the relative slack."""
    return stated >= needed * (1 - SLACK)


def check_numbers(certificate: Certificate) -> list[Check]:
    """Checks mechanism, understated, budget, capacity, grade, counts and production."""
    mechanism = MECHANISMS.get(certificate.evidence.mechanism)
    if mechanism is None:
        name = certificate.evidence.mechanism
        reason = f"not recheckable: this version does not know the mechanism {name!r}"
        return [unchecked("mechanism", reason), unchecked("understated", reason)]
    return [
        judge("mechanism", [], certificate.evidence.mechanism),
        judge("understated", mechanism(certificate)),
        judge("budget", budget_faults(certificate)),
        judge("capacity", _capacity_faults(certificate)),
        judge("grade", _grade_faults(certificate)),
        judge("counts", _count_faults(certificate)),
        judge("production", _production_faults(certificate)),
    ]


def claimed_mu(certificate: Certificate) -> float:
    """μ of everything the claim covers, recomputed from shift, σ and view."""
    evidence, guarantee = certificate.evidence, certificate.guarantee
    if evidence.shift == 0:
        return 0.0
    if evidence.sigma == 0:
        return math.inf
    releases = 1 if guarantee.view is View.afterOnly else guarantee.releases_covered
    return evidence.shift / evidence.sigma * math.sqrt(releases)


def _gaussian_output(certificate: Certificate) -> list[str]:
    return _noisy_output(certificate, ("muGdp", "epsilonDelta"), claimed)


def _discrete_gaussian_output(certificate: Certificate) -> list[str]:
    faults = _noisy_output(certificate, ("zcdp", "epsilonDelta"), claimed_discrete)
    noise = certificate.noise
    if noise is None or noise.distribution != "discreteGaussian":
        faults.append("the noise is not discrete")
    return faults


def _noisy_output(
    certificate: Certificate, kinds: tuple[str, ...], gives: Callable[[float, float, float], bool]
) -> list[str]:
    evidence, guarantee = certificate.evidence, certificate.guarantee
    faults = []
    if guarantee.kind not in kinds:
        faults.append(f"{evidence.mechanism} does not give a guarantee of type {guarantee.kind}")
    if guarantee.view is View.beforeAndAfter:
        faults.append("the view beforeAndAfter is outside the definition of deletion")
    if guarantee.level != "output":
        faults.append("noise on the output says nothing about the state that is kept")
    if not at_least(evidence.shift, _needed_shift(certificate)):
        faults.append("shift is smaller than the two tolerances together")
    mu = claimed_mu(certificate)
    if math.isinf(mu):
        return [*faults, "sigma is zero"]
    if guarantee.mu is not None and not at_least(guarantee.mu, mu):
        faults.append(f"mu must be at least {mu:.7g}, not {guarantee.mu:g}")
    epsilon, delta = guarantee.epsilon, guarantee.delta
    if epsilon is None or delta is None or not gives(epsilon, delta, mu):
        faults.append("epsilon and delta claim more than shift, sigma and releases give")
    return faults


def _needed_shift(certificate: Certificate) -> float:
    evidence, noise = certificate.evidence, certificate.noise
    needed = evidence.tolerance_fit + evidence.tolerance_unlearn
    if evidence.gate == "residual":
        needed = needed / evidence.strong_convexity if evidence.strong_convexity else math.inf
    if noise is not None and noise.distribution == "discreteGaussian":
        needed += math.ldexp(math.sqrt(evidence.dimension), -noise.output_grid)
    return needed


def _exact(certificate: Certificate) -> list[str]:
    evidence = certificate.evidence
    faults = []
    if certificate.guarantee.kind != "exact":
        faults.append("the mechanism exact goes with a guarantee of type exact")
    if evidence.shift or evidence.tolerance_fit or evidence.tolerance_unlearn:
        faults.append("an exact mechanism has shift and tolerances 0")
    return faults


def _none(certificate: Certificate) -> list[str]:
    return [] if certificate.guarantee.kind == "none" else ["the mechanism none guarantees nothing"]


MECHANISMS: dict[str, Callable[[Certificate], list[str]]] = {
    "gaussianOutput": _gaussian_output,
    "discreteGaussianOutput": _discrete_gaussian_output,
    "exact": _exact,
    "none": _none,
}


def budget_faults(certificate: Certificate) -> list[str]:
    """What is wrong with releases and squared μ."""
    budget, evidence = certificate.budget, certificate.evidence
    covered = certificate.guarantee.releases_covered
    faults = []
    if budget.release > covered:
        faults.append(f"release {budget.release} of {covered}")
    if evidence.sigma and not at_least(
        budget.mu_squared_per_release, (evidence.shift / evidence.sigma) ** 2
    ):
        faults.append("muSquaredPerRelease is smaller than (shift/sigma)²")
    if not at_least(budget.mu_squared_spent, budget.release * budget.mu_squared_per_release):
        faults.append("muSquaredSpent is smaller than release × muSquaredPerRelease")
    if not at_least(budget.mu_squared_cap, budget.mu_squared_spent):
        faults.append("muSquaredSpent exceeds muSquaredCap")
    return faults


def _capacity_faults(certificate: Certificate) -> list[str]:
    deleted, covered = (
        certificate.commitments.deleted.count,
        certificate.guarantee.deletions_covered,
    )
    return [f"{deleted} deletions, {covered} covered"] if deleted > covered else []


def _grade_faults(certificate: Certificate) -> list[str]:
    grade = grade_of(certificate.guarantee.kind, certificate.assumptions)
    if grade is certificate.grade:
        return []
    return [f"states {certificate.grade}, its assumptions give {grade}"]


def _count_faults(certificate: Certificate) -> list[str]:
    trees, faults = certificate.commitments, []
    if trees.training.count != trees.deleted.count + trees.retained.count:
        faults.append(
            f"training {trees.training.count} is not deleted {trees.deleted.count} "
            f"plus retained {trees.retained.count}"
        )
    if trees.depth != (depth := depth_for(trees.training.count)):
        faults.append(f"trees of {trees.training.count} records have depth {depth}")
    return faults


def _production_faults(certificate: Certificate) -> list[str]:
    if not certificate.production:
        return ["issued in test mode: not for production"]
    if certificate.noise is not None and certificate.noise.source == "seeded":
        return ["claims production, but its noise was seeded"]
    return []


def check_clock(certificate: Certificate, now: datetime) -> Check:
    """Order of the dates; completion after the due date is a warning, not a fault."""
    faults, notes = [], []
    for number, request in enumerate(certificate.requests, start=1):
        extension = request.extension
        if request.received_at > request.completed_at:
            faults.append(f"request {number} was completed before it was received")
        if request.completed_at > certificate.issued_at:
            faults.append(f"request {number} was completed after the certificate was issued")
        if extension and (request.due_at is None or extension.notified_at > request.due_at):
            faults.append(f"request {number}: its extension was notified after the due date")
        due = extension.new_due_at if extension else request.due_at
        if due is not None and request.completed_at > due:
            notes.append(f"late: request {number} was completed after its due date")
    if certificate.issued_at > now:
        faults.append("issued in the future")
    if now > certificate.recheck_by:
        faults.append("stale: the date recheckBy has passed")
    return judge("clock", faults, "; ".join(notes))


def check_policy(certificate: Certificate, policy: Policy, payload: bytes) -> Check:
    """Whether the certificate's numbers are those of ``policy``, read from ``payload``."""
    evidence, guarantee = certificate.evidence, certificate.guarantee
    parameters = certificate.algorithm.parameters
    pairs = {
        "digest": (certificate.policy.sha256, hashlib.sha256(payload).hexdigest()),
        "lineage": (certificate.budget.lineage, policy.lineage),
        "loss": (parameters.get("loss"), policy.loss),
        "l2Total": (number(parameters.get("l2Total")), policy.l2),
        "l1Total": (number(parameters.get("l1Total", "0")), policy.l1),
        "sigma": (evidence.sigma, policy.sigma),
        "toleranceFit": (evidence.tolerance_fit, policy.tolerance),
        "toleranceUnlearn": (evidence.tolerance_unlearn, policy.tolerance),
        "dimension": (evidence.dimension, policy.dimension),
        "epsilon": (guarantee.epsilon, policy.epsilon),
        "delta": (guarantee.delta, policy.delta),
        "unit": (guarantee.unit, policy.unit),
        "releasesCovered": (guarantee.releases_covered, policy.releases),
        "deletionsCovered": (guarantee.deletions_covered, policy.capacity),
    }
    wrong = [name for name, (stated, fixed) in pairs.items() if stated != fixed]
    return judge("policy", [f"differs from the policy in {', '.join(wrong)}"] if wrong else [])


def number(text: object) -> float:
    """A public parameter as a float; NaN, which equals nothing, when it is not a decimal string."""
    try:
        return decimals.value(str(text))
    except InvalidInput:
        return math.nan
