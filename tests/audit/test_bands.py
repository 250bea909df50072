"""Bands hold what they promise, gates allow what the theory allows."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import binom, t

from expunge.audit.bands import (
    _detectable,
    detectable_means,
    gate,
    leave_one_out,
    prediction_band,
    prediction_factor,
    rank_band,
    relabelled,
    within,
)
from expunge.audit.metric import Estimate, grey, judge, judge_alone, utility_lost
from expunge.errors import InvalidInput


@pytest.mark.parametrize(("m", "factor"), [(5, 3.041), (10, 2.373), (20, 2.145)])
def test_factors(m, factor):
    assert prediction_factor(m) == pytest.approx(factor, abs=5e-4)
    assert prediction_factor(m) == pytest.approx(t.ppf(0.975, m - 1) * np.sqrt(1 + 1 / m))


@pytest.mark.parametrize(("m", "allowed"), [(5, 2), (10, 3), (20, 4)])
def test_gates(m, allowed):
    """P[Bin(m, .05) ≥ f] < 0.01 is void."""
    for failures in range(m + 1):
        found = gate([i < failures for i in range(m)])
        assert found.void == (failures > allowed)
        assert found.probability == pytest.approx(binom.sf(failures - 1, m, 0.05))


@pytest.mark.parametrize("m", [5, 10])
def test_a_band_holds_one_more_oracle(m):
    """95 % of fresh oracles; min–max holds (m − 1)/(m + 1), v̄ ± 2s 86 % at m = 5."""
    rng = np.random.default_rng(m)
    values = rng.normal(size=(2000, m + 1))
    inside = [within(row[-1], prediction_band(row[:-1])) for row in values]
    assert binom.ppf(0.001, 2000, 0.95) <= sum(inside) <= binom.ppf(0.999, 2000, 0.95)
    between = (values[:, -1] > values[:, :-1].min(1)) & (values[:, -1] < values[:, :-1].max(1))
    assert between.mean() == pytest.approx((m - 1) / (m + 1), abs=0.04)
    if m == 5:
        off = np.abs(values[:, -1] - values[:, :-1].mean(1))
        assert (off < 2 * values[:, :-1].std(1, ddof=1)).mean() == pytest.approx(0.86, abs=0.03)


def test_the_scales():
    rng = np.random.default_rng(0)
    rates = 1 / (1 + np.exp(-rng.normal(3, 1, size=5)))
    low, high = prediction_band(rates, scale="logit")
    assert 0 < low < rates.mean() < high < 1
    assert prediction_band(1 - rates, scale="logit") == pytest.approx((1 - high, 1 - low))
    times = np.exp(rng.normal(size=5))
    assert prediction_band(10 * times, scale="log") == pytest.approx(
        tuple(10 * v for v in prediction_band(times, scale="log"))
    )
    skewed = rng.exponential(size=(2000, 6))
    inside = [within(row[-1], prediction_band(row[:-1], scale="log")) for row in skewed]
    assert np.mean(inside) == pytest.approx(0.92, abs=0.03)
    with pytest.raises(InvalidInput, match="logit"):
        prediction_band([0.5, 1.2], scale="logit")
    with pytest.raises(InvalidInput, match="log scale"):
        prediction_band([0.5, -1.2], scale="log")


def test_oracles_that_agree_leave_one_step():
    assert prediction_band([0.9] * 5, scale="logit", step=0.1) == pytest.approx((0.8, 1.0))
    low, high = prediction_band([0.0] * 5, scale="log", step=0.01)
    assert low == 0.0
    assert high == pytest.approx(0.015)


def test_an_outlier_among_oracles_is_no_void():
    assert leave_one_out([0.5, 0.51, 0.49, 0.5, 0.9]).failures == 1
    assert not leave_one_out([0.5, 0.51, 0.49, 0.5, 0.9]).void


def test_what_is_detectable_is_detected():
    """A candidate whose mean lies there is flagged in 80 % of cases."""
    rng = np.random.default_rng(1)
    hits, shift = 0, _detectable(5, 0.05) * np.sqrt(1 + 1 / 5)
    low, high = detectable_means([0.0, 1.0, 2.0, 3.0, 4.0])
    assert (low, high) == pytest.approx((2 - shift * np.sqrt(2.5), 2 + shift * np.sqrt(2.5)))
    for row in rng.normal(size=(3000, 6)):
        hits += not within(row[-1] + shift, prediction_band(row[:-1]))
    assert hits / 3000 == pytest.approx(0.8, abs=0.025)


def test_relabelling_is_exact():
    """Level 5 % at most for any statistic, here one that uses extremes; halves alone would fail."""
    rng = np.random.default_rng(2)

    def extremes(u, r):
        return np.array([np.ptp(np.concatenate([u, r])), u.mean() - r.mean()])

    out = np.zeros(2)
    for _ in range(400):
        u, r = rng.standard_t(3, size=20), rng.standard_t(3, size=40)
        drawn = relabelled(extremes, u, r, rng, draws=60)
        value = extremes(u, r[:20])
        out += [not within(value[k], rank_band(drawn[:, k])) for k in range(2)]
    assert (out <= binom.ppf(0.999, 400, 0.05)).all()
    u = rng.normal(2, 1, size=20)
    r = rng.normal(size=40)
    drawn = relabelled(extremes, u, r, rng, draws=60)
    assert not within(extremes(u, r[:20])[1], rank_band(drawn[:, 1]))
    with pytest.raises(InvalidInput, match="too few"):
        rank_band([1.0, 2.0])


def test_judging():
    oracles = [0.5, 0.52, 0.48, 0.5, 0.51]
    good = judge("x", Estimate(0.5), oracles, reading="{value} {low} {high}", original=0.9)
    assert good.in_band
    assert good.no_power is False
    assert good.status == "ok"
    low = judge("x", Estimate(0.1), oracles, reading="", original=0.5)
    high = judge("x", Estimate(0.9), oracles, reading="")
    assert low.flagged
    assert high.flagged
    assert low.no_power
    assert high.no_power is None
    assert high.gate.failures == 0
    assert grey([low])[0].status == "greyed"
    assert utility_lost([low])
    assert not utility_lost([high])
    with pytest.raises(InvalidInput, match="at least 5"):
        judge("x", Estimate(0.5), oracles[:4], reading="")


def test_a_test_that_oracles_fail_is_void():
    bad = Estimate(0.9, p=1e-6)
    found = judge_alone("x", bad, [bad] * 5, reading="", null=(0.4, 0.6))
    assert found.in_band is False
    assert found.status == "void"
    assert not found.flagged
    with pytest.raises(InvalidInput, match="p-value"):
        judge_alone("x", Estimate(0.9), [bad] * 5, reading="", null=(0.4, 0.6))
