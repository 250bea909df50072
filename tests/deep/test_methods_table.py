"""Every published method on one small problem: what all of them owe, and identities of some."""

from __future__ import annotations

import copy
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from expunge.deep.descent import Diverged, Recipe
from expunge.deep.methods import METHODS, retrains
from expunge.deep.methods.dampening import Dampening
from expunge.deep.methods.distill import Scrub
from expunge.deep.methods.finetune import FineTune
from expunge.deep.methods.fisher import FisherForgetting
from expunge.deep.methods.influence import Influence
from expunge.deep.methods.labels import RandomLabels, SalUn, largest, other_labels
from expunge.deep.methods.negative import NegGrad, NegGradPlus
from expunge.deep.network import UnsupportedModel, view
from expunge.deep.problem import Problem, over_unlearned, row_ids
from expunge.deep.solution import NotConverged
from expunge.deep.training import cross_entropy, train_logged
from expunge.errors import InvalidInput, UnknownRecord
from expunge.guarantee import Grade

RECIPE = Recipe(lr=0.02, epochs=4, batch_size=16, weight_decay=1e-3)


@pytest.fixture(autouse=True)
def _one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def rows(count=72, dtype=torch.float32):
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(count, 6, generator=generator, dtype=dtype)
    return x, (x[:, 0] > 0).long() + (x[:, 1] > 0.5).long()


def problem(dtype=torch.float32, **options):
    x, y = rows(dtype=dtype)
    torch.manual_seed(1)
    net = nn.Sequential(nn.Linear(6, 10), nn.Tanh(), nn.Linear(10, 3)).to(dtype)
    model, log = train_logged(net, (x, y), RECIPE, sensitive=range(8))
    given = {
        "train": RECIPE,
        "stored": log,
        "trained_ids": list(range(72)),
        "forget_ids": list(range(8)),
        "retain_ids": list(range(8, 72)),
        **options,
    }
    return Problem(model, cross_entropy, (x[:8], y[:8]), (x[8:], y[8:]), **given)


def of_a_class(dtype=torch.float32, **options):
    """The same with F one whole class, for methods that forget classes."""
    x, y = rows(dtype=dtype)
    task, gone = problem(dtype, **options), y == 2
    where = torch.arange(72)
    return replace(
        task,
        forget=(x[gone], y[gone]),
        retain=(x[~gone], y[~gone]),
        forget_ids=where[gone].tolist(),
        retain_ids=where[~gone].tolist(),
    )


def problem_for(name, *args, **options):
    return (of_a_class if name == "unsir" else problem)(*args, **options)


def made(name):
    """Return the method by default; noise repeatable where it has any."""
    return METHODS[name](**({"noise_seed": 0} if name == "zhang" else {}))


def bits(model):
    return {name: t.clone() for name, t in model.state_dict().items()}


def same(a, b):
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


@pytest.mark.parametrize("name", sorted(METHODS))
def test_what_every_method_owes(name):
    """The given model is untouched, modes and global chance too; runs repeat; all is accounted."""
    task = problem_for(name)
    before, modes = bits(task.model), [m.training for m in task.model.modules()]
    state = torch.random.get_rng_state()
    method = made(name)
    first, again = method.unlearn(task), method.unlearn(task)
    assert torch.equal(torch.random.get_rng_state(), state)
    assert same(bits(task.model), before)
    assert [m.training for m in task.model.modules()] == modes
    assert same(bits(first.model), bits(again.model))
    assert first.method == name
    assert all(bool(torch.isfinite(t).all()) for t in first.model.state_dict().values())
    own = {p.data_ptr() for p in task.model.parameters()}
    assert own.isdisjoint(p.data_ptr() for p in first.model.parameters())
    exact = name == "retrain"
    assert first.grade is (Grade.exact if exact else Grade.heuristic)
    assert (first.guarantee is not None) is exact
    for part in ("forget", "retain"):
        if part not in method.needs and name not in ("amnesiac", "ssd"):
            assert first.rows_read.get(part, 0) == 0
    if name == "ssd" and not first.evidence["dampened"].value:
        assert any("nothing was changed" in warning for warning in first.warnings)
    elif name != "null":
        assert not same(bits(first.model), before)
        assert first.evidence["moved"].value > 0.0


@pytest.mark.parametrize("name", sorted(set(METHODS) - {"null"}))
def test_only_the_chosen_parameters_move(name):
    if name in ("cf-k", "eu-k", "boundary-expand", "ntk", "amnesiac", "ssd"):
        pytest.skip("chooses its own part, or needs a log of the same part")
    task = problem_for(name, params="2.*")
    found = METHODS[name]().unlearn(task)
    assert torch.equal(found.model[0].weight, task.model[0].weight)
    assert not torch.equal(found.model[2].weight, task.model[2].weight)


@pytest.mark.parametrize("name", sorted(METHODS))
def test_missing_data_are_named(name):
    method = METHODS[name]()
    x, y = rows()
    bare = Problem(problem().model, cross_entropy, (x[:8], y[:8]))
    if method.needs <= {"forget"}:
        assert method.unlearn(bare).method == name
    else:
        with pytest.raises(InvalidInput, match=f"{name.replace('+', '.')} needs"):
            method.unlearn(bare)


@pytest.mark.parametrize("name", ["finetune", "scrub", "influence", "fisher", "unsir", "salun"])
def test_double_precision(name):
    found = METHODS[name]().unlearn(problem_for(name, torch.float64))
    assert {t.dtype for t in found.model.parameters()} == {torch.float64}


def test_retraining_starts_from_nothing():
    """It starts from new weights in every tensor, whatever the old ones were."""
    task = problem()
    other = copy.deepcopy(task.model)
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.add_(3.0)
    a, b = (METHODS["retrain"]().unlearn(t).model for t in (task, replace(task, model=other)))
    assert same(bits(a), bits(b))
    first, second = retrains(task, [1, 2])
    assert not same(bits(first.model), bits(second.model))
    assert first.grade is Grade.exact
    assert METHODS["retrain"]().unlearn(problem(retain_ids=None)).grade is Grade.conditional


# --- identities -----------------------------------------------------------------------------------


def vector(found):
    return view(found.model).vector().double()


def test_fisher_without_noise_is_null():
    task = problem()
    still = FisherForgetting(alpha=0.0).unlearn(task)
    assert same(bits(still.model), bits(task.model))


def test_dampening_where_nothing_is_selected_is_null():
    task = problem()
    still = Dampening(alpha=1e30).unlearn(task)
    assert same(bits(still.model), bits(task.model))


def test_neggrad_plus_of_weight_one_descends_the_retained_loss_only():
    task = problem()
    other = replace(
        task, forget=(torch.zeros(8, 6), torch.zeros(8, dtype=torch.long)), forget_ids=range(8)
    )
    method = NegGradPlus(a=1.0, epochs=1)
    a, b = method.unlearn(task), method.unlearn(other)
    assert torch.allclose(vector(a), vector(b), atol=1e-6)


def test_neggrad_raises_the_forget_loss_and_fine_tuning_lowers_the_retained():
    task = problem()
    x, y = rows()

    def loss(model, rows_):
        return float(cross_entropy(model(x[rows_]), y[rows_]).mean())

    up = NegGrad().unlearn(task).model
    assert loss(up, slice(0, 8)) > loss(task.model, slice(0, 8))
    down = FineTune().unlearn(task).model
    assert loss(down, slice(8, 72)) < loss(task.model, slice(8, 72))


def test_influence_is_a_newton_step_with_the_hessian_of_everything():
    """Against a dense solve: ``w + (m/n)·H_D⁻¹∇L_F`` with weight decay inside both."""
    task = problem(torch.float64)
    x, y = rows(dtype=torch.float64)
    network = view(task.model)
    w0, wd = network.vector(), RECIPE.weight_decay

    def mean(w, index):
        logits = network.outputs(w, x[index])
        return cross_entropy(logits, y[index]).mean() + wd / 2 * (w * w).sum()

    every, gone = torch.arange(72), torch.arange(8)
    H = torch.autograd.functional.hessian(lambda w: mean(w, every), w0)
    g = torch.autograd.functional.jacobian(lambda w: mean(w, gone), w0)
    for variant, scale in (("koh-liang", 8 / 72), ("rescaled", 8 / 64)):
        found = Influence(variant=variant, curvature="hessian", damping=10.0).unlearn(task)
        assert found.evidence["damping"].value == 10.0
        step = torch.linalg.solve(H + 10.0 * torch.eye(len(w0), dtype=torch.float64), g)
        assert torch.allclose(vector(found), w0 + scale * step, rtol=0, atol=1e-7)
    kept = torch.arange(8, 72)
    H = torch.autograd.functional.hessian(lambda w: mean(w, kept), w0)
    g = torch.autograd.functional.jacobian(lambda w: mean(w, kept), w0)
    found = Influence(variant="newton", curvature="hessian", damping=10.0).unlearn(task)
    step = torch.linalg.solve(H + 10.0 * torch.eye(len(w0), dtype=torch.float64), g)
    assert torch.allclose(vector(found), w0 - step, rtol=0, atol=1e-7)
    assert found.rows_read["forget"] == 0


def test_salun_moves_the_largest_entries_only():
    task = problem()
    x, y = rows()
    network = view(task.model)
    (slope,) = torch.autograd.grad(
        cross_entropy(network.outputs(w := network.vector().requires_grad_(), x[:8]), y[:8]).mean(),
        w,
    )
    mask = largest(slope, 0.5)
    moved = vector(SalUn(share=0.5, epochs=1).unlearn(task)) != network.vector().double()
    assert bool((~moved[~mask]).all())
    assert float(moved[mask].double().mean()) > 0.9
    assert slope.abs()[mask].min() >= slope.abs()[~mask].max()


def test_other_labels_are_other_and_uniform():
    labels = torch.arange(5).repeat(4000)
    drawn = other_labels(labels, 5, torch.Generator().manual_seed(0))
    assert bool((drawn != labels).all())
    counts = np.bincount(((drawn - labels) % 5).numpy(), minlength=5)
    assert counts[0] == 0
    assert counts[1:].min() > 0.95 * counts[1:].mean()


def test_scrub_without_maximising_does_not_read_the_forgotten():
    task = problem()
    assert Scrub(max_epochs=0).unlearn(task).rows_read["forget"] == 0
    assert Scrub(max_epochs=1).unlearn(task).rows_read["forget"] == 8


# --- bad input ------------------------------------------------------------------------------------


def test_records_never_trained_on_and_duplicates():
    x, y = rows()
    with pytest.raises(UnknownRecord, match="never learned"):
        problem(forget_ids=[*range(7), 999])
    with pytest.raises(UnknownRecord, match="2 times"):
        problem(forget_ids=[0, 0, *range(2, 8)])
    with pytest.raises(InvalidInput, match="never trained on"):
        problem(retain_ids=list(range(64)))
    with pytest.raises(InvalidInput, match="an id per record"):
        problem(forget_ids=[1])
    ids = row_ids((x, y))
    assert len(set(ids)) == 72
    with pytest.raises(UnknownRecord):
        problem(trained_ids=row_ids((x[:70], y[:70])), forget_ids=ids[64:], retain_ids=None)


def test_a_rate_that_is_too_large_is_named():
    with pytest.raises(Diverged, match="learning rate"):
        FineTune(lr=1e20, epochs=20).unlearn(problem())


def test_numbers_that_are_not():
    x, y = rows()
    x = x.clone()
    x[10, 0] = torch.nan
    task = problem()
    broken = Problem(task.model, cross_entropy, (x[:8], y[:8]), (x[8:], y[8:]), train=RECIPE)
    for method in (FineTune(), RandomLabels(), Influence()):
        with pytest.raises((InvalidInput, Diverged, NotConverged)):
            method.unlearn(broken)


def test_batch_norm_has_to_be_decided():
    x, y = rows()
    net = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3))
    with pytest.raises(UnsupportedModel, match="GroupNorm"):
        Problem(net, cross_entropy, (x[:8], y[:8]), (x[8:], y[8:]), train=RECIPE)
    kept = Problem(
        net, cross_entropy, (x[:8], y[:8]), (x[8:], y[8:]), train=RECIPE, buffers="reestimate"
    )
    found = FineTune(epochs=1).unlearn(kept).model
    h = found[0](x[8:])
    assert torch.allclose(found[1].running_mean, h.mean(0), atol=1e-5)


def test_the_guard():
    assert over_unlearned(0.5, 0.9)
    assert not over_unlearned(0.9, 0.91)
    with pytest.raises(InvalidInput):
        over_unlearned(1.5, 0.9)
