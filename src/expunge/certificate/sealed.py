"""Recheck level (c): commitments, distance and noise against the retained rows and sealed state."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import gammainccinv, gammaincinv

from expunge.certificate import algebra, commit
from expunge.certificate.blocks import sealed_digest
from expunge.certificate.checks import Check, judge, unchecked
from expunge.certificate.distance import distance_bound
from expunge.certificate.residual import Rows
from expunge.certificate.statement import Release
from expunge.errors import ExpungeError

TAIL = 5e-7
COSINE = 5.0
RECOMPUTED = ("gaussianOutput", "discreteGaussianOutput")


@dataclass(frozen=True, repr=False, kw_only=True)
class Sealed:
    """What the operator opens to an auditor; nothing of it is in a report.

    Attributes
    ----------
    weights : (p, C) float64
        The unnoised parameters behind the release, intercept as last row.
    rows : Rows
        All retained rows, as trained on.
    salts : (n, 32) uint8
        Their salts, in the same order.
    ids : sequence of n str, or None
        Their record ids; None where the id is the hexadecimal row digest.
    deleted_leaves : (k, 32) uint8
        Leaf hashes of everything deleted so far.
    annex : bytes
        The annex whose digest is signed.
    previous_noise : (p, C) float64 or None
        Noise of the previous release, where its unnoised parameters are still held.
    """

    weights: NDArray[np.float64]
    rows: Rows
    salts: NDArray[np.uint8]
    ids: Sequence[str] | None
    deleted_leaves: NDArray[np.uint8]
    annex: bytes
    previous_noise: NDArray[np.float64] | None = None


def recheck_sealed(
    certificate: Release, published: NDArray[np.float64], sealed: Sealed
) -> list[Check]:
    """Level (c): checks ``commitments``, ``evidence`` and ``noise``.

    Parameters
    ----------
    published : (p, C) float64
        From `recheck_model`.
    """
    if sealed.weights.shape != published.shape:
        fault = f"sealed parameters {sealed.weights.shape}, published {published.shape}"
        return [_commitments(certificate, sealed), judge("evidence", [fault])]
    return [
        _commitments(certificate, sealed),
        _evidence(certificate, published, sealed),
        _noise(certificate, published, sealed),
    ]


def _commitments(certificate: Release, sealed: Sealed) -> Check:
    try:
        return judge("commitments", _commitment_faults(certificate, sealed))
    except ExpungeError as error:
        return judge("commitments", [str(error)])


def _commitment_faults(certificate: Release, sealed: Sealed) -> list[str]:
    heads = certificate.commitments
    rows = sealed.rows
    digests = commit.row_digests(rows.features, rows.target, rows.weight)
    ids = sealed.ids if sealed.ids is not None else [row.tobytes().hex() for row in digests]
    if not len(ids) == len(sealed.salts) == len(digests):
        return [f"{len(digests)} rows, {len(sealed.salts)} salts, {len(ids)} ids"]
    retained = commit.leaves(sealed.salts, ids, digests)
    faults = []
    if _repeats(sealed.salts):
        faults.append("a salt is used twice")
    union = np.concatenate([retained, sealed.deleted_leaves])
    if _repeats(union):
        return [*faults, "a record is both deleted and retained, or listed twice"]
    trees = {"retained": retained, "deleted": sealed.deleted_leaves, "training": union}
    for name, leaves in trees.items():
        stated: commit.TreeHead = getattr(heads, name)
        if commit.MerkleSet.build(leaves, heads.depth).head != stated:
            faults.append(f"the {name} records are not those of the certificate")
    return faults


def _repeats(values: NDArray[np.uint8]) -> bool:
    ordered = values[commit.ascending(values)]
    return bool((ordered[1:] == ordered[:-1]).all(axis=1).any())


def _evidence(certificate: Release, published: NDArray[np.float64], sealed: Sealed) -> Check:
    faults = []
    if sealed_digest(sealed.annex) != certificate.evidence.sealed_digest:
        faults.append("the annex is not the one that was sealed")
    evidence, rows = certificate.evidence, sealed.rows
    if evidence.mechanism not in RECOMPUTED or evidence.gate != "distance":
        return unchecked("evidence", f"no recomputation for {evidence.mechanism}/{evidence.gate}")
    try:
        parameters = certificate.algorithm.parameters
        found = distance_bound(
            rows,
            sealed.weights,
            str(parameters.get("loss")),
            algebra.number(parameters.get("l2Total")),
            sealed.weights.shape[0] > rows.width,
            l1=algebra.number(parameters.get("l1Total", "0")),
            enough=evidence.tolerance_unlearn,
        )
    except ExpungeError as error:
        return judge("evidence", [*faults, str(error)])
    if not found.bound <= evidence.tolerance_unlearn:
        faults.append(
            "the parameters are not shown to be within toleranceUnlearn of the optimum on the "
            "retained records"
        )
    return judge("evidence", faults, "distance recomputed with its rounding error")


def _noise(certificate: Release, published: NDArray[np.float64], sealed: Sealed) -> Check:
    noise = published - sealed.weights
    return judge("noise", noise_faults(noise, certificate.evidence.sigma, sealed.previous_noise))


def noise_faults(
    noise: NDArray[np.float64], sigma: float, previous: NDArray[np.float64] | None = None
) -> list[str]:
    """What speaks against noise (p, C) of standard deviation ``sigma``, drawn afresh.

    ‖noise‖²/σ² must lie between the 5e-7 and 1 − 5e-7 quantiles of χ² with p·C degrees of
    freedom, and the cosine with the previous noise times √(p·C) must not exceed 5.
    """
    size = noise.size
    energy = float(np.sum((noise / sigma) ** 2)) if sigma > 0 else math.inf
    faults = []
    if not 2 * gammaincinv(size / 2, TAIL) <= energy <= 2 * gammainccinv(size / 2, TAIL):
        faults.append("its size does not fit the stated sigma")
    if previous is not None and previous.shape == noise.shape:
        norms = float(np.linalg.norm(noise) * np.linalg.norm(previous))
        cosine = float(np.sum(noise * previous)) / norms if norms else 0.0
        alike = abs(cosine) * math.sqrt(size) > COSINE
        if alike or np.array_equal(noise, previous):
            faults.append("it resembles the noise of the previous release")
    return faults
