"""The plots of a report, as SVG that takes its colours from the page's style sheet.

Colours are drawn as placeholders and replaced: on a page by CSS variables, so that one picture
serves light and dark; in a file of its own by the light palette. Matplotlib is imported when the
first plot is drawn.
"""

from __future__ import annotations

import io
import math
import re
from collections.abc import Callable, Mapping, Sequence
from html import escape
from typing import Any

from expunge.errors import ExpungeError
from expunge.report.facts import Findings, Report, together

COLOURS = {
    "ink": "#1b2430",
    "soft": "#586474",
    "line": "#dcdfe3",
    "certified": "#1f4e79",
    "realised": "#0b7a5f",
    "wrong": "#b3261e",
    "paper": "#ffffff",
}
PLACEHOLDERS = {name: f"#0000{k:02x}" for k, name in enumerate(COLOURS, start=1)}
WIDTH, HEIGHT = 5.0, 3.6
FLOOR = 1e-6


def leak(axes: Any, report: Report) -> None:
    """Draw ε of all releases so far: certified, realised, and had nothing been deleted."""
    found = _findings(report).releases
    x = [it.budget.release for it in report.certificates]
    series = {
        "wrong": ("nothing deleted", [it.idle for it in found]),
        "certified": ("certified", [report.mu_certified] * len(found)),
        "realised": ("realised", [it.mu for it in found]),
    }
    axes.set_yscale("log")
    for name, (label, mus) in series.items():
        y = [max(report.epsilon(mu), FLOOR) for mu in together(mus)]
        dashes = {"linestyle": (0, (2, 2))} if name == "wrong" else {}
        axes.plot(x, y, color=PLACEHOLDERS[name], marker="o", ms=4, lw=1.8, **dashes)
        axes.annotate(
            f"{label}\n{brief(y[-1])}",
            (x[-1], y[-1]),
            xytext=(9, 0),
            textcoords="offset points",
            va="center",
            color=PLACEHOLDERS[name],
        )
    promise = report.last.guarantee.epsilon or 1.0
    axes.axhline(promise, color=PLACEHOLDERS["soft"], lw=1, ls=(0, (1, 2)))
    axes.annotate(
        f"promise for {report.last.guarantee.releases_covered:,} releases: {brief(promise)}",
        (1, promise),
        xycoords=axes.get_yaxis_transform(),
        xytext=(0, 3),
        textcoords="offset points",
        ha="right",
        color=PLACEHOLDERS["soft"],
    )
    axes.yaxis.set_major_formatter(lambda value, _: _power(value))
    axes.set_xlabel("release")
    axes.set_xticks(x)
    axes.set_xlim(x[0] - 0.4, x[-1] + 0.45 * len(x))
    axes.spines["bottom"].set_bounds(x[0], x[-1])


def times(axes: Any, report: Report) -> None:
    """Draw durations on a logarithmic axis, the computation alone above the whole command."""
    timings = _findings(report).timings
    seconds = [it.seconds for it in timings]
    middle = math.sqrt(min(seconds) * max(seconds))
    y = 0.0
    for whole, title in ((False, "computation alone"), (True, "with everything")):
        axes.annotate(
            title,
            (0, y),
            xycoords=axes.get_yaxis_transform(),
            va="center",
            color=PLACEHOLDERS["soft"],
        )
        for it in (it for it in timings if it.whole is whole):
            y -= 1
            right = it.seconds > middle
            colour = PLACEHOLDERS["soft" if it.retrain else "realised"]
            axes.plot(it.seconds, y, color=colour, marker="o", ms=7)
            axes.annotate(
                f"{it.label}, {duration(it.seconds)}",
                (it.seconds, y),
                xytext=(-8 if right else 8, 0),
                textcoords="offset points",
                ha="right" if right else "left",
                va="center",
                color=colour,
            )
        y -= 1.4
    axes.set_xscale("log")
    axes.set_xlim(min(seconds) / 1.6, max(seconds) * 1.6)
    axes.xaxis.set_major_formatter(lambda value, _: duration(value))
    axes.set_yticks([])
    axes.set_ylim(y + 0.8, 0.6)
    axes.spines["left"].set_visible(False)


def accuracy(axes: Any, report: Report) -> None:
    """Draw held-out accuracy of every release beside retraining."""
    found, base = _findings(report).releases, _findings(report).accuracy
    x = [it.budget.release for it in report.certificates]
    retrained = [100 * it.retrained for it in found]
    published = [100 * base.before, *(100 * it.accuracy for it in found)]
    error, start = 100 * base.error, report.training.budget.release
    low, high = [r - error for r in retrained], [r + error for r in retrained]
    axes.fill_between(x, low, high, color=PLACEHOLDERS["line"], lw=0)
    axes.plot(x, retrained, color=PLACEHOLDERS["soft"], lw=1.8)
    axes.plot([start, *x], published, color=PLACEHOLDERS["realised"], marker="o", ms=4, lw=0)
    majority = 100 * base.majority
    axes.axhline(majority, color=PLACEHOLDERS["wrong"], lw=1, ls=(0, (1, 2)))
    for text, place, shift, name in (
        ("retrained ± 1 standard error", (x[-1], high[-1]), 5, "soft"),
        ("published", (x[-1], low[-1]), -5, "realised"),
        ("always the commoner answer", (x[-1], majority), 5, "wrong"),
    ):
        axes.annotate(
            text,
            place,
            xytext=(0, shift),
            textcoords="offset points",
            ha="right",
            va="bottom" if shift > 0 else "top",
            color=PLACEHOLDERS[name],
        )
    axes.set_xlabel("release")
    axes.set_xticks([start, *x])
    axes.set_ylim(majority - 1, max(high) + 1.5)
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:g} %")


def _findings(report: Report) -> Findings:
    if report.findings is None:
        raise ExpungeError("this plot needs an auditor's findings")
    return report.findings


def brief(value: float) -> str:
    """A number with two digits, for a label.

    >>> [brief(v) for v in (321.4, 1, 0.0816, 3.5e-05, 0)]
    ['320', '1', '0.082', '3.5·10⁻⁵', '0']
    """
    if value == 0 or value >= 1e-3:
        return f"{float(f'{value:.2g}'):g}"
    mantissa, exponent = f"{value:.1e}".split("e")
    number = "" if mantissa == "1.0" else f"{mantissa}·"
    return number + _power(10.0 ** int(exponent))


def _power(value: float) -> str:
    exponent = round(math.log10(value))
    if -3 <= exponent <= 3:
        return f"{value:g}"
    return "10" + str(exponent).translate(str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹"))


def duration(seconds: float) -> str:
    """A duration with two digits.

    >>> [" ".join(duration(s).split()) for s in (0.0042, 0.083, 0.52, 12.2)]
    ['4.2 ms', '83 ms', '520 ms', '12 s']
    """
    number, unit = (seconds, "s") if seconds >= 1 else (1000 * seconds, "ms")
    return f"{float(f'{number:.2g}'):g}\u00a0{unit}"


def inline(
    draw: Callable[[Any, Report], None], report: Report, title: str, height: float = HEIGHT
) -> str:
    """Return a plot as an ``<svg>`` element for a page, with its title for screen readers."""
    names = {name: f"var(--{name})" for name in COLOURS}
    svg = _svg([draw], report, (WIDTH, height), names, text="none")
    svg = re.sub(r"<metadata>.*?</metadata>|<!--.*?-->", "", svg, flags=re.DOTALL)
    svg = re.sub(r' (?:xmlns(?::xlink)?|version|width|height)="[^"]*"', "", svg, count=5)
    svg = re.sub(r"font-family: [^;\"]*;? ?", "", svg.replace("xlink:href", "href"))
    svg = re.sub(r"font: ([\d.]+px) [^;\"]*", r"font-size: \1", svg)
    used = set(re.findall(r"#([\w.]+)", svg))
    svg = re.sub(r' id="([\w.]+)"', lambda it: it[0] if it[1] in used else "", svg)
    head, body = svg.split(">", 1)
    text = f'{head} role="img"><title>{escape(title)}</title>{body}'
    return re.sub(r"\s+", " ", text).replace("> <", "><")


def picture(report: Report) -> str:
    """Return the picture of the README: an SVG file of its own, in the light palette."""
    titles = (
        f"ε of all releases so far, at δ = {brief(report.delta)}",
        "Accuracy on people never trained on",
    )
    size = (2 * WIDTH, HEIGHT)
    return _svg((leak, accuracy), report, size, COLOURS, text="path", titles=titles)


def _svg(
    draws: Sequence[Callable[[Any, Report], None]],
    report: Report,
    size: tuple[float, float],
    colours: Mapping[str, str],
    text: str,
    titles: Sequence[str] = (),
) -> str:
    try:
        import matplotlib
        from matplotlib.figure import Figure
    except ImportError:
        raise ExpungeError(
            "plots need matplotlib, which is not installed: pip install 'expunge[report]'"
        ) from None
    salt = "-".join(draw.__name__ for draw in draws)
    with matplotlib.rc_context(_style(text, salt)):
        figure = Figure(figsize=size, layout="constrained")
        for axes, draw in zip(figure.subplots(1, len(draws), squeeze=False)[0], draws, strict=True):
            draw(axes, report)
        for axes, title in zip(figure.axes, titles, strict=False):
            axes.set_title(title, loc="left", fontsize=10.5, pad=12)
        raw = io.StringIO()
        keep = dict.fromkeys(("Date", "Creator", "Format", "Type"))
        figure.savefig(raw, format="svg", metadata=keep, transparent=text == "none")
    svg = raw.getvalue()
    for name, placeholder in PLACEHOLDERS.items():
        svg = svg.replace(placeholder, colours[name])
    return svg[svg.index("<svg") :]


def _style(text: str, salt: str) -> Any:
    ink, soft, line = (PLACEHOLDERS[name] for name in ("ink", "soft", "line"))
    return {
        "svg.fonttype": text,
        "svg.hashsalt": salt,
        "font.family": "sans-serif",
        "font.sans-serif": ["DejaVu Sans"],
        "font.size": 10,
        "text.color": ink,
        "axes.labelcolor": soft,
        "axes.edgecolor": line,
        "axes.labelsize": 10,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.grid": True,
        "axes.grid.axis": "y",
        "axes.axisbelow": True,
        "figure.facecolor": PLACEHOLDERS["paper"],
        "axes.facecolor": "none",
        "grid.color": line,
        "grid.linewidth": 0.6,
        "xtick.color": line,
        "ytick.color": line,
        "xtick.labelcolor": soft,
        "ytick.labelcolor": soft,
        "xtick.minor.size": 0,
        "ytick.minor.size": 0,
        "figure.constrained_layout.wspace": 0.08,
        "figure.constrained_layout.w_pad": 0.1,
        "figure.constrained_layout.h_pad": 0.08,
    }
