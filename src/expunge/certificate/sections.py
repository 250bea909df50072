"""The eight sections of a certificate's page, in their fixed order, free of any markup."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from expunge.certificate import decimals, words
from expunge.certificate.blocks import Request
from expunge.certificate.checks import Check, Report
from expunge.certificate.plain import LONGEST, printable, some
from expunge.certificate.statement import Certificate
from expunge.guarantee import Grade, Tag

SHOWN_REQUESTS = 4


@dataclass(frozen=True)
class Section:
    """A titled part of the page: paragraphs, facts (label, value), bullets, closing sentence.

    A bullet is (text, mark); the mark is a tag or a verdict, or empty.
    """

    number: int
    title: str
    paragraphs: tuple[str, ...] = ()
    facts: tuple[tuple[str, str], ...] = ()
    bullets: tuple[tuple[str, str], ...] = ()
    closing: str = ""


def sections(certificate: Certificate, report: Report | None) -> tuple[Section, ...]:
    """Everything the page says, 1 to 8."""
    return (
        _asked(certificate),
        _done(certificate),
        _guaranteed(certificate),
        _not_covered(certificate),
        _conditions(certificate),
        _budget(certificate),
        _checks(report),
        _technical(certificate),
    )


def banners(certificate: Certificate, report: Report | None) -> tuple[str, ...]:
    """What has to be seen before anything else: a test certificate, failed checks."""
    found = () if certificate.production else (words.TEST_BANNER,)
    wrong = [check for check in report.failed if check.name != "production"] if report else []
    if not wrong:
        return found
    names = ", ".join(words.phrase(check.name, words.CHECKS).lower() for check in wrong)
    return (*found, f"CHECKS FAILED, DO NOT RELY ON THIS CERTIFICATE: {names}.")


def _asked(certificate: Certificate) -> Section:
    requests, title = certificate.requests, "What was asked, and when"
    if not requests:
        return Section(1, title, ("No request is recorded with this deletion.",))
    if certificate.asked == len(requests) <= SHOWN_REQUESTS:
        return Section(1, title, facts=tuple(map(_request, requests)))
    outcomes = Counter[str]()
    for request in requests:
        outcomes[words.OUTCOMES[request.outcome]] += request.count
    late = sum(request.count for request in requests if _late(request))
    facts = [
        ("Requests", words.count(certificate.asked, "request")),
        ("Received", _span([request.received_at for request in requests])),
        ("Completed", _span([request.completed_at for request in requests])),
        ("Outcome", ", ".join(f"{number:,} {name}" for name, number in outcomes.items())),
    ]
    due = [request.due_at for request in requests if request.due_at is not None]
    if due:
        facts.insert(2, ("Due", _span(due)))
    if late:
        facts.append(("Late", words.count(late, "request") + " completed after the due date"))
    return Section(1, title, facts=tuple(facts))


def _request(request: Request) -> tuple[str, str]:
    rule = " ".join([words.REGIMES[request.regime], *request.basis])
    parts = [rule, f"received {words.day(request.received_at)}"]
    if request.due_at is not None:
        parts.append(f"due {words.day(request.due_at)}")
    if request.extension is not None:
        parts.append(f"extended to {words.day(request.extension.new_due_at)}")
    parts.append(f"completed {words.day(request.completed_at)}" + (", late" * _late(request)))
    parts.append(f"outcome: {words.OUTCOMES[request.outcome]}")
    return f"Request {request.commitment[:8]}", " · ".join(parts)


def _late(request: Request) -> bool:
    due = request.extension.new_due_at if request.extension else request.due_at
    return due is not None and request.completed_at > due


def _span(moments: Sequence[datetime]) -> str:
    first, last = words.day(min(moments)), words.day(max(moments))
    return first if first == last else f"{first} to {last}"


def _done(certificate: Certificate) -> Section:
    trees = certificate.commitments
    deleted = f"{trees.deleted.count:,} of {trees.training.count:,} trained on"
    names = ", ".join(f"{it.name} {it.sha256[:16]}…" for it in certificate.subject)
    before = (
        "not stated" if certificate.model_before is None else certificate.model_before[:16] + "…"
    )
    facts = (
        ("Records deleted so far", f"{deleted}; {trees.retained.count:,} retained"),
        ("Model before", before),
        ("Model now", names),
    )
    method = words.METHODS.get(certificate.evidence.mechanism, "The method is not known here.")
    return Section(2, "What was done", (method,), facts)


def _guaranteed(certificate: Certificate) -> Section:
    guarantee, grade = certificate.guarantee, certificate.grade
    only = "Only if the unverified assumptions below hold: " * (grade is Grade.conditional)
    paragraphs = [only + words.strength(guarantee)]
    if guarantee.kind != "none":
        compared = words.COMPARATORS[guarantee.comparator]
        paragraphs.append(f"{words.coverage(guarantee)} Compared with {compared}.")
    unverified = tuple(
        (words.phrase(it.id, words.ASSUMPTIONS), "")
        for it in certificate.assumptions
        if it.tag is Tag.assumed
    )
    graded = (("Grade", f"{grade}: {words.GRADES[grade]}"),)
    title = "What is guaranteed, against whom, how strongly"
    return Section(3, title, tuple(paragraphs), graded, unverified)


def _not_covered(certificate: Certificate) -> Section:
    first = [code for code in certificate.non_claims if code == "holderOfOldModel"]
    rest = [code for code in certificate.non_claims if code != "holderOfOldModel"]
    codes = [*first, *certificate.scope.excluded, *rest]
    bullets = tuple((words.phrase(code, words.NOT_COVERED), "") for code in codes)
    notices = tuple(
        (f"Notice {it.digest[:8]}", f"{it.status}, {words.day(it.notified_at)}")
        for it in certificate.scope.downstream
    )
    other = "Other systems and copies of the data are outside this certificate."
    return Section(4, "What is not guaranteed", (other,), notices, bullets)


def _conditions(certificate: Certificate) -> Section:
    bullets = tuple(
        (words.phrase(it.id, words.ASSUMPTIONS), it.tag.value) for it in certificate.assumptions
    )
    trusted = "; ".join(words.phrase(code, words.TRUST) for code in certificate.trust)
    closing = f"Trusted, because no mathematics can settle it: {trusted}." if trusted else ""
    return Section(5, "What it rests on", bullets=bullets, closing=closing)


def _budget(certificate: Certificate) -> Section:
    budget, guarantee = certificate.budget, certificate.guarantee
    releases = max(guarantee.releases_covered - budget.release, 0)
    deletions = max(guarantee.deletions_covered - certificate.commitments.deleted.count, 0)
    facts = (
        ("Releases left", f"{releases:,} of {guarantee.releases_covered:,}"),
        ("Deletions left", f"{deletions:,} of {guarantee.deletions_covered:,} records"),
        ("Next action", f"check again or renew by {words.day(certificate.recheck_by)}"),
    )
    return Section(6, "Budget left, and the next date", facts=facts)


def _checks(report: Report | None) -> Section:
    repeat = "Repeat with: expunge verify CERTIFICATE --model FILE [--retained DATA]"
    title = "Checks made here, and how to repeat them"
    if report is None:
        return Section(7, title, ("No check was made when this page was written.",), closing=repeat)
    bullets = tuple((_named(check), check.verdict.value) for check in report.checks)
    summary = f"{report.summary[:1].upper()}{report.summary[1:]}."
    return Section(7, title, (summary,), bullets=bullets, closing=repeat)


def _named(check: Check) -> str:
    label = words.phrase(check.name, words.CHECKS)
    return f"{label}: {check.reason}" if check.reason else label


def _technical(certificate: Certificate) -> Section:
    evidence, guarantee, budget = certificate.evidence, certificate.guarantee, certificate.budget
    numbers = {"ε": guarantee.epsilon, "δ": guarantee.delta, "μ": guarantee.mu}
    claim = [(name, decimals.up(it, 4)) for name, it in numbers.items() if it is not None]
    algorithm, trees, noise = certificate.algorithm, certificate.commitments, certificate.noise
    values = (f"{key} {value}" for key, value in sorted(algorithm.parameters.items()))
    parameters = ", ".join(printable(value)[:LONGEST] for value in values)
    facts = [
        ("Claim", f"{guarantee.kind}: " + ", ".join(f"{name} = {it}" for name, it in claim)),
        ("σ, shift", f"{decimals.down(evidence.sigma, 4)}, {decimals.up(evidence.shift, 4)}"),
        ("Parameters", f"{evidence.dimension:,}"),
        ("Method", f"{algorithm.id} {algorithm.version}; {parameters}"),
        ("Noise", "none" if noise is None else f"{noise.source}, grid 2^{-noise.output_grid}"),
        ("Release", f"{budget.release} of lineage {budget.lineage[:16]}…"),
        ("Certificate", certificate.certificate_id),
        ("Payload SHA-256", certificate.digest),
        *((f"{it.name} SHA-256", it.sha256) for it in certificate.subject),
        ("Policy SHA-256", certificate.policy.sha256),
        ("Retained root", trees.retained.root),
        ("Deleted root", trees.deleted.root),
    ]
    if certificate.unknown:
        facts.append(("Fields not understood", some(certificate.unknown)))
    return Section(8, "Technical block", facts=tuple(facts))
