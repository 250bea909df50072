"""Features on disk: mapped arrays and a manifest that vouches for them.

A cache is a directory that only its owner can read: ``features.npy`` (n, d) float64,
``targets.npy``, ``records.npy`` (the digest of every record, by which it is found) and
``manifest.json`` with the digests of the backbone and of every chunk of rows. A cache that does not
fit its manifest is refused.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from expunge import regular
from expunge.errors import MALFORMED, FolderProblem, InvalidInput

FORMAT = "expunge-features/1"
Array = NDArray[np.float64]
_ARRAYS = ("features", "targets", "records")


@dataclass(frozen=True)
class FeatureSpec:
    """What features are a function of, beside the record.

    Attributes
    ----------
    backbone : str
        Its `fingerprint`.
    clip : float or None
        Norm to which longer feature vectors are scaled down.
    preprocessing : mapping
        What was done to records before, in words and numbers that go into JSON.
    """

    backbone: str
    clip: float | None
    preprocessing: Mapping[str, Any]

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON values."""
        plain = json.loads(json.dumps(dict(self.preprocessing), allow_nan=False))
        return {"backbone": self.backbone, "clip": self.clip, "preprocessing": plain}


class FeatureCache:
    """Features on disk, made by `expunge.deep.features.compute_features`.

    Attributes
    ----------
    directory : Path
    spec : FeatureSpec
    features : (n, d) float64, mapped
    targets : (n, …), mapped
    records : (n, 32) uint8, mapped
        Digests of the records, see `expunge.deep.core.record_digests`.
    """

    def __init__(self, directory: Path, manifest: dict[str, Any]) -> None:
        self.directory, self._manifest = directory, manifest
        spec = manifest["spec"]
        self.spec = FeatureSpec(spec["backbone"], spec["clip"], spec["preprocessing"])
        arrays = [_map(directory, name, len_=manifest["rows"]) for name in _ARRAYS]
        self.features, self.targets, self.records = arrays

    def __repr__(self) -> str:
        n, d = self.features.shape
        return f"FeatureCache({n} rows, {d} features, {len(self.erased)} erased)"

    @property
    def erased(self) -> list[int]:
        """Rows that have been erased."""
        return list(self._manifest["erased"])

    @property
    def complete(self) -> bool:
        """Whether every chunk has been computed."""
        return len(self._manifest["chunks"]) == len(self._spans())

    def erase(self, index: Sequence[int]) -> None:
        """Overwrite rows with zeros, for good. Repeating it after an interruption is harmless."""
        rows = sorted({int(i) for i in index} - set(self._manifest["erased"]))
        if not rows:
            return
        self._write(pending=rows)
        for array in (self.features, self.targets, self.records):
            array[rows] = 0
            array.flush()
        chunks = list(self._manifest["chunks"])
        for k in {row // self._manifest["chunk"] for row in rows}:
            chunks[k] = self._digest(k)
        erased = sorted({*self._manifest["erased"], *rows})
        self._write(chunks=chunks, erased=erased, pending=[])

    def check(self) -> None:
        """Compare every chunk with the manifest.

        Raises
        ------
        FolderProblem
            If one differs.
        """
        waiting = {row // self._manifest["chunk"] for row in self._manifest["pending"]}
        for k, digest in enumerate(self._manifest["chunks"]):
            if k not in waiting and self._digest(k) != digest:
                raise FolderProblem(
                    f"rows {k * self._manifest['chunk']} and following of {self.directory} are not "
                    "those that were written: delete the directory and compute the features again"
                )
        if waiting:
            self.erase(self._manifest["pending"])

    def fill(self, k: int, features: Array, targets: NDArray[Any], records: NDArray[Any]) -> None:
        """Write chunk ``k``, the next one."""
        start, stop = self._spans()[k]
        self.features[start:stop], self.targets[start:stop] = features, targets
        self.records[start:stop] = records
        for array in (self.features, self.targets, self.records):
            array.flush()
        self._write(chunks=[*self._manifest["chunks"], self._digest(k)])

    def done(self, k: int, records: NDArray[Any]) -> bool:
        """Whether chunk ``k`` has been computed; these must be its records.

        Raises
        ------
        InvalidInput
            If it was computed from other records, or the data do not come in chunks of one size.
        """
        start, stop = self._span(k, len(records))
        if k >= len(self._manifest["chunks"]):
            return False
        kept = [i for i in range(start, stop) if i not in set(self._manifest["erased"])]
        if not np.array_equal(self.records[kept], records[np.array(kept, int) - start]):
            raise InvalidInput(
                f"{self.directory} holds features of other records (rows {start} and following "
                "differ): give the same data in the same order, or another directory"
            )
        return True

    def _spans(self) -> list[tuple[int, int]]:
        rows, chunk = self._manifest["rows"], self._manifest["chunk"]
        return [(i, min(i + chunk, rows)) for i in range(0, rows, chunk)]

    def _span(self, k: int, rows: int) -> tuple[int, int]:
        spans = self._spans()
        if k >= len(spans) or spans[k][1] - spans[k][0] != rows:
            raise InvalidInput(
                f"chunk {k} has {rows} records, which is not what fixed chunks of "
                f"{self._manifest['chunk']} give: pad all records to one shape"
            )
        return spans[k]

    def _digest(self, k: int) -> str:
        start, stop = self._spans()[k]
        found = hashlib.sha256()
        for array in (self.features, self.targets, self.records):
            found.update(np.ascontiguousarray(array[start:stop]).tobytes())
        return found.hexdigest()

    def _write(self, **changes: Any) -> None:
        self._manifest = {**self._manifest, **changes}
        _replace(self.directory / "manifest.json", json.dumps(self._manifest, sort_keys=True))


def open_features(directory: str | Path) -> FeatureCache:
    """Open a cache and check it against its manifest.

    Raises
    ------
    FolderProblem
        If it is missing, unfinished, damaged or altered.
    """
    cache = _open(Path(directory))
    if not cache.complete:
        raise FolderProblem(
            f"{directory} is unfinished: run compute_features again, it goes on where it stopped"
        )
    return cache


def begin(
    place: Path, spec: FeatureSpec, rows: int, chunk: int, features: Array, targets: NDArray[Any]
) -> FeatureCache:
    """Make a cache for ``rows`` rows like those given, or open the one that is there.

    Raises
    ------
    InvalidInput
        If the one that is there holds features of something else.
    FolderProblem
        If it has been altered.
    """
    if not (place / "manifest.json").exists():
        place.mkdir(mode=0o700, parents=True, exist_ok=True)
        strange = {path.name for path in place.iterdir()} - {f"{name}.npy" for name in _ARRAYS}
        if strange - {"manifest.new"}:
            raise InvalidInput(f"{place} is not empty ({min(strange)}): give a new directory")
        shapes = {
            "features": (np.dtype(np.float64), (rows, features.shape[1])),
            "targets": (targets.dtype, (rows, *targets.shape[1:])),
            "records": (np.dtype(np.uint8), (rows, 32)),
        }
        for name, (dtype, shape) in shapes.items():
            path = place / f"{name}.npy"
            np.lib.format.open_memmap(path, "w+", dtype, shape).flush()
        empty: dict[str, Any] = {"chunks": [], "erased": [], "pending": []}
        manifest = {
            **empty,
            "format": FORMAT,
            "spec": spec.to_json(),
            "rows": rows,
            "chunk": chunk,
        }
        _replace(place / "manifest.json", json.dumps(manifest, sort_keys=True))
    cache = _open(place)
    found = cache._manifest
    for name, have, want in (
        ("backbone", cache.spec.backbone, spec.backbone),
        ("clip", cache.spec.clip, spec.clip),
        ("preprocessing", cache.spec.to_json()["preprocessing"], spec.to_json()["preprocessing"]),
        ("number of rows", found["rows"], rows),
        ("chunk", found["chunk"], chunk),
    ):
        if have != want:
            raise InvalidInput(
                f"{place} holds features of another {name} ({have!r}, not {want!r}): give another "
                "directory"
            )
    return cache


def _open(place: Path) -> FeatureCache:
    try:
        manifest = json.loads(regular.read(place / "manifest.json", regular.LARGE))
        if manifest["format"] != FORMAT:
            raise FolderProblem(f"expected a cache of format {FORMAT}, got {manifest['format']!r}")
        cache = FeatureCache(place, manifest)
        cache.check()
    except OSError as error:
        raise FolderProblem(f"{place} holds no features ({error})") from error
    except MALFORMED as error:
        raise FolderProblem(
            f"{place} cannot be read ({error}): delete it and compute the features again"
        ) from error
    return cache


def _map(place: Path, name: str, len_: int) -> np.memmap[Any, Any]:
    array = np.load(place / f"{name}.npy", mmap_mode="r+", allow_pickle=False)
    if not isinstance(array, np.memmap) or len(array) != len_:
        raise ValueError(f"{name} has {len(array)} rows, not {len_}")
    return array


def _replace(path: Path, text: str) -> None:
    """Write a file whole or not at all."""
    aside = path.with_suffix(".new")
    with open(aside, "w", opener=lambda p, flags: os.open(p, flags, 0o600)) as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    os.replace(aside, path)
