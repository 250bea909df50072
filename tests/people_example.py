"""A small table of people with a model folder, and ways to look at both."""

from __future__ import annotations

import hashlib
import shutil
from pathlib import Path

import numpy as np
import pyarrow as pa
from pyarrow import csv, parquet

from expunge.cli import run
from expunge.folder.keyring import make_keys

PEOPLE = 60
ROWS_EACH = 2


def people(seed: int = 0, count: int = PEOPLE) -> pa.Table:
    """Two rows each of ``count`` people: two numbers, a category, a label."""
    rng = np.random.default_rng(seed)
    n = count * ROWS_EACH
    age, score = rng.integers(20, 80, n), rng.normal(size=n).round(3)
    ill = age / 50 + score + rng.normal(size=n) > 1.2
    return pa.table(
        {
            "person": [f"p{i // ROWS_EACH}" for i in range(n)],
            "age": age,
            "score": score,
            "site": rng.choice(["east", "west"], n),
            "ill": np.where(ill, "yes", "no"),
        }
    )


def write_csv(table: pa.Table, path: Path) -> Path:
    csv.write_csv(table, path)
    return path


def write_parquet(table: pa.Table, path: Path) -> Path:
    parquet.write_table(table, path)
    return path


def without(table: pa.Table, *ids: str) -> pa.Table:
    keep = [name not in ids for name in table.column("person").to_pylist()]
    return table.filter(pa.array(keep))


def with_cell(table: pa.Table, row: int, column: str, value: object) -> pa.Table:
    cells = table.column(column).to_pylist()
    cells[row] = value
    index = table.column_names.index(column)
    return table.set_column(index, column, pa.array(cells, table.schema.field(column).type))


def training(home: Path, *more: str, data: str = "people.csv", out: str = "model") -> list[str]:
    """Arguments of a training in ``home``."""
    words = ["train", str(home / data), "--label", "ill", "--id", "person"]
    return [*words, "--out", str(home / out), "--keys", str(home / "keys"), *more]


def make_home(home: Path) -> Path:
    """Data in two formats, keys and a trained model."""
    home.mkdir(parents=True, exist_ok=True)
    write_csv(people(), home / "people.csv")
    write_parquet(people(), home / "people.parquet")
    make_keys(home / "keys", encrypted=False)
    assert run(training(home)) == 0
    return home


def copy_home(source: Path, target: Path) -> Path:
    """Copy data, keys and models; the copied folders refer to the copied data and keys."""
    shutil.copytree(source, target)
    for config in target.glob("*/config.json"):
        config.write_text(config.read_text().replace(str(source), str(target)))
    return target


def snapshot(directory: Path) -> dict[str, str]:
    """Digest of every file below a directory, and the directories, by path."""
    found = {}
    for path in sorted(directory.rglob("*")):
        content = hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else "directory"
        found[str(path.relative_to(directory))] = content
    return found
