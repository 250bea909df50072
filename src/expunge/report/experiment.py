"""One HTML page of an experiment: a chart and its tables, without scripts or external requests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import TYPE_CHECKING, Any

from expunge.certificate import words
from expunge.certificate.page import POLICY
from expunge.report.markup import bullets, facts, paragraphs, section
from expunge.report.style import STYLE

if TYPE_CHECKING:
    from expunge.deep.results import Group, Table

PARTS = ("retain", "forget", "test")

OWN_STYLE = """
.wide{max-width:1240px}
.chart{margin:18px 0 0}
.chart div{display:grid;grid-template-columns:11em 1fr;gap:14px;align-items:center;min-height:27px}
.chart div>span:first-child{font-size:14.5px;overflow-wrap:anywhere;line-height:1.25}
.track{position:relative;height:27px;border-bottom:1px solid var(--line)}
.track i{position:absolute;top:0;bottom:-1px;width:1px;margin-left:-.5px;opacity:.55}
.track b{position:absolute;top:8px;width:11px;height:11px;margin-left:-5.5px;border-radius:50%;
border:1px solid var(--paper)}
.retain{background:var(--certified)}.forget{background:var(--wrong)}.test{background:var(--realised)}
.ends span{font-variant-numeric:tabular-nums}
.key{font-size:14px;color:var(--soft);margin:6px 0 0}
.key>span{margin-right:1.4em;white-space:nowrap}
.swatch.retain,.swatch.forget,.swatch.test{border-radius:50%}
.track b.out{background:var(--paper);border:2px solid var(--soft)}
tbody th{font-weight:400;color:var(--ink);white-space:nowrap;line-height:inherit}
tbody th,thead th:first-child{position:sticky;left:0;background:var(--paper);z-index:1;
padding-right:14px}
.grade{text-align:left!important}
tr.end th,tr.end td{background:var(--wash)}
tr.lost td,tr.lost th{color:var(--soft)}
sup{color:var(--wrong);font-weight:650;line-height:0}
@media (max-width:760px){.chart div{grid-template-columns:6.6em 1fr;gap:10px}
.chart div>span:first-child{font-size:13px}
tbody th{white-space:normal;min-width:6.5em;max-width:8.5em}}
"""


def experiment_page(
    title: str,
    table: Table,
    summary: Mapping[str, Mapping[str, Any]],
    setting: Mapping[str, Any],
    *,
    legend: str,
) -> str:
    """Return the page.

    Parameters
    ----------
    summary : mapping
        By label and column, as `expunge.deep.results.summary` gives it.
    setting : mapping
        What was run, in plain values: printed as it is.
    """
    body = (
        f'<header><p class="kicker">expunge experiment</p><h1>{escape(title)}</h1>'
        f'<p class="lede">{escape(_lede(table, setting))}</p></header>'
        f"{_reading(table)}{_chart(table, summary)}"
        + "".join(_group(table, group) for group in table.groups)
        + paragraphs(legend)
        + _notes(table)
        + section("What was run", facts(_flat(setting)), "technical")
        + "<footer><p>Made by expunge. All methods but retraining are heuristic: nothing is "
        "guaranteed, and tests can only find what they look for.</p></footer>"
    )
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        '<meta name="referrer" content="no-referrer">'
        f"<title>{escape(title)}</title><style>{STYLE}{OWN_STYLE}</style></head>\n"
        f'<body><main class="wide">{body}</main></body></html>\n'
    )


def _lede(table: Table, setting: Mapping[str, Any]) -> str:
    refused = sum(grade == "refused" for grade in table.grades)
    lost = len(_lost(table))
    seeds = words.count(len(setting["seeds"]), "seed")
    text = (
        f"{words.count(len(table.labels) - 2, 'method')} on {seeds}, beside retraining without the "
        "forgotten records and doing nothing."
    )
    if refused:
        text += f" {refused} could not be used on this problem."
    if lost:
        text += f" {lost} lost more accuracy than forgetting explains."
    return text


def _reading(table: Table) -> str:
    texts = [note.text for note in table.notes if not note.label]
    return section("Before you read the numbers", paragraphs(*texts)) if texts else ""


def _chart(table: Table, summary: Mapping[str, Mapping[str, Any]]) -> str:
    """Accuracies as dots on one scale, retraining's as lines through all rows."""
    found = {
        label: {part: summary[label][f"accuracy {part}"]["mean"] for part in PARTS}
        for label in table.labels
        if summary[label]
    }
    lost = _lost(table)
    least = min(min(row.values()) for label, row in found.items() if label not in lost)
    low = min(0.95, int(20 * least) / 20)
    lines = _marks(found[table.labels[0]], low, "i")
    rows = "".join(
        f"<div><span>{escape(label)}</span>"
        f'<span class="track" role="img" aria-label="{escape(_spoken(row))}">{lines}'
        f"{_marks(row, low, 'b')}</span></div>"
        for label, row in found.items()
    )
    key = "".join(
        f'<span><span class="swatch {part}"></span>{name}</span>'
        for part, name in zip(PARTS, ("retained", "forgotten", "test"), strict=True)
    )
    ends = (
        f'<div><span></span><span class="ends"><span>{low:.2f}</span><span>accuracy</span>'
        "<span>1.00</span></span></div>"
    )
    about = paragraphs(
        "Share of right answers. The lines are retraining: dots on lines of their colour are where "
        "they should be. Hollow: beyond the left end."
    )
    return section(
        "Accuracy, beside retraining",
        f'{about}<p class="key">{key}</p><figure class="chart">{rows}{ends}</figure>',
    )


def _marks(row: Mapping[str, float], low: float, tag: str) -> str:
    found = ""
    for part in PARTS:
        place = 100 * (row[part] - low) / (1 - low)
        kind = part if place >= 0 else "out"
        found += f'<{tag} class="{kind}" style="left:{max(0.0, place):.2f}%"></{tag}>'
    return found


def _spoken(row: Mapping[str, float]) -> str:
    return ", ".join(f"{part} {row[part]:.3f}" for part in PARTS)


def _lost(table: Table) -> set[str]:
    return {note.label for note in table.notes if note.kind == "over-unlearned"}


def _group(table: Table, group: Group) -> str:
    marked, lost = {note.label for note in table.notes}, _lost(table)
    graded = group is table.groups[0]
    top = '<th scope="col">method</th>' + '<th scope="col" class="grade">grade</th>' * graded
    top += "".join(f'<th scope="col">{escape(name)}</th>' for name in group.head)
    body = ""
    for i, label in enumerate(table.labels):
        kind = "end" if i < 2 else "lost" if label in lost else ""
        mark = "<sup>†</sup>" * (label in marked)
        cells = f'<td class="grade">{escape(table.grades[i])}</td>' * graded
        cells += _cells(group.rows[i])
        body += f'<tr class="{kind}"><th scope="row">{escape(label)}{mark}</th>{cells}</tr>'
    return section(
        group.title,
        paragraphs(group.about)
        + f'<div class="scroll" tabindex="0" role="region" aria-label="{escape(group.title)}">'
        f"<table><thead><tr>{top}</tr></thead><tbody>{body}</tbody></table></div>",
    )


def _cells(cells: Sequence[str]) -> str:
    return "".join(f"<td>{escape(cell)}</td>" for cell in cells)


def _notes(table: Table) -> str:
    own = [note for note in table.notes if note.label]
    if not own:
        return ""
    kinds = {"refused": "assumed", "over-unlearned": "assumed", "warning": ""}
    items = [(f"{note.label}: {note.text}", note.kind, kinds[note.kind]) for note in own]
    return section("† Notes", bullets(items))


def _flat(setting: Mapping[str, Any], before: str = "") -> list[tuple[str, str]]:
    """Return nested settings as names with dots and their values; what is not set is left out."""
    found: list[tuple[str, str]] = []
    for name, value in setting.items():
        if isinstance(value, Mapping):
            found += _flat(value, f"{before}{name}.")
        elif value is not None:
            text = ", ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)
            found.append((before + name, text))
    return found
