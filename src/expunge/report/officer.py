"""The upper half of a report: who asked what, what was done, what is guaranteed, what is not."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from datetime import datetime

from expunge.certificate import words
from expunge.report.facts import Report, together
from expunge.report.markup import bullets, facts, paragraphs, section
from expunge.report.plots import brief, duration


def part(report: Report) -> str:
    """The half's HTML."""
    return (
        '<h2 class="part">What a privacy officer needs to know</h2>'
        f'<div class="pair">{_asked(report)}{_done(report)}</div>'
        f"{_guaranteed(report)}{_not_covered(report)}"
    )


def figures(report: Report) -> str:
    """The few numbers that sum it up."""
    guarantee, found = report.last.guarantee, report.findings
    shown = [
        (
            words.percent(guarantee.success_probability),
            "is how often anyone can tell the published models from retrained ones, at most. "
            "Guessing gives 50 %",
        )
        if guarantee.kind != "none"
        else ("none", "is what is guaranteed")
    ]
    if found is None:
        left = guarantee.releases_covered - report.last.budget.release
        shown.append((f"{left:,}", "releases are left under this policy"))
        return facts(_swapped(shown), "figures")
    epsilon = [report.epsilon(it) for it in together([it.mu for it in found.releases])][-1]
    allowed = report.epsilon(together([report.mu_certified] * len(found.releases))[-1])
    one = next(it for it in found.timings if not it.whole and not it.retrain)
    last, retrain = found.releases[-1], found.fastest_retrain.seconds
    shown += [
        (brief(epsilon), f"is the ε realised so far, against {brief(allowed)} certified so far"),
        (
            duration(one.seconds),
            f"to {one.label}, against {duration(retrain)} to retrain",
        ),
        (
            _share(last.accuracy),
            f"of answers right on people never trained on, against {_share(last.retrained)} "
            "after retraining",
        ),
    ]
    return f'<dl class="figures">{_boxes(shown)}</dl>'


def _swapped(shown: list[tuple[str, str]]) -> list[tuple[str, str]]:
    return [(label, value) for value, label in shown]


def _boxes(shown: list[tuple[str, str]]) -> str:
    return "".join(
        facts([(label, value)]).replace('<dl class="facts">', "<div>").replace("</dl>", "</div>")
        for value, label in shown
    )


def _share(share: float) -> str:
    return f"{100 * share:.1f}\u00a0%"


def _asked(report: Report) -> str:
    requests = [request for it in report.certificates for request in it.requests]
    if not requests:
        return section("Who asked what", paragraphs("No request is recorded."))
    outcomes = Counter[str]()
    for request in requests:
        outcomes[words.OUTCOMES[request.outcome]] += request.count
    rules = {" ".join((words.REGIMES[it.regime], *it.basis)) for it in requests}
    due = [it.due_at for it in requests if it.due_at is not None]
    alone = sum(it.asked == 1 for it in report.certificates)
    batches = [it.asked for it in report.certificates if it.asked > 1]
    how = [f"{alone} one by one"] * bool(alone) + [f"{size:,} in one batch" for size in batches]
    rows = [
        ("Requests", f"{report.requests:,}: " + ", ".join(how)),
        ("Under", ", ".join(sorted(rules))),
        ("Received", _span(it.received_at for it in requests)),
        ("Due", _span(due) if due else "no date"),
        ("Completed", _span(it.completed_at for it in requests)),
        ("Outcome", ", ".join(f"{number:,} {name}" for name, number in outcomes.items())),
    ]
    return section("Who asked what", facts(rows))


def _done(report: Report) -> str:
    trees, last = report.last.commitments, report.last
    counts = (
        f"{trees.deleted.count:,} of {trees.training.count:,} records have been deleted; "
        f"{trees.retained.count:,} are retained. The model was published again after every "
        f"deletion, {last.budget.release:,} times in all with the training."
    )
    method = words.phrase(last.evidence.mechanism, words.METHODS)
    return section("What was done", paragraphs(report.data, report.model, counts, method))


def _guaranteed(report: Report) -> str:
    last, guarantee = report.last, report.last.guarantee
    grade = f"Grade: {last.grade.value}, {words.GRADES[last.grade]}."
    lead = paragraphs(words.strength(guarantee)).replace("<p>", '<p class="lead">', 1)
    if guarantee.kind == "none":
        return section("What is guaranteed", lead + paragraphs(grade), "claim")
    chance = guarantee.success_probability
    scale = (
        f'<div class="scale" aria-hidden="true"><b style="left:{200 * chance - 100:.1f}%"></b>'
        '</div><p class="ends"><span>50\u00a0%: blind guessing</span>'
        f"<span>at most {words.percent(chance)}</span><span>100\u00a0%: certainty</span></p>"
    )
    compared = words.phrase(guarantee.comparator, words.COMPARATORS)
    rest = paragraphs(f"Compared with {compared}. {words.coverage(guarantee)}", grade)
    return section("What is guaranteed, against whom, how strongly", lead + scale + rest, "claim")


def _not_covered(report: Report) -> str:
    last = report.last
    codes = [*last.non_claims, *last.scope.excluded]
    ordered = [code for code in words.NOT_COVERED if code in codes]
    ordered += [code for code in codes if code not in words.NOT_COVERED]
    items = bullets((words.phrase(code, words.NOT_COVERED) + ".", "", "") for code in ordered)
    return section("What is not guaranteed", items)


def _span(moments: Iterable[datetime]) -> str:
    days = sorted(moments)
    first, last = words.day(days[0]), words.day(days[-1])
    return first if first == last else f"{first} to {last}"
