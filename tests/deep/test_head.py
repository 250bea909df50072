"""A certified head: against retraining by scikit-learn, rechecked, refused where it must be."""

import copy
import json
from datetime import UTC, datetime, timedelta

import numpy as np
import pytest
import torch
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from sklearn.linear_model import LogisticRegression, Ridge
from torch import nn

from expunge.certificate import recheck
from expunge.certificate.keys import KeySigner
from expunge.deep.core import CoreOverlap
from expunge.deep.features import features_of
from expunge.deep.head import CertifiedHead
from expunge.errors import (
    AlreadyDeleted,
    BudgetExhausted,
    FolderProblem,
    InvalidInput,
    LastOfClass,
    UnknownRecord,
)

SIGNER = KeySigner(Ed25519PrivateKey.generate())
N = 120


@pytest.fixture(autouse=True)
def _one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def backbone():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh())


def data(classes=3):
    made = torch.Generator().manual_seed(3)
    x = torch.randn(N, 6, generator=made)
    noise = torch.rand(N, generator=made)
    return x, ((x[:, 0] + noise > 0.5).long() + (x[:, 1] > 0).long()).clamp(max=classes - 1)


IDS = [f"person {i // 3}" for i in range(N)]
CORE = {"core 1", "core 2"}


def fitted(place, **options):
    ids = options.pop("ids", IDS)
    settings = {"core_ids": CORE, "sigma": 1e-3, "random_state": 5, **options}
    return CertifiedHead(backbone(), **settings).fit(data(), place, ids=ids)


def kept(*people):
    return np.array([name not in people for name in IDS])


def report(head, statement):
    now = datetime.now(UTC) + timedelta(seconds=5)
    outside = recheck.Outside(
        trusted=[SIGNER.public], now=now, policy=head.policy.to_payload(), tags=[]
    )
    files = {"model.safetensors": head.content}
    return recheck.recheck(statement.sign(SIGNER).to_json(), outside, files, head.sealed())


def test_a_sequence_of_deletions_ends_where_retraining_does(tmp_path):
    head, x, y = fitted(tmp_path / "f"), *data()
    features = features_of(backbone(), data())
    gone = []
    for person in ("person 3", "person 17", "person 39"):
        certificate = head.unlearn([person])
        gone.append(person)
        left = kept(*gone)
        again = LogisticRegression(C=1.0, tol=1e-10, max_iter=5000).fit(features[left], y[left])
        found = head.released
        for ours, theirs in ((found.coef, again.coef_), (found.intercept, again.intercept_)):
            centred = ours - ours.mean(0)
            assert np.abs(centred - (theirs - theirs.mean(0))).max() < 5e-3
        assert certificate.grade.value == "certified"
        assert certificate.guarantee.unit == "person"
        assert certificate.commitments.deleted.count == 3 * len(gone)
    assert np.array_equal(head.predict((x, y)), again.predict(features))
    np.testing.assert_allclose(head.predict_proba(x), again.predict_proba(features), atol=0.01)


def test_certificates_stand_the_recheck_at_the_highest_level(tmp_path):
    head = fitted(tmp_path / "f", random_state=None)
    certificate = head.unlearn(["person 3", "person 4"])
    found = report(head, certificate)
    assert found.level == "c"
    assert not found.failed
    assert found["evidence"].verdict.value == "PASS"


def test_the_recheck_sees_another_head_and_a_forgotten_deletion(tmp_path):
    head, other = (fitted(tmp_path / name, random_state=None) for name in "fg")
    certificate = head.unlearn(["person 3"])
    other.unlearn(["person 4"])
    now = datetime.now(UTC) + timedelta(seconds=5)
    outside = recheck.Outside(trusted=[SIGNER.public], now=now)
    raw = certificate.sign(SIGNER).to_json()
    swapped = recheck.recheck(raw, outside, {"model.safetensors": other.content}, head.sealed())
    assert {check.name for check in swapped.failed} >= {"model"}
    lazy = recheck.recheck(raw, outside, {"model.safetensors": head.content}, other.sealed())
    assert {check.name for check in lazy.failed} >= {"commitments", "evidence"}


def test_an_overlap_with_the_core_is_refused_and_an_unknown_core_is_an_assumption(tmp_path):
    with pytest.raises(CoreOverlap, match="person 7"):
        fitted(tmp_path / "f", core_ids={"core 1", "person 7"})
    assert not (tmp_path / "f").exists()
    with pytest.raises(InvalidInput, match="ids only"):
        fitted(tmp_path / "f", ids=None)
    head = fitted(tmp_path / "f", core_ids=None)
    certificate = head.unlearn(["person 1"])
    assert certificate.grade.value == "conditional"
    assert [a.id for a in certificate.assumptions if a.tag.value == "assumed"] == [
        "featureMapFixed"
    ]
    assert head.policy.feature_map["core"] is None


def test_the_policy_names_backbone_core_and_preprocessing(tmp_path):
    head = fitted(tmp_path / "f", clip=2.0, preprocessing={"mean": 0.5})
    known = head.policy.feature_map
    assert known["clip"] == 2.0
    assert known["preprocessing"] == {"mean": 0.5}
    assert known["core"]["records"] == 2
    assert len(known["backbone"]) == 64
    assert head.policy.feature_map_tag.value == "enforced"


@pytest.mark.parametrize("model", ["ridge", "ovr", "logistic", "regression"])
def test_every_model_forgets(tmp_path, model):
    x, y = data()
    targets = torch.stack([x[:, 0], x[:, 2]], 1).double() if model == "regression" else y
    head = CertifiedHead(backbone(), model=model, core_ids=CORE, sigma=1e-3, fit_intercept=False)
    head.fit((x, targets), tmp_path / "f", ids=IDS)
    assert head.unlearn("person 2").grade.value == "certified"
    served = head.module()(x).numpy()
    np.testing.assert_allclose(served, head.logits(x), atol=1e-5)
    if model in ("ridge", "regression"):
        left = kept("person 2")
        plain = targets.numpy() if model == "regression" else 2.0 * np.eye(3)[y] - 1.0
        features = features_of(backbone(), x)
        again = Ridge(alpha=1.0, fit_intercept=False).fit(features[left], plain[left])
        assert np.abs(head.released.coef - again.coef_).max() < 6e-3
        with pytest.raises(InvalidInput, match="no probabilities"):
            head.predict_proba(x)


def test_two_classes_and_single_records_with_duplicates(tmp_path):
    x, y = data(2)
    x[1], y[1] = x[0], y[0]
    head = CertifiedHead(backbone(), sigma=1e-3).fit((x, y), tmp_path / "f")
    assert head.released.coef.shape == (1, 8)
    one = (x[:1], y[:1])
    assert head.unlearn(records=one).guarantee.unit == "record"
    head.unlearn(records=one)
    with pytest.raises(UnknownRecord, match="never trained on"):
        head.unlearn(records=one)
    assert head.sealed().rows.length == N - 2
    assert set(np.unique(head.predict(x))) == {0, 1}


def test_requests_that_cannot_be_met_change_nothing(tmp_path):
    head = fitted(tmp_path / "f")
    before = head.content
    with pytest.raises(UnknownRecord, match="nobody"):
        head.unlearn(["nobody"])
    with pytest.raises(UnknownRecord):
        head.unlearn(["person 1", "nobody"])
    with pytest.raises(InvalidInput, match="unlearn"):
        head.unlearn(records=data())
    with pytest.raises(InvalidInput, match="nobody was named"):
        head.unlearn([])
    y = data()[1].numpy()
    everyone = {name for name, label in zip(IDS, y, strict=True) if label == 2}
    with pytest.raises(LastOfClass):
        head.unlearn(everyone)
    assert head.content == before
    head.unlearn(["person 1"])
    with pytest.raises(AlreadyDeleted):
        head.unlearn(["person 1"])


def test_the_budget_ends(tmp_path):
    head = fitted(tmp_path / "f", releases=2)
    head.unlearn(["person 1"])
    with pytest.raises(BudgetExhausted):
        head.unlearn(["person 2"])


def test_saved_and_loaded_it_goes_on_and_the_features_are_erased(tmp_path):
    head, twin = fitted(tmp_path / "f"), fitted(tmp_path / "g")
    secret = np.array(head._rows.X[9]).tobytes()
    for each in (head, twin):
        each.unlearn(["person 3"])
    assert secret in (tmp_path / "f" / "features.npy").read_bytes()
    head.save(tmp_path / "state")
    assert secret not in (tmp_path / "f" / "features.npy").read_bytes()
    left = json.loads((tmp_path / "state" / "estimator.json").read_text())["ids"]
    assert set(left) == set(IDS) - {"person 3"}
    again = CertifiedHead.load(tmp_path / "state", backbone(), tmp_path / "f", random_state=5)
    assert again.content == head.content
    with pytest.raises(AlreadyDeleted):
        again.unlearn(["person 3"])
    certificate = again.unlearn(["person 5"])
    twin.unlearn(["person 5"])
    np.testing.assert_allclose(again.released.coef, twin.released.coef, atol=1e-4)
    assert {check.name for check in report(again, certificate).failed} == {"production"}
    with pytest.raises(FolderProblem, match="exists"):
        head.save(tmp_path / "state")


def test_another_backbone_or_cache_is_refused(tmp_path):
    head = fitted(tmp_path / "f")
    head.unlearn(["person 3"])
    head.save(tmp_path / "state")
    other = backbone()
    with torch.no_grad():
        other[0].bias[0] += 1e-6
    with pytest.raises(InvalidInput, match="backbone is not the one"):
        CertifiedHead.load(tmp_path / "state", other, tmp_path / "f")
    with pytest.raises(InvalidInput, match="has forgotten"):
        fitted(tmp_path / "f")
    path = tmp_path / "f" / "features.npy"
    raw = bytearray(path.read_bytes())
    raw[-3] ^= 1
    path.write_bytes(raw)
    with pytest.raises(FolderProblem, match="not those that were written"):
        CertifiedHead.load(tmp_path / "state", backbone(), tmp_path / "f")


def test_an_unfitted_head_and_copies_are_refused(tmp_path):
    with pytest.raises(InvalidInput, match="not been fitted"):
        CertifiedHead(backbone()).predict(data())
    with pytest.raises(TypeError, match="sealed state"):
        copy.deepcopy(fitted(tmp_path / "f"))
    with pytest.raises(InvalidInput, match="model must be"):
        CertifiedHead(backbone(), model="forest").fit(data(), tmp_path / "g")
    with pytest.raises(InvalidInput, match="integer class"):
        CertifiedHead(backbone()).fit((data()[0], data()[0]), tmp_path / "h")
    with pytest.raises(InvalidInput, match="ids"):
        CertifiedHead(backbone()).fit(data(), tmp_path / "i", ids=["a"])
