"""Guo et al.'s mechanism: the theory's vectors, the order of the bounds, and what is refused."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from expunge.errors import (
    BudgetExhausted,
    CertificateRefused,
    InvalidCalibration,
    InvalidInput,
    RetainedMismatch,
)
from expunge.guarantee import Grade, Tag, grade_of
from expunge.linear import guo
from expunge.linear.guo import Extractor, Mechanism
from expunge.linear.residuals import residual_bounds
from expunge.linear.rows import make_rows
from expunge.noise import OsEntropy, Seeded
from oracles import derivatives, digits38, minimiser


class Given:
    """A noise source that returns a given array."""

    name, production = "seeded", False

    def __init__(self, values):
        self.values = values

    def normal(self, shape):
        return np.broadcast_to(self.values, shape).copy()


NO_NOISE = Given(0.0)


def digits():
    X, y = digits38()
    return make_rows(X, y, intercept=False)


def residual(X, y, w, l2, b=0.0):
    """Return ‖∇L_b‖ of the sum objective in extended precision."""
    X = np.asarray(X, dtype=np.longdouble)
    penalty = np.full((X.shape[1], 1), l2 * len(X), dtype=np.longdouble)
    g, _ = derivatives(X, y, np.ones(len(X)), "logistic", penalty, w.astype(np.longdouble))
    return float(np.linalg.norm((g + b).astype(float)))


def chain(rows, mechanism, source, count):
    """Delete rows 0 … count − 1 one by one; yield state, retained rows and the step's bounds."""
    state = guo.train(rows, mechanism, source)
    for i in range(count):
        left = rows.without(np.arange(i + 1))
        old = state.weights
        state = guo.remove(state, rows.take(np.array([i])), left, source)
        bounds = residual_bounds(
            left, old, state.weights - old, gram=state.gram, l2=mechanism.l2, removed=1
        )
        yield state, left, bounds


@pytest.mark.parametrize(
    ("l2", "norm", "accuracy", "first", "ten", "r", "distance"),
    [
        (
            0.01,
            4.87840508,
            0.977591,
            (4.72547229e-3, 2.70714130e-4),
            (8.69059731e-2, 4.78884866e-3),
            8.944607e-4,
            1.134873e-4,
        ),
        (
            0.001,
            12.44713624,
            0.994398,
            (5.31124341e-3, 1.72376700e-4),
            (0.412145138, 1.75107829e-2),
            2.668506e-3,
            1.0769097e-3,
        ),
    ],
)
def test_vectors_of_the_unperturbed_chain(l2, norm, accuracy, first, ten, r, distance):
    """T6."""
    X, y = digits38()
    rows, mechanism = digits(), Mechanism(l2, 10.0, 1.0, 1e-4)
    start = guo.train(rows, mechanism, NO_NOISE)
    assert np.linalg.norm(start.weights) == pytest.approx(norm, rel=1e-8)
    assert np.mean(np.sign(X @ start.weights) == y) == pytest.approx(accuracy, abs=1e-6)
    found = list(chain(rows, mechanism, NO_NOISE, 10))
    paper = np.cumsum([bounds.corollary_paper for *_, bounds in found])
    sharp = np.cumsum([bounds.sharp for *_, bounds in found])
    assert (paper[0], sharp[0]) == pytest.approx(first, rel=1e-6)
    assert (paper[-1], sharp[-1]) == pytest.approx(ten, rel=1e-6)
    state = found[-1][0]
    assert state.residual == pytest.approx(ten[0], rel=1e-6)
    assert state.residual >= start.residual + paper[-1]
    assert residual(X[10:], y[10:], state.weights, l2) == pytest.approx(r, rel=1e-6)
    truth = minimiser(X[10:], y[10:], np.ones(347), "logistic", l2 * 347, False)
    assert np.linalg.norm(state.weights - truth) == pytest.approx(distance, rel=1e-5)
    library = replace(mechanism, calibration="library")
    *_, last = chain(rows, library, NO_NOISE, 10)
    assert last[0].residual == pytest.approx(ten[1], rel=1e-6)


def test_theorem_of_the_paper():
    """T6: Theorem 1 at the digits' size and at MNIST's."""
    *_, bounds = next(chain(digits(), Mechanism(0.01, 10.0, 1.0, 1e-4), NO_NOISE, 1))
    assert bounds.theorem_paper == pytest.approx(28.08989, rel=1e-6)
    assert pytest.approx(83.4655, rel=1e-5) == 4 * 0.25 / (1e-6 * 11_981)


def test_perturbation_is_the_gradient_and_counts_in_the_residual():
    """−∇L(w*) = b in sum units; without b the residual is wrong by orders (N9)."""
    X, y = digits38()
    rows = digits()
    b = np.random.default_rng(0).standard_normal((64, 1))
    mechanism = Mechanism(0.01, 10.0, 1.0, 1e-4)
    found = list(chain(rows, mechanism, Given(b / 10.0), 10))
    start = guo.train(rows, mechanism, Given(b / 10.0))
    assert start.b == pytest.approx(b, rel=1e-15)
    assert residual(X, y, start.weights, 0.01, b) <= start.residual <= 1e-10
    state = found[-1][0]
    assert residual(X[10:], y[10:], state.weights, 0.01, b) == pytest.approx(7.80e-4, rel=1e-3)
    assert residual(X[10:], y[10:], state.weights, 0.01) == pytest.approx(7.315, rel=1e-3)


def test_theorem_1_fails_with_a_perturbation():
    """N8: ‖w*‖ ≤ C/λ is false once b is in the objective."""
    b = 300.0 * np.random.default_rng(0).standard_normal((64, 1))
    w, _ = guo.solve(digits(), 1e-3, b)
    assert np.linalg.norm(w) == pytest.approx(6069, rel=1e-3)
    assert np.linalg.norm(w) > 1.0 / 1e-3


def test_one_vs_rest_joins_residuals_in_quadrature():
    """T6, digits 0, 1, 2 with the default_rng(k) perturbations."""
    from sklearn.datasets import load_digits

    X, y = load_digits(return_X_y=True)
    keep = y < 3
    X = X[keep] / 16 - 0.5
    X /= np.linalg.norm(X, axis=1, keepdims=True)
    target = np.where(y[keep][:, None] == np.arange(3), 1.0, -1.0)
    b = np.column_stack([np.random.default_rng(k).standard_normal(64) for k in range(3)])
    rows = make_rows(X, target, intercept=False)
    mechanism = Mechanism(1e-2, 10.0, 1.0, 1e-4)
    state = guo.train(rows, mechanism, Given(b / 10.0))
    state = guo.remove(state, rows.take(np.array([0])), rows.without(np.array([0])), NO_NOISE)
    assert state.spent.sum() == pytest.approx(4.462e-3, rel=1e-2)
    assert state.residual == pytest.approx(2.739e-3, rel=1e-2)
    true = [
        residual(X[1:], target[1:, [k]], state.weights[:, [k]], 1e-2, b[:, [k]]) for k in range(3)
    ]
    assert math.hypot(*true) == pytest.approx(8.5e-5, rel=1e-2)


def test_order_of_the_bounds():
    """T10, on a batch as well."""
    rows = digits()
    for _, _, bounds in chain(rows, Mechanism(0.003, 50.0, 1.0, 1e-4), NO_NOISE, 12):
        assert bounds.sharp <= bounds.gram
        assert bounds.gram == pytest.approx(bounds.corollary / 2, rel=1e-9)
        assert bounds.corollary == pytest.approx(0.3849 * bounds.corollary_paper, rel=1e-4)
        assert bounds.corollary <= bounds.theorem
        assert bounds.corollary_paper <= bounds.theorem_paper


@settings(max_examples=25, deadline=None)
@given(
    seed=st.integers(0, 10_000),
    k=st.integers(1, 8),
    scale=st.sampled_from([0.3, 1.0, 4.0]),
    l2=st.sampled_from([1e-3, 1e-2, 1.0]),
    calibration=st.sampled_from(["paper", "library"]),
)
def test_spent_bounds_the_true_residual(seed, k, scale, l2, calibration):
    """Random problems, rows of any norm, perturbed, a batch and then singles."""
    rng = np.random.default_rng(seed)
    X = scale * rng.standard_normal((60, 5))
    y = np.where(rng.random((60, 1)) < 0.5, 1.0, -1.0)
    rows = make_rows(X, y, intercept=False)
    mechanism = Mechanism(l2, 1e6, 1.0, 1e-4, calibration)
    b = rng.standard_normal((5, 1))
    state = guo.train(rows, mechanism, Given(b / 1e6))
    gone = np.arange(k)
    for size in (k, 1, 1):
        forget = gone[-size:]
        state = guo.remove(state, rows.take(forget), rows.without(gone), NO_NOISE)
        left = np.delete(np.arange(60), gone)
        assert residual(X[left], y[left], state.weights, l2, b) <= state.residual
        gone = np.append(gone, gone[-1] + 1)


def test_retrains_with_a_fresh_perturbation_when_the_budget_is_spent():
    """Algorithm 2, and the cap on retrains."""
    rows = digits()
    mechanism = Mechanism(0.001, 0.5, 1.0, 1e-4, max_retrains=2)
    source = Seeded(1)
    state = guo.train(rows, mechanism, source)
    seen, budget = [], mechanism.budget
    for i in range(100):
        before, forget, left = state, rows.take(np.array([i])), rows.without(np.arange(i + 1))
        try:
            state = guo.remove(state, forget, left, source)
        except BudgetExhausted:
            break
        assert state.residual <= budget
        if state.retrains > before.retrains:
            seen.append(i)
            assert not np.allclose(state.b, before.b)
            assert state.residual < 1e-9
    assert len(seen) == 2
    assert state.removed == 357 - state.count == i
    with pytest.raises(BudgetExhausted, match="nothing was changed"):
        guo.remove(state, forget, left, source)


def test_a_faster_budget_lasts_longer():
    """The library's calibration supports many times the paper's removals."""
    paper = Mechanism(0.001, 1.0, 1.0, 1e-4)
    library = replace(paper, calibration="library")
    assert library.budget / paper.budget == pytest.approx(1.3766, rel=1e-3)
    assert paper.budget == pytest.approx(0.2280301, rel=1e-6)
    assert paper.exact_delta < 1e-4
    assert library.exact_delta == pytest.approx(1e-4, rel=1e-5)
    *_, a = chain(digits(), replace(paper, sigma=10.0), NO_NOISE, 5)
    *_, b = chain(digits(), replace(library, sigma=10.0), NO_NOISE, 5)
    assert a[0].residual > 15 * b[0].residual


def test_calibration_outside_its_range_is_refused():
    """N1."""
    with pytest.raises(InvalidCalibration, match=r"1\.37584e-04|0\.000137584"):
        Mechanism(0.01, 1.0, 9.0, 1e-4)
    assert Mechanism(0.01, 1.0, 9.0, 1e-4, "library").exact_delta <= 1e-4


@pytest.mark.parametrize(
    "wrong", ["all rows", "a subset with a row twice", "altered", "another row deleted"]
)
def test_a_hessian_over_the_wrong_rows_is_refused(wrong):
    """N5: D, or something else, in the place of R."""
    X, y = digits38()
    rows, first = digits(), np.array([0])
    state = guo.train(rows, Mechanism(0.01, 1.0, 1.0, 1e-4), Seeded(0))
    forget = rows.take(first)
    if wrong == "all rows":
        left = rows
    elif wrong == "altered":
        X = X.copy()
        X[5, 3] += 0.01
        left = make_rows(X[1:], y[1:], intercept=False)
    elif wrong == "another row deleted":
        left = rows.without(np.array([1]))
    else:
        index = np.r_[1:356, 355]
        left = rows.take(index)
    with pytest.raises(RetainedMismatch):
        guo.remove(state, forget, left, OsEntropy())


def test_mean_units_are_noticed():
    """N6: a perturbation divided by n is not the gradient of the sum objective."""
    state = guo.train(digits(), Mechanism(0.01, 1.0, 1.0, 1e-4), Seeded(0))
    wrong = replace(state, b=state.b / state.count)
    first = np.array([0])
    with pytest.raises(RetainedMismatch):
        guo.remove(wrong, digits().take(first), digits().without(first), OsEntropy())


def test_a_rounded_perturbation_hides_nothing():
    """N15: on a grid of step 1 the residual is within 1/2 and the outputs are told apart."""
    b = np.random.default_rng(0).standard_normal(100_000)
    rounded = np.round(b)
    assert np.abs(b - rounded).max() <= 0.5
    assert len(np.unique(rounded)) <= 11
    assert len(np.unique(b)) > 99_000


def test_promise_is_conditional_and_names_what_it_needs():
    rows = digits()
    state = guo.train(rows, Mechanism(0.01, 1.0, 1.0, 1e-4), OsEntropy())
    claim, needs = guo.promise(state)
    assert grade_of(claim.kind, needs) is Grade.conditional
    assert claim.view == "afterOnly"
    assert claim.releases_covered == 1
    assumed = {need.id for need in needs if need.tag is Tag.assumed}
    assert assumed == {
        "residualIndependentOfPerturbation",
        "oneReleasePerPerturbation",
        "requestsIndependentOfModel",
        "retrainTimesNotObserved",
        "featuresAndPenaltyFixed",
    }


def test_promise_refuses_a_seed_and_an_exceeded_budget():
    state = guo.train(digits(), Mechanism(0.01, 1.0, 1.0, 1e-4), Seeded(0))
    with pytest.raises(CertificateRefused, match="seed"):
        guo.promise(state)
    fair = guo.train(digits(), Mechanism(0.01, 1.0, 1.0, 1e-4), OsEntropy())
    with pytest.raises(CertificateRefused, match="budget"):
        guo.promise(replace(fair, spent=np.array([1.0])))


def test_extractor_composes_by_the_group_that_was_deleted():
    """Theorem 5 for one record; group privacy of the extractor for several."""
    mechanism = Mechanism(0.01, 5.0, 1.0, 1e-4, extractor=Extractor(0.1, 1e-5))
    rows = digits()
    state = guo.train(rows, mechanism, OsEntropy())
    one = guo.remove(state, rows.take(np.array([0])), rows.without(np.array([0])), OsEntropy())
    claim, needs = guo.promise(one)
    assert (claim.epsilon, claim.delta) == pytest.approx((1.1, 1.1e-4))
    assert "extractorDifferentiallyPrivate" in {n.id for n in needs if n.tag is Tag.assumed}
    three = guo.remove(one, rows.take(np.array([1, 2])), rows.without(np.arange(3)), OsEntropy())
    claim, _ = guo.promise(three)
    group = 1e-5 * (1 + math.exp(0.1) + math.exp(0.2))
    assert (claim.epsilon, claim.delta) == pytest.approx((1.3, 1e-4 + group))


def test_group_privacy_of_randomised_response():
    """The group bound against the exact product mechanism (δ = 0)."""
    epsilon = 0.7
    p = math.exp(epsilon) / (1 + math.exp(epsilon))
    assert math.log(p**3 / (1 - p) ** 3) == pytest.approx(Extractor(epsilon, 0.0).group(3)[0])


def test_what_the_residual_argument_does_not_cover_is_refused():
    X, y = digits38()
    mechanism = Mechanism(0.01, 1.0, 1.0, 1e-4)
    with pytest.raises(InvalidInput, match="intercept=False"):
        guo.train(make_rows(X, y), mechanism, Seeded(0))
    with pytest.raises(InvalidInput, match="weight"):
        guo.train(make_rows(X, y, np.full(357, 2.0), intercept=False), mechanism, Seeded(0))
    with pytest.raises(InvalidInput, match="targets"):
        guo.train(make_rows(X, (y > 0).astype(float), intercept=False), mechanism, Seeded(0))
    for bad in ({"l2": 0.0}, {"sigma": math.inf}, {"calibration": "mine"}, {"max_retrains": -1}):
        with pytest.raises(InvalidInput):
            replace(mechanism, **bad)
    with pytest.raises(InvalidInput):
        Extractor(-1.0, 0.0)


def test_b_is_in_no_representation():
    state = guo.train(digits(), Mechanism(0.01, 1.0, 1.0, 1e-4), Seeded(0))
    assert repr(state) == "State(357 rows retained, 0 retrains, sealed)"
