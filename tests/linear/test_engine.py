"""The engine against retraining: vectors of the theory, property tests, negative controls."""

from __future__ import annotations

import threading
import warnings
from contextlib import nullcontext, suppress
from dataclasses import replace

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sklearn.datasets import load_diabetes
from threadpoolctl import threadpool_info, threadpool_limits

from expunge.errors import (
    InvalidInput,
    LastOfClass,
    NeedsRetainedData,
    RetainedMismatch,
    ToleranceUnreachable,
)
from expunge.linear.bounds import guo_corollary1
from expunge.linear.engine import fit, unlearn
from expunge.linear.losses import LOSSES as TABLE
from expunge.linear.passes import curvature_rows, evaluate
from expunge.linear.rows import make_rows
from expunge.linear.shards import single_threaded_blas
from oracles import digits10, digits38, iris, minimiser
from random_problems import REGRESSION, assert_no_understatement, problem

TEN = np.arange(10)
SOFTMAX = TABLE["softmax"]
LOSSES = ("logistic", "softmax", "logistic-ovr", "squared", "poisson", "gamma")


def fitted(X, target, loss="logistic", l2=1.0, tolerance=1e-8, intercept=False, weight=None):
    rows = make_rows(X, target, weight, intercept=intercept)
    return rows, fit(rows, loss=loss, l2=l2, tolerance=tolerance, classes=loss not in REGRESSION)[0]


def data_free(state, rows, index):
    """Delete with the bound alone, whatever it is; return the weights and the bound."""
    loose = replace(state, tolerance=1e300)
    new, trace = unlearn(loose, rows.take(index))
    assert trace.path == "bounded"
    return new.weights, trace.distance


@pytest.mark.parametrize(
    ("l2", "norm", "norm_after", "shift"),
    [
        (10, 2.6733777243, 2.6169220661, 8.0794265e-2),
        (1, 8.5710366018, 8.4862519937, 2.0345705e-1),
        (0.1, 18.7534217696, 18.6513291828, 5.3673333e-1),
    ],
)
def test_vector_t2(l2, norm, norm_after, shift):
    X, y = digits38()
    rows, state = fitted(X, y, l2=l2)
    new, _ = unlearn(state, rows.take(TEN), rows.without(TEN))
    assert np.linalg.norm(state.weights) == pytest.approx(norm, rel=1e-9)
    assert np.linalg.norm(new.weights) == pytest.approx(norm_after, rel=1e-8)
    assert np.linalg.norm(new.weights - state.weights) == pytest.approx(shift, rel=1e-6)


@pytest.mark.parametrize(
    ("l2", "truth", "published"),
    [(10, 1.225579e-4, 2.440464e-3), (1, 1.621042e-3, 2.829671e-2), (0.1, 7.979110e-3, 0.4209770)],
)
def test_vector_t5(l2, truth, published):
    X, y = digits38()
    rows, state = fitted(X, y, l2=l2)
    weights, bound = data_free(state, rows, TEN)
    keep = np.arange(10, len(X))
    retrained = minimiser(X[keep], y[keep], np.ones(len(keep)), "logistic", l2, False)
    assert np.linalg.norm(weights - retrained) == pytest.approx(truth, rel=0.04)
    assert truth <= bound <= 1.05 * published


def test_vector_t5_free_intercept():
    X, y = digits38()
    rows, state = fitted(X, y, intercept=True)
    assert np.linalg.norm(state.weights[:-1]) == pytest.approx(8.5678939347, rel=1e-8)
    assert state.weights[-1, 0] == pytest.approx(-0.2273090826, rel=1e-8)
    new, _ = unlearn(state, rows.take(TEN), rows.without(TEN))
    assert np.linalg.norm(new.weights - state.weights) == pytest.approx(0.201946821, rel=1e-6)
    assert 1.646878e-3 <= data_free(state, rows, TEN)[1] <= 5.855316e-2


def test_vector_t3_softmax():
    X, y = iris()
    rows, state = fitted(X, y, "softmax")
    assert np.linalg.norm(state.weights) == pytest.approx(3.2430144087, rel=1e-8)
    assert np.abs(state.weights.sum(axis=1)).max() < 1e-9
    gone = np.array([0, 50, 100])
    weights, bound = data_free(state, rows, gone)
    new, _ = unlearn(state, rows.take(gone), rows.without(gone))
    assert np.linalg.norm(new.weights) == pytest.approx(3.2168988251, rel=1e-8)
    assert np.linalg.norm(weights - new.weights) == pytest.approx(1.366384e-3, rel=0.01)
    assert bound <= 1.1 * 0.3146141
    X, y = digits10()
    assert np.linalg.norm(fitted(X, y, "softmax")[1].weights) == pytest.approx(32.994583, rel=1e-6)


def test_softmax_of_two_classes_is_binary():
    X, y = digits38()
    two = fitted(X, np.hstack([y < 0, y > 0]).astype(float), "softmax", l2=2.0)[1].weights
    one = fitted(X, y, l2=1.0)[1].weights
    np.testing.assert_allclose(two[:, 1:] - two[:, :1], one, atol=1e-7)


def test_vector_t7_ridge():
    X, y = load_diabetes(return_X_y=True)
    rows, state = fitted(X, y[:, None], "squared", tolerance=1e-6)
    assert np.linalg.norm(state.weights) == pytest.approx(511.59512410, rel=1e-9)
    weights, bound = data_free(state, rows, np.arange(5))
    assert np.linalg.norm(weights) == pytest.approx(512.28786448, rel=1e-9)
    expected = [27.93906292, -78.54166338, 305.25056443]
    np.testing.assert_allclose(weights[:3, 0], expected, rtol=1e-8)
    assert bound < 1e-6


@pytest.mark.parametrize("loss", LOSSES)
@settings(
    max_examples=600, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck)
)
@given(seed=st.integers(0, 2**32))
def test_distance_never_exceeds_what_is_stated(loss, seed):
    assert_no_understatement(seed, loss)


@settings(max_examples=300, deadline=None, derandomize=True)
@given(seed=st.integers(0, 2**32))
def test_order_of_bounds(seed):
    """Truth ≤ local-norm bound ≤ Guo's Corollary 1 / Λ, on rows of norm at most 1 where both apply.

    The corollary charges ‖X‖₂; ours charges the curvature. Neither is always smaller: where few
    rows meet a strong ridge (n = 60, d = 19, Λ = 8) the corollary can win by a fifth.
    """
    rng = np.random.default_rng(seed)
    n, d, l2 = int(rng.integers(100, 300)), int(rng.integers(2, 20)), 10.0 ** rng.uniform(-2, 0.5)
    X = rng.standard_normal((n, d))
    X /= np.linalg.norm(X, axis=1, keepdims=True)
    y = np.where(X @ rng.standard_normal(d) + rng.standard_normal(n) > 0, 1.0, -1.0)[:, None]
    if abs(y.sum()) > n - 8:
        return
    rows, state = fitted(X, y, l2=l2, tolerance=1e-3)
    gone = rng.choice(n, size=int(rng.integers(1, 4)), replace=False)
    keep = np.setdiff1d(np.arange(n), gone)
    if abs(y[keep].sum()) == len(keep):
        return
    try:
        weights, bound = data_free(state, rows, gone)
    except NeedsRetainedData:
        return
    truth = minimiser(X[keep], y[keep], np.ones(len(keep)), "logistic", l2, False)
    delta = weights - state.weights
    corollary = guo_corollary1(0.25, np.linalg.norm(X[keep], 2), delta, X[keep] @ delta) / l2
    assert np.linalg.norm(weights - truth) <= bound <= corollary


def test_sequence_equals_batch():
    X, y = digits38()
    rows, state = fitted(X, y, tolerance=1e-7)
    left, one = rows, state
    for i in range(30):
        left = left.without(np.array([i]))
        one, _ = unlearn(one, rows.take(np.array([i])), left)
    batch, _ = unlearn(state, rows.take(np.arange(30)), left)
    assert np.linalg.norm(one.weights - batch.weights) <= 2e-7
    assert one.count == batch.count == len(X) - 30


@pytest.mark.parametrize("loss", LOSSES)
def test_sparse_equals_dense(loss):
    X, target, _, _, _, _ = problem(7, loss)
    X = np.where(np.abs(X) < 0.5 * np.abs(X).max(), 0.0, X)
    dense = fitted(X, target, loss, intercept=True, tolerance=1e-4)
    sparse = fitted(sp.csr_array(X), target, loss, intercept=True, tolerance=1e-4)
    np.testing.assert_allclose(dense[1].weights, sparse[1].weights, atol=1e-8, rtol=1e-8)
    gone = np.array([5])
    a, _ = unlearn(dense[1], dense[0].take(gone), dense[0].without(gone))
    b, _ = unlearn(sparse[1], sparse[0].take(gone), sparse[0].without(gone))
    np.testing.assert_allclose(a.weights, b.weights, atol=1e-4)


def test_batch_down_to_the_last_row_of_a_class():
    X, y = digits38()
    rows, state = fitted(X, y, tolerance=1e-6, intercept=True)
    positive = np.flatnonzero(y[:, 0] > 0)
    left = rows.without(positive[1:])
    new, trace = unlearn(state, rows.take(positive[1:]), left)
    assert trace.distance <= 1e-6
    with pytest.raises(LastOfClass, match="class without rows"):
        unlearn(new, rows.take(positive[:1]), left.without(positive[:1]))


def test_refusals_change_nothing():
    X, y = digits38()
    rows, state = fitted(X, y, tolerance=1e-8)
    with pytest.raises(NeedsRetainedData, match="Nothing was changed"):
        unlearn(state, rows.take(TEN))
    with pytest.raises(RetainedMismatch, match="347"):
        unlearn(state, rows.take(TEN), rows)
    again, _ = unlearn(state, rows.take(TEN), rows.without(TEN))
    assert again.count == 347
    assert state.count == 357


def test_wrong_retained_rows_are_noticed():
    X, y = digits38()
    rows, state = fitted(X, y, tolerance=1e-8)
    for wrong in (np.arange(20, 30), np.arange(100, 110)):
        with pytest.raises(RetainedMismatch, match="gradient"):
            unlearn(state, rows.take(TEN), rows.without(wrong))


def test_stale_factor_and_wrong_hessian_stay_within_the_bound():
    """An anchor far away is charged for: the bound holds or refuses, it never shrinks."""
    X, y = digits38()
    rows, state = fitted(X, y, tolerance=1e-3)
    _, near = fitted(X, y, l2=1.05)
    part = state.parts[0]
    stale = replace(
        state, parts=(replace(part, anchor=near.parts[0].anchor + 0.0, curvature=part.curvature),)
    )
    _, bound = data_free(stale, rows, np.array([0]))
    assert bound > data_free(state, rows, np.array([0]))[1]


def test_unreachable_tolerance_says_what_can_be_reached():
    X, y = digits38()
    with pytest.raises(ToleranceUnreachable, match="raise sigma at least"):
        fitted(X, y, tolerance=1e-15)


@pytest.mark.parametrize("l2", [0.0, -1.0, np.inf, np.nan])
def test_penalty_must_be_positive(l2):
    X, y = digits38()
    with pytest.raises(InvalidInput, match="penalty"):
        fitted(X, y, l2=l2)


def test_states_show_no_secrets():
    X, y = digits38()
    rows, state = fitted(X, y)
    assert repr(state) == "State(loss='logistic', 357 rows retained, sealed)"
    assert str(state.weights[0, 0])[:6] not in repr((state, rows, state.parts))


def test_a_gradient_of_zero_below_the_rounding_floor_is_refused():
    """Balanced labels on equal rows: the minimiser is 0 and nothing is left but rounding."""
    X = np.ones((8, 1))
    y = np.tile([[1.0], [-1.0]], (4, 1))
    rows, state = fitted(X, y, tolerance=1e-3)
    tight = replace(state, tolerance=1e-30)
    with pytest.raises(ToleranceUnreachable):
        unlearn(tight, rows.take(np.arange(2)), rows.without(np.arange(2)))


def test_sparse_single_precision_has_double_precision_norms():
    X = np.random.default_rng(0).standard_normal((50, 4)).astype(np.float32)
    y = np.where(X[:, :1] > 0, 1.0, -1.0)
    for scale in (1e-25, 1.0, 1e25):
        scaled = X * np.float32(scale)
        dense = make_rows(scaled, y, intercept=False)
        sparse = make_rows(sp.csr_array(scaled), y, intercept=False)
        np.testing.assert_allclose(dense.norm, sparse.norm, rtol=1e-14)


def test_saturated_softmax_keeps_its_curvature():
    X = np.array([[1.0], [1.0]])
    W = np.array([[40.0, 0.0]])
    rows = make_rows(X, np.eye(2), intercept=False)
    exact = 2 * np.exp(-40.0) / (1 + np.exp(-40.0)) ** 2
    hessian = evaluate(rows, SOFTMAX, W, hessian=True).hessian
    V = curvature_rows(rows, SOFTMAX, W)
    for found in (hessian, V.T @ V):
        np.testing.assert_allclose(found, exact * np.array([[1, -1], [-1, 1]]), rtol=1e-12)


def test_large_batches_need_no_large_arrays():
    X, y = digits10()
    rows, state = fitted(X, y, "softmax", tolerance=1e-3)
    gone = np.arange(900)
    new, _ = unlearn(state, rows.take(gone), rows.without(gone))
    again = fit(rows.without(gone), loss="softmax", l2=1.0, tolerance=1e-3, classes=True)[0]
    assert np.linalg.norm(new.weights - again.weights) <= 2e-3


def test_ridge_forgets_nearly_everybody_from_its_state():
    rng = np.random.default_rng(0)
    X, y = rng.standard_normal((1000, 10)), rng.standard_normal((1000, 1))
    rows, state = fitted(X, y, "squared", tolerance=1e-6, intercept=True)
    for i in range(950):
        state, trace = unlearn(state, rows.take(np.array([i])))
        assert trace.path == "bounded"
    truth = minimiser(X[950:], y[950:], np.ones(50), "squared", 1.0, True)
    assert np.linalg.norm(state.weights - truth) <= state.bound <= 1e-6


@pytest.mark.parametrize("intercept", [True, False])
@pytest.mark.parametrize("loss", ["logistic", "poisson", "gamma"])
def test_several_targets_have_each_their_own_curvature(loss, intercept):
    """As columns of one target they are separate problems, and not one with the first's Hessian."""
    rng = np.random.default_rng(0)
    X, gone = rng.standard_normal((80, 4)), np.arange(6)
    score = X @ rng.standard_normal((4, 3)) + [-1.0, 0.0, 2.0]
    target = {
        "logistic": np.where(score + rng.standard_normal(score.shape) > 0, 1.0, -1.0),
        "poisson": rng.poisson(np.exp(score)) * 1.0,
        "gamma": np.exp(score) * rng.gamma(2.0, 0.5, score.shape),
    }[loss]
    rows, state = fitted(X, target, loss, tolerance=1.0, intercept=intercept)
    free = unlearn(state, rows.take(gone))[0]
    measured = unlearn(replace(state, tolerance=1e-3), rows.take(gone), rows.without(gone))[0]
    for found, start in ((state, 0), (free, 6), (measured, 6)):
        keep = np.arange(start, 80)
        truth = [
            minimiser(X[keep], target[keep][:, [k]], np.ones(len(keep)), loss, 1.0, intercept)
            for k in range(3)
        ]
        assert np.linalg.norm(found.weights - np.hstack(truth)) <= found.bound + 1e-14


@pytest.mark.parametrize("scale", [1e-250, 1e-100, 1e100, 1e150])
@pytest.mark.parametrize("loss", ["squared", "poisson", "gamma", "huber"])
def test_numbers_that_overflow_are_refused_without_a_warning(loss, scale):
    rng = np.random.default_rng(0)
    X, y = rng.standard_normal((60, 3)), rng.gamma(2.0, 1.0, (60, 1))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for features, target in ((scale * X, y), (X, scale * y)):
            with suppress(ToleranceUnreachable):
                assert fitted(features, target, loss, tolerance=1e-4)[1].bound <= 1e-4


def test_a_minimiser_that_overflows_is_refused():
    X, y = load_diabetes(return_X_y=True)
    with pytest.raises(ToleranceUnreachable, match="float64 cannot locate the minimiser"):
        fitted(X, 1e200 * y[:, None], "squared")


@pytest.mark.parametrize("limited", [False, True])
@pytest.mark.parametrize("ends", [False, True])
def test_blas_gets_its_threads_back_whoever_leaves_last(ends, limited):
    """Two who overlap: while either computes there is one thread, afterwards all of them."""
    inside, both, left, over, seen = (*(threading.Event() for _ in range(4)), [])

    def threads():
        return [pool["num_threads"] for pool in threadpool_info() if pool["user_api"] == "blas"]

    def first():
        with single_threaded_blas():
            inside.set()
            both.wait(60)
        left.set()
        assert ends or over.wait(60)

    def second():
        inside.wait(60)
        with single_threaded_blas():
            both.set()
            one.join() if ends else left.wait(60)
            seen.append(threads())

    with threadpool_limits(3, "blas") if limited else nullcontext():
        before = threads()
        one, two = threading.Thread(target=first), threading.Thread(target=second)
        one.start()
        two.start()
        two.join()
        seen.append(threads())
        over.set()
        one.join()
    assert seen == [[1] * len(before), before]
