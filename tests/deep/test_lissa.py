"""LiSSA: the bias it is known to have, and that no wrong scale goes unnoticed."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from deep_example import CASES, CE, Dense, mlp, relative, words
from expunge.deep.curvature import KINDS, Operator
from expunge.deep.inverse import NotConverged, lissa
from expunge.deep.network import view
from expunge.errors import InvalidInput

LAMBDA = 0.5


@pytest.fixture(autouse=True, scope="module")
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def setting(kind="ggn", wd=0.0, rows=11, dtype=torch.float64):
    """Return an operator on the MLP, its dense matrix without λ, and a right-hand side."""
    case = mlp(dtype)
    generator = torch.Generator().manual_seed(5)
    X = torch.randn(rows, 4, generator=generator).to(dtype)
    y = torch.randint(3, (rows,), generator=generator)
    case = type(case)(case.module, X, y, CE)
    net = view(case.module)
    operator = Operator(kind, net, CE, case.data, wd=wd)
    dense = Dense(case).matrix(kind) + wd * torch.eye(net.size, dtype=dtype)
    return operator, dense, torch.randn(net.size, generator=generator).to(dtype)


@settings(max_examples=20, deadline=None)
@given(
    depth=st.integers(1, 60),
    damping=st.floats(0.05, 5),
    stretch=st.floats(1.1, 20),
    kind=st.sampled_from(["ggn", "hessian"]),
    wd=st.floats(0, 1),
)
def test_the_bias_of_the_full_batch(depth, damping, stretch, kind, wd):
    operator, H, b = setting(kind, wd)
    A = H + damping * torch.eye(len(b), dtype=torch.float64)
    scale = stretch * float(torch.linalg.eigvalsh(A).abs().max())
    solver = lissa(damping, scale=scale, depth=depth, batch=None, repeats=1)
    found = solver.solve(operator, b, strict=False)
    x = torch.linalg.solve(A, b)
    step = torch.eye(len(b), dtype=torch.float64) - A / scale
    if found.status != "diverged":
        bias = torch.linalg.matrix_power(step, depth + 1) @ x
        size = max(float(x.norm()), float(bias.norm()))
        assert float((x - found.value - bias).norm()) < 1e-10 * size
        assert found.residual == pytest.approx(relative(A @ found.value, b), rel=1e-9)
        assert found.products == depth + 1


def test_the_depth_for_a_tolerance():
    operator, H, b = setting()
    A = H + LAMBDA * torch.eye(len(b), dtype=torch.float64)
    short = lissa(LAMBDA, batch=None, repeats=1, depth=5, tol=1e-3).solve(operator, b, strict=False)
    assert short.status == "not_converged"
    depth = short.info["depth_for_tol"]
    deep = lissa(LAMBDA, batch=None, repeats=1, depth=depth, tol=1e-3).solve(operator, b)
    assert relative(deep.value, torch.linalg.solve(A, b)) < 1e-3
    assert math.isnan(deep.info["standard_error"])


@pytest.mark.parametrize("kind", KINDS)
def test_mini_batches_come_near_the_dense_inverse(kind):
    operator, H, b = setting(kind, wd=0.1, rows=40)
    A = H + LAMBDA * torch.eye(len(b), dtype=torch.float64)
    found = lissa(LAMBDA, depth=150, repeats=8, batch=10, tol=0.1).solve(operator, b)
    error = relative(found.value, torch.linalg.solve(A, b))
    assert error < 0.1
    # the error is that of the mean of the repeats, as far as a standard error of eight tells
    assert error < 3.0 * found.info["standard_error"] + found.residual
    assert found.info["batch_norm"] > float(torch.linalg.eigvalsh(H)[-1])
    assert found.info["scale"] == pytest.approx(2.0 * (found.info["batch_norm"] + LAMBDA))


@pytest.mark.parametrize("name", ["attention", "words", "cnn"])
def test_other_networks_and_several_columns(name):
    case = CASES[name]()
    net = view(case.module)
    b = torch.randn(net.size, 2, dtype=torch.float64) * torch.tensor([1e-9, 1e6])
    found = lissa(2.0, depth=60, repeats=4, batch=8, tol=0.2).solve(
        Operator("ggn", net, CE, case.data), b
    )
    A = Dense(case).ggn() + 2.0 * torch.eye(net.size, dtype=torch.float64)
    for x, c in zip(found.value.T, b.T, strict=True):
        assert relative(A @ x, c) < 0.2


def test_single_precision():
    operator, _, b = setting(dtype=torch.float32, rows=30)
    found = lissa(LAMBDA, depth=100, repeats=3).solve(operator, b)
    double = operator.exact()(found.value) + LAMBDA * found.value
    assert found.residual == pytest.approx(relative(double, b), rel=1e-6)


def test_the_seed_decides():
    operator, _, b = setting()
    runs = [
        lissa(LAMBDA, depth=20, repeats=2, seed=s).solve(operator, b, strict=False)
        for s in (0, 0, 1)
    ]
    assert torch.equal(runs[0].value, runs[1].value)
    assert not torch.equal(runs[0].value, runs[2].value)


def test_the_norm_of_the_whole_as_scale_is_flagged():
    """N10: ‖H‖ is below the norm of mini-batches; the repeats may agree and be wrong together."""
    operator, H, b = setting(rows=200)
    whole = float(torch.linalg.eigvalsh(H)[-1])
    damping = 1e-3
    solver = lissa(damping, scale=whole, batch=2, depth=300, repeats=4)
    found = solver.solve(operator, b, strict=False)
    assert found.status != "ok"
    assert not found.residual <= solver.tol
    with pytest.raises(NotConverged):
        solver.solve(operator, b)


def test_agreement_of_the_repeats_is_no_proof():
    operator, H, b = setting(rows=100)
    damping = 1e-3
    A = H + damping * torch.eye(len(b), dtype=torch.float64)
    solver = lissa(damping, scale=200.0, batch=10, depth=100, repeats=10)
    with pytest.raises(NotConverged, match="above the tolerance") as caught:
        solver.solve(operator, b)
    found = caught.value.solution
    assert found.info["standard_error"] < 0.05
    assert relative(found.value, torch.linalg.solve(A, b)) > 0.5
    assert found.residual > 0.2


def test_too_small_a_scale_raises_and_is_never_nan():
    operator, H, b = setting()
    norm = float(torch.linalg.eigvalsh(H)[-1])
    for share in (0.4, 0.05, 1e-3):
        solver = lissa(0.1, scale=share * norm, batch=None, depth=3000, repeats=1)
        with pytest.raises(NotConverged, match="larger scale") as caught:
            solver.solve(operator, b)
        found = caught.value.solution
        assert found.status == "diverged"
        assert bool(torch.isfinite(found.value).all())
        assert found.products < 3000


def test_a_scale_that_was_measured_is_doubled_when_it_was_too_small(monkeypatch):
    operator, H, b = setting()
    norm = float(torch.linalg.eigvalsh(H)[-1])
    monkeypatch.setattr(lissa, "_norm", lambda *_: 0.01 * norm)
    solver = lissa(0.1, batch=None, depth=400, repeats=1)
    found = solver.solve(operator, b)
    ratio = found.info["scale"] / (2.0 * (0.01 * norm + 0.1))
    assert ratio >= 2.0
    assert math.log2(ratio) == round(math.log2(ratio))
    fewer = lissa(0.1, batch=None, depth=400, repeats=1, doublings=0)
    assert fewer.solve(operator, b, strict=False).status == "diverged"


def test_an_operation_without_a_batching_rule_is_done_one_by_one(monkeypatch):
    operator, _, b = setting()
    solver = lissa(LAMBDA, depth=10, repeats=2)
    expected = solver.solve(operator, b, strict=False)

    def fails(_):
        def call(*_):
            raise RuntimeError("no batching rule")

        return call

    monkeypatch.setattr(torch.func, "vmap", fails)
    assert relative(solver.solve(operator, b, strict=False).value, expected.value) < 1e-12


def test_what_is_refused():
    operator, _, b = setting()
    with pytest.raises(InvalidInput, match="above 0"):
        lissa().solve(operator, b)
    for scale in (0.0, -1.0, math.nan):
        with pytest.raises(InvalidInput, match="scale"):
            lissa(1.0, scale=scale).solve(operator, b)
    for wrong in ({"repeats": 0}, {"depth": 0}, {"batch": 0}):
        with pytest.raises(InvalidInput, match="at least 1"):
            lissa(1.0, **wrong).solve(operator, b)
    with pytest.raises(InvalidInput, match="tol"):
        lissa(1.0, tol=0.0).solve(operator, b)
    case = words()
    batched = [({k: v[:6] for k, v in case.inputs.items()}, case.targets[:6])] * 2
    stream = Operator("ggn", view(case.module), CE, batched)
    with pytest.raises(InvalidInput, match="in batches only"):
        lissa(1.0).solve(stream, torch.zeros(stream.size))
