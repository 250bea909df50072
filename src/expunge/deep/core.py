"""What a model is built on: a frozen core, which bytes it consists of and whom it was trained on.

A deletion from what is trained on top is worth nothing if the deleted person is in the core too.
Where the ids of the core's records are given, that is checked; where they are not (a backbone from
somewhere else), it is an assumption, and every certificate says so.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from expunge.certificate.members import Members
from expunge.certificate.policy import Policy, tolerance_of
from expunge.deep.trees import Batch, leaves
from expunge.errors import AlreadyDeleted, InvalidInput, UnknownRecord
from expunge.guarantee import Tag, Unit
from expunge.noise import Discrete, NoiseSource, source_of


class CoreOverlap(InvalidInput):
    """A user is among those the core was trained on: nothing on top of it can forget them."""


def fingerprint(module: nn.Module) -> str:
    """Return the SHA-256 of a module's structure, parameters and buffers, hex.

    Layers count by name, class and `extra_repr`, tensors by name, type, shape and bytes; modes and
    gradients do not count.
    """
    found = hashlib.sha256()
    for name, layer in module.named_modules():
        kind = type(layer)
        _add(found, f"{name}\0{kind.__module__}.{kind.__qualname__}\0{layer.extra_repr()}")
    named = [
        *module.named_parameters(remove_duplicate=False),
        *module.named_buffers(remove_duplicate=False),
    ]
    for name, tensor in named:
        _add(found, f"{name}\0{tensor.dtype}\0{tuple(tensor.shape)}")
        found.update(_bytes(tensor))
    return found.hexdigest()


def record_digests(batch: Batch) -> NDArray[np.uint8]:
    """Return a SHA-256 digest of every record's inputs and target, types included: (b, 32)."""
    inputs, targets = batch
    tensors = [*leaves(inputs), targets]
    form = "\0".join(f"{t.dtype}{tuple(t.shape[1:])}" for t in tensors).encode()
    rows = [_bytes(t) for t in tensors]
    width = [len(raw) // len(targets) for raw in rows]
    found = bytearray()
    for i in range(len(targets)):
        one = hashlib.sha256(form)
        for raw, size in zip(rows, width, strict=True):
            one.update(raw[i * size : (i + 1) * size])
        found += one.digest()
    return np.frombuffer(bytes(found), np.uint8).reshape(-1, 32)


def separation(
    ids: Sequence[str] | None, core_ids: Collection[str] | None
) -> tuple[Tag, dict[str, Any] | None]:
    """Return how it is known that no user is in the core, and what a policy says of the core.

    Parameters
    ----------
    ids : sequence of str, or None
        Of the users' records.
    core_ids : collection of str, or None
        Of the records that the core was trained on; None if that is not known.

    Raises
    ------
    CoreOverlap
        If an id is in both.
    InvalidInput
        If there are core ids and no ids to compare them with.

    Examples
    --------
    >>> separation(["ann", "bob"], None)
    (<Tag.assumed: 'assumed'>, None)
    >>> separation(["ann", "bob"], {"carol"})[0]
    <Tag.enforced: 'enforced'>
    """
    if core_ids is None:
        return Tag.assumed, None
    if ids is None:
        raise InvalidInput(
            "the core's ids can be compared with ids only: give every record an id, as in "
            "fit(…, ids=…); expunge.deep.problem.row_ids makes ids from contents, for both"
        )
    core = set(core_ids)
    both = core.intersection(ids)
    if both:
        raise CoreOverlap(
            f"{len(both)} of the users' ids, such as {min(both)!r}, are among those that the core "
            "was trained on; what is deleted on top of it would stay in the core: leave them out "
            "on one side"
        )
    digest = hashlib.sha256()
    for name in sorted(core):
        _add(digest, name)
    return Tag.enforced, {"records": len(core), "ids": digest.hexdigest()}


class People:
    """Whose the rows of a training are; all rows of a person are deleted together.

    Parameters
    ----------
    ids : sequence of n str
    """

    def __init__(self, ids: Sequence[str]) -> None:
        self._rows: dict[str, list[int]] = {}
        for i, name in enumerate(ids):
            self._rows.setdefault(name, []).append(i)

    def rows(self, asked: str | Iterable[str], members: Members) -> NDArray[np.intp]:
        """Return the rows (k,) of people.

        Raises
        ------
        UnknownRecord, AlreadyDeleted
            If one of them was never trained on, or has been deleted.
        """
        wanted = {asked} if isinstance(asked, str) else set(asked)
        if not wanted:
            raise InvalidInput("nobody was named to be deleted")
        found: list[int] = []
        for name in sorted(wanted):
            status = members.status(name)
            if status.deleted and not status.live:
                raise AlreadyDeleted(f"id {name!r} has been deleted before")
            if not status.live:
                raise UnknownRecord(f"id {name!r} was never trained on")
            found += self._rows[name]
        return np.array(sorted(found), dtype=np.intp)


def find_records(
    records: NDArray[np.uint8], known: NDArray[np.uint8], live: NDArray[np.bool_]
) -> NDArray[np.intp]:
    """Return the rows (k,) of ``records`` (k, 32) among the ``live`` rows of ``known`` (n, 32).

    Records that are the same get different rows.

    Raises
    ------
    UnknownRecord
        If a record is not there, or not as often as it is asked for.
    """
    wanted = {digest.tobytes() for digest in records}
    places: dict[bytes, list[int]] = {}
    for i in np.flatnonzero(live).tolist():
        if (name := known[i].tobytes()) in wanted:
            places.setdefault(name, []).append(i)
    found = []
    for digest in records:
        left = places.get(digest.tobytes())
        if not left:
            raise UnknownRecord(
                "a record was never trained on with these values, or it has been deleted as often "
                "as it was"
            )
        found.append(left.pop(0))
    return np.array(found, dtype=np.intp)


def policy_for(claim: Mapping[str, Any], noise: str, *, named: bool, **rest: Any) -> Policy:
    """Return a policy with the largest tolerance that its noise covers.

    Parameters
    ----------
    claim : mapping
        ``epsilon``, ``delta``, ``releases`` and ``sigma``.
    noise : str
        Name of the noise source.
    named : bool
        Whether records have ids, so that people are deleted.
    rest
        Other fields of a `Policy`.
    """
    size = (rest["features"] + rest["fit_intercept"]) * rest["outputs"]
    numbers = claim["sigma"], claim["epsilon"], claim["delta"], claim["releases"]
    tolerance = tolerance_of(noise, *numbers, size)
    unit: Unit = "person" if named else "record"
    return Policy(**claim, **rest, tolerance=tolerance, unit=unit, noise=noise)


def source_for(policy: Policy, seed: int | None, release: int) -> NoiseSource | Discrete:
    """Return the noise source of a policy for a release; the seed is used if the policy says so."""
    kind = "discrete" if policy.discrete else "gaussian"
    return source_of(kind, seed if policy.noise == "seeded" else None, release)


def same_device(module: nn.Module) -> torch.device:
    """Return where a module's parameters are, or the CPU for one that has none."""
    first = next(module.parameters(), None)
    return torch.device("cpu") if first is None else first.device


def _add(found: Any, text: str) -> None:
    raw = text.encode()
    found.update(len(raw).to_bytes(8, "little") + raw)


def _bytes(tensor: Tensor) -> bytes:
    flat = tensor.detach().cpu().contiguous().reshape(-1)
    return flat.view(torch.uint8).numpy().tobytes()
