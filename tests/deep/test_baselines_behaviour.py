"""What the baselines do with real digits, odd data and odd models; and that defaults do no harm."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn import functional as F

from deep_problems import (
    GONE,
    RECIPE,
    Sgd,
    bits,
    ce,
    net,
    of_a_class,
    part,
    problem,
    rows,
    same,
    slope,
    start,
    vector,
)
from expunge.datasets import fashion_mnist
from expunge.deep.descent import Diverged, Recipe
from expunge.deep.measure import accuracy
from expunge.deep.methods import METHODS
from expunge.deep.methods.boundary import BoundaryExpand
from expunge.deep.methods.common import Stepping, Work
from expunge.deep.methods.dampening import Dampening
from expunge.deep.methods.distill import BadTeacher, Scrub
from expunge.deep.methods.finetune import CatastrophicK, FineTune
from expunge.deep.methods.fisher import FisherForgetting
from expunge.deep.methods.influence import Influence
from expunge.deep.methods.labels import SalUn
from expunge.deep.methods.lcodec import LCodec, _observe, foci
from expunge.deep.methods.negative import NegGrad, NegGradPlus
from expunge.deep.methods.ntk import NtkScrub
from expunge.deep.methods.unsir import Unsir
from expunge.deep.network import UnsupportedModel
from expunge.deep.problem import Problem, over_unlearned
from expunge.deep.solution import NotConverged
from expunge.deep.training import cross_entropy, train, train_logged
from expunge.errors import InvalidInput

BASELINES = [
    "retrain", "null", "finetune", "cf-k", "eu-k", "neggrad", "neggrad+", "random-labels",
    "amnesiac", "influence", "fisher", "ntk", "l-codec", "scrub", "bad-teacher", "ssd",
    "boundary-shrink", "boundary-expand", "unsir", "salun", "ofmu",
]  # fmt: skip

CERTAIN = {"null", "neggrad", "influence", "ntk", "ssd", "boundary-shrink"}
"""Methods that draw nothing, here where F is a single batch."""


@pytest.fixture(autouse=True)
def _one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def problem_for(name, **options):
    task = problem(**options)
    return of_a_class(task) if name == "unsir" else task


# --- real numbers ---------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def digits():
    """Return a softmax regression on the digits at its optimum: x, y, w, and how to fit."""
    X, y = load_digits(return_X_y=True)
    order = np.random.default_rng(0).permutation(1797)[:1437]
    x, y = torch.tensor(X[order] / 16), torch.tensor(y[order])

    def mean(w, x, y, wd=0.01):
        return F.cross_entropy(x @ w[:640].reshape(10, 64).T + w[640:], y) + wd / 2 * (w * w).sum()

    def fit(x, y, w):
        for _ in range(30):
            g = slope(lambda w: mean(w, x, y), w)
            if g.norm() < 1e-11:
                return w
            H = torch.autograd.functional.hessian(lambda w: mean(w, x, y), w)
            w = w - torch.linalg.solve(H, g)
        raise AssertionError("Newton's method did not end")

    return x, y, fit(x, y, torch.zeros(650, dtype=torch.float64)), fit, mean


@pytest.mark.parametrize(
    ("m", "published", "rescaled", "newton"),
    [(1, 0.007, 0.006, 0.001), (14, 0.045, 0.036, 0.003), (431, 0.33, 0.092, 0.018)],
)
def test_errors_of_influence_on_the_digits(digits, m, published, rescaled, newton):
    """Distance to the retrained weights, relative to how far they moved."""
    x, y, w, fit, mean = digits
    model = nn.Linear(64, 10).double()
    with torch.no_grad():
        model.weight.copy_(w[:640].reshape(10, 64))
        model.bias.copy_(w[640:])
    recipe = Recipe(weight_decay=0.01)
    task = Problem(model, cross_entropy, (x[:m], y[:m]), (x[m:], y[m:]), train=recipe)
    target = fit(x[m:], y[m:], w)

    def error(found):
        return float((found - target).norm() / (w - target).norm())

    for variant, expected in (
        ("koh-liang", published), ("rescaled", rescaled), ("newton", newton)
    ):  # fmt: skip
        found = Influence(variant=variant, damping=0.0).unlearn(task)
        assert found.evidence["damping"].value == 0.0
        assert error(vector(found.model)) == pytest.approx(expected, rel=0.08, abs=5e-4)
    H = torch.autograd.functional.hessian(lambda w: mean(w, x, y), w)
    bare = slope(lambda w: mean(w, x[:m], y[:m], 0.0), w)  # without weight decay in ∇L_F
    assert error(w + m / len(y) * torch.linalg.solve(H, bare)) > 0.31


def test_amnesia_costs_more_than_it_forgets():
    """Fourteen records were in a quarter of all steps: taking these back ruins the digits."""
    X, y = load_digits(return_X_y=True)
    order = np.random.default_rng(0).permutation(1797)
    x, y = torch.tensor(X[order] / 16).float(), torch.tensor(y[order])
    torch.manual_seed(0)
    start = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
    recipe = Recipe("sgd", 0.1, epochs=15, batch_size=33, momentum=0.9)
    model, log = train_logged(start, (x[:1437], y[:1437]), recipe, sensitive=range(14))
    task = Problem(model, cross_entropy, (x[:14], y[:14]), (x[14:1437], y[14:1437]), stored=log,
                   train=recipe, forget_ids=range(14))  # fmt: skip
    test, taken = (x[1437:], y[1437:]), METHODS["amnesiac"](epochs=0).unlearn(task)
    assert taken.evidence["takenBack"].value == len(log.updates)
    assert taken.evidence["storedBytes"].value == (len(log.updates) + 2) * 4 * view_size(model)
    assert accuracy(model, test) > 0.97 > 0.9 > accuracy(taken.model, test)
    assert accuracy(METHODS["amnesiac"]().unlearn(task).model, test) > 0.97


def view_size(model):
    return sum(p.numel() for p in model.parameters())


# --- all of them ----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", BASELINES)
def test_modes_stay_and_another_seed_is_another_run(name):
    task = problem_for(name, dtype=torch.float32)
    task.model[1].eval()
    method = METHODS[name]()
    found = method.unlearn(task)
    assert [m.training for m in found.model.modules()] == [m.training for m in task.model.modules()]
    again = method.unlearn(replace(task, seed=task.seed + 1))
    assert same(bits(found.model), bits(again.model)) is (name in CERTAIN)


@pytest.mark.parametrize("name", ["cf-k", "eu-k", "boundary-expand", "ntk", "amnesiac", "ssd"])
def test_methods_with_a_part_or_a_log_of_their_own_keep_to_params(name):
    task = problem(params="2.*")
    found = METHODS[name]().unlearn(task)
    assert torch.equal(found.model[0].weight, task.model[0].weight)
    assert torch.equal(found.model[0].bias, task.model[0].bias)
    if name != "ssd":
        assert not torch.equal(found.model[2].weight, task.model[2].weight)
    body = replace(task, params="0.*")
    if name in ("boundary-expand", "cf-k", "eu-k"):
        with pytest.raises(InvalidInput, match="params leaves"):
            METHODS[name]().unlearn(body)
    else:
        with pytest.raises(InvalidInput, match="of other parameters than params"):
            METHODS[name]().unlearn(body)


class Named(nn.Module):
    """The MLP with its features in two keyword arguments."""

    def __init__(self):
        super().__init__()
        self.inner = net()

    def forward(self, left, right):
        """Return logits."""
        return self.inner(torch.cat([left, right], 1))


MOVES_INPUTS = ("boundary-shrink", "unsir", "l-codec")


@pytest.mark.parametrize("name", BASELINES)
def test_inputs_by_keyword(name):
    """The same weights as with one tensor, where inputs are not moved; a clear refusal where."""
    plain = problem_for(name)
    task = replace(plain, model=_named(plain.model), forget=_split(plain, "forget"),
                   retain=_split(plain, "retain"))  # fmt: skip
    if name in MOVES_INPUTS:
        with pytest.raises(InvalidInput, match="one tensor of real numbers"):
            METHODS[name]().unlearn(task)
        return
    found = METHODS[name]().unlearn(task)
    expected = METHODS[name]().unlearn(plain)
    torch.testing.assert_close(vector(found.model), vector(expected.model), rtol=0, atol=1e-9)


def _named(model):
    made = Named().double()
    made.inner.load_state_dict(model.state_dict())
    return made


def _split(task, which):
    x, y = part(task, which)
    return {"left": x[:, :2], "right": x[:, 2:], "labels": y}


@pytest.mark.parametrize("name", sorted(set(BASELINES) - {"null"}))
def test_numbers_that_are_none_are_never_passed_on(name):
    """A record of F and one of R are not finite: an error, not a model."""
    task = problem_for(name, dtype=torch.float32)
    sides = {}
    for which in ("forget", "retain"):
        x, y = part(task, which)
        x = x.clone()
        x[-1, 0] = torch.nan
        sides[which] = (x, y)
    if name == "unsir":
        sides["forget"] = part(task, "forget")
    with pytest.raises((InvalidInput, Diverged, NotConverged)):
        METHODS[name]().unlearn(replace(task, **sides))


TOO_FAST = [
    FineTune(lr=1e30),
    CatastrophicK(lr=1e36),
    NegGrad(lr=1e30, max_steps=50),
    NegGradPlus(lr=1e30),
    SalUn(lr=1e36),
    Scrub(lr=1e36),
    FisherForgetting(alpha=1e300),
    METHODS["amnesiac"](lr=1e36),
    METHODS["ofmu"](descent=1e30),
]


@pytest.mark.parametrize("method", TOO_FAST, ids=lambda it: it.name)
def test_a_rate_that_is_too_large_is_an_error(method):
    task = problem_for(method.name, dtype=torch.float32)
    with pytest.raises(Diverged, match="learning rate"):
        method.unlearn(task)


WRONG = [
    (NegGradPlus(a=0.0), "a must be above 0"),
    (NegGradPlus(a=1.5), "a must be above 0"),
    (SalUn(share=0.0), "share"),
    (BadTeacher(share=2.0), "share"),
    (CatastrophicK(k=3), "k must be between 1 and the 2 layers"),
    (FisherForgetting(alpha=-1.0), "alpha"),
    (FisherForgetting(forgotten_class=7), "forgotten_class must be below 3"),
    (Influence(variant="second"), "variant"),
    (Influence(curvature="hesse"), "kind must be one of"),
    (NtkScrub(weight_decay=0.0), "weight_decay"),
    (Dampening(alpha=0.0), "alpha"),
    (METHODS["boundary-shrink"](attack="cw"), "fgsm or pgd"),
    (FineTune(lr=-1.0), "lr must be"),
    (FineTune(batch_size=0), "batch_size"),
]


@pytest.mark.parametrize(("method", "message"), WRONG, ids=lambda it: getattr(it, "name", ""))
def test_parameters_are_checked(method, message):
    with pytest.raises(InvalidInput, match=message):
        method.unlearn(problem())


# --- odd data and models --------------------------------------------------------------------------


def test_one_class_left_is_no_reason_to_stop():
    """R of one class trains; what needs another class says so."""
    task = problem(classes=2)
    x, y = rows(2)
    one = replace(task, forget=(x[y == 0], y[y == 0]), retain=(x[y == 1], y[y == 1]),
                  forget_ids=None, retain_ids=None, trained_ids=None)  # fmt: skip
    for name in ("retrain", "finetune", "neggrad", "scrub", "random-labels"):
        found = METHODS[name]().unlearn(one)
        assert accuracy(found.model, one.retain) > 0.9
    with pytest.raises(InvalidInput, match="forget_ids"):
        METHODS["amnesiac"]().unlearn(one)
    x, y = part(of_a_class(problem()), "forget")
    same_class = Problem(problem().model, cross_entropy, (x[:3], y[:3]), (x[3:], y[3:]))
    with pytest.raises(InvalidInput, match="another class"):
        Unsir().unlearn(same_class)
    with pytest.raises(InvalidInput, match="all be of one class"):
        Unsir().unlearn(problem())


def test_classifiers_are_needed_where_labels_are_changed():
    x, _ = rows()
    model = nn.Sequential(nn.Linear(6, 4), nn.Tanh(), nn.Linear(4, 1)).double()

    def half_square(outputs, targets):
        return (outputs[:, 0] - targets) ** 2 / 2

    task = Problem(model, half_square, (x[:8], x[:8, 0]), (x[8:], x[8:, 0]), train=RECIPE)
    for name in ("finetune", "cf-k", "eu-k", "influence", "neggrad+", "retrain", "ofmu"):
        assert METHODS[name]().unlearn(task).evidence["moved"].value > 0.0
    for name in ("random-labels", "salun", "scrub", "bad-teacher", "neggrad", "unsir"):
        with pytest.raises(InvalidInput, match="for classifiers"):
            METHODS[name]().unlearn(task)
    with pytest.raises(InvalidInput, match="cross-entropy"):
        FisherForgetting().unlearn(task)


def test_boundary_expand_needs_a_head_of_its_own():
    x, y = rows()

    def task(model):
        return Problem(model.double(), cross_entropy, (x[:8], y[:8]))

    class Doubled(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner, self.spare = nn.Linear(6, 3), nn.Linear(3, 3)

        def forward(self, x):
            return self.inner(x)

    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.one, self.two = nn.Linear(6, 3), nn.Linear(6, 3)
            self.two.weight = self.one.weight

        def forward(self, x):
            return self.two(x)

    for model, message in (
        (Doubled(), "does not give the outputs"),
        (Tied(), "tied"),
        (nn.Sequential(nn.Linear(6, 4), nn.Linear(4, 3), nn.Linear(3, 3, bias=False)), ""),
        (nn.Sequential(nn.Linear(6, 8), nn.Unflatten(1, (8, 1)), nn.Conv1d(8, 3, 1), nn.Flatten()),
         "must be linear"),
    ):  # fmt: skip
        if message:
            with pytest.raises(UnsupportedModel, match=message):
                BoundaryExpand().unlearn(task(model))
        else:
            found = BoundaryExpand().unlearn(task(model)).model
            assert (found[2].out_features, found[2].weight.shape) == (3, (3, 3))
    alone = nn.Linear(6, 3)
    assert BoundaryExpand().unlearn(task(alone)).model.weight.shape == (3, 6)


def test_nothing_of_the_added_output_remains():
    found = BoundaryExpand().unlearn(problem()).model
    assert found[2].weight.untyped_storage().nbytes() == 30 * 8
    assert found[2].bias.untyped_storage().nbytes() == 3 * 8


def normed():
    torch.manual_seed(0)
    made = nn.Sequential(
        nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(), nn.Linear(8, 3)
    )
    return train(made.double(), rows(), RECIPE)


STEPPING = [name for name in BASELINES if issubclass(METHODS[name], Stepping)]


@pytest.mark.parametrize("name", STEPPING)
def test_normalisation_by_the_batch_is_an_option(name):
    """Then running statistics move; by default not even the batch of a step is looked at."""
    model = normed()
    _, log = train_logged(model, rows(), RECIPE, sensitive=range(GONE))
    task = problem_for(name, model=model, buffers="keep")
    task = replace(task, model=model, stored=log)
    options = {"batch_size": 8} if "batch_size" in METHODS[name].__dataclass_fields__ else {}
    frozen = METHODS[name](**options).unlearn(task).model
    assert torch.equal(frozen[1].running_mean, model[1].running_mean)
    moved = METHODS[name](bn_train=True, **options).unlearn(task).model
    assert not torch.equal(moved[1].running_mean, model[1].running_mean)
    assert [m.training for m in moved.modules()] == [m.training for m in model.modules()]


def test_dropout_stays_off():
    """A step in eval mode is the step of the same network without dropout."""
    model = normed()
    task = replace(problem(model=model, buffers="keep"), model=model)
    bare = nn.Sequential(*[layer for layer in model if not isinstance(layer, nn.Dropout)])
    plain = replace(task, model=bare)
    a, b = (FineTune(epochs=1).unlearn(it).model for it in (task, plain))
    assert torch.equal(vector(a), vector(b))


def test_optimisers_start_empty():
    """Two requests are two runs: nothing of the first one's momentum is left."""
    task = problem()
    first = FineTune(epochs=1, batch_size=1000, schedule="constant").unlearn(task)
    second = FineTune(epochs=1, batch_size=1000, schedule="constant").unlearn(
        replace(task, model=first.model)
    )
    w, R = vector(first.model), part(task, "retain")
    w = Sgd(0.9, RECIPE.weight_decay).step(w, slope(lambda w: ce(w, R), w), 0.02)
    torch.testing.assert_close(vector(second.model), w, rtol=0, atol=1e-12)


def test_ntk_scrubbing_says_what_memory_it_would_take():
    x = torch.randn(3000, 6)
    y = torch.zeros(3000, dtype=torch.int64)
    model = nn.Sequential(nn.Linear(6, 9000), nn.Tanh(), nn.Linear(9000, 3))
    _, log = train_logged(model, (x[:8], y[:8]), replace(RECIPE, epochs=0), sensitive=[])
    task = Problem(model, cross_entropy, (x[:8], y[:8]), (x[8:], y[8:]), stored=log)
    with pytest.raises(InvalidInput, match=r"GiB would be needed, at most 4"):
        NtkScrub().unlearn(task)


# --- L-CODEC's choice -----------------------------------------------------------------------------


def codec(x, y):
    """Return the coefficient of Azadkia and Chatterjee of y given x, as in their paper."""
    n = len(y)
    apart = torch.cdist(x, x)
    apart.fill_diagonal_(torch.inf)
    near = apart.argmin(1)
    R = torch.tensor([float((y <= v).sum()) for v in y])
    L = torch.tensor([float((y >= v).sum()) for v in y])
    top = (n * torch.minimum(R, R[near]) - L**2).sum()
    return float(top / (L * (n - L)).sum())


def test_units_are_chosen_by_the_coefficient_of_dependence():
    generator = torch.Generator().manual_seed(2)
    x = torch.randn(200, 5, generator=generator, dtype=torch.float64)
    y = x[:, 3] ** 2 + torch.sin(3 * x[:, 1])
    z = (x - x.mean(0)) / x.std(0)
    left, chosen, best = set(range(5)), [], 0.0
    while left:
        scores = {j: codec(z[:, [*chosen, j]], y) for j in left}
        top = max(scores, key=scores.get)
        if scores[top] <= best:
            break
        best = scores[top]
        chosen.append(top)
        left.remove(top)
    assert foci(x, y) == chosen
    assert set(chosen[:2]) == {1, 3}
    assert foci(torch.ones(20, 3), torch.randn(20)) == []
    assert foci(torch.randn(20, 3), torch.ones(20)) == []


class Tokens(nn.Module):
    """Linear layers over tokens, a convolution over positions, a table that is not a layer."""

    def __init__(self):
        super().__init__()
        self.wide = nn.Linear(2, 5)
        self.conv = nn.Conv1d(5, 4, 1)
        self.scale = nn.Parameter(torch.ones(4, 4))
        self.out = nn.Linear(4, 3)

    def forward(self, x):
        """Return logits of records (b, 6) taken as three tokens of two."""
        h = torch.tanh(self.wide(x.reshape(len(x), 3, 2)))
        return self.out(torch.tanh(self.conv(h.mT)).mean(2) @ self.scale)


def test_units_are_outputs_of_linear_layers_and_channels_of_convolutions():
    model = Tokens().double()
    x, y = rows()
    task = Problem(model, cross_entropy, (x[:4], y[:4]), (x[4:], y[4:]))
    activity, units, losses = _observe(Work(task), (x, y))
    assert units == [("wide", i) for i in range(5)] + [("conv", i) for i in range(4)] + [
        ("out", i) for i in range(3)
    ]
    h = model.wide(x.reshape(len(x), 3, 2))
    torch.testing.assert_close(activity[:, :5], h.mean(1))
    torch.testing.assert_close(activity[:, 5:9], model.conv(torch.tanh(h).mT).mean(2))
    torch.testing.assert_close(losses, cross_entropy(model(x), y))
    found = LCodec(damping=1.0).unlearn(task).model
    assert torch.equal(found.scale, model.scale)
    head = _observe(Work(replace(task, params="out.*")), (x, y))[1]
    assert {layer for layer, _ in head} == {"out"}
    with pytest.raises(InvalidInput, match="none of them may change"):
        LCodec().unlearn(replace(task, params="scale"))


def test_without_the_matrix_the_step_is_the_same(monkeypatch):
    task = problem()
    formed = LCodec(damping=1.0).unlearn(task)
    monkeypatch.setattr("expunge.deep.methods.lcodec.SMALL", 0)
    multiplied = LCodec(damping=1.0).unlearn(task)
    torch.testing.assert_close(vector(multiplied.model), vector(formed.model), rtol=0, atol=1e-7)
    assert formed.rows_read != multiplied.rows_read
    assert not torch.equal(vector(formed.model), start(task))


# --- the documentation ----------------------------------------------------------------------------


def test_the_example_of_the_documentation_runs():
    text = (Path(__file__).parents[2] / "docs" / "deep-baselines.md").read_text(encoding="utf-8")
    blocks = text.split("```python\n")[1:]
    space: dict[str, object] = {}
    for block in blocks:
        exec(block.split("```")[0], space)
    assert len(blocks) == 2
    assert space["found"].method == "retrain"
    for name in BASELINES:
        assert f"| `{name}` |" in text, name


# --- defaults -------------------------------------------------------------------------------------


def fashion(kind):
    """Return 784-32-32-10 on 10,000 images as a problem: 1 % at random, or one class."""
    split = fashion_mnist()
    order = np.random.default_rng(0).permutation(len(split.y))[:10_000]
    x, y = torch.tensor((split.X[order] - 0.1307) / 0.3081).float(), torch.tensor(split.y[order])
    where = torch.arange(len(y))
    gone = where < 100 if kind == "random" else y == 3
    torch.manual_seed(0)
    hidden = nn.Linear(784, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU()
    begun, recipe = nn.Sequential(*hidden, nn.Linear(32, 10)), Recipe(epochs=10, weight_decay=5e-4)
    model, log = train_logged(begun, (x, y), recipe, sensitive=where[gone].tolist())
    return Problem(
        model,
        cross_entropy,
        (x[gone], y[gone]),
        (x[~gone], y[~gone]),
        train=recipe,
        stored=log,
        trained_ids=where.tolist(),
        forget_ids=where[gone].tolist(),
        retain_ids=where[~gone].tolist(),
        seed=1,
    )


def measured(method, task, label):
    """Return the accuracies on R and F, and print them for docs/deep-baselines.md."""
    found = method.unlearn(task)
    kept, gone = (accuracy(found.model, it) for it in (task.retain, task.forget))
    print(f"{label} | {100 * kept:.1f} | {100 * gone:.1f} | {found.seconds:.2f} s")
    return kept, gone


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["random", "class"])
def test_defaults_do_not_collapse_the_fashion_mlp(kind):
    """R stays within 5 points of retraining.

    NTK scrubbing and L-CODEC change the last layer only: 26,506 parameters are too many for them.
    """
    task = fashion(kind)
    head = replace(
        task, params="4.*", stored=replace(task.stored, initial=task.stored.initial[-330:])
    )
    oracle, _ = measured(METHODS["retrain"](), task, f"{kind} retrain")
    left_out = {"retrain", "unsir" if kind == "random" else "l-codec"}
    for name in BASELINES:
        if name not in left_out:
            given = head if name in ("ntk", "l-codec") else task
            kept, _ = measured(METHODS[name](), given, f"{kind} {name}")
            assert not over_unlearned(kept, oracle), name


PUBLISHED = [
    ("class", NegGradPlus(a=0.95)),
    ("class", Dampening(alpha=10.0)),
    ("class", Scrub(weight_decay=0.1)),
    ("random", NegGrad(max_steps=30)),
]


@pytest.mark.slow
def test_published_defaults_do_collapse_it():
    """Why four defaults are others (SCRUB's at 5 points but for seeds); the guard can fire."""
    for kind in ("random", "class"):
        task = fashion(kind)
        oracle, _ = measured(METHODS["retrain"](), task, f"{kind} retrain")
        for own, method in PUBLISHED:
            if own == kind:
                kept, _ = measured(method, task, f"{kind} {method}")
                margin = 0.04 if isinstance(method, Scrub) else 0.05
                assert over_unlearned(kept, oracle, margin), method
    with pytest.raises(Diverged):
        NegGrad(max_steps=1000).unlearn(fashion("random"))
