"""Many trainings, in parallel, kept on disk, resumable: each leaves arrays of per-row scores.

A run is a function of its seed. Results are safetensors files, written aside and renamed, so that
an interrupted audit goes on where it stopped. A directory belongs to one experiment, whose
description lies beside the results.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load, save

from expunge.errors import MALFORMED, InvalidInput
from expunge.linear.shards import single_threaded_blas

Arrays = Mapping[str, NDArray[Any]]
Task = Callable[[int], Arrays]
"""From the seed of a run to what is kept of it; independent of all other runs."""
Progress = Callable[[str], None]
_DESCRIPTION = "experiment.json"


def silent(_: str) -> None:
    """Say nothing."""


def seeds(seed: int, count: int, purpose: str) -> list[int]:
    """Return independent seeds, the same ones whatever the count.

    Parameters
    ----------
    purpose : str
        Different purposes have different seeds, so that no run is used twice.

    Examples
    --------
    >>> seeds(1, 3, "oracle")[:2] == seeds(1, 2, "oracle"), seeds(1, 1, "a") == seeds(1, 1, "b")
    (True, False)
    """
    if seed < 0 or count < 0:
        raise InvalidInput(f"seed and count must not be negative, got {seed} and {count}")
    word = int.from_bytes(hashlib.sha256(purpose.encode()).digest()[:8], "big")
    root = np.random.SeedSequence([seed, word])
    return [int(child.generate_state(1, np.uint32)[0]) for child in root.spawn(count)]


def halves(
    rows: int, models: int, seed: int, users: NDArray[Any] | None = None
) -> NDArray[np.bool_]:
    """Return which rows each shadow model is trained on (models, rows): each in exactly half.

    Parameters
    ----------
    models : int
        Even.
    users : (rows,) array, optional
        The rows of one user go together.
    """
    if models < 2 or models % 2 or rows < 1:
        raise InvalidInput(f"expected an even number of models and some rows, got {models}, {rows}")
    if users is not None and len(users) != rows:
        raise InvalidInput(f"there are {rows} rows and {len(users)} users: give one each")
    owner = np.arange(rows) if users is None else np.unique(users, return_inverse=True)[1]
    rng = np.random.default_rng(seeds(seed, 1, "halves")[0])
    order = rng.random((models, int(owner.max()) + 1)).argsort(axis=0).argsort(axis=0)
    return np.asarray(order < models // 2)[:, owner]


@dataclass(frozen=True)
class Runner:
    """How runs are made and where they are kept.

    Attributes
    ----------
    cache : Path or None
        A directory; nothing is kept without one.
    pool : Executor or None
        Where runs are made, for example a ``ProcessPoolExecutor`` or Dask's; by default threads,
        one per core, with BLAS held to one thread each.
    progress : callable
        Told in words.
    """

    cache: Path | None = None
    pool: Executor | None = field(default=None, repr=False)
    progress: Progress = field(default=silent, repr=False)

    def run(
        self, name: str, task: Task, numbers: Sequence[int], about: Mapping[str, Any] | None = None
    ) -> dict[str, NDArray[Any]]:
        """Make the runs that are not kept yet, and return all, stacked by run (first axis).

        Parameters
        ----------
        name : str
            Of the experiment; its directory in the cache.
        task : callable
            From a seed to arrays of the same names and shapes for every seed.
        numbers : sequence of int
            Seeds.
        about : mapping, optional
            What the results depend on, in terms of JSON: data digest, hyper-parameters.

        Raises
        ------
        InvalidInput
            If the directory belongs to another experiment, a kept file is damaged, or runs differ
            in what they return.
        """
        if not numbers or len(set(numbers)) != len(numbers):
            raise InvalidInput(f"{name}: expected different seeds, at least one")
        home = None if self.cache is None else _claim(Path(self.cache) / name, about or {})
        found = {n: _load(home, n) for n in numbers if home is not None and _path(home, n).exists()}
        missing = [n for n in numbers if n not in found]
        if found:
            self.progress(f"{name}: {len(found)} of {len(numbers)} runs were kept")
        for done, (n, arrays) in enumerate(self._make(task, missing), len(found) + 1):
            found[n] = {key: _plain(name, value) for key, value in arrays.items()}
            if home is not None:
                _store(home, n, found[n])
            self.progress(f"{name}: run {done} of {len(numbers)}")
        return _stacked(name, [found[n] for n in numbers])

    def _make(self, task: Task, numbers: Sequence[int]) -> Iterator[tuple[int, Arrays]]:
        """Yield runs as they end; at an error those not started are called off."""
        if not numbers:
            return
        with self._workers() as pool:
            waiting: dict[Future[Arrays], int] = {pool.submit(task, n): n for n in numbers}
            try:
                for future in as_completed(waiting):
                    yield waiting[future], future.result()
            finally:
                for future in waiting:
                    future.cancel()

    @contextmanager
    def _workers(self) -> Iterator[Executor]:
        if self.pool is not None:
            yield self.pool
            return
        with single_threaded_blas(), ThreadPoolExecutor(os.cpu_count() or 1) as pool:
            yield pool


def digest(*arrays: Any) -> str:
    """Return a digest of arrays, to say in ``about`` which data an experiment used."""
    total = hashlib.sha256()
    for array in arrays:
        found = np.ascontiguousarray(array)
        total.update(f"{found.dtype.str}{found.shape}".encode())
        total.update(found.tobytes() if found.dtype != object else repr(found.tolist()).encode())
    return total.hexdigest()


def _claim(home: Path, about: Mapping[str, Any]) -> Path:
    """Make the directory of an experiment, or see that it is this one's."""
    text = json.dumps(about, sort_keys=True, indent=1)
    note = home / _DESCRIPTION
    if note.exists():
        if note.read_text() != text:
            raise InvalidInput(
                f"{home} keeps runs of another experiment (see {_DESCRIPTION} there): choose "
                "another directory, or delete it"
            )
        return home
    home.mkdir(parents=True, exist_ok=True)
    if any(home.iterdir()):
        raise InvalidInput(f"{home} is not empty and no experiment's: choose another directory")
    _replace(note, text.encode())
    return home


def _path(home: Path, number: int) -> Path:
    return home / f"{number}.safetensors"


def _store(home: Path, number: int, arrays: Arrays) -> None:
    if any(value.dtype == object for value in arrays.values()):
        raise InvalidInput("runs must return numbers: objects are not kept")
    _replace(_path(home, number), save(dict(arrays)))


def _replace(path: Path, content: bytes) -> None:
    aside = path.with_name(f".{path.name}")
    aside.write_bytes(content)
    aside.replace(path)


def _plain(name: str, value: Any) -> NDArray[Any]:
    found = np.ascontiguousarray(value)
    if found.dtype.kind not in "biuf":
        raise InvalidInput(f"{name}: runs must return numbers, not {found.dtype}")
    return found


def _load(home: Path, number: int) -> dict[str, NDArray[Any]]:
    path = _path(home, number)
    try:
        return load(path.read_bytes())
    except (OSError, SafetensorError, *MALFORMED) as error:
        raise InvalidInput(f"{path} is damaged: delete it, and the run is made again") from error


def _stacked(name: str, runs: Sequence[Arrays]) -> dict[str, NDArray[Any]]:
    shapes = {key: value.shape for key, value in runs[0].items()}
    for run in runs:
        if {key: value.shape for key, value in run.items()} != shapes:
            raise InvalidInput(f"{name}: runs differ in the arrays that they return")
    return {key: np.stack([run[key] for run in runs]) for key in shapes}
