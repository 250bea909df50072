"""Zhang et al.: the step, the noise, the claim, requests one after the other."""

from __future__ import annotations

import copy
import math
import re
from dataclasses import fields, replace
from functools import cache

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from deep_example import CASES, Dense, half_square
from expunge.deep.inverse import NotConverged, cg, direct, lissa
from expunge.deep.methods.zhang import Hidden, Released, Zhang
from expunge.deep.network import UnsupportedModel, view
from expunge.deep.problem import Evidence, Problem
from expunge.deep.training import Recipe, cross_entropy, train
from expunge.deep.trees import map_tree
from expunge.deep.zhang_bounds import Account
from expunge.deep.zhang_claim import Constants, recheck
from expunge.errors import CertificateRefused, InvalidInput, VerificationFailed
from expunge.guarantee import Grade, Tag, epsilon_of

RADIUS, DELTA = 8.0, 1e-5
RECIPE = Recipe(lr=0.01, epochs=3, batch_size=32, weight_decay=5e-4, max_norm=RADIUS)
EXACT = Zhang(solver=direct(), noise_seed=1)
ENOUGH = 59.7  # σ for Δ = 16, ε = 1, δ = 1e-5


@pytest.fixture(autouse=True)
def _one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def rows(count=120):
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(count, 6, generator=generator)
    return x, (x @ torch.randn(6, 3, generator=generator)).argmax(1)


def problem(model=None, recipe=RECIPE, m=12, **options):
    torch.manual_seed(0)
    model = model or nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))
    x, y = rows()
    trained = train(model, (x, y), recipe)
    return Problem(trained, cross_entropy, (x[:m], y[:m]), (x[m:], y[m:]), train=recipe, **options)


def linear(wd=0.5, recipe=None):
    """Return least squares in float64, at its optimum; F, R and the exact retrain."""
    generator = torch.Generator().manual_seed(3)
    x = torch.randn(60, 5, generator=generator, dtype=torch.float64)
    y = x @ torch.ones(5, dtype=torch.float64) + torch.randn(60, generator=generator).double()
    y[:6] += 5.0
    optimum = [
        torch.linalg.solve(a.T @ a / len(a) + wd * torch.eye(5).double(), a.T @ b / len(a))
        for a, b in ((x, y), (x[6:], y[6:]))
    ]
    net = nn.Sequential(nn.Linear(5, 1, bias=False), nn.Flatten(0)).double()
    view(net).load(optimum[0])
    recipe = recipe or Recipe(weight_decay=wd, max_norm=RADIUS)
    made = Problem(net, half_square, (x[:6], y[:6]), (x[6:], y[6:]), train=recipe)
    return made, optimum[1]


def weights(model):
    return view(model).vector().double()


# --- the step ---------------------------------------------------------------------------------


def test_on_a_quadratic_the_step_is_the_retrain():
    base, retrained = linear()
    for mode in ("retained", "forget"):
        method = Zhang(damping=0.0, solver=direct(), gradient=mode, sigma=0.0)
        torch.testing.assert_close(weights(method.unlearn(base).model), retrained)
    damped = Zhang(damping=1.0, solver=direct(), sigma=0.0).unlearn(base)
    assert float((weights(damped.model) - retrained).norm()) > 0.01


def test_both_gradients_agree_at_a_stationary_point_and_not_elsewhere():
    """The optimum of logistic regression with weight decay, found by Newton steps."""
    base = problem(nn.Linear(6, 3).double(), replace(RECIPE, weight_decay=0.05))
    everything = rows()
    model = base.model
    for _ in range(12):
        half = tuple(t[60:] for t in everything), tuple(t[:60] for t in everything)
        at = Problem(model, cross_entropy, *half, train=base.train)
        model = _towards_all(at, everything)
    there = replace(base, model=model)
    steps = {
        mode: weights(replace(EXACT, gradient=mode, sigma=0.0).unlearn(there).model)
        for mode in ("retained", "forget")
    }
    moved = float((steps["retained"] - weights(model)).norm())
    assert moved > 1e-3
    assert float((steps["retained"] - steps["forget"]).norm()) < 1e-8 * moved
    early = replace(EXACT, gradient="forget", sigma=0.0).unlearn(base)
    assert early.evidence["dropped"].value > 0.1
    assert "dropped, norm" in early.report()


def _towards_all(at, everything):
    """One undamped Newton step of the loss on all records."""
    net, (x, y) = copy.deepcopy(at.model), everything

    def objective(w):
        logits = view(net).outputs(w, x)
        return nn.functional.cross_entropy(logits, y) + at.wd / 2 * w @ w

    w = view(net).vector()
    slope = torch.func.grad(objective)(w)
    view(net).load(w - torch.linalg.solve(torch.func.hessian(objective)(w), slope))
    return net


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("solver", [direct(), cg(), lissa(batch=None, depth=400, repeats=1)])
def test_solvers_agree_with_the_dense_inverse(name, solver):
    """To the residual that each reports: ‖x − x*‖ ≤ ‖r‖/(λ + λ_min)."""
    case = CASES[name]()
    parts = [map_tree(lambda t, s=s: t[s], case.data) for s in (slice(0, 3), slice(3, None))]
    base = Problem(case.module, case.loss, *parts, train=Recipe(weight_decay=0.1), buffers="keep")
    found = Zhang(solver=solver, sigma=0.0).unlearn(base)
    kept = Dense(replace(case, inputs=parts[1][0], targets=parts[1][1]))
    damping, smallest = (found.evidence[name].value for name in ("damping", "smallest"))
    eye = torch.eye(len(kept.w), dtype=torch.float64)
    H, g = kept.hessian() + 0.1 * eye, kept.gradient() + 0.1 * kept.w
    assert smallest == pytest.approx(float(torch.linalg.eigvalsh(H)[0]), abs=1e-9)
    exact = torch.linalg.solve(H + damping * eye, g)
    error = float((kept.w - weights(found.model) - exact).norm())
    stated = found.evidence["residual"].value * float(g.norm()) / (damping + smallest)
    assert error <= stated + 1e-11
    assert stated < 0.05 * float(exact.norm())


def test_too_little_damping_is_refused():
    base = problem()
    least = EXACT.unlearn(base).evidence["smallest"].value
    assert least < 0
    with pytest.raises(InvalidInput, match="exceed −λ_min"):
        replace(EXACT, damping=-0.5 * least).unlearn(base)
    replace(EXACT, damping=-1.1 * least).unlearn(base)


def test_a_large_network_has_an_estimated_spectrum():
    base = problem(nn.Sequential(nn.Linear(6, 120), nn.Tanh(), nn.Linear(120, 3)))
    found = Zhang(solver=cg()).unlearn(base)
    assert found.evidence["smallest"].tag is Tag.assumed
    assert "(estimated)" in found.report()
    small = EXACT.unlearn(problem())
    assert small.evidence["smallest"].tag is Tag.measured


def test_a_smallest_eigenvalue_that_is_known_is_not_estimated_again():
    known = EXACT.unlearn(problem())
    smallest, damping = known.evidence["smallest"], known.evidence["damping"].value
    method = replace(EXACT, smallest=smallest, damping=damping, solver=cg())
    again = method.unlearn(problem())
    assert again.evidence["step"].value == pytest.approx(known.evidence["step"].value, rel=1e-6)
    assert again.rows_read["retain"] < known.rows_read["retain"]
    assert "λ_max" not in again.report()
    with pytest.raises(InvalidInput, match="damping must be given"):
        replace(method, damping=None).unlearn(problem())
    with pytest.raises(InvalidInput, match="exceed −λ_min = 9"):
        replace(method, smallest=Evidence(-9.0, Tag.assumed)).unlearn(problem())


def test_a_solver_that_fails_is_an_error():
    with pytest.raises(NotConverged):
        Zhang(solver=cg(max_iterations=1)).unlearn(problem())


def test_the_model_is_left_alone():
    base = problem()
    before, modes = copy.deepcopy(base.model.state_dict()), base.model.train()
    found = EXACT.unlearn(base)
    assert all(torch.equal(before[k], v) for k, v in base.model.state_dict().items())
    assert modes.training
    assert found.model is not base.model
    assert found.rows_read["forget"] == 12
    assert found.rows_read["retain"] >= 108


# --- the ball and the noise -------------------------------------------------------------------


@pytest.mark.parametrize("radius", [0.5, 3.0])
def test_the_end_of_the_step_is_in_the_ball(radius):
    _, hidden = replace(EXACT, radius=radius).request(problem())
    assert float(weights(hidden.model).norm()) <= radius


def test_every_tensor_of_every_release_is_noised():
    """N3: standard deviation within 10 % of σ, also after sequential requests."""
    net = nn.Sequential(nn.Linear(6, 200), nn.Tanh(), nn.Linear(200, 24), nn.Tanh())
    net.append(nn.Linear(24, 60)).append(nn.Tanh()).append(nn.Linear(60, 3))
    base, sigma, x, y = problem(net), 0.05, *rows()
    method = Zhang(solver=cg(tol=0.01), sigma=sigma)
    hidden, noises = None, []
    for t in range(3):
        released, hidden = method.request(base, hidden)
        noises.append(noise_of(released.model, hidden.model, sigma))
        start, end = 12 * (t + 1), 12 * (t + 2)
        forget, retain = (x[start:end], y[start:end]), (x[end:], y[end:])
        base = Problem(hidden.model, cross_entropy, forget, retain, train=RECIPE)
    for a, b in ((0, 1), (1, 2), (0, 2)):
        assert abs(np.corrcoef(noises[a], noises[b])[0, 1]) < 0.06


def noise_of(released, hidden, sigma):
    """Return the noise of all tensors, once its size has been checked."""
    found = []
    for (name, got), (_, was) in zip(
        released.named_parameters(), hidden.named_parameters(), strict=True
    ):
        noise = (got - was).detach().double().flatten()
        assert bool((noise != 0).all()), name
        if len(noise) >= 1000:
            assert float(noise.std()) == pytest.approx(sigma, rel=0.1), name
        found.append(noise)
    together = torch.cat(found).numpy()
    assert together.std() == pytest.approx(sigma, rel=0.1)
    return together


def test_noise_is_fresh_unless_seeded():
    base = problem()
    secure = Zhang(solver=direct())
    assert not torch.equal(*(weights(secure.unlearn(base).model) for _ in range(2)))
    assert torch.equal(*(weights(EXACT.unlearn(base).model) for _ in range(2)))
    assert "seeded noise: not for production" in EXACT.unlearn(base).report()
    assert "noise_seed" not in repr(EXACT)
    assert EXACT.unlearn(base).payload["noise"] == "seeded"
    assert secure.unlearn(base).payload["noise"] == "osEntropy"


# --- the claim --------------------------------------------------------------------------------


def test_too_little_noise_is_refused_with_the_implied_epsilon():
    found = EXACT.unlearn(problem())
    implied = epsilon_of(2 * RADIUS / EXACT.sigma, DELTA)
    assert found.grade is Grade.heuristic
    assert found.guarantee is None
    with pytest.raises(CertificateRefused, match=re.escape(f"REFUSED; implied ε={implied:.4g}")):
        found.certificate()
    block = found.report().splitlines()[0]
    for part in ("bound Δ=inf", "ball 2C=16", "Δ used=16", "σ used=0.001", "σ needed=59.69"):
        assert part in block
    assert f"implied ε={implied:.4g} at δ=1e-05" in block
    assert "assumptions A: L, M, λ_min, G, stationarity" in block
    assert found.payload["epsilon"] is None
    recheck(found.payload)


@settings(max_examples=60, deadline=None)
@given(st.floats(1e-3, 80.0), st.floats(0.3, 4.0), st.integers(1, 5))
def test_no_claim_below_the_needed_noise_can_be_made(sigma, epsilon, releases):
    """N2."""
    account = Account(math.inf, 8.0, sigma, epsilon, DELTA, releases)
    known = {"account": account, "payload": {}, "refusal": None, "warnings": ()}
    known |= {"model": None, "method": "zhang", "evidence": {}, "assumptions": ()}
    known |= {"seconds": 0.0, "rows_read": {}}
    promised = paid().guarantee
    if sigma < account.needed:
        with pytest.raises(CertificateRefused, match="implied ε"):
            Released(guarantee=promised, **known)
        assert Released(guarantee=None, **known).grade is Grade.heuristic
    else:
        assert Released(guarantee=promised, **known).guarantee is promised


@cache
def paid():
    """Return a release with enough noise."""
    return replace(EXACT, sigma=ENOUGH).unlearn(problem())


def test_enough_noise_pays_for_the_ball_and_the_step_adds_nothing():
    found = replace(EXACT, sigma=ENOUGH, noise_seed=None).unlearn(problem())
    assert found.method == "output_perturbation"
    assert found.grade is Grade.conditional
    assert found.guarantee.epsilon <= 1.0
    assert found.guarantee.mu == pytest.approx(2 * RADIUS / ENOUGH)
    assert "contributes nothing" in found.report()
    assert any("indistinguishable" in warning for warning in found.warnings)
    record = found.certificate()
    recheck(record)
    assert record["n"] == 120
    assert record["m"] == 12
    assert record["grade"] == "conditional"
    assert not {"hessianLipschitz", "smallestEigenvalue"} & {a.id for a in found.assumptions}


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("epsilon", 0.5),
        ("sigma", 100.0),
        ("shift", 1.0),
        ("grade", "certified"),
        ("method", "zhang"),
        ("mu", 0.1),
        ("release", 2),
        ("bound", 1.0),
    ],
)
def test_a_payload_that_was_changed_is_found_out(name, value):
    with pytest.raises(VerificationFailed):
        recheck({**paid().payload, name: value})


def test_a_network_cannot_beat_the_ball_whatever_is_assumed():
    """Constants that are far too good change nothing where the loss is not convex."""
    kind = Constants(Evidence(0.0, Tag.assumed), Evidence(0.0, Tag.assumed))
    found = replace(EXACT, constants=kind, sigma=ENOUGH).unlearn(problem())
    assert found.evidence["smallest"].value < 0
    assert found.account.vacuous
    assert found.account.shift == 2 * RADIUS
    assert found.method == "output_perturbation"


def test_where_the_loss_is_strongly_convex_the_bound_is_worth_something():
    base, retrained = linear()
    known = Constants(Evidence(0.0, Tag.proved), Evidence(1e-9, Tag.assumed))
    method = Zhang(damping=0.1, solver=direct(), constants=known, noise_seed=1, sigma=30.0)
    found, hidden = method.request(base)
    assert found.account.bound < 2 * RADIUS
    assert found.method == "zhang"
    assert float((weights(hidden.model) - retrained).norm()) <= found.account.bound
    assert found.grade is Grade.conditional
    assert "assumptions A: G" in found.report()
    tags = {a.id: a.tag for a in found.assumptions}
    assert tags["hessianLipschitz"] is Tag.proved
    assert tags["smallestEigenvalue"] is Tag.measured
    assert tags["residualGradientAtRetrain"] is Tag.assumed
    free = linear(recipe=Recipe(weight_decay=0.5))[0]
    assert replace(method, radius=RADIUS).unlearn(free).account.bound == math.inf


def test_what_is_left_out_enters_the_bound():
    base, retrained = linear()
    view(base.model).load(view(base.model).vector() + 0.3)
    known = Constants(Evidence(0.0, Tag.proved), Evidence(0.0, Tag.assumed))
    method = Zhang(damping=0.1, solver=direct(), constants=known, noise_seed=1)
    coarse = replace(method, solver=lissa(batch=None, depth=2, repeats=1, tol=0.999))
    bounds = {}
    for name, it in (
        ("exact", method),
        ("forget", replace(method, gradient="forget")),
        ("coarse", coarse),
    ):
        found, hidden = it.request(base)
        bounds[name] = found.account.bound
        assert float((weights(hidden.model) - retrained).norm()) <= bounds[name]
    assert bounds["forget"] > bounds["exact"] + 0.1
    assert bounds["coarse"] > bounds["exact"] + 0.01


def test_the_published_bound_of_lissa_is_printed_beside():
    assumed = [Evidence(value, Tag.assumed) for value in (1.0, 0.5946, 0.2065, 1.0)]
    found = replace(EXACT, constants=Constants(*assumed)).unlearn(problem())
    assert found.evidence["publishedLissaBound"].tag is Tag.assumed
    assert found.evidence["publishedLissaBound"].value > found.account.bound - 1e-9


def test_the_papers_formula_takes_more_noise():
    paper = replace(EXACT, paper=True, sigma=ENOUGH).unlearn(problem())
    assert paper.account.refused
    assert paper.account.needed > 1.2 * paid().account.needed
    assert not replace(EXACT, paper=True, sigma=80.0).unlearn(problem()).account.refused


def test_without_a_ball_nothing_is_claimed():
    base = problem(recipe=replace(RECIPE, max_norm=None))
    found = replace(EXACT, sigma=1e6).unlearn(base)
    assert found.account is None
    assert found.grade is Grade.heuristic
    assert "no ball is enforced" in found.report()
    with pytest.raises(CertificateRefused, match="no ball"):
        found.certificate()


def test_a_part_of_the_parameters():
    base = problem(params="2.*")
    found = replace(EXACT, sigma=ENOUGH).unlearn(base)
    assert torch.equal(found.model[0].weight, base.model[0].weight)
    assert bool((found.model[2].weight != base.model[2].weight).all())
    assert "unchangedPartNeverSawForget" in {a.id for a in found.assumptions}


def test_batch_norm():
    net = nn.Sequential(nn.Linear(6, 6), nn.BatchNorm1d(6), nn.Tanh(), nn.Linear(6, 3))
    method = replace(EXACT, sigma=ENOUGH)
    with pytest.raises(UnsupportedModel):
        problem(copy.deepcopy(net))
    kept = method.unlearn(problem(copy.deepcopy(net), buffers="keep"))
    assert kept.grade is Grade.heuristic
    assert kept.payload == {}
    with pytest.raises(CertificateRefused, match="buffers"):
        kept.certificate()
    base = problem(copy.deepcopy(net), buffers="reestimate")
    again = method.unlearn(base)
    assert again.grade is Grade.conditional
    assert not torch.equal(again.model[1].running_mean, base.model[1].running_mean)
    kind = Constants(Evidence(0.0, Tag.assumed), Evidence(0.0, Tag.assumed))
    assert replace(method, constants=kind).unlearn(base).account.bound == math.inf


# --- requests one after the other -------------------------------------------------------------


def follow(base, hidden, start, count=12):
    """Return the next request: forget the next rows."""
    x, y = rows()
    stop = start + count
    forget, retain = (x[start:stop], y[start:stop]), (x[stop:], y[stop:])
    return Problem(hidden.model, cross_entropy, forget, retain, train=base.train)


def test_releases_are_composed():
    base, method = problem(), replace(EXACT, sigma=200.0)
    hidden, found = None, []
    for t in range(3):
        released, hidden = method.request(base, hidden)
        found.append(released)
        base = follow(base, hidden, 12 * (t + 1))
    mus = [released.guarantee.mu for released in found]
    assert mus == pytest.approx([math.sqrt(t) * 2 * RADIUS / 200.0 for t in (1, 2, 3)])
    assert [released.guarantee.deletions_covered for released in found] == [12, 24, 36]
    assert found[2].guarantee.view.value == "transcript"
    assert hidden.retained == 84
    assert "Parameter" not in repr(hidden)
    assert "model" not in repr(hidden)
    recheck(found[2].certificate())
    tight = replace(EXACT, sigma=ENOUGH)
    _, hidden = tight.request(problem())
    second, _ = tight.request(follow(problem(), hidden, 12), hidden)
    assert second.account.refused
    assert second.account.implied > 1.0


def test_the_next_request_starts_from_the_noiseless_state():
    base = problem()
    quiet, loud = (replace(EXACT, sigma=sigma, radius=RADIUS) for sigma in (0.0, 5.0))
    ends = []
    for method in (quiet, loud):
        _, hidden = method.request(base)
        _, after = method.request(follow(base, hidden, 12), hidden)
        ends.append(weights(after.model))
    torch.testing.assert_close(*ends, rtol=0, atol=1e-7)


def test_the_largest_bound_of_all_requests_counts():
    base, _ = linear()
    known = Constants(Evidence(0.0, Tag.proved), Evidence(0.0, Tag.assumed))
    method = Zhang(damping=0.1, solver=direct(), constants=known, noise_seed=1)
    _, hidden = method.request(base)
    worse = replace(hidden, bound=3 * hidden.bound)
    x, y = next(iter(base.retain))
    following = replace(base, model=worse.model, forget=(x[:5], y[:5]), retain=(x[5:], y[5:]))
    assert method.request(following, worse)[1].bound == worse.bound


def test_requests_must_go_on_where_the_last_one_ended():
    base = problem()
    _, hidden = EXACT.request(base)
    right = follow(base, hidden, 12)
    with pytest.raises(InvalidInput, match="stationary point"):
        replace(EXACT, gradient="forget").request(right, hidden)
    with pytest.raises(InvalidInput, match=r"hidden\.model"):
        EXACT.request(replace(right, model=base.model), hidden)
    with pytest.raises(InvalidInput, match="retained 108"):
        EXACT.request(replace(right, retain=base.retain), hidden)
    for change in ({"sigma": 1.0}, {"radius": 5.0}, {"epsilon": 2.0}, {"delta": 1e-6}):
        with pytest.raises(InvalidInput, match="those of the last"):
            replace(EXACT, **change).request(right, hidden)
    assert isinstance(EXACT.request(right, hidden)[1], Hidden)


# --- bad input --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"gradient": "both"}, "retained or forget"),
        ({"solver": cg(damping=1.0)}, "give the damping to Zhang"),
        ({"sigma": -1.0}, "sigma"),
        ({"sigma": math.nan}, "sigma"),
        ({"radius": 0.0}, "radius"),
        ({"radius": math.inf}, "radius"),
        ({"damping": math.nan}, "damping"),
        ({"damping": -1.0}, "damping"),
        ({"epsilon": 0.0}, "epsilon"),
        ({"delta": 1.5}, "delta"),
    ],
)
def test_bad_input(change, words):
    with pytest.raises(InvalidInput, match=words):
        replace(EXACT, **change).unlearn(problem())


def test_retained_records_are_needed():
    with pytest.raises(InvalidInput, match="retained records"):
        EXACT.unlearn(replace(problem(), retain=None))


def test_every_field_is_documented():
    for field in fields(Zhang):
        assert field.name in Zhang.__doc__
