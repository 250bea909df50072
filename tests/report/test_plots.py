"""Plots: accessible, self-contained, coloured by the page, and stable."""

from __future__ import annotations

import re
import sys
from xml.etree import ElementTree

import pytest

import report_example as example
from expunge.errors import ExpungeError
from expunge.report import plots

ALL = [plots.leak, plots.times, plots.accuracy]


@pytest.mark.parametrize("draw", ALL)
def test_inline_plots_are_well_formed_and_described(draw) -> None:  # type: ignore[no-untyped-def]
    svg = plots.inline(draw, example.report(), 'what "it" shows & why')
    root = ElementTree.fromstring(svg)
    assert root.get("role") == "img"
    assert root[0].tag == "title"
    assert root[0].text == 'what "it" shows & why'
    assert "http" not in svg
    assert "metadata" not in svg
    assert not re.search(r"#0000[0-9a-f]{2}\b", svg)
    assert set(re.findall(r"var\(--(\w+)\)", svg)) <= set(plots.COLOURS)
    assert len(svg) < 40_000


def test_labels_are_text_that_can_be_read_out() -> None:
    svg = plots.inline(plots.leak, example.report(), "ε")
    text = " ".join(ElementTree.fromstring(svg).itertext())
    for word in ("certified", "realised", "nothing deleted", "promise for 1,000 releases: 1"):
        assert word in text


def test_the_same_report_gives_the_same_plot() -> None:
    report = example.report()
    first, second = (plots.inline(plots.accuracy, report, "a") for _ in range(2))
    assert first == second


def test_the_picture_stands_alone() -> None:
    svg = plots.picture(example.report())
    assert ElementTree.fromstring(svg).tag.endswith("svg")
    assert len(svg.encode()) < 200_000
    assert "var(" not in svg


def test_a_realised_epsilon_of_zero_can_be_drawn() -> None:
    assert "realised" in plots.inline(plots.leak, example.report(mus=(1e-9, 1e-9, 1e-9)), "zero")


def test_plots_need_findings() -> None:
    for draw in ALL:
        with pytest.raises(ExpungeError, match="findings"):
            plots.inline(draw, example.report(audited=False), "nothing")


def test_without_matplotlib_the_error_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(ExpungeError, match=r"pip install 'expunge\[report\]'"):
        plots.inline(plots.leak, example.report(), "nothing")


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0"),
        (1e-6, "10⁻⁶"),
        (9.96e-5, "10⁻⁴"),
        (0.0999, "0.1"),
        (27.4, "27"),
        (12345, "12000"),
    ],
)
def test_brief(value: float, text: str) -> None:
    assert plots.brief(value) == text
