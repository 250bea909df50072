"""Models without a Hessian, and elastic nets: against retraining, and the parts of the method."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sklearn.datasets import load_diabetes

from expunge.errors import (
    InvalidInput,
    NeedsRetainedData,
    RetainedMismatch,
    ToleranceUnreachable,
)
from expunge.linear import descent, objective
from expunge.linear.bounds import floor_without_hessian
from expunge.linear.engine import fit, unlearn
from expunge.linear.lasso import lasso
from expunge.linear.losses import LOSSES as TABLE
from expunge.linear.objective import objective_of, penalised, value_of
from expunge.linear.passes import curvature_sums, evaluate, hessian_diagonal, hessian_product
from expunge.linear.rows import make_rows
from oracles import digits38, iris, minimiser
from random_problems import assert_no_understatement, problem

CONCORDANT = ("logistic", "softmax", "logistic-ovr", "squared", "poisson", "gamma")
ALL = (*CONCORDANT, "squared-hinge", "huber")
PATHS = {"dense": (0, objective.MAX_DIRECT, 1024), "heavy": (0, 0, 3)}


@pytest.fixture(params=PATHS)
def matrix_free(request, monkeypatch):
    """Let no Hessian be formed, however small."""
    direct, dense, heavy = PATHS[request.param]
    monkeypatch.setattr(objective, "MAX_DIRECT", direct)
    monkeypatch.setattr(descent, "MAX_DIRECT", dense)
    monkeypatch.setattr(descent, "HEAVY", heavy)
    return request.param


def seeds(count):
    quick = {"deadline": None, "derandomize": True, "suppress_health_check": list(HealthCheck)}
    return lambda test: settings(max_examples=count, **quick)(
        given(seed=st.integers(0, 2**32))(test)
    )


@pytest.mark.parametrize("loss", ALL)
@seeds(100)
def test_no_distance_is_understated_without_a_hessian(matrix_free, loss, seed):
    assert_no_understatement(seed, loss)


@pytest.mark.parametrize("loss", ["squared-hinge", "huber"])
@seeds(300)
def test_no_distance_is_understated_with_kinks(loss, seed):
    assert_no_understatement(seed, loss)


@seeds(400)
def test_no_distance_of_an_elastic_net_is_understated(seed):
    assert_no_understatement(seed, "squared", l1=True)


def dense_hessian(rows, loss, W):
    """Return the unpenalised Hessian (Cp, Cp), class-major, whatever the loss."""
    found = evaluate(rows, loss, W, hessian=True).hessian
    return found if loss.coupled else np.kron(np.eye(W.shape[1]), found)


@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize(
    "loss", ["logistic", "softmax", "poisson", "gamma", "squared-hinge", "huber"]
)
@seeds(30)
def test_products_are_those_of_the_hessian(loss, sparse, seed):
    X, target, weight, _, intercept, rng = problem(seed, loss)
    X, target = X / np.abs(X).max(), target if loss == "softmax" else target[:, :1]
    rows = make_rows(sp.csr_array(X) if sparse else X, target, weight, intercept=intercept)
    W, V = rng.standard_normal((2, rows.width, target.shape[1]))
    H = dense_hessian(rows, TABLE[loss], W)
    expected = (H @ V.T.reshape(-1)).reshape(V.shape[::-1]).T
    found = hessian_product(rows, TABLE[loss], W, V)
    np.testing.assert_allclose(found, expected, atol=1e-10 * np.abs(H).max())
    diagonal = hessian_diagonal(rows, TABLE[loss], W)
    np.testing.assert_allclose(diagonal.T.ravel(), np.diagonal(H), atol=1e-12 * np.abs(H).max())


@pytest.mark.parametrize("loss", ["logistic", "softmax", "poisson", "gamma"])
@seeds(200)
def test_the_floor_is_below_every_eigenvalue(loss, seed):
    X, target, weight, l2, _, rng = problem(seed, loss)
    rows = make_rows(X, target, weight, intercept=True)
    W = rng.standard_normal((rows.width, target.shape[1])) / np.abs(X).max()
    size, matrix = curvature_sums(rows, TABLE[loss], W)
    coupled = TABLE[loss].coupled
    outputs = target.shape[1]
    H = dense_hessian(rows, TABLE[loss], W) + np.kron(
        np.eye(outputs), np.diag([l2] * (rows.width - 1) + [0.0])
    )
    if coupled:
        intercepts = np.arange(outputs) * rows.width + rows.width - 1
        H[np.ix_(intercepts, intercepts)] += np.trace(matrix)
        least = np.linalg.eigvalsh(matrix + np.trace(matrix))[0]
    else:
        least = np.diagonal(matrix).min()
    truth = np.linalg.eigvalsh(H)[0]
    floor = floor_without_hessian(l2, size, least)
    assert 0.0 <= floor <= truth + 1e-9 * np.abs(H).max()


def test_a_floor_that_ignores_the_features_would_be_false():
    """The control: min(Λ, m) is no lower bound once the intercept and the weights interact."""
    X = np.full((50, 1), 3.0)
    rows = make_rows(X, np.where(np.arange(50) % 2, 1.0, -1.0)[:, None], intercept=True)
    W = np.zeros((2, 1))
    size, matrix = curvature_sums(rows, TABLE["logistic"], W)
    H = dense_hessian(rows, TABLE["logistic"], W) + np.diag([1.0, 0.0])
    truth = np.linalg.eigvalsh(H)[0]
    assert floor_without_hessian(1.0, size, matrix[0, 0]) <= truth < min(1.0, matrix[0, 0])


@pytest.mark.parametrize("loss", ["logistic", "softmax", "squared-hinge", "huber", "squared"])
@seeds(40)
def test_the_majoriser_lowers_the_objective_from_anywhere(loss, seed):
    X, target, weight, l2, intercept, rng = problem(seed, loss)
    X = X / np.abs(X).max()
    target = target if loss == "softmax" else target[:, :1] / (np.abs(target).max() or 1.0)
    rows, found = (
        make_rows(X, target, weight, intercept=intercept),
        objective_of(loss, l2, intercept),
    )
    upper = descent.majorise(found, rows)
    W = 10.0 ** rng.uniform(-1, 2) * rng.standard_normal((rows.width, target.shape[1]))
    for _ in range(5):
        here = evaluate(rows, found.loss, W, value=True)
        W2 = W - upper.solve(found, penalised(found, W, here).gradient)
        there = evaluate(rows, found.loss, W2, value=True)
        before = value_of(found, W, here)
        assert value_of(found, W2, there) <= before + 1e-9 * (1 + abs(before))
        W = W2


def test_the_majoriser_takes_over_where_newton_finds_no_descent(monkeypatch):
    X, y = digits38()
    rows = make_rows(X, y, intercept=False)
    monkeypatch.setattr(objective, "MAX_DIRECT", 0)
    plain, solve = descent._solve, []

    def uphill(*arguments):
        step, products = plain(*arguments)
        solve.append(1)
        return (-step if len(solve) == 2 else step), products

    monkeypatch.setattr(descent, "_solve", uphill)
    state, _ = fit(rows, loss="logistic", l2=1.0, tolerance=1e-6, classes=True)
    truth = minimiser(X, y, np.ones(len(X)), "logistic", 1.0, False)
    assert np.linalg.norm(state.weights - truth) <= 1e-6


@seeds(200)
def test_lasso_meets_its_conditions(seed):
    rng = np.random.default_rng(seed)
    p = int(rng.integers(1, 30))
    half = rng.standard_normal((int(rng.integers(1, 40)), p)) * 10.0 ** rng.uniform(-1, 1, p)
    A = half.T @ half + 10.0 ** rng.uniform(-3, 1) * np.eye(p)
    g, w = rng.standard_normal((2, p)) * 10.0 ** rng.uniform(-2, 2)
    nu = np.where(rng.random(p) < 0.1, 0.0, 10.0 ** rng.uniform(-2, 2))
    x = lasso(A, g, w, nu)
    r, scale = g + A @ (x - w), 1e-9 * (np.abs(g) + np.abs(A) @ (np.abs(x) + np.abs(w)))
    assert (np.abs(r + nu * np.sign(x)) <= scale)[x != 0].all()
    assert (np.abs(r) <= nu + scale)[x == 0].all()


def test_vectors_t3():
    X, y = digits38()
    rows = make_rows(X, y, intercept=False)
    state, _ = fit(rows, loss="squared-hinge", l2=1.0, tolerance=1e-8, classes=True)
    assert np.linalg.norm(state.weights) == pytest.approx(6.16829015, rel=1e-8)
    ten = np.arange(10)
    new, _ = unlearn(state, rows.take(ten), rows.without(ten))
    assert np.linalg.norm(new.weights) == pytest.approx(6.15591573, rel=1e-8)
    assert np.linalg.norm(new.weights - state.weights) == pytest.approx(0.214314945, rel=1e-6)
    X, y = load_diabetes(return_X_y=True)
    rows = make_rows(X, y[:, None], intercept=False)
    state, _ = fit(rows, loss="squared", l2=2.21, l1=2.21, tolerance=1e-8, classes=False)
    assert state.bound <= 1e-8
    assert state.objective.l1 == 2.21


def test_kinks_refuse_a_free_intercept_and_l1_other_losses():
    X, y = digits38()
    for loss in ("squared-hinge", "huber"):
        with pytest.raises(InvalidInput, match="append a constant feature"):
            fit(make_rows(X, y), loss=loss, l2=1.0, tolerance=1e-3, classes=False)
    with pytest.raises(InvalidInput, match="goes with squared loss"):
        fit(make_rows(X, y), loss="logistic", l2=1.0, l1=1.0, tolerance=1e-3, classes=True)


def test_refusals_without_a_hessian(matrix_free):
    X, y = iris()
    rows = make_rows(X, y, intercept=False)
    state, _ = fit(rows, loss="softmax", l2=1.0, tolerance=1e-4, classes=True)
    gone = np.arange(3)
    with pytest.raises(NeedsRetainedData, match="Nothing was changed"):
        unlearn(state, rows.take(gone))
    with pytest.raises(RetainedMismatch, match="gradient"):
        unlearn(state, rows.take(gone), rows.without(np.arange(20, 23)))
    new, trace = unlearn(state, rows.take(gone), rows.without(gone))
    assert trace.passes > 0
    assert new.bound <= 1e-4


@pytest.mark.parametrize("loss", ["logistic", "softmax", "squared", "squared-hinge", "huber"])
def test_a_gradient_of_zero_is_the_end(matrix_free, loss):
    """Balanced labels on equal rows: the minimiser is 0, and only rounding stands in the bound."""
    two = np.tile([[1.0, -1.0], [-1.0, 1.0]], (4, 1))
    target = (two + 1.0) / 2.0 if loss == "softmax" else two
    rows = make_rows(np.ones((8, 1)), target, intercept=False)
    found, _ = fit(rows, loss=loss, l2=1.0, tolerance=1e-3, classes=False)
    assert not found.weights.any()
    with pytest.raises(ToleranceUnreachable):
        fit(rows, loss=loss, l2=1.0, tolerance=1e-30, classes=False)


def test_conjugate_gradients_end_where_the_preconditioner_sees_nothing():
    """It ignores what is common to the free intercepts of all classes, which rounding may leave."""
    X, y = iris()
    rows, here = make_rows(X, y), objective_of("softmax", 1.0, True)
    W = np.zeros((5, 3))
    P = descent.precondition(here, rows, W)
    point = penalised(here, W, evaluate(rows, here.loss, W))
    asked = []

    class Blind:
        def solve(self, found, V):
            asked.append(V)
            return P.solve(found, V) * (len(asked) == 1)

    step, products = descent._solve(here, rows, point, Blind(), 0.0)
    assert products == 1
    assert np.sum(step * point.gradient) < 0.0


def test_softmax_on_sparse_text_forms_nothing_large(monkeypatch):
    """60,000 coefficients: their Hessian would take 29 GB, a dense copy of the rows 0.1 GB."""
    rng = np.random.default_rng(0)
    X = sp.random_array((2000, 6000), density=0.01, rng=rng, format="csr")
    y = np.eye(10)[np.asarray(X @ rng.standard_normal((6000, 10))).argmax(axis=1)]
    rows = make_rows(sp.csr_array(X), y, intercept=True)
    monkeypatch.setattr(sp.csr_array, "toarray", None)
    state, _ = fit(rows, loss="softmax", l2=1.0, tolerance=1e-3, classes=True)
    gone = np.arange(7)
    new, _ = unlearn(state, rows.take(gone), rows.without(gone))
    again, _ = fit(rows.without(gone), loss="softmax", l2=1.0, tolerance=1e-3, classes=True)
    assert np.linalg.norm(new.weights - again.weights) <= 2e-3
