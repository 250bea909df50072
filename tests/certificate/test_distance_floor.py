"""The floor under the curvature of wide models, against dense eigenvalues and true minimisers."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy.linalg import qr
from scipy.special import expit, softmax

from expunge.certificate import distance
from expunge.certificate.curvature import Point
from expunge.certificate.distance import MAX_DIRECT, distance_bound
from expunge.certificate.floor import (
    curvature_floor,
    floor_bound,
    least_between,
    scalar_floors,
    softmax_floor,
)
from expunge.certificate.residual import Rows, gradient
from oracles import derivatives, minimiser

Array = NDArray[np.float64]
LOSSES = ["logistic", "softmax", "logistic-ovr", "squared", "poisson", "gamma"]


def problem(rng: np.random.Generator, loss: str, n: int, d: int, scale: float = 1.0) -> Rows:
    outputs = {"softmax": 3, "logistic-ovr": 3, "squared": 2}.get(loss, 1)
    X = scale * rng.normal(size=(n, d)) * rng.uniform(0.1, 2, size=d)
    scores = np.clip(X @ rng.normal(size=(d, outputs)) + rng.normal(size=(n, outputs)), -3, 3)
    target = {
        "softmax": np.eye(outputs)[scores.argmax(axis=1)],
        "squared": scores,
        "poisson": rng.poisson(np.exp(scores)).astype(float),
        "gamma": rng.gamma(2.0, np.exp(scores)) + 1e-3,
    }.get(loss, np.where(scores > 0, 1.0, -1.0))
    if loss == "softmax":
        target[:3] = np.eye(3)[: len(target)]
    if loss in ("logistic", "logistic-ovr"):
        target[0], target[-1] = 1.0, -1.0
    return Rows(X, target, rng.uniform(0.5, 2, n))


def centred(W: Array, loss: str) -> Array:
    if loss == "softmax":
        W = W.copy()
        W[-1] -= W[-1].mean()
    return W


@settings(max_examples=200, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    n=st.integers(1, 30),
    d=st.integers(1, 6),
    l2=st.sampled_from([1e-3, 1.0, 100.0]),
    spread=st.sampled_from([0.0, 3.0, 30.0]),
    offset=st.sampled_from([0.0, 5.0]),
)
def test_floor_is_below_the_least_eigenvalue(
    seed: int, n: int, d: int, l2: float, spread: float, offset: float
) -> None:
    """Weights from e^-30 to e^30, features far from centred: still a lower bound."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, d)) + offset
    h = np.exp(spread * rng.uniform(-1, 1, n))
    Z = np.column_stack([X, np.ones(n)])
    hessian = (Z.T * h) @ Z + np.diag(np.r_[np.full(d, l2), 0.0])
    found = curvature_floor(l2, float(h.sum()), float(h @ (X * X).sum(axis=1)))
    size = float(np.linalg.norm(hessian, 2))
    assert 0 < found <= np.linalg.eigvalsh(hessian)[0] + 1e-14 * d * size
    assert found <= l2


@settings(max_examples=200, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    n=st.integers(2, 20),
    d=st.integers(1, 4),
    outputs=st.integers(2, 5),
    l2=st.sampled_from([1e-3, 1.0, 100.0]),
    spread=st.sampled_from([0.1, 2.0, 12.0]),
    rare=st.sampled_from([0.0, 10.0, 20.0]),
)
def test_softmax_floor_is_below_the_least_eigenvalue(
    seed: int, n: int, d: int, outputs: int, l2: float, spread: float, rare: float
) -> None:
    """Over all U and all v that sum to zero; ``rare`` makes one class e^-rare times as likely."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, d)) + 1.0
    p = softmax(spread * rng.normal(size=(n, outputs)) - rare * np.eye(outputs)[0], axis=1)
    hessian = np.zeros(((d + 1) * outputs,) * 2)
    others = p @ (1 - np.eye(outputs))
    for x, chance, rest in zip(np.column_stack([X, np.ones(n)]), p, others, strict=True):
        between = np.outer(chance, chance)
        np.fill_diagonal(between, -chance * rest)  # without the cancellation of p − p²
        hessian -= np.kron(np.outer(x, x), between)
    hessian[: d * outputs, : d * outputs] += l2 * np.eye(d * outputs)
    basis = np.eye(d * outputs + outputs)[:, :-1]
    basis[d * outputs :, d * outputs :] = np.linalg.svd(np.ones((1, outputs)))[2][1:].T
    reach = float(2 * (p * others).max(axis=1) @ (X * X).sum(axis=1))
    found = curvature_floor(l2, least_between(p.T @ p, 1e-14), reach)
    restricted = np.linalg.eigvalsh(basis.T @ hessian @ basis)
    assert found <= restricted[0] + 1e-14 * len(hessian) * restricted[-1]


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("offset", [0.0, 3.0])
def test_floors_of_a_point_are_below_its_hessian(loss: str, offset: float) -> None:
    """Features that are all alike make the floor sharp for scalar losses and for two classes."""
    rng = np.random.default_rng(10)
    rows = problem(rng, loss, 60, 1)
    outputs = min(2, rows.outputs)
    rows = Rows(offset + 0.01 * rng.normal(size=(60, 1)), rows.target[:, :outputs], rows.weight)
    W = 0.3 * rng.normal(size=(2, outputs))
    point = Point(rows, W, gradient(rows, W, loss, 1.0, True), loss, 1.0, True, True)
    Z = np.column_stack([rows.features, np.ones(60)]).astype(np.longdouble)
    penalty = np.array([[1.0], [0.0]])
    if loss == "softmax":
        difference = Z @ np.diff(W, axis=1)
        second = rows.weight * expit(difference[:, 0]) * expit(-difference[:, 0])
        exact = [2 * (Z.T * second) @ Z + np.diag(penalty[:, 0])]  # along (u, −u)/√2
        found = [softmax_floor(point)]
    else:
        columns = [rows.target[:, [k]] for k in range(outputs)]
        one = loss.removesuffix("-ovr")
        parts = [
            derivatives(Z, y, rows.weight, one, penalty, W[:, [k]]) for k, y in enumerate(columns)
        ]
        exact = [hessian for _, hessian in parts]
        found = scalar_floors(point)
    for kappa, hessian in zip(found, exact, strict=True):
        least = float(np.linalg.eigvalsh(hessian.astype(float))[0])
        assert 0.8 * least <= kappa <= least


@pytest.mark.parametrize("loss", LOSSES)
def test_the_error_of_the_gradient_is_in_the_bound_and_absent_rows_are_not(loss: str) -> None:
    rng = np.random.default_rng(11)
    rows = problem(rng, loss, 60, 2)
    W = np.zeros((3, rows.outputs))
    found = gradient(rows, W, loss, 2.0, True)
    errors = np.full(W.shape, 1e-4)
    exact = replace(found, value=0 * W, errors=errors, error=float(np.linalg.norm(errors)))
    point = Point(rows, W, exact, loss, 2.0, True, True)
    assert exact.error / 2.0 <= floor_bound(point) < math.inf
    features, target = np.vstack([rows.features, [1e3, 0]]), rows.target[[*range(60), 0]]
    far = Rows(features, target, np.r_[rows.weight, 0.0])
    assert gradient(far, W, loss, 2.0, True).widest == found.widest


@pytest.mark.parametrize("loss", ["logistic", "softmax", "logistic-ovr"])
@pytest.mark.parametrize("direct", [0, MAX_DIRECT])
def test_bound_is_attained_where_the_curvature_fades(
    loss: str, direct: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A million rows of one class against one: between here and the optimum H falls by e^−2."""
    monkeypatch.setattr(distance, "MAX_DIRECT", direct)
    target = np.eye(2) if loss == "softmax" else np.array([[1.0], [-1.0]])
    rows = Rows(np.zeros((2, 1)), target, np.array([1e6, 1.0]))
    share = np.array([[0.5, -0.5]]) if loss == "softmax" else np.ones((1, 1))
    best = np.log(1e6) * share
    W = np.vstack([np.zeros_like(share), best - 2 * share])
    truth = 2 * float(np.linalg.norm(share))
    assert truth <= distance_bound(rows, W, loss, 1e6, True).bound <= 1.01 * truth


def test_floor_without_the_reach_of_the_features_is_violated() -> None:
    """Negative control: min(Λ, β) is no bound, since features and intercept work together."""
    X = np.full((100, 1), 3.0)
    Z = np.column_stack([X, np.ones(100)])
    hessian = Z.T @ Z + np.diag([1.0, 0.0])
    least = np.linalg.eigvalsh(hessian)[0]
    assert curvature_floor(1.0, 100.0, 0.0) > 5 * least
    assert 0.99 * least <= curvature_floor(1.0, 100.0, 900.0) <= least


def test_between_is_sharp_and_serves_rare_classes() -> None:
    even = np.full((4, 4), 10.0)
    assert least_between(even, 0.0) == pytest.approx(40.0)
    for rare in (1e-3, 1e-12, 1e-40):
        shared = np.array([[9.0, 100.0, rare], [100.0, 9.0, rare], [rare, rare, 9.0]])
        exact = 3 * rare  # the direction (1, 1, −2), to first order in rare
        assert 0.3 * exact <= least_between(shared, 0.0) <= exact
    split = np.kron(np.eye(2), np.ones((2, 2)))
    assert least_between(split, 0.0) < 1e-14
    assert least_between(np.zeros((3, 3)), 0.0) == 0.0
    assert least_between(even, 1.0) == 0.0


@settings(max_examples=150, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    loss=st.sampled_from(LOSSES),
    n=st.integers(3, 40),
    d=st.integers(1, 5),
    l2=st.sampled_from([0.1, 1.0, 30.0]),
    scale=st.sampled_from([0.05, 1.0, 3.0]),
    step=st.sampled_from([0.0, 1e-10, 1e-5, 1e-3, 1e-2]),
)
def test_bound_from_the_floor_is_never_below_the_true_distance(
    seed: int, loss: str, n: int, d: int, l2: float, scale: float, step: float
) -> None:
    rng = np.random.default_rng(seed)
    rows = problem(rng, loss, n, d, scale)
    optimum = minimiser(rows.features, rows.target, rows.weight, loss, l2, True)
    W = centred(optimum + step * rng.normal(size=optimum.shape), loss)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(distance, "MAX_DIRECT", 0)
        found = distance_bound(rows, W, loss, l2, True)
    truth = float(np.linalg.norm(W - centred(optimum, loss)))
    assert truth <= found.bound + 1e-13 * (1 + np.linalg.norm(W))


@pytest.mark.parametrize("loss", LOSSES)
def test_bound_from_the_floor_is_not_silly(loss: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows shorter than 1 and a penalty of the size of the curvature: within a small factor."""
    monkeypatch.setattr(distance, "MAX_DIRECT", 0)
    rng = np.random.default_rng(4)
    rows = problem(rng, loss, 100, 4, 0.3)
    optimum = minimiser(rows.features, rows.target, rows.weight, loss, 30.0, True)
    W = centred(optimum + 1e-6 * rng.normal(size=optimum.shape), loss)
    truth = float(np.linalg.norm(W - centred(optimum, loss)))
    bound = distance_bound(rows, W, loss, 30.0, True).bound
    assert truth <= bound <= 25 * truth


def test_bound_from_the_floor_holds_with_an_l1_penalty(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(distance, "MAX_DIRECT", 0)
    rng = np.random.default_rng(5)
    rows = problem(rng, "squared", 60, 4)
    optimum = minimiser(rows.features, rows.target, rows.weight, "squared", 1.0, True, 20.0)
    W = optimum + 1e-4 * rng.normal(size=optimum.shape)
    found = distance_bound(rows, W, "squared", 1.0, True, l1=20.0)
    assert np.linalg.norm(W - optimum) <= found.bound < math.inf


@pytest.mark.parametrize("loss", ["logistic", "softmax", "logistic-ovr", "squared"])
@pytest.mark.parametrize("intercept", [False, True])
def test_wide_rows_against_the_minimiser(loss: str, intercept: bool) -> None:
    """More than `MAX_DIRECT` features: the minimiser lies in the span of the rows."""
    rng = np.random.default_rng(6)
    n, d = 40, MAX_DIRECT + 1000
    narrow = problem(rng, loss, n, 2)
    X = sp.random_array((n, d), density=0.01, rng=rng, format="csr")
    X = sp.csr_array(X / np.sqrt((X.toarray() ** 2).sum(axis=1))[:, None])
    basis, triangle = qr(X.toarray().T, mode="economic")
    optimum = minimiser(triangle.T, narrow.target, narrow.weight, loss, 1.0, intercept)
    wide = basis @ optimum[:n]
    optimum = np.vstack([wide, optimum[n:]]) if intercept else wide
    W = centred(optimum + 1e-9 * rng.normal(size=optimum.shape), loss if intercept else "")
    found = distance_bound(Rows(X, narrow.target, narrow.weight), W, loss, 1.0, intercept)
    truth = float(np.linalg.norm(W - centred(optimum, loss if intercept else "")))
    assert truth <= found.bound <= 400 * truth


def test_extreme_imbalance_still_shows_something(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three rows of a class against ten thousand of two others."""
    monkeypatch.setattr(distance, "MAX_DIRECT", 0)
    rng = np.random.default_rng(7)
    X = 0.1 * rng.normal(size=(10_000, 3))
    label = rng.integers(0, 2, 10_000)
    label[:3] = 2
    rows = Rows(X, np.eye(3)[label], np.ones(len(X)))
    optimum = centred(minimiser(X, rows.target, rows.weight, "softmax", 1.0, True), "softmax")
    W = centred(optimum + 1e-7 * rng.normal(size=optimum.shape), "softmax")
    truth = float(np.linalg.norm(W - optimum))
    assert truth <= distance_bound(rows, W, "softmax", 1.0, True).bound < 0.1


def test_an_intercept_off_the_gauge_is_added(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(distance, "MAX_DIRECT", 0)
    rows = problem(np.random.default_rng(8), "softmax", 200, 3)
    optimum = minimiser(rows.features, rows.target, rows.weight, "softmax", 1.0, True)
    shifted = centred(optimum, "softmax")
    shifted[-1] += 0.01
    assert distance_bound(rows, shifted, "softmax", 1.0, True).bound >= 0.01 * math.sqrt(3)


def test_a_class_without_rows_shows_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its intercept has no minimiser: however far out, there is no floor."""
    monkeypatch.setattr(distance, "MAX_DIRECT", 0)
    rng = np.random.default_rng(9)
    rows = Rows(rng.normal(size=(50, 2)), np.eye(3)[rng.integers(0, 2, 50)], np.ones(50))
    for far in (5.0, 30.0, 800.0):
        W = np.vstack([np.zeros((2, 3)), [far / 3, far / 3, -2 * far / 3]])
        assert distance_bound(rows, W, "softmax", 1.0, True).bound == math.inf
