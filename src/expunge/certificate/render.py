"""One certificate for people: plain text for a terminal, and a self-contained HTML page.

Both show the sections of certificate.md §6 in the same order and words. Rendering checks nothing;
hand over the `Report` of a recheck to have its outcome shown.
"""

from __future__ import annotations

import textwrap

from expunge.certificate import words
from expunge.certificate.checks import Report
from expunge.certificate.page import page
from expunge.certificate.plain import printable
from expunge.certificate.sections import Section, banners, sections
from expunge.certificate.statement import Certificate

__all__ = ["BANNER", "page", "terminal"]

BANNER = words.TEST_BANNER
WIDTH = 88


def terminal(certificate: Certificate, report: Report | None = None, width: int = WIDTH) -> str:
    """The certificate as plain text, wrapped to ``width`` columns, without control characters."""
    lines = ["DELETION CERTIFICATE", _line(certificate), ""]
    for banner in banners(certificate, report):
        lines += ["!" * width, *textwrap.wrap(banner, width), "!" * width, ""]
    for section in sections(certificate, report):
        lines += [*_section(section, width), ""]
    return "\n".join(map(printable, lines))


def _line(certificate: Certificate) -> str:
    issuer = certificate.issuer
    return f"{issuer.name} ({issuer.role}), {words.day(certificate.issued_at)}"


def _section(section: Section, width: int) -> list[str]:
    lines = [f"{section.number}  {section.title}"]
    for paragraph in section.paragraphs:
        lines += _wrap(paragraph, width, "   ")
    label_width = max((len(label) for label, _ in section.facts), default=0)
    for label, value in section.facts:
        lines += _wrap(value, width, f"   {label:<{label_width}}  ")
    for text, mark in section.bullets:
        lines += _wrap(f"{text} [{mark}]" if mark else text, width, "   - ")
    return lines + (_wrap(section.closing, width, "   ") if section.closing else [])


def _wrap(text: str, width: int, first: str) -> list[str]:
    return textwrap.wrap(
        text,
        width,
        initial_indent=first,
        subsequent_indent=" " * len(first),
        break_on_hyphens=False,
    )
