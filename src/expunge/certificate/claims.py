"""The blocks of a certificate that follow from the policy: computed, never typed."""

from __future__ import annotations

from dataclasses import replace

from expunge.certificate import decimals
from expunge.certificate.blocks import Algorithm, Budget, Commitments, Evidence, NoiseRecord
from expunge.certificate.policy import Policy
from expunge.errors import BudgetExhausted
from expunge.guarantee import Assumption, Guarantee, Tag, View

NON_CLAIMS = ("notLegalAdvice", "notProofOfComputation", "holderOfOldModel")
TRUST = (
    "operatorRanStatedCode",
    "retainedListComplete",
    "sealedStateSecret",
    "continuousNoiseModel",
)


def require_capacity(policy: Policy, commitments: Commitments) -> None:
    """Refuse a deletion beyond the records that the policy covers (`BudgetExhausted`)."""
    deleted = commitments.deleted.count
    if deleted > policy.capacity:
        raise BudgetExhausted(
            f"{deleted} records are deleted and the policy covers {policy.capacity}; retrain under "
            "a new policy with a larger capacity"
        )


def budget_block(policy: Policy, release: int, previous: str | None) -> Budget:
    """Squared μ up to this release; `BudgetExhausted` says the ε it would really be."""
    if release > policy.releases:
        really = policy.epsilon_at(release)
        raise BudgetExhausted(
            f"release {release} exceeds the {policy.releases} that the policy covers; epsilon "
            f"would really be {really:.4g} at delta {policy.delta:g}, not {policy.epsilon:g}; "
            "retrain under a new policy"
        )
    each = decimals.value(decimals.up(policy.mu_per_release**2 * (1 + 1e-12)))
    return Budget(
        lineage=policy.lineage,
        release=release,
        previous_certificate=previous,
        mu_squared_per_release=each,
        mu_squared_spent=release * each,
        mu_squared_cap=policy.releases * each,
    )


def guarantee_block(policy: Policy, view: View) -> Guarantee:
    """The claim of all covered releases (transcript) or of one (afterOnly)."""
    mu = policy.mu_per_release if view is View.afterOnly else policy.mu
    return Guarantee(
        kind="zcdp" if policy.discrete else "muGdp",
        epsilon=policy.epsilon,
        delta=policy.delta,
        mu=None if policy.discrete else mu * (1 + 1e-12),
        unit=policy.unit,
        deletions_covered=policy.capacity,
        releases_covered=policy.releases,
        view=view,
    )


def evidence_block(policy: Policy, annex_digest: str) -> Evidence:
    """The numbers of the policy, from which the claim can be recomputed."""
    return Evidence(
        mechanism="discreteGaussianOutput" if policy.discrete else "gaussianOutput",
        gate="distance",
        tolerance_fit=policy.tolerance,
        tolerance_unlearn=policy.tolerance,
        strong_convexity=None,
        shift=policy.shift,
        sigma=policy.sigma,
        dimension=policy.dimension,
        sealed_digest=annex_digest,
    )


def assumption_list(policy: Policy) -> tuple[Assumption, ...]:
    """What the claim needs and how it is known; a learned feature map is assumed."""
    fixed = (
        Assumption("convexLoss", Tag.proved),
        Assumption("unlearnedWithinTolerance", Tag.measured),
        Assumption("comparatorWithinTolerance", Tag.enforced),
        Assumption("noiseIndependentOfData", Tag.enforced),
        Assumption("policyFixedBeforeRequests", Tag.enforced),
    )
    if policy.feature_map is None:
        return fixed
    return (*fixed, Assumption("featureMapFixed", policy.feature_map_tag))


def is_production(policy: Policy, noise: NoiseRecord) -> bool:
    """Whether all noise came from the operating system."""
    return policy.noise == noise.source != "seeded"


def with_parameters(algorithm: Algorithm, policy: Policy) -> Algorithm:
    """The algorithm with the public parameters that the policy fixes."""
    fixed = {"loss": policy.loss, "l2Total": decimals.lossless(policy.l2)}
    if policy.l1:
        fixed["l1Total"] = decimals.lossless(policy.l1)
    return replace(algorithm, parameters={**algorithm.parameters, **fixed})


def trust_list(policy: Policy) -> tuple[str, ...]:
    """What no mathematics can settle; arrays from outside add ``featuresPerRecord``."""
    trust = tuple(it for it in TRUST if not (policy.discrete and it == "continuousNoiseModel"))
    return trust if policy.feature_map is not None else (*trust, "featuresPerRecord")
