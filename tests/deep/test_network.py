"""A module as a function of a vector, and what holds it still."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from deep_example import CASES, Bilinear, Dense, Words, cnn, mlp, relative, words
from expunge.deep.network import UnsupportedModel, evaluating, refuse_batch_statistics, view
from expunge.errors import InvalidInput


@pytest.mark.parametrize("name", CASES)
def test_outputs_are_those_of_the_module(name):
    case = CASES[name]()
    net, dense = view(case.module), Dense(case)
    assert list(net.names) == dense.names
    assert torch.equal(net.vector(), dense.w)
    w = torch.randn(net.size, dtype=torch.float64)
    assert relative(net.outputs(w, case.inputs), dense.outputs(w)) < 1e-14
    assert torch.equal(net.outputs(net.unflatten(w), case.inputs), net.outputs(w, case.inputs))
    assert torch.equal(net.flatten(net.unflatten(w)), w)


@pytest.mark.parametrize("name", CASES)
def test_loading_a_vector_is_setting_the_parameters(name):
    case = CASES[name]()
    net, w = view(case.module), 0.1 * torch.randn(view(case.module).size, dtype=torch.float64)
    expected = net.outputs(w, case.inputs)
    before = net.vector()
    net.load(w)
    assert torch.equal(net.vector(), w)
    assert torch.equal(net.outputs(net.vector(), case.inputs), expected)
    net.load(before)
    assert all(p.requires_grad for p in net.parameters)


def test_the_vector_is_a_copy():
    net = view(mlp().module)
    net.vector().zero_()
    assert float(net.vector().abs().max()) > 0


def test_derivatives_by_torch_func():
    case = mlp()
    net, w = view(case.module), view(case.module).vector()
    v = torch.randn_like(w)
    J = Dense(case).jacobian()
    moved = torch.func.jvp(lambda w: net.outputs(w, case.inputs), (w,), (v,))[1]
    assert relative(moved, torch.einsum("icp,p->ic", J, v)) < 1e-12
    each = torch.func.vmap(lambda x: net.outputs(w, x[None])[0])(case.inputs)
    assert relative(each, case.module(case.inputs)) < 1e-12
    back = torch.func.vjp(lambda w: net.outputs(w, case.inputs), w)[1]
    c = torch.randn(11, 3, dtype=torch.float64)
    assert relative(back(c)[0], torch.einsum("icp,ic->p", J, c)) < 1e-12


def test_another_precision_computes_all_of_it():
    for make in (cnn, words):
        case, exact = make(torch.float32), make(torch.float64)
        exact.module.load_state_dict(case.module.state_dict())
        net = view(case.module)
        found = net.outputs(net.vector().double(), case.inputs)
        assert found.dtype == torch.float64
        assert (
            relative(
                found,
                exact.module.double()(**exact.inputs)
                if make is words
                else exact.module(case.inputs.double()),
            )
            < 1e-14
        )
        assert net.dtype == torch.float32


def test_tied_frozen_and_unused_parameters():
    net = view(Words())
    assert net.names == ("idle", "table.weight", "inner.weight", "inner.bias")
    module = Words()
    w = view(module).vector() + 1
    view(module).load(w)
    assert torch.equal(module.out.weight, module.table.weight)
    assert float(module.scale) == 1.5


def test_patterns():
    module = Bilinear()
    assert view(module, "left.*").names == ("left.weight", "left.bias")
    assert view(module, ["right.bias", "left.*"]).names == (
        "left.weight",
        "left.bias",
        "right.bias",
    )
    module.left.weight.requires_grad_(False)
    assert view(module).names == ("left.bias", "right.weight", "right.bias")
    assert view(module, "left.*").names == ("left.bias",)


def test_a_part_leaves_the_rest_to_the_module():
    case = mlp()
    part = view(case.module, "2.*")
    w = torch.zeros(part.size, dtype=torch.float64)
    assert torch.equal(part.outputs(w, case.inputs), torch.zeros(11, 3, dtype=torch.float64))
    case.module[0].weight.requires_grad_(False)
    assert torch.equal(part.outputs(part.vector(), case.inputs), case.module(case.inputs))


class Two(nn.Module):
    def __init__(self, kind):
        super().__init__()
        self.a, self.b = nn.Parameter(torch.ones(1)), nn.Parameter(torch.ones(1, dtype=kind))


@pytest.mark.parametrize(
    ("module", "params", "words"),
    [
        (Bilinear(), "head.*", "no parameter matches 'head.*'; there are left.weight"),
        (Bilinear(), [], "params is empty"),
        (Words(), "scale", "frozen"),
        (nn.Tanh(), None, "no parameters"),
        (nn.LazyLinear(2), None, "run it once first"),
        (Two(torch.float64), None, "share one dtype"),
        (Two(torch.complex64), "b", "real numbers"),
    ],
)
def test_what_cannot_be_viewed(module, params, words):
    with pytest.raises(InvalidInput, match=words.replace("*", r"\*")):
        view(module, params)


def test_vectors_of_another_length_are_refused():
    net = view(mlp().module)
    for wrong in (torch.zeros(42), torch.zeros(44), torch.zeros(43, 1)):
        with pytest.raises(InvalidInput, match="expected a vector of 43"):
            net.load(wrong)


def test_evaluating_restores_modes_even_after_an_error():
    module = copy.deepcopy(cnn().module)
    module[1].train()
    modes = [part.training for part in module.modules()]
    with evaluating(module):
        assert not any(part.training for part in module.modules())
    assert [part.training for part in module.modules()] == modes
    with pytest.raises(KeyError), evaluating(module):
        raise KeyError
    assert [part.training for part in module.modules()] == modes


class Counting(nn.Module):
    """Counts its calls in a buffer, or makes a buffer that was not there."""

    def __init__(self, new):
        super().__init__()
        self.new = new
        self.register_buffer("calls", torch.tensor(float("nan")))

    def forward(self, x):
        if self.new:
            self.register_buffer("last", x.sum())
        else:
            self.calls = torch.nan_to_num(self.calls) + 1
        return x


@pytest.mark.parametrize("new", [True, False])
def test_a_buffer_that_changes_is_named(new):
    net = nn.Sequential(nn.Linear(2, 2), Counting(new))
    named = r"layer 1 \(Counting\).*1\." + ("last" if new else "calls")
    with pytest.raises(UnsupportedModel, match=named), evaluating(net):
        net(torch.ones(1, 2))
    assert bool(torch.isnan(net[1].calls))


def test_a_buffer_that_is_not_a_number_has_not_changed():
    net = nn.Sequential(Counting(False))
    with evaluating(net):
        pass


def test_an_error_inside_is_not_hidden_by_a_changed_buffer():
    net = nn.Sequential(Counting(False))
    net.append(nn.Linear(2, 2))
    with pytest.raises(RuntimeError, match="shapes"), evaluating(net):
        net(torch.ones(1, 3))
    assert bool(torch.isnan(net[0].calls))


@pytest.mark.parametrize(
    ("layer", "fine"),
    [
        (nn.BatchNorm2d(3), False),
        (nn.BatchNorm2d(3).eval(), True),
        (nn.BatchNorm1d(3, track_running_stats=False).eval(), False),
        (nn.SyncBatchNorm(3), False),
        (nn.GroupNorm(3, 3), True),
        (nn.LayerNorm(3), True),
        (nn.InstanceNorm2d(3), True),
    ],
)
def test_batch_statistics(layer, fine):
    net = nn.Sequential(nn.Conv2d(1, 3, 1), layer)
    if fine:
        refuse_batch_statistics(net)
        return
    with pytest.raises(UnsupportedModel, match=f"layer 1 \\({type(layer).__name__}\\).*GroupNorm"):
        refuse_batch_statistics(net)
