"""The page of one certificate: a single HTML file without scripts or external requests."""

from __future__ import annotations

import base64
from html import escape

from expunge.certificate import words
from expunge.certificate.checks import Report, Verdict
from expunge.certificate.envelope import Envelope
from expunge.certificate.sections import Section, banners, sections
from expunge.certificate.statement import Certificate

POLICY = "default-src 'none'; style-src 'unsafe-inline'"

STYLE = """
:root{--ink:#16202c;--soft:#56657a;--line:#d9e0e8;--band:#12324a;--good:#0b6b57;--bad:#a8201a;
--warn:#8a5200;--paper:#fff;--back:#eef2f6}
*{box-sizing:border-box}
body{margin:0;background:var(--back);color:var(--ink);
font:15px/1.5 system-ui,-apple-system,"Segoe UI",Roboto,"Helvetica Neue",Arial,sans-serif}
main{max-width:1080px;margin:24px auto;background:var(--paper);border:1px solid var(--line);
border-radius:10px;overflow:hidden}
header{background:var(--band);color:#fff;padding:22px 28px;display:flex;flex-wrap:wrap;gap:14px;
justify-content:space-between;align-items:flex-end}
h1{font-size:24px;line-height:1.2;margin:0 0 4px;font-weight:650;letter-spacing:-.01em}
header p{margin:0;color:#cfdce8}
.grade{border:1px solid #7fa3bd;border-radius:8px;padding:6px 14px;text-align:right}
.grade b{display:block;font-size:18px}
.grade span{font-size:12.5px;color:#cfdce8}
.banner{background:var(--bad);color:#fff;padding:12px 28px;font-weight:650}
.grid{display:grid;grid-template-columns:1fr 1fr;gap:0 36px;padding:10px 28px 18px}
section{padding:14px 0 12px;border-bottom:1px solid var(--line);min-width:0}
section.wide{grid-column:1/-1}
section:last-child{border-bottom:0}
h2{font-size:15.5px;margin:0 0 6px;display:flex;gap:9px;align-items:baseline}
h2 i{font-style:normal;color:var(--soft);font-variant-numeric:tabular-nums}
p{margin:0 0 6px}
dl{margin:0;display:grid;grid-template-columns:max-content 1fr;gap:2px 14px}
dt{color:var(--soft)}
dd{margin:0;overflow-wrap:anywhere}
ul{margin:4px 0 6px;padding:0;list-style:none}
li{padding:1px 0 1px 14px;position:relative;overflow-wrap:anywhere}
li:before{content:"";position:absolute;left:2px;top:.68em;width:5px;height:5px;border-radius:50%;
background:var(--soft)}
.mark{font-size:11.5px;font-weight:650;border:1px solid currentColor;border-radius:4px;
padding:0 5px;margin-left:6px;white-space:nowrap;color:var(--good)}
.mark.bad{color:#fff;background:var(--bad);border-color:var(--bad)}
.mark.open{color:var(--warn)}
.lead{font-size:16.5px;line-height:1.45}
.scale{margin:10px 0 4px;height:10px;border-radius:5px;position:relative;
background:linear-gradient(90deg,#0b6b57,#d7a21e 50%,#a8201a)}
.scale b{position:absolute;top:-4px;width:4px;height:18px;margin-left:-2px;border-radius:2px;
background:var(--ink);box-shadow:0 0 0 2px #fff}
.ends{display:flex;justify-content:space-between;color:var(--soft);font-size:12.5px;margin:0 0 8px}
.row dl{grid-template-columns:repeat(3,max-content 1fr)}
.checks ul{columns:3;column-gap:36px;font-size:13.5px}
.checks li{break-inside:avoid}
.technical dl{font-size:12.5px;grid-template-columns:max-content 1fr max-content 1fr}
.technical dd{font-family:ui-monospace,SFMono-Regular,Menlo,Consolas,monospace;font-size:11.5px}
footer{padding:12px 28px 16px;border-top:1px solid var(--line);color:var(--soft);font-size:13px}
a{color:#0a5a8c}
@media (max-width:720px){main{margin:0;border:0;border-radius:0}
header,.banner,footer{padding-left:18px;padding-right:18px}
.grade{text-align:left}
.grid{display:block;padding:4px 18px 12px}
dl,.row dl,.technical dl{grid-template-columns:1fr;gap:0}
.checks ul{columns:1}
dt{margin-top:4px;font-size:13px}}
@page{size:A4;margin:9mm}
@media print{body{background:#fff;font-size:7.6pt;line-height:1.26}
main{margin:0;border:0;border-radius:0;max-width:none}
header{padding:6px 10px;-webkit-print-color-adjust:exact;print-color-adjust:exact}
h1{font-size:13pt}.grade b{font-size:10pt}.grade span{font-size:7.4pt}
.banner{padding:5px 10px;-webkit-print-color-adjust:exact;print-color-adjust:exact}
.grid{display:grid;padding:2px 10px;gap:0 18px}
section{padding:3px 0;break-inside:avoid}
h2{font-size:8.8pt;margin-bottom:2px}p{margin-bottom:2px}
.lead{font-size:9pt}.ends,.mark{font-size:6.8pt}
dl{grid-template-columns:max-content 1fr;gap:0 8px}dt{margin:0}
.row dl{grid-template-columns:repeat(3,max-content 1fr)}
.checks ul{columns:3;column-gap:16px;font-size:7.2pt}
.scale{height:6px;margin:5px 0 3px;-webkit-print-color-adjust:exact;print-color-adjust:exact}
.scale b{top:-3px;height:12px}
.technical dl{font-size:6.9pt;grid-template-columns:max-content 1fr max-content 1fr}
.technical dd{font-size:6.4pt}
footer{padding:4px 10px;font-size:7pt}}
"""

BAD = {"assumed", Verdict.FAIL.value}
CLASSES = {3: "wide", 6: "wide row", 7: "wide checks", 8: "wide technical"}
OPEN = {Verdict.NOT_CHECKED.value}


def page(
    certificate: Certificate, envelope: Envelope | None = None, report: Report | None = None
) -> str:
    """The certificate as one HTML file.

    Parameters
    ----------
    certificate : Certificate
    envelope : Envelope or None
        Attached as a download when given.
    report : Report or None
        Outcome of a recheck, shown in section 7.

    Returns
    -------
    str
        UTF-8 text; every value escaped; no script, no external request; one A4 page in print.
    """
    banner = "".join(
        f'<div class="banner">{escape(text)}</div>' for text in banners(certificate, report)
    )
    body = "".join(_section(section, certificate) for section in sections(certificate, report))
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        '<meta name="referrer" content="no-referrer">'
        f"<title>Deletion certificate, {escape(certificate.issuer.name)}</title>"
        f"<style>{STYLE}</style></head>\n<body><main>{_header(certificate)}{banner}"
        f'<div class="grid">{body}</div>{_footer(envelope)}</main></body></html>\n'
    )


def _header(certificate: Certificate) -> str:
    issuer, grade = certificate.issuer, certificate.grade
    return (
        "<header><div><h1>Deletion certificate</h1>"
        f"<p>{escape(issuer.name)} ({escape(issuer.role)}), "
        f"{words.day(certificate.issued_at)}</p></div>"
        f'<div class="grade"><b>{escape(grade)}</b><span>{escape(words.GRADES[grade])}</span></div>'
        "</header>"
    )


def _section(section: Section, certificate: Certificate) -> str:
    wide = CLASSES.get(section.number, "")
    parts = [f"<h2><i>{section.number}</i>{escape(section.title)}</h2>"]
    for number, paragraph in enumerate(section.paragraphs):
        lead = ' class="lead"' if section.number == 3 and number == 0 else ""
        parts.append(f"<p{lead}>{escape(paragraph)}</p>")
        if lead and certificate.guarantee.kind != "none":
            parts.append(_scale(certificate.guarantee.success_probability))
    if section.facts:
        rows = "".join(f"<dt>{escape(k)}</dt><dd>{escape(v)}</dd>" for k, v in section.facts)
        parts.append(f"<dl>{rows}</dl>")
    if section.bullets:
        items = "".join(f"<li>{escape(text)}{_mark(mark)}</li>" for text, mark in section.bullets)
        parts.append(f"<ul>{items}</ul>")
    if section.closing:
        parts.append(f"<p>{escape(section.closing)}</p>")
    return f'<section class="{wide}">{"".join(parts)}</section>'


def _scale(chance: float) -> str:
    place = min(max(200 * chance - 100, 0), 100)
    return (
        f'<div class="scale"><b style="left:{place:.1f}%"></b></div>'
        '<p class="ends"><span>50 %: blind guessing</span>'
        f"<span>at most {words.percent(chance)}</span><span>100 %: certainty</span></p>"
    )


def _mark(mark: str) -> str:
    if not mark:
        return ""
    kind = " bad" if mark in BAD else " open" if mark in OPEN else ""
    return f'<span class="mark{kind}">{escape(mark)}</span>'


def _footer(envelope: Envelope | None) -> str:
    link = "The signed envelope is kept apart from this page."
    if envelope is not None:
        data = base64.b64encode(envelope.to_json()).decode()
        link = (
            '<a download="certificate.dsse.json" '
            f'href="data:application/json;base64,{data}">Signed envelope (DSSE, JSON)</a> '
            "is what counts; this page only shows it."
        )
    return f"<footer>{link}</footer>"
