"""SISA: exact to the bit, resumable, cheap; and what it costs."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from scipy.stats import chisquare
from torch import nn

import nets
from expunge.deep.descent import Recipe
from expunge.deep.sharded import (
    Ensemble,
    ShardPlan,
    delete_records,
    recomputed_fraction,
    touched_shards,
    train_shards,
)
from expunge.errors import InvalidInput, UnknownRecord
from expunge.guarantee import Grade


def network(seed):
    return nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Dropout(0.2), nn.Linear(8, 3))


def data(rows=60):
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(rows, 6, generator=generator)
    return (x, (x[:, 0] > 0).long() + (x[:, 1] > 0.5).long()), [f"p{i}" for i in range(rows)]


PLAN = ShardPlan(shards=4, slices=3, recipe=Recipe(lr=0.01, epochs=2, batch_size=8), seed=3)


def weights(model):
    return torch.cat([p.detach().reshape(-1) for p in model.parameters()])


def test_a_deletion_has_the_bits_of_training_from_nothing(tmp_path):
    rows, ids = data()
    before, first = train_shards(network, rows, ids, PLAN, tmp_path / "a")
    assert first.shards == (0, 1, 2, 3)
    assert first.share == 1.0
    gone = [ids[7], ids[23]]
    after, work, grade = delete_records(network, rows, ids, gone, PLAN, tmp_path / "a")
    left = [i for i in range(60) if ids[i] not in gone]
    kept = (rows[0][left], rows[1][left])
    fresh, _ = train_shards(network, kept, [ids[i] for i in left], PLAN, tmp_path / "b")
    assert torch.equal(weights(after), weights(fresh))
    assert not torch.equal(weights(after), weights(before))
    assert grade is Grade.exact
    assert set(work.shards) == {PLAN.place(name)[0] for name in gone}
    assert 0.0 < work.share < 1.0
    names = {path.name for path in (tmp_path / "a").iterdir()}
    assert names == {path.name for path in (tmp_path / "b").iterdir()}
    assert work.removed >= 1


def test_untouched_shards_and_earlier_slices_are_not_trained_again(tmp_path):
    rows, ids = data()
    train_shards(network, rows, ids, PLAN, tmp_path)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    shard, last = next((s, n) for n in ids for s, r in [PLAN.place(n)] if r == 2)
    _, work, _ = delete_records(network, rows, ids, [last], PLAN, tmp_path)
    after = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    assert len(set(before) - set(after)) == 1
    assert all(after[name] == before[name] for name in set(before) & set(after))
    assert work.shards == (shard,)


def test_it_goes_on_after_an_interruption(tmp_path):
    rows, ids = data()
    whole, _ = train_shards(network, rows, ids, PLAN, tmp_path / "whole")

    def stop(done, total):
        if done == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train_shards(network, rows, ids, PLAN, tmp_path / "part", progress=stop)
    found, work = train_shards(network, rows, ids, PLAN, tmp_path / "part")
    assert torch.equal(weights(found), weights(whole))
    assert len(work.shards) == 2
    again, nothing = train_shards(network, rows, ids, PLAN, tmp_path / "part")
    assert torch.equal(weights(again), weights(whole))
    assert nothing.shards == ()
    assert nothing.trained == 0


def test_two_processes_give_the_bits_of_one(tmp_path):
    rows, ids = data(24)
    plan = ShardPlan(2, 1, Recipe(epochs=1, batch_size=8))
    one, _ = train_shards(nets.small, rows, ids, plan, tmp_path / "one")
    two, _ = train_shards(nets.small, rows, ids, plan, tmp_path / "two", workers=2)
    assert torch.equal(weights(one), weights(two))
    with pytest.raises(InvalidInput, match="imported by name"):
        train_shards(lambda seed: network(seed), rows, ids, plan, tmp_path / "no", workers=2)


def test_the_order_of_the_table_does_not_matter(tmp_path):
    rows, ids = data()
    one, _ = train_shards(network, rows, ids, PLAN, tmp_path / "one")
    order = torch.randperm(60, generator=torch.Generator().manual_seed(1)).tolist()
    mixed = (rows[0][order], rows[1][order])
    two, work = train_shards(network, mixed, [ids[i] for i in order], PLAN, tmp_path / "one")
    assert torch.equal(weights(one), weights(two))
    assert work.trained == 0


def test_a_changed_record_is_trained_again(tmp_path):
    rows, ids = data()
    train_shards(network, rows, ids, PLAN, tmp_path)
    rows[0][5] += 1.0
    _, work = train_shards(network, rows, ids, PLAN, tmp_path)
    assert work.shards == (PLAN.place(ids[5])[0],)


def test_adaptive_requests_lower_the_grade(tmp_path):
    rows, ids = data()
    *_, grade = delete_records(network, rows, ids, ids[:1], PLAN, tmp_path, adaptive=True)
    assert grade is Grade.heuristic


def test_bad_input(tmp_path):
    rows, ids = data()
    with pytest.raises(UnknownRecord, match="never trained"):
        delete_records(network, rows, ids, ["nobody"], PLAN, tmp_path)
    with pytest.raises(InvalidInput, match="retire"):
        delete_records(network, rows, ids, ids, PLAN, tmp_path)
    with pytest.raises(InvalidInput, match="twice"):
        train_shards(network, rows, ["a"] * 60, PLAN, tmp_path)
    with pytest.raises(InvalidInput, match="an id per record"):
        train_shards(network, rows, ids[:3], PLAN, tmp_path)
    with pytest.raises(InvalidInput, match="at least 1"):
        ShardPlan(0)
    assert list(tmp_path.iterdir()) == []


def test_a_shard_without_records_is_left_out(tmp_path):
    rows, ids = data(3)
    found, _ = train_shards(network, rows, ids, ShardPlan(40, 2, PLAN.recipe), tmp_path)
    assert 1 <= len(found.models) <= 3
    assert torch.isfinite(found(rows[0])).all()


def test_aggregates():
    models = [nn.Linear(2, 3) for _ in range(5)]
    x = torch.randn(7, 2)
    mean = Ensemble(models, "mean")(x)
    assert torch.allclose(mean.exp(), torch.stack([m(x).softmax(-1) for m in models]).mean(0))
    votes = Ensemble(models, "vote")(x)
    counts = [Counter(row) for row in torch.stack([m(x).argmax(-1) for m in models]).T.tolist()]
    assert [row.argmax().item() for row in votes] == [
        max(range(3), key=lambda k, c=c: (c[k], -k)) for c in counts
    ]
    with pytest.raises(InvalidInput, match="aggregate"):
        Ensemble(models, "median")


def test_costs_by_simulation():
    rng = np.random.default_rng(0)
    for slices in (1, 2, 5, 20):
        r = rng.integers(slices, size=20_000)
        growing = np.arange(1, slices + 1)
        share = np.array([growing[k:].sum() / growing.sum() for k in r])
        assert share.mean() == pytest.approx(recomputed_fraction(slices), abs=0.01)
    touched = [len(set(rng.integers(20, size=10))) for _ in range(4000)]
    assert np.mean(touched) == pytest.approx(touched_shards(20, 10), abs=0.1)


def test_assignment_is_even_and_independent_of_other_records():
    plan = ShardPlan(5, 4, seed=1)
    counts = Counter(plan.place(f"id{i}") for i in range(20_000))
    assert len(counts) == 20
    assert chisquare(list(counts.values())).pvalue > 1e-3
    assert plan.place("a") == ShardPlan(5, 4, seed=1).place("a")
    assert any(plan.place(f"id{i}") != ShardPlan(5, 4, seed=2).place(f"id{i}") for i in range(5))


def test_checkpoints_are_whole_files(tmp_path):
    rows, ids = data()
    train_shards(network, rows, ids, PLAN, tmp_path)
    paths = sorted(tmp_path.iterdir())
    assert all(path.suffix == ".safetensors" and load_file(path) for path in paths)
    assert all(a.name < b.name for a, b in pairwise(paths))
