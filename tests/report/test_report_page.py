"""The report: what it says and in which words, that it is self-contained, and escaped."""

from __future__ import annotations

import re
from html.parser import HTMLParser

import pytest

import report_example as example
from expunge.certificate import words
from expunge.report.facts import together
from expunge.report.page import page
from expunge.report.style import STYLE

FORBIDDEN = [
    "verified forgotten",
    "proved forgotten",
    "irreversibly erased",
    "anonymous",
    "compliant",
    "gdpr-certified",
    "zero risk",
    "audited",
]
ORDER = [
    "What a privacy officer needs to know",
    "Who asked what",
    "What was done",
    "What is guaranteed, against whom, how strongly",
    "What is not guaranteed",
    "Whether it is true",
    "Every release stayed inside what was certified",
    "Time beside time",
    "Accuracy beside accuracy",
    "All releases",
    "A lie, to see whether the checks notice",
    "What it rests on",
    "What has to be trusted",
    "How to repeat every check",
    "Technical block",
]


def flat(text: str) -> str:
    """The page's words without markup."""
    body = re.sub(r"<style.*?</style>|<svg.*?</svg>", " ", text, flags=re.DOTALL)
    return " ".join(re.sub(r"<[^>]*>", " ", body).split())


def test_sections_come_in_order_and_nothing_forbidden_is_said() -> None:
    text = page(example.report())
    places = [text.index(f">{title}<") for title in ORDER]
    assert places == sorted(places)
    said = flat(text).lower()
    assert not [phrase for phrase in FORBIDDEN if phrase in said]
    assert "not legal advice" in said


def test_the_officer_reads_the_sentences_of_the_certificate() -> None:
    report = example.report()
    said = flat(page(report))
    strength = " ".join(words.strength(report.last.guarantee).split())
    assert strength in said
    assert "4 people asked to be forgotten" in said
    assert "4: 2 one by one, 2 in one batch" in said
    assert "GDPR 17(1)(b)" in said
    assert "4 of 60 records have been deleted; 56 are retained" in said
    assert "guaranteed under the checked conditions below" in said
    for sentence in words.NOT_COVERED.values():
        assert sentence in said


def test_numbers_of_the_table_are_those_of_the_findings() -> None:
    report = example.report()
    assert report.records == (1, 1, 2)
    certified = report.epsilon(together([report.mu_certified] * 3)[-1])
    assert 0.024 < certified < 0.06
    said = flat(page(report))
    assert f"{certified:.2g}" in said
    assert "The worst single release used 27 % of the μ certified for it" in said
    assert "5 times less than the fastest retrain here (scikit-learn, 20 ms)" in said
    assert "To delete 2 people at once takes 50 ms, no less than that retrain" in said


def test_a_release_beyond_its_certificate_is_said_to_be_one() -> None:
    said = flat(page(example.report(mus=(1e-7, 0.02, 1e-7))))
    assert "A release went beyond what was certified" in said
    assert "Every release stayed inside" not in said


def test_the_lie_is_caught_by_name() -> None:
    report = example.report()
    assert report.control is not None
    assert report.control.caught_by == ("evidence",)
    said = flat(page(report))
    assert "verification fails it by name: Distance from the optimum, recomputed" in said
    assert "PASS FAIL not within tolerance" in said
    assert "Passed by both: signature, releases and budget, model file" in said


def test_a_failed_check_is_the_first_thing_read() -> None:
    said = flat(page(example.report(found=example.checks(model="swapped"))))
    assert "FAILED its checks (model): do not rely on it" in said
    assert said.index("FAILED") < said.index("What a privacy officer")


def test_without_an_auditor_nothing_of_the_auditor_is_shown() -> None:
    text = page(example.report(audited=False))
    said = flat(text)
    assert "<svg" not in text
    for phrase in ("realised", "Time beside time", "retrained from scratch", "A lie"):
        assert phrase not in said
    assert "996" in said


def test_assumptions_and_units_are_named() -> None:
    said = flat(page(example.report(unit="record", tag="assumed")))
    assert "4 requests to be forgotten" in said
    assert "Grade: conditional, only if the following unverified assumptions hold" in said
    assert "How records become numbers does not depend on deleted people. assumed" in said


class _Strict(HTMLParser):
    """Checks that every element is closed in order, ids are unique and nothing is fetched."""

    void = frozenset(("meta", "!doctype"))

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.ids: list[str] = []
        self.tags: set[str] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        if tag not in self.void:
            self.open.append(tag)
        for name, value in attrs:
            assert not name.startswith("on"), (tag, name)
            if name in ("src", "href"):
                assert (value or "").startswith(("#", "data:")), (tag, name, value)
            if name == "id":
                self.ids.append(value or "")

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        if tag not in self.void:
            self.open.pop()

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


@pytest.mark.parametrize("audited", [True, False])
def test_the_page_is_whole_and_fetches_nothing(audited: bool) -> None:
    text = page(example.report(audited=audited))
    parser = _Strict()
    parser.feed(text)
    assert parser.open == []
    assert len(set(parser.ids)) == len(parser.ids)
    assert not parser.tags & {"script", "link", "iframe", "img", "object", "form"}
    assert "default-src 'none'; style-src 'unsafe-inline'" in text
    assert "http:" not in text
    assert "https:" not in text
    assert "@import" not in text


def test_values_are_escaped() -> None:
    attack = "<script>alert(1)</script>"
    text = page(example.report(issuer=attack, data=f'"{attack}'))
    assert "<script" not in text
    assert text.count("&lt;script&gt;") >= 2


def _luminance(colour: str) -> float:
    """Relative luminance of #rrggbb [WCAG 2.1]."""
    parts = [int(colour[k : k + 2], 16) / 255 for k in (1, 3, 5)]
    linear = [p / 12.92 if p <= 0.03928 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def test_text_has_enough_contrast_by_day_and_by_night() -> None:
    sets = re.findall(r":root\{([^}]*--paper[^}]*--tint[^}]*)\}", STYLE)
    assert len(sets) == 2
    for found in sets:
        colours = dict(re.findall(r"--(\w+):(#[0-9a-f]{6})", found))
        for front in ("ink", "soft", "certified", "realised", "wrong"):
            for back in ("paper", "wash", "tint"):
                light = sorted(_luminance(colours[name]) + 0.05 for name in (front, back))
                if (front, back) not in {("wrong", "tint"), ("certified", "tint")}:
                    assert light[1] / light[0] >= 4.5, (front, back)
