"""The sealed state on disk: two safetensors files, secret, without pickle.

``state.safetensors`` holds the engine's arrays and, as JSON in its metadata, the policy, the key of
the noise tags and the place in the chain of releases. It is rewritten at every release.
``members.safetensors`` holds who was trained on; it grows with the number of records, so deletions
write to the touched places only, through a memory map.
"""

from __future__ import annotations

import json
import math
import mmap
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load, save

from expunge.certificate.members import Members
from expunge.certificate.policy import Policy
from expunge.errors import FolderProblem
from expunge.linear.curvature import Curvature
from expunge.linear.engine import Part, State
from expunge.linear.lineage import Lineage
from expunge.linear.solver import Point

FORMAT = "expunge-state/1"
_NUMBERS = ("eta", "kappa", "leverage", "radius", "slack", "row_error", "unit", "ridge")


def dump_state(lineage: Lineage) -> bytes:
    """Return the state file of a lineage, the members and the model file apart."""
    state = lineage.state
    arrays: dict[str, NDArray[Any]] = {"members": state.members}
    numbers = []
    for k, part in enumerate(state.parts):
        arrays |= {f"{k}.{name}": np.ascontiguousarray(a) for name, a in _arrays(part).items()}
        curvature = {name: _text(getattr(part.curvature, name)) for name in _NUMBERS}
        base = {"error": _text(part.base.error), "change": _text(part.base.change)}
        numbers.append(curvature | base | {"bound": _text(part.bound)})
    meta = {
        "format": FORMAT,
        "policy": lineage.policy.to_payload().decode(),
        "noiseKey": lineage.noise_key.hex(),
        "sparse": lineage.sparse,
        "release": lineage.number,
        "previous": lineage.previous,
        "count": state.count,
        "parts": numbers,
    }
    return save(arrays, metadata={"expunge": json.dumps(meta, sort_keys=True)})


def load_lineage(content: bytes, members: Members, model: bytes) -> Lineage:
    """Rebuild a lineage from its state file, its members and its published model file.

    Raises
    ------
    FolderProblem
        If the file is not a state file of this version.
    """
    try:
        arrays = load(content)
        size = int.from_bytes(content[:8], "little")
        meta = json.loads(json.loads(content[8 : 8 + size])["__metadata__"]["expunge"])
        if meta["format"] != FORMAT:
            raise FolderProblem(f"expected a state of format {FORMAT}, got {meta['format']!r}")
        policy = Policy.from_payload(meta["policy"].encode())
        parts = tuple(_part(arrays, k, numbers) for k, numbers in enumerate(meta["parts"]))
        state = State(
            policy.loss,
            policy.l2,
            policy.fit_intercept,
            policy.tolerance,
            int(meta["count"]),
            arrays["members"],
            parts,
        )
        return Lineage(
            policy,
            state,
            members,
            bytes.fromhex(meta["noiseKey"]),
            bool(meta["sparse"]),
            int(meta["release"]),
            str(meta["previous"]),
            model,
        )
    except (SafetensorError, KeyError, TypeError, ValueError) as error:
        raise FolderProblem(f"the sealed state cannot be read ({error}); restore it") from error


def dump_members(members: Members) -> bytes:
    """Return the members file."""
    return save({name: np.ascontiguousarray(a) for name, a in members.to_arrays().items()})


def map_members(path: Path, *, writable: bool) -> Members:
    """Map a members file: nothing is read before it is needed, and writes go to the file.

    Raises
    ------
    FolderProblem
        If the file is missing or damaged.
    """
    try:
        with path.open("r+b" if writable else "rb") as file:
            access = mmap.ACCESS_WRITE if writable else mmap.ACCESS_COPY
            view = mmap.mmap(file.fileno(), 0, access=access)
        size = int.from_bytes(view[:8], "little")
        header = json.loads(view[8 : 8 + size])
        return Members.from_arrays(_mapped(view, 8 + size, header))
    except (OSError, KeyError, ValueError) as error:
        raise FolderProblem(f"{path} cannot be read ({error}); restore the folder") from error


def save_lineage(lineage: Lineage, directory: Path) -> None:
    """Write a lineage into a new directory that only its owner can read.

    Raises
    ------
    FolderProblem
        If the directory exists.
    """
    try:
        directory.mkdir(mode=0o700, parents=True)
    except FileExistsError as error:
        raise FolderProblem(f"{directory} exists; choose a new name for the state") from error
    for name, content in (
        ("state.safetensors", dump_state(lineage)),
        ("members.safetensors", dump_members(lineage.members)),
        ("model.safetensors", lineage.content),
    ):
        descriptor = os.open(directory / name, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)


def open_lineage(directory: Path) -> Lineage:
    """Read what :func:`save_lineage` wrote; later deletions are kept in memory only.

    Raises
    ------
    FolderProblem
        If a file is missing or damaged.
    """
    try:
        content = (directory / "state.safetensors").read_bytes()
        model = (directory / "model.safetensors").read_bytes()
    except OSError as error:
        raise FolderProblem(f"{directory} holds no saved state ({error})") from error
    members = map_members(directory / "members.safetensors", writable=False)
    return load_lineage(content, members, model)


def _arrays(part: Part) -> dict[str, NDArray[Any]]:
    errors = part.base.errors
    return ({} if errors is None else {"errors": errors}) | {
        "weights": part.weights,
        "base": part.base.W,
        "gradient": part.base.gradient,
        "anchor": part.anchor,
        "chol": part.curvature.chol,
        "removed": part.curvature.Z,
        "inner": part.curvature.inner,
        "scale": part.curvature.scale,
    }


def _part(arrays: Mapping[str, NDArray[Any]], k: int, numbers: Mapping[str, str]) -> Part:
    found = {name: float.fromhex(text) for name, text in numbers.items()}
    W, gradient = arrays[f"{k}.base"], arrays[f"{k}.gradient"]
    base = Point(W, gradient, found["error"], found["change"], arrays.get(f"{k}.errors"))
    curvature = Curvature(
        np.asfortranarray(arrays[f"{k}.chol"]),
        arrays[f"{k}.removed"],
        arrays[f"{k}.inner"],
        scale=arrays[f"{k}.scale"],
        **{name: found[name] for name in _NUMBERS},
    )
    return Part(arrays[f"{k}.weights"], base, arrays[f"{k}.anchor"], curvature, found["bound"])


def _text(number: float) -> str:
    return float(number).hex()


_TYPES = {"U8": np.uint8, "I64": np.int64, "U64": np.uint64, "U32": np.uint32, "I32": np.int32}


def _mapped(view: mmap.mmap, start: int, header: Mapping[str, Any]) -> dict[str, NDArray[Any]]:
    arrays: dict[str, NDArray[Any]] = {}
    for name, entry in header.items():
        if name == "__metadata__":
            continue
        shape, (begin, _) = tuple(entry["shape"]), entry["data_offsets"]
        flat = np.frombuffer(
            view, _TYPES[entry["dtype"]], count=math.prod(shape), offset=start + begin
        )
        arrays[name] = flat.reshape(shape)
    return arrays
