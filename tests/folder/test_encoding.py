"""Encoding rows, labels and schemas: the rules, their errors, and what must hold for any table."""

from __future__ import annotations

import json
import math
import tomllib

import numpy as np
import pyarrow as pa
import pyarrow.csv as arrow_csv
import pyarrow.parquet as parquet
import pytest
from hypothesis import given
from hypothesis import strategies as st

from expunge.errors import InvalidInput
from expunge.folder import encoding as module
from expunge.folder.columns import Category, Number, decimal
from expunge.folder.encoding import Encoding
from expunge.folder.labels import LabelEncoding
from expunge.folder.schema import load_schema, template
from expunge.folder.table import from_arrow, read
from expunge.guarantee import Tag


def table_of(label=None, identifier=None, **columns):
    return from_arrow(pa.table(columns), label=label, identifier=identifier, source="t")


def declare(**features):
    return Encoding.declared({"features": features})


AGE = {"type": "number", "center": 40, "scale": 20}
SITE = {"type": "category", "categories": ["a", "b"]}


def test_numbers_are_centred_and_scaled():
    matrix = declare(age=AGE).encode(table_of(age=[40, 60, 30]))
    assert matrix.tolist() == [[0.0], [1.0], [-0.5]]
    assert matrix.dtype == np.float64
    assert matrix.flags["C_CONTIGUOUS"]


def test_missing_number_is_filled_and_flagged():
    encoding = declare(age=AGE | {"fill": 60})
    assert encoding.names == ("age", "age=(missing)")
    cells = ["40", "", "NA", " 60 ", "nan", "true"]
    rows = [[0, 0], [1, 1], [1, 1], [1, 0], [1, 1], [(1 - 40) / 20, 0]]
    assert encoding.encode(table_of(age=cells)).tolist() == rows
    assert encoding.encode(table_of(age=[None, None])).tolist() == [[1, 1], [1, 1]]
    assert encoding.encode(table_of(age=[40.0, math.nan])).tolist() == [[0, 0], [1, 1]]


def test_categories_are_one_hot():
    encoding = declare(site=SITE | {"other": True, "missing": True})
    assert encoding.names == ("site=a", "site=b", "site=(other)", "site=(missing)")
    matrix = encoding.encode(table_of(site=["b", "a", "", "NA", None]))
    assert matrix.argmax(axis=1).tolist() == [1, 0, 3, 2, 3]
    assert matrix.sum(axis=1).tolist() == [1] * 5


@pytest.mark.parametrize(
    "cells",
    [
        pa.array([1, 2, 1]),
        pa.array([1.0, 2.0, 1.0]),
        pa.array(["1", "2.0", "1.00"]),
        pa.array(["1", "2", "1"]).dictionary_encode(),
        pa.chunked_array([pa.array(part).dictionary_encode() for part in (["1", "2"], ["1"])]),
    ],
)
def test_category_spellings(cells):
    encoding = declare(plan={"type": "category", "categories": [1, "2"]})
    assert encoding.encode(table_of(plan=cells)).tolist() == [[1, 0], [0, 1], [1, 0]]


def test_truth_values_are_categories_or_numbers():
    for cells in (pa.array([True, False]), pa.array(["True", "FALSE"])):
        as_category = declare(x={"type": "category", "categories": [True, False]})
        assert as_category.encode(table_of(x=cells)).tolist() == [[1, 0], [0, 1]]
        assert declare(x={"type": "number"}).encode(table_of(x=cells)).tolist() == [[1], [0]]


BAD_CELLS = {
    "no number": (AGE, ["1", "x"], "t: column 'c', row 2 is 'x', expected a number"),
    "decimal comma": (AGE, ["1,5"], "row 1 is '1,5'"),
    "missing number": (AGE, ["1", ""], "row 2 is missing; declare `fill`"),
    "infinite text": (AGE, ["1", "inf"], "row 2 is infinite"),
    "infinite number": (AGE, [1.0, -math.inf], "row 2 is infinite"),
    "overflow": (
        {"type": "number", "scale": 1e-300},
        [1e300],
        "row 1 is too large for scale 1e-300",
    ),
    "unknown category": (SITE, ["a", "bb"], "row 2 is 'bb', which is not one of the 2 declared"),
    "missing category": (SITE, ["a", None], "row 2 is missing; declare `missing = true`"),
    "broken category": (SITE, [1.0, 0.5], "row 2 is 0.5"),
    "list": (AGE, [[1], [2]], "has type list"),
    "binary": (SITE, [b"a"], "has type binary"),
    "date": (AGE, pa.array([1], pa.date32()), "has type date32.*years or days"),
}


@pytest.mark.parametrize("case", BAD_CELLS)
def test_bad_cell_is_named_with_its_remedy(case):
    options, cells, message = BAD_CELLS[case]
    with pytest.raises(InvalidInput, match=message):
        declare(c=options).encode(table_of(c=cells))


def test_rows_are_numbered_through_blocks(monkeypatch):
    monkeypatch.setattr(module, "_BLOCK", 4)
    with pytest.raises(InvalidInput, match="row 10 is 'x'"):
        declare(c=AGE).encode(table_of(c=["1"] * 9 + ["x"]))
    with pytest.raises(InvalidInput, match="row 6 is 'c'"):
        declare(c=SITE).encode(table_of(c=["a"] * 5 + ["c"]))


def test_columns_must_be_known():
    encoding = Encoding.declared({"features": {"age": AGE}, "ignore": ["name"]})
    encoding.encode(table_of(age=[1], name=["x"]))
    with pytest.raises(InvalidInput, match=r"no column 'age'.* Did you mean 'Age'"):
        encoding.encode(table_of(Age=[1]))
    with pytest.raises(InvalidInput, match="does not mention: 'site'"):
        encoding.encode(table_of(age=[1], site=["a"]))


BAD_SCHEMAS = {
    "no features": ({"ignore": []}, "lacks 'features'"),
    "empty": ({"features": {}}, "no feature columns"),
    "unknown setting": ({"features": {"a": AGE}, "ignored": []}, "Did you mean 'ignore'"),
    "unknown option": ({"features": {"a": AGE | {"centre": 1}}}, "Did you mean 'center'"),
    "no type": ({"features": {"a": {"center": 1}}}, "type 'number' or 'category', got None"),
    "no table": ({"features": {"a": "number"}}, "must be a table|got 'number'"),
    "zero scale": ({"features": {"a": AGE | {"scale": 0}}}, "positive scale"),
    "endless fill": ({"features": {"a": AGE | {"fill": math.inf}}}, "finite"),
    "text scale": ({"features": {"a": AGE | {"scale": "big"}}}, "`scale` must be a number"),
    "true scale": ({"features": {"a": AGE | {"scale": True}}}, "`scale` must be a number"),
    "no categories": ({"features": {"a": SITE | {"categories": []}}}, "no categories"),
    "twice": ({"features": {"a": SITE | {"categories": [7, "7.0"]}}}, "'7' twice"),
    "half": ({"features": {"a": SITE | {"categories": [0.5]}}}, "0.5"),
    "not a list": ({"features": {"a": SITE | {"categories": "ab"}}}, "must be a list"),
    "other text": ({"features": {"a": SITE | {"other": "yes"}}}, "must be true or false"),
    "ignored too": ({"features": {"a": AGE}, "ignore": ["a"]}, "'a' more than once"),
    "clash": ({"features": {"a": SITE, "a=b": AGE}}, "would be called 'a=b'"),
    "norm": ({"features": {"a": AGE}, "max_norm": 0}, "max_norm must be positive"),
    "ignore": ({"features": {"a": AGE}, "ignore": "b"}, "`ignore` must be a list"),
}


@pytest.mark.parametrize("case", BAD_SCHEMAS)
def test_bad_schema_is_told_what_is_wrong(case):
    schema, message = BAD_SCHEMAS[case]
    with pytest.raises(InvalidInput, match=message):
        Encoding.declared(schema)


def test_long_rows_are_scaled_down():
    features = {"a": {"type": "number"}, "b": {"type": "number"}}
    encoding = Encoding.declared({"features": features, "max_norm": 5})
    table = table_of(a=[3.0, 6.0, 0.0, 1e90], b=[4.0, 8.0, 0.0, 0.0])
    assert encoding.encode(table).tolist() == [[3, 4], [3, 4], [0, 0], [5, 0]]


def test_learned_encoding_is_assumed_and_hides_rare_values():
    rare = [f"only {i}" for i in range(5)]
    table = table_of(
        identifier="person",
        person=[i // 2 for i in range(60)],
        age=[float(i) for i in range(60)],
        flat=[0.1] * 60,
        gap=[1, None] * 30,
        site=["a"] * 30 + ["b"] * 10 + ["c"] * 20,
        word=rare * 2 + ["x"] * 40 + [None] * 10,
    )
    learned = Encoding.learn(table, ignored=("name",))
    assert learned.tag is Tag.assumed
    assert learned.columns == (
        Number("age", 30.0, 17.0),
        Number("flat", 0.0, 1.0),
        Number("gap", 1.0, 1.0, fill=1.0),
        Category("site", ("a", "c"), other=True),
        Category("word", ("x",), other=True, missing=True),
    )
    assert "only" not in json.dumps(learned.to_json())


def test_learning_refuses_what_it_cannot_encode():
    with pytest.raises(InvalidInput, match=r"has 101 distinct texts.*row 1 is 'n0'"):
        Encoding.learn(table_of(name=[f"n{i}" for i in range(101)]))
    with pytest.raises(InvalidInput, match="has no values; ignore it"):
        Encoding.learn(table_of(x=pa.array([None, None])))
    with pytest.raises(InvalidInput, match="row 2 is infinite"):
        Encoding.learn(table_of(x=["1", "inf"]))
    with pytest.raises(InvalidInput, match="too large to scale"):
        Encoding.learn(table_of(x=[-1e308, 1e308]))


numbers = st.one_of(
    st.floats(-1e90, 1e90),
    st.integers(-(2**40), 2**40).map(float),
)
texts = st.text(st.characters(codec="utf-8", exclude_characters="\0\r"), min_size=1, max_size=4)


@st.composite
def arrow_tables(draw):
    """Tables with ids, a label, and numeric, integer, float32, truth and text columns."""
    n = draw(st.integers(1, 25))

    def column(cells, kind=None, gaps=True):
        cells = st.one_of(st.none(), cells) if gaps else cells
        return pa.array(draw(st.lists(cells, min_size=n, max_size=n)), kind)

    return pa.table(
        {
            "x": column(numbers),
            "single": column(st.floats(width=32, allow_nan=False, allow_infinity=False), "float32"),
            "count": column(st.integers(-(2**63), 2**63 - 1), "int64"),
            "flag": column(st.booleans(), "bool"),
            "code": column(st.integers(0, 5), "int8"),
            "site": column(st.sampled_from(["a", "b", "NA", "1.0", "True", 'ü,\n"'])),
            "person": [str(i) for i in range(n)],
            "y": column(st.integers(0, 2), "int64", gaps=False),
        }
    )


RICH = Encoding.declared(
    {
        "features": {
            "x": {"type": "number", "center": 3, "scale": 1e3, "fill": 1},
            "single": {"type": "number", "fill": 0},
            "count": {"type": "number", "scale": 1e6, "fill": 0},
            "flag": {"type": "number", "fill": 0},
            "code": {"type": "category", "categories": [0, 1, 2], "other": True, "missing": True},
            "site": {
                "type": "category",
                "categories": ["a", 1, True],
                "other": True,
                "missing": True,
            },
        },
        "max_norm": 10.0,
    }
)


@given(arrow_tables())
def test_csv_and_parquet_give_the_same_rows(tmp_path_factory, data):
    directory = tmp_path_factory.mktemp("trip")
    parquet.write_table(data, directory / "t.parquet")
    arrow_csv.write_csv(data, directory / "t.csv")
    data.to_pandas(integer_object_nulls=True).to_csv(directory / "pandas.csv", index=False)
    options = {"label": "y", "identifier": "person"}
    first = read(directory / "t.parquet", **options)
    label = LabelEncoding((0, 1, 2))
    for name in ("t.csv", "pandas.csv"):
        second = read(directory / name, **options)
        assert np.array_equal(RICH.encode(first), RICH.encode(second))
        assert first.ids.equals(second.ids)
        assert np.array_equal(label.encode(first), label.encode(second))
    assert Encoding.from_json(RICH.to_json()) == RICH


@given(arrow_tables(), st.data())
def test_a_row_is_encoded_alike_in_any_company(data, draw):
    table = from_arrow(data, label="y", identifier="person", source="t")
    mask = np.array(draw.draw(st.lists(st.booleans(), min_size=len(table), max_size=len(table))))
    whole = RICH.encode(table)
    assert np.array_equal(RICH.encode(table.select(mask)), whole[mask])
    norms = np.linalg.norm(whole, axis=1)
    assert (norms <= 10.0 * (1 + 1e-14)).all()


@pytest.mark.parametrize("block", [1, 3, 7])
def test_blocks_do_not_show(monkeypatch, block):
    generator = np.random.default_rng(0)
    encoding = Encoding.declared({"features": {f"x{j}": AGE for j in range(9)}, "max_norm": 2.0})
    table = table_of(**{f"x{j}": generator.normal(40, 50, 20) for j in range(9)})
    whole = encoding.encode(table)
    monkeypatch.setattr(module, "_BLOCK", block)
    assert np.array_equal(encoding.encode(table), whole)


def test_csv_type_guesses_do_not_matter(tmp_path):
    """A file with one person must give the row that the whole file gave."""
    encoding = declare(c={"type": "category", "categories": ["01", "NA", "true"], "other": True})
    (tmp_path / "all.csv").write_text("c\n01\nNA\ntrue\nx\n")
    whole = encoding.encode(read(tmp_path / "all.csv"))
    for i, cell in enumerate(["01", "NA", "true", "x"]):
        (tmp_path / "one.csv").write_text(f"c\n{cell}\n")
        assert np.array_equal(encoding.encode(read(tmp_path / "one.csv")), whole[i : i + 1])


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_decimals_read_back(value):
    written = decimal(value)
    assert float(written) == value
    assert "e-0" not in written
    assert "+" not in written


def test_json_holds_no_floats_and_is_strict():
    document = RICH.to_json()
    assert Encoding.from_json(json.loads(json.dumps(document, sort_keys=True))) == RICH
    json.loads(json.dumps(document), parse_float=lambda text: pytest.fail(f"bare float {text}"))
    for change in ({"format": "other/1"}, {"tag": "proved"}, {"more": 1}):
        with pytest.raises(InvalidInput):
            Encoding.from_json(document | change)
    with pytest.raises(InvalidInput, match="name must be a text"):
        Encoding.from_json(document | {"columns": [{"type": "number"}]})


@pytest.mark.parametrize(
    ("cells", "classes"),
    [
        (["yes", "no"], ("no", "yes")),
        (["10", "9"], (9, 10)),
        (pa.array([10.0, 9.0]), (9, 10)),
        (pa.array([10, 9], pa.uint8()), (9, 10)),
        (["01", "1"], ("01", "1")),
        (["True", "false"], (False, True)),
        (pa.array([True, False]), (False, True)),
        (pa.array(["b", "a"]).dictionary_encode(), ("a", "b")),
    ],
)
def test_classes_are_learned(cells, classes):
    table = table_of(label="y", y=cells, x=[1, 2])
    learned = LabelEncoding.learn(table)
    assert learned.classes == classes
    assert [type(c) for c in learned.classes] == [type(c) for c in classes]
    assert sorted(learned.encode(table)) == [0, 1]
    assert LabelEncoding.from_json(json.loads(json.dumps(learned.to_json()))) == learned


def test_labels_that_do_not_fit():
    label = LabelEncoding.declared({"classes": ["ill", "well"]})
    with pytest.raises(InvalidInput, match=r"row 2 is 'wel'.*Did you mean 'well'"):
        label.encode(table_of(label="y", y=["ill", "wel"], x=[1, 2]))
    with pytest.raises(InvalidInput, match="single class 'a'"):
        LabelEncoding.learn(table_of(label="y", y=["a", "a"], x=[1, 2]))
    with pytest.raises(InvalidInput, match=r"row 1 is 0\.5"):
        LabelEncoding.learn(table_of(label="y", y=[0.5, 1.0], x=[1, 2]))
    with pytest.raises(InvalidInput, match=r"101 distinct values.*regression"):
        LabelEncoding.learn(table_of(label="y", y=list(range(101)), x=list(range(101))))
    with pytest.raises(InvalidInput, match="without a label"):
        LabelEncoding.learn(table_of(x=[1]))


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"classes": ["a"]},
        {"classes": ["a", "a"]},
        {"classes": [1, "a"]},
        {"classes": "ab"},
        {"classes": [1, 1.0]},
        {"type": "number", "classes": []},
        {"type": "text"},
    ],
)
def test_bad_label_declarations(options):
    with pytest.raises(InvalidInput):
        LabelEncoding.declared(options)


def test_regression_targets():
    label = LabelEncoding.declared({"type": "number"})
    assert label.encode(table_of(label="y", y=["1.5", "2"], x=[1, 2])).tolist() == [1.5, 2.0]
    for cells, message in ((["1", "NA"], "row 2 is missing"), (["1", "x"], "row 2 is 'x'")):
        with pytest.raises(InvalidInput, match=message):
            label.encode(table_of(label="y", y=cells, x=[1, 2]))


@given(texts, st.lists(texts, min_size=1, max_size=3, unique=True))
def test_template_is_a_schema(name, values):
    values = [f"v{value}" for value in values]
    columns = {name: (values * 10)[: 10 * len(values)], name + "!": range(10 * len(values))}
    text = template(from_arrow(pa.table(columns), source="t"))
    schema = tomllib.loads(text)
    assert list(schema["features"]) == list(columns)
    assert Encoding.declared(schema).columns == (
        Category(name, tuple(sorted(values)), other=True, missing=True),
        Number(name + "!"),
    )


def test_template_ignores_names_and_numbers_values(tmp_path):
    table = table_of(name=[f"n{i}" for i in range(200)], income=[f"{i}.25" for i in range(200)])
    text = template(table)
    assert "n17" not in text
    assert ".25" not in text
    (tmp_path / "schema.toml").write_text(text)
    schema = load_schema(tmp_path / "schema.toml")
    assert schema["ignore"] == ["name"]
    assert Encoding.declared(schema).columns == (Number("income"),)
    (tmp_path / "schema.json").write_text(json.dumps(schema))
    assert load_schema(tmp_path / "schema.json") == schema


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("s.toml", "a = ", "cannot be read as a schema"),
        ("s.json", "{", "cannot be read as a schema"),
        ("s.json", "[]", "must hold a table of settings, got list"),
        ("s.yaml", "", "must end in .toml or .json"),
        ("s.toml", None, "does not exist"),
    ],
)
def test_bad_schema_files(tmp_path, name, content, message):
    if content is not None:
        (tmp_path / name).write_text(content)
    with pytest.raises(InvalidInput, match=message):
        load_schema(tmp_path / name)
