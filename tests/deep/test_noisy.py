"""Clip-and-noise methods: what is kept is bounded, what comes out is noised, the claim holds."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy.stats import beta, norm
from torch import nn

from expunge.deep.methods.noisy import (
    BlockwiseNoise,
    ModelClipping,
    NoisyFineTune,
    OutputPerturbation,
    clipped,
    split_blocks,
)
from expunge.deep.network import UnsupportedModel, view
from expunge.deep.noisy_bounds import Schedule, clipped_delta
from expunge.deep.problem import Problem
from expunge.deep.training import Recipe, cross_entropy, train
from expunge.errors import InvalidInput
from expunge.guarantee import Grade, delta_of, epsilon_of

METHODS = [
    NoisyFineTune(noise_seed=0, batch_size=16),
    OutputPerturbation(noise_seed=0),
    ModelClipping(noise_seed=0, epsilon=8.0, ratio=2.0, batch_size=16),
    BlockwiseNoise(noise_seed=0, batch_size=16),
]
NOTHING = Recipe(epochs=0)


@pytest.fixture(autouse=True)
def _one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def problem(model=None, **options):
    torch.manual_seed(0)
    model = model or nn.Sequential(nn.Linear(8, 40), nn.Tanh(), nn.Linear(40, 3))
    x, y = torch.randn(60, 8), torch.randint(0, 3, (60,))
    recipe = Recipe(lr=0.01, epochs=2, batch_size=16)
    trained = train(model, (x, y), recipe)
    ids = {"forget_ids": list(range(10)), "retain_ids": list(range(10, 60))}
    given = {"train": recipe, "trained_ids": list(range(60)), **ids, **options}
    return Problem(trained, cross_entropy, (x[:10], y[:10]), (x[10:], y[10:]), **given)


@pytest.mark.parametrize("method", METHODS, ids=lambda m: m.name)
def test_grade_and_claim(method):
    found = replace(method, noise_seed=None).unlearn(problem())
    assert found.grade is Grade.certified
    assert found.guarantee.epsilon <= method.epsilon * (1 + 1e-6)
    assert found.guarantee.delta <= method.delta
    assert found.rows_read["forget"] == 0
    assert any("indistinguishable" in warning for warning in found.warnings)
    seeded = method.unlearn(problem())
    assert seeded.grade is Grade.conditional
    assert any("not for production" in warning for warning in seeded.warnings)
    assert "seed=0" not in repr(seeded)


@pytest.mark.parametrize("method", METHODS, ids=lambda m: m.name)
def test_the_forgotten_records_are_never_read(method):
    """Other forgotten records, same model and R: the same bits."""
    one = problem()
    other = replace(one, forget=(torch.full((10, 8), 9.0), torch.zeros(10, dtype=torch.long)))
    a, b = (view(method.unlearn(p).model).vector() for p in (one, other))
    assert torch.equal(a, b)


@pytest.mark.parametrize("method", METHODS, ids=lambda m: m.name)
def test_every_tensor_is_noised(method):
    """Two seeds differ everywhere, by about √2 of the stated standard deviation."""
    still = replace(method, recovery=NOTHING)
    runs = [replace(still, noise_seed=seed).unlearn(problem()) for seed in (1, 2)]
    tensors = [dict(run.model.named_parameters()) for run in runs]
    for name, first in tensors[0].items():
        assert bool((first != tensors[1][name]).all())
    if isinstance(method, BlockwiseNoise):
        return
    gap = (view(runs[0].model).vector() - view(runs[1].model).vector()).std().item()
    spread = (
        method.schedule().spread
        if isinstance(method, NoisyFineTune)
        else runs[0].evidence["sigma"].value
    )
    assert gap / math.sqrt(2) == pytest.approx(spread, rel=0.15)


@pytest.mark.parametrize("method", METHODS, ids=lambda m: m.name)
def test_a_huge_model_is_kept_no_more_than_a_zero_one(method):
    """With the same noise the result moves by no more than the bound says it can."""
    still = replace(method, recovery=NOTHING)
    base = problem()
    huge = train(base.model, (torch.randn(4, 8), torch.zeros(4, dtype=torch.long)), NOTHING)
    view(huge).load(view(huge).vector() * 1e4)
    a = view(still.unlearn(replace(base, model=huge)).model).vector()
    b = view(still.control().unlearn(base).model).vector()
    if isinstance(method, NoisyFineTune) and not isinstance(method, BlockwiseNoise):
        s = method.schedule()
        most = s.mu() * s.spread
    elif isinstance(method, OutputPerturbation | ModelClipping):
        most = 2 * method.radius
    else:
        most = 2 * (2 * method.start_radius + 2 * method.lr * method.step_radius * 9)
    assert 0.0 < float((a - b).norm()) <= most


def test_the_control_reads_nothing_of_the_model():
    base = problem()
    other = replace(base, model=train(base.model, base.retain, Recipe(epochs=3, lr=0.1)))
    for method in METHODS:
        a, b = (view(method.control().unlearn(p).model).vector() for p in (base, other))
        assert torch.equal(a, b)


def test_recovery_is_trained_by_a_new_optimiser_on_r_only():
    """Recovery is post-processing: it gets the released vector and R, nothing else."""
    method, base = METHODS[0], problem()
    released = replace(method, recovery=NOTHING).unlearn(base).model
    recovery = Recipe(lr=0.01, epochs=2, batch_size=16)
    again = train(released, base.retain, recovery)
    found = replace(method, recovery=recovery).unlearn(base).model
    assert torch.equal(view(found).vector(), view(again).vector())


def test_batch_norm():
    net = nn.Sequential(nn.Linear(8, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 3))
    with pytest.raises(UnsupportedModel):
        problem(net)
    with pytest.raises(UnsupportedModel, match="GroupNorm"):
        METHODS[0].unlearn(problem(net, buffers="keep"))
    found = METHODS[0].unlearn(problem(net, buffers="reestimate"))
    trained = problem(net, buffers="reestimate").model
    assert not torch.equal(found.model[1].running_mean, trained[1].running_mean)
    grouped = nn.Sequential(nn.Linear(8, 6), nn.GroupNorm(2, 6), nn.ReLU(), nn.Linear(6, 3))
    assert METHODS[0].unlearn(problem(grouped)).guarantee is not None


def test_batch_norm_statistics_of_the_old_model_are_not_used():
    """The noisy steps must not see running statistics made from the forgotten records."""
    net = nn.Sequential(nn.Linear(8, 6), nn.BatchNorm1d(6), nn.Tanh(), nn.Linear(6, 3))
    base = problem(net, buffers="reestimate")
    with torch.no_grad():
        shifted = train(base.model, base.retain, NOTHING)
        shifted[1].running_mean += 5.0
    other = replace(base, model=shifted)
    still = replace(METHODS[0], recovery=NOTHING)
    a, b = (view(still.unlearn(p).model).vector() for p in (base, other))
    assert torch.equal(a, b)


def test_a_part_of_the_parameters():
    found = replace(METHODS[1], noise_seed=None).unlearn(problem(params="2.*"))
    assert found.grade is Grade.conditional
    assert torch.equal(found.model[0].weight, problem().model[0].weight)


def test_blocks():
    network = view(problem().model)
    assert [part.size for part in split_blocks(network, ())] == [360, 123]
    assert len(split_blocks(network, ("2.*", "0.*"))) == 2
    for wrong in (("0.*",), ("0.*", "*")):
        with pytest.raises(InvalidInput, match="split the parameters"):
            split_blocks(network, wrong)


def test_bad_input():
    base = problem()
    with pytest.raises(InvalidInput, match="start"):
        replace(METHODS[0], start="elsewhere").unlearn(base)
    with pytest.raises(InvalidInput, match="recovery"):
        METHODS[1].unlearn(replace(base, train=None))
    with pytest.raises(InvalidInput, match="radius"):
        replace(METHODS[1], radius=0.0).unlearn(base)
    with pytest.raises(InvalidInput, match="exists"):
        replace(METHODS[2], reference="exists").unlearn(base)
    with pytest.raises(InvalidInput, match="not finite"):
        clipped(torch.tensor([math.nan]), 1.0)
    nan = train(base.model, base.retain, NOTHING)
    view(nan).load(view(nan).vector() * math.nan)
    with pytest.raises(InvalidInput, match="finite"):
        METHODS[1].unlearn(replace(base, model=nan))


def lower_bound(p, q, delta):
    """Bound ε from below by the better of two directions at the best of ten thresholds."""
    half, best = len(p) // 2, 0.0
    for one, two in ((p, q), (-q, -p)):
        grid = np.quantile(np.concatenate([one[:half], two[:half]]), np.linspace(0.02, 0.98, 49))
        gains = [
            np.log(max((one[:half] > t).mean() - delta, 1e-12) / max((two[:half] > t).mean(), 1e-4))
            for t in grid
        ]
        t = grid[int(np.argmax(gains))]
        hits, alarms = (one[half:] > t).sum(), (two[half:] > t).sum()
        left = len(one) - half
        low = beta.ppf(0.025, hits, left - hits + 1)
        high = beta.ppf(0.975, alarms + 1, left - alarms)
        best = max(best, math.log(max(low - delta, 1e-300) / high))
    return best


def simulate(schedule, runs, rng, sign, dimension):
    x = np.zeros((runs, dimension))
    x[:, 0] = sign * schedule.start_radius
    for _ in range(schedule.steps):
        x *= schedule.contraction
        x[:, 0] += sign * schedule.lr * schedule.step_radius
        x += schedule.sigma * rng.standard_normal(x.shape)
    return x[:, 0]


@pytest.mark.parametrize("dimension", [1, 20])
def test_monte_carlo_stays_below_the_claim_and_catches_the_public_accountant(dimension):
    """Worst-case pair: honest σ is consistent with ε = 1; a Rényi rate taken for an ε is not."""
    from expunge.deep.noisy_bounds import schedule_for

    rng, runs, delta = np.random.default_rng(5), 200_000, 1e-5
    fixed = {"start_radius": 0.01, "step_radius": 10.0, "lr": 1e-4, "weight_decay": 750.0}
    honest = schedule_for(1.0, delta, steps=6, **fixed)
    published = Schedule(0.01, 10.0, 1e-4, 750.0, 6, 0.007752)
    bounds = {
        name: lower_bound(
            simulate(s, runs, rng, 1, dimension), simulate(s, runs, rng, -1, dimension), delta
        )
        for name, s in (("honest", honest), ("published", published))
    }
    assert 0.3 < bounds["honest"] <= 1.0
    assert 3.0 < bounds["published"] <= epsilon_of(published.mu(), delta)


def test_monte_carlo_of_model_clipping():
    """Two models, the same updates: as far apart as clipping allows before every noise."""
    rng, runs, radius, sigma = np.random.default_rng(6), 200_000, 1.0, 1.0
    pair = []
    for sign in (1, -1):
        x = np.full(runs, 10.0 * sign)
        for _ in range(3):
            x = np.clip(10.0 * x, -radius, radius) + sigma * rng.standard_normal(runs)
        pair.append(x)
    delta = clipped_delta(1.0, radius, sigma, 3)
    assert lower_bound(*pair, delta) <= 1.0
    assert (
        delta
        < delta_of(1.0, 2 * radius / sigma)
        == pytest.approx(norm.cdf(0.5) - math.e * norm.cdf(-1.5), rel=1e-6)
    )
