"""The first steps of every method against the published update, written down in plain torch.

Batches are whole sets, so that their order plays no part; with two classes the other label is not
drawn but known.
"""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from deep_problems import (
    GONE,
    Adam,
    Sgd,
    ce,
    kl,
    net,
    of_a_class,
    outputs,
    part,
    problem,
    slope,
    start,
    vector,
)
from expunge.deep.methods import METHODS
from expunge.deep.methods.amnesiac import Amnesiac
from expunge.deep.methods.boundary import BoundaryExpand, BoundaryShrink
from expunge.deep.methods.dampening import Dampening
from expunge.deep.methods.distill import BadTeacher, Scrub
from expunge.deep.methods.finetune import CatastrophicK, ExactK, FineTune
from expunge.deep.methods.fisher import FisherForgetting
from expunge.deep.methods.labels import RandomLabels, SalUn
from expunge.deep.methods.lcodec import LCodec
from expunge.deep.methods.negative import NegGrad, NegGradPlus
from expunge.deep.methods.ntk import NtkScrub
from expunge.deep.methods.ofmu import Ofmu
from expunge.deep.methods.unsir import Unsir
from expunge.deep.renewal import reinitialised

ALL = 1000
"""More than there are records."""

WD = 1e-3


@pytest.fixture(autouse=True)
def _one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def task():
    return problem()


@pytest.fixture(scope="module")
def two():
    return problem(classes=2)


def check(method, task, w, atol=1e-11):
    """Check the weights that a method returns, and that they are not those it began with."""
    found = vector(method.unlearn(task).model)
    assert float((w - start(task)).abs().max()) > 1e3 * atol
    torch.testing.assert_close(found, w, rtol=0, atol=atol)


def test_fine_tuning(task):
    w, sgd, R = start(task), Sgd(0.9, WD), part(task, "retain")
    for epoch in range(3):
        rate = FineTune(epochs=3, batch_size=ALL, schedule=(1,)).lr * (0.1 if epoch else 1.0)
        w = sgd.step(w, slope(lambda w: ce(w, R), w), rate)
    check(FineTune(epochs=3, batch_size=ALL, schedule=(1,)), task, w)


def test_fine_tuning_warms_up(task):
    """The default begins at a 25th of the peak."""
    w, R = start(task), part(task, "retain")
    g = slope(lambda w: ce(w, R), w) + WD * w
    check(FineTune(epochs=1, batch_size=ALL), task, w - 0.02 / 25 * g)


def test_the_last_layer_is_fine_tuned(task):
    w, R = start(task), part(task, "retain")
    g = slope(lambda w: ce(w, R), w) + WD * w
    g[:70] = 0.0
    check(CatastrophicK(epochs=1, batch_size=ALL), task, w - 0.02 / 25 * g)


def test_the_last_layer_is_begun_anew(task):
    w, R = start(task), part(task, "retain")
    torch.manual_seed(task.seed)
    head = nn.Linear(10, 3).double()  # drawn in float64 by reset_parameters
    torch.manual_seed(task.seed)
    head.reset_parameters()
    w = torch.cat([w[:70], head.weight.detach().reshape(-1), head.bias.detach()])
    g = slope(lambda w: ce(w, R), w) + WD * w
    g[:70] = 0.0
    check(ExactK(epochs=1, batch_size=ALL), task, w - 0.02 / 25 * g)


def test_neggrad_goes_up(task):
    w, sgd, part_f = start(task), Sgd(0.9, 1e-4), part(task, "forget")
    for _ in range(3):
        w = sgd.step(w, -slope(lambda w: ce(w, part_f), w), 1e-3)
    check(NegGrad(max_steps=3, target=-1.0), task, w)
    assert ce(w, part_f) > ce(start(task), part_f)


def test_neggrad_stops_at_its_target(task):
    done = NegGrad(lr=0.1, target=0.5, max_steps=100).unlearn(task)
    before = NegGrad(lr=0.1, target=0.5, max_steps=done.evidence["steps"].value - 1).unlearn(task)
    assert done.evidence["forgetAccuracy"].value <= 0.5 < before.evidence["forgetAccuracy"].value
    assert not done.warnings
    assert "not 0.5" in before.warnings[0]
    assert done.rows_read["forget"] == GONE * (2 * done.evidence["steps"].value + 1)


def test_neggrad_plus_weighs_the_two_losses_and_pulls_back(task):
    w0 = start(task)
    w, sgd = w0, Sgd(0.9)
    R, part_f = part(task, "retain"), part(task, "forget")

    def objective(w):
        held = ce(w, R) + 0.3 / 2 * ((w - w0) ** 2).sum()
        return 0.8 * held - 0.2 * ce(w, part_f)

    for _ in range(3):
        w = sgd.step(w, slope(objective, w), 0.01)
    check(NegGradPlus(a=0.8, pull=0.3, epochs=3, batch_size=ALL), task, w)


def test_neggrad_plus_pairs_every_batch_and_begins_f_again(task):
    found = NegGradPlus(epochs=2, batch_size=5).unlearn(task)
    assert found.evidence["steps"].value == 2 * 13
    assert found.rows_read == {"retain": 2 * 64, "forget": 13 * GONE}


def other(batch):
    """Return the batch with the other one of two labels."""
    return batch[0], 1 - batch[1]


def test_random_labels(two):
    w, adam = start(two), Adam()
    R, wrong = part(two, "retain"), other(part(two, "forget"))
    for _ in range(3):
        g = slope(lambda w: 64 / 72 * ce(w, R, 2) + 8 / 72 * ce(w, wrong, 2), w)
        w = adam.step(w, g, 1e-4)
    check(RandomLabels(batch_size=ALL), two, w)


def test_random_labels_of_f_alone(two):
    w, adam, wrong = start(two), Adam(), other(part(two, "forget"))
    for _ in range(3):
        w = adam.step(w, slope(lambda w: ce(w, wrong, 2), w), 1e-4)
    check(RandomLabels(batch_size=ALL, mixed=False), two, w)


def test_salun(two):
    """F with other labels, then R, on the half of the weights whose forget gradient is largest."""
    w0 = start(two)
    R, gone = part(two, "retain"), part(two, "forget")
    size = slope(lambda w: ce(w, gone, 2), w0).abs()
    mask = size >= size.sort(descending=True).values[(len(size) + 1) // 2 - 1]
    assert int(mask.sum()) == (len(size) + 1) // 2
    w, sgd = w0, Sgd(0.9, WD)
    for _ in range(2):
        for batch in (other(gone), R):
            g = slope(lambda w, batch=batch: ce(w, batch, 2), w)
            w = torch.where(mask, sgd.step(w, g, 0.013), w0)
    check(SalUn(epochs=2, batch_size=ALL), two, w)


def test_scrub(task):
    """Both passes share one Adam; the rate falls after an epoch, not after a number of steps."""
    w0 = start(task)
    w, adam = w0, Adam(0.01)
    R, gone = part(task, "retain"), part(task, "forget")
    for epoch in range(3):
        rate = 5e-4 * (0.1 if epoch >= 2 else 1.0)
        if epoch < 2:
            w = adam.step(w, -slope(lambda w: kl(w, w0, gone[0], 2.0), w), rate)

        def near(w):
            return 0.5 * kl(w, w0, R[0], 2.0) + ce(w, R)

        w = adam.step(w, slope(near, w), rate)
    method = Scrub(epochs=3, max_epochs=2, milestones=(2,), retain_batch=ALL, forget_batch=ALL)
    check(method, task, w, atol=1e-8)  # at first the divergence is flat, up to rounding


def test_bad_teacher(task):
    w0, bad = start(task), vector(reinitialised(task.model, task.seed))
    w, adam = w0, Adam()
    R, gone = part(task, "retain"), part(task, "forget")
    for _ in range(3):
        g = slope(lambda w: 8 / 72 * kl(w, bad, gone[0]) + 64 / 72 * kl(w, w0, R[0]), w)
        w = adam.step(w, g, 1e-4)
    check(BadTeacher(epochs=3, batch_size=ALL, share=1.0), task, w)
    assert BadTeacher().unlearn(task).rows_read == {"forget": 8, "retain": 19}  # 30 % of 64


def test_dampening(task):
    """Squared gradients of batches, of F and of all records at the end of training."""
    w0 = start(task)
    gone = part(task, "forget")
    x, y = (torch.cat(it) for it in zip(gone, part(task, "retain"), strict=True))

    def importance(x, y):
        squares = []
        for i in range(0, len(y), 16):
            batch = x[i : i + 16], y[i : i + 16]
            squares.append(slope(lambda w, batch=batch: ce(w, batch), w0) ** 2)
        return torch.stack(squares).mean(0)

    own, whole = importance(*gone), importance(x, y)
    torch.testing.assert_close(task.stored.importance, whole, rtol=1e-9, atol=1e-15)
    chosen = own > 2.0 * whole
    assert 0 < int(chosen.sum()) < len(w0)
    expected = torch.where(chosen, w0 * (0.7 * whole / own).clamp(max=1.0), w0)
    method = Dampening(alpha=2.0, dampening=0.7)
    check(method, task, expected)
    assert method.unlearn(task).evidence["dampened"].value == int(chosen.sum())


def test_fisher_noise(task):
    """The true Fisher diagonal record by record and label by label, and the variance from it."""
    w0, (x, _) = start(task), part(task, "retain")
    q = outputs(w0, x).softmax(1)
    fisher = torch.zeros_like(w0)
    for k in range(3):
        labels = torch.full((len(x),), k)
        each = slope(lambda w, t=labels: F.cross_entropy(outputs(w, x), t, reduction="none"), w0)
        fisher += (q[:, k, None] * each**2).mean(0)
    v = 1e-6 * (1 / (fisher + 1e-8)).clamp(max=1e3)
    first, bias, last, end = torch.split(v, [60, 10, 30, 3])
    cap = 1e-6 * 1e2
    last, end = last.clamp(max=cap).reshape(3, 10), end.clamp(max=cap)
    first, last = (it.mean(1, keepdim=True).expand_as(it) for it in (first.reshape(10, 6), last))
    parts = [first.clone(), 10 * bias, last.clone(), 10 * end]
    drawn = torch.randn(103, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    law = torch.cat([it.reshape(-1) for it in parts])
    check(FisherForgetting(), task, w0 + drawn * law.sqrt())
    parts[2][1], parts[3][1] = 1e-4, 1e-4
    center = w0.clone()
    center[80:90], center[101] = 0.0, 0.0
    law = torch.cat([it.reshape(-1) for it in parts])
    check(FisherForgetting(forgotten_class=1), task, center + drawn * law.sqrt())


def test_amnesiac_takes_back_what_the_steps_did(task):
    changes = [u.change for u in task.stored.updates if u.ids & set(range(GONE))]
    w = start(task) - torch.stack(changes).sum(0)
    assert 0 < len(changes) < task.stored.steps
    check(Amnesiac(epochs=0), task, w)
    R = part(task, "retain")
    g = slope(lambda w: ce(w, R), w) + WD * w
    check(Amnesiac(epochs=1, batch_size=ALL), task, w - 0.02 / 25 * g)


def test_amnesiac_takes_back_only_what_is_asked(task):
    x, y = part(task, "forget")
    fewer = replace(task, forget=(x[:2], y[:2]), forget_ids=[0, 1])
    taken = Amnesiac(epochs=0).unlearn(fewer).evidence["takenBack"].value
    updates = task.stored.updates
    assert taken == sum(bool(u.ids & {0, 1}) for u in updates) < len(updates)


def test_boundary_shrink(task):
    w0, (x, y) = start(task), part(task, "forget")
    up = torch.autograd.functional.jacobian(lambda x: ce(w0, (x, y)), x).sign()
    labels = outputs(w0, x + 0.1 * up).argmax(1)
    w, sgd = w0, Sgd(0.9)
    for _ in range(2):
        w = sgd.step(w, slope(lambda w: ce(w, (x, labels)), w), 1e-2)
    check(BoundaryShrink(lr=1e-2, epochs=2), task, w)


def test_boundary_shrink_with_more_steps(task):
    w0, (x, y) = start(task), part(task, "forget")
    moved = x
    for _ in range(5):
        up = torch.autograd.functional.jacobian(lambda x: ce(w0, (x, y)), moved).sign()
        moved = x + (moved + 2 / 255 * up - x).clamp(-8 / 255, 8 / 255)
    labels = outputs(w0, moved).argmax(1)
    w = w0 - 1e-2 * slope(lambda w: ce(w, (x, labels)), w0)
    check(BoundaryShrink(lr=1e-2, epochs=1, attack="pgd"), task, w)


def test_boundary_expand(task):
    w0, (x, y) = start(task), part(task, "forget")
    torch.manual_seed(task.seed)
    extra = nn.Linear(10, 4).double()
    new, sgd = extra.weight[3:].detach(), Sgd(0.9)
    wide = torch.cat([w0[:100], new.reshape(-1), w0[100:], extra.bias[3:].detach()])
    fourth = torch.full_like(y, 3)
    for _ in range(2):
        wide = sgd.step(wide, slope(lambda w: ce(w, (x, fourth), 4), wide), 1e-2)
    check(
        BoundaryExpand(lr=1e-2, epochs=2), task, torch.cat([wide[:100], wide[110:113]]), atol=1e-9
    )


def test_unsir(task):
    """One step of the noises, one of impairing, one of repairing."""
    task = of_a_class(task)
    w0, (x, y), noise_rows = start(task), part(task, "retain"), 4
    generator = torch.Generator().manual_seed(task.seed)
    torch.randperm(len(y), generator=generator)  # the sample: here all of R
    noise = torch.randn(noise_rows, 6, generator=generator, dtype=torch.float64)
    label = torch.full((noise_rows,), 2)

    def worst(noise):
        return -ce(w0, (noise, label)) + 0.1 * (noise**2).sum(1).mean()

    noise = Adam().step(noise, torch.autograd.functional.jacobian(worst, noise), 0.1)
    copies, count = 3 * noise_rows, len(y)
    assert set(y.tolist()) == {0, 1}

    def impair(w):
        return (copies * ce(w, (noise, label)) + count * ce(w, (x, y))) / (copies + count)

    w = Adam().step(w0, slope(impair, w0), 1e-4)
    w = Adam().step(w, slope(lambda w: ce(w, (x, y)), w), 1e-4)
    method = Unsir(noise_steps=1, noise_batch=noise_rows, copies=3, batch_size=ALL)
    check(method, task, w)
    assert method.unlearn(task).evidence["noises"].value == copies


def test_unsir_takes_a_sample_of_every_other_class(task):
    task = of_a_class(task)
    found = Unsir(per_class=5).unlearn(task)
    assert found.evidence["sampled"].value == 10
    assert found.rows_read == {"forget": 1, "retain": 20}


@pytest.mark.parametrize("dual", [False, True])
def test_ntk_scrubbing(task, dual):
    """Against dense matrices, whichever of the two is factored."""
    if dual:  # 24·3 outputs for 103 weights
        task = replace(task, retain=tuple(t[:16] for t in part(task, "retain")), retain_ids=None)
    w, gone, R = start(task), part(task, "forget"), part(task, "retain")

    def linear(*sets):
        x, y = (torch.cat(it) for it in zip(*sets, strict=True))
        J = torch.autograd.functional.jacobian(lambda w: outputs(w, x), w).reshape(-1, len(w))
        r = (outputs(w, x).softmax(1) - F.one_hot(y, 3)).reshape(-1)
        K = J @ J.T + len(y) * WD * torch.eye(len(J), dtype=torch.float64)
        return -J.T @ torch.linalg.solve(K, r)

    kept, whole = linear(R), linear(R, gone)
    delta, error = kept - whole, (w - task.stored.initial) - kept
    cosine = float(delta @ error / (delta.norm() * error.norm()))
    factor = 1 + 2 * abs(cosine) * float(error.norm() / delta.norm())
    check(NtkScrub(), task, w + factor * delta, atol=1e-8)
    assert NtkScrub().unlearn(task).evidence["factor"].value == pytest.approx(factor, rel=1e-7)


def test_l_codec_with_all_units_is_a_newton_step(task):
    """One record, S everything: ``(1/(n−1))(H + λI)⁻¹g`` with H of the others."""
    w, (x, y), R = start(task), part(task, "forget"), part(task, "retain")
    rest = tuple(torch.cat([a[1:], b]) for a, b in zip((x, y), R, strict=True))
    one = replace(task, forget=(x[:1], y[:1]), retain=rest, forget_ids=[0], retain_ids=None)

    def mean(w, batch):
        return ce(w, batch) + WD / 2 * (w * w).sum()

    H = torch.autograd.functional.hessian(lambda w: mean(w, rest), w)
    g = slope(lambda w: mean(w, (x[:1], y[:1])), w)
    step = torch.linalg.solve(H + 2.0 * torch.eye(len(w), dtype=torch.float64), g) / 71
    check(LCodec(damping=2.0, select=False), one, w + step, atol=1e-10)


def test_l_codec_changes_whole_units_only(task):
    found = LCodec(damping=1.0).unlearn(task)
    moved = vector(found.model) != start(task)
    rows = torch.cat([moved[:60].reshape(10, 6), moved[60:70, None]], 1)
    assert bool((rows.any(1) == rows.all(1)).all())
    assert 0 < found.evidence["coordinates"].value < 103
    noisy = LCodec(damping=1.0, noise=True).unlearn(task)
    sigma = 2 * 0.25 * 8**2 / (72**2 * 1.0**3 * 0.1) * math.sqrt(2 * math.log(1.25 / 0.01))
    assert noisy.evidence["sigma"].value == pytest.approx(sigma, rel=1e-12)
    drawn = (vector(noisy.model) - vector(found.model)) / sigma
    assert float(drawn.std()) == pytest.approx(1.0, abs=0.2)
    assert noisy.guarantee is None


def test_ofmu(task):
    R, gone = part(task, "retain"), part(task, "forget")

    def inner(w):
        a, b = (torch.autograd.grad(ce(w, it), w, create_graph=True)[0] for it in (gone, R))
        return ce(w, gone) - 0.5 * (a @ b) ** 2 / ((a @ a) * (b @ b))

    def outer(w):
        (up,) = torch.autograd.grad(inner(w), w, create_graph=True)
        return ce(w, R) + 0.2 * (up @ up)

    w = start(task)
    for _ in range(2):
        w = w.requires_grad_()
        (g,) = torch.autograd.grad(inner(w), w)
        w = (w + 1e-3 * g).detach().requires_grad_()
        (g,) = torch.autograd.grad(outer(w), w)
        w = (w - 1e-2 * (g + WD * w)).detach()
    check(Ofmu(similarity=0.5, penalty=0.2, rounds=2, batch_size=ALL), task, w, atol=1e-10)


def test_retraining(task):
    """Adam on R in the order that the seed gives, from weights drawn by the seed."""
    task = replace(task, seed=5, train=replace(task.train, batch_size=ALL, epochs=3))
    torch.manual_seed(5)
    fresh = net()
    for layer in reversed(list(fresh)):
        if hasattr(layer, "reset_parameters"):
            layer.reset_parameters()
    w, adam, R = vector(fresh), Adam(WD), part(task, "retain")
    for _ in range(3):
        w = adam.step(w, slope(lambda w: ce(w, R), w), 0.02)
    check(METHODS["retrain"](), task, w, atol=1e-10)


def test_scrub_schedule_counts_epochs_whatever_the_batches(task):
    """Many more batches of F than of R do not move the milestones."""
    a = Scrub(epochs=3, max_epochs=3, milestones=(1,), retain_batch=ALL, forget_batch=1)
    b = Scrub(epochs=3, max_epochs=3, milestones=(1,), retain_batch=ALL, forget_batch=1, lr=5e-5)
    after = replace(a, epochs=1, max_epochs=1)
    moved = [vector(m.unlearn(task).model) - start(task) for m in (a, b, after)]
    assert float((moved[0] - moved[2]).norm()) < 0.6 * float(moved[2].norm())
    assert float(moved[1].norm()) < 0.3 * float(moved[0].norm())
