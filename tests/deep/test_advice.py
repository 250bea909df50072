"""The adviser: which schemes fit, at what cost, and why."""

from __future__ import annotations

from dataclasses import replace

import pytest

from expunge.deep.advice import Situation, advise
from expunge.errors import InvalidInput
from expunge.guarantee import Grade

CASE = Situation(1_000_000, 50_000, 100, 100, 1000.0)


def fitting(situation):
    return [advice.scheme for advice in advise(situation) if advice.fits]


def named(situation, scheme):
    return next(advice for advice in advise(situation) if advice.scheme == scheme)


def test_a_public_backbone_comes_first():
    assert fitting(replace(CASE, public_backbone=True))[0] == "certified head"
    assert "certified head" not in fitting(CASE)
    assert "certified head" not in fitting(replace(CASE, public_backbone=True, whole_network=True))


def test_without_data_little_is_left():
    assert fitting(replace(CASE, keeps_data=False)) == ["heuristics"]
    few = replace(CASE, keeps_data=False, deletions=1, requests=1)
    assert fitting(few) == ["differentially private training", "heuristics"]


def test_adaptive_requests_rule_out_shards():
    advice = named(replace(CASE, adaptive=True), "sharded training (SISA)")
    assert not advice.fits
    assert advice.grade is Grade.heuristic
    assert any("after seeing" in reason for reason in advice.reasons)


def test_costs():
    shards = named(CASE, "sharded training (SISA)")
    assert shards.seconds == pytest.approx(1000.0 / 20 * 11 / 15)
    assert shards.storage == 100 * 4_000_000
    large = replace(CASE, deletions=10_000, requests=100)
    assert not named(large, "sharded training (SISA)").fits
    assert named(CASE, "retraining").seconds == 1000.0


def test_enforced_noise_says_that_the_old_model_contributes_nothing():
    assert any("contributes nothing" in r for r in named(CASE, "enforced noise").reasons)
    tiny = replace(CASE, parameters=10, epsilon=100.0)
    assert not any("contributes nothing" in r for r in named(tiny, "enforced noise").reasons)


@pytest.mark.parametrize(
    "wrong",
    [{"rows": 50}, {"requests": 101}, {"epsilon": 0.0}, {"delta": 1.5}, {"retrain_seconds": -1.0}],
)
def test_bad_input(wrong):
    with pytest.raises(InvalidInput):
        replace(CASE, **wrong)
