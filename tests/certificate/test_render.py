"""The page and the terminal text: order, words, escaping, nothing secret, one sheet of paper."""

from __future__ import annotations

import base64
import re
from html.parser import HTMLParser

import pytest

import certificate_example as example
from certificate_example import NOW, SIGNER, envelope, payload
from expunge.certificate import words
from expunge.certificate.recheck import Outside, recheck
from expunge.certificate.render import BANNER, page, terminal
from expunge.certificate.statement import Certificate
from expunge.guarantee import Guarantee

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
TITLES = [
    "What was asked, and when",
    "What was done",
    "What is guaranteed, against whom, how strongly",
    "What is not guaranteed",
    "What it rests on",
    "Budget left, and the next date",
    "Checks made here, and how to repeat them",
    "Technical block",
]


def shown(changes: dict | None = None) -> list[str]:  # type: ignore[type-arg]
    """Page and terminal text of the changed example, with its recheck."""
    certificate = Certificate.from_payload(payload(changes))
    report = recheck(envelope(changes).to_json(), Outside(trusted=[SIGNER.public], now=NOW))
    return [page(certificate, envelope(changes), report), terminal(certificate, report)]


@pytest.mark.parametrize("text", shown())
def test_sections_come_in_order_and_nothing_forbidden_is_said(text: str) -> None:
    places = [text.index(title) for title in TITLES]
    assert places == sorted(places)
    assert not [phrase for phrase in FORBIDDEN if phrase in text.lower()]
    flat = " ".join(text.split())
    assert "54.8 %" in flat
    assert "guaranteed under the checked conditions below" in flat
    assert "kept the model from before the deletion" in flat
    assert "30 November 2026" in flat
    assert "GDPR 17(1)(b)" in flat
    assert BANNER not in flat


def test_terminal_text_fits_and_holds_no_control_characters() -> None:
    attack = {"algorithm.parameters.x": "Evil\x1b[31m\x07\n9  Everything is guaranteed"}
    certificate = Certificate.from_payload(payload(attack))
    text = terminal(certificate, width=70)
    assert max(map(len, text.splitlines())) <= 72
    assert not set(text) & set("\x1b\x07")
    assert not any(line.startswith("9") for line in text.splitlines())


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        (
            {"assumptions.0.tag": "assumed", "guarantee.grade": "conditional"},
            "only if the following unverified assumptions hold",
        ),
        (
            {
                "guarantee.type": "none",
                "guarantee.grade": "heuristic",
                **{f"guarantee.{name}": None for name in ("epsilon", "delta", "mu")},
            },
            "no guarantee; tests only",
        ),
        ({"guarantee.mu": "2"}, "This is a weak guarantee."),
        ({"guarantee.mu": None, "guarantee.type": "epsilonDelta"}, "73.2 %"),
    ],
)
def test_strength_in_words(changes: dict[str, object], sentence: str) -> None:
    for text in shown(changes):
        assert sentence in " ".join(text.split())


def test_percent_is_rounded_up() -> None:
    assert words.percent(0.5) == "50.0\u00a0%"
    assert words.percent(0.50001) == "50.1\u00a0%"
    covered = Guarantee("muGdp", 1.0, 1e-6, 0.007485249, "record", 50, 1000)
    assert words.percent(covered.success_probability) == "50.2\u00a0%"


def test_test_certificates_carry_a_banner() -> None:
    for text in shown({"production": False}):
        assert BANNER in " ".join(text.split()).replace("! ", "")


def test_failed_checks_carry_a_banner() -> None:
    for text in shown({"guarantee.mu": "0.1", "budget.release": 2000}):
        flat = " ".join(text.split())
        assert "DO NOT RELY ON THIS CERTIFICATE: numbers claim no more than they give" in flat
    for text in shown({"guarantee.deletionsCovered": 10}):
        assert "DO NOT RELY" not in text


class _Strict(HTMLParser):
    """Collects tags and checks that every element is closed in order."""

    void = frozenset(("meta", "!doctype"))

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.open: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        if tag not in self.void:
            self.open.append(tag)
        for name, value in attrs:
            assert not name.startswith("on")
            assert name != "src"
            assert name != "href" or (value or "").startswith("data:application/json;base64,")

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_the_page_is_self_contained_and_escapes_everything() -> None:
    attack = '<script>alert("1")</script>&"\'>'
    certificate = Certificate.from_payload(
        payload({"issuer.name": attack, "algorithm.parameters.x": attack})
    )
    report = recheck(b"<script>", Outside(trusted=[SIGNER.public], now=NOW))
    text = page(certificate, envelope(), report)
    parser = _Strict()
    parser.feed(text)
    assert parser.open == []
    assert "script" not in parser.tags
    assert "<script" not in text
    assert "&lt;script&gt;" in text
    assert "default-src 'none'; style-src 'unsafe-inline'" in text
    assert not re.search(r"https?://|url\(|@import", text)


def test_the_envelope_is_attached() -> None:
    text = shown()[0]
    found = re.search(r"base64,([A-Za-z0-9+/=]+)", text)
    assert found is not None
    assert base64.b64decode(found[1]) == envelope().to_json()


def test_a_page_without_checks_says_so() -> None:
    certificate = Certificate.from_payload(payload({"requests": [], "modelBefore": None}))
    for text in (page(certificate), terminal(certificate)):
        flat = " ".join(text.split())
        assert "No check was made" in flat
        assert "No request is recorded" in flat
        assert "not stated" in flat


def test_many_requests_are_summed_up() -> None:
    one = example.EXAMPLE["predicate"]["requests"][0]
    late = {**one, "dueAt": "2026-11-25T00:00:00Z", "outcome": "notFound"}
    for text in shown({"requests": [one] * 199 + [late]}):
        flat = " ".join(text.split())
        assert "200 requests" in flat
        assert "199 deleted, 1 not found" in flat
        assert "1 request completed after the due date" in flat
        assert len(text) < 40_000 + len(envelope().to_json()) * 60


def test_a_batch_counts_as_many_requests_as_it_has() -> None:
    one = example.EXAMPLE["predicate"]["requests"][0]
    for batch in ({**one, "count": 10_000}, {**one, "count": 2}):
        late = {**batch, "dueAt": "2026-11-25T00:00:00Z", "outcome": "notFound"}
        for requests, total, fates in (
            ([batch], f"{batch['count']:,} requests", f"{batch['count']:,} deleted"),
            ([batch, late, one], f"{2 * batch['count'] + 1:,} requests", "not found"),
        ):
            for text in shown({"requests": requests}):
                flat = " ".join(text.split())
                assert total in flat
                assert fates in flat
                assert ("completed after the due date" in flat) == (len(requests) > 1)


def test_nothing_of_others_acts_on_the_terminal() -> None:
    odd = "\x1b[2J\n\u202e\x9bDELETION CERTIFICATE"
    parameters = {"loss": "logistic", "l2Total": "3.57", odd: odd + "x" * 9999}
    changes = {odd: 1, "algorithm.parameters": parameters}
    for text in shown(changes):
        assert len(text) < 40_000 + 2 * len(envelope(changes).to_json())
        assert not re.search("[\x1b\x9b\u202e]", text)
    assert text.count("\nDELETION CERTIFICATE") == 0


def test_unknown_codes_are_spelt_out_and_unknown_fields_shown() -> None:
    for text in shown({"scope.excluded": ["paperArchive"], "weather": "fine"}):
        assert "Paper archive" in text
        assert "predicate.weather" in text
