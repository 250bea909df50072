"""Small tables on disk and in memory, for tests of rows out of core."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from expunge.linear.passes import (
    evaluate,
    hessian_diagonal,
    hessian_product,
    max_leverage,
    mean_gram,
)
from expunge.linear.rows import make_rows
from expunge.linear.shards import single_threaded_blas


def numbers(n, d=5, seed=0):
    """Return float32 features (n, d), a target ±1 and weights, some of them 0."""
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((n, d)).astype(np.float32)
    y = np.where(X @ rng.standard_normal(d) + rng.standard_normal(n) > 0, 1.0, -1.0)
    weight = rng.uniform(0.5, 2.0, n) * (rng.random(n) > 0.05)
    return X, y, weight


def table(X, y, weight=None):
    """Return a table with the columns x0, x1, …, y and w, and ids."""
    columns = {f"x{j}": X[:, j] for j in range(X.shape[1])}
    columns |= {"y": y, "person": [f"p{i}" for i in range(len(y))]}
    return pa.table(columns if weight is None else columns | {"w": weight})


def write(directory, people, group, files=1):
    """Write a table as several files of row groups of ``group`` rows; return the directory."""
    directory.mkdir(exist_ok=True)
    cuts = [people.num_rows * k // files for k in range(files + 1)]
    for k in range(files):
        piece = people.slice(cuts[k], cuts[k + 1] - cuts[k])
        pq.write_table(piece, directory / f"part-{k:03d}.parquet", row_group_size=group)
    return directory


@single_threaded_blas()
def results(rows, loss, outputs=1):
    """Return everything that the passes give, as a list of numbers and arrays."""
    rng = np.random.default_rng(1)
    W, V = 0.3 * rng.standard_normal((2, rows.width, outputs))
    found = evaluate(rows, loss, W, anchor=W + 0.01, value=True, hessian=True, fine=True)
    gram = mean_gram(rows, loss, W)
    chol = np.linalg.cholesky(gram + np.eye(rows.width))
    return [
        found.gradient,
        found.error,
        found.value,
        found.change,
        found.hessian,
        found.errors,
        hessian_product(rows, loss, W, V),
        hessian_diagonal(rows, loss, W),
        gram,
        max_leverage(rows, chol),
        rows.radius,
        rows.count,
        rows.positives,
    ]


def require_same(found, expected):
    """Compare bit by bit."""
    for a, b in zip(found, expected, strict=True):
        np.testing.assert_array_equal(a, b)


def in_memory(X, y, weight, intercept=True):
    """Return the same rows in memory."""
    return make_rows(X, np.asarray(y, float).reshape(X.shape[0], -1), weight, intercept=intercept)
