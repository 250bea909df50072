"""Training on more rows than memory holds: ``python -m bench.scale [--rows N] [--features D]``.

Writes synthetic people to Parquet, a row group at a time, trains from there in a process of its
own, and deletes some of them. Prints ``name<TAB>value<TAB>unit`` lines; those that start with
``projection`` were not measured. The defaults take 4.2 GB of disk for the run.
"""

from __future__ import annotations

import argparse
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from expunge.certificate.members import Members
from expunge.guarantee import tolerance_for
from expunge.linear.cluster import ClusterRows, local_cluster, spread
from expunge.linear.engine import State, fit, unlearn
from expunge.linear.lineage import digests_of
from expunge.linear.losses import LOSSES
from expunge.linear.parquet import ParquetRows, Through, parquet_rows
from expunge.linear.passes import evaluate
from expunge.linear.rows import Rows
from expunge.linear.shards import blocks, run_threads, shards

FILES = 16
GROUP = 1 << 17
GONE = (1, 10, 100, 1_000, 10_000)
FEATURES = (25, 50, 100, 200)
FAR = 1e9
PROJECTED = ("seconds_to_open", "seconds_to_fit", "seconds_per_pass_other")
TOLERANCE = tolerance_for(0.01, 1.0, 1e-6, 1000)
"""τ for σ = 0.01 and (1, 10⁻⁶) over 1,000 releases."""
Found = dict[str, float]


def show(name: str, *, value: float, unit: str) -> None:
    """Print one line."""
    print(f"{name}\t{value:.6g}\t{unit}", flush=True)


def write(directory: Path, rows: int, features: int) -> None:
    """Write files of row groups, one group at a time in memory.

    Columns are required (no nulls), plain and uncompressed: random numbers do not get smaller.
    """
    fields = [(f"x{j}", pa.float32()) for j in range(features)] + [("label", pa.float64())]
    schema = pa.schema([pa.field(*field, nullable=False) for field in fields])
    truth = np.random.default_rng(0).standard_normal(features).astype(np.float32) / features**0.5
    plain = {"use_dictionary": False, "compression": "NONE", "write_statistics": False}
    for k in range(FILES):
        rng, left = np.random.default_rng([1, k]), rows * (k + 1) // FILES - rows * k // FILES
        with pq.ParquetWriter(directory / f"people-{k:02d}.parquet", schema, **plain) as file:
            while left:
                X = rng.standard_normal((features, min(GROUP, left)), dtype=np.float32)
                chance = 1.0 / (1.0 + np.exp(-2.0 * (truth @ X)))
                label = np.where(rng.random(len(chance)) < chance, 1.0, -1.0)
                file.write_table(pa.table([*X, label], schema=schema), row_group_size=GROUP)
                left -= len(chance)


def people(paths: list[Path], features: int, through: Through | None = None) -> ParquetRows:
    """Open files, and the first columns of them."""
    names = [f"x{j}" for j in range(features)]
    return parquet_rows(paths, target="label", features=names, through=through)


# --- one training, in a process of its own --------------------------------------------------------


class Passes:
    """Times every pass over Parquet files or a cluster."""

    def __init__(self) -> None:
        self.seconds: dict[str, list[float]] = {}

    @contextmanager
    def counted(self, kind: type[Any]) -> Iterator[None]:
        """Replace the method ``map`` of a class for a while."""
        inner = kind.map

        def timed(rows: Any, work: Any) -> Any:
            wanted = getattr(work, "keywords", {}).get("wanted")
            name = "hessian" if wanted and wanted.hessian else "other"
            start = time.perf_counter()
            found = inner(rows, work)
            self.seconds.setdefault(name, []).append(time.perf_counter() - start)
            return found

        kind.map = timed
        try:
            yield
        finally:
            kind.map = inner

    @property
    def count(self) -> int:
        """Number of passes so far."""
        return sum(map(len, self.seconds.values()))


def train(paths: list[Path], features: int, workers: int, gone: tuple[int, ...]) -> None:
    """Train from Parquet and delete ``gone`` people, one number after the other."""
    passes = Passes()
    with ExitStack() as stack:
        client = stack.enter_context(local_cluster(workers)) if workers else None
        stack.enter_context(passes.counted(ClusterRows if workers else ParquetRows))
        through = partial(spread, client=client) if workers else None
        start = time.perf_counter()
        found = people(paths, features, through)
        show("seconds_to_open", value=time.perf_counter() - start, unit="s")
        rows = spread(found, client) if client else found
        passes.seconds.clear()
        start, busy = time.perf_counter(), time.process_time()
        state, trace = fit(rows, loss="logistic", l2=1.0, tolerance=TOLERANCE, classes=True)
        show("seconds_to_fit", value=time.perf_counter() - start, unit="s")
        show("processor_seconds_to_fit", value=time.process_time() - busy, unit="s")
        show("passes_to_fit", value=passes.count, unit="passes")
        for name, seconds in passes.seconds.items():
            show(f"seconds_per_pass_{name}", value=float(np.median(seconds)), unit="s")
        show("certified_distance", value=trace.distance, unit="Euclidean")
        show("tolerance", value=TOLERANCE, unit="Euclidean")
        memory(client)
        for count in gone:
            state, rows = delete(state, rows, count, passes)
        if gone:
            show("peak_memory_after_deletions", value=peak(), unit="MB")


def delete(
    state: State, rows: ParquetRows | ClusterRows, count: int, passes: Passes
) -> tuple[State, ParquetRows | ClusterRows]:
    """Delete people chosen at random, by the policy, and again with one pass at least."""
    index = np.random.default_rng(count).choice(rows.length, count, replace=False)
    start = time.perf_counter()
    forget, rows = rows.take(index), rows.without(index)
    show(f"delete_{count}.seconds_to_read_them", value=time.perf_counter() - start, unit="s")
    for name, tolerance in (("", TOLERANCE), ("_measured", 1.5 * state.bound)):
        start, before = time.perf_counter(), passes.count
        new, trace = unlearn(replace(state, tolerance=tolerance), forget, rows)
        show(f"delete_{count}{name}.seconds", value=time.perf_counter() - start, unit="s")
        show(f"delete_{count}{name}.passes", value=passes.count - before, unit=trace.path)
        show(f"delete_{count}{name}.distance", value=trace.distance, unit="Euclidean")
    return replace(new, tolerance=TOLERANCE), rows


def peak() -> float:
    """Return the peak resident memory of this process so far, in MB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e6


def memory(client: Any) -> None:
    """Show the peak resident memory of this process, and that and the work of a worker."""
    show("peak_memory", value=peak(), unit="MB")
    if client:
        show("peak_memory_of_a_worker", value=max(client.run(peak).values()), unit="MB")
        busy = max(client.run(time.process_time).values())
        show("processor_seconds_of_a_worker", value=busy, unit="s")


def stages(paths: list[Path], features: int) -> None:
    """Show how long a pass takes that does its first step only, its first two, and so on."""
    rows = people(paths, features)
    reader, spans, W = rows.reader, shards(rows.length), np.full((rows.width, 1), 0.01)

    def decoded(k: int) -> None:
        for file, low, high, _ in reader._pieces(*spans[k]):
            for _ in file.tables(low, high, reader.names, reader._batch):
                pass

    def arranged(k: int) -> None:
        for _ in rows.numbers(blocks(*spans[k])):
            pass

    def checked(k: int) -> None:
        for _ in rows.stream(*spans[k]):
            pass

    for name, work in (("parquet", decoded), ("rows", arranged), ("checks_and_norms", checked)):
        show(f"stages.{name}", value=timed(partial(run_threads, work, len(spans))), unit="s")
    loss = LOSSES["logistic"]
    show("stages.gradient", value=timed(lambda: evaluate(rows, loss, W)), unit="s")
    show("stages.hessian", value=timed(lambda: evaluate(rows, loss, W, hessian=True)), unit="s")


def in_memory(paths: list[Path], features: int) -> None:
    """Show the seconds of passes over the same rows in memory."""
    found = people(paths, features)
    rows: Rows = found.take(np.arange(found.length))
    W, loss = np.full((rows.width, 1), 0.01), LOSSES["logistic"]
    show("memory.gradient", value=timed(lambda: evaluate(rows, loss, W)), unit="s")
    show("memory.hessian", value=timed(lambda: evaluate(rows, loss, W, hessian=True)), unit="s")


def members(paths: list[Path], features: int) -> None:
    """Show what it takes to commit to every row, as a model folder does."""
    rows = people(paths, features)
    start = time.perf_counter()
    digests = digests_of(rows, sparse=False)
    show("members.seconds_to_digest", value=time.perf_counter() - start, unit="s")
    ids, before, start = [f"person-{i}" for i in range(rows.length)], peak(), time.perf_counter()
    table = Members.enrol(digests, ids).to_arrays()
    show("members.seconds_to_enrol", value=time.perf_counter() - start, unit="s")
    size = sum(array.nbytes for array in table.values())
    show("members.bytes_per_row", value=size / rows.length, unit="B")
    show("members.bytes_per_row_at_the_peak", value=(peak() - before) * 1e6 / rows.length, unit="B")


def timed(work: Callable[[], object]) -> float:
    """Return the seconds of the quickest of three runs."""
    seconds = []
    for _ in range(3):
        start = time.perf_counter()
        work()
        seconds.append(time.perf_counter() - start)
    return min(seconds)


ONE = {"stages": stages, "memory": in_memory, "members": members}


# --- all of them ----------------------------------------------------------------------------------


def child(case: str, directory: Path, files: int, features: int, **options: str) -> Found:
    """Run one measurement in a process of its own; show and return what it says."""
    command = [sys.executable, "-m", "bench.scale", "--directory", str(directory)]
    command += ["--use-files", str(files), "--features", str(features)]
    for name, value in options.items():
        command += [f"--{name.replace('_', '-')}", value]
    out = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
    found = {}
    for line in out.splitlines():
        name, value, unit = line.split("\t")
        found[name] = float(value)
        show(f"{case}.{name}", value=found[name], unit=unit)
    return found


def growth(directory: Path, rows: int, features: int, workers: list[int]) -> None:
    """Train at full size, then with less of everything."""
    gone = ",".join(str(count) for count in GONE if count <= rows // 4)
    whole = child(f"rows={rows}", directory, FILES, features, only="train", gone=gone)
    series = [(rows, whole)]
    for files in (8, 4, 2, 1):
        n = rows * files // FILES
        series.append((n, child(f"rows={n}", directory, files, features, only="train")))
    for count in workers:
        case = f"workers={count},rows={rows // 8}"
        child(case, directory, 2, features, only="train", on=str(count))
    for only in ONE:
        child(f"rows={rows // 8}", directory, 2, features, only=only)
    project(rows, whole, series)


def project(rows: int, whole: Found, series: list[tuple[int, Found]]) -> None:
    """Show what 10⁹ rows would take on this machine: a line through the series, and by ratio."""
    for name in PROJECTED:
        slope, start = np.polyfit([n for n, _ in series], [found[name] for _, found in series], 1)
        show(f"projection_to_1e9_rows.{name}", value=start + slope * FAR, unit="s")
        by_ratio = whole[name] * FAR / rows
        show(f"projection_to_1e9_rows.{name}_by_ratio", value=by_ratio, unit="s")
    bits = 2 * (FAR - rows) / 8 / 1e6
    show("projection_to_1e9_rows.peak_memory", value=whole["peak_memory"] + bits, unit="MB")


def everything(directory: Path, rows: int, features: int, workers: str) -> None:
    """Write, measure growth in all directions; each step in a process of its own."""
    child("files", directory, FILES, features, only="write", rows=str(rows))
    growth(directory, rows, features, [int(count) for count in workers.split(",")])
    wide = directory / "wide"
    wide.mkdir()
    child("wide", wide, FILES, max(FEATURES), only="write", rows=str(rows // FILES))
    for fewer in FEATURES:
        child(f"features={fewer},rows={rows // FILES}", wide, FILES, fewer, only="train")


def main() -> None:
    """Measure; or, as a process of its own, do one training."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=20_000_000)
    parser.add_argument("--features", type=int, default=50)
    parser.add_argument("--workers", default="1,2", help="numbers of Dask workers to compare")
    parser.add_argument("--directory", type=Path, help="where to put the files")
    parser.add_argument("--only", choices=["write", "train", *ONE], help=argparse.SUPPRESS)
    parser.add_argument("--use-files", type=int, default=FILES, help=argparse.SUPPRESS)
    parser.add_argument("--on", type=int, default=0, help=argparse.SUPPRESS)
    parser.add_argument("--gone", default="", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.only == "write":
        start = time.perf_counter()
        write(asked.directory, asked.rows, asked.features)
        show("seconds_to_write", value=time.perf_counter() - start, unit="s")
    elif asked.only:
        paths = sorted(asked.directory.glob("*.parquet"))[: asked.use_files]
        gone = tuple(int(count) for count in asked.gone.split(",") if count)
        if asked.only == "train":
            train(paths, asked.features, asked.on, gone)
        else:
            ONE[asked.only](paths, asked.features)
    else:
        with tempfile.TemporaryDirectory(dir=asked.directory) as name:
            everything(Path(name), asked.rows, asked.features, asked.workers)


if __name__ == "__main__":
    main()
