"""What a problem refuses: records never learnt, undecided buffers, new models that are not new."""

from __future__ import annotations

import copy
from dataclasses import replace

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from deep_problems import GONE, RECIPE, ROWS, bits, net, part, problem, rows, same
from expunge.deep.methods import METHODS
from expunge.deep.methods.common import Work
from expunge.deep.methods.finetune import FineTune
from expunge.deep.network import UnsupportedModel
from expunge.deep.problem import Evidence, Problem, moving_buffers, over_unlearned, row_ids
from expunge.deep.renewal import reinitialised
from expunge.deep.training import cross_entropy
from expunge.errors import InvalidInput, UnknownRecord
from expunge.guarantee import Grade, Tag

X, Y = rows()


def given(model=None, **options):
    return Problem(
        net() if model is None else model,
        cross_entropy,
        (X[:GONE], Y[:GONE]),
        (X[GONE:], Y[GONE:]),
        **options,
    )


# --- records --------------------------------------------------------------------------------------


def test_records_that_were_never_trained_on_are_refused():
    with pytest.raises(UnknownRecord, match=r"'new' is to be forgotten 1 times and was .* 0"):
        given(trained_ids=range(ROWS), forget_ids=[*range(7), "new"])


def test_duplicates_are_counted():
    """Trained on twice, a record can be forgotten twice, not three times."""
    twice = [0, 0, *range(1, ROWS - 1)]
    found = given(trained_ids=twice, forget_ids=[0, 0, *range(1, 7)], retain_ids=twice[8:])
    assert found.total == ROWS
    with pytest.raises(UnknownRecord, match="forgotten 3 times and was trained on 2 times"):
        given(trained_ids=twice, forget_ids=[0, 0, 0, *range(1, 6)])
    with pytest.raises(InvalidInput, match="record 0 is either to be forgotten or was never"):
        given(trained_ids=twice, forget_ids=[0, 0, *range(1, 7)], retain_ids=[0, *twice[9:]])
    once = given(trained_ids=twice, forget_ids=range(8), retain_ids=[0, *twice[9:], 71][:64])
    assert once.disjoint is Tag.enforced  # its copy may stay: it is another record


def test_an_overlap_is_refused_without_the_ids_of_the_training_too():
    with pytest.raises(InvalidInput, match="record 7 is to be forgotten and retained"):
        given(forget_ids=range(8), retain_ids=range(7, 71))


def test_ids_come_one_per_record():
    with pytest.raises(InvalidInput, match="7 ids, 8 records"):
        given(forget_ids=range(7))
    with pytest.raises(InvalidInput, match="against forget_ids"):
        given(trained_ids=range(ROWS))
    with pytest.raises(InvalidInput, match="1 ids, 0 records"):
        Problem(net(), cross_entropy, (X[:8], Y[:8]), retain_ids=[1])


def test_records_name_themselves():
    ids = row_ids((X, Y))
    assert len(set(ids)) == ROWS
    assert row_ids(DataLoader(TensorDataset(X, Y), batch_size=7)) == ids
    assert row_ids((X, Y + 1))[0] != ids[0]
    named = row_ids({"a": X, "b": X + 1, "labels": Y})
    assert len(set(named)) == ROWS
    assert named != ids
    given(trained_ids=ids, forget_ids=ids[:8], retain_ids=ids[8:])
    with pytest.raises(UnknownRecord):
        given(trained_ids=ids[8:], forget_ids=ids[:8])


def test_no_records_and_data_that_can_be_read_only_once():
    with pytest.raises(InvalidInput, match="at least one record"):
        Problem(net(), cross_entropy, (X[:0], Y[:0]), (X, Y))
    with pytest.raises(InvalidInput, match="no records"):
        Problem(net(), cross_entropy, [], (X, Y)).removed  # noqa: B018
    with pytest.raises(InvalidInput, match="read only once"):
        Problem(net(), cross_entropy, iter([(X, Y)]))
    with pytest.raises(InvalidInput, match="shuffle=False"):
        Problem(net(), cross_entropy, DataLoader(TensorDataset(X, Y), shuffle=True))


def test_what_is_missing_is_named():
    bare = Problem(net(), cross_entropy, (X, Y))
    with pytest.raises(InvalidInput, match=r"retrain needs .*retain=.* and .*train=Recipe"):
        bare.require(frozenset({"retain", "training", "forget"}), "retrain")
    with pytest.raises(InvalidInput, match="train_logged"):
        bare.require(frozenset({"stored"}), "ssd")
    with pytest.raises(InvalidInput, match="retain="):
        bare.kept()
    with pytest.raises(InvalidInput, match="retain="):
        bare.total  # noqa: B018
    assert repr(bare) == "Problem(Sequential, forget=72, retain=None, seed=0)"


def test_values_carry_a_known_tag():
    assert Evidence(1.0, "assumed").tag is Tag.assumed
    with pytest.raises(InvalidInput, match="tag must be one of"):
        Evidence(1.0, "guessed")


def test_the_guard_reports_a_loss_beyond_its_margin_only():
    assert over_unlearned(0.849, 0.9)
    assert not over_unlearned(0.851, 0.9)
    assert over_unlearned(0.89, 0.9, margin=0.0)
    assert not over_unlearned(0.95, 0.9)
    for wrong in ((1.2, 0.9), (0.9, float("nan"))):
        with pytest.raises(InvalidInput, match="between 0 and 1"):
            over_unlearned(*wrong)


# --- buffers --------------------------------------------------------------------------------------


def normed():
    """Return a trained-looking network with BatchNorm."""
    made = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3)).double()
    with torch.no_grad():
        made.train()(3.0 * X + 1.0)
    return made


class Counting(nn.Module):
    """A buffer of its own that training moves."""

    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(6, 3)
        self.register_buffer("seen", torch.zeros(()))

    def forward(self, x):
        """Count in train mode."""
        if self.training:
            self.seen += len(x)
        return self.inner(x)


def test_statistics_of_the_forgotten_are_refused_unless_decided():
    with pytest.raises(UnsupportedModel, match=r"1\.running_mean of layer 1 \(BatchNorm1d\)"):
        given(normed())
    with pytest.raises(UnsupportedModel, match=r"seen of layer itself \(Counting\).*'keep'"):
        given(Counting().double())
    with pytest.raises(UnsupportedModel, match="seen"):
        given(Counting().double(), buffers="reestimate")  # nobody knows how
    with pytest.raises(InvalidInput, match="refuse, keep or reestimate"):
        given(buffers="forget")
    given(nn.Sequential(nn.Linear(6, 8), nn.GroupNorm(2, 8), nn.Linear(8, 3)).double())
    given(Counting().double(), buffers="keep")


def test_kept_statistics_are_kept_and_said_to_be():
    task = given(normed(), buffers="keep", train=RECIPE)
    for name in ("finetune", "null", "scrub"):
        found = METHODS[name]().unlearn(task)
        assert found.evidence["buffers"].value == "keep"
        assert torch.equal(found.model[1].running_mean, task.model[1].running_mean)


def test_statistics_computed_again_are_those_of_r():
    task = given(normed(), buffers="reestimate", train=RECIPE)
    found = FineTune(epochs=1).unlearn(task)
    h = found.model[0](X[GONE:])
    torch.testing.assert_close(found.model[1].running_mean, h.mean(0))
    torch.testing.assert_close(found.model[1].running_var, h.var(0))
    assert found.evidence["buffers"].value == "reestimate"
    assert found.rows_read["retain"] == 2 * 64
    still = METHODS["null"]().unlearn(task)
    assert same(bits(still.model), bits(task.model))  # null does nothing at all


def test_a_last_batch_of_one_record_is_normalised_with_the_others():
    x, y = X.repeat(4, 1)[:257], Y.repeat(4)[:257]
    task = Problem(normed(), cross_entropy, (X, Y), (x, y), train=RECIPE, buffers="reestimate")
    found = FineTune(epochs=0).unlearn(task)
    torch.testing.assert_close(found.model[1].running_mean, found.model[0](x).mean(0))


def test_statistics_outside_params_belong_to_what_is_not_changed():
    task = given(normed(), params="3.*", train=RECIPE)
    assert moving_buffers(task) == ([], [])
    for name in ("finetune", "retrain", "influence"):
        found = METHODS[name]().unlearn(task)
        assert not torch.equal(found.model[3].weight, task.model[3].weight)
        changed = [
            k for k, t in bits(found.model).items() if not torch.equal(t, bits(task.model)[k])
        ]
        assert changed == ["3.weight", "3.bias"]
    with pytest.raises(UnsupportedModel, match="running_mean"):
        given(normed(), params=["1.*", "3.*"])


# --- what `fresh` makes ---------------------------------------------------------------------------


def test_a_new_model_must_be_new():
    trained = normed()
    base = given(trained, buffers="reestimate", train=RECIPE)

    def only_weights(seed):
        made = copy.deepcopy(trained)
        for layer in (made[0], made[3]):
            layer.reset_parameters()
        return made

    for fresh, message in (
        (lambda seed: trained, "trained values of 0.weight"),
        (lambda seed: copy.deepcopy(trained), "trained values of 0.weight"),
        (only_weights, "trained values of 1.running_mean"),
        (lambda seed: nn.Sequential(nn.Linear(6, 3)), "another form: 0.weight differs"),
    ):
        with pytest.raises(InvalidInput, match=message):
            METHODS["retrain"]().unlearn(replace(base, fresh=fresh))


def test_a_new_model_takes_dtype_and_mode_of_the_old():
    def fresh(seed):
        return nn.Sequential(nn.Linear(6, 10), nn.Tanh(), nn.Linear(10, 3))

    task = replace(problem(), fresh=fresh)
    task.model.eval()
    found = METHODS["retrain"]().unlearn(task)
    assert {p.dtype for p in found.model.parameters()} == {torch.float64}
    assert not any(module.training for module in found.model.modules())
    assert found.grade is Grade.exact


def test_renewed_statistics_reach_the_retrained_model():
    """Retraining begins from empty statistics too (BatchNorm), none is carried over."""
    old = given(normed(), buffers="reestimate", train=RECIPE)
    with torch.no_grad():
        other = copy.deepcopy(old.model)
        other[1].running_mean += 50.0
    a, b = (METHODS["retrain"]().unlearn(it).model for it in (old, replace(old, model=other)))
    assert same(bits(a), bits(b))


def test_the_ledger_follows_the_ids():
    for options, tags in (
        ({}, ("enforced", "enforced")),
        ({"trained_ids": None}, ("enforced", "assumed")),
        ({"trained_ids": None, "retain_ids": None}, ("assumed", "assumed")),
    ):
        found = FineTune(epochs=0).unlearn(problem(**options))
        listed = {it.id: it.tag.value for it in found.assumptions}
        assert (listed["retainDisjointFromForget"], listed["forgetWasTrainedOn"]) == tags


def test_a_frozen_part_makes_retraining_conditional():
    task = problem(params="2.*")
    found = METHODS["retrain"]().unlearn(task)
    assert found.grade is Grade.conditional
    assert "unchangedPartNeverSawForget" in {it.id for it in found.assumptions}
    model = copy.deepcopy(task.model)
    model[0].requires_grad_(False)
    with pytest.raises(InvalidInput, match="frozen"):
        METHODS["retrain"]().unlearn(replace(task, model=model, params=None))


def test_the_copy_shares_nothing_with_the_model():
    task = problem()
    work = Work(task)
    own = {t.untyped_storage().data_ptr() for t in task.model.state_dict().values()}
    assert own.isdisjoint(t.untyped_storage().data_ptr() for t in work.model.state_dict().values())
    assert own.isdisjoint(
        t.untyped_storage().data_ptr() for t in reinitialised(task.model, 0).state_dict().values()
    )
    assert part(task, "forget")[0].dtype == torch.float64
