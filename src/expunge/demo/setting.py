"""What the demonstration starts from: tables, a schema, keys, and who will ask."""

from __future__ import annotations

import hashlib
import importlib.util
import json
import shutil
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import parquet
from rich.console import Console

from expunge.datasets import People, rand_health
from expunge.errors import DataMissing, FolderProblem
from expunge.folder.keyring import make_keys

MARK = ".expunge-demo"
HELD_OUT = 5
"""One person in so many is never trained on."""

SINGLE, BATCH = 10, 200
ISSUER = "Demo Clinic"
INSTALL = "pip install 'expunge[demo]'"


@dataclass(frozen=True)
class Setting:
    """Paths below ``out``, and the people: ten who ask one by one, and 200 at once."""

    out: Path
    label: str
    identifier: str
    source: str
    held_out: pa.Table
    single: tuple[str, ...]
    batch: tuple[str, ...]

    @property
    def data(self) -> Path:
        """The table of the training."""
        return self.out / "people.parquet"

    @property
    def retained(self) -> Path:
        """The same table without those who asked."""
        return self.out / "retained.parquet"

    @property
    def schema(self) -> Path:
        """The declared encoding."""
        return self.out / "schema.json"

    @property
    def keys(self) -> Path:
        """The directory of keys."""
        return self.out / "keys"

    @property
    def folder(self) -> Path:
        """The model folder."""
        return self.out / "clinic"

    @property
    def handed_over(self) -> Path:
        """What somebody outside is given."""
        return self.out / "outside"

    def passphrase(self) -> bytes:
        """Return the passphrase of the keys."""
        return (self.out / "passphrase").read_bytes().strip()


def prepare(out: Path, console: Console) -> Setting:
    """Write tables, schema and keys.

    Raises
    ------
    DataMissing
        If the data, or matplotlib for the report, are not installed.
    FolderProblem
        If ``out`` is not empty and not from an earlier demonstration.
    """
    if importlib.util.find_spec("matplotlib") is None:
        raise DataMissing(f"the demonstration draws plots and needs matplotlib: {INSTALL}")
    people = rand_health()
    _clear(out)
    ids = pc.cast(people.table.column(people.identifier), pa.string())
    ranked = sorted(set(ids.to_pylist()), key=_rank)
    away = pa.array([person for person in ranked if _rank(person) % HELD_OUT == 0])
    here = [person for person in ranked if _rank(person) % HELD_OUT]
    outside = pc.is_in(ids, value_set=away)
    setting = Setting(
        out=out,
        label=people.label,
        identifier=people.identifier,
        source=people.source,
        held_out=people.table.filter(outside),
        single=tuple(here[:SINGLE]),
        batch=tuple(here[SINGLE : SINGLE + BATCH]),
    )
    _write(setting, people, people.table.filter(pc.invert(outside)))
    rows = people.table.num_rows - setting.held_out.num_rows
    console.print(
        f"[bold]{people.source}[/bold]\n{rows:,} yearly records of {len(here):,} people to train "
        f"on; {setting.held_out.num_rows:,} records of {len(away):,} others are held out.",
        highlight=False,
    )
    return setting


def drop_people(setting: Setting) -> None:
    """Write the table that an operator keeps when everybody who asked is gone."""
    table = parquet.read_table(setting.data)
    gone = pa.array([*setting.single, *setting.batch])
    asked = pc.is_in(pc.cast(table.column(setting.identifier), pa.string()), value_set=gone)
    parquet.write_table(table.filter(pc.invert(asked)), setting.retained)


def _write(setting: Setting, people: People, table: pa.Table) -> None:
    parquet.write_table(table, setting.data)
    setting.schema.write_text(json.dumps(people.schema, indent=1), encoding="utf-8")
    make_keys(setting.keys, passphrase_file=setting.out / "passphrase")


def _rank(person: str) -> int:
    """A number that has nothing to do with the person's data."""
    return int.from_bytes(hashlib.sha256(person.encode()).digest()[:8], "big")


def _clear(out: Path) -> None:
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        if not (out / MARK).is_file():
            raise FolderProblem(f"{out} is not empty; name a new directory with --out")
        shutil.rmtree(out)
    out.mkdir(parents=True, exist_ok=True)
    (out / MARK).touch()
