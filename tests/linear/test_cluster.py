"""Rows on a Dask cluster of real processes: the same bits as on one machine, whoever dies."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import numpy as np
import pytest
import scipy.sparse as sp

from expunge.errors import InvalidInput
from expunge.linear import cluster
from expunge.linear.cluster import WorkersLost, connect, local_cluster, spread
from expunge.linear.engine import fit, unlearn
from expunge.linear.losses import LOSSES
from expunge.linear.parquet import decoded_rows, parquet_rows
from expunge.linear.passes import evaluate
from expunge.linear.shards import shards
from parquet_example import in_memory, numbers, require_same, results, table, write

dask = pytest.importorskip("dask")
distributed = pytest.importorskip("distributed")
LOGISTIC = LOSSES["logistic"]
ANYWHERE = "127.0.0.1:0"
SPILL = "distributed.worker.memory.spill"
N = 9001


@pytest.fixture(scope="module")
def client():
    with local_cluster(2) as client:
        yield client


@pytest.fixture(scope="module")
def data():
    return numbers(N)


@pytest.fixture(scope="module")
def memory(data):
    return in_memory(*data)


@pytest.fixture(scope="module")
def parquet(data, tmp_path_factory):
    directory = write(tmp_path_factory.mktemp("rows"), table(*data), 1000, 3)
    return parquet_rows(directory, target="y", weight="w", ignore=["person"])


def check_same(rows, memory):
    """Compare passes and a life of a model, bit by bit."""
    require_same(results(rows, LOGISTIC), results(memory, LOGISTIC))
    states = []
    for those in (rows, memory):
        state, _ = fit(those, loss="logistic", l2=1.0, tolerance=1e-5, classes=True)
        for index in (np.array([5]), np.arange(100, 900)):
            forget, those = those.take(index), those.without(index)
            state, trace = unlearn(state, forget, those)
        assert trace.path != "bounded"
        states.append(state.weights.tobytes())
    assert states[0] == states[1]


def test_rows_in_memory_on_two_workers(client, memory):
    check_same(spread(memory, client), memory)


def test_parquet_on_two_workers(client, parquet, memory):
    check_same(spread(parquet, client), memory)


@pytest.mark.slow
@pytest.mark.parametrize("workers", [1, 8])
def test_other_numbers_of_workers(workers, parquet, memory):
    with local_cluster(workers) as client:
        assert len(client.run(os.getpid)) == workers
        for source in (parquet, memory):
            check_same(spread(source, client), memory)


def test_files_can_be_checked_by_the_workers(client, parquet, memory):
    names = [file.path for file in parquet.reader.files]
    options = {"target": "y", "weight": "w", "ignore": ["person"]}
    rows = parquet_rows(names, **options, through=lambda rows: spread(rows, client))
    require_same(results(rows, LOGISTIC), results(memory, LOGISTIC))
    gone = np.arange(0, N, 3)
    left = spread(rows, client).without(gone)
    assert left.positives.tolist() == memory.without(gone).positives.tolist()


def test_outputs_are_chosen_at_the_workers(client, data):
    X, y, weight = data
    target = np.column_stack([y, -y, np.sign(X[:, 0])])
    rows = in_memory(X, target, weight)
    for which in (slice(0, 3), slice(1, 3)):
        one = spread(rows, client).outputs(which).outputs(slice(1, 2))
        require_same(
            results(one, LOGISTIC), results(rows.outputs(which).outputs(slice(1, 2)), LOGISTIC)
        )


def test_sparse_rows(client):
    X = sp.random_array((9000, 40), density=0.1, rng=np.random.default_rng(0), format="csr")
    y = np.where(np.asarray(X.sum(axis=1)).ravel() > 2, 1.0, -1.0)
    rows = in_memory(X, y, None)
    require_same(results(spread(rows, client), LOGISTIC), results(rows, LOGISTIC))


def test_a_decoder_of_the_caller_goes_along(client, parquet, memory):
    features = [f"x{j}" for j in range(5)]

    def decode(piece):
        X = np.column_stack([piece[name] for name in features])
        return X, np.asarray(piece["y"]), np.asarray(piece["w"])

    names = [file.path for file in parquet.reader.files]
    rows = spread(decoded_rows(names, decode, columns=[*features, "y", "w"]), client)
    require_same(results(rows, LOGISTIC), results(memory, LOGISTIC))


def test_rows_are_sent_once(client, memory, monkeypatch):
    sent, hold = [], cluster._hold
    monkeypatch.setattr(cluster, "_hold", lambda *part: sent.append(part) or hold(*part))
    rows = spread(memory, client)
    for _ in range(3):
        rows = rows.without(np.array([1, 2, 5000]))
        assert sum(rows.map(lambda blocks: sum(len(block.weight) for block in blocks))) == N
    assert len(sent) == len(shards(N))


class Deadly:
    """A source whose passes kill the worker after a shard's first block, ``times`` times."""

    def __init__(self, rows, directory, times=1):
        self.rows, self.directory, self.times = rows, directory, times

    def __getattr__(self, name):
        return getattr(self.rows, name)

    def map(self, work):
        markers = [str(self.directory / f"death-{k}") for k in range(self.times)]

        def deadly(blocks):
            def dying():
                yield next(blocks)
                for marker in markers:
                    if not os.path.exists(marker):
                        open(marker, "w").close()
                        os.kill(os.getpid(), signal.SIGKILL)
                yield from blocks

            return work(dying())

        return self.rows.map(deadly)


def pids(client):
    return set(client.run(os.getpid).values())


@pytest.mark.parametrize("times", [1, 2])
@pytest.mark.parametrize("kind", ["parquet", "memory", "deleted"])
def test_a_worker_dies_in_a_pass(client, parquet, memory, tmp_path, kind, times):
    rows, expected = spread(parquet if kind == "parquet" else memory, client), memory
    if kind == "deleted":
        rows, expected = rows.without(np.arange(0, N, 2)), memory.without(np.arange(0, N, 2))
    before, W = pids(client), np.full((6, 1), 0.1)
    found = evaluate(Deadly(rows, tmp_path, times), LOGISTIC, W, hessian=True)
    assert len([*tmp_path.iterdir()]) == times
    truth = evaluate(expected, LOGISTIC, W, hessian=True)
    assert found.gradient.tobytes() == truth.gradient.tobytes()
    assert found.hessian.tobytes() == truth.hessian.tobytes()
    client.wait_for_workers(2, timeout=300)
    assert pids(client) != before
    require_same(results(rows, LOGISTIC), results(expected, LOGISTIC))


def test_workers_that_always_die_are_an_error(client, memory, tmp_path, monkeypatch):
    monkeypatch.setattr(cluster, "RETRIES", 0)
    with pytest.raises(WorkersLost, match="1 times"):
        evaluate(Deadly(spread(memory, client), tmp_path), LOGISTIC, np.zeros((6, 1)))


def test_errors_of_a_pass_come_through(client, data, tmp_path):
    path = write(tmp_path / "rows", table(*data), 1000) / "part-000.parquet"
    rows = spread(parquet_rows(path, target="y", ignore=["person"]), client)
    os.utime(path, ns=(0, 0))
    with pytest.raises(InvalidInput, match=r"part-000.parquet has changed"):
        evaluate(rows, LOGISTIC, np.zeros((7, 1)))


def test_connect_to_a_cluster_of_somebody_with_two_threads_a_worker(memory):
    with (
        distributed.LocalCluster(
            n_workers=1, threads_per_worker=2, dashboard_address=ANYWHERE
        ) as there,
        connect(there.scheduler_address) as client,
    ):
        rows = spread(memory, client)
        require_same(results(rows, LOGISTIC), results(memory, LOGISTIC))


def test_no_scheduler_and_no_workers(monkeypatch):
    monkeypatch.setattr(cluster, "SECONDS", 1)
    with pytest.raises(InvalidInput, match=r"no scheduler answers at tcp://127\.0\.0\.1:9"):
        connect("tcp://127.0.0.1:9").__enter__()
    with pytest.raises(InvalidInput, match="no scheduler answers"):
        connect("127.0.0.1").__enter__()
    with (
        distributed.LocalCluster(n_workers=0, dashboard_address=ANYWHERE) as there,
        pytest.raises(InvalidInput, match="has no workers"),
    ):
        connect(there.scheduler_address).__enter__()
    with pytest.raises(InvalidInput, match="at least one worker"):
        local_cluster(0).__enter__()


def test_workers_of_other_making_are_refused():
    here = cluster._makers()
    cluster._require_alike({"a": here, "b": here})
    with pytest.raises(InvalidInput, match=r"worker a has numpy .*, b has 1\.0"):
        cluster._require_alike({"a": here, "b": here | {"numpy": "1.0"}})
    with pytest.raises(InvalidInput, match="worker a has expunge 9"):
        cluster._require_alike({"a": here | {"expunge": "9"}})


def test_local_clusters_wait_for_a_worker_that_a_busy_machine_restarts(client):
    """By default Dask gives it up after 15 s, and a pass without workers would never end."""
    assert dask.config.get("distributed.deploy.lost-worker-timeout") == "600s"


def test_local_clusters_are_private(client):
    assert client.scheduler.address.startswith("tls://127.0.0.1")
    address, other_keys = client.scheduler.address, distributed.Security.temporary()
    for where, keys in ((address.replace("tls", "tcp"), None), (address, other_keys)):
        with pytest.raises(OSError, match=r"reset by peer|Timed out|certificate"):
            distributed.Client(where, security=keys, timeout=0.5)
    assert set(client.run(lambda: dask.config.get(SPILL)).values()) == {False}


def test_without_dask_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "distributed", None)
    with pytest.raises(InvalidInput, match=r"pip install 'expunge\[distributed\]'"):
        local_cluster(2).__enter__()


def test_the_module_does_not_import_dask():
    code = "import sys, expunge.linear.cluster; print('distributed' in sys.modules)"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True)
    assert found.stdout == b"False\n"
