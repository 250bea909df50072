"""Small pieces of HTML; everything that goes in is escaped here."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape


def section(title: str, body: str, kind: str = "") -> str:
    """A titled section around markup."""
    name = f' class="{kind}"' if kind else ""
    return f"<section{name}><h3>{escape(title)}</h3>{body}</section>"


def paragraphs(*texts: str) -> str:
    """Plain texts as paragraphs; empty ones are left out."""
    return "".join(f"<p>{escape(text)}</p>" for text in texts if text)


def facts(rows: Iterable[tuple[str, str]], kind: str = "facts") -> str:
    """Labels and values."""
    body = "".join(f"<dt>{escape(k)}</dt><dd>{escape(v)}</dd>" for k, v in rows)
    return f'<dl class="{kind}">{body}</dl>'


def bullets(items: Iterable[tuple[str, str, str]]) -> str:
    """Items of (text, mark, class of the mark)."""
    rows = (
        f"<li>{escape(text)}"
        + (f' <span class="tag {escape(kind)}">{escape(mark)}</span>' if mark else "")
        + "</li>"
        for text, mark, kind in items
    )
    return f"<ul>{''.join(rows)}</ul>"


def table(head: Sequence[str], rows: Iterable[Sequence[str]], label: str) -> str:
    """A table that scrolls inside itself where it is too wide."""
    top = "".join(f'<th scope="col">{escape(cell)}</th>' for cell in head)
    body = "".join(
        "<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in rows
    )
    return (
        f'<div class="scroll" tabindex="0" role="region" aria-label="{escape(label)}">'
        f"<table><thead><tr>{top}</tr></thead><tbody>{body}</tbody></table></div>"
    )
