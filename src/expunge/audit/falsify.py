"""Try to refute a certificate: first what is exact, then what is statistics.

In this order: recheck of the certificate; the exact realised μ; a replay; registered tests. A step
that refutes ends it. The answer is ``FALSIFIED``, ``CONSISTENT`` (with the ε that would have been
detected), or, where nothing can be decided, ``void``. Nothing here can establish a claim.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal, Protocol

import numpy as np

from expunge.audit.bands import gate
from expunge.audit.findings import Claim, Finding, Plan, Trial
from expunge.audit.intervals import Array
from expunge.audit.noise_checks import detectable_scale, noise_reuse, noise_size
from expunge.audit.realised import minimiser_error, realised
from expunge.certificate import algebra
from expunge.certificate.checks import Report
from expunge.certificate.checks import Verdict as Checked
from expunge.certificate.envelope import Envelope
from expunge.certificate.recheck import Outside, Sealed, recheck, recheck_model
from expunge.certificate.statement import Certificate
from expunge.errors import (
    ExpungeError,
    InvalidInput,
    ToleranceUnreachable,
    VerificationFailed,
)
from expunge.guarantee import View
from expunge.linear import engine
from expunge.linear.rows import make_rows

Verdict = Literal["FALSIFIED", "CONSISTENT"]
Status = Literal["decided", "void"]

UNREADABLE = frozenset(("json", "type", "signature", "predicateType", "schemaVersion", "schema"))
"""Checks without which there is no certificate that could be refuted."""
MATERIAL = frozenset(("model", "commitments", "log", "replay"))
"""Checks that tell whether the auditor was given what the certificate is about."""
REFUTING = frozenset(("understated", "budget", "capacity", "grade", "counts", "policy", "evidence"))
NOISE = frozenset(("noise", "noiseTag"))


@dataclass(frozen=True)
class Falsification:
    """The outcome of an attempt to falsify a certificate.

    Attributes
    ----------
    certificate : str
        SHA-256 of the certificate's payload.
    claim : Claim
    findings : tuple of Finding
        In the order in which they were made.
    verdict : {"FALSIFIED", "CONSISTENT"} or None
        None where the status is ``void``.
    status : {"decided", "void"}
    plan : Plan
    level : str
        Level of the recheck.
    """

    certificate: str
    claim: Claim
    findings: tuple[Finding, ...]
    verdict: Verdict | None
    status: Status
    plan: Plan
    level: str

    def __getitem__(self, name: str) -> Finding:
        """Return a finding by name."""
        for finding in self.findings:
            if finding.name == name:
                return finding
        raise KeyError(f"no finding is called {name!r}")

    @property
    def detectable_mu(self) -> float | None:
        """The smallest true μ of a release that would have been flagged, with probability 0.8."""
        seen = [f.detectable_mu for f in self.findings if not f.void and f.detectable_mu]
        return min(seen, default=None)

    @property
    def detectable_epsilon(self) -> float | None:
        """The ε at the claim's δ of a Gaussian mechanism with the detectable μ."""
        mu = self.detectable_mu
        if mu is None:
            return None
        return Finding("", False, "", detectable_mu=mu).detectable_epsilon(self.claim.delta)

    @property
    def reading(self) -> str:
        """One sentence for a person."""
        if self.verdict == "FALSIFIED":
            why = next(f for f in self.findings if f.refutes and not f.void)
            return f"FALSIFIED by {why.name}: {why.reason}."
        if self.verdict is None:
            why = next(f for f in self.findings if f.void)
            return f"Nothing can be decided, because of {why.name}: {why.reason}."
        epsilon = self.detectable_epsilon
        if epsilon is None:
            return "CONSISTENT, and no step could have detected anything: this says nothing."
        return (
            f"CONSISTENT: an epsilon of {epsilon:.3g} at delta {self.claim.delta:g} for one "
            "release would have been detected with probability 0.8 at least, a smaller one might "
            "not."
        )


def falsify(
    envelope: bytes,
    outside: Outside,
    *,
    files: Mapping[str, bytes] | None = None,
    sealed: Sealed | None = None,
    replay: Callable[[], Array] | None = None,
    plan: Plan = Plan(),  # noqa: B008
    thorough: bool = False,
) -> Falsification:
    """Try to refute the claim of a certificate.

    Parameters
    ----------
    envelope : bytes
        The certificate's DSSE envelope.
    outside : Outside
        Trusted keys, the time, and what else is known; see `expunge.certificate.recheck`.
    files, sealed
        The published files, and the opened sealed state with the retained rows; as for `recheck`.
        With both, size and reuse of the noise and the exact realised μ are computed.
    replay : callable or None
        Runs the stated code again and returns the unnoised parameters (p, C).
    plan : Plan
        Statistical tests, registered before the run. They are run only if nothing exact refutes.
    thorough : bool
        Whether to go on after a refutation, to see what else refutes.

    Raises
    ------
    VerificationFailed
        If it is no certificate, no trusted key signed it, or its mechanism is not known here.
    InvalidInput
        If it promises nothing, or a test looks at more than the claim covers.
    """
    report = recheck(envelope, outside, files, sealed)
    certificate = _certificate(envelope, report)
    claim = Claim.of(certificate)
    for test in plan.tests:
        if claim.access == "outputs" and test.access == "weights":
            raise InvalidInput(
                f"the claim covers outputs only, and {test.name} looks at weights: register a test "
                "of outputs"
            )
    findings: list[Finding] = []
    for finding in _steps(certificate, claim, report, (files, sealed, replay), plan):
        findings.append(finding)
        if finding.refutes and not finding.void and not thorough:
            break
    verdict, status = decide(findings)
    digest = hashlib.sha256(certificate.payload).hexdigest()
    return Falsification(digest, claim, tuple(findings), verdict, status, plan, report.level)


def _certificate(envelope: bytes, report: Report) -> Certificate:
    for check in report.failed:
        if check.name in UNREADABLE:
            raise VerificationFailed(check.name, check.reason)
    if report.level == "":
        unknown = next(
            one
            for one in report.checks
            if one.name in ("schema", "mechanism") and one.verdict is Checked.NOT_CHECKED
        )
        raise VerificationFailed(unknown.name, unknown.reason)
    return Certificate.from_payload(Envelope.from_json(envelope).payload)


_Given = tuple[Mapping[str, bytes] | None, Sealed | None, Callable[[], Array] | None]


def _steps(
    certificate: Certificate, claim: Claim, report: Report, given: _Given, plan: Plan
) -> Iterator[Finding]:
    files, sealed, replay = given
    yield _rechecked(claim, report)
    if files is not None and sealed is not None:
        yield from _noise(certificate, claim, files, sealed)
        yield _realised(certificate, claim, sealed)
        if replay is not None:
            yield _replayed(certificate, sealed, replay())
    children = np.random.SeedSequence(plan.seed).spawn(len(plan.tests))
    for test, child in zip(plan.tests, children, strict=True):
        yield _tested(test, claim, plan, np.random.default_rng(child))


class Judged(Protocol):
    """What a verdict follows from."""

    @property
    def refutes(self) -> bool: ...
    @property
    def void(self) -> bool: ...
    @property
    def share(self) -> float | None: ...


def decide(findings: Sequence[Judged]) -> tuple[Verdict | None, Status]:
    """Return verdict and status: nothing is decided on other material, or by a void test alone."""
    if any(f.void and f.share is None for f in findings):
        return None, "void"
    if any(f.refutes and not f.void for f in findings):
        return "FALSIFIED", "decided"
    if any(f.void for f in findings):
        return None, "void"
    return "CONSISTENT", "decided"


def _rechecked(claim: Claim, report: Report) -> Finding:
    failed = {check.name: check.reason for check in report.failed}
    name = "recheck"
    lost = sorted(failed.keys() & MATERIAL)
    if lost:
        told = "; ".join(f"{check} ({failed[check]})" for check in lost)
        return Finding(name, False, f"this is not what was certified: {told}", void=True)
    refuting = set(REFUTING)
    if claim.view is not View.afterOnly:
        refuting.add("noiseTag")
    wrong = sorted(failed.keys() & refuting)
    if wrong:
        told = "; ".join(f"{check} ({failed[check]})" for check in wrong)
        return Finding(name, True, told)
    noted = sorted(failed.keys() - NOISE)
    told = f"; noted: {', '.join(noted)}" if noted else ""
    return Finding(name, False, f"no check refutes it; level {report.level}{told}")


def _noise(
    certificate: Certificate, claim: Claim, files: Mapping[str, bytes], sealed: Sealed
) -> Iterator[Finding]:
    published = recheck_model(certificate, files)[1]
    sigma = certificate.evidence.sigma
    if published is None or published.shape != sealed.weights.shape or not sigma:
        return
    size = noise_size(published, sealed.weights, sigma)
    least = detectable_scale(size.dimension)
    yield Finding(
        "noiseSize",
        size.refuted,
        "the noise is not as large as stated"
        if size.refuted
        else f"noise of {least:.0%} of sigma or less would have been seen",
        statistic=size.energy,
        access="weights",
        sealed=True,
    )
    if sealed.previous_noise is not None and sealed.previous_noise.shape == published.shape:
        reuse = noise_reuse(published - sealed.weights, sealed.previous_noise)
        told = "the noise resembles that of the previous release"
        yield Finding(
            "noiseReuse",
            reuse.found and claim.view is not View.afterOnly,
            told + ", which this view does not cover" * (claim.view is View.afterOnly)
            if reuse.found
            else "the noise does not resemble that of the previous release",
            statistic=reuse.reach,
            access="weights",
            sealed=True,
        )


def _realised(certificate: Certificate, claim: Claim, sealed: Sealed) -> Finding:
    """Compare with a fresh fit on the retained rows, whose own error is proved independently."""
    name, evidence = "realised", certificate.evidence
    if evidence.mechanism not in ("gaussianOutput", "discreteGaussianOutput"):
        return Finding(name, False, f"there is no realised mu for {evidence.mechanism}")
    try:
        fitted = _fit(certificate, sealed)
        error = _error(certificate, sealed, fitted)
        found = realised(sealed.weights, fitted, evidence.sigma, error=error)
    except ExpungeError:
        return Finding(name, False, "no fit on the retained rows can be compared with")
    stated = evidence.shift / evidence.sigma
    refuted = found.refutes(stated)
    return Finding(
        name,
        refuted,
        "the exact mu of this release exceeds the stated one"
        if refuted
        else "the exact mu of this release does not exceed the stated one for certain",
        statistic=found.low,
        bound=found.low if claim.form == "mu" else None,
        detectable_mu=stated + 2 * error / evidence.sigma,
        access="weights",
        sealed=True,
    )


def _fit(certificate: Certificate, sealed: Sealed) -> Array:
    rows, parameters = sealed.rows, certificate.algorithm.parameters
    source = make_rows(
        rows.features,
        rows.target,
        rows.weight,
        intercept=sealed.weights.shape[0] > rows.width,
    )
    state, _ = engine.fit(
        source,
        loss=str(parameters.get("loss")),
        l2=algebra.number(parameters.get("l2Total")),
        l1=algebra.number(parameters.get("l1Total", "0")),
        tolerance=certificate.evidence.tolerance_fit,
        classes=False,
    )
    return state.weights


def _error(certificate: Certificate, sealed: Sealed, fitted: Array) -> float:
    """Return how far the comparator may be from a fit: a public multiple of its tolerance."""
    parameters = certificate.algorithm.parameters
    found = minimiser_error(
        sealed.rows,
        fitted,
        str(parameters.get("loss")),
        algebra.number(parameters.get("l2Total")),
        algebra.number(parameters.get("l1Total", "0")),
    )
    tolerance = certificate.evidence.tolerance_fit
    if not found <= tolerance:
        raise ToleranceUnreachable("its distance to the minimiser is not within the tolerance")
    return tolerance * (1.01 if found <= 0.01 * tolerance else 2.0)


def _replayed(certificate: Certificate, sealed: Sealed, weights: Array) -> Finding:
    allowed = 2 * certificate.evidence.tolerance_unlearn
    if weights.shape != sealed.weights.shape:
        raise InvalidInput(
            f"the replay gave parameters {weights.shape}, the sealed ones are "
            f"{sealed.weights.shape}"
        )
    distance = float(np.linalg.norm(weights - sealed.weights))
    refuted = not distance <= allowed
    return Finding(
        "replay",
        refuted,
        "running the stated code again gives other parameters"
        if refuted
        else "running the stated code again gives the same parameters within the tolerance",
        statistic=distance,
        access="weights",
        sealed=True,
    )


def _tested(test: Trial, claim: Claim, plan: Plan, rng: np.random.Generator) -> Finding:
    """Run a test on retraining first, then on the candidate and on doing nothing."""
    passed = gate(
        [test.run(claim, plan.share, "retrain", rng).flagged for _ in range(plan.oracles)],
        plan.share,
    )
    found = test.run(claim, plan.share, "candidate", rng)
    power = None
    if "nothing" in test.subjects:
        power = not test.run(claim, plan.share, "nothing", rng).refutes
    reason = found.reason
    if passed.void:
        reason = f"{passed.failures} of {passed.runs} retrained models fail this test too"
    return replace(found, reason=reason, oracle=passed, no_power=power, void=passed.void)
