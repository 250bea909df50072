"""The sealed state of a tangent model, in memory and on disk: safetensors and JSON, no pickle."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load, save

from expunge import regular
from expunge.certificate.members import Members
from expunge.certificate.policy import Policy
from expunge.certificate.statement import Certificate, ModelRelease
from expunge.deep.core import People, find_records
from expunge.deep.quadratic import Primal, Sums
from expunge.deep.tangent_solvers import Dual, Krylov, Solver
from expunge.errors import (
    MALFORMED,
    FolderProblem,
    InvalidInput,
    RetainedMismatch,
    VerificationFailed,
)

FORMAT = "expunge-tangent/1"
_NUMBERS = ("l2", "bound")
_SUMS = ("spread", "cross", "grain")


@dataclass(frozen=True, repr=False, kw_only=True)
class State:
    """Everything later deletions need beside the data; nothing of it public.

    Attributes
    ----------
    solver : Solver
        The minimiser before noise. Secret.
    members : Members
        Who was trained on; changed in place by deletions.
    key : bytes
        Of the noise tags.
    records : (n, 32) uint8
        Digests of the records; those deleted are left out when the state is saved.
    ids : sequence of n str, or None
        The same.
    people : People
    live : (n,) bool
    number : int
        Of the current release.
    annex : bytes
    """

    solver: Solver
    members: Members
    key: bytes
    records: NDArray[np.uint8]
    ids: Sequence[str] | None
    people: People
    live: NDArray[np.bool_]
    number: int = 1
    annex: bytes = b""

    @classmethod
    def begin(cls, solver: Solver, records: NDArray[np.uint8], ids: Sequence[str] | None) -> Self:
        """Enrol the records of a training."""
        members = Members.enrol(records, ids)
        live = np.ones(len(records), dtype=np.bool_)
        return cls(
            solver=solver,
            members=members,
            key=os.urandom(32),
            records=records,
            ids=ids,
            people=People(ids or ()),
            live=live,
        )

    @property
    def depth(self) -> int:
        """Of the record trees."""
        return self.members.depth

    def names(self, index: NDArray[np.intp]) -> list[str] | None:
        """Return the ids of rows."""
        return None if self.ids is None else [self.ids[i] for i in index.tolist()]

    def places(
        self, ids: Iterable[str] | None, records: NDArray[np.uint8] | None
    ) -> NDArray[np.intp]:
        """Return the rows of people or of records; where both are given they must be the same.

        Raises
        ------
        InvalidInput
            If nothing says what to delete, or ids are missing or there were none.
        """
        if (ids is None) != (self.ids is None) or (ids is None and records is None):
            raise InvalidInput(
                "the training had ids: unlearn(ids) says what to delete"
                if self.ids is not None
                else "the training had no ids: unlearn(records=…) says what to delete"
            )
        if ids is None:
            return np.sort(find_records(self._given(records), self.records, self.live))
        index = self.people.rows(ids, self.members)
        if records is not None and not np.array_equal(records, self.records[index]):
            raise InvalidInput("the records given are not those of the people named, in order")
        return index

    def without(self, index: NDArray[np.intp], solver: Solver) -> State:
        """Return the state after a deletion; the members are changed elsewhere."""
        live = self.live.copy()
        live[index] = False
        return replace(self, solver=solver, live=live, number=self.number + 1)

    def match(self, records: NDArray[np.uint8]) -> None:
        """Raise `RetainedMismatch` unless these are the records of the training, as far as kept."""
        if len(records) != len(self.live) or not np.array_equal(
            records[self.live], self.records[self.live]
        ):
            raise RetainedMismatch(
                f"expected the {len(self.live)} records of the training in their order (those "
                "deleted may be anything): a record that is retained is missing or has changed"
            )

    @staticmethod
    def _given(records: NDArray[np.uint8] | None) -> NDArray[np.uint8]:
        if records is None:
            raise InvalidInput("no records were given")
        return records


def save_state(
    state: State,
    policy: Policy,
    statement: ModelRelease | Certificate,
    content: bytes,
    directory: Path,
) -> None:
    """Write a state to a new directory that only its owner can read.

    Raises
    ------
    FolderProblem
        If the directory exists.
    """
    arrays, numbers = _dumped(state.solver)
    arrays |= {f"members.{name}": a for name, a in state.members.to_arrays().items()}
    records = np.where(state.live[:, None], state.records, 0).astype(np.uint8)
    arrays |= {"records": records, "live": state.live.astype(np.uint8)}
    ids = state.ids
    if ids is not None:
        ids = [name if kept else "" for name, kept in zip(ids, state.live, strict=True)]
    meta = {
        "format": FORMAT,
        "solver": numbers,
        "policy": policy.to_payload().decode(),
        "statement": statement.payload.decode(),
        "key": state.key.hex(),
        "ids": ids,
        "number": state.number,
        "annex": state.annex.decode(),
    }
    try:
        directory.mkdir(mode=0o700, parents=True)
    except FileExistsError as error:
        raise FolderProblem(f"{directory} exists; choose a new name for the state") from error
    for name, raw in (
        ("state.safetensors", save({k: np.ascontiguousarray(a) for k, a in arrays.items()})),
        ("state.json", json.dumps(meta).encode()),
        ("model.safetensors", content),
    ):
        descriptor = os.open(directory / name, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            file.write(raw)


def load_state(
    directory: Path, device: torch.device
) -> tuple[State, Policy, ModelRelease | Certificate, bytes]:
    """Read what `save_state` wrote, the minimiser to ``device``.

    Raises
    ------
    FolderProblem
        If a file is missing or damaged.
    """
    try:
        names = ("state.safetensors", "state.json", "model.safetensors")
        raw = [regular.read(directory / name, regular.LARGE) for name in names]
        arrays, meta, content = load(raw[0]), json.loads(raw[1]), raw[2]
        if meta["format"] != FORMAT:
            raise FolderProblem(f"expected a state of {FORMAT}, got {meta['format']!r}")
        prefix = "members."
        members = {k[len(prefix) :]: a for k, a in arrays.items() if k.startswith(prefix)}
        tensors = {
            k: torch.from_numpy(a.copy()).to(device)
            for k, a in arrays.items()
            if a.dtype == np.float64
        }
        ids, number = meta["ids"], int(meta["number"])
        kind = ModelRelease if number == 1 else Certificate
        state = State(
            solver=_rebuilt(tensors, meta["solver"]),
            members=Members.from_arrays(members),
            key=bytes.fromhex(meta["key"]),
            records=arrays["records"],
            ids=ids,
            people=People(ids or ()),
            live=arrays["live"].astype(np.bool_),
            number=number,
            annex=meta["annex"].encode(),
        )
        policy = Policy.from_payload(meta["policy"].encode())
        return state, policy, kind.from_payload(meta["statement"].encode()), content
    except OSError as error:
        raise FolderProblem(f"{directory} holds no saved state ({error})") from error
    except (SafetensorError, VerificationFailed, *MALFORMED) as error:
        raise FolderProblem(f"{directory} cannot be read ({error}); restore it") from error


def _dumped(solver: Solver) -> tuple[dict[str, NDArray[Any]], dict[str, Any]]:
    if isinstance(solver, Primal):
        sums = solver.sums
        arrays = {"high": sums.high, "low": sums.low, "V": solver.V, "v": solver.v}
        numbers = {name: getattr(sums, name).hex() for name in _SUMS}
        numbers |= {name: getattr(solver, name).hex() for name in _NUMBERS}
    elif isinstance(solver, Dual):
        arrays = {"inverse": solver.inverse, "answers": solver.answers, "v": solver.v}
        numbers = {name: getattr(solver, name).hex() for name in _NUMBERS}
    else:
        arrays, numbers = {"v": solver.v}, {"bound": solver.bound.hex()}
    held = {name: array.detach().cpu().numpy() for name, array in arrays.items()}
    return held, {"kind": type(solver).__name__, **numbers}


def _rebuilt(arrays: Mapping[str, torch.Tensor], numbers: Mapping[str, Any]) -> Solver:
    real = {k: float.fromhex(n) for k, n in numbers.items() if k != "kind"}
    if numbers["kind"] == "Krylov":
        return Krylov(arrays["v"], real["bound"])
    if numbers["kind"] == "Dual":
        return Dual(arrays["inverse"], arrays["answers"], real["l2"], arrays["v"], real["bound"])
    if numbers["kind"] != "Primal":
        raise ValueError(f"unknown solver {numbers['kind']!r}")
    sums = Sums(arrays["high"], arrays["low"], *(real[name] for name in _SUMS))
    return Primal(sums, real["l2"], arrays["V"], arrays["v"], real["bound"])
