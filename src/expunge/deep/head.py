"""A certified convex head on a frozen backbone.

Features are computed once; everything that users taught the model is a convex head on top of them,
which forgets them by the engine of `expunge.linear`: within a tolerance that was fixed before, with
noise, in milliseconds. That nobody who asks is in the backbone itself is checked where the ids of
its records are known, and an assumption of every certificate where they are not.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from torch import nn

from expunge.certificate.policy import Policy
from expunge.certificate.residual import Rows as Retained
from expunge.certificate.sealed import Sealed
from expunge.certificate.statement import Certificate, ModelRelease
from expunge.deep.batches import as_batches
from expunge.deep.core import (
    People,
    find_records,
    fingerprint,
    policy_for,
    record_digests,
    separation,
    source_for,
)
from expunge.deep.encoding import ServedHead, encoded, loss_of, probabilities
from expunge.deep.feature_cache import FeatureCache, open_features
from expunge.deep.features import Progress, compute_features, features_of, silent
from expunge.errors import MALFORMED, FolderProblem, InvalidInput
from expunge.linear.lineage import Lineage, Step, begin
from expunge.linear.rows import Rows, make_rows
from expunge.linear.state import open_lineage, save_lineage
from expunge.modelfile import ReleasedModel, decode, predict_labels, scores
from expunge.noise import source_of

Array = NDArray[np.float64]
KIND = "frozenBackbone"
GONE = ""


class CertifiedHead:
    """A frozen backbone with a convex head that can forget.

    Minimises ``Σ_i ℓ(w, φ(x_i), y_i) + (l2/2)‖w‖²`` over the head's weights; an intercept is not
    penalised. What is published is the minimiser, located to within the tolerance that the
    guarantee's numbers imply, plus N(0, sigma²) on every weight.

    Parameters
    ----------
    backbone : nn.Module
        From inputs to features (b, …); never trained, run in eval mode.
    model : {"logistic", "ovr", "ridge", "regression"}
        Softmax (two classes: logistic) regression, one logistic regression a class, half squared
        error on ±1 a class, half squared error on real targets.
    l2 : float
        Λ in units of the *sum* over records, independent of their number.
    fit_intercept : bool
    clip : float, optional
        Norm to which longer features are scaled down: a constant, or of core data
        (`expunge.deep.features.norm_of`), never of users' data.
    preprocessing : mapping, optional
        What is done to records before; goes into every certificate.
    core_ids : collection of str, optional
        Ids of all records that the backbone was trained on; checked against those of the users.
        Without them the grade is ``conditional``.
    epsilon, delta, releases, sigma, noise, random_state
        As for `expunge.linear.LogisticRegression`.

    Attributes
    ----------
    policy : Policy
        Everything public that was fixed before any request.
    statement : ModelRelease or Certificate
        Of the current release.

    Examples
    --------
    >>> import tempfile, torch
    >>> x = torch.randn(60, 4, generator=torch.Generator().manual_seed(0))
    >>> y = (x[:, 0] > 0).long()
    >>> head = CertifiedHead(nn.Linear(4, 3), core_ids=["somebody else"])
    >>> ids = [f"p{i // 2}" for i in range(60)]
    >>> with tempfile.TemporaryDirectory() as place:
    ...     certificate = head.fit((x, y), f"{place}/features", ids=ids).unlearn(["p3"])
    >>> certificate.grade.value, certificate.guarantee.unit
    ('certified', 'person')
    """

    policy: Policy
    statement: ModelRelease | Certificate
    _lineage: Lineage
    _cache: FeatureCache
    _rows: Rows
    _people: People
    _annex: bytes

    def __init__(
        self,
        backbone: nn.Module,
        *,
        model: str = "logistic",
        l2: float = 1.0,
        fit_intercept: bool = True,
        clip: float | None = None,
        preprocessing: Mapping[str, Any] | None = None,
        core_ids: Collection[str] | None = None,
        epsilon: float = 1.0,
        delta: float = 1e-6,
        releases: int = 1000,
        sigma: float = 0.01,
        noise: str = "gaussian",
        random_state: int | None = None,
    ) -> None:
        self.backbone, self.model, self.l2 = backbone, model, float(l2)
        self.fit_intercept, self.clip = fit_intercept, clip
        self.preprocessing, self.core_ids = dict(preprocessing or {}), core_ids
        self.claim = {"epsilon": epsilon, "delta": delta, "releases": releases, "sigma": sigma}
        self.noise, self.random_state = noise, random_state

    def __repr__(self) -> str:
        return f"CertifiedHead({type(self.backbone).__name__}, {self.model})"

    def __getstate__(self) -> dict[str, Any]:
        """Refuse copies: two holders of one sealed state would spend one budget twice."""
        raise TypeError("a head holds a sealed state: move it with save and load")

    def fit(
        self,
        data: Any,
        cache: str | Path,
        *,
        ids: Sequence[str] | None = None,
        progress: Progress = silent,
    ) -> Self:
        """Compute the features, fit the head, and publish release 1.

        Parameters
        ----------
        data : what `expunge.deep.batches.as_batches` takes
        cache : path
            Directory for the features: new, or of a run that was interrupted.
        ids : sequence of str, optional
            Whose records these are; a person may own several. Without ids a record is known by its
            values.
        progress : callable

        Raises
        ------
        CoreOverlap
            If one of the ids is among the core's.
        InvalidInput, ToleranceUnreachable
            If the data are unusable, or the tolerance cannot be proved on them.
        """
        names = None if ids is None else list(ids)
        tag, core = separation(names, self.core_ids)
        found = compute_features(
            self.backbone,
            data,
            cache,
            clip=self.clip,
            preprocessing=self.preprocessing,
            progress=progress,
        )
        if found.erased:
            raise InvalidInput(f"{cache} is of a head that has forgotten: give a new directory")
        loss, classes = loss_of(self.model, np.asarray(found.targets))
        rows = self._made(found, names, np.ones(len(found.targets), bool), loss, classes)
        source = source_of(self.noise, self.random_state)
        policy = policy_for(
            self.claim,
            source.name,
            named=names is not None,
            loss=loss,
            l2=self.l2,
            fit_intercept=self.fit_intercept,
            features=rows.X.shape[1],
            outputs=rows.columns,
            capacity=rows.count,
            classes=classes,
            feature_map={"kind": KIND, "core": core, **found.spec.to_json()},
            feature_map_tag=tag,
        )
        self._lineage, step = begin(policy, rows, source, ids=names)
        self.policy, self._cache, self._rows = policy, found, rows
        self._people = People(names or ())
        self._published(step)
        return self

    def unlearn(self, ids: Iterable[str] | None = None, *, records: Any = None) -> Certificate:
        """Delete people, or single records, and publish a new head.

        Nothing is written to disk before `save`, which also erases their features there.

        Parameters
        ----------
        ids : iterable of str
            Whose records are deleted, all of them; if the training had ids.
        records : data, optional
            The records themselves, as `fit` had them; if it had no ids.

        Returns
        -------
        Certificate
            Unsigned; ``certificate.sign(signer)`` signs it.

        Raises
        ------
        UnknownRecord, AlreadyDeleted, LastOfClass
            If they cannot be deleted.
        ToleranceUnreachable, BudgetExhausted
            If the deletion cannot be certified. Whatever is raised, the head is unchanged.
        """
        lineage = self._fitted()
        index = self._places(ids, records)
        forget = self._rows.take(index)
        step = lineage.prepare(
            forget,
            source_for(self.policy, self.random_state, lineage.number + 1),
            ids=forget.ids,
            retained=lambda: self._rows.without(index),
        )
        lineage.accept(step)
        self._rows.drop(index)
        self._published(step)
        if not isinstance(step.published.statement, Certificate):
            raise TypeError("a deletion is certified")
        return step.published.statement

    def logits(self, data: Any) -> Array:
        """Return the scores (n, K) of the published head, (n, 1) for two classes."""
        return scores(self.released, features_of(self.backbone, data, clip=self.clip))

    def predict(self, data: Any) -> NDArray[Any]:
        """Return labels (n,), or the values (n, K) of a regression."""
        return predict_labels(self.released, features_of(self.backbone, data, clip=self.clip))

    def predict_proba(self, data: Any) -> Array:
        """Return class probabilities (n, K); of ``logistic`` and ``ovr`` only."""
        return probabilities(self.logits(data), self.policy.loss)

    def module(self) -> nn.Module:
        """Return backbone and published head as one module, from inputs to `logits`."""
        return ServedHead(self.backbone, self.released, self.clip)

    @property
    def released(self) -> ReleasedModel:
        """The published head."""
        return decode(self.content)

    @property
    def content(self) -> bytes:
        """The published model file, whose digest every certificate names."""
        return self._fitted().content

    def sealed(self) -> Sealed:
        """Return what an auditor is shown in private for `expunge.certificate.recheck`."""
        lineage, members = self._fitted(), self._fitted().members
        left = self._rows.take(self._rows.weight > 0)
        positions = members.find(lineage.digests(left), left.ids)
        return Sealed(
            weights=lineage.state.weights,
            rows=Retained(left.X, left.target, left.weight),
            salts=members.salts(positions),
            ids=left.ids,
            deleted_leaves=members.leaves(np.flatnonzero(members.retained.flags == 0)),
            annex=self._annex,
        )

    def save(self, directory: str | Path) -> None:
        """Write the sealed state to a new directory, then erase the features of those deleted.

        Continue from it in one place only: two holders of one state spend one budget twice.

        Raises
        ------
        FolderProblem
            If the directory exists.
        """
        lineage, weight = self._fitted(), self._rows.weight
        gone = np.flatnonzero(weight == 0).tolist()
        ids = self._rows.ids
        beside = {
            "model": self.model,
            "gone": gone,
            "ids": None if ids is None else [ids[i] for i in np.flatnonzero(weight).tolist()],
            "annex": self._annex.decode(),
            "statement": self.statement.payload.decode(),
        }
        save_lineage(lineage, beside, Path(directory))
        self._cache.erase(gone)

    @classmethod
    def load(
        cls,
        directory: str | Path,
        backbone: nn.Module,
        cache: str | Path,
        *,
        random_state: int | None = None,
    ) -> Self:
        """Continue from a saved state; features that `save` could not erase any more are erased.

        Raises
        ------
        FolderProblem
            If state or features are missing, damaged or altered.
        InvalidInput
            If the backbone is another one, or the features are of another one.
        """
        (lineage, beside), found = open_lineage(Path(directory)), open_features(cache)
        policy, known = lineage.policy, lineage.policy.feature_map
        if known is None or known.get("kind") != KIND:
            raise InvalidInput(f"{directory} holds a state that is not of a head on a backbone")
        if not fingerprint(backbone) == known["backbone"] == found.spec.backbone:
            raise InvalidInput(
                "the backbone is not the one that the state and the features were made with: its "
                "weights, buffers or layers differ"
            )
        head = cls(
            backbone,
            l2=policy.l2,
            fit_intercept=policy.fit_intercept,
            clip=known["clip"],
            preprocessing=known["preprocessing"],
            epsilon=policy.epsilon,
            delta=policy.delta,
            releases=policy.releases,
            sigma=policy.sigma,
            noise="discrete" if policy.discrete else "gaussian",
            random_state=random_state,
        )
        try:
            head._adopt(lineage, found, beside)
        except MALFORMED as error:
            raise FolderProblem(f"{directory} cannot be read ({error}); restore it") from error
        return head

    def _adopt(self, lineage: Lineage, cache: FeatureCache, meta: Mapping[str, Any]) -> None:
        self.model, gone = str(meta["model"]), {int(i) for i in meta["gone"]}
        cache.erase(sorted(gone))
        names = None
        if meta["ids"] is not None:
            left = iter(meta["ids"])
            names = [GONE if i in gone else next(left) for i in range(len(cache.targets))]
        self._lineage, self.policy, self._cache = lineage, lineage.policy, cache
        self._people, self._annex = People(names or ()), str(meta["annex"]).encode()
        kind = ModelRelease if lineage.number == 1 else Certificate
        self.statement = kind.from_payload(str(meta["statement"]).encode())
        live = np.ones(len(cache.targets), dtype=bool)
        live[sorted(gone)] = False
        self._rows = self._made(cache, names, live, self.policy.loss, self.policy.classes)

    def _made(
        self,
        cache: FeatureCache,
        ids: Sequence[str] | None,
        live: NDArray[np.bool_],
        loss: str,
        classes: tuple[Any, ...] | None,
    ) -> Rows:
        if ids is not None and len(ids) != len(live):
            raise InvalidInput(f"expected {len(live)} ids, one per record, got {len(ids)}")
        target = encoded(cache.targets, loss, classes, live)
        weight = live.astype(np.float64)
        intercept = self.fit_intercept
        return make_rows(cache.features, target, weight, intercept=intercept, ids=ids)

    def _places(self, ids: Iterable[str] | None, records: Any) -> NDArray[np.intp]:
        """Return the rows of people, or of records."""
        named = self._rows.ids is not None
        if (ids is None) == named or (records is None) != named:
            raise InvalidInput(
                "the head was fitted "
                + ("with ids: unlearn(ids)" if named else "without ids: unlearn(records=…)")
                + ", and nothing else, says what to delete"
            )
        if ids is not None:
            return self._people.rows(ids, self._lineage.members)
        digests = np.concatenate([record_digests(batch) for batch in as_batches(records)])
        return find_records(digests, self._cache.records, self._rows.weight > 0)

    def _published(self, step: Step) -> None:
        self.statement, self._annex = step.published.statement, step.published.annex

    def _fitted(self) -> Lineage:
        if not hasattr(self, "_lineage"):
            raise InvalidInput("the head has not been fitted: call fit, or load a saved one")
        return self._lineage
