"""Releases of a tangent model: noise, statements, and the recheck of a deletion.

Policy, members, noise and statements are those of every certificate of expunge. The recheck
recomputes the residual on the retained records by reverse mode alone, twice over, where the model
itself uses forward mode.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from expunge import __version__
from expunge.certificate import commit
from expunge.certificate.blocks import (
    Algorithm,
    Commitments,
    NoiseRecord,
    Subject,
    sealed_digest,
)
from expunge.certificate.checks import Check, judge
from expunge.certificate.members import Heads
from expunge.certificate.policy import Policy
from expunge.certificate.sealed import noise_faults
from expunge.certificate.statement import Certificate, ModelRelease
from expunge.deep.batches import Batches, as_batches
from expunge.deep.core import fingerprint, record_digests
from expunge.deep.jacobian import CHUNK, Tangent
from expunge.deep.quadratic import ROUNDING, Objective, answers
from expunge.deep.tangent_solvers import Solver
from expunge.errors import InvalidInput
from expunge.modelfile import ReleasedModel, decode, digest, encode
from expunge.noise import Discrete, NoiseSource, release

MODEL_NAME = "model.safetensors"
KIND = "tangentModel"
ALGORITHM = Algorithm("tangent-residual-to-tolerance", __version__)


@dataclass(frozen=True, repr=False)
class Chain:
    """Where in its lineage a release stands: its number, and what came before."""

    number: int = 1
    previous: str | None = None
    content: bytes = b""


@dataclass(frozen=True, repr=False)
class Published:
    """A release: the published file, its statement, the sealed annex."""

    content: bytes
    statement: ModelRelease | Certificate
    annex: bytes


def publish(
    policy: Policy,
    solver: Solver,
    source: NoiseSource | Discrete,
    key: bytes,
    heads: Heads,
    depth: int,
    chain: Chain,
) -> Published:
    """Noise a minimiser and state the release: number 1 as a training, later ones as deletions.

    Parameters
    ----------
    solver : Solver
        With a bound of at most the policy's tolerance.
    heads, depth
        Of the record trees after the deletion.
    chain : Chain
        Number of this release, and digest and file of the one before.
    """
    weights = solver.v.detach().cpu().numpy().astype(np.float64)[:, None]
    noised = release(weights, policy.sigma, source, key)
    content = encode(ReleasedModel(np.ascontiguousarray(noised.weights.T), None, "squared", None))
    facts = {"distance": repr(solver.bound), "tolerance": repr(policy.tolerance)}
    annex = json.dumps({**facts, "nonce": os.urandom(32).hex()}, sort_keys=True).encode()
    subject = [Subject(MODEL_NAME, digest(content))]
    trees = Commitments(depth, heads.training, heads.deleted, heads.retained)
    record, sealed = NoiseRecord.of(noised), sealed_digest(annex)
    statement: ModelRelease | Certificate
    if chain.previous is None:
        statement = ModelRelease.issue(
            policy,
            subject=subject,
            commitments=trees,
            algorithm=ALGORITHM,
            noise=record,
            sealed_digest=sealed,
        )
    else:
        statement = Certificate.issue(
            policy,
            subject=subject,
            requests=(),
            commitments=trees,
            algorithm=ALGORITHM,
            model_before=digest(chain.content),
            noise=record,
            sealed_digest=sealed,
            release=chain.number,
            previous=chain.previous,
        )
    return Published(content, statement, annex)


def read(content: bytes, size: int) -> NDArray[np.float64]:
    """Return the published ``v`` (p,) of a model file.

    Raises
    ------
    InvalidInput
        If the file is not of ``size`` coordinates.
    """
    coef = decode(content).coef
    if coef.shape != (1, size):
        raise InvalidInput(f"expected a model file of {size} coordinates, got {coef.shape}")
    found: NDArray[np.float64] = coef[0]
    return found


@dataclass(frozen=True, repr=False, kw_only=True)
class Opened:
    """What an auditor is shown of a tangent model in private.

    Attributes
    ----------
    v : (p,) tensor
        The minimiser before noise.
    data : Batches
        All retained records, as trained on.
    salts : (n, 32) uint8
        Theirs, in the same order.
    ids : sequence of n str, or None
    deleted_leaves : (k, 32) uint8
    annex : bytes
    """

    v: Tensor = field(repr=False)
    data: Batches
    salts: NDArray[np.uint8]
    ids: Sequence[str] | None
    deleted_leaves: NDArray[np.uint8]
    annex: bytes


def objective_of(policy: Policy, tangent: Tangent, data: Any) -> Objective:
    """Return the objective of a policy on records as they were trained on.

    Raises
    ------
    InvalidInput
        If the policy is not of a tangent model, or the targets are not such as it has.
    """
    known = feature_map(policy)
    batches = as_batches(data, device=tangent.device)
    rows = batches.take(range(batches.rows))
    y = answers(rows[1], int(known["outputs"]), float(known["alpha"]))
    return Objective(tangent, (rows[0], y), policy.l2)


def feature_map(policy: Policy) -> dict[str, Any]:
    """Return the feature map of a tangent model's policy.

    Raises
    ------
    InvalidInput
        If it is that of something else.
    """
    known: dict[str, Any] = policy.feature_map or {}
    if known.get("kind") != KIND:
        raise InvalidInput("the policy is not of a tangent model")
    return known


def recheck(
    certificate: ModelRelease | Certificate,
    policy: Policy,
    content: bytes,
    network: nn.Module,
    opened: Opened,
) -> list[Check]:
    """Recheck a release against core and retained records.

    Signature, numbers and file are checked by `expunge.certificate.recheck`; this is the rest:
    ``core``, ``commitments``, ``evidence`` (the residual, recomputed) and ``noise``.

    Parameters
    ----------
    network : nn.Module
        The core, from whoever trained it.

    Returns
    -------
    list of Check
        What is wrong is a failed check; only input of another form raises.
    """
    known, evidence = feature_map(policy), certificate.evidence
    tangent = Tangent(network, known["params"])
    core = []
    if policy.digest != certificate.policy.sha256:
        core.append("the policy is not the one that the certificate names")
    if fingerprint(tangent.network.module) != known["backbone"]:
        core.append("the core is not the one of the policy: weights, buffers or layers differ")
    objective = objective_of(policy, tangent, opened.data)
    wrong = []
    if sealed_digest(opened.annex) != evidence.sealed_digest:
        wrong.append("the annex is not the one that was sealed")
    if not independent_distance(objective, opened.v) <= evidence.tolerance_unlearn:
        wrong.append(
            "the parameters are not shown to be within toleranceUnlearn of the minimiser on the "
            "retained records"
        )
    noise = read(content, len(opened.v)) - opened.v.cpu().numpy()
    return [
        judge("core", core),
        judge("commitments", _commitment_faults(certificate, opened)),
        judge("evidence", wrong, "residual recomputed in reverse mode"),
        judge("noise", noise_faults(noise[:, None], evidence.sigma)),
    ]


def independent_distance(objective: Objective, v: Tensor) -> float:
    """Return a bound of ``‖v − v*‖`` without forward mode: Jv as the derivative of Jᵀu in u."""
    tangent, leaf = objective.tangent, objective.tangent.at.detach().requires_grad_()
    total, scale = objective.l2 * v, objective.l2 * float(v.norm())
    with tangent.still():
        for inputs, y in objective.data.chunks(CHUNK // 2 + 1):
            f = tangent.outputs(leaf, inputs)
            u = torch.zeros_like(f).requires_grad_()
            (pulled,) = torch.autograd.grad(f, leaf, u, create_graph=True)
            (moved,) = torch.autograd.grad(pulled, u, v, retain_graph=True)
            (part,) = torch.autograd.grad(f, leaf, (f + moved - y).detach())
            total = total + part
            scale += float(part.norm())
    return (float(total.norm()) * (1 + 1e-12) + ROUNDING * scale) / objective.l2


def digests_of(data: Any) -> NDArray[np.uint8]:
    """Return the digests (n, 32) of all records of some batches."""
    return np.concatenate([record_digests(batch) for batch in data])


def _commitment_faults(certificate: ModelRelease | Certificate, opened: Opened) -> list[str]:
    heads, digests = certificate.commitments, digests_of(opened.data)
    ids = opened.ids if opened.ids is not None else [row.tobytes().hex() for row in digests]
    if not len(ids) == len(opened.salts) == len(digests):
        return [f"{len(digests)} records, {len(opened.salts)} salts, {len(ids)} ids"]
    retained = commit.leaves(opened.salts, ids, digests)
    union = np.concatenate([retained, opened.deleted_leaves])
    if len(np.unique(union, axis=0)) != len(union):
        return ["a record is both deleted and retained, or listed twice"]
    trees = {"retained": retained, "deleted": opened.deleted_leaves, "training": union}
    return [
        f"the {name} records are not those of the certificate"
        for name, leaves in trees.items()
        if commit.MerkleSet.build(leaves, heads.depth).head != getattr(heads, name)
    ]
