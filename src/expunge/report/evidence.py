"""The lower half of a report: what was measured, the control, what it all rests on."""

from __future__ import annotations

from html import escape

from expunge.certificate import decimals, words
from expunge.certificate.checks import Check, Verdict
from expunge.report import plots
from expunge.report.facts import Control, Findings, Report, together
from expunge.report.markup import bullets, facts, paragraphs, section, table
from expunge.report.plots import brief, duration


def part(report: Report) -> str:
    """The half's HTML."""
    found = report.findings
    measured = "" if found is None else _leak(report, found) + _time(report, found)
    measured += "" if found is None else _accuracy(report, found)
    return (
        '<h2 class="part">Whether it is true</h2>'
        f"{measured}{_releases(report)}{_checks(report)}"
        f'<div class="pair">{_assumptions(report)}{_trust(report)}</div>'
        f"{_repeat(report)}{_technical(report)}"
    )


def _figure(svg: str, caption: str) -> str:
    return f"<figure><figcaption>{escape(caption)}</figcaption>{svg}</figure>"


def _beside(title: str, texts: tuple[str, ...], figure: str) -> str:
    return (
        f'<section class="beside"><div><h3>{escape(title)}</h3>{paragraphs(*texts)}</div>'
        f"{figure}</section>"
    )


def _leak(report: Report, found: Findings) -> str:
    real = together([it.mu for it in found.releases])
    idle = report.epsilon(together([it.idle for it in found.releases])[-1])
    worst = max(it.mu for it in found.releases) / report.mu_certified
    inside = "Every release stayed inside what was certified"
    title = inside if worst <= 1 else "A release went beyond what was certified"
    texts = (
        "After every deletion an auditor who holds all data retrained from scratch and measured "
        "how far the parameters, before noise, really were from the retrained ones. Divided by "
        "the noise that distance is the exact μ of the release; no statistics are involved.",
        f"The worst single release used {brief(100 * worst)} % of the μ certified for it. "
        f"Together they realised ε\u00a0=\u00a0{brief(report.epsilon(real[-1]))}.",
        f"Had the first model been published again each time, ε would have come to {brief(idle)}.",
        "The retrained optimum agrees with scikit-learn's, solved tightly, to "
        f"{brief(found.agreement)} (Euclidean distance).",
    )
    svg = plots.inline(plots.leak, report, f"ε of all releases so far: {_ends(report, found)}")
    caption = f"ε at δ = {brief(report.delta)} of all releases so far, logarithmic"
    return _beside(title, texts, _figure(svg, caption))


def _ends(report: Report, found: Findings) -> str:
    ends = {
        "certified": [report.mu_certified] * len(found.releases),
        "realised": [it.mu for it in found.releases],
        "had nothing been deleted": [it.idle for it in found.releases],
    }
    return ", ".join(f"{k} {brief(report.epsilon(together(v)[-1]))}" for k, v in ends.items())


def _time(report: Report, found: Findings) -> str:
    one, *more = (it for it in found.timings if not it.whole and not it.retrain)
    fastest = found.fastest_retrain
    texts = (
        f"To {one.label} takes {duration(one.seconds)} of computing, noise and certificate "
        f"included, {_compared(one.seconds, fastest.seconds)} the fastest retrain here "
        f"({fastest.label.removeprefix('retrain, ')}, {duration(fastest.seconds)}).",
        *(
            f"To {it.label} at once takes {duration(it.seconds)}, "
            f"{_compared(it.seconds, fastest.seconds)} that retrain."
            for it in more
        ),
        "On so few records a retrain is quick as well. The more there are, the more is gained: "
        "a deletion that works from the sealed state leaves them unread.",
        "The whole command also reads the table, signs, and writes model, log and state to disk; "
        "a retrain that is to be certified has to do the same.",
    )
    spoken = "; ".join(
        f"{it.label}{' with everything' if it.whole else ''} {duration(it.seconds)}"
        for it in found.timings
    )
    svg = plots.inline(plots.times, report, f"Durations: {spoken}", height=4.1)
    return _beside("Time beside time", texts, _figure(svg, "Seconds, logarithmic"))


def _compared(seconds: float, other: float) -> str:
    return f"{brief(other / seconds)} times less than" if other > seconds else "no less than"


def _accuracy(report: Report, found: Findings) -> str:
    base, last = found.accuracy, found.releases[-1]
    texts = (
        f"Share of right answers on {base.rows:,} records of {base.people:,} people who were "
        "never trained on.",
        f"Before any deletion {_share(base.before)}, after the last {_share(last.accuracy)}, "
        f"retrained from scratch without noise {_share(last.retrained)}. The commoner answer "
        f"alone gives {_share(base.majority)}.",
        f"The held-out people settle it to about ±{100 * base.error:.1f} points, more than any of "
        "these differences.",
    )
    spoken = (
        f"Accuracy of the published model: before {_share(base.before)}, after "
        f"{_share(last.accuracy)}, retrained {_share(last.retrained)}"
    )
    svg = plots.inline(plots.accuracy, report, spoken)
    return _beside("Accuracy beside accuracy", texts, _figure(svg, "Accuracy, held-out people"))


def _share(share: float) -> str:
    return f"{100 * share:.2f}\u00a0%"


def _releases(report: Report) -> str:
    head = ["Release", "Requests", "Records", "ε certified so far"]
    found = report.findings
    if found is not None:
        head += ["ε realised so far", "μ realised ÷ certified", "Published", "Retrained"]
    start = report.training
    blank = [] if found is None else ["", "", _share(found.accuracy.before), ""]
    rows = [[str(start.budget.release), "training", "", "", *blank]]
    mus = [] if found is None else [it.mu for it in found.releases]
    for k, certificate in enumerate(report.certificates):
        row = [
            str(certificate.budget.release),
            f"{certificate.asked:,}",
            f"{report.records[k]:,}",
            brief(report.epsilon(together([report.mu_certified] * (k + 1))[-1])),
        ]
        if found is not None:
            row += [
                brief(report.epsilon(together(mus)[k])),
                brief(mus[k] / report.mu_certified),
                _share(found.releases[k].accuracy),
                _share(found.releases[k].retrained),
            ]
        rows.append(row)
    return section("All releases", table(head, rows, "Table of releases"))


def _checks(report: Report) -> str:
    control = report.control
    if control is None:
        title, texts = "What the checks of the newest certificate say", paragraphs(report.summary)
    else:
        title = "A lie, to see whether the checks notice"
        caught = ", ".join(_label(name) for name in control.caught_by) or "nothing"
        texts = paragraphs(
            f"{control.claim} {control.truth}",
            f"Against the retained data, verification fails it by name: {caught}.",
        )
    return section(title, texts + _matrix(report.checks, control))


def _matrix(checks: tuple[Check, ...], control: Control | None) -> str:
    """The checks that did not pass, in a table; the others in a sentence."""
    lies = {} if control is None else {check.name: check for check in control.checks}
    pairs = [(check, lies.get(check.name, check)) for check in checks]
    known = {check.name for check in checks}
    pairs += [(_missing(lie), lie) for name, lie in lies.items() if name not in known]
    fine = [it for it, lie in pairs if {it.verdict, lie.verdict} == {Verdict.PASS}]
    rows = "".join(
        f"<tr><td>{escape(_label(it.name))}</td>{_verdict(it)}{_verdict(lie) if lies else ''}</tr>"
        for it, lie in pairs
        if it not in fine
    )
    head = "<th>Check</th><th>Newest certificate</th>" + "<th>The lie</th>" * bool(lies)
    table = (
        '<div class="scroll checks" tabindex="0" role="region" aria-label="Checks"><table>'
        f"<thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table></div>"
    )
    both = "Passed by both" if lies else "Passed"
    passed = ", ".join(_label(it.name).lower() for it in fine)
    return (table if rows else "") + (paragraphs(f"{both}: {passed}.") if fine else "")


def _missing(check: Check) -> Check:
    return Check(check.name, Verdict.NOT_CHECKED)


def _verdict(check: Check) -> str:
    kind = "open" if check.verdict is Verdict.NOT_CHECKED else check.verdict.value
    reason = check.reason if check.verdict is not Verdict.PASS else ""
    more = f"<small>{escape(reason)}</small>" if reason else ""
    return f'<td><span class="{kind}">{escape(check.verdict.value)}</span>{more}</td>'


def _label(name: str) -> str:
    return words.phrase(name, words.CHECKS)


def _assumptions(report: Report) -> str:
    items = (
        (words.phrase(it.id, words.ASSUMPTIONS) + ".", it.tag.value, it.tag.value)
        for it in report.last.assumptions
    )
    return section("What it rests on", bullets(items))


def _trust(report: Report) -> str:
    said = (words.phrase(code, words.TRUST) for code in report.last.trust)
    items = [(f"{text[:1].upper()}{text[1:]}.", "", "") for text in said]
    intro = paragraphs("No mathematics settles these; they are taken on trust:")
    return section("What has to be trusted", intro + bullets(items))


def _repeat(report: Report) -> str:
    if not report.repeat:
        return ""
    steps = "".join(
        f"<li>{escape(what)}<pre><code>{escape(command)}</code></pre></li>"
        for what, command in report.repeat
    )
    return section("How to repeat every check", f'<ul class="steps">{steps}</ul>')


def _technical(report: Report) -> str:
    last = report.last
    guarantee, evidence = last.guarantee, last.evidence
    numbers = {"ε": guarantee.epsilon, "δ": guarantee.delta, "μ": guarantee.mu}
    claim = ", ".join(f"{k} = {decimals.up(v, 4)}" for k, v in numbers.items() if v is not None)
    noise = last.noise
    rows = [
        ("Claim", f"{guarantee.kind}: {claim}, {guarantee.releases_covered:,} releases together"),
        ("σ", decimals.down(evidence.sigma, 4)),
        ("Tolerance τ", decimals.up(evidence.tolerance_unlearn, 4)),
        ("μ of one release", f"at most {decimals.up(report.mu_certified, 4)}"),
        ("Parameters", f"{evidence.dimension:,}"),
        ("Noise", f"{noise.source}, grid 2^-{noise.output_grid}" if noise else "none"),
        ("Lineage", last.budget.lineage),
        ("Policy SHA-256", last.policy.sha256),
        ("Model SHA-256", last.subject[0].sha256),
        ("Newest certificate", last.certificate_id),
        ("Payload SHA-256", last.digest),
    ]
    return section("Technical block", facts(rows), "technical")
