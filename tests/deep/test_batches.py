"""Every form of data gives the same records; what cannot be summed twice is refused."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    IterableDataset,
    RandomSampler,
    Subset,
    TensorDataset,
    WeightedRandomSampler,
)

from expunge.deep.batches import as_batches, len_rows, split
from expunge.deep.trees import leaves
from expunge.errors import InvalidInput

X = torch.arange(30.0).reshape(10, 3)
Y = torch.arange(10)


class Stream(IterableDataset):
    def __iter__(self):
        return iter(zip(X, Y, strict=True))


class Rows(Dataset):
    """Rows of X and Y, read one at a time and counted."""

    def __init__(self):
        self.reads = 0

    def __len__(self):
        return 10

    def __getitem__(self, i):
        self.reads += 1
        return X[i], Y[i]


class Listed:
    """Re-iterable, of no known length."""

    def __init__(self, batches):
        self.batches = batches

    def __iter__(self):
        return iter(self.batches)


def cut(*sizes):
    return list(zip(X.split(sizes), Y.split(sizes), strict=True))


FORMS = {
    "pair": lambda: (X, Y),
    "list pair": lambda: [X, Y],
    "dict": lambda: {"x": X, "labels": Y},
    "nested": lambda: ((X[:, :1], X[:, 1:]), Y),
    "tensor dataset": lambda: TensorDataset(X, Y),
    "subset": lambda: Subset(TensorDataset(X.flip(0), Y.flip(0)), range(9, -1, -1)),
    "subset of rows": lambda: Subset(Rows(), range(10)),
    "rows": Rows,
    "stream": Stream,
    "loader": lambda: DataLoader(TensorDataset(X, Y), batch_size=4),
    "loader of rows": lambda: DataLoader(Rows(), batch_size=4),
    "loader of a stream": lambda: DataLoader(Stream(), batch_size=4),
    "loader with workers": lambda: DataLoader(Rows(), batch_size=4, num_workers=1),
    "batch sampler": lambda: DataLoader(
        Rows(), batch_sampler=BatchSampler(range(10), 4, drop_last=False)
    ),
    "unbatched loader": lambda: DataLoader(cut(4, 4, 2), batch_size=None),
    "list": lambda: cut(4, 4, 2),
    "list of dicts": lambda: [{"x": x, "target": y} for x, y in cut(4, 4, 2)],
    "re-iterable": lambda: Listed(cut(1, 5, 4)),
}


def rows_of(batches):
    """Return all inputs, as one matrix, and targets."""
    parts = [(torch.cat([t.reshape(len(y), -1) for t in leaves(x)], 1), y) for x, y in batches]
    return torch.cat([x for x, _ in parts]), torch.cat([y for _, y in parts])


@pytest.mark.parametrize("form", FORMS)
def test_every_form_gives_the_same_records(form):
    batches = as_batches(FORMS[form](), batch_size=4)
    for _ in range(4):
        inputs, targets = rows_of(batches)
        assert torch.equal(inputs, X)
        assert torch.equal(targets, Y)
        for size in (1, 3, 7, 100):
            inputs, targets = rows_of(batches.chunks(size))
            assert torch.equal(inputs, X)
            assert torch.equal(targets, Y)
            sizes = [len(y) for _, y in batches.chunks(size)]
            assert sizes[:-1] == [size] * (len(sizes) - 1)
    assert batches.rows == 10
    assert as_batches(batches) is batches
    assert len_rows(FORMS[form]()) == 10


@pytest.mark.parametrize("form", ["rows", "loader of rows", "pair", "subset of rows"])
def test_single_records_can_be_taken(form):
    inputs, targets = as_batches(FORMS[form]()).take([7, 0, 7])
    assert torch.equal(inputs, X[[7, 0, 7]])
    assert torch.equal(targets, Y[[7, 0, 7]])


@pytest.mark.parametrize("form", ["stream", "list", "batch sampler"])
def test_or_not(form):
    with pytest.raises(InvalidInput, match="in batches only"):
        as_batches(FORMS[form]()).take([0])


def test_sources_are_read_twice_then_held():
    data = Rows()
    batches = as_batches(data, batch_size=4)
    for _ in range(5):
        rows_of(batches)
    assert data.reads == 20


def test_batches_of_uneven_sizes_stay_as_they_came():
    batches = as_batches(cut(4, 1, 5))
    for _ in range(4):
        assert [len(y) for _, y in batches] == [4, 1, 5]


def test_batches_of_other_shapes_are_not_merged():
    long = torch.zeros(2, 5), torch.zeros(2)
    short = torch.zeros(3, 4), torch.zeros(3)
    batches = as_batches([long, long, short])
    for _ in range(3):
        assert [tuple(x.shape) for x, _ in batches.chunks(10)] == [(4, 5), (3, 4)]


def test_keys_in_another_order_are_not_mixed_up():
    one, two = torch.ones(2, 1), torch.full((2, 1), 2.0)
    label = torch.zeros(2)
    batches = as_batches(
        [{"a": one, "b": two, "labels": label}, {"b": two, "a": one, "labels": label}]
    )
    for _ in range(3):
        for x, _ in batches.chunks(4):
            assert bool((x["a"] == 1).all())
            assert bool((x["b"] == 2).all())


def test_a_dataset_that_overrides_its_items_is_asked_for_them():
    class Doubled(TensorDataset):
        def __getitem__(self, i):
            x, y = super().__getitem__(i)
            return 2 * x, y

    class Negated(Subset):
        def __getitem__(self, i):
            x, y = super().__getitem__(i)
            return -x, y

        def __getitems__(self, index):
            return [self[i] for i in index]

    assert torch.equal(rows_of(as_batches(Doubled(X, Y)))[0], 2 * X)
    assert torch.equal(rows_of(as_batches(Negated(TensorDataset(X, Y), range(10))))[0], -X)


def test_a_collate_function_is_used():
    def stack(records):
        return torch.stack([x for x, _ in records]) + 1, torch.stack([y for _, y in records])

    loader = DataLoader(TensorDataset(X, Y), batch_size=4, collate_fn=stack)
    batches = as_batches(loader)
    assert torch.equal(rows_of(batches)[0], X + 1)
    assert torch.equal(batches.take([3])[0], X[3:4] + 1)


def test_a_tensor_alone_is_its_own_target():
    for data in (X, TensorDataset(X), DataLoader(TensorDataset(X), batch_size=3)):
        for inputs, targets in as_batches(data):
            assert torch.equal(inputs, targets)


def test_the_random_state_is_left_alone():
    before = torch.get_rng_state()
    rows_of(as_batches(DataLoader(Rows(), batch_size=4)))
    assert torch.equal(torch.get_rng_state(), before)


def test_moving():
    batches = as_batches((X, Y), device="meta")
    assert next(iter(batches))[0].device.type == "meta"
    moved = as_batches(cut(4, 4, 2)).to(torch.device("meta"))
    assert {x.device.type for x, _ in moved} == {"meta"}
    assert moved.to(None) is moved
    assert "device=meta" in repr(moved)


@pytest.mark.parametrize(
    "loader",
    [
        lambda: DataLoader(Rows(), batch_size=4, shuffle=True),
        lambda: DataLoader(Rows(), batch_size=4, sampler=WeightedRandomSampler([1.0] * 10, 10)),
        lambda: DataLoader(Rows(), batch_sampler=BatchSampler(RandomSampler(Rows()), 4, False)),
    ],
)
def test_random_order_is_refused(loader):
    with pytest.raises(InvalidInput, match="shuffle=False"):
        as_batches(loader())


def test_dropped_records_are_refused():
    for loader in (
        DataLoader(Rows(), batch_size=4, drop_last=True),
        DataLoader(Rows(), batch_sampler=BatchSampler(range(10), 4, drop_last=True)),
    ):
        with pytest.raises(InvalidInput, match="drop_last=False"):
            as_batches(loader)


def test_what_can_be_read_once_is_refused():
    for once in (iter(cut(4, 6)), (b for b in cut(4, 6)), zip([X], [Y], strict=True)):
        with pytest.raises(InvalidInput, match="only once"):
            as_batches(once)

    class Once:
        def __init__(self):
            self.left = iter(cut(4, 6))

        def __iter__(self):
            return self.left

    batches = as_batches(Once())
    rows_of(batches)
    with pytest.raises(InvalidInput, match="yielded 0 batches, 2 on its first pass"):
        rows_of(batches)


class Hidden:
    """Shuffles without saying so, or loses a batch, on its second pass."""

    def __init__(self, second):
        self.passes, self.second = [cut(4, 4, 2), second], -1

    def __iter__(self):
        self.second += 1
        return iter(self.passes[min(self.second, 1)])


@pytest.mark.parametrize(
    ("second", "words"),
    [
        (cut(4, 4, 2)[::-1], "batch 0 is not the one"),
        (cut(4, 4, 2)[:2], "yielded 2 batches, 3 on"),
        ([*cut(4, 4, 2), (X[:1], Y[:1])], "batch 3 is not the one"),
        ([*cut(4, 4, 2)[:2], (X[8:] + 1e-6, Y[8:])], "batch 2 is not the one"),
        ([*cut(4, 4, 2)[:2], (X[8:], Y[8:] + 1)], "batch 2 is not the one"),
    ],
)
def test_other_records_on_the_second_pass_are_found_out(second, words):
    batches = as_batches(Hidden(second))
    rows_of(batches)
    with pytest.raises(InvalidInput, match=words):
        rows_of(batches)


def test_a_pass_given_up_half_way_does_no_harm():
    batches = as_batches(cut(4, 4, 2))
    for _ in range(3):
        next(iter(batches))
        next(iter(batches.chunks(3)))
    assert batches.rows == 10
    a, b = iter(batches), iter(batches)
    for (x, _), (z, _) in zip(a, b, strict=True):
        assert torch.equal(x, z)


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (3, "expected a DataLoader"),
        ([], "no records"),
        ((X, Y[:9]), "a row per target"),
        ((X[:0], Y[:0]), "at least one record"),
        ({"x": X}, "exactly one of the keys"),
        ({"x": X, "labels": Y, "targets": Y}, "exactly one of the keys"),
        ([(X, X, Y)], r"length 3.*\(\(x1, x2\), y\)"),
        ([(X, 1.0)], "targets must be a tensor"),
        ([(X, torch.tensor(1.0))], "without dimensions"),
        ([({"x": X, "name": "a"}, Y)], "must be tensors, not str"),
        (["text"], "expected a batch"),
    ],
)
def test_what_is_no_batch_is_refused(data, words):
    with pytest.raises(InvalidInput, match=words):
        rows_of(as_batches(data))


def test_the_batch_size_must_be_positive():
    with pytest.raises(InvalidInput, match="batch_size"):
        as_batches((X, Y), batch_size=0)


def test_split_knows_lists():
    inputs, _ = split([[X, X], Y])
    assert isinstance(inputs, tuple)
    inputs, _ = split([{"x": X}, Y])
    assert set(inputs) == {"x"}


@settings(max_examples=40, deadline=None)
@given(sizes=st.lists(st.integers(1, 9), min_size=1, max_size=6), rows=st.integers(1, 20))
def test_any_cut_can_be_cut_again(sizes, rows):
    n = sum(sizes)
    x, y = torch.arange(2.0 * n).reshape(n, 2), torch.arange(n)
    source = list(zip(x.split(sizes), y.split(sizes), strict=True))
    batches = as_batches(source)
    for _ in range(3):
        parts = list(batches.chunks(rows))
        assert [len(t) for _, t in parts[:-1]] == [rows] * (len(parts) - 1)
        assert torch.equal(torch.cat([a for a, _ in parts]), x)
        assert [len(t) for _, t in batches] == sizes
