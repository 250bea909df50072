"""What a guarantee says: grades, views, consistency of its parts."""

from __future__ import annotations

import math
import subprocess
import sys

import pytest

from expunge.errors import InvalidInput
from expunge.guarantee import Assumption, Grade, Guarantee, Tag, View, grade_of, mu_of

PROVED = Assumption("convexLoss", Tag.proved)
ASSUMED = Assumption("featureMapFixed", Tag.assumed)


@pytest.mark.parametrize(
    ("kind", "assumptions", "grade"),
    [
        ("exact", [PROVED], Grade.exact),
        ("exact", [PROVED, ASSUMED], Grade.conditional),
        ("muGdp", [], Grade.certified),
        ("muGdp", [PROVED], Grade.certified),
        ("epsilonDelta", [ASSUMED], Grade.conditional),
        ("zcdp", [PROVED], Grade.certified),
        ("none", [PROVED], Grade.heuristic),
        ("none", [ASSUMED], Grade.heuristic),
    ],
)
def test_grade(kind: str, assumptions: list[Assumption], grade: Grade) -> None:
    assert grade_of(kind, assumptions) is grade


def test_unknown_kind_and_tag_are_refused() -> None:
    with pytest.raises(InvalidInput, match="kind must be one of exact"):
        grade_of("verified", [])
    with pytest.raises(InvalidInput, match="tag must be one of enforced"):
        Assumption("convexLoss", "guessed")
    with pytest.raises(InvalidInput, match="non-empty"):
        Assumption("", Tag.proved)


def test_a_tag_read_from_json_counts() -> None:
    assert grade_of("muGdp", [Assumption("iid", "assumed")]) is Grade.conditional


def test_transcript_guarantee() -> None:
    claim = Guarantee.for_transcript(1.0, 1e-6, releases=1000, deletions=50, unit="person")
    assert claim.mu == mu_of(1.0, 1e-6)
    assert claim.view is View.transcript
    assert (claim.kind, claim.level, claim.comparator) == ("muGdp", "output", "retrain")
    assert claim.success_probability == pytest.approx(0.5471, abs=5e-5)


def claim(**changes):
    fields = {
        "kind": "epsilonDelta",
        "epsilon": 1.0,
        "delta": 1e-6,
        "mu": None,
        "unit": "record",
        "deletions_covered": 1,
        "releases_covered": 1,
    }
    return Guarantee(**(fields | changes))


def test_success_probability_without_mu() -> None:
    assert claim().success_probability == pytest.approx(0.7310588, abs=1e-6)
    assert claim(kind="none", epsilon=None, delta=None).success_probability == 1
    assert claim(epsilon=1e4).success_probability == 1


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"kind": "proved"}, "kind must be one of"),
        ({"unit": "household"}, "unit must be one of"),
        ({"view": "before"}, "view must be one of"),
        ({"access": "gradients"}, "access must be one of"),
        ({"level": "disk"}, "level must be one of"),
        ({"comparator": "nothing"}, "comparator must be one of"),
        ({"kind": "muGdp"}, "needs mu"),
        ({"epsilon": None}, "needs epsilon"),
        ({"epsilon": -1.0}, "epsilon must be"),
        ({"delta": 1.5}, "delta must be"),
        ({"delta": math.nan}, "delta must be"),
        ({"deletions_covered": 0}, "deletions_covered must be"),
        ({"releases_covered": 1.0}, "releases_covered must be"),
        ({"kind": "exact", "mu": 0.1}, "epsilon = delta = mu = 0"),
        ({"kind": "none"}, "promises nothing"),
        ({"view": "beforeAndAfter"}, "outside the definition"),
    ],
)
def test_inconsistent_guarantees_are_refused(changes, message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        claim(**changes)


def test_import_is_light() -> None:
    heavy = "('scipy.optimize', 'scipy.stats', 'scipy.linalg', 'scipy.sparse', 'sklearn', 'torch')"
    code = f"import sys, expunge.guarantee; sys.exit(any(m in sys.modules for m in {heavy}))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
