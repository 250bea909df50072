"""Training that repeats, holds what it must not move, and says when it has gone wrong."""

from __future__ import annotations

import copy
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from deep_problems import RECIPE, ROWS, Adam, Sgd, bits, ce, net, rows, same, slope, vector
from expunge.deep.descent import Descent, Diverged, Recipe, project
from expunge.deep.network import view
from expunge.deep.renewal import duplicate, reinitialised, seeded
from expunge.deep.training import train, train_logged
from expunge.errors import InvalidInput

X, Y = rows()


@pytest.fixture(autouse=True)
def _one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


# --- steps ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["adam", "sgd"])
def test_training_is_the_published_optimiser_in_the_order_of_the_seed(name):
    recipe = Recipe(name, 0.01, 3, 20, 0.05, 0.9 if name == "sgd" else 0.0, 2.5, seed=4)
    trained = train(net(), (X, Y), recipe)
    optimiser = Adam(0.05) if name == "adam" else Sgd(0.9, 0.05)
    order, w = torch.Generator().manual_seed(4), vector(net())
    for _ in range(3):
        for index in torch.split(torch.randperm(ROWS, generator=order), 20):
            batch = X[index], Y[index]
            w = optimiser.step(w, slope(lambda w, batch=batch: ce(w, batch), w), 0.01)
            w = w * min(1.0, 2.5 / float(w.norm()))
    torch.testing.assert_close(vector(trained), w, rtol=0, atol=1e-11)


def test_the_ball_is_never_left():
    norms = []
    recipe = Recipe(lr=0.5, epochs=1, batch_size=8, max_norm=1.0)
    network = view(net(dtype=torch.float32))
    descent = Descent(network, recipe, 9)
    for i in range(9):
        batch = X[8 * i : 8 * i + 8].float(), Y[8 * i : 8 * i + 8]
        descent.step(F.cross_entropy(network.module(batch[0]), batch[1]))
        norms.append(float(network.vector().double().norm()))
    assert 0.999 < min(norms) <= max(norms) <= 1.0
    inside = network.vector()
    project(network, 5.0)
    assert torch.equal(network.vector(), inside)


@pytest.mark.parametrize("schedule", ["cosine", "one_cycle", (2, 3)])
def test_schedules_are_those_of_torch(schedule):
    epochs, per_epoch, peak = 4, 50, 0.1
    dummy = torch.optim.SGD([torch.zeros(1)], lr=peak)
    total = epochs * per_epoch
    theirs = {
        "cosine": lambda: torch.optim.lr_scheduler.CosineAnnealingLR(dummy, total - 1),
        "one_cycle": lambda: torch.optim.lr_scheduler.OneCycleLR(dummy, peak, total),
        (2, 3): lambda: torch.optim.lr_scheduler.MultiStepLR(dummy, [100, 150]),
    }[schedule]()
    recipe = Recipe("sgd", peak, epochs, schedule=schedule)
    for step in range(total):
        ours = peak * recipe.factor(step, per_epoch)
        # the peak of torch's one-cycle is 0.7 steps earlier
        slack = 0.002 if schedule == "one_cycle" else 1e-9
        assert ours == pytest.approx(dummy.param_groups[0]["lr"], abs=slack)
        dummy.step()
        theirs.step()


def test_a_mask_holds_the_rest_against_momentum_and_weight_decay():
    network = view(net())
    w, mask = network.vector(), torch.arange(103) % 2 == 0
    descent = Descent(network, Recipe("sgd", 0.1, weight_decay=0.1, momentum=0.9), 1, mask)
    for _ in range(3):
        descent.step(F.cross_entropy(network.module(X), Y))
    moved = network.vector() != w
    assert torch.equal(moved, mask)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"optimiser": "lbfgs"}, "adam or sgd"),
        ({"lr": 0.0}, "lr must be"),
        ({"lr": float("nan")}, "lr must be"),
        ({"epochs": -1}, "epochs"),
        ({"batch_size": 0}, "batch_size"),
        ({"weight_decay": -1.0}, "weight_decay"),
        ({"momentum": 0.9}, "0 for adam"),
        ({"max_norm": 0.0}, "max_norm"),
        ({"schedule": "linear"}, "schedule"),
    ],
)
def test_recipes_are_checked(options, message):
    with pytest.raises(InvalidInput, match=message):
        Recipe(**options)


def test_a_recipe_has_one_digest():
    assert Recipe(schedule=[3, 4]).digest() == Recipe(schedule=(3, 4)).digest()
    assert Recipe(seed=1).digest() != Recipe(seed=2).digest()


# --- a run ----------------------------------------------------------------------------------------


def dropping(dtype=torch.float32):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        made = nn.Sequential(nn.Linear(6, 8), nn.Dropout(0.3), nn.ReLU(), nn.Linear(8, 3))
    return made.to(dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_training_repeats_bitwise_and_leaves_everything_else_alone(dtype):
    model, data = dropping(dtype).eval(), (X.to(dtype), Y)
    before, state = bits(model), torch.random.get_rng_state()
    a, b = train(model, data, RECIPE), train(model, data, RECIPE)
    assert same(bits(a), bits(b))
    assert same(bits(model), before)
    assert torch.equal(torch.random.get_rng_state(), state)
    assert not a[1].training
    assert not any(p.grad is not None for p in (*a.parameters(), *model.parameters()))
    assert not same(bits(a), bits(train(model, data, replace(RECIPE, seed=1))))
    assert {p.dtype for p in a.parameters()} == {dtype}


class Named(nn.Module):
    """The MLP with its features in two keyword arguments."""

    def __init__(self):
        super().__init__()
        self.inner = net()

    def forward(self, left, right):
        """Return logits."""
        return self.inner(torch.cat([left, right], 1))


def test_data_of_any_form_train_the_same():
    plain = vector(train(net(), (X, Y), RECIPE))
    loader = DataLoader(TensorDataset(X, Y), batch_size=7)
    batches = [(X[:50], Y[:50]), (X[50:], Y[50:])]
    for data in (TensorDataset(X, Y), loader, batches):
        assert torch.equal(vector(train(net(), data, RECIPE)), plain)
    keyed = {"left": X[:, :2], "right": X[:, 2:], "labels": Y}
    assert torch.equal(vector(train(Named(), keyed, RECIPE)), plain)
    pair = ((X[:, :2], X[:, 2:]), Y)
    assert torch.equal(vector(train(Named(), pair, RECIPE)), plain)


def test_progress_is_reported_after_every_epoch():
    seen = []
    train(net(), (X, Y), RECIPE, progress=lambda *it: seen.append(it))
    assert [it[:2] for it in seen] == [(i, 4) for i in range(1, 5)]
    assert seen[0][2] > seen[-1][2] > 0.0


def test_only_params_are_trained_also_in_normalisation():
    model = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3)).double()
    trained = train(model, (X, Y), RECIPE, params="3.*")
    old, new = bits(model), bits(trained)
    assert [k for k in old if not torch.equal(old[k], new[k])] == ["3.weight", "3.bias"]
    model[1].requires_grad_(False)
    assert torch.equal(train(model, (X, Y), RECIPE)[1].running_mean, model[1].running_mean)
    model[1].requires_grad_(True)
    assert not torch.equal(train(model, (X, Y), RECIPE)[1].running_mean, model[1].running_mean)
    bare = nn.Sequential(nn.BatchNorm1d(6, affine=False), nn.Linear(6, 3)).double()
    assert not torch.equal(train(bare, (X, Y), RECIPE)[0].running_mean, bare[0].running_mean)


def test_numbers_that_are_none_are_found():
    broken = X.clone()
    broken[40, 0] = torch.nan
    with pytest.raises(Diverged, match=r"before any step, so look .* data") as error:
        train(net(), (broken, Y), replace(RECIPE, batch_size=ROWS))
    assert "learning rate" not in str(error.value)
    with pytest.raises(Diverged, match="lower the learning rate"):
        train(net(), (X, Y), replace(RECIPE, optimiser="sgd", lr=1e20, epochs=20))


def test_a_last_step_that_diverges_is_found_without_another_loss():
    recipe = Recipe("sgd", 1e38, 1, ROWS)
    with pytest.raises(Diverged, match="not finite"):
        train(nn.Linear(6, 3), (1e4 * X.float(), Y), recipe)


# --- what is stored -------------------------------------------------------------------------------


def test_the_stored_steps_add_up_to_the_training():
    trained, log = train_logged(net(), (X, Y), RECIPE, sensitive=range(ROWS))
    assert torch.equal(log.initial, vector(net()))
    assert log.steps == len(log.updates) == 4 * 5
    total = log.initial + torch.stack([u.change for u in log.updates]).sum(0)
    torch.testing.assert_close(total, vector(trained), rtol=0, atol=1e-13)
    assert all(len(u.ids) in (16, 8) for u in log.updates)
    assert same(bits(trained), bits(train(net(), (X, Y), RECIPE)))  # watching changes nothing


def test_only_steps_of_watched_records_are_stored():
    names = [f"r{i}" for i in range(ROWS)]
    _, log = train_logged(net(), (X, Y), RECIPE, sensitive=["r3", "r70"], ids=names)
    assert sum("r3" in u.ids for u in log.updates) == sum("r70" in u.ids for u in log.updates) == 4
    assert 4 <= len(log.updates) <= 8
    assert log.bytes == (len(log.updates) + 2) * 103 * 8
    _, none = train_logged(net(), (X, Y), RECIPE, sensitive=[])
    assert none.updates == ()
    for wrong, message in (({"sensitive": ["r99"]}, "r99"), ({"ids": [1]}, "1 ids")):
        with pytest.raises(InvalidInput, match=message):
            train_logged(net(), (X, Y), RECIPE, **{"ids": names, "sensitive": [], **wrong})


def test_how_many_steps_the_records_of_the_digits_are_in():
    """15 epochs of 44 batches: one record is in one batch of each, fourteen in about 177 of 660."""
    x, y = load_digits(return_X_y=True)
    x, y = torch.tensor(x[:1437] / 16).float(), torch.tensor(y[:1437])
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 16), nn.ReLU(), nn.Linear(16, 10))
    recipe = Recipe(lr=2e-3, epochs=15, batch_size=33)
    _, one = train_logged(model, (x, y), recipe, sensitive=[0])
    assert (len(one.updates), one.steps) == (15, 660)
    _, many = train_logged(model, (x, y), recipe, sensitive=range(14))
    expected = 660 * (1 - (1 - 1 / 44) ** 14)
    assert len(many.updates) == pytest.approx(expected, rel=0.08)
    assert len(many.updates) == pytest.approx(177, rel=0.08)


# --- beginning again ------------------------------------------------------------------------------


class Deep(nn.Module):
    """Modules of many kinds, some inside others."""

    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(5, 8)
        self.body = nn.TransformerEncoderLayer(8, 2, 8, batch_first=True)
        self.conv = nn.Sequential(nn.Conv1d(8, 4, 1), nn.BatchNorm1d(4), nn.PReLU())
        self.rnn = nn.GRU(4, 3, batch_first=True)
        self.out = nn.Linear(3, 5)

    def forward(self, ids):
        """Return logits."""
        h = self.conv(self.body(self.table(ids)).mT).mT
        return self.out(self.rnn(h)[0][:, -1])


def test_every_module_begins_anew_and_shares_nothing():
    torch.manual_seed(3)
    old = Deep()
    with torch.no_grad():
        for t in old.state_dict().values():
            t.fill_(7)
    fresh = reinitialised(old, 11)
    for name, t in fresh.state_dict().items():
        assert not bool((t == 7).any()), name
    held = {t.untyped_storage().data_ptr() for t in old.state_dict().values()}
    assert held.isdisjoint(t.untyped_storage().data_ptr() for t in fresh.state_dict().values())
    assert all(bool((t == 7).all()) for t in old.state_dict().values())
    assert same(bits(fresh), bits(reinitialised(Deep(), 11)))  # nothing of the old one plays a part
    assert not same(bits(fresh), bits(reinitialised(Deep(), 12)))
    assert float(fresh.conv[1].running_var.min()) == 1.0
    assert int(fresh.conv[1].num_batches_tracked) == 0


def test_new_weights_have_the_law_of_the_constructor():
    torch.manual_seed(3)
    made = Deep()
    fresh = reinitialised(Deep(), 11)
    for (name, a), b in zip(made.state_dict().items(), fresh.state_dict().values(), strict=True):
        if a.numel() < 3:
            assert torch.equal(a, b), name  # constants: PReLU's slope, the count of batches
        else:
            assert float(a.std()) == pytest.approx(float(b.std()), rel=0.5, abs=0.05), name
            assert float(a.mean()) == pytest.approx(float(b.mean()), abs=0.35), name


class Bare(nn.Module):
    """A parameter that nothing draws anew."""

    def __init__(self):
        super().__init__()
        self.inner, self.scale = nn.Linear(6, 3), nn.Parameter(torch.ones(3))


def test_what_cannot_be_drawn_anew_is_named():
    with pytest.raises(InvalidInput, match=r"nothing sets scale anew.*Problem\(fresh=...\)"):
        reinitialised(Bare(), 0)
    with pytest.raises(InvalidInput, match="choose whole modules"):
        reinitialised(net(), 0, "0.weight")
    frozen = net()
    frozen[0].requires_grad_(False)
    with pytest.raises(InvalidInput, match=r"frozen \(0.weight"):
        reinitialised(frozen, 0)


def test_the_rest_is_kept_where_a_part_begins_anew():
    model = net()
    fresh = reinitialised(model, 0, "2.*")
    assert torch.equal(fresh[0].weight, model[0].weight)
    assert not torch.equal(fresh[2].weight, model[2].weight)
    tied = nn.Sequential(nn.Linear(6, 6), nn.Linear(6, 6))
    tied[1].weight = tied[0].weight
    again = reinitialised(tied, 0)
    assert again[1].weight is again[0].weight
    assert not bool(again[0].weight.isnan().any())


def test_copies_carry_no_gradients_and_seeds_leave_no_trace():
    model = net()
    model(X).sum().backward()
    assert all(p.grad is None for p in duplicate(model).parameters())
    assert all(p.grad is not None for p in model.parameters())
    state = torch.random.get_rng_state()
    with seeded(3, torch.device("cpu")):
        first = torch.rand(3)
    with seeded(3, torch.device("cpu")):
        assert torch.equal(first, torch.rand(3))
    assert torch.equal(torch.random.get_rng_state(), state)
    assert same(bits(copy.deepcopy(model)), bits(duplicate(model)))
