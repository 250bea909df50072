"""How a pass over rows is cut, and the threads that run it.

Shard and block boundaries depend on the number of rows only, and partial sums are added in shard
order, so a result depends neither on the number of threads or machines nor on where the rows are.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import cache
from itertools import pairwise
from threading import Lock
from typing import Any, TypeVar

from threadpoolctl import OpenBLASController, ThreadpoolController

BLOCK = 1024
FEWEST = 8
LARGEST = 1 << 20
_T = TypeVar("_T")


def shards(n: int) -> list[tuple[int, int]]:
    """Return the spans into which ``n`` rows are cut: at least one, of at most 2²⁰ rows.

    >>> shards(1500), len(shards(100_000)), len(shards(20_000_000))
    ([(0, 1500)], 8, 20)
    """
    count = max(1, min(FEWEST, n // BLOCK), -(-n // LARGEST))
    return list(pairwise(n * k // count for k in range(count + 1)))


def blocks(start: int, stop: int) -> list[tuple[int, int]]:
    """Cut a span into equal blocks of at most BLOCK rows: short ones are slower per row."""
    pieces = -(-(stop - start) // BLOCK)
    return list(pairwise(start + (stop - start) * k // max(pieces, 1) for k in range(pieces + 1)))


def chain_length(n: int) -> int:
    """Return the longest chain of additions in a sum over ``n`` rows."""
    spans = shards(n)
    longest = max(stop - start for start, stop in spans)
    return min(BLOCK, max(n, 1)) + -(-longest // BLOCK) + len(spans)


class _Limit:
    """The limit of BLAS threads: how many hold it down to one now, and what it was before."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Begin anew, as in a process that was forked while others held it."""
        self.lock, self.holders = Lock(), 0
        self.before: Any = None

    def hold(self) -> None:
        """Set it to one thread unless somebody has."""
        with self.lock:
            if not self.holders:
                _seize()
                self.before = _blas().limit(limits=1, user_api="blas")
            self.holders += 1

    def leave(self) -> None:
        """Set it back if nobody else holds it."""
        with self.lock:
            self.holders -= 1
            if not self.holders:
                _seize()
                self.before.restore_original_limits()
                _seize()


def _seize() -> None:
    """Let any thread set limits: from 3.8 on, threadpoolctl obeys the one that did so first."""
    clear = getattr(OpenBLASController, "clear_controlling_thread", None)
    if clear is not None:
        clear(force=True)


_limit = _Limit()
os.register_at_fork(after_in_child=_limit.reset)


@contextmanager
def single_threaded_blas() -> Iterator[None]:
    """Run with one BLAS thread.

    The passes bring their own threads, the factorisations between them are small, and the result
    then does not depend on how many threads BLAS would have used. BLAS has one limit for the whole
    process: the first who comes sets it, the last who leaves, in whatever thread, sets it back.
    """
    _limit.hold()
    try:
        yield
    finally:
        _limit.leave()


def run_threads(work: Callable[[int], _T], count: int) -> list[_T]:
    """Return ``[work(0), …, work(count − 1)]``, by as many threads as there are cores."""
    if count == 1:
        return [work(0)]
    pool, workers = _threads()
    results: dict[int, _T] = {}

    def share(first: int) -> None:
        for k in range(first, count, workers):
            results[k] = work(k)

    with single_threaded_blas():
        list(pool.map(share, range(workers)))
    return [results[k] for k in range(count)]


@cache
def _threads() -> tuple[ThreadPoolExecutor, int]:
    workers = os.cpu_count() or 1
    return ThreadPoolExecutor(workers, "expunge-rows"), workers


os.register_at_fork(after_in_child=_threads.cache_clear)


@cache
def _blas() -> ThreadpoolController:
    return ThreadpoolController()
