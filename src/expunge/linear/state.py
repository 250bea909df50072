"""The sealed state on disk: two safetensors files, secret, without pickle.

``state.safetensors`` holds the engine's arrays and, as JSON in its metadata, the policy, the key of
the noise tags and the place in the chain of releases. It is rewritten at every release. Rows of
deleted people, which the engine keeps beside its factor for speed, have no place in it: they are
folded into the factor first, and where what is left of that cannot be certified, it is left out.
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

from expunge import regular
from expunge.certificate.members import Members
from expunge.certificate.policy import Policy
from expunge.errors import MALFORMED, FolderProblem, ToleranceUnreachable, VerificationFailed
from expunge.linear.curvature import Curvature
from expunge.linear.deletion import Part
from expunge.linear.descent import Preconditioner
from expunge.linear.engine import State
from expunge.linear.lineage import Lineage
from expunge.linear.objective import Point

FORMAT = "expunge-state/1"
_MOST = 1 << 36
"""Most bytes of a state (one factor a class) and of the members."""
_NUMBERS = ("kappa", "leverage", "radius", "slack", "row_error", "unit", "ridge")


def dump_state(lineage: Lineage) -> bytes:
    """Return the state file of a lineage, the members and the model file apart."""
    state = lineage.state
    arrays: dict[str, NDArray[Any]] = {"members": state.members}
    numbers = []
    for k, part in enumerate(state.parts):
        found, curvature = _curvature_arrays(part.curvature)
        kept = _point_arrays(part) | found
        arrays |= {f"{k}.{name}": np.ascontiguousarray(a) for name, a in kept.items()}
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
        shapes = [part.weights.shape for part in parts]
        if {p for p, _ in shapes} != {policy.features + policy.fit_intercept} or (
            sum(c for _, c in shapes) != policy.outputs
        ):
            raise ValueError(f"parameters of shapes {shapes} are not those of the policy")
        state = State(
            policy.loss,
            policy.l2,
            policy.l1,
            policy.fit_intercept,
            policy.tolerance,
            int(meta["count"]),
            arrays["members"],
            parts,
        )
        noise_key = bytes.fromhex(meta["noiseKey"])
        if len(noise_key) != 32:
            raise ValueError(f"expected a noise key of 32 bytes, got {len(noise_key)}")
        return Lineage(
            policy,
            state,
            members,
            noise_key,
            bool(meta["sparse"]),
            int(meta["release"]),
            str(meta["previous"]),
            model,
        )
    except (SafetensorError, VerificationFailed, *MALFORMED) as error:
        raise FolderProblem(f"the sealed state cannot be read ({error}); restore it") from error


def dump_members(members: Members) -> bytes:
    """Return the members file."""
    return save({name: np.ascontiguousarray(a) for name, a in members.to_arrays().items()})


def map_members(path: Path, *, writable: bool) -> Members:
    """Map a members file: nothing is read before it is needed.

    Writes go to the file if it is ``writable``, and are forgotten otherwise.

    Raises
    ------
    FolderProblem
        If the file is missing or damaged.
    """
    try:
        file = regular.descriptor(path, _MOST, writable=writable)
        try:
            access = mmap.ACCESS_WRITE if writable else mmap.ACCESS_COPY
            view = mmap.mmap(file, 0, access=access)
        finally:
            os.close(file)
        size = int.from_bytes(view[:8], "little")
        header = json.loads(view[8 : 8 + size])
        return Members.from_arrays(_mapped(view, 8 + size, header))
    except OSError as error:
        raise FolderProblem(f"cannot read {path}: {error.strerror}") from error
    except MALFORMED as error:
        raise FolderProblem(f"{path} cannot be read ({error}); restore the folder") from error


def save_lineage(lineage: Lineage, estimator: Mapping[str, Any], directory: Path) -> None:
    """Write a lineage into a new directory that only its owner can read.

    ``estimator`` is what an estimator needs beside it, able to be JSON.

    Raises
    ------
    FolderProblem
        If the directory exists.
    """
    state = dump_state(lineage)
    try:
        directory.mkdir(mode=0o700, parents=True)
    except FileExistsError as error:
        raise FolderProblem(f"{directory} exists; choose a new name for the state") from error
    for name, content in (
        ("state.safetensors", state),
        ("members.safetensors", dump_members(lineage.members)),
        ("model.safetensors", lineage.content),
        ("estimator.json", json.dumps(estimator).encode()),
    ):
        descriptor = os.open(directory / name, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)


def open_lineage(directory: Path) -> tuple[Lineage, dict[str, Any]]:
    """Read what :func:`save_lineage` wrote; later deletions are kept in memory only.

    Raises
    ------
    FolderProblem
        If a file is missing or damaged.
    """
    try:
        with os.fdopen(regular.descriptor(directory / "state.safetensors", _MOST), "rb") as file:
            content = file.read()
        model = regular.read(directory / "model.safetensors", regular.LARGE)
        estimator = json.loads(regular.read(directory / "estimator.json", regular.LARGE))
        if not isinstance(estimator, dict):
            raise ValueError("estimator.json holds no object")
    except (OSError, ValueError, RecursionError) as error:
        raise FolderProblem(f"{directory} holds no saved state ({error})") from error
    members = map_members(directory / "members.safetensors", writable=False)
    return load_lineage(content, members, model), estimator


def _point_arrays(part: Part) -> dict[str, NDArray[Any]]:
    errors = part.base.errors
    return ({} if errors is None else {"errors": errors}) | {
        "weights": part.weights,
        "base": part.base.W,
        "gradient": part.base.gradient,
        "anchor": part.anchor,
    }


def _curvature_arrays(
    kept: Curvature | Preconditioner | None,
) -> tuple[dict[str, NDArray[Any]], dict[str, str]]:
    """Return arrays and numbers; a preconditioner has no numbers, nothing neither."""
    if isinstance(kept, Preconditioner):
        found: dict[str, NDArray[Any]] = {"dense": kept.matrix}
        if kept.heavy is not None and kept.diagonal is not None:
            found |= {"heavy": kept.heavy, "diagonal": kept.diagonal}
        return found, {}
    try:
        folded = None if kept is None else kept.folded()
    except ToleranceUnreachable:
        folded = None
    if folded is None:
        return {}, {}
    numbers = {name: _text(getattr(folded, name)) for name in _NUMBERS}
    return {"chol": folded.chol, "scale": folded.scale}, numbers


def _part(arrays: Mapping[str, NDArray[Any]], k: int, numbers: Mapping[str, str]) -> Part:
    found = {name: float.fromhex(text) for name, text in numbers.items()}
    shape = arrays[f"{k}.weights"].shape
    weights, W, gradient, anchor = (
        _real(arrays[f"{k}.{name}"], shape) for name in ("weights", "base", "gradient", "anchor")
    )
    errors = arrays.get(f"{k}.errors")
    base = Point(
        W,
        gradient,
        found["error"],
        found["change"],
        None if errors is None else _real(errors, shape),
    )
    return Part(weights, base, anchor, _kept(arrays, k, found), found["bound"])


def _kept(
    arrays: Mapping[str, NDArray[Any]], k: int, found: Mapping[str, float]
) -> Curvature | Preconditioner | None:
    shape = arrays[f"{k}.weights"].shape
    if f"{k}.dense" in arrays:
        heavy = arrays.get(f"{k}.heavy")
        size = shape[0] if heavy is None else len(heavy)
        matrix = np.asfortranarray(_real(arrays[f"{k}.dense"], (size, size)))
        if heavy is None:
            return Preconditioner(matrix)
        if heavy.dtype != np.int64 or not np.isin(heavy, np.arange(shape[0])).all():
            raise ValueError("heavy coordinates must be coordinates")
        return Preconditioner(matrix, heavy, _real(arrays[f"{k}.diagonal"], shape))
    if "kappa" not in found:
        return None
    q = len(arrays[f"{k}.chol"])
    return Curvature(
        np.asfortranarray(_real(arrays[f"{k}.chol"], (q, q))),
        np.zeros((q, 0)),
        np.zeros((0, 0)),
        eta=0.0,
        scale=_real(arrays[f"{k}.scale"], (q,)),
        **{name: found[name] for name in _NUMBERS},
    )


def _real(array: NDArray[Any], shape: tuple[int, ...]) -> NDArray[np.float64]:
    if array.dtype != np.float64 or array.shape != shape or not np.isfinite(array).all():
        raise ValueError(f"expected finite float64 {shape}, got {array.dtype} {array.shape}")
    return array


def _text(number: float) -> str:
    return float(number).hex()


_TYPES = {"U8": np.uint8, "I64": np.int64, "U64": np.uint64, "U32": np.uint32, "I32": np.int32}


def _mapped(view: mmap.mmap, start: int, header: Mapping[str, Any]) -> dict[str, NDArray[Any]]:
    arrays: dict[str, NDArray[Any]] = {}
    for name, entry in header.items():
        if name == "__metadata__":
            continue
        shape, (begin, _) = tuple(entry["shape"]), entry["data_offsets"]
        if begin < 0 or any(length < 0 for length in shape):
            raise ValueError(f"array {name!r} lies outside the file")
        flat = np.frombuffer(
            view, _TYPES[entry["dtype"]], count=math.prod(shape), offset=start + begin
        )
        arrays[name] = flat.reshape(shape)
    return arrays
