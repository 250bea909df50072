"""A linearised network that can forget exactly: a frozen core and a quadratic on its tangent.

``f(x) + J(x)v`` with f and J those of a core that was trained on other people's data, and ``v`` the
minimiser of ``½ Σ ‖f(x_i) + J(x_i)v − y_i‖² + (l2/2)‖v‖²`` over the users' records, ``y = alpha ·
one-hot`` for classes. The objective is quadratic, so a deletion is exact up to a residual, which is
measured; published is ``v`` with noise that covers a residual budget fixed before.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from expunge.certificate.members import Heads
from expunge.certificate.policy import Policy
from expunge.certificate.statement import Certificate, ModelRelease
from expunge.deep.batches import Batches, as_batches
from expunge.deep.core import fingerprint, policy_for, same_device, separation, source_for
from expunge.deep.jacobian import CHUNK, ServedTangent, Tangent
from expunge.deep.tangent_release import (
    KIND,
    Chain,
    Opened,
    digests_of,
    feature_map,
    objective_of,
    publish,
    read,
)
from expunge.deep.tangent_solvers import Krylov, Solver, solver_of
from expunge.deep.tangent_state import State, load_state, save_state
from expunge.deep.trees import cut
from expunge.errors import InvalidInput, NeedsRetainedData, ToleranceUnreachable
from expunge.guarantee import Tag
from expunge.noise import Discrete, NoiseSource, source_of

Array = NDArray[np.float64]


class TangentModel:
    """The linearisation of a network at core weights, trained on users, who can be forgotten.

    Parameters
    ----------
    network : nn.Module
        The core, already trained, on core data only. It is copied to float64 and never changed.
        Outputs (b, c).
    params : str or sequence of str, optional
        Which parameters have a tangent, as of `expunge.deep.network.view`: a last layer
        (``"head.*"``), the adapters of your own module, or everything.
    alpha : float
        α of the one-hot targets; weighs the users' evidence against the core's. Choose on core
        data.
    l2 : float
        Λ > 0 in units of the *sum* over records, constant under deletions.
    method : {"auto", "primal", "dual", "cg"}
        Gram matrix for few parameters (p ≤ 4096) or a last layer, kernel for few answers
        (n·c ≤ 4096), conjugate gradients otherwise.
    core_ids : collection of str, optional
        Ids of the core's records, checked against the users'. Without them the grade is
        ``conditional``.
    preprocessing : mapping, optional
        What is done to records before; goes into every certificate.
    epsilon, delta, releases, sigma, noise, random_state
        As for `expunge.linear.LogisticRegression`.

    Attributes
    ----------
    policy : Policy
    statement : ModelRelease or Certificate
        Of the current release.
    content : bytes
        The published file: v (p,) with noise.

    References
    ----------
    Golatkar et al., "Mixed-privacy forgetting in deep networks", 2021; Achille et al., "LQF: linear
    quadratic fine-tuning", 2020.

    Examples
    --------
    >>> x = torch.randn(40, 4, generator=torch.Generator().manual_seed(0))
    >>> y = (x[:, 0] > 0).long()
    >>> core = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 2))
    >>> model = TangentModel(core, core_ids=["somebody else"])
    >>> certificate = model.fit((x, y), ids=[f"p{i // 2}" for i in range(40)]).unlearn(["p3"])
    >>> certificate.grade.value, certificate.commitments.deleted.count
    ('certified', 2)
    """

    policy: Policy
    statement: ModelRelease | Certificate
    content: bytes

    def __init__(
        self,
        network: nn.Module,
        params: str | Sequence[str] | None = None,
        *,
        alpha: float = 5.0,
        l2: float = 1.0,
        method: str = "auto",
        core_ids: Collection[str] | None = None,
        preprocessing: Mapping[str, Any] | None = None,
        epsilon: float = 1.0,
        delta: float = 1e-6,
        releases: int = 1000,
        sigma: float = 1e-3,
        noise: str = "gaussian",
        random_state: int | None = None,
    ) -> None:
        self.tangent = Tangent(network, params)
        self.alpha, self.l2, self.method = float(alpha), float(l2), method
        self.core_ids, self.preprocessing = core_ids, dict(preprocessing or {})
        self.claim = {"epsilon": epsilon, "delta": delta, "releases": releases, "sigma": sigma}
        self.noise, self.random_state = noise, random_state
        self._data: Batches | None = None
        self._held: State | None = None

    def __repr__(self) -> str:
        made = "not fitted" if self._held is None else f"release {self._held.number}"
        return f"TangentModel({self.tangent}, {made})"

    def __getstate__(self) -> dict[str, Any]:
        """Refuse copies: two holders of one sealed state would spend one budget twice."""
        raise TypeError("a tangent model holds a sealed state: move it with save and load")

    def fit(self, data: Any, *, ids: Sequence[str] | None = None) -> Self:
        """Solve for all users, and publish release 1. The data are read again at deletions.

        Parameters
        ----------
        data : what `expunge.deep.batches.as_batches` takes
            Integer classes 0 … c−1, or float64 targets (b, c) of a regression.
        ids : sequence of str, optional
            Whose records these are. Without ids a record is known by its values.

        Raises
        ------
        CoreOverlap
            If one of the ids is among the core's.
        UnsupportedModel, InvalidInput
            If the network, or the data, are not such as a sum over records can be made of.
        ToleranceUnreachable
            If the residual budget cannot be met in float64.
        """
        names = None if ids is None else list(ids)
        tag, core = separation(names, self.core_ids)
        batches = as_batches(data, device=self.tangent.device)
        first = cut(next(iter(batches)), 0, 8)
        grain = self.tangent.probe(first[0], len(first[1]))
        records = digests_of(batches)
        source = source_of(self.noise, self.random_state)
        policy = self._policy(source.name, len(records), names is not None, (tag, core))
        objective = objective_of(policy, self.tangent, batches)
        solver = solver_of(self.method, objective, grain)
        if solver.bound > policy.tolerance:
            solver = solver.settle(objective, policy.tolerance)
        self.policy, self._data = policy, batches
        state = State.begin(solver, records, names)
        self._publish(state, state.members.heads(), source)
        return self

    def unlearn(self, ids: Iterable[str] | None = None, *, records: Any = None) -> Certificate:
        """Delete people, or single records, and publish a new ``v``.

        Parameters
        ----------
        ids : iterable of str, optional
            Whose records are deleted, all of them; if the training had ids.
        records : data, optional
            The deleted records as they were trained on: if the training had no ids, or if the data
            are not attached (then with the ``ids``, in the order of the training).

        Returns
        -------
        Certificate
            Unsigned; ``certificate.sign(signer)`` signs it.

        Raises
        ------
        UnknownRecord, AlreadyDeleted, IncompletePerson
            If they cannot be deleted.
        NeedsRetainedData
            If the sealed state does not suffice and no data are attached.
        ToleranceUnreachable, BudgetExhausted
            If the deletion cannot be certified. Whatever is raised, the model is unchanged.
        """
        state = self._state
        index = state.places(ids, None if records is None else digests_of(as_batches(records)))
        removal = state.members.preview(state.records[index], state.names(index))
        after = state.without(index, self._solver_without(index, records))
        source = source_for(self.policy, self.random_state, after.number)
        self._publish(after, removal.after, source)
        state.members.apply(removal)
        if not isinstance(self.statement, Certificate):
            raise TypeError("a deletion is certified")
        return self.statement

    def attach(self, data: Any) -> None:
        """Hold all records of the training, in their order, for deletions after `load`.

        Raises
        ------
        RetainedMismatch
            If a record that is retained is not there, or has changed.
        """
        batches = as_batches(data, device=self.tangent.device)
        self._state.match(digests_of(batches))
        self._data = batches

    def logits(self, data: Any) -> Array:
        """Return ``f(x) + J(x)v`` (n, c) of the published ``v``."""
        v = torch.as_tensor(self.v, device=self.tangent.device)
        found = []
        with self.tangent.still():
            for inputs, _ in as_batches(data, device=self.tangent.device).chunks(CHUNK):
                f, moved = self.tangent.forward(inputs, v)
                found.append((f + moved).cpu().numpy())
        return np.concatenate(found)

    def predict(self, data: Any) -> NDArray[Any]:
        """Return classes (n,); of a regression take `logits`."""
        found: NDArray[Any] = self.logits(data).argmax(axis=1)
        return found

    def module(self) -> nn.Module:
        """Return the published model as a module, from inputs to `logits`, in float64."""
        return ServedTangent(self.tangent, torch.as_tensor(self.v, device=self.tangent.device))

    @property
    def v(self) -> Array:
        """The published ``v`` (p,), with noise."""
        size = len(self._state.solver.v)
        return read(self.content, size)

    @property
    def minimiser(self) -> tuple[Tensor, float]:
        """The exact minimiser, up to the distance given with it: grade ``exact (numeric)``.

        Secret: it has no noise.
        """
        return self._state.solver.v, self._state.solver.bound

    def opened(self) -> Opened:
        """Return what an auditor is shown in private for `expunge.deep.tangent_release.recheck`.

        Raises
        ------
        NeedsRetainedData
            If no data are attached.
        """
        state = self._state
        left = np.flatnonzero(state.live)
        positions = state.members.find(state.records[left], state.names(left))
        flags = state.members.retained.flags
        return Opened(
            v=state.solver.v,
            data=as_batches(self._attached().take(left.tolist())),
            salts=state.members.salts(positions),
            ids=state.names(left),
            deleted_leaves=state.members.leaves(np.flatnonzero(flags == 0)),
            annex=state.annex,
        )

    def save(self, directory: str | Path) -> None:
        """Write the sealed state to a new directory that only its owner can read.

        Continue from it in one place only: two holders of one state spend one budget twice.

        Raises
        ------
        FolderProblem
            If the directory exists.
        """
        save_state(self._state, self.policy, self.statement, self.content, Path(directory))

    @classmethod
    def load(
        cls, directory: str | Path, network: nn.Module, *, random_state: int | None = None
    ) -> Self:
        """Continue from a saved state. `attach` the data for deletions that need them.

        Raises
        ------
        FolderProblem
            If the state is missing or damaged.
        InvalidInput
            If the network is not the core of the training.
        """
        state, policy, statement, content = load_state(Path(directory), same_device(network))
        known = feature_map(policy)
        model = cls(
            network,
            known["params"],
            alpha=known["alpha"],
            l2=policy.l2,
            preprocessing=known["preprocessing"],
            epsilon=policy.epsilon,
            delta=policy.delta,
            releases=policy.releases,
            sigma=policy.sigma,
            noise="discrete" if policy.discrete else "gaussian",
            random_state=random_state,
        )
        if fingerprint(model.tangent.network.module) != known["backbone"]:
            raise InvalidInput(
                "the network is not the core that the state was made with: its weights, buffers or "
                "layers differ"
            )
        model.tangent.layer, model.tangent.width = known["layer"], int(known["outputs"])
        model.policy, model.statement, model.content = policy, statement, content
        model._held = state
        return model

    @property
    def _state(self) -> State:
        if self._held is None:
            raise InvalidInput("the model has not been fitted: call fit, or load a saved one")
        return self._held

    def _attached(self) -> Batches:
        if self._data is None:
            raise NeedsRetainedData(
                "this deletion cannot be certified from the sealed state alone: attach(data) the "
                "records of the training. Nothing was changed"
            )
        return self._data

    def _policy(
        self, noise: str, rows: int, named: bool, core: tuple[Tag, dict[str, Any] | None]
    ) -> Policy:
        known = {
            "kind": KIND,
            "backbone": fingerprint(self.tangent.network.module),
            "core": core[1],
            "preprocessing": self.preprocessing,
            "params": list(self.tangent.network.names),
            "layer": self.tangent.layer,
            "outputs": self.tangent.width,
            "alpha": self.alpha,
        }
        return policy_for(
            self.claim,
            noise,
            named=named,
            loss="squared",
            l2=self.l2,
            fit_intercept=False,
            features=self.tangent.size,
            outputs=1,
            capacity=rows,
            feature_map=known,
            feature_map_tag=core[0],
        )

    def _solver_without(self, index: NDArray[np.intp], records: Any) -> Solver:
        state = self._state
        left = state.live.copy()
        left[index] = False
        if not left.any():
            return Krylov(torch.zeros_like(self.tangent.at), 0.0)
        gone = self._attached().take(index.tolist()) if records is None else records
        places = np.searchsorted(np.flatnonzero(state.live), index).tolist()
        objective = objective_of(self.policy, self.tangent, gone)
        solver = state.solver.remove(objective, places)
        if solver.bound > self.policy.tolerance:
            kept = self._attached().take(np.flatnonzero(left).tolist())
            objective = objective_of(self.policy, self.tangent, kept)
            solver = solver.settle(objective, self.policy.tolerance)
        return solver

    def _publish(self, state: State, heads: Heads, source: NoiseSource | Discrete) -> None:
        """Publish a state, and only then make it the current one."""
        if not state.solver.bound <= self.policy.tolerance:
            raise ToleranceUnreachable(
                f"float64 locates the minimiser to within {state.solver.bound:.2e}, but the "
                f"policy's tolerance is {self.policy.tolerance:.2e}: raise sigma or l2"
            )
        chain = Chain()
        if state.number > 1:
            chain = Chain(state.number, self.statement.digest, self.content)
        found = publish(self.policy, state.solver, source, state.key, heads, state.depth, chain)
        self.statement, self.content = found.statement, found.content
        self._held = replace(state, annex=found.annex)
