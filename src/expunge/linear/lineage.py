"""A model and its releases: the sealed state, who was trained on, the noise and the certificates.

:func:`begin` trains and makes release 1. :meth:`Lineage.prepare` does all that a deletion needs
and changes nothing; :meth:`Lineage.accept` makes it so. Whatever fails in between leaves the
lineage as it was. A lineage knows no files: estimators keep one in memory, the model folder on
disk.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from functools import partial

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from expunge import __version__
from expunge.certificate.blocks import (
    Algorithm,
    Commitments,
    Issuer,
    NoiseRecord,
    Request,
    Subject,
    sealed_digest,
)
from expunge.certificate.commit import row_digests
from expunge.certificate.members import Heads, Members, Removal
from expunge.certificate.policy import Policy
from expunge.certificate.statement import Certificate, ModelRelease
from expunge.errors import InvalidInput, RetainedMismatch
from expunge.linear import engine
from expunge.linear.engine import State, Trace
from expunge.linear.losses import Array
from expunge.linear.objective import Progress, silent
from expunge.linear.rows import Block, Rows, Source
from expunge.modelfile import ReleasedModel, digest, encode
from expunge.noise import Discrete, NoiseSource, release

MODEL_NAME = "model.safetensors"
NOBODY = Issuer("unnamed")
ALGORITHM = Algorithm("newton-to-tolerance", __version__)


@dataclass(frozen=True)
class Context:
    """What a statement says beside the numbers: who signs, when, where the policy is logged."""

    issuer: Issuer = NOBODY
    log_index: int | None = None
    issued_at: datetime | None = None
    requests: tuple[Request, ...] = ()


@dataclass(frozen=True, repr=False)
class Published:
    """A release: the model, its file, its statement, and the sealed annex behind the statement."""

    model: ReleasedModel
    content: bytes
    statement: Certificate | ModelRelease
    annex: bytes


@dataclass(frozen=True, repr=False)
class Step:
    """A release that has not happened yet, with the state it leads to."""

    state: State
    removal: Removal | None
    published: Published
    trace: Trace


@dataclass(repr=False)
class Lineage:
    """All releases of one model under one policy.

    Attributes
    ----------
    policy : Policy
        Public, fixed before any request.
    state : State
        Sealed.
    members : Members
        Sealed.
    noise_key : bytes
        Sealed 32-byte key of the noise tags.
    sparse : bool
        Whether rows were trained on as CSR.
    number : int
        Number of the current release, the training being 1.
    previous : str
        Payload digest of the current release's statement.
    content : bytes
        The published model file.
    matched : (rows, weights, positions), optional
        Retained rows that were matched with the members before, and their weights then.
    """

    policy: Policy
    state: State
    members: Members
    noise_key: bytes
    sparse: bool
    number: int
    previous: str
    content: bytes
    matched: tuple[Rows, Array, NDArray[np.int64]] | None = None

    def __repr__(self) -> str:
        """Say which release this is; nothing that is sealed."""
        return f"Lineage({self.policy.lineage[:8]}…, release {self.number})"

    def prepare(
        self,
        forget: Rows,
        noise: NoiseSource | Discrete,
        *,
        ids: Sequence[str] | None = None,
        retained: Source | Callable[[], Source] | None = None,
        context: Context = Context(),
        progress: Progress = silent,
    ) -> Step:
        """Work out a deletion: new state, fresh noise, certificate. Nothing changes yet.

        Parameters
        ----------
        forget : Rows
            The rows to delete, with the values, targets and weights of their training.
        noise : NoiseSource or Discrete
        ids : sequence of str, optional
            Whose rows these are; required if the model was trained with ids.
        retained : Source or callable, optional
            See :func:`expunge.linear.engine.unlearn`.
        context : Context
        progress : callable

        Raises
        ------
        UnknownRecord, AlreadyDeleted, IncompletePerson
            If the rows are not live rows of the model, or not all of a person's.
        LastOfClass, RetainedMismatch, NeedsRetainedData, ToleranceUnreachable
            See :func:`expunge.linear.engine.unlearn`.
        BudgetExhausted
            If the policy covers no further release or deletion.
        """
        removal = self.members.preview(self.digests(forget), ids)
        given = None if retained is None else self._checked(retained, removal)
        state, trace = engine.unlearn(self.state, forget, given, progress)
        model, content, record = _release(self.policy, state, noise, self.noise_key)
        annex = _annex(trace, self.policy)
        certificate = Certificate.issue(
            self.policy,
            subject=[Subject(MODEL_NAME, digest(content))],
            requests=context.requests,
            commitments=_commitments(self.members.depth, removal.after),
            algorithm=ALGORITHM,
            model_before=digest(self.content),
            noise=record,
            sealed_digest=sealed_digest(annex),
            release=self.number + 1,
            previous=self.previous,
            log_index=context.log_index,
            issuer=context.issuer,
            issued_at=context.issued_at,
        )
        return Step(state, removal, Published(model, content, certificate, annex), trace)

    def prepare_retrain(
        self,
        retained: Source,
        noise: NoiseSource | Discrete,
        *,
        context: Context = Context(),
        progress: Progress = silent,
    ) -> Step:
        """Work out a retrain from scratch on the retained rows, as the next release.

        Afterwards the sealed state is a function of the retained rows alone.

        Raises
        ------
        RetainedMismatch
            If the rows are not as many as the model retains.
        ToleranceUnreachable, BudgetExhausted
            As for a deletion.
        """
        engine.check_count(retained, self.state.count)
        state, trace = engine.fit(
            retained,
            loss=self.policy.loss,
            l2=self.policy.l2,
            l1=self.policy.l1,
            tolerance=self.policy.tolerance,
            classes=bool(len(self.state.members)),
            progress=progress,
        )
        published = _publish(
            self.policy,
            state,
            trace,
            noise,
            self.noise_key,
            self.members,
            context,
            reason="retrain",
            release=self.number + 1,
            previous=self.previous,
        )
        return Step(state, None, published, trace)

    def accept(self, step: Step) -> None:
        """Make a prepared release the current one."""
        if step.removal is not None:
            self.members.apply(step.removal)
        self.state = step.state
        self.content = step.published.content
        self.previous = step.published.statement.digest
        self.number += 1

    def _checked(
        self, retained: Source | Callable[[], Source], removal: Removal
    ) -> Callable[[], Source]:
        """Give the retained rows, when they are asked for, after matching them with the members.

        Rows of named people that come without ids were matched by the caller.
        """

        def given() -> Source:
            rows = retained() if callable(retained) else retained
            if self.members.named and getattr(rows, "ids", None) is None:
                return rows
            left = self.members.retained.flags == 1
            left[removal.positions] = False
            engine.check_count(rows, int(np.count_nonzero(left)))
            if isinstance(rows, Rows):
                self.match(rows, left)
            else:
                self._found(rows, None, left)
            return rows

        return given

    def match(self, rows: Rows, left: NDArray[np.bool_] | None = None) -> NDArray[np.int64]:
        """Return where the members are that rows stand for, −1 for weight 0: (n,).

        All rows are hashed, once for the same rows: later deletions drop rows from them. Of equal
        rows without ids another may have been dropped than was deleted; then they are hashed again.

        Parameters
        ----------
        rows : Rows
        left : (members,) bool, optional
            Which members there are to stand for; by default those that the model retains.

        Raises
        ------
        RetainedMismatch
            If a row is not one of these.
        """
        left = self.members.retained.flags == 1 if left is None else left
        if self.matched is not None:
            known, weight, positions = self.matched
            same = known.X is rows.X and known.target is rows.target and known.ids is rows.ids
            live = rows.weight > 0
            same = same and np.array_equal(rows.weight[live], weight[live])
            if same and left[positions[live]].all():
                return positions
        present = np.flatnonzero(rows.weight)
        some = rows.take(present)
        positions = np.full(len(rows.weight), -1, dtype=np.int64)
        positions[present] = self._found(some, some.ids, left)
        self.matched = rows, rows.weight.copy(), positions
        return positions

    def _found(
        self, rows: Source, ids: Sequence[str] | None, left: NDArray[np.bool_]
    ) -> NDArray[np.int64]:
        try:
            return self.members.find(self.digests(rows), ids, among=left)
        except InvalidInput as error:
            raise RetainedMismatch(
                f"the rows given as retained are not those that this deletion leaves: {error}"
            ) from error

    def digests(self, rows: Source) -> NDArray[np.uint8]:
        """Return the digests (k, 32) of the present rows, in the form of the training."""
        return digests_of(rows, sparse=self.sparse)


def begin(
    policy: Policy,
    rows: Source,
    noise: NoiseSource | Discrete,
    *,
    ids: Sequence[str] | None = None,
    context: Context = Context(),
    progress: Progress = silent,
) -> tuple[Lineage, Step]:
    """Train under a policy and prepare release 1.

    Parameters
    ----------
    policy : Policy
    rows : Source
    noise : NoiseSource or Discrete
    ids : sequence of str, optional
        Whose the rows of positive weight are; without ids, rows are known by their values.
    context : Context
    progress : callable

    Raises
    ------
    InvalidInput, ToleranceUnreachable
        See :func:`expunge.linear.engine.fit`.
    """
    progress("fitting")
    state, trace = engine.fit(
        rows,
        loss=policy.loss,
        l2=policy.l2,
        l1=policy.l1,
        tolerance=policy.tolerance,
        classes=policy.classes is not None,
        progress=progress,
    )
    progress("committing to the records")
    sparse = isinstance(rows, Rows) and bool(sp.issparse(rows.X))
    members = Members.enrol(digests_of(rows, sparse=sparse), ids)
    key = os.urandom(32)
    published = _publish(
        policy,
        state,
        trace,
        noise,
        key,
        members,
        context,
        reason="training",
        release=1,
        previous=None,
    )
    lineage = Lineage(
        policy, state, members, key, sparse, 1, published.statement.digest, published.content
    )
    return lineage, Step(state, None, published, trace)


def digests_of(rows: Source, *, sparse: bool) -> NDArray[np.uint8]:
    """Return the digests (k, 32) of the rows of positive weight, as sparse or dense rows."""
    if isinstance(rows, Rows):
        return _digests(iter([rows]), sparse)
    return np.concatenate(rows.map(partial(_digests, sparse=sparse)))


def _digests(blocks: Iterator[Block | Rows], sparse: bool) -> NDArray[np.uint8]:
    parts = [np.zeros((0, 32), np.uint8)]
    for block in blocks:
        there, X = block.weight > 0, block.X
        target, weight = block.target, block.weight
        if not there.all():
            X, target, weight = X[there], target[there], weight[there]
        if sparse != sp.issparse(X):
            X = sp.csr_array(X) if sparse else sp.csr_array(X).toarray()
        parts.append(row_digests(X, target, weight))
    return np.concatenate(parts)


def _publish(
    policy: Policy,
    state: State,
    trace: Trace,
    noise: NoiseSource | Discrete,
    key: bytes,
    members: Members,
    context: Context,
    *,
    reason: str,
    release: int,
    previous: str | None,
) -> Published:
    model, content, record = _release(policy, state, noise, key)
    annex = _annex(trace, policy)
    statement = ModelRelease.issue(
        policy,
        subject=[Subject(MODEL_NAME, digest(content))],
        commitments=_commitments(members.depth, members.heads()),
        algorithm=ALGORITHM,
        noise=record,
        sealed_digest=sealed_digest(annex),
        reason=reason,
        release=release,
        previous=previous,
        log_index=context.log_index,
        issuer=context.issuer,
        issued_at=context.issued_at,
    )
    return Published(model, content, statement, annex)


def _release(
    policy: Policy, state: State, noise: NoiseSource | Discrete, key: bytes
) -> tuple[ReleasedModel, bytes, NoiseRecord]:
    found = release(state.weights, policy.sigma, noise, key)
    model = to_model(policy, found.weights)
    return model, encode(model), NoiseRecord.of(found)


def to_model(policy: Policy, weights: Array) -> ReleasedModel:
    """Return weights (p, outputs) as the model file has them."""
    d = policy.features
    coef = np.ascontiguousarray(weights[:d].T)
    intercept = np.ascontiguousarray(weights[d]) if policy.fit_intercept else None
    return ReleasedModel(coef, intercept, policy.loss, policy.classes)


def _commitments(depth: int, heads: Heads) -> Commitments:
    return Commitments(depth, heads.training, heads.deleted, heads.retained)


def _annex(trace: Trace, policy: Policy) -> bytes:
    """Return the annex for auditors: noiseless facts, behind a random nonce."""
    facts = {name: repr(v) if isinstance(v, float) else v for name, v in asdict(trace).items()}
    facts |= {"nonce": os.urandom(32).hex(), "tolerance": repr(policy.tolerance)}
    return json.dumps(facts, sort_keys=True).encode()
