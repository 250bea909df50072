"""Accounting of clipped noisy steps, model clipping, rewinding and Langevin: vectors and truths."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import minimize
from scipy.stats import norm

from expunge.deep.noisy_bounds import (
    Schedule,
    best_steps,
    clipped_delta,
    clipping_steps,
    group_privacy,
    kept_share,
    schedule_for,
)
from expunge.deep.rewind_bounds import (
    Constants,
    batch_distance,
    descent_distance,
    head_constants,
    langevin_mu,
    langevin_steps,
    rewind_distance,
)
from expunge.errors import InvalidInput
from expunge.guarantee import delta_of, mu_of

VECTORS = [
    (0.03, 1.0, 0.01, 10.0, 3, 0.062367),
    (0.03, 1.0, 0.01, 10.0, 4, 0.062464),
    (0.1, 1.0, 0.05, 1.0, 2, 0.272237),
    (1.0, 1.0, 0.01, 0.9, 255, 0.295980),
    (1.0, 10.0, 0.01, 0.0, 10, 1.264911),
    (0.5, 1.0, 0.01, 1.5, 92, 0.222767),
]


@pytest.mark.parametrize(("start", "step", "lr", "wd", "steps", "value"), VECTORS)
def test_noise_of_a_step(start, step, lr, wd, steps, value):
    schedule = Schedule(start, step, lr, wd, steps, 1.0)
    assert schedule.mu() == pytest.approx(value, rel=1e-5)
    assert schedule.mu("exists") == pytest.approx(value / 2, rel=1e-5)
    assert best_steps(start, step, lr, wd) == (3 if steps == 4 else steps)


@given(
    st.floats(0.01, 3),
    st.floats(0.05, 5),
    st.floats(0.001, 0.2),
    st.floats(0.0, 4),
    st.integers(1, 12),
)
def test_mu_is_the_cheapest_interpolation(start, step, lr, wd, steps):
    """The closed form solves: shifts a_t ≥ 0 that bring the two paths together at least cost."""
    schedule = Schedule(start, step, lr, wd, steps, 1.0)
    r, push = schedule.contraction, 2 * lr * step
    weights = np.array([r ** (steps - t) for t in range(1, steps + 1)])
    total = r**steps * 2 * start + push * sum(r**k for k in range(steps))
    found = minimize(
        lambda a: a @ a,
        np.full(steps, total / weights.sum()),
        jac=lambda a: 2 * a,
        constraints={"type": "eq", "fun": lambda a: weights @ a - total, "jac": lambda a: weights},
        bounds=[(0, None)] * steps,
        method="SLSQP",
        options={"ftol": 1e-14, "maxiter": 500},
    )
    assert schedule.mu() == pytest.approx(math.sqrt(found.fun), rel=1e-4)
    assert schedule.mu() >= math.sqrt(found.fun) * (1 - 1e-7) or not found.success
    distance = 2 * start
    for shift in weights * total / (weights @ weights):
        distance = r * distance + push - shift
        assert distance >= -1e-9


def test_worst_case_in_one_dimension_is_attained():
    """Both worlds pushed apart by all that clipping allows are exactly μ-GDP."""
    schedule = Schedule(0.4, 1.0, 0.05, 1.0, 7, 0.3)
    mean = {sign: sign * schedule.start_radius for sign in (1, -1)}
    for _ in range(schedule.steps):
        mean = {
            sign: schedule.contraction * at + sign * schedule.lr * schedule.step_radius
            for sign, at in mean.items()
        }
    assert (mean[1] - mean[-1]) / schedule.spread == pytest.approx(schedule.mu(), rel=1e-9)


def test_a_rate_is_not_a_constant():
    """The public accountant takes a Rényi rate for an ε: 1.004 where the truth is 6.57."""
    schedule = Schedule(0.01, 10.0, 1e-4, 750.0, 6, 0.007752)
    assert schedule.epsilon_at(1e-5) == pytest.approx(6.573, abs=2e-3)
    honest = schedule_for(
        1.0, 1e-5, start_radius=0.01, step_radius=10.0, lr=1e-4, weight_decay=750.0, steps=6
    )
    assert honest.sigma / schedule.sigma == pytest.approx(5.28, abs=0.01)


@given(st.floats(0.1, 10), st.floats(1e-8, 1e-2), st.floats(0.0, 2), st.floats(0.1, 5))
def test_a_schedule_meets_its_target(epsilon, delta, start, step):
    fixed = {"start_radius": start, "step_radius": step, "lr": 0.02, "weight_decay": 0.01}
    found = schedule_for(epsilon, delta, steps=5, **fixed)
    assert delta_of(epsilon, found.mu()) <= delta
    assert found.epsilon_at(delta) <= epsilon * (1 + 1e-6)
    assert found.mu() >= mu_of(epsilon, delta) * (1 - 1e-6)


@pytest.mark.parametrize(
    "wrong",
    [
        {"start_radius": -1.0},
        {"step_radius": math.nan},
        {"lr": 0.0},
        {"weight_decay": -0.1},
        {"weight_decay": 10.0},
        {"steps": 0},
        {"sigma": 0.0},
        {"sigma": math.inf},
    ],
)
def test_bad_schedules(wrong):
    right = {
        "start_radius": 1.0,
        "step_radius": 1.0,
        "lr": 0.1,
        "weight_decay": 0.1,
        "steps": 3,
        "sigma": 1.0,
    }
    with pytest.raises(InvalidInput):
        Schedule(**{**right, **wrong})


def test_more_steps_are_always_better_beyond_the_critical_radius():
    with pytest.raises(InvalidInput, match="choose the steps"):
        best_steps(1.0, 1.0, 0.01, 1.0)


def test_nothing_kept():
    with pytest.raises(InvalidInput, match="both 0"):
        schedule_for(
            1.0, 1e-5, start_radius=0.0, step_radius=0.0, lr=0.1, weight_decay=0.1, steps=1
        )
    with pytest.raises(InvalidInput, match="reference"):
        Schedule(1.0, 1.0, 0.1, 0.1, 1, 1.0).mu("retrain")
    assert kept_share(mu_of(1.0, 1e-5), 7) > 0.05 > kept_share(mu_of(1.0, 1e-5), 8)


def test_model_clipping_against_exact_propagation():
    """Two laws on a line, clipped to ±C2 and noised: the hockey stick on a fine grid."""
    epsilon, sigma, radius = 1.0, 1.0, 1.0
    grid = np.linspace(-9, 9, 6001)
    width = grid[1] - grid[0]
    kernel = norm.pdf(grid[:, None] - np.clip(grid, -radius, radius)[None, :], scale=sigma) * width
    left = norm.pdf(grid, -radius, sigma) * width
    right = norm.pdf(grid, radius, sigma) * width
    for steps in (1, 2, 3):
        stick = np.maximum(left - math.exp(epsilon) * right, 0).sum()
        assert stick <= clipped_delta(epsilon, radius, sigma, steps) * (1 + 1e-3)
        left, right = kernel @ left, kernel @ right
    assert clipping_steps(1.0, 1e-5, 1.0, 1.0) == 6


@pytest.mark.parametrize(
    ("epsilon", "table"),
    [
        (1.0, {0.268: 1, 0.5: 2, 1: 3, 2: 6, 3: 14, 4: 40, 6: 602}),
        (8.0, {1: 1, 2: 2, 3: 3, 4: 6, 6: 50}),
    ],
)
def test_rounds_of_model_clipping(epsilon, table):
    for ratio, steps in table.items():
        assert clipping_steps(epsilon, 1e-5, ratio / 2, 1.0) == steps
    assert clipped_delta(1.0, 1.95, 1.0, 36) == pytest.approx(9.114e-7, rel=1e-3)


def test_hopeless_model_clipping():
    with pytest.raises(InvalidInput, match="raise sigma"):
        clipping_steps(0.01, 1e-9, 20.0, 1.0)


@given(st.floats(0.01, 3), st.floats(1e-9, 1e-3), st.integers(1, 8))
def test_group_privacy_of_a_gaussian(epsilon, delta, size):
    """K records of a μ-GDP mechanism are kμ-GDP: the lemma must lie above that."""
    mu = mu_of(epsilon, delta)
    top, grown = group_privacy(epsilon, delta, size)
    assert delta_of(top, size * mu) <= grown * (1 + 1e-6)


def test_the_short_cut_for_groups_is_too_small():
    epsilon, delta, size = 0.05, 1e-5, 10
    _, grown = group_privacy(epsilon, delta, size)
    assert math.exp((size - 1) * epsilon) * delta < grown


def test_rewinding_a_head():
    head = head_constants("softmax", 0.0, 1e-3)
    at = {"rows": 40_000, "lr": 1.0, "steps": 2000}
    assert rewind_distance(head, deleted=1, rewound=1000, **at) == pytest.approx(0.016440, rel=1e-4)
    for m, sigma in ((1, 0.061), (10, 0.61), (100, 6.1)):
        distance = rewind_distance(head, deleted=m, rewound=1000, **at)
        assert distance / mu_of(1.0, 1e-5) == pytest.approx(sigma, rel=0.01)
    whole = rewind_distance(head, deleted=1, rewound=0, **at) / mu_of(1.0, 1e-5)
    assert whole == pytest.approx(0.228, rel=0.01)
    assert rewind_distance(head, deleted=1, rewound=2000, **at) == 0.0


def test_rewinding_without_convexity_is_hopeless():
    wild = Constants(1.0, 1.0, None)
    found = rewind_distance(wild, deleted=1, rows=1, lr=0.5, steps=400, rewound=200)
    assert found > 1e69
    assert rewind_distance(wild, deleted=1, rows=1, lr=0.5, steps=9000, rewound=1) == math.inf


@given(st.integers(2, 30), st.integers(0, 30), st.floats(0.05, 0.9), st.floats(0.01, 0.5))
def test_rewinding_a_quadratic(steps, rewound, lr, curve):
    """Exact trajectories on a line, gradients of data clipped to G, never part further."""
    rewound = min(rewound, steps)
    rng = np.random.default_rng(steps)
    n, m = 12, 3
    slopes = rng.uniform(-1.0, 1.0, n)
    kept = slopes[m:]

    def go(x, data, count):
        for _ in range(count):
            x = x - lr * (data.mean() + curve * x)
        return x

    constants = Constants(1.0, 1.0, curve)
    start = go(0.3, slopes, steps - rewound)
    parted = abs(go(start, kept, rewound) - go(0.3, kept, steps))
    bound = rewind_distance(constants, deleted=m, rows=n, lr=lr, steps=steps, rewound=rewound)
    assert parted <= bound + 1e-12
    on = abs(go(go(0.3, slopes, steps), kept, rewound) - go(0.3, kept, steps + rewound))
    assert (
        on
        <= descent_distance(constants, deleted=m, rows=n, lr=lr, steps=steps, extra=rewound) + 1e-12
    )


def test_steps_of_langevin():
    n, wd = 11_982, 0.011982
    constants = Constants(1.0, 0.25 + wd, wd)
    at = {"rows": n, "lr": 1.0 / (0.25 + wd), "sigma": 0.03}
    found = [
        langevin_steps(constants, 1.0, 1.0 / n, deleted=m, **at)
        for m in (1, 10, 50, 100, 500, 1000)
    ]
    assert found == [0, 11, 45, 60, 94, 109]


@given(st.integers(1, 60), st.integers(0, 40), st.floats(0.1, 1.0), st.floats(0.02, 0.9))
def test_langevin_on_a_quadratic_is_tight(steps, extra, lr, curve):
    """Records that pull apart as far as they may: both laws are Gaussian, μ is their distance."""
    constants = Constants(1.0, 1.0, curve)
    n, m, sigma = 10, 10, 0.7
    q, apart, variance = 1 - lr * curve, 0.0, 0.0
    for t in range(steps + extra):
        apart = q * apart + (2 * lr * m / n if t < steps else 0.0)
        variance = q * q * variance + 2 * lr * sigma**2
    mu = langevin_mu(constants, deleted=m, rows=n, lr=lr, sigma=sigma, steps=steps, extra=extra)
    assert mu == pytest.approx(apart / math.sqrt(variance), rel=1e-9)
    endless = langevin_mu(constants, deleted=m, rows=n, lr=lr, sigma=sigma, steps=None, extra=extra)
    many = langevin_mu(constants, deleted=m, rows=n, lr=lr, sigma=sigma, steps=20_000, extra=extra)
    assert endless == pytest.approx(many, rel=1e-6)


def test_bad_numbers_of_rewinding():
    head = head_constants("logistic", 1.0, 1e-3)
    right = {"deleted": 1, "rows": 10, "lr": 1.0, "steps": 5, "rewound": 2}
    for wrong in ({"rewound": 6}, {"deleted": 11}, {"lr": 100.0}, {"lr": -1.0}, {"rows": 0}):
        with pytest.raises(InvalidInput):
            rewind_distance(head, **{**right, **wrong})
    flat = Constants(1.0, 1.0, 0.0)
    with pytest.raises(InvalidInput, match="strong convexity"):
        descent_distance(flat, deleted=1, rows=10, lr=1.0, steps=5, extra=2)
    with pytest.raises(InvalidInput, match="strong convexity"):
        langevin_mu(flat, deleted=1, rows=10, lr=1.0, sigma=1.0, steps=5, extra=2)
    with pytest.raises(InvalidInput, match="exceed"):
        Constants(1.0, 1.0, 2.0)
    with pytest.raises(InvalidInput, match="loss"):
        head_constants("hinge", 1.0, 0.0)
    with pytest.raises(InvalidInput, match="cannot hold"):
        batch_distance(1.0, 0.1, [(3, 2)])
