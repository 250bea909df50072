"""Measures against scikit-learn, scipy, closed forms and dense sums; attacks that must fail."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.spatial.distance import jensenshannon
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import f1_score, roc_auc_score
from torch import nn

from expunge.deep.descent import Recipe
from expunge.deep.measure import (
    accuracy,
    classified,
    f1,
    function_distance,
    mean_loss,
    membership,
    relearn_steps,
    weight_distance,
)
from expunge.deep.roc import RIDGE, auc_interval, delong, fitted_score
from expunge.deep.training import cross_entropy, train
from expunge.errors import InvalidInput


@pytest.fixture(autouse=True)
def _one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


class Told(nn.Module):
    """Outputs are the inputs: what is measured is known."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones((), dtype=torch.float64))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.scale * x


class Margin(Told):
    """Two classes, the margin of the second being the input."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.stack([torch.zeros_like(x), self.scale * x], 1)


def logits(rows: int, classes: int, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(rows, classes, generator=generator, dtype=torch.float64)
    return x, torch.randint(classes, (rows,), generator=generator)


# --- areas under curves -------------------------------------------------------------------------

scores = st.lists(st.integers(-5, 5).map(float), min_size=2, max_size=12)


@settings(max_examples=50, deadline=None)
@given(scores, scores)
def test_auc_is_that_of_scikit_learn_and_its_error_that_of_the_definition(p, q):
    auc, error = delong(np.array(p), np.array(q))
    truth = [1] * len(p) + [0] * len(q)
    assert auc == pytest.approx(roc_auc_score(truth, p + q), abs=1e-12)
    wins = np.array([[(a > b) + 0.5 * (a == b) for b in q] for a in p])
    square = wins.mean(1).var(ddof=1) / len(p) + wins.mean(0).var(ddof=1) / len(q)
    assert error == pytest.approx(math.sqrt(square), abs=1e-12)


def test_the_interval_covers_the_true_area():
    rng = np.random.default_rng(0)
    truth, inside = 0.7602499389, 0
    for _ in range(400):
        _, low, high = auc_interval(rng.normal(1.0, 1.0, 40), rng.normal(0.0, 1.0, 60))
        inside += low <= truth <= high
    assert 0.92 <= inside / 400 <= 0.98


@pytest.mark.parametrize("value", [0.0, 1.0, 0.5])
def test_the_interval_is_not_empty_where_nothing_varies(value):
    p, q = {0.0: (0.0, 1.0), 1.0: (1.0, 0.0), 0.5: (1.0, 1.0)}[value]
    auc, low, high = auc_interval(np.full(30, p), np.full(50, q))
    assert auc == value
    assert high - low > 0.05
    assert 0.0 <= low <= auc <= high <= 1.0
    wider = auc_interval(np.full(5, p), np.full(5, q))
    assert wider[2] - wider[1] > high - low


def test_too_few_and_infinite_scores_are_refused():
    with pytest.raises(InvalidInput, match="2 rows on each side"):
        delong(np.array([1.0]), np.array([1.0, 2.0]))
    with pytest.raises(InvalidInput, match="finite"):
        delong(np.array([1.0, np.inf]), np.array([1.0, 2.0]))


def test_the_fitted_score_is_the_logistic_regression_of_scikit_learn():
    rng = np.random.default_rng(1)
    p, q, new = rng.normal(0.5, 2.0, (90, 3)), rng.normal(0, 1, (30, 3)), rng.normal(0, 1, (9, 3))
    rows = np.concatenate([p, q])
    centre, scale = rows.mean(0), rows.std(0)
    weights = np.repeat([0.5 / 90, 0.5 / 30], [90, 30])
    oracle = LogisticRegression(C=1 / RIDGE, tol=1e-10, max_iter=10_000)
    oracle.fit((rows - centre) / scale, np.repeat([1, 0], [90, 30]), sample_weight=weights)
    wanted = oracle.decision_function((new - centre) / scale)
    assert np.abs(fitted_score(p, q, new) - wanted).max() < 1e-4


# --- the membership attack ----------------------------------------------------------------------


def sides(shift: float, rows: int, seed: int = 0):
    generator = torch.Generator().manual_seed(seed)
    member, other = torch.randn(2, rows, generator=generator, dtype=torch.float64)
    ones = torch.ones(rows, dtype=torch.int64)
    return (member + shift, ones), (other, ones)


@pytest.mark.parametrize("shift", [1.0, -1.0])
def test_the_attack_finds_what_two_gaussians_give(shift):
    found = membership(Margin(), *sides(shift, 20_000))
    assert found.auc == pytest.approx(0.760250, abs=0.01)
    assert found.accuracy == pytest.approx(0.691462, abs=0.01)
    assert found.loss_auc == pytest.approx(0.760250 if shift > 0 else 0.239750, abs=0.01)


def test_nothing_to_find_gives_one_half():
    found = [membership(Margin(), *sides(0.0, 200, seed), seed=seed) for seed in range(40)]
    assert np.mean([it.auc for it in found]) == pytest.approx(0.5, abs=0.02)
    assert np.mean([it.accuracy for it in found]) == pytest.approx(0.5, abs=0.02)
    assert sum(it.low <= 0.5 <= it.high for it in found) >= 35


def test_scoring_rows_that_the_attack_was_fitted_on_would_flatter_it():
    flattered = []
    for seed in range(40):
        rng = np.random.default_rng(seed)
        p, q = rng.normal(size=(2, 15, 4))
        flattered.append(delong(fitted_score(p, q, p), fitted_score(p, q, q))[0])
    assert np.mean(flattered) > 0.65


def memorised(seed: int):
    """A net that knows its records by heart, one that never saw the first half, and the halves."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(360, 20, generator=generator)
    y = torch.randint(2, (360,), generator=generator)
    forget, retain, unseen = ((x[i : i + 120], y[i : i + 120]) for i in (0, 120, 240))
    net = nn.Sequential(nn.Linear(20, 64), nn.ReLU(), nn.Linear(64, 2))
    recipe = Recipe(lr=0.01, epochs=60, batch_size=60)
    everything = (x[:240], y[:240])
    return train(net, everything, recipe), train(net, retain, recipe), forget, retain, unseen


def test_a_retrained_model_gives_one_half_and_the_untouched_one_is_caught():
    torch.manual_seed(0)
    untouched, retrained, forget, retain, unseen = memorised(0)
    assert membership(untouched, forget, unseen).low > 0.65
    clean = membership(retrained, forget, unseen)
    assert clean.low < 0.5 < clean.high
    assert membership(retrained, forget, retain).low > 0.65


def test_the_attack_needs_rows():
    with pytest.raises(InvalidInput, match="4 records"):
        membership(Margin(), *sides(0.0, 3))


# --- accuracy, F1, loss -------------------------------------------------------------------------


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 60), st.integers(2, 6), st.integers(0, 99))
def test_f1_is_that_of_scikit_learn(rows, classes, seed):
    x, y = logits(rows, classes, seed)
    predicted = x.argmax(1)
    for average in ("macro", "micro"):
        wanted = f1_score(y, predicted, average=average, zero_division=0.0)
        assert f1(Told(), (x, y), average) == pytest.approx(wanted, abs=1e-12)
    assert accuracy(Told(), (x, y)) == pytest.approx(float((predicted == y).double().mean()))


def test_batches_of_any_size_give_the_same():
    x, y = logits(2500, 3)
    batches = [(x[i : i + 99], y[i : i + 99]) for i in range(0, 2500, 99)]
    wanted = nn.functional.cross_entropy(x, y).item()
    for data in ((x, y), batches):
        assert mean_loss(Told(), data) == pytest.approx(wanted, abs=1e-12)
        assert accuracy(Told(), data) == accuracy(Told(), (x, y))


def test_models_are_measured_in_eval_mode_and_left_as_they_were():
    net = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3), nn.Dropout(0.5)).train()
    before = {name: t.clone() for name, t in net.state_dict().items()}
    x, y = logits(50, 3)
    data = (x.float(), y)
    assert mean_loss(net, data) == mean_loss(net, data)
    membership(net, data, data)
    relearn_steps(net, data, 0.1, cap=3, orders=1)
    function_distance(net, net, data)
    assert all(part.training for part in net.modules())
    assert all(torch.equal(t, before[name]) for name, t in net.state_dict().items())


@pytest.mark.parametrize(
    ("model", "x", "y", "match"),
    [
        (Told(), torch.zeros(4, 2), torch.zeros(4), "for classifiers"),
        (Told(), torch.zeros(4, 2, 2), torch.zeros(4).long(), "for classifiers"),
        (Told(), torch.full((4, 2), math.nan), torch.zeros(4).long(), "NaN"),
        (Told(), torch.zeros(4, 2), torch.full((4,), 2), "labels must be from 0 to 1"),
    ],
)
def test_what_is_no_classifier_is_refused(model, x, y, match):
    with pytest.raises(InvalidInput, match=match):
        classified(model, (x, y))


def test_another_average_is_refused():
    with pytest.raises(InvalidInput, match="macro or micro"):
        f1(Told(), logits(5, 2), "weighted")  # type: ignore[arg-type]


# --- relearning ---------------------------------------------------------------------------------


class Point(nn.Module):
    """One number; with the loss below, SGD multiplies it by 1 − lr."""

    def __init__(self, value: float) -> None:
        super().__init__()
        self.value = nn.Parameter(torch.tensor(value, dtype=torch.float64))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.value.expand(len(x))


def square(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return (outputs - targets) ** 2 / 2


ZEROS = (torch.zeros(100, 1), torch.zeros(100))


@pytest.mark.parametrize("lr", [0.1, 0.5])
def test_relearning_takes_the_steps_of_the_closed_form(lr):
    target = 1e-4
    wanted = math.ceil(math.log(math.sqrt(2 * target) / 3.0) / math.log(1 - lr))
    found = relearn_steps(Point(3.0), ZEROS, target, loss=square, lr=lr, orders=2)
    assert found.steps == (wanted, wanted)
    assert found.median == wanted
    assert not found.censored


def test_what_is_known_already_takes_no_step():
    assert relearn_steps(Point(0.0), ZEROS, 1e-9, loss=square).steps == (0,) * 5


@pytest.mark.parametrize("lr", [1e-6, 3.0])
def test_what_never_gets_there_is_censored_and_not_counted_as_learnt(lr):
    found = relearn_steps(Point(3.0), ZEROS, 1e-4, loss=square, lr=lr, cap=400, orders=2)
    assert found.steps == (400,) * 2
    assert found.reached == (False,) * 2
    assert found.censored


def test_reaching_the_target_at_the_cap_is_not_censored():
    steps = relearn_steps(Point(3.0), ZEROS, 1e-4, loss=square, lr=0.1, orders=1).steps[0]
    found = relearn_steps(Point(3.0), ZEROS, 1e-4, loss=square, lr=0.1, orders=1, cap=steps)
    assert (found.steps, found.censored) == ((steps,), False)
    assert relearn_steps(
        Point(3.0), ZEROS, 1e-4, loss=square, lr=0.1, orders=1, cap=steps - 1
    ).censored


def test_what_was_learnt_is_relearnt_sooner():
    torch.manual_seed(0)
    untouched, retrained, forget, _, _ = memorised(1)
    target = 1.05 * mean_loss(untouched, forget, cross_entropy)
    hidden = relearn_steps(untouched, forget, target, orders=2, cap=100)
    gone = relearn_steps(retrained, forget, target, orders=2, cap=100)
    assert hidden.median == 0
    assert gone.median > 20


@pytest.mark.parametrize("changes", [{"orders": 0}, {"cap": 0}, {"target_loss": math.nan}])
def test_relearning_refuses_what_makes_no_sense(changes):
    given = {"target_loss": 0.1, **changes}
    with pytest.raises(InvalidInput, match="relearning needs"):
        relearn_steps(Point(1.0), ZEROS, loss=square, **given)


# --- distances ----------------------------------------------------------------------------------


def test_the_distance_of_the_sheet():
    p = torch.tensor([[0.7, 0.2, 0.1]], dtype=torch.float64).log()
    y = torch.tensor([0])
    uniform = nn.Sequential(Told(), _Flat())
    found = function_distance(Told(), uniform, (p, y))
    assert found.js == pytest.approx(0.07480640, abs=5e-9)
    assert found.variation == pytest.approx(0.7 - 1 / 3)


class _Flat(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return 0.0 * x


class _Turned(Told):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.scale * x.roll(1, 1) * 3.0


def test_distances_are_those_of_scipy():
    x, y = logits(40, 4)
    p, q = x.softmax(1), (3.0 * x.roll(1, 1)).softmax(1)
    found = function_distance(Told(), _Turned(), (x, y))
    assert found.js == pytest.approx(np.mean(jensenshannon(p, q, axis=1) ** 2), abs=1e-12)
    assert found.variation == pytest.approx(float((p - q).abs().sum(1).mean() / 2), abs=1e-12)
    assert found.disagreement == float((p.argmax(1) != q.argmax(1)).double().mean())


def test_certain_predictions_are_at_the_largest_distance():
    x = torch.tensor([[1e4, 0.0], [1e4, 0.0]], dtype=torch.float64)
    found = function_distance(Told(), _Turned(), (x, torch.zeros(2).long()))
    assert found.js == pytest.approx(math.log(2))
    assert (found.variation, found.disagreement) == (1.0, 1.0)
    same = function_distance(Told(), Told(), (x, torch.zeros(2).long()))
    assert (same.js, same.variation, same.disagreement) == (0.0, 0.0, 0.0)


def test_weight_distance():
    a, b = nn.Linear(3, 2), nn.Linear(3, 2)
    flat = [torch.cat([p.detach().flatten() for p in net.parameters()]).numpy() for net in (a, b)]
    assert weight_distance(a, b) == pytest.approx(np.linalg.norm(flat[0] - flat[1]), rel=1e-6)
    with pytest.raises(InvalidInput, match="names or shapes"):
        weight_distance(a, nn.Linear(2, 2))
    with pytest.raises(InvalidInput, match="2 and 3 classes"):
        function_distance(
            nn.Linear(3, 2), nn.Linear(3, 3), (torch.zeros(2, 3), torch.zeros(2).long())
        )
