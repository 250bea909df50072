"""Passes over rows on a Dask cluster: a task for every shard, summed in shard order.

Shards and blocks are those of one machine, so the results have the same bits, on any number of
workers, and when a worker dies on the way. Dask sends pickles between the processes of a cluster,
in the clear unless TLS is set up: whoever can reach a scheduler or worker reads the training data
and runs code there. A cluster must be its user's own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from importlib import import_module, metadata
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray
from threadpoolctl import threadpool_info

from expunge.errors import ExpungeError, InvalidInput
from expunge.linear.parquet import ParquetRows, counted, positions
from expunge.linear.rows import Block, Rows
from expunge.linear.shards import blocks, shards, single_threaded_blas

RETRIES = 3
SECONDS = 30
RESTART_SECONDS = 600
_T = TypeVar("_T")
_Work = Callable[[Iterator[Block]], _T]
_Index = NDArray[np.intp] | NDArray[np.bool_]


class WorkersLost(ExpungeError):
    """Workers died again and again in one pass."""


@dataclass(frozen=True, repr=False, eq=False)
class ClusterRows:
    """Rows whose passes are made by the workers of a cluster; made by :func:`spread`.

    A :class:`expunge.linear.rows.Source`.

    Attributes
    ----------
    source : Rows or ParquetRows
        The rows, here; what a worker has lost is sent again from it.
    client : distributed.Client
    held : list of distributed.Future
        Each shard's rows (or, of Parquet files, where they are), at a worker.
    chosen : tuple of slice
        Columns of the target, one choice after the other.
    """

    source: Rows | ParquetRows
    client: Any
    held: list[Any]
    chosen: tuple[slice, ...] = ()

    def __repr__(self) -> str:
        """Say how many rows there are, never what is in them."""
        return f"ClusterRows({self.source!r}, shards={len(self.held)})"

    @property
    def length(self) -> int:
        """Number of rows, absent ones included."""
        return self.source.length

    @property
    def width(self) -> int:
        """Number of coordinates p of a row, the constant included."""
        return self.source.width

    @property
    def terms(self) -> int:
        """Number of coordinates that a margin is summed of."""
        return self.source.terms

    @property
    def columns(self) -> int:
        """Number of columns of the target."""
        return self._view.columns

    @property
    def intercept(self) -> bool:
        """Whether a constant 1 is appended to every row."""
        return self.source.intercept

    @property
    def count(self) -> int:
        """Number of present rows."""
        return self.source.count

    @property
    def radius(self) -> float:
        """Largest norm of a row."""
        return self.source.radius

    @cached_property
    def positives(self) -> NDArray[np.int64]:
        """Present rows of positive target, by column: (C,); a pass where that is not known."""
        view = self._view
        known = isinstance(view, Rows) or view.found is not None
        return view.positives if known else counted(self)

    def outputs(self, which: slice) -> ClusterRows:
        """Return the same rows with some columns of the target only; nothing is sent."""
        return replace(self, chosen=(*self.chosen, which))

    def without(self, index: _Index) -> ClusterRows:
        """Return the same rows with weight 0 at ``index``; only positions are sent."""
        gone, held = np.unique(positions(index, self.length)), list(self.held)
        for k, (start, stop) in enumerate(shards(self.length)):
            first, last = np.searchsorted(gone, (start, stop))
            if first < last:
                inside = gone[first:last] - start
                held[k] = self.client.submit(_without, held[k], inside, pure=False)
        return replace(self, source=self.source.without(gone), held=held)

    def take(self, index: _Index) -> Rows:
        """Return the rows at ``index``, in this process's memory."""
        return self._view.take(index)

    def map(self, work: _Work[_T]) -> list[_T]:
        """Return ``work`` of the blocks of every shard, in shard order.

        Raises
        ------
        WorkersLost
            If workers die so often that a shard cannot be finished.
        Exception
            Whatever ``work`` raises.
        """
        results: dict[int, _T] = {}
        for _ in range(RETRIES + 1):
            lost = self._round(work, results)
            if not lost:
                return [results[k] for k in range(len(self.held))]
            for k in lost:
                self.held[k] = _hold(self.source, shards(self.length)[k], self.client)
        raise WorkersLost(
            f"{len(lost)} of {len(self.held)} shards were lost with their workers {RETRIES + 1} "
            "times: see the workers' logs (memory?) and start the command again"
        )

    def _round(self, work: _Work[_T], results: dict[int, _T]) -> list[int]:
        """Do the shards that have no result yet; return those whose rows were lost."""
        once = {"pure": False, "retries": RETRIES}
        tasks = {
            k: self.client.submit(_run, part, self.chosen, work, **once)
            for k, part in enumerate(self.held)
            if k not in results
        }
        lost = []
        for k, task in tasks.items():
            try:
                results[k] = task.result()
            except (CancelledError, _distributed().KilledWorker):
                lost.append(k)
        return lost

    @property
    def _view(self) -> Rows | ParquetRows:
        return _select(self.source, self.chosen)


def spread(source: Rows | ParquetRows, client: Any) -> ClusterRows:
    """Give rows to the workers of a cluster, shard by shard.

    Rows in memory are sent, once. Parquet files must be there for every worker under the same path,
    size and time (a shared file system, or copies made with ``cp -p``).
    """
    held = [_hold(source, span, client) for span in shards(source.length)]
    return ClusterRows(source, client, held)


@contextmanager
def local_cluster(workers: int) -> Iterator[Any]:
    """Start worker processes on this machine; yields a ``distributed.Client``.

    They talk over TLS with keys made for the occasion, so that no other user of the machine can
    join, show no web pages, and write no data to disk. One that dies is started again, however long
    a busy machine takes for that.

    Raises
    ------
    InvalidInput
        If Dask is missing, or ``workers`` is not positive.
    """
    if workers < 1:
        raise InvalidInput(f"expected at least one worker, got {workers}")
    distributed, dask = _distributed(), import_module("dask")
    quiet: dict[str, Any] = {
        "distributed.deploy.lost-worker-timeout": f"{RESTART_SECONDS}s",
        "distributed.worker.memory.target": False,
        "distributed.worker.memory.spill": False,
        "distributed.worker.http.routes": [],
        "distributed.scheduler.http.routes": [],
    }
    options = {"threads_per_worker": 1, "security": True, "dashboard_address": "127.0.0.1:0"}
    with (
        dask.config.set(quiet),
        distributed.LocalCluster(n_workers=workers, **options) as cluster,
        distributed.Client(cluster) as client,
    ):
        yield client


@contextmanager
def connect(address: str) -> Iterator[Any]:
    """Connect to a scheduler, as ``tls://host:8786``; yields a ``distributed.Client``.

    TLS keys are taken from Dask's configuration.

    Raises
    ------
    InvalidInput
        If Dask is missing, nobody answers, there are no workers, or their versions or processors
        differ so that results could have other bits.
    """
    distributed = _distributed()
    try:
        client = distributed.Client(address, timeout=SECONDS, set_as_default=False)
    except (OSError, ValueError) as error:
        raise InvalidInput(
            f"no scheduler answers at {address}: {error}. Start one with `dask scheduler`"
        ) from error
    with client:
        try:
            client.wait_for_workers(1, timeout=SECONDS)
        except TimeoutError:
            raise InvalidInput(
                f"the scheduler at {address} has no workers; start some with `dask worker`"
            ) from None
        _require_alike(client.run(_makers))
        yield client


def _require_alike(makers: dict[str, dict[str, str]]) -> None:
    """Refuse workers that could compute other bits than each other, or run another expunge."""
    (first, those), *others = makers.items()
    others.append(("this process", those | {"expunge": metadata.version("expunge")}))
    for name, these in others:
        for what in sorted(those.keys() | these.keys()):
            if those.get(what) != these.get(what):
                raise InvalidInput(
                    f"worker {first} has {what} {those.get(what)}, {name} has {these.get(what)}: "
                    "results would not have the same bits; use equal installations and processors"
                )


def _makers() -> dict[str, str]:
    """Return what decides about the bits of a result."""
    found = {name: metadata.version(name) for name in ("expunge", "numpy", "scipy")}
    import_module("scipy.linalg")
    for number, pool in enumerate(threadpool_info()):
        if pool["user_api"] == "blas":
            found[f"BLAS {number}"] = f"{pool['version']} for {pool.get('architecture')}"
    return found


def _hold(source: Rows | ParquetRows, span: tuple[int, int], client: Any) -> Any:
    return client.scatter(_part(source, *span), hash=False)


def _part(source: Rows | ParquetRows, start: int, stop: int) -> Rows | ParquetRows:
    if isinstance(source, ParquetRows):
        return source.part(start, stop)
    span = slice(start, stop)
    arrays = (source.X[span], source.target[span], source.weight[span])
    return Rows(*arrays, source.intercept, source.norm[span])


def _select(source: Rows | ParquetRows, chosen: tuple[slice, ...]) -> Rows | ParquetRows:
    for which in chosen:
        source = source.outputs(which)
    return source


def _run(part: Rows | ParquetRows, chosen: tuple[slice, ...], work: _Work[_T]) -> _T:
    """Do a shard, at a worker; its rows are cut as they are among all of them."""
    view = _select(part, chosen)
    with single_threaded_blas():
        if isinstance(view, ParquetRows):
            return work(view.stream(0, view.length))
        return work(view.block(*span) for span in blocks(0, view.length))


def _without(part: Rows | ParquetRows, index: NDArray[np.intp]) -> Rows | ParquetRows:
    return part.without(index)


def _distributed() -> Any:
    try:
        return import_module("distributed")
    except ImportError as error:
        raise InvalidInput(
            "a cluster needs Dask; install it with: pip install 'expunge[distributed]'"
        ) from error
