"""The released model's file: deterministic bytes, strict reading, plain predictions."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from safetensors.numpy import load, save
from scipy import sparse

from expunge.errors import InvalidInput
from expunge.modelfile import ReleasedModel, decode, digest, encode, predict_labels, scores

BINARY = ReleasedModel(np.array([[1.0, -2.0]]), np.array([0.5]), "logistic", ("no", "yes"))
SOFTMAX = ReleasedModel(np.arange(6.0).reshape(3, 2), None, "softmax", (3, 1, 2))
RIDGE = ReleasedModel(np.array([[1.0, 2.0]]), np.array([-1.0]), "squared", None)
MODELS = [
    BINARY,
    SOFTMAX,
    RIDGE,
    ReleasedModel(np.ones((1, 1)), None, "squared", (False, True)),
    ReleasedModel(np.ones((3, 2)), np.zeros(3), "logistic-ovr", (0.5, 1.5, 2.5)),
    ReleasedModel(np.ones((2, 2)), np.zeros(2), "squared", None),
    ReleasedModel(np.ones((1, 2)), None, "logistic-ovr", ('é\n"', "\ud800")),
]


def same(a: ReleasedModel, b: ReleasedModel) -> bool:
    def part(model: ReleasedModel) -> tuple:
        tensors = [None if t is None else t.tolist() for t in (model.coef, model.intercept)]
        return (*tensors, model.loss, model.classes, [type(c) for c in model.classes or ()])

    return part(a) == part(b)


def pack(tensors: dict, meaning: object = None, metadata: dict | None = None) -> bytes:
    text = meaning if isinstance(meaning, str) else json.dumps(meaning)
    return save(tensors, metadata={"expunge": text} if metadata is None else metadata)


MEANING = {"classes": None, "format": "expunge-model/1", "loss": "squared"}


# --- writing ------------------------------------------------------------------------------------


@pytest.mark.parametrize("model", MODELS)
def test_round_trip(model: ReleasedModel) -> None:
    assert same(decode(encode(model)), model)


@given(
    hnp.arrays(
        np.float64,
        st.tuples(st.integers(2, 4), st.integers(1, 5)),
        elements=st.floats(allow_nan=False, allow_infinity=False),
    ),
    st.lists(st.one_of(st.text(), st.integers()), min_size=4, max_size=4, unique=True),
)
@settings(max_examples=100, deadline=None)
def test_any_model_round_trips_bit_for_bit(coef: np.ndarray, labels: list) -> None:
    model = ReleasedModel(coef, coef[:, 0].copy(), "softmax", tuple(labels[: len(coef)]))
    content = encode(model)
    back = decode(content)
    assert back.coef.tobytes() == coef.tobytes()
    assert back.classes == model.classes
    assert encode(back) == content


def test_bytes_are_a_safetensors_file() -> None:
    tensors = load(encode(BINARY))
    assert sorted(tensors) == ["coef", "intercept"]
    assert np.array_equal(tensors["coef"], BINARY.coef)


@pytest.mark.parametrize("model", [BINARY, SOFTMAX, RIDGE])
def test_bytes_are_those_of_the_safetensors_library(model: ReleasedModel) -> None:
    content = encode(model)
    header = json.loads(content[8 : 8 + int.from_bytes(content[:8], "little")])
    tensors = {"coef": model.coef} | (
        {} if model.intercept is None else {"intercept": model.intercept}
    )
    assert save(tensors, metadata=header["__metadata__"]) == content


def test_bytes_do_not_depend_on_memory_layout() -> None:
    coef = np.arange(6.0).reshape(3, 2)
    fortran = ReleasedModel(np.asfortranarray(coef), None, "softmax", (3, 1, 2))
    assert encode(fortran) == encode(SOFTMAX)
    assert np.array_equal(decode(encode(fortran)).coef, coef)


def test_bytes_are_the_same_in_every_process() -> None:
    code = (
        "import numpy as np; from expunge.modelfile import *;"
        "print(digest(encode(ReleasedModel(np.arange(6.0).reshape(3, 2), None, 'softmax',"
        " (3, 1, 2)))))"
    )
    for seed in ("0", "1", "4711"):
        environment = os.environ | {"PYTHONHASHSEED": seed}
        done = subprocess.run(
            [sys.executable, "-c", code],
            env=environment,
            capture_output=True,
            text=True,
            check=True,
        )
        assert done.stdout.strip() == digest(encode(SOFTMAX))


def test_bytes_never_change_between_versions() -> None:
    """A published digest: a change of the format needs a new FORMAT."""
    assert (
        digest(encode(BINARY)) == "a5ccc13faea1da36a1a875beb6726d36d1ec2e795f728fd97527441f17f3d7b1"
    )


def test_digest_is_sha256() -> None:
    assert digest(b"abc") == hashlib.sha256(b"abc").hexdigest()


def test_weights_are_not_in_the_repr() -> None:
    assert "array" not in repr(BINARY)


# --- models that do not fit together --------------------------------------------------------------


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ((np.ones(2), None, "squared", None), "2 dimension"),
        ((np.ones((1, 2), np.float32), None, "squared", None), "float64"),
        ((np.ones((0, 2)), None, "squared", None), "non-empty"),
        ((np.array([[np.nan]]), None, "squared", None), "NaN or infinity"),
        ((np.ones((1, 2)), np.array([np.inf]), "squared", None), "NaN or infinity"),
        ((np.ones((1, 2)), np.ones(2), "squared", None), "one entry per row"),
        ((np.ones((1, 2)), np.ones((1, 1)), "squared", None), "1 dimension"),
        ((np.ones((1, 2)), None, "hinge", (0, 1)), "loss must be one of"),
        ((np.ones((1, 2)), None, "logistic", None), "needs its classes"),
        ((np.ones((1, 2)), None, "logistic", (0, 1, 2)), "does not fit 3 classes"),
        ((np.ones((2, 2)), None, "logistic", (0, 1)), "does not fit"),
        ((np.ones((1, 2)), None, "softmax", (0, 1)), "does not fit"),
        ((np.ones((3, 2)), None, "softmax", (0, 1)), "does not fit"),
        ((np.ones((1, 2)), None, "logistic", (1, 1)), "differ"),
        ((np.ones((1, 2)), None, "logistic", (1, True)), "differ"),
        ((np.ones((1, 2)), None, "logistic", (0.0, float("nan"))), "finite"),
        ((np.ones((1, 2)), None, "logistic", (np.int64(0), np.int64(1))), "tolist"),
        ((np.ones((1, 2)), None, "logistic", (None, 1)), "plain str"),
    ],
)
def test_parts_that_do_not_fit_are_refused(parts: tuple, message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        ReleasedModel(*parts)


# --- strict reading -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "safetensors file"),
        (b"not a model", "safetensors file"),
        (pack({"intercept": np.ones(1)}, MEANING), "coef; it is missing"),
        (pack({"coef": np.ones((1, 2)), "hidden": np.ones(1)}, MEANING), "found .'hidden'"),
        (pack({"coef": np.ones((1, 2), np.float32)}, MEANING), "float64"),
        (pack({"coef": np.ones((1, 2), np.int64)}, MEANING), "float64"),
        (pack({"coef": np.ones(2)}, MEANING), "2 dimension"),
        (pack({"coef": np.full((1, 2), np.nan)}, MEANING), "NaN or infinity"),
        (save({"coef": np.ones((1, 2))}), "exactly one metadata entry"),
        (pack({"coef": np.ones((1, 2))}, metadata={"other": "{}"}), "exactly one metadata entry"),
        (pack({"coef": np.ones((1, 2))}, "no json"), "must be JSON"),
        (pack({"coef": np.ones((1, 2))}, "[" * 100_000), "must be JSON"),
        (pack({"coef": np.ones((1, 2))}, [1]), "must be JSON"),
        (pack({"coef": np.ones((1, 2))}, '{"loss":1,"loss":2}'), "appears twice"),
        (pack({"coef": np.ones((1, 2))}, {"loss": "squared"}), "classes, loss and format"),
        (pack({"coef": np.ones((1, 2))}, MEANING | {"name": "x"}), "classes, loss and format"),
        (pack({"coef": np.ones((1, 2))}, MEANING | {"format": "x/2"}), "expunge-model/1"),
        (pack({"coef": np.ones((1, 2))}, MEANING | {"loss": ["squared"]}), "loss must be"),
        (pack({"coef": np.ones((1, 2))}, MEANING | {"classes": "ab"}), "list or null"),
        (pack({"coef": np.ones((1, 2))}, MEANING | {"classes": [[1], 2]}), "plain str"),
        (pack({"coef": np.ones((1, 2))}, json.dumps(MEANING, indent=1)), "other bytes"),
    ],
)
def test_other_files_are_refused(content: bytes, message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        decode(content)


def test_every_changed_byte_is_refused_or_gives_another_model() -> None:
    content = encode(BINARY)
    for position in range(len(content)):
        changed = bytearray(content)
        changed[position] ^= 1
        try:
            model = decode(bytes(changed))
        except InvalidInput:
            continue
        assert not same(model, BINARY), position


@given(st.binary(max_size=300))
def test_garbage_is_refused_by_name(content: bytes) -> None:
    with pytest.raises(InvalidInput):
        decode(content)


@pytest.mark.parametrize("cut", [1, 8, 9, 100])
def test_truncated_and_extended_files_are_refused(cut: int) -> None:
    content = encode(BINARY)
    with pytest.raises(InvalidInput):
        decode(content[:-cut])
    with pytest.raises(InvalidInput):
        decode(content + b"\0" * cut)


# --- predictions --------------------------------------------------------------------------------


@pytest.mark.parametrize("model", [BINARY, SOFTMAX, RIDGE])
def test_scores_are_the_plain_formula_dense_and_sparse(model: ReleasedModel) -> None:
    X = np.random.default_rng(0).normal(size=(20, 2))
    X[X < 0] = 0
    shift = 0 if model.intercept is None else model.intercept
    plain = np.array([[row @ w for w in model.coef] for row in X]) + shift
    for features in (X, X.tolist(), sparse.csr_matrix(X), sparse.csr_array(X)):
        assert np.asarray(scores(model, features)).shape == plain.shape
        np.testing.assert_allclose(scores(model, features), plain, rtol=1e-13, atol=1e-15)


def test_binary_labels_follow_the_sign_and_a_tie_is_the_first_class() -> None:
    X = [[0.0, 0.0], [-1.0, 0.0], [-0.5, 0.0]]
    assert predict_labels(BINARY, X).tolist() == ["yes", "no", "no"]


def test_several_classes_follow_the_largest_score() -> None:
    assert predict_labels(SOFTMAX, [[1.0, 0.0], [-1.0, 0.0]]).tolist() == [2, 3]


def test_regressor_predicts_its_scores() -> None:
    assert predict_labels(RIDGE, [[1.0, 1.0]]).tolist() == [[2.0]]


def test_labels_keep_their_types() -> None:
    mixed = ReleasedModel(np.ones((1, 1)), None, "logistic", ("a", 1))
    assert predict_labels(mixed, [[1.0], [-1.0]]).tolist() == [1, "a"]
    flags = ReleasedModel(np.ones((1, 1)), None, "logistic", (False, True))
    assert predict_labels(flags, [[1.0]]).dtype == bool


@pytest.mark.parametrize(
    ("X", "message"),
    [
        ([1.0, 2.0], r"shape \(n, 2\); got \(2,\)"),
        ([[1.0, 2.0, 3.0]], r"got \(1, 3\)"),
        ([[np.nan, 1.0]], "finite"),
        (sparse.csr_matrix([[np.inf, 1.0]]), "finite"),
    ],
)
def test_bad_features_are_refused(X, message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        scores(RIDGE, X)
