"""Methods that must agree with each other, or with doing nothing, for certain parameters."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import nn

from deep_problems import (
    GONE,
    RECIPE,
    ROWS,
    Adam,
    bits,
    ce,
    kl,
    of_a_class,
    part,
    problem,
    rows,
    same,
    slope,
    start,
    vector,
)
from expunge.deep.methods import METHODS
from expunge.deep.methods.amnesiac import Amnesiac
from expunge.deep.methods.boundary import BoundaryExpand, BoundaryShrink
from expunge.deep.methods.common import Work
from expunge.deep.methods.dampening import Dampening, factors
from expunge.deep.methods.distill import BadTeacher, Scrub
from expunge.deep.methods.finetune import CatastrophicK, ExactK, FineTune
from expunge.deep.methods.fisher import FisherForgetting
from expunge.deep.methods.influence import Influence
from expunge.deep.methods.labels import RandomLabels, SalUn, largest
from expunge.deep.methods.negative import NegGrad, NegGradPlus
from expunge.deep.methods.ntk import NtkScrub, linear_optimum, stretch
from expunge.deep.methods.ofmu import Ofmu
from expunge.deep.methods.unsir import Unsir
from expunge.deep.problem import Problem
from expunge.deep.renewal import reinitialised
from expunge.deep.training import cross_entropy, train, train_logged


@pytest.fixture(autouse=True)
def _one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def task():
    return problem()


def equal(a, b, task):
    return same(bits(a.unlearn(task).model), bits(b.unlearn(task).model))


def test_neggrad_plus_with_a_of_one_is_fine_tuning(task):
    options = {"epochs": 2, "batch_size": 16, "lr": 0.01, "momentum": 0.9}
    plain = FineTune(schedule="constant", weight_decay=0.0, **options)
    assert equal(NegGradPlus(a=1.0, pull=0.0, **options), plain, task)
    assert not equal(NegGradPlus(a=0.999, pull=0.0, **options), plain, task)
    assert not equal(NegGradPlus(a=1.0, pull=0.1, **options), plain, task)
    assert NegGradPlus(a=1.0, **options).unlearn(task).rows_read["forget"] == 0


def test_scrub_without_maximising_distils_and_fine_tunes(task):
    w0, R = start(task), part(task, "retain")
    w, adam = w0, Adam(0.01)
    for _ in range(3):
        w = adam.step(w, slope(lambda w: 0.5 * kl(w, w0, R[0], 2.0) + ce(w, R), w), 5e-4)
    found = Scrub(epochs=3, max_epochs=0, retain_batch=ROWS).unlearn(task)
    torch.testing.assert_close(vector(found.model), w, rtol=0, atol=1e-11)
    assert found.rows_read["forget"] == 0


def test_dampening_where_nothing_stands_out_changes_nothing(task):
    found = Dampening(alpha=1e9).unlearn(task)
    assert same(bits(found.model), bits(task.model))
    assert "nothing was changed" in found.warnings[0]
    own = torch.rand(50)
    assert torch.equal(factors(own, own, 1.0, 0.0), torch.ones(50))  # I_F ≤ αI_D, also with =
    assert not torch.equal(factors(own * 1.01, own, 1.0, 0.5), torch.ones(50))


STILL = [
    FisherForgetting(alpha=0.0),
    NegGrad(max_steps=0),
    NegGradPlus(epochs=0),
    FineTune(epochs=0),
    RandomLabels(epochs=0),
    SalUn(epochs=0),
    Scrub(epochs=0),
    BadTeacher(epochs=0),
    BoundaryShrink(epochs=0),
    BoundaryExpand(epochs=0),
    Ofmu(rounds=0),
    Unsir(noise_steps=0, impair_epochs=0, repair_epochs=0),
]


@pytest.mark.parametrize("method", STILL, ids=lambda it: it.name)
def test_no_steps_and_no_noise_are_null(task, method):
    task = of_a_class(task) if method.name == "unsir" else task
    found = method.unlearn(task)
    assert same(bits(found.model), bits(METHODS["null"]().unlearn(task).model))
    assert found.evidence["moved"].value == 0.0


def test_ntk_scrubbing_of_nothing_moves_nothing(task):
    """With F empty both linear optima are the same; and Δ vanishes with what F contributes."""
    work, wd = Work(task), 1e-3
    kept = NtkScrub()._linear(work, ("retain",), wd)
    assert stretch(kept - NtkScrub()._linear(work, ("retain",), wd), torch.ones(103)) == 1.0
    J, r = torch.randn(5, 3, 103).double(), torch.randn(5, 3).double()
    silent = torch.zeros(2, 3, 103).double(), torch.ones(2, 3).double()
    for outputs in (15, 1000):  # J is held as a whole, or summed block by block
        one = linear_optimum([(J, r)], outputs, 103, 0.1)
        two = linear_optimum([(J, r), silent], outputs, 103, 0.1)
        torch.testing.assert_close(one, two, rtol=0, atol=1e-10)
        assert not torch.allclose(one, linear_optimum([(J, r)], outputs, 103, 0.2))


def test_bad_teaching_by_the_model_itself_has_no_loss(task, monkeypatch):
    """All records are R: student and teacher agree, and nothing moves."""
    monkeypatch.setattr(Work, "fresh", lambda work: work.problem.model)
    found = BadTeacher(share=1.0, epochs=3).unlearn(task)
    assert float((vector(found.model) - start(task)).abs().max()) < 1e-6  # rounding through Adam
    monkeypatch.undo()
    moved = vector(BadTeacher(share=1.0, epochs=3).unlearn(task).model) - start(task)
    assert float(moved.abs().max()) > 1e-4


def test_all_layers_are_everything(task):
    """CF-k of both layers is fine-tuning, EU-k is fine-tuning from nothing."""
    assert equal(CatastrophicK(k=2, epochs=1), FineTune(epochs=1), task)
    anew = replace(task, model=reinitialised(task.model, task.seed))
    found = ExactK(k=2, epochs=1).unlearn(task)
    assert same(bits(found.model), bits(FineTune(epochs=1).unlearn(anew).model))


def test_taking_back_every_step_is_the_beginning():
    """Amnesiac with all records watched and forgotten."""
    x, y = rows()
    begun = problem().model
    model, log = train_logged(begun, (x, y), RECIPE, sensitive=range(ROWS))
    task = Problem(model, cross_entropy, (x, y), stored=log, forget_ids=range(ROWS))
    found = Amnesiac(epochs=0).unlearn(task)
    assert found.evidence["takenBack"].value == log.steps == len(log.updates)
    torch.testing.assert_close(vector(found.model), vector(begun), rtol=0, atol=1e-13)


def test_rescaled_influence_is_longer_by_n_over_what_is_left(task):
    options = {"curvature": "hessian", "damping": 10.0}
    short = vector(Influence(**options).unlearn(task).model) - start(task)
    long = vector(Influence(variant="rescaled", **options).unlearn(task).model) - start(task)
    torch.testing.assert_close(long, short * ROWS / (ROWS - GONE), rtol=1e-6, atol=1e-12)


def test_influence_of_a_sample_of_r_counts_all_records(task):
    """N and the weights of the Hessian are those of D where the ids say how many there were."""
    x, y = part(task, "retain")
    twice = [i for i in range(GONE, ROWS) for _ in range(2)]
    trained = [*range(GONE), *twice]
    doubled = replace(task, retain=(torch.cat([x, x]), torch.cat([y, y])), retain_ids=None,
                      trained_ids=None, forget_ids=None)  # fmt: skip
    sampled = replace(task, trained_ids=trained)
    a, b = (Influence(damping=1.0).unlearn(it).model for it in (doubled, sampled))
    torch.testing.assert_close(vector(a), vector(b), rtol=0, atol=1e-9)
    assert float((vector(a) - vector(Influence(damping=1.0).unlearn(task).model)).norm()) > 1e-6


def test_salun_with_all_weights_is_not_masked(task):
    found = SalUn(share=1.0, epochs=1).unlearn(task)
    assert found.evidence["masked"].value == 103
    assert bool((vector(found.model) != start(task)).all())


@pytest.mark.parametrize("share", [0.1, 0.5])
def test_salun_masks_by_the_trained_weights_and_keeps_the_largest(task, share):
    """Weights that stay are those of small gradient at w₀, whatever the steps did to it since."""
    size = slope(lambda w: ce(w, part(task, "forget")), start(task)).abs()
    moved = vector(SalUn(share=share, epochs=3).unlearn(task).model) != start(task)
    assert torch.equal(moved, largest(size, share))
    assert size[moved].min() >= size[~moved].max()


def test_retraining_is_training_from_nothing(task):
    """The same as `train` from renewed weights: F, its old model and its log play no part."""
    recipe = replace(RECIPE, seed=task.seed)
    fresh = reinitialised(task.model, task.seed)
    plain = train(fresh, part(task, "retain"), recipe)
    found = METHODS["retrain"]().unlearn(task)
    assert same(bits(found.model), bits(plain))
    x, y = part(task, "forget")
    blind = replace(task, forget=(x + 5.0, 0 * y), stored=None)
    with torch.no_grad():
        spoilt = nn.Sequential(*[nn.Linear(6, 10), nn.Tanh(), nn.Linear(10, 3)]).double()
    blind = replace(blind, model=spoilt)
    assert same(bits(METHODS["retrain"]().unlearn(blind).model), bits(plain))
    assert found.rows_read == {"forget": 0, "retain": RECIPE.epochs * 64}
