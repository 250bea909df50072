"""Recheck levels (b) and (c): an honest deletion passes, every dishonest one fails by name."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
from numpy.typing import NDArray
from scipy.special import expit

import certificate_example as example
from certificate_example import NOW, SIGNER, failed
from expunge import modelfile, noise
from expunge.certificate import commit, distance, statement
from expunge.certificate.distance import distance_bound
from expunge.certificate.envelope import sign
from expunge.certificate.members import Members
from expunge.certificate.recheck import Outside, Report, Rows, Sealed, recheck, recheck_model
from expunge.certificate.sealed import noise_faults

Array = NDArray[np.float64]
OUTSIDE = Outside(trusted=[SIGNER.public], now=NOW)

TAU, SIGMA = 1e-6, 0.0002671922
COUNT, DELETED, WIDTH = 200, 10, 70


@dataclass(frozen=True)
class Story:
    """A deletion that was carried out, and everything an auditor may see of it."""

    certificate: statement.Certificate
    files: dict[str, bytes]
    sealed: Sealed

    def report(self, **changes: Any) -> Report:
        signed = self.certificate.sign(SIGNER).to_json()
        return recheck(signed, OUTSIDE, self.files, replace(self.sealed, **changes))


def solve(rows: Rows, steps: int = 30) -> Array:
    """Newton's method on the logistic objective with Λ = 1."""
    w = np.zeros(rows.features.shape[1])
    X, y, s = rows.features, rows.target[:, 0], rows.weight
    for _ in range(steps):
        m = X @ w
        g = X.T @ (-s * y * expit(-y * m)) + w
        H = X.T @ (X * (s * expit(m) * expit(-m))[:, None]) + np.eye(len(w))
        w = w - np.linalg.solve(H, g)
    return w[:, None]


def make_story(
    weights: Array | None = None,
    noise_used: Array | None = None,
    off_grid: bool = False,
    tolerance: float = TAU,
) -> Story:
    """Delete the first rows; the arguments are ways to get it wrong."""
    rng = np.random.default_rng(3)
    X = rng.normal(size=(COUNT, WIDTH))
    y = np.where(X[:, :1] + rng.normal(size=(COUNT, 1)) > 0, 1.0, -1.0)
    rows = Rows(X, y, np.ones(COUNT))
    kept = Rows(X[DELETED:], y[DELETED:], np.ones(COUNT - DELETED))
    salts = rng.integers(0, 256, (COUNT, 32), dtype=np.uint8)
    ids = [f"person-{i}" for i in range(COUNT)]
    leaves = commit.leaves(salts, ids, commit.row_digests(X, y, rows.weight))
    depth = commit.depth_for(COUNT)
    heads = [
        commit.MerkleSet.build(part, depth).head
        for part in (leaves, leaves[:DELETED], leaves[DELETED:])
    ]
    sigma = SIGMA * tolerance / TAU
    policy = example.policy(l2=1.0, features=WIDTH, sigma=sigma, tolerance=tolerance)
    weights = solve(kept) if weights is None else weights
    released = noise.release(weights, sigma, noise.OsEntropy(), bytes(32))
    j = noise.grid_exponent(sigma)
    published = released.weights
    if noise_used is not None:
        published = np.ldexp(np.rint(np.ldexp(weights + noise_used, j)), -j)
    published = published + 2.0 ** -(j + 3) if off_grid else published
    model = modelfile.ReleasedModel(published.T.copy(), None, "logistic", ("no", "yes"))
    raw = modelfile.encode(model)
    annex = b'{"nonce":"..."}'
    made = statement.Certificate.issue(
        policy,
        **example.facts(
            subject=[statement.Subject("model.safetensors", modelfile.digest(raw))],
            commitments=statement.Commitments(depth, *heads),
            noise=statement.NoiseRecord("osEntropy", j, released.tag),
            sealed_digest=statement.sealed_digest(annex),
        ),
    )
    sealed = Sealed(
        weights=weights,
        rows=kept,
        salts=salts[DELETED:],
        ids=ids[DELETED:],
        deleted_leaves=leaves[:DELETED],
        annex=annex,
    )
    return Story(made, {"model.safetensors": raw}, sealed)


@pytest.fixture(scope="module")
def story() -> Story:
    return make_story()


def all_rows() -> Rows:
    rng = np.random.default_rng(3)
    X = rng.normal(size=(COUNT, WIDTH))
    y = np.where(X[:, :1] + rng.normal(size=(COUNT, 1)) > 0, 1.0, -1.0)
    return Rows(X, y, np.ones(COUNT))


def test_an_honest_deletion_holds_at_every_level(story: Story) -> None:
    report = story.report()
    assert failed(report) == set()
    assert report.level == "c"
    assert "retained data" in report.summary
    assert recheck(story.certificate.sign(SIGNER).to_json(), OUTSIDE, story.files).level == "b"


def test_reports_hold_no_noiseless_number(story: Story) -> None:
    w = story.sealed.weights
    found = distance_bound(story.sealed.rows, w, "logistic", 1.0, False)
    secrets = [found.residual, found.bound, found.rounding, float(w[0, 0])]
    shown = repr(story.report()) + repr(story.sealed) + repr(found)
    assert not any(f"{secret:.3g}"[:4] in shown for secret in secrets)


def test_no_op_with_an_honest_looking_certificate_fails_as_evidence() -> None:
    report = make_story(weights=solve(all_rows())).report()
    assert failed(report) == {"evidence"}


def test_residual_above_tolerance_fails_as_evidence() -> None:
    best = solve(make_story().sealed.rows)
    direction = np.ones_like(best) / np.sqrt(WIDTH)
    assert failed(make_story(weights=best + 1.5 * TAU * direction).report()) == {"evidence"}
    assert failed(make_story(weights=best + 0.1 * TAU * direction).report()) == set()


def test_tolerance_met_only_without_the_rounding_term_fails_as_evidence(
    story: Story, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows, best = story.sealed.rows, story.sealed.weights
    real = distance.gradient

    def careless(*args: Any) -> distance.Gradient:
        return replace(real(*args), error=0.0)

    found = distance_bound(rows, best, "logistic", 1.0, False).bound
    with monkeypatch.context() as patched:
        patched.setattr(distance, "gradient", careless)
        without = distance_bound(rows, best, "logistic", 1.0, False).bound
        tight = make_story(weights=best, tolerance=(without + found) / 2)
        assert failed(tight.report()) == set()
    assert failed(tight.report()) == {"evidence"}


def test_altered_annex_fails_as_evidence(story: Story) -> None:
    assert failed(story.report(annex=b'{"nonce":".. "}')) == {"evidence"}


@pytest.mark.parametrize("factor", [0.0, 0.5, 2.0])
def test_noise_of_another_size_fails_as_noise(factor: float) -> None:
    z = np.random.default_rng(2).normal(size=(WIDTH, 1))
    assert failed(make_story(noise_used=factor * SIGMA * z).report()) == {"noise"}
    assert failed(make_story(noise_used=SIGMA * z).report()) == set()


def test_reused_noise_fails_as_noise(story: Story) -> None:
    noise_before = _published(story) - story.sealed.weights
    assert failed(story.report(previous_noise=noise_before)) == {"noise"}
    fresh = np.random.default_rng(1).normal(size=noise_before.shape)
    assert failed(story.report(previous_noise=fresh)) == set()


def _published(story: Story) -> Array:
    published = recheck_model(story.certificate, story.files)[1]
    assert published is not None
    return published


@pytest.mark.parametrize("size", [1, 2, 64, 5000])
def test_honest_noise_is_rarely_doubted(size: int) -> None:
    rng = np.random.default_rng(size)
    assert not any(noise_faults(3 * rng.normal(size=(size, 1)), 3.0) for _ in range(300))
    assert noise_faults(np.zeros((size, 1)), 3.0)
    assert noise_faults(np.ones((size, 1)), 0.0)


def test_model_swapped_fails_as_model(story: Story) -> None:
    other = replace(story, files=make_story().files)
    assert "model" in failed(other.report())
    missing = recheck(story.certificate.sign(SIGNER).to_json(), OUTSIDE, {})
    assert failed(missing) == {"model"}


def test_extra_tensor_fails_as_model(story: Story) -> None:
    raw = story.files["model.safetensors"]
    length = int.from_bytes(raw[:8], "little")
    header = json.loads(raw[8 : 8 + length])
    end = header["coef"]["data_offsets"][1]
    header["mean"] = {"dtype": "F64", "shape": [1], "data_offsets": [end, end + 8]}
    text = json.dumps(header).encode()
    changed = len(text).to_bytes(8, "little") + text + raw[8 + length :] + bytes(8)
    report = _certified_anyway(story, changed)
    assert failed(report) == {"model"}
    assert "mean" in report["model"].reason


def _certified_anyway(story: Story, raw: bytes) -> Report:
    """Recheck after the issuer signed these bytes as the subject."""
    content = story.certificate.statement
    content["subject"][0]["digest"]["sha256"] = modelfile.digest(raw)
    signed = sign(json.dumps(content).encode(), SIGNER).to_json()
    return recheck(signed, OUTSIDE, {"model.safetensors": raw})


def test_other_parameters_or_loss_fail_as_model(story: Story) -> None:
    wider = modelfile.ReleasedModel(np.zeros((1, WIDTH + 1)), None, "logistic", (0, 1))
    assert failed(_certified_anyway(story, modelfile.encode(wider))) == {"model"}
    squared = modelfile.ReleasedModel(np.zeros((1, WIDTH)), None, "squared", None)
    assert failed(_certified_anyway(story, modelfile.encode(squared))) == {"model"}


def test_off_grid_weight_fails_as_model() -> None:
    report = make_story(off_grid=True).report()
    assert "model" in failed(report)
    assert "grid" in report["model"].reason


def test_commitments_catch_every_change_of_the_records(story: Story) -> None:
    sealed, rows = story.sealed, story.sealed.rows
    missing = Rows(rows.features[1:], rows.target[1:], rows.weight[1:])
    altered = rows.features.copy()
    altered[5, 5] += 1e-12
    salts = sealed.salts.copy()
    salts[1] = salts[0]
    every = all_rows()
    digest = commit.row_digests(every.features[:1], every.target[:1], every.weight[:1])
    revived = Rows(
        np.vstack([every.features[:1], rows.features[1:]]),
        np.vstack([every.target[:1], rows.target[1:]]),
        rows.weight,
    )
    first = np.random.default_rng(3)
    first.normal(size=(COUNT, WIDTH))
    first.normal(size=(COUNT, 1))
    old_salts = first.integers(0, 256, (COUNT, 32), dtype=np.uint8)
    assert (commit.leaves(old_salts[:1], ["person-0"], digest) == sealed.deleted_leaves[:1]).all()
    ids = list(sealed.ids or [])
    faults: list[tuple[dict[str, Any], str]] = [
        ({"rows": missing, "salts": sealed.salts[1:], "ids": ids[1:]}, "retained, training"),
        ({"rows": missing}, "salts"),
        ({"rows": Rows(altered, rows.target, rows.weight)}, "retained, training"),
        ({"rows": Rows(rows.features, rows.target, 2 * rows.weight)}, "retained, training"),
        ({"ids": ["someone", *ids[1:]]}, "retained, training"),
        ({"salts": salts}, "salt is used twice"),
        ({"deleted_leaves": sealed.deleted_leaves[1:]}, "deleted, training"),
        (
            {
                "rows": revived,
                "salts": np.vstack([old_salts[:1], sealed.salts[1:]]),
                "ids": ["person-0", *ids[1:]],
            },
            "both deleted and retained",
        ),
    ]
    for changes, reason in faults:
        report = story.report(**changes)
        assert "commitments" in failed(report)
        assert all(word in report["commitments"].reason for word in reason.split(", "))


def test_records_without_ids_are_named_by_their_digest(story: Story) -> None:
    sealed, rows = story.sealed, story.sealed.rows
    digests = commit.row_digests(rows.features, rows.target, rows.weight)
    ids = [row.tobytes().hex() for row in digests]
    with_ids, without = story.report(ids=ids), story.report(ids=None)
    assert with_ids["commitments"] == without["commitments"]
    assert sealed.ids is not None


def test_nonsense_from_the_operator_is_a_failed_check(story: Story) -> None:
    narrow = story.report(weights=story.sealed.weights[1:])
    assert {"evidence"} <= failed(narrow)
    rows = story.sealed.rows
    holes = rows.features.copy()
    holes[0, 0] = np.nan
    broken = story.report(rows=Rows(holes, rows.target, rows.weight))
    assert {"commitments", "evidence"} <= failed(broken)


@pytest.mark.parametrize("loss", ["logistic", "softmax", "logistic-ovr", "squared"])
@pytest.mark.parametrize("named", [False, True])
def test_every_loss_with_a_free_intercept_and_members(loss: str, named: bool) -> None:
    rng = np.random.default_rng(4)
    outputs = 1 if loss == "logistic" else 3
    X, target = rng.normal(size=(150, 5)), rng.normal(size=(150, outputs))
    if loss == "softmax":
        target = np.eye(3)[target.argmax(axis=1)]
    elif loss != "squared":
        target = np.where(target > 0, 1.0, -1.0)
    digests = commit.row_digests(X, target, np.ones(150))
    ids = [f"person-{i}" for i in range(150)] if named else None
    members = Members.enrol(digests, ids)
    members.apply(members.preview(digests[:5], ids[:5] if ids else None))
    kept = Rows(sp.csr_array(X[5:]), target[5:], np.ones(145))
    dense = Rows(X[5:], target[5:], np.ones(145))
    weights = _descend(dense, loss)
    positions = members.find(digests[5:], ids[5:] if ids else None)
    arrays = members.to_arrays()
    sealed = Sealed(
        weights=weights,
        rows=dense,
        salts=members.salts(positions),
        ids=ids[5:] if ids else None,
        deleted_leaves=arrays["leaf"][arrays["live"] == 0],
        annex=b"{}",
    )
    story = _published_story(members, weights, loss, sealed)
    assert failed(story.report()) == set()
    assert story.report().level == "c"
    assert failed(story.report(rows=kept)) == {"commitments"}
    assert "evidence" in failed(story.report(weights=weights + 3 * TAU))


def _descend(rows: Rows, loss: str) -> Array:
    """Newton's method in extended coordinates, on the recheck's own gradient differences."""
    shape = (rows.features.shape[1] + 1, rows.target.shape[1])

    def slope(flat: Array) -> Array:
        return distance.gradient(rows, flat.reshape(shape), loss, 1.0, True).value.ravel()

    flat = np.zeros(shape[0] * shape[1])
    for _ in range(12):
        steps = 1e-6 * np.eye(len(flat))
        hessian = np.array([(slope(flat + e) - slope(flat - e)) / 2e-6 for e in steps])
        flat = flat - np.linalg.lstsq(hessian, slope(flat), rcond=1e-7)[0]
    weights = flat.reshape(shape)
    if loss == "softmax":
        weights[-1] -= weights[-1].mean()
    return weights


def _published_story(members: Members, weights: Array, loss: str, sealed: Sealed) -> Story:
    outputs = weights.shape[1]
    policy = example.policy(
        loss=loss, l2=1.0, features=len(weights) - 1, outputs=outputs, fit_intercept=True
    )
    released = noise.release(weights, policy.sigma, noise.OsEntropy(), bytes(32))
    classes = None if loss == "squared" else tuple(range(max(2, outputs)))
    published = released.weights
    model = modelfile.ReleasedModel(published[:-1].T.copy(), published[-1].copy(), loss, classes)
    raw = modelfile.encode(model)
    heads = members.heads()
    made = statement.Certificate.issue(
        policy,
        **example.facts(
            subject=[statement.Subject("model.safetensors", modelfile.digest(raw))],
            commitments=statement.Commitments(
                members.depth, heads.training, heads.deleted, heads.retained
            ),
            noise=statement.NoiseRecord.of(released),
            sealed_digest=statement.sealed_digest(sealed.annex),
        ),
    )
    return Story(made, {"model.safetensors": raw}, sealed)
