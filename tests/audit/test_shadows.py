"""Shadow runs: repeatable, resumable, each experiment in its own directory."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from expunge.audit.parts import data_of, joined, part
from expunge.audit.shadows import Runner, digest, halves, seeds
from expunge.errors import InvalidInput


def scores(seed):
    """A run."""
    return {"phi": np.random.default_rng(seed).normal(size=3), "ok": np.array([True])}


def test_runs_are_made_once_and_in_order(tmp_path):
    made, told, lock = [], [], threading.Lock()

    def task(seed):
        with lock:
            made.append(seed)
        return scores(seed)

    runner = Runner(tmp_path, progress=told.append)
    numbers = seeds(0, 6, "test")
    first = runner.run("x", task, numbers[:4], {"l2": 1})
    assert first["phi"].shape == (4, 3)
    both = runner.run("x", task, numbers, {"l2": 1})
    assert sorted(made) == sorted(numbers)
    assert np.array_equal(both["phi"], np.stack([scores(n)["phi"] for n in numbers]))
    assert both["ok"].dtype == bool
    assert any("4 of 6 runs were kept" in line for line in told)
    plain = Runner().run("x", scores, numbers)
    assert np.array_equal(plain["phi"], both["phi"])
    assert {path.suffix for path in (tmp_path / "x").iterdir()} == {".json", ".safetensors"}


def test_an_interrupted_experiment_goes_on(tmp_path):
    numbers = seeds(1, 8, "test")

    def fails(seed):
        if seed == numbers[5]:
            raise RuntimeError("power cut")
        return scores(seed)

    with pytest.raises(RuntimeError, match="power cut"):
        Runner(tmp_path).run("x", fails, numbers)
    made = []

    def rest(seed):
        made.append(seed)
        return scores(seed)

    Runner(tmp_path).run("x", rest, numbers)
    assert numbers[5] in made
    assert len(made) < 8


def test_another_pool_gives_the_same():
    numbers = seeds(2, 3, "test")
    with ThreadPoolExecutor(1) as pool:
        found = Runner(pool=pool).run("x", scores, numbers)
    assert np.array_equal(found["phi"], Runner().run("x", scores, numbers)["phi"])


def test_directories_are_not_mixed(tmp_path):
    runner = Runner(tmp_path)
    runner.run("x", scores, [1], {"l2": 1})
    with pytest.raises(InvalidInput, match="another experiment"):
        runner.run("x", scores, [2], {"l2": 2})
    (tmp_path / "x" / "1.safetensors").write_bytes(b"broken")
    with pytest.raises(InvalidInput, match="damaged"):
        runner.run("x", scores, [1], {"l2": 1})
    (tmp_path / "y").mkdir()
    (tmp_path / "y" / "thesis.txt").write_text("mine")
    with pytest.raises(InvalidInput, match="not empty"):
        runner.run("y", scores, [1])


def test_bad_runs_are_refused():
    with pytest.raises(InvalidInput, match="different seeds"):
        Runner().run("x", scores, [1, 1])
    with pytest.raises(InvalidInput, match="differ in the arrays"):
        Runner().run("x", lambda n: {"a": np.zeros(n)}, [1, 2])
    with pytest.raises(InvalidInput, match="must return numbers"):
        Runner().run("x", lambda n: {"a": np.array(["word"])}, [1])


def test_halves_are_balanced_and_keep_users_together():
    users = np.repeat(np.arange(7), 3)
    found = halves(21, 8, 0, users)
    assert (found.sum(axis=0) == 4).all()
    assert all((found[:, users == u].std(axis=1) == 0).all() for u in range(7))
    assert not np.array_equal(found, halves(21, 8, 1, users))
    assert np.array_equal(found, halves(21, 8, 0, users))
    with pytest.raises(InvalidInput, match="even number"):
        halves(21, 3, 0)


def test_seeds_and_digests():
    assert len(set(seeds(0, 1000, "a") + seeds(0, 1000, "b") + seeds(1, 1000, "a"))) == 3000
    assert digest(np.zeros(2)) != digest(np.zeros(2, np.float32)) != digest(np.zeros((1, 2)))
    with pytest.raises(InvalidInput, match="negative"):
        seeds(-1, 2, "a")


def test_parts():
    pandas = pytest.importorskip("pandas")
    from scipy.sparse import csr_array

    X, y = np.arange(8.0).reshape(4, 2), np.array([0, 1, 0, 1])
    for rows in (X, pandas.DataFrame(X), csr_array(X)):
        both = joined(part((rows, y)), part((rows, y, y)))
        assert len(both) == 8
        assert both.users is None
        kept = both.take(np.array([1, 5])).X
        dense = kept.toarray() if hasattr(kept, "toarray") else np.asarray(kept)
        assert np.array_equal(dense, X[[1, 1]])
    torch = pytest.importorskip("torch")
    assert joined(part((torch.zeros(2, 3), [0, 1])), part((torch.ones(1, 3), [1]))).X.shape == (
        3,
        3,
    )
    for bad, word in (
        ((X,), "as \\(X, y\\)"),
        ((X, y[:2]), "one label each"),
        ((X, y, y[:2]), "one each"),
    ):
        with pytest.raises(InvalidInput, match=word):
            part(bad)
    with pytest.raises(InvalidInput, match="T has no rows of 1"):
        data_of(((X, y), (X, y), (X[:1], y[:1])))
    with pytest.raises(InvalidInput, match=r"\(S, R, T\)"):
        data_of(((X, y), (X, y)))
