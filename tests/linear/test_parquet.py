"""Rows in Parquet files: the same bits as in memory, and what is refused."""

from __future__ import annotations

import decimal
import os
import pickle

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from expunge.certificate import residual
from expunge.certificate.distance import distance_bound
from expunge.errors import InvalidInput
from expunge.folder.encoding import Encoding
from expunge.folder.labels import LabelEncoding
from expunge.folder.records import Records
from expunge.folder.table import from_arrow
from expunge.linear.arrow import Classes
from expunge.linear.engine import fit, unlearn
from expunge.linear.losses import LOSSES
from expunge.linear.parquet import decoded_rows, parquet_rows
from expunge.linear.passes import evaluate
from expunge.linear.shards import shards
from parquet_example import in_memory, numbers, require_same, results, table, write

LOGISTIC = LOSSES["logistic"]


def opened(directory, **options):
    return parquet_rows(directory, target="y", ignore=["person"], **options)


@pytest.mark.parametrize("intercept", [False, True])
@pytest.mark.parametrize(
    ("n", "group", "files"),
    [(2100, 1, 1), (3001, 7, 2), (9000, 1000, 3), (9001, 4096, 1), (9002, 100_000, 37), (1, 1, 1)],
)
def test_same_bits_as_in_memory(tmp_path, n, group, files, intercept):
    X, y, weight = numbers(n)
    weight[0] = 1.0
    rows = opened(
        write(tmp_path, table(X, y, weight), group, files), weight="w", intercept=intercept
    )
    expected = results(in_memory(X, y, weight, intercept), LOGISTIC)
    require_same(results(rows, LOGISTIC), expected)


def test_every_shard_and_block_crosses_files():
    """The cases above would prove little with a single shard, or with files cut like shards."""
    assert len(shards(9002)) == 8
    assert not {a for a, _ in shards(9002)[1:]} & {9002 * k // 37 for k in range(37)}


@settings(max_examples=10, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    n=st.integers(1, 5000),
    group=st.integers(1, 3000),
    files=st.integers(1, 6),
    seed=st.integers(0, 99),
    gone=st.lists(st.integers(0, 4999), max_size=30),
)
def test_any_cut_and_any_deletion(tmp_path_factory, n, group, files, seed, gone):
    X, y, _ = numbers(n, 3, seed)
    people = table(X, y)
    rows = opened(write(tmp_path_factory.mktemp("any"), people, max(group, n // 50), files))
    memory = in_memory(X, y, None)
    require_same(results(rows, LOGISTIC), results(memory, LOGISTIC))
    index = np.array([i for i in gone if i < n], dtype=np.intp)
    taken, expected = rows.take(index), memory.take(index)
    for name in ("X", "target", "weight", "norm"):
        np.testing.assert_array_equal(getattr(taken, name), getattr(expected, name))
    left, right = rows.without(index), memory.without(index)
    assert (left.count, left.length) == (right.count, n)
    np.testing.assert_array_equal(left.positives, right.positives)
    assert left.radius >= right.radius
    gradients = [evaluate(those, LOGISTIC, np.zeros((4, 1))).gradient for those in (left, right)]
    assert gradients[0].tobytes() == gradients[1].tobytes()
    part, span = left.part(n // 3, n), np.arange(n // 3, n)
    np.testing.assert_array_equal(part.take(np.arange(part.length)).weight, right.weight[span])


@pytest.mark.parametrize(
    ("kind", "cells"),
    [
        (pa.int64(), [2**53 + 1, -3, 0, 7]),
        (pa.uint8(), [255, 1, 0, 7]),
        (pa.bool_(), [True, False, False, True]),
        (pa.float16(), np.array([0.1, 65504, -2, 0], np.float16)),
        (pa.float32(), np.array([0.1, 1e38, -2, 1e-45], np.float32)),
        (pa.decimal128(38, 25), [decimal.Decimal("0.1"), decimal.Decimal(-1), 0, -12]),
        (pa.dictionary(pa.int8(), pa.int64()), [5, 7, 5, -1]),
    ],
)
def test_numbers_of_every_kind(tmp_path, kind, cells):
    """Values are what Python's float makes of them, whatever columns stand beside them."""
    cells = pa.array(cells, kind)
    other = pa.array([0.1, 0.2, 0.3, 0.4], pa.float32())
    people = pa.table({"a": cells, "b": other, "y": [1.0, 2.0, 3.0, 4.0]})
    rows = parquet_rows(write(tmp_path, people, 3), target="y")
    found = rows.take(np.arange(4)).X
    assert found[:, 0].tolist() == [float(value) for value in cells.to_pylist()]
    assert found[:, 1].tolist() == other.to_pylist()


@pytest.mark.parametrize(
    ("column", "message"),
    [
        (pa.array([1.0, None, 3.0, 4.0]), r"part-000.parquet: column 'a', row 2 is empty"),
        (pa.array([1.0, 2.0, float("nan"), 4.0]), "column 'a', row 3: .*finite"),
        (pa.array([1.0, 2.0, 3.0, 1e200]), "column 'a', row 4: .*finite"),
        (pa.array(["1", "2", "3", "4"]), "column 'a' has type string, expected numbers"),
    ],
)
def test_what_is_no_number_is_refused(tmp_path, column, message):
    people = pa.table({"a": column, "y": [1.0, 2.0, 3.0, 4.0]})
    with pytest.raises(InvalidInput, match=message):
        parquet_rows(write(tmp_path, people, 2), target="y")


def test_bad_targets_weights_and_columns_are_refused(tmp_path):
    people = pa.table({"a": [1.0, 2.0], "y": [1.0, np.inf], "w": [1.0, -1.0], "c": ["n", "?"]})
    people = people.append_column("c2", [[1, 2]])
    write(tmp_path, people, 1)

    def refused(message, **options):
        with pytest.raises(InvalidInput, match=message):
            parquet_rows(tmp_path, features=["a"], **options)

    refused("target or weight, row 2: .*finite", target="y")
    refused("target or weight, row 2: weights", target=["c2"], weight="w")
    refused(r"column 'c', row 2 is '\?', no class", target="c", encode=Classes(("n", "m")))
    refused("no values of a column of int64", target="c2", encode=Classes(("n", "m")))
    refused("has no column 'z'", target="z")
    refused("more than once", target="a")
    with pytest.raises(InvalidInput, match=r"no files \*.parquet"):
        parquet_rows(tmp_path / "..", target="y")
    with pytest.raises(InvalidInput, match="cannot be read"):
        parquet_rows(tmp_path / "absent.parquet", target="y")
    with pytest.raises(InvalidInput, match="given twice"):
        parquet_rows([*tmp_path.glob("*")] * 2, target="y")
    pq.write_table(people.rename_columns(["b", "y", "w", "c", "c2"]), tmp_path / "z.parquet")
    with pytest.raises(InvalidInput, match="other columns"):
        parquet_rows(tmp_path, target="y")


def test_files_come_in_the_order_of_their_names(tmp_path):
    for name, value in (("b", 2.0), ("a", 1.0), ("c", 3.0)):
        pq.write_table(pa.table({"x": [value], "y": [value]}), tmp_path / f"{name}.parquet")
    pq.write_table(pa.table({"x": [], "y": []}), tmp_path / "aa.parquet")
    rows = parquet_rows([*tmp_path.iterdir()][::-1], target="y")
    assert rows.take(np.array([0, 1, 2])).X[:, 0].tolist() == [1.0, 2.0, 3.0]
    assert rows.take(np.array([-1, 0, -1])).X[:, 0].tolist() == [3.0, 1.0, 3.0]
    assert rows.take(np.array([False, True, False])).X[:, 0].tolist() == [2.0]
    with pytest.raises(InvalidInput, match="positions of 3 rows"):
        rows.without(np.array([3]))
    assert repr(rows) == "ParquetRows(n=3, d=1, files=4)"


@pytest.mark.parametrize(
    ("classes", "one_hot", "loss"),
    [(("a", "b"), False, "logistic"), ("abc", True, "softmax"), ("abc", False, "logistic")],
)
def test_classes(tmp_path, classes, one_hot, loss):
    X, _, _ = numbers(3000, 4)
    code = np.random.default_rng(2).integers(0, len(classes), 3000)
    names = np.array([*classes])[code]
    people = pa.table({"label": pa.array(names).dictionary_encode(), "x0": X[:, 0], "x1": X[:, 1]})
    encode = Classes(tuple(classes), one_hot)
    rows = parquet_rows(write(tmp_path, people, 999), target="label", encode=encode)
    target = np.where(code == 1, 1.0, -1.0)
    if len(classes) > 2:
        target = np.eye(3)[code] if one_hot else 2 * np.eye(3)[code] - 1
    memory = in_memory(X[:, :2], target, None)
    np.testing.assert_array_equal(rows.take(np.arange(3000)).target, memory.target)
    for which in [slice(0, 3)] if one_hot else [slice(0, 1), slice(rows.columns - 1, rows.columns)]:
        one, other = rows.outputs(which), memory.outputs(which)
        require_same(*(results(those, LOSSES[loss], those.columns) for those in (one, other)))


def test_a_declared_encoding_row_group_by_row_group(tmp_path):
    schema = {
        "age": {"type": "number", "center": 40, "scale": 20, "fill": 40},
        "site": {"type": "category", "categories": ["a", "b"], "other": True},
    }
    records = Records(
        "ill",
        "person",
        Encoding.declared({"features": schema, "max_norm": 2.0}),
        LabelEncoding.declared({"classes": ["no", "yes"]}),
        "logistic",
        True,
    )
    rng = np.random.default_rng(3)
    people = pa.table(
        {
            "person": [f"p{i}" for i in range(5000)],
            "age": pa.array(rng.uniform(20, 90, 5000), mask=rng.random(5000) < 0.1),
            "site": rng.choice(["a", "b", "c"], 5000),
            "ill": rng.choice(["no", "yes"], 5000),
        }
    )

    def encoded(piece):
        source = from_arrow(piece, label="ill", identifier="person", source="people")
        rows = records.rows(source)
        return rows.X, rows.target, rows.weight

    rows = decoded_rows(write(tmp_path, people, 777, 2), encoded)
    whole = records.rows(from_arrow(people, label="ill", identifier="person", source="people"))
    require_same(results(rows, LOGISTIC), results(whole, LOGISTIC))
    pq.write_table(people.set_column(2, "site", [[None] * 5000]), tmp_path / "z.parquet")
    with pytest.raises(InvalidInput, match=r"z.parquet, rows 1 to \d+: .*'site', row 1"):
        decoded_rows(tmp_path, encoded)


def test_a_decoder_of_another_form_is_refused(tmp_path):
    X, y, _ = numbers(10)
    write(tmp_path, table(X, y), 5)
    with pytest.raises(InvalidInput, match="the decoder gave"):
        decoded_rows(tmp_path, lambda piece: (np.ones((2, 2)), np.ones(2), np.ones(2)))


def _rewritten(path):
    X, y, _ = numbers(3000, seed=1)
    write(path.parent, table(X, y), 500)


def _touched(path):
    os.utime(path, ns=(0, path.stat().st_mtime_ns + 1))


def _truncated(path):
    os.truncate(path, path.stat().st_size - 1000)


def _footer(path):
    """Change a byte of the footer, nothing else."""
    with _kept(path) as content:
        content[-60] ^= 1


def _page(path):
    """Cut a page's header short: only a reader that decodes it can notice."""
    with _kept(path) as content:
        content[4:30] = bytes([255]) * 26


class _kept:
    """Change a file and hide it: the same size and time."""

    def __init__(self, path):
        self.path = path

    def __enter__(self):
        self.time = self.path.stat().st_mtime_ns
        self.content = bytearray(self.path.read_bytes())
        return self.content

    def __exit__(self, *error):
        self.path.write_bytes(self.content)
        os.utime(self.path, ns=(self.time, self.time))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (_rewritten, "has changed"),
        (_touched, "has changed"),
        (_truncated, "has changed"),
        (_footer, "has changed"),
        (_page, "damaged"),
        (os.unlink, "cannot be read"),
    ],
)
def test_a_file_that_changes_is_noticed(tmp_path, change, message):
    X, y, _ = numbers(3000)
    rows = opened(write(tmp_path, table(X, y), 500))
    W = np.zeros((6, 1))
    evaluate(rows, LOGISTIC, W)
    change(tmp_path / "part-000.parquet")
    with pytest.raises(InvalidInput, match=message):
        evaluate(rows, LOGISTIC, W)
    with pytest.raises(InvalidInput, match=message):
        rows.take(np.array([0]))


def test_a_file_that_changes_during_a_pass_is_noticed(tmp_path):
    X, y, _ = numbers(3000)
    rows = opened(write(tmp_path, table(X, y), 500))
    stream = rows.stream(0, 3000)
    next(stream)
    _touched(tmp_path / "part-000.parquet")
    with pytest.raises(InvalidInput, match="has changed"):
        list(stream)


@pytest.mark.parametrize("damage", [_truncated, lambda path: path.write_bytes(b"not Parquet")])
def test_what_is_no_parquet_file_is_refused(tmp_path, damage):
    X, y, _ = numbers(300)
    damage(write(tmp_path, table(X, y), 500) / "part-000.parquet")
    with pytest.raises(InvalidInput, match="is damaged, or no Parquet file"):
        opened(tmp_path)


@pytest.mark.parametrize("loss", ["logistic", "squared"])
def test_fit_and_unlearn_end_to_end(tmp_path, loss):
    X, y, weight = numbers(9000)
    rows = opened(write(tmp_path, table(X, y, weight), 700, 2), weight="w")
    memory = in_memory(X, y, weight)
    options = {"loss": loss, "l2": 1.0, "tolerance": 1e-5, "classes": loss == "logistic"}
    states = []
    for those in (rows, memory):
        state, _ = fit(those, **options)
        for index in (np.array([5]), np.arange(100, 900)):
            forget, those = those.take(index), those.without(index)
            state, trace = unlearn(state, forget, those)
        states.append((state, trace))
    (one, how), (other, expected) = states
    assert one.weights.tobytes() == other.weights.tobytes()
    assert how.path == expected.path
    assert loss == "squared" or how.path != "bounded"


@pytest.mark.parametrize("intercept", [False, True])
@pytest.mark.parametrize("loss", ["logistic", "softmax"])
def test_recheck_out_of_core(tmp_path, monkeypatch, loss, intercept):
    monkeypatch.setattr(residual, "BLOCK_VALUES", 1 << 10)
    monkeypatch.setattr("expunge.linear.parquet.BLOCK_VALUES", 1 << 10)
    X, y, weight = numbers(9000)
    label = np.where(y > 0, 1, 0) + (X[:, 0] > 0)
    people = table(X, label if loss == "softmax" else y, weight)
    encode = Classes((0, 1, 2), one_hot=True) if loss == "softmax" else None
    rows = opened(write(tmp_path, people, 700, 2), weight="w", encode=encode, intercept=intercept)
    rows = rows.without(np.array([7, 8000]))
    memory = rows.take(np.arange(9000))
    plain = residual.Rows(memory.X, memory.target, memory.weight)
    W = fit(memory, loss=loss, l2=1.0, tolerance=1e-6, classes=True)[0].weights
    found = distance_bound(rows.for_recheck(), W, loss, 1.0, intercept)
    assert found == distance_bound(plain, W, loss, 1.0, intercept)
    assert 0 < found.bound < 1e-6
    back = [*rows.for_recheck().blocks()]
    assert len(back) > 1
    np.testing.assert_array_equal(np.vstack([X for X, _, _ in back[::-1]]), memory.X)


def test_a_source_can_be_pickled(tmp_path):
    X, y, weight = numbers(3000)
    rows = opened(write(tmp_path, table(X, y, weight), 400), weight="w")
    again = pickle.loads(pickle.dumps(rows.without(np.array([1, 2]))))  # noqa: S301
    require_same(results(again, LOGISTIC), results(rows.without(np.array([1, 2])), LOGISTIC))
