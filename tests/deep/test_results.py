"""Tables of made-up runs, and the page: means, intervals, notes, nothing that could be fetched."""

from __future__ import annotations

import math
from html.parser import HTMLParser

import numpy as np
import pytest
from scipy.stats import t as student

from expunge.deep.results import LEGEND, markdown, summarise, summary
from expunge.report.experiment import experiment_page


def made_up(label, seed, accuracy, seconds, **more):
    return {
        "label": label,
        "method": label,
        "seed": seed,
        "grade": "exact" if label == "retrain" else "heuristic",
        "accuracy": {"retain": accuracy, "forget": 0.5, "test": 0.6},
        "rows_read": {"retain": 1234, "forget": 0},
        "warnings": [],
        "times": {"seconds": seconds, "training": 1.0, "warm": 2.0},
        "warm": {"epochs": 1, "reached": True},
        **more,
    }


def example():
    runs = []
    for seed, (a, b) in enumerate([(0.95, 0.91), (0.97, 0.93), (0.96, 0.90)]):
        attack = {"accuracy": 0.5, "auc": 0.52, "low": 0.45, "high": 0.59, "loss_auc": 0.5}
        runs += [
            made_up("a|b", seed, b, 0.5 * 2**seed, warnings=["careful"], membership=attack),
            made_up("null", seed, 0.97, 0.001, membership=attack),
            {"label": "no", "method": "no", "seed": seed, "refused": "only <b>classes</b>"},
            made_up("retrain", seed, a, 8.0, membership=attack),
        ]
    return runs


def test_the_table_has_means_intervals_and_both_ends_first():
    table = summarise(example(), 0.05)
    assert table.labels == ("retrain", "null", "a|b", "no")
    assert table.grades == ("exact", "heuristic", "heuristic", "refused")
    half = student.ppf(0.975, 2) * np.std([0.95, 0.97, 0.96], ddof=1) / math.sqrt(3)
    assert table.groups[0].rows[0][0] == f"0.960 ± {half:.3f}"
    cost = {group.title: group for group in table.groups}["What it costs"]
    by_name = dict(zip(cost.head, cost.rows[2], strict=True))
    assert (by_name["× cold"], by_name["× warm"]) == ("8", "2")
    assert by_name["R read"] == "1,234"
    assert dict(zip(cost.head, cost.rows[1], strict=True))["× cold"] == "–"
    assert set(table.groups[0].rows[3]) == {"–"}
    numbers = summary(example())["a|b"]
    assert numbers["× cold"] == {"mean": pytest.approx(8.0), "half": None, "runs": 3}
    assert numbers["accuracy retain"]["mean"] == pytest.approx(0.91333333)
    assert summary(example())["no"] == {}


def test_what_weakens_a_row_is_said():
    table = summarise(example(), 0.05)
    notes = {(note.label, note.kind): note.text for note in table.notes}
    assert "1 of 3 runs" in notes["a|b", "over-unlearned"]
    assert notes["a|b", "warning"] == "careful"
    assert notes["no", "refused"] == "only <b>classes</b>"
    assert "no power" in notes["", "reading"]
    assert ("a|b", "over-unlearned") not in {
        (note.label, note.kind) for note in summarise(example(), 0.07).notes
    }


def test_notes_about_the_yardsticks():
    runs = [
        made_up("retrain", 0, 0.9, 1.0, warm={"epochs": 2, "reached": False},
                relearn={"steps": [300], "median": 300.0, "censored": True}),
        made_up("null", 0, 0.9, 1.0, relearn={"steps": [0], "median": 0.0, "censored": False}),
    ]  # fmt: skip
    table = summarise(runs, 0.05)
    said = " ".join(note.text for note in table.notes)
    assert "Relearn steps decide nothing" in said
    assert "did not reach" in said
    knows = {group.title: group for group in table.groups}["What it still knows"]
    assert (knows.rows[0], knows.rows[1]) == (("≥ 300",), ("0",))


def test_markdown_is_one_table_with_a_cell_per_column():
    text = markdown(summarise(example(), 0.05), "Title")
    lines = [line for line in text.splitlines() if line.startswith("|")]
    widths = {line.replace("\\|", "").count("|") for line in lines}
    assert len(lines) == 6
    assert len(widths) == 1
    assert "a\\|b" in lines[4]
    assert LEGEND in text


class Balanced(HTMLParser):
    """Checks that every tag is closed, and collects what could be fetched."""

    VOID = ("meta", "br")

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.links: list[str] = []
        self.text = ""

    def handle_starttag(self, tag, attributes):
        if tag not in self.VOID:
            self.open.append(tag)
        self.links += [v for k, v in attributes if k in ("src", "href", "data", "action")]

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text += data


def test_the_page_is_well_formed_escaped_and_fetches_nothing():
    runs, hostile = example(), '<script>alert("1")</script>'
    for made in runs:
        made["label"] = made["label"].replace("a|b", hostile)
    table = summarise(runs, 0.05)
    setting = {"seeds": [0, 1, 2], "data": {"source": hostile, "path": None}}
    page = experiment_page(hostile, table, summary(runs), setting, legend=LEGEND)
    found = Balanced()
    found.feed(page)
    found.close()
    assert found.open == []
    assert found.links == []
    assert "<script" not in page
    assert not any(word in page for word in ("http:", "https:", "url(", "@import", "//"))
    assert "default-src 'none'" in page
    for text in (hostile, "only <b>classes</b>", "data.source", "no power", LEGEND):
        assert text in found.text
    assert "data.path" not in found.text
