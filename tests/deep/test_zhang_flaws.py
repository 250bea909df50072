"""What is wrong with published code for this method: each flaw in a stub, and a check that sees it.

A check is a function of an implementation. It passes for ours and fails for the faulty stub.
"""

from __future__ import annotations

import copy
from dataclasses import replace

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression
from sklearn.preprocessing import StandardScaler
from torch import nn
from torch.nn import functional

from expunge.deep.curvature import product
from expunge.deep.inverse import cg, direct, lissa
from expunge.deep.measure import accuracy, membership
from expunge.deep.methods.retrain import Retrain
from expunge.deep.methods.zhang import Zhang
from expunge.deep.network import UnsupportedModel, view
from expunge.deep.problem import Problem, row_ids
from expunge.deep.training import Recipe, cross_entropy, train
from expunge.deep.zhang_claim import recheck
from expunge.errors import CertificateRefused, UnknownRecord, VerificationFailed
from expunge.guarantee import Grade

RECIPE = Recipe(lr=0.01, epochs=2, batch_size=32, weight_decay=1e-3, max_norm=8.0)
ENOUGH = 60.0


@pytest.fixture(autouse=True)
def _one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def rows(count=80):
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(count, 6, generator=generator, dtype=torch.float64)
    return x, torch.randint(0, 3, (count,), generator=generator)


def problem(net=None, **options):
    torch.manual_seed(0)
    net = net or nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))
    x, y = rows()
    trained = train(net.double(), (x, y), RECIPE)
    return Problem(
        trained, cross_entropy, (x[:10], y[:10]), (x[10:], y[10:]), train=RECIPE, **options
    )


def fails(check, stub):
    """Assert that a check sees the fault of a stub."""
    with pytest.raises((AssertionError, pytest.fail.Exception)):
        check(stub)


def objective(base, w):
    x, y = next(iter(base.retain.chunks(1000)))
    logits = view(base.model).outputs(w, x)
    return functional.cross_entropy(logits, y) + base.wd / 2 * w @ w


def newton(base, extra=lambda w: 0.0, damping=0.7):
    """Return w − (∇²(L_R + extra) + λI)⁻¹∇(L_R + extra), densely."""
    w = view(base.model).vector()

    def whole(v):
        return objective(base, v) + extra(v)

    H = torch.func.hessian(whole)(w) + damping * torch.eye(len(w), dtype=w.dtype)
    return w - torch.linalg.solve(H, torch.func.grad(whole)(w))


def test_z1_the_regulariser_is_lambda_times_the_identity():
    base = problem()

    def ours(b):
        return view(Zhang(damping=0.7, solver=direct(), sigma=0.0).unlearn(b).model).vector()

    def stub(b):
        """Add the sum of norms, not of squares, to the objective; nothing to the matrix."""
        shapes = view(b.model)
        return newton(
            b, lambda w: 0.7 * sum(p.norm() for p in shapes.unflatten(w).values()), damping=1e-6
        )

    def check(step):
        torch.testing.assert_close(step(base), newton(base), rtol=0, atol=1e-10)

    check(ours)
    fails(check, stub)


def test_z2_sequential_releases_are_noised():
    base, x, y = problem(), *rows()
    method = Zhang(solver=direct(), sigma=0.1)
    _, first = method.request(base)
    following = Problem(first.model, cross_entropy, (x[10:20], y[10:20]), (x[20:], y[20:]))
    following = replace(following, train=RECIPE)

    def ours():
        released, hidden = method.request(following, first)
        return released.model, hidden.model

    def stub():
        """Noise the tensors of a state dict that require gradients: none ever does."""
        _, hidden = method.request(following, first)
        state = hidden.model.state_dict()
        for name, value in state.items():
            if value.requires_grad:
                state[name] = value + 0.1 * torch.randn_like(value)
        released = copy.deepcopy(hidden.model)
        released.load_state_dict(state)
        return released, hidden.model

    def check(serve):
        pairs = list(zip(*(model.parameters() for model in serve()), strict=True))
        noise = [(got - was).detach().reshape(-1) for got, was in pairs]
        assert all(bool((part != 0).all()) for part in noise)
        assert 0.05 < float(torch.cat(noise).std()) < 0.15

    check(ours)
    fails(check, stub)


def test_z3_what_is_forgotten_was_trained_on():
    """Split off 20 % for validation with one seed, then forget rows of the whole with another."""
    x, y = rows()
    ids = row_ids((x, y))
    trained = np.random.default_rng(42).permutation(80)[:64]
    forget = np.random.default_rng(0).permutation(80)[:20]
    never = set(forget) - set(trained)
    assert never
    model = train(nn.Linear(6, 3).double(), (x[trained], y[trained]), RECIPE)
    left = np.setdiff1d(np.arange(80), forget)
    parts = (x[forget], y[forget]), (x[left], y[left])
    Problem(model, cross_entropy, *parts)  # without ids nobody can know
    with pytest.raises(UnknownRecord, match="never learned"):
        Problem(
            model,
            cross_entropy,
            *parts,
            trained_ids=[ids[i] for i in trained],
            forget_ids=[ids[i] for i in forget],
        )
    twice = [ids[trained[0]]] * 2
    with pytest.raises(UnknownRecord):
        Problem(
            model,
            cross_entropy,
            (x[trained[[0, 0]]], y[trained[[0, 0]]]),
            trained_ids=[ids[i] for i in trained],
            forget_ids=twice,
        )


def test_z4_an_attack_is_scored_on_rows_it_was_not_fitted_on():
    """The model knows neither side, so nothing better than guessing is true."""
    generator = torch.Generator().manual_seed(2)
    x = torch.randn(2040, 6, generator=generator)
    y = torch.randint(0, 3, (2040,), generator=generator)
    torch.manual_seed(0)
    net = nn.Linear(6, 3)
    few, many = (x[:40], y[:40]), (x[40:], y[40:])

    def ours():
        return membership(net, few, many).accuracy

    def stub():
        """Fit and score on the same rows, 40 against 2,000."""
        features = StandardScaler().fit_transform(net(x).detach().numpy())
        labels = np.arange(2040) < 40
        attack = LogisticRegression(max_iter=500).fit(features, labels)
        return attack.score(StandardScaler().fit_transform(features), labels)

    def check(attack):
        assert 0.3 < attack() < 0.7

    check(ours)
    fails(check, stub)


def test_z5_scoring_is_in_eval_mode():
    net = nn.Sequential(nn.Linear(6, 6), nn.BatchNorm1d(6), nn.Dropout(0.5), nn.Linear(6, 3))
    data = rows()
    net.double().train()

    def stub(model, data):
        """Score as it comes, batch by batch."""
        x, y = data
        right = [(model(a).argmax(1) == b).float() for a, b in zip(x.split(8), y.split(8))]  # noqa: B905
        return float(torch.cat(right).mean())

    def check(score):
        model = copy.deepcopy(net)
        before = copy.deepcopy(model.state_dict())
        values = {score(model, data) for _ in range(3)}
        assert len(values) == 1
        assert all(torch.equal(before[name], v) for name, v in model.state_dict().items())
        assert model.training

    check(accuracy)
    fails(check, stub)


def test_z6_buffers_are_not_released_as_they_were():
    net = nn.Sequential(nn.Linear(6, 6), nn.BatchNorm1d(6), nn.Linear(6, 3))
    with pytest.raises(UnsupportedModel, match="holds the forgotten records"):
        problem(copy.deepcopy(net))
    method = Zhang(solver=direct(), sigma=ENOUGH)

    def ours(base):
        return method.unlearn(base)

    def stub(base):
        """Noise the parameters, release the old running statistics, claim all the same."""
        found = method.unlearn(base)
        released = copy.deepcopy(found.model)
        released.load_state_dict({**found.model.state_dict(), **dict(base.model.named_buffers())})
        return replace(found, model=released)

    def check(serve):
        base = problem(copy.deepcopy(net), buffers="reestimate")
        found = serve(base)
        mean = found.model[1].running_mean
        assert found.guarantee is None or not torch.equal(mean, base.model[1].running_mean)

    check(ours)
    fails(check, stub)
    kept = method.unlearn(problem(copy.deepcopy(net), buffers="keep"))
    assert kept.grade is Grade.heuristic


def test_z7_the_forget_gradient_is_that_of_the_forgotten_records():
    """Least squares: the Hessian does not know the targets, so those of R must not matter."""
    x, y = rows()[0], torch.linspace(-1, 1, 80, dtype=torch.float64)
    net = nn.Sequential(nn.Linear(6, 1), nn.Flatten(0)).double()

    def half_square(outputs, targets):
        return (outputs - targets) ** 2 / 2

    def steps(mode, shift):
        base = Problem(net, half_square, (x[:10], y[:10]), (x[10:], y[10:] + shift), train=RECIPE)
        found = Zhang(gradient=mode, damping=0.5, solver=direct(), sigma=0.0).unlearn(base)
        return view(found.model).vector()

    def check(mode):
        torch.testing.assert_close(steps(mode, 0.0), steps(mode, 3.0), rtol=0, atol=1e-12)

    check("forget")
    fails(check, "retained")  # what the code does while it claims a cost of m records


def test_z8_every_number_is_there():
    found = Zhang(solver=direct(), sigma=ENOUGH).unlearn(problem())
    recheck(found.certificate())

    def check(report):
        for symbol in ("bound Δ", "2C", "σ used", "σ needed", "ε", "δ", "L, M, λ_min, G"):
            assert symbol in report

    check(found.report())
    fails(check, "Unlearning finished in 3.1 s, accuracy 0.87")
    for name in found.payload:
        if name in ("noise", "noiseTag"):
            continue
        with pytest.raises(VerificationFailed, match=name):
            recheck({key: value for key, value in found.payload.items() if key != name})


def test_z9_training_and_retraining_have_the_same_schedule():
    base = problem()
    method = Zhang(solver=direct(), sigma=ENOUGH)
    retrained = Retrain().unlearn(base).evidence["recipe"].value

    def check(recipe):
        assert replace(recipe, seed=base.seed).digest() == retrained

    check(RECIPE)
    fails(check, replace(RECIPE, epochs=RECIPE.epochs + 1))  # 30 epochs here, 31 there
    one, other = (
        method.unlearn(replace(base, train=recipe)).payload["schedule"]
        for recipe in (RECIPE, replace(RECIPE, epochs=3))
    )
    assert one != other


@pytest.mark.parametrize("depth", [1, 5, 9])
def test_z9_a_short_series_is_no_division_by_zero(depth):
    solver = lissa(depth=depth, repeats=2, batch=None, tol=0.999)

    def stub(steps):
        """Print progress every tenth of the depth."""
        return [step for step in range(steps) if step % (steps // 10) == 0]

    found = Zhang(solver=solver).unlearn(problem())
    assert found.evidence["iterations"].value == depth
    with pytest.raises(ZeroDivisionError):
        stub(depth)


def test_z10_no_graph_is_kept():
    base = problem()
    network, data = view(base.model), next(iter(base.retain.chunks(1000)))
    v = torch.ones(network.size, dtype=torch.float64)

    def ours():
        return product("hessian", network, cross_entropy, data, v)

    def stub():
        """Differentiate the second time with create_graph, as the first time."""
        chosen = list(base.model.parameters())
        total = functional.cross_entropy(base.model(data[0]), data[1])
        slopes = torch.autograd.grad(total, chosen, create_graph=True)
        dot = sum(slope.sum() for slope in slopes)
        return torch.cat([g.flatten() for g in torch.autograd.grad(dot, chosen, create_graph=True)])

    def check(times):
        assert times().grad_fn is None

    torch.testing.assert_close(ours(), stub().detach())
    check(ours)
    fails(check, stub)
    found, hidden = Zhang(solver=cg()).request(base)
    for model in (found.model, hidden.model):
        assert all(p.grad is None and p.grad_fn is None for p in model.parameters())


def test_a_refusal_is_an_error_that_can_be_caught():
    with pytest.raises(CertificateRefused):
        Zhang(solver=direct(), sigma=0.0).unlearn(problem()).certificate()
