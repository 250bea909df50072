"""Faulty engines issue honest-looking certificates; the recheck with retained data names the fault.

Every control is the real engine with one mistake in it.
"""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import numpy as np
import pytest

from certificate_example import SIGNER
from expunge.certificate import distance, recheck
from expunge.certificate.envelope import sign
from expunge.certificate.policy import Policy
from expunge.errors import InvalidInput
from expunge.guarantee import tolerance_for
from expunge.linear import deletion, descent, engine, lineage, objective, passes, solver
from expunge.linear.curvature import Curvature
from expunge.linear.rows import make_rows
from expunge.modelfile import REGRESSION
from expunge.noise import OsEntropy, Seeded
from oracles import digits10, digits38, iris

GONE = np.arange(12)


class Model:
    """A lineage with its rows, and an auditor who may open everything."""

    def __init__(
        self, data=digits38, loss="logistic", sigma=0.05, noise=None, intercept=True, l1=0.0
    ):
        X, target = data()
        self.rows = make_rows(X, target, intercept=intercept)
        self.noise = noise or OsEntropy()
        policy = Policy(
            loss=loss,
            l2=1.0,
            l1=l1,
            fit_intercept=intercept,
            features=X.shape[1],
            outputs=target.shape[1],
            epsilon=1.0,
            delta=1e-6,
            releases=10,
            sigma=sigma,
            tolerance=tolerance_for(sigma, 1.0, 1e-6, 10),
            capacity=len(X),
            classes=None if loss in REGRESSION else tuple(range(max(2, target.shape[1]))),
            noise=self.noise.name,
        )
        self.lineage, _ = lineage.begin(policy, self.rows, self.noise)
        self.gone = np.zeros(len(X), dtype=bool)

    def delete(self, index=GONE, retained=True):
        forget = self.rows.take(index)
        self.gone[index] = True
        left = self.rows.without(self.gone)
        step = self.lineage.prepare(forget, self.noise, retained=left if retained else None)
        self.lineage.accept(step)
        return step

    def report(self, step, rows=None, parameters=None, content=None, sealed=None):
        """Recheck at level c; the arguments are what the operator tells otherwise than it is."""
        left = self.rows.take(~self.gone) if rows is None else rows
        members = self.lineage.members
        digests = self.lineage.digests(left)
        arrays = members.to_arrays()
        opened = recheck.Sealed(
            weights=step.state.weights,
            rows=recheck.Rows(left.X, left.target, left.weight),
            salts=members.salts(members.find(digests, None)),
            ids=None,
            deleted_leaves=arrays["leaf"][arrays["live"] == 0],
            annex=step.published.annex,
        )
        now = datetime.now(UTC) + timedelta(seconds=5)
        outside = recheck.Outside(trusted=[SIGNER.public], now=now)
        told = step.published.statement.statement
        told["predicate"]["algorithm"]["parameters"] |= parameters or {}
        signed = sign(json.dumps(told).encode(), SIGNER).to_json()
        files = {"model.safetensors": self.lineage.content if content is None else content}
        return recheck.recheck(signed, outside, files, replace(opened, **(sealed or {})))

    def failed(self, step, **lies):
        report = self.report(step, **lies)
        assert report.level == "c"
        return {check.name for check in report.failed}


CASES = [
    ("logistic", 0.0, True),
    ("softmax", 0.0, True),
    ("logistic-ovr", 0.0, True),
    ("squared", 0.0, True),
    ("squared", 5.0, True),
    ("poisson", 0.0, True),
    ("gamma", 0.0, True),
    ("squared-hinge", 0.0, False),
    ("huber", 0.0, False),
]


def made(loss, l1, intercept):
    """Make a model of digits 3 and 8, or of the irises, with the targets of a loss."""

    def data():
        if loss in ("softmax", "logistic-ovr", "squared-hinge"):
            X, y = iris()
            return X, y if loss == "softmax" else 2.0 * y - 1.0
        X, y = digits38()
        counts = np.random.default_rng(0).poisson(np.exp(X @ np.linspace(-1, 1, 64)))[:, None] + 0.5
        return X, counts if loss in ("poisson", "gamma", "huber") else y

    return Model(data, loss, intercept=intercept, l1=l1)


@pytest.fixture(params=["direct", "large"])
def size(request, monkeypatch):
    """Also treat the models as too large for a Hessian, in the engine and in the recheck."""
    if request.param == "large":
        for module in (objective, descent, distance):
            monkeypatch.setattr(module, "MAX_DIRECT", 1)
    return request.param


@pytest.mark.parametrize(("loss", "l1", "free"), CASES)
def test_the_honest_engine_passes(size, loss, l1, free):
    if l1 and size == "large":
        with pytest.raises(InvalidInput, match="an L1 penalty goes with at most 1 coefficients"):
            made(loss, l1, free)
        return
    for intercept in {False, free}:
        model = made(loss, l1, intercept)
        for i in range(3):
            assert model.failed(model.delete(np.arange(10 * i, 10 * i + 4))) == set()


@pytest.mark.parametrize(("loss", "l1", "free"), CASES)
def test_every_lie_about_a_deletion_is_caught(loss, l1, free):
    model = made(loss, l1, free)
    step = model.delete(np.arange(12))
    left = model.rows.take(~model.gone)
    told = recheck.Rows(left.X, left.target, left.weight)
    backwards = left.take(np.arange(left.length)[::-1])
    other = int(np.flatnonzero((left.target != left.target[0]).any(axis=1))[0])
    bent, swapped, raw = left.X.copy(), left.target.copy(), bytearray(model.lineage.content)
    bent[3, 2] = np.nextafter(bent[3, 2], np.inf)
    swapped[[0, other]] = swapped[[other, 0]]
    raw[-1] ^= 1
    moved = step.state.weights.copy()
    moved[0, 0] += 3 * model.lineage.policy.tolerance
    renamed = "gamma" if loss == "poisson" else "poisson"

    assert model.failed(step) == model.failed(step, rows=backwards) == set()
    assert "model" in model.failed(step, content=bytes(raw))
    assert model.failed(step, sealed={"rows": replace(told, features=bent)}) == {"commitments"}
    for lie in (
        replace(told, target=swapped),
        replace(told, weight=2 * told.weight),
        recheck.Rows(backwards.X, backwards.target, backwards.weight),
    ):
        assert "commitments" in model.failed(step, sealed={"rows": lie})
    assert "evidence" in model.failed(step, sealed={"weights": moved})
    assert "model" in model.failed(step, parameters={"loss": renamed})
    for lie in ({"l2Total": "0.5"}, {"l1Total": "9"}):
        assert model.failed(step, parameters=lie) == {"evidence"}


def bounded(monkeypatch):
    """Let the engine believe whatever it computed."""
    monkeypatch.setattr(deletion, "distance", lambda *_: 0.0)


def test_doing_nothing_is_caught(monkeypatch):
    model = Model()
    monkeypatch.setattr(engine, "unlearn", lambda state, *_: (state, TRACE))
    assert model.failed(model.delete()) == {"evidence"}


TRACE = engine.Trace("bounded", 0.0, 0.0, 0.0, 1.0, 0, 0)


def test_the_hessian_of_the_full_data_is_caught(monkeypatch):
    model = Model()
    bounded(monkeypatch)
    monkeypatch.setattr(Curvature, "remove", lambda self, V: self)
    assert model.failed(model.delete()) == {"evidence"}


def test_one_step_where_two_are_needed_is_caught(monkeypatch):
    model = Model(sigma=0.005)
    bounded(monkeypatch)
    assert model.failed(model.delete()) == {"evidence"}


def test_a_stale_factor_is_caught(monkeypatch):
    model = Model()
    far = model.lineage.state.parts[0]
    shifted = replace(far.curvature, chol=far.curvature.chol * 1.5)
    model.lineage.state = replace(model.lineage.state, parts=(replace(far, curvature=shifted),))
    bounded(monkeypatch)
    assert model.failed(model.delete(np.array([0]))) == {"evidence"}


def test_a_gradient_of_other_rows_is_caught(monkeypatch):
    model = Model()
    bounded(monkeypatch)
    real = deletion.evaluate
    other = model.rows.take(np.arange(100, 112))
    monkeypatch.setattr(deletion, "evaluate", lambda rows, *a, **k: real(other, *a, **k))
    assert model.failed(model.delete()) == {"evidence"}


def test_a_forgotten_evaluation_error_is_caught(monkeypatch):
    """At a noise so small that rounding decides, ignoring it passes the engine, not the recheck."""
    sigma = 1e-14
    with pytest.raises(engine.ToleranceUnreachable):
        Model(sigma=sigma)
    monkeypatch.setattr(passes, "gradient_error", lambda *_: 0.0)
    monkeypatch.setattr(solver, "UNIT", 0.0)
    monkeypatch.setattr(objective, "UNIT", 0.0)
    monkeypatch.setattr(deletion, "UNIT", 0.0)
    monkeypatch.setattr(engine, "_check_reached", lambda state: None)
    bounded(monkeypatch)
    model = Model(sigma=sigma)
    assert "evidence" in model.failed(model.delete())


@pytest.mark.parametrize("factor", [0.0, 0.005, 0.5])
def test_too_little_noise_is_caught(monkeypatch, factor):
    model = Model(digits10, "softmax")
    real = lineage.release
    monkeypatch.setattr(
        lineage, "release", lambda w, sigma, *a: real(w, max(sigma * factor, 1e-12), *a)
    )
    step = model.delete()
    forged = replace(step.published.statement.noise, output_grid=0)
    assert forged != step.published.statement.noise
    assert {"noise"} <= model.failed(step)


def test_reused_noise_is_caught():
    model = Model(noise=Seeded(1))
    model.noise = Seeded(1)
    first = model.delete(np.arange(3))
    model.noise = Seeded(1)
    second = model.delete(np.arange(3, 6))
    tags = [s.published.statement.noise.tag for s in (first, second)]
    assert tags[0] == tags[1]
    signed = second.published.statement.sign(SIGNER).to_json()
    outside = recheck.Outside(
        trusted=[SIGNER.public], now=datetime.now(UTC) + timedelta(seconds=5), tags=tags[:1]
    )
    assert recheck.recheck(signed, outside)["noiseTag"].verdict is recheck.Verdict.FAIL


def test_a_deleted_row_still_there_is_caught():
    model = Model()
    step = model.delete()
    kept = model.gone.copy()
    kept[0] = False
    sealed_rows = model.rows.take(~kept)
    with pytest.raises(Exception, match="deleted before"):
        model.report(step, sealed_rows)
    extra = model.rows.take(np.r_[np.flatnonzero(~model.gone), 20])
    with pytest.raises(Exception, match="trained on"):
        model.report(step, extra)
