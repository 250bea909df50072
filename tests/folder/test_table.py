"""Reading tables and requests: what is accepted, and what every kind of bad file is told."""

from __future__ import annotations

import gzip
import io
import os
import re
import time
from decimal import Decimal
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.csv as arrow_csv
import pyarrow.parquet as parquet
import pytest
from hypothesis import given
from hypothesis import strategies as st

from expunge.errors import InvalidInput, UnknownRecord
from expunge.folder.table import from_arrow, read, read_ids

GOOD = "person,age,site,ill\n1,30,a,yes\n2,41.5,b,no\n1,31,,yes\n"


def write(directory: Path, name: str, content: str | bytes) -> Path:
    path = directory / name
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


def people(path: Path):
    return read(path, label="ill", identifier="person")


def test_reads_ids_label_and_features(tmp_path):
    table = people(write(tmp_path, "people.csv", GOOD))
    assert table.ids.to_pylist() == ["1", "2", "1"]
    assert table.label.to_pylist() == ["yes", "no", "yes"]
    assert table.features.column_names == ["age", "site"]
    assert table.features["site"].to_pylist() == ["a", "b", None]
    assert len(table) == 3


def test_repr_shows_no_cells(tmp_path):
    assert repr(people(write(tmp_path, "people.csv", GOOD))) == (
        "Table('people.csv', rows=3, features=2)"
    )


@pytest.mark.parametrize("name", ["p.csv", "p.CSV", "p.csv.gz", "p.tsv", "p.tsv.gz"])
def test_suffix_gives_the_format(tmp_path, name):
    text = GOOD.replace(",", "\t") if ".tsv" in name else GOOD
    content = gzip.compress(text.encode()) if name.endswith("gz") else text.encode()
    assert people(write(tmp_path, name, content)).ids.to_pylist() == ["1", "2", "1"]


def test_byte_order_mark_and_windows_lines(tmp_path):
    content = b"\xef\xbb\xbf" + GOOD.replace("\n", "\r\n").encode()
    table = people(write(tmp_path, "people.csv", content))
    assert table.id_name == "person"
    assert table.label.to_pylist() == ["yes", "no", "yes"]


def test_quoted_separators_and_line_breaks(tmp_path):
    content = 'person,"a,ge",ill\n"x\ny","1,5",yes\nz,"say ""hi""",no\n'
    table = people(write(tmp_path, "people.csv", content))
    assert table.ids.to_pylist() == ["x\ny", "z"]
    assert table.features["a,ge"].to_pylist() == ["1,5", 'say "hi"']


def test_columns_and_ignore(tmp_path):
    path = write(tmp_path, "people.csv", GOOD)
    kept = read(path, identifier="person", columns=["site", "age"])
    assert kept.features.column_names == ["site", "age"]
    assert kept.label is None
    rest = read(path, label="ill", identifier="person", ignore=["age"])
    assert rest.features.column_names == ["site"]


BAD_FILES = {
    "empty file": ("p.csv", "", "is empty"),
    "empty parquet": ("p.parquet", b"", "is empty"),
    "blank first line": ("p.csv", "\n" + GOOD, "no header"),
    "no rows": ("p.csv", "person,age,ill\n", "no rows"),
    "near miss": ("p.csv", GOOD.replace("person", "Persons"), "Did you mean 'Persons'"),
    "no such column": ("p.csv", "a,b\n1,2\n", "has no column 'ill'"),
    "semicolons": ("p.csv", GOOD.replace(",", ";"), "separated otherwise"),
    "twice in header": ("p.csv", "person,ill,age,age\n1,1,1,1\n", "'age' more than once"),
    "nameless": ("p.csv", ",person,ill\n0,1,yes\n", "index=False"),
    "missing label": ("p.csv", GOOD.replace("b,no", "b,"), "column 'ill', row 2 is empty"),
    "missing id": ("p.csv", GOOD.replace("1,31", ",31"), "column 'person', row 3 is empty"),
    "too few cells": ("p.csv", GOOD + "4,5\n", "row 4 has 2 cells where the header has 4"),
    "too many cells": ("p.csv", GOOD + "4,5,a,no,x\n", "row 4 has 5 cells"),
    "latin-1": ("p.csv", GOOD.replace("a,yes", "é,yes").encode("latin-1"), "not UTF-8"),
    "latin-1 header": ("p.csv", GOOD.replace("age", "âge").encode("latin-1"), "not UTF-8"),
    "utf-16": ("p.csv", GOOD.encode("utf-16"), "not UTF-8"),
    "no gzip": ("p.csv.gz", GOOD, "cannot be read"),
    "cut gzip": ("p.csv.gz", gzip.compress(os.urandom(5000))[:2000], "p.csv.gz"),
    "no parquet": ("p.parquet", GOOD, "not a readable Parquet file"),
    "unknown suffix": ("p.xlsx", GOOD, "ends in none of"),
    "two spellings": ("p.csv", GOOD.replace("1,31", "1.0,31"), "in two ways"),
}


@pytest.mark.parametrize("case", BAD_FILES)
def test_bad_file_is_told_what_is_wrong(tmp_path, case):
    name, content, message = BAD_FILES[case]
    with pytest.raises(InvalidInput, match=message):
        people(write(tmp_path, name, content))


def test_ragged_rows_are_not_quoted(tmp_path):
    with pytest.raises(InvalidInput) as caught:
        people(write(tmp_path, "p.csv", GOOD + "secret,5\n"))
    assert "secret" not in str(caught.value)


def test_missing_file_directory_and_damage(tmp_path):
    write(tmp_path, "people.csv", GOOD)
    with pytest.raises(InvalidInput, match=r"Did you mean 'people.csv'"):
        people(tmp_path / "peoples.csv")
    with pytest.raises(InvalidInput, match="is a directory"):
        people(tmp_path)
    path = tmp_path / "p.parquet"
    parquet.write_table(pa.table({"person": range(5000), "ill": [1] * 5000}), path)
    content = bytearray(path.read_bytes())
    content[4:200] = b"\0" * 196
    path.write_bytes(content)
    with pytest.raises(InvalidInput, match="damaged"):
        people(path)


def test_label_is_not_also_id_or_feature(tmp_path):
    path = write(tmp_path, "people.csv", GOOD)
    with pytest.raises(InvalidInput, match="both the label and the id"):
        read(path, label="ill", identifier="ill")
    with pytest.raises(InvalidInput, match="again as another column"):
        read(path, label="ill", columns=["ill"])
    with pytest.raises(InvalidInput, match=r"no column 'agee'.* Did you mean 'age'"):
        read(path, label="ill", ignore=["agee"])


@pytest.mark.parametrize(
    ("values", "ids"),
    [
        (pa.array([7, 12], pa.int32()), ["7", "12"]),
        (pa.array([7, 2**64 - 1], pa.uint64()), ["7", str(2**64 - 1)]),
        (pa.array([7.0, -3.0]), ["7", "-3"]),
        (pa.array(["7.0", "-3.00"]), ["7", "-3"]),
        (pa.array(["007", " 7", "1.10", "x.0", "7e0"]), ["007", " 7", "1.10", "x.0", "7e0"]),
        (pa.array(["a", "b", "a"]).dictionary_encode(), ["a", "b", "a"]),
        (pa.array(["a", "b"], pa.large_string()), ["a", "b"]),
        (pa.array([Decimal(7), Decimal(8)], pa.decimal128(5, 2)), ["7", "8"]),
    ],
)
def test_ids_are_normalised_in_one_way(values, ids):
    table = from_arrow(pa.table({"person": values}), identifier="person", source="t")
    assert table.ids.to_pylist() == ids


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (pa.array([1.5, 2.0]), "row 1 is 1.5"),
        (pa.array([1.0, 2.0**60]), "row 2"),
        (pa.array([1.0, float("nan")]), "row 2 is empty"),
        (pa.array(["a", ""]), "row 2 is empty"),
        (pa.array(["a", None]), "row 2 is empty"),
        (pa.array([True, False]), "identify nobody"),
        (pa.array([[1], [2]]), "has type list"),
        (pa.array([b"a", b"b"]), "has type binary"),
        (pa.array([None, None]), "row 1 is empty"),
    ],
)
def test_values_that_are_no_ids(values, message):
    with pytest.raises(InvalidInput, match=message):
        from_arrow(pa.table({"person": values}), identifier="person", source="t")


names = st.text(st.characters(codec="utf-8", exclude_characters="\0\r"), min_size=1, max_size=8)
id_columns = st.one_of(
    st.lists(names, min_size=1, max_size=20),
    st.lists(st.integers(-(2**63), 2**63 - 1), min_size=1, max_size=20),
    st.lists(st.integers(-(2**53) + 1, 2**53 - 1).map(float), min_size=1, max_size=20),
)


def spelling(value: str | int | float) -> str:
    """The documented rule for ids, one at a time."""
    text = str(value)
    if re.fullmatch(r"-?[0-9]+\.0+|-?[0-9](\.[0-9]+)?e\+[0-9]{1,2}", text):
        whole = Decimal(text)
        if "e" not in text:
            return text.split(".")[0]
        return str(int(whole)) if whole == int(whole) and abs(whole) < 2**53 else text
    return text


@given(id_columns)
def test_same_ids_from_csv_and_parquet(tmp_path_factory, values):
    directory = tmp_path_factory.mktemp("ids")
    data = pa.table({"person": values, "age": [1] * len(values)})
    parquet.write_table(data, directory / "p.parquet")
    arrow_csv.write_csv(data, directory / "p.csv")
    data.to_pandas().to_csv(directory / "q.csv", index=False)
    if len({str(value) for value in values}) > len({spelling(value) for value in values}):
        with pytest.raises(InvalidInput, match="in two ways"):
            read(directory / "p.parquet", identifier="person")
        return
    expected = read(directory / "p.parquet", identifier="person").ids.to_pylist()
    assert expected == [spelling(value) for value in values]
    assert read(directory / "p.csv", identifier="person").ids.to_pylist() == expected
    if not isinstance(values[0], float):
        assert read(directory / "q.csv", identifier="person").ids.to_pylist() == expected


def test_pandas_and_chunked_files(tmp_path):
    frame = pd.DataFrame({"person": pd.Categorical(["a", "b", "a"]), "ill": [True, False, True]})
    frame.to_parquet(tmp_path / "p.parquet", row_group_size=1)
    table = people(tmp_path / "p.parquet")
    assert table.ids.to_pylist() == ["a", "b", "a"]
    with pytest.raises(InvalidInput, match="mask of 3"):
        table.select(np.array([True]))


def test_rows_of_ids():
    data = pa.table({"person": ["a", "b", "a", "c"], "ill": [0, 1, 1, 0], "x": [1, 2, 3, 4]})
    table = from_arrow(data, label="ill", identifier="person", source="t")
    mask = table.mask_of(["a", "c"])
    assert mask.tolist() == [True, False, True, True]
    chosen = table.select(mask)
    assert chosen.features["x"].to_pylist() == [1, 3, 4]
    assert chosen.label.to_pylist() == [0, 1, 0]
    assert chosen.ids.to_pylist() == ["a", "a", "c"]
    with pytest.raises(UnknownRecord, match="2 ids own no row of t: 'z', ' a'"):
        table.mask_of(["a", "z", " a"])
    with pytest.raises(InvalidInput, match="without an id column"):
        from_arrow(data, source="t").mask_of(["a"])


def test_rows_of_ids_in_a_million():

    ids = pa.array(np.arange(1_000_000)).cast(pa.string())
    table = from_arrow(pa.table({"person": ids}), identifier="person", source="t")
    start = time.perf_counter()
    mask = table.mask_of([str(i) for i in range(0, 1_000_000, 1000)])
    assert time.perf_counter() - start < 1.0
    assert mask.sum() == 1000


@pytest.mark.parametrize(
    ("name", "content", "ids"),
    [
        ("r.txt", "7\n 8\n\n9.0\n", ["7", " 8", "9"]),
        ("r.txt", "\ufeffa\r\nb\r\n", ["a", "b"]),
        ("requests", "a", ["a"]),
        ("r.csv", "person\n7\n8\n", ["7", "8"]),
        ("r.csv", "when,person\nnow,7\nnow,8\n", ["7", "8"]),
    ],
)
def test_requests_from_files(tmp_path, name, content, ids):
    column = "person" if "when" in content else None
    assert read_ids(write(tmp_path, name, content), column) == ids


def test_requests_from_parquet_stdin_and_lists(tmp_path, monkeypatch):
    parquet.write_table(pa.table({"person": [7, 8]}), tmp_path / "r.parquet")
    assert read_ids(tmp_path / "r.parquet") == ["7", "8"]
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"\xef\xbb\xbf7\r\n8\n")))
    assert read_ids("-") == ["7", "8"]
    assert read_ids([7, "8", np.int64(9)]) == ["7", "8", "9"]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("r.txt", "", "holds no ids"),
        ("r.txt", "\n\n", "holds no ids"),
        ("r.csv", "person\n", "no rows"),
        ("r.txt", "a\nb\na\n", "'a' more than once"),
        ("r.txt", "7\n7.0\n", "'7' more than once"),
        ("r.csv", "when,person\nnow,7\n", "2 columns; say which"),
        ("r.csv", "person\n7\n\n", None),
        ("r.txt", b"\xff\xfe", "UTF-8"),
    ],
)
def test_bad_requests(tmp_path, name, content, message):
    path = write(tmp_path, name, content)
    if message is None:
        assert read_ids(path) == ["7"]
        return
    with pytest.raises(InvalidInput, match=message):
        read_ids(path)


def test_bad_request_values(tmp_path):
    for values, message in (([], "no ids"), ([1.5], "got 1.5"), ([True], "True"), ([""], "''")):
        with pytest.raises(InvalidInput, match=message):
            read_ids(values)
    with pytest.raises(InvalidInput, match="does not exist"):
        read_ids(tmp_path / "requests.txt")
    with pytest.raises(InvalidInput, match="is a directory"):
        read_ids(tmp_path)
