"""The page of a report: one HTML file without scripts or external requests.

The upper half is for a privacy officer and uses the sentences of the certificates; the lower half
is for whoever wants to know whether they are true.
"""

from __future__ import annotations

from html import escape

from expunge.certificate import words
from expunge.certificate.checks import Verdict
from expunge.certificate.page import POLICY
from expunge.report import evidence, officer
from expunge.report.facts import (
    Accuracy,
    Control,
    Findings,
    Realised,
    Report,
    Timing,
)
from expunge.report.style import STYLE

__all__ = ["Accuracy", "Control", "Findings", "Realised", "Report", "Timing", "page"]


def page(report: Report) -> str:
    """Return the report as one HTML file.

    Raises
    ------
    ExpungeError
        If there are findings to plot and matplotlib is not installed.
    """
    body = _header(report) + officer.part(report) + evidence.part(report) + _footer(report)
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        '<meta name="referrer" content="no-referrer">'
        f"<title>Deletion report, {escape(report.last.issuer.name)}</title>"
        f"<style>{STYLE}</style></head>\n<body><main>{body}</main></body></html>\n"
    )


def _header(report: Report) -> str:
    last, steps = report.last, words.count(len(report.certificates), "deletion")
    title = (
        f"{_people(report.requests)} asked to be forgotten"
        if last.guarantee.unit == "person"
        else f"{words.count(report.requests, 'request')} to be forgotten"
    )
    lede = (
        f"{words.count(sum(report.records), 'record')} were deleted from a published model in "
        f"{steps}, each with a signed certificate. {_sentence(report)}"
    )
    note = f'<p class="note">{escape(report.note)}</p>' if report.note else ""
    return (
        f'<header><p class="kicker">expunge deletion report, {escape(last.issuer.name)}, '
        f"{words.day(last.issued_at)}</p><h1>{escape(title)}</h1>"
        f'<p class="lede">{escape(lede)}</p>{note}{officer.figures(report)}</header>'
    )


def _people(number: int) -> str:
    return "1 person" if number == 1 else f"{number:,} people"


def _sentence(report: Report) -> str:
    failed = [check.name for check in report.checks if check.verdict is Verdict.FAIL]
    if failed:
        return f"The newest certificate FAILED its checks ({', '.join(failed)}): do not rely on it."
    return f"For the newest, {report.summary}."


def _footer(report: Report) -> str:
    return (
        "<footer><p>Made by expunge. This page shows what the signed certificates say, and what "
        "was measured beside them; the certificates are what counts. It is not legal advice and "
        "takes no position on any law.</p></footer>"
    )
