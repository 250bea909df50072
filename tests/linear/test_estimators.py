"""The estimators as scikit-learn users meet them."""

from __future__ import annotations

import copy
import pickle

import numpy as np
import pandas as pd
import polars as pl
import pytest
import scipy.sparse as sp
from sklearn import linear_model, svm
from sklearn.base import clone
from sklearn.datasets import load_breast_cancer, load_diabetes, load_digits, load_iris
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import MinMaxScaler, Normalizer
from sklearn.utils.estimator_checks import parametrize_with_checks

from expunge import regular
from expunge.errors import (
    AlreadyDeleted,
    BudgetExhausted,
    ExpungeError,
    FolderProblem,
    IncompletePerson,
    InvalidInput,
    NeedsRetainedData,
    RetainedMismatch,
    ToleranceUnreachable,
    UnknownRecord,
)
from expunge.linear import (
    ElasticNet,
    GammaRegressor,
    HuberRegressor,
    LinearSVC,
    LogisticRegression,
    PoissonRegressor,
    Ridge,
    RidgeClassifier,
)
from expunge.linear.curvature import Curvature

ALL = [
    LogisticRegression(),
    LogisticRegression(multi_class="ovr"),
    Ridge(),
    RidgeClassifier(),
    PoissonRegressor(),
    GammaRegressor(),
    LinearSVC(),
    ElasticNet(),
    HuberRegressor(),
]
REGRESSORS = (Ridge, PoissonRegressor, GammaRegressor, ElasticNet, HuberRegressor)


@parametrize_with_checks(ALL)
def test_scikit_learn_contract(estimator, check):
    check(estimator)


def data(name):
    X, y = {"cancer": load_breast_cancer, "iris": load_iris, "diabetes": load_diabetes}[name](
        return_X_y=True
    )
    return (X / np.abs(X).max(axis=0), y)


@pytest.mark.parametrize("intercept", [True, False])
@pytest.mark.parametrize("weighted", [True, False])
@pytest.mark.parametrize("name", ["cancer", "iris"])
def test_logistic_agrees_with_scikit_learn(name, weighted, intercept):
    X, y = data(name)
    weight = np.random.default_rng(0).uniform(0.5, 2, len(y)) if weighted else None
    ours = LogisticRegression(C=10, fit_intercept=intercept, sigma=1e-6).fit(X, y, weight)
    theirs = linear_model.LogisticRegression(
        C=10, fit_intercept=intercept, solver="newton-cholesky", tol=1e-12, max_iter=1000
    ).fit(X, y, weight)
    np.testing.assert_allclose(ours.coef_, theirs.coef_, atol=2e-5)
    np.testing.assert_allclose(ours.predict_proba(X), theirs.predict_proba(X), atol=1e-5)
    np.testing.assert_allclose(ours.decision_function(X), theirs.decision_function(X), atol=1e-4)


def test_one_vs_rest_agrees_with_scikit_learn():
    X, y = data("iris")
    ours = LogisticRegression(multi_class="ovr", sigma=1e-6).fit(X, y)
    for k in range(3):
        theirs = linear_model.LogisticRegression(tol=1e-12, solver="newton-cholesky").fit(X, y == k)
        np.testing.assert_allclose(ours.coef_[k], theirs.coef_[0], atol=2e-5)


@pytest.mark.parametrize("weighted", [True, False])
def test_ridge_agrees_with_scikit_learn(weighted):
    X, y = data("diabetes")
    weight = np.random.default_rng(0).uniform(0.5, 2, len(y)) if weighted else None
    for target in (y, np.column_stack([y, -2 * y + 1])):
        ours = Ridge(alpha=0.5, sigma=1e-5).fit(X, target, weight)
        theirs = linear_model.Ridge(alpha=0.5).fit(X, target, weight)
        np.testing.assert_allclose(ours.coef_, theirs.coef_, atol=1e-4)
        np.testing.assert_allclose(ours.predict(X), theirs.predict(X), atol=1e-3)
    X, y = data("iris")
    ours, theirs = RidgeClassifier(sigma=1e-7).fit(X, y), linear_model.RidgeClassifier().fit(X, y)
    np.testing.assert_allclose(ours.coef_, theirs.coef_, atol=1e-6)
    assert (ours.predict(X) == theirs.predict(X)).all()


@pytest.mark.parametrize("weighted", [True, False])
@pytest.mark.parametrize("intercept", [True, False])
@pytest.mark.parametrize("name", ["PoissonRegressor", "GammaRegressor"])
def test_log_links_agree_with_scikit_learn(name, intercept, weighted):
    X, _ = data("diabetes")
    rng = np.random.default_rng(0)
    y = rng.poisson(np.exp(X @ rng.standard_normal(10))) + (name == "GammaRegressor") * 0.5
    weight = rng.uniform(0.5, 2, len(y)) if weighted else None
    options = {"alpha": 0.01, "fit_intercept": intercept}
    ours = {"PoissonRegressor": PoissonRegressor, "GammaRegressor": GammaRegressor}[name]
    ours = ours(**options, sigma=1e-6).fit(X, y, weight)
    theirs = getattr(linear_model, name)(**options, solver="newton-cholesky", tol=1e-10)
    theirs.fit(X, y, weight)
    np.testing.assert_allclose(ours.coef_, theirs.coef_, atol=2e-5)
    np.testing.assert_allclose(ours.predict(X), theirs.predict(X), rtol=1e-4)
    assert ours.score(X, y, weight) == pytest.approx(theirs.score(X, y, weight), abs=1e-4)
    with pytest.raises(InvalidInput, match="out of the valid range"):
        ours.fit(X, -y - 1)


@pytest.mark.parametrize("weighted", [True, False])
@pytest.mark.parametrize("scaling", [None, 1.0, 3.0])
@pytest.mark.parametrize("name", ["cancer", "iris"])
def test_support_vectors_agree_with_scikit_learn(name, scaling, weighted):
    X, y = data(name)
    weight = np.random.default_rng(0).uniform(0.5, 2, len(y)) if weighted else None
    options = {"C": 0.5, "fit_intercept": scaling is not None, "intercept_scaling": scaling or 1.0}
    ours = LinearSVC(**options, sigma=1e-7).fit(X, y, weight)
    theirs = svm.LinearSVC(**options, dual=False, tol=1e-12, max_iter=10000).fit(X, y, weight)
    np.testing.assert_allclose(ours.coef_, theirs.coef_, atol=1e-5)
    np.testing.assert_allclose(ours.decision_function(X), theirs.decision_function(X), atol=1e-5)


@pytest.mark.parametrize("weighted", [True, False])
@pytest.mark.parametrize("intercept", [True, False])
@pytest.mark.parametrize("ratio", [0.0, 0.3, 0.95])
def test_elastic_net_agrees_with_scikit_learn(ratio, intercept, weighted):
    X, y = data("diabetes")
    weight = np.random.default_rng(0).uniform(0.5, 2, len(y)) if weighted else None
    options = {"alpha": 0.3, "l1_ratio": ratio, "fit_intercept": intercept}
    ours = ElasticNet(**options, sigma=1e-6).fit(X, y, weight)
    theirs = linear_model.ElasticNet(**options, tol=1e-13, max_iter=10**6).fit(X, y, weight)
    np.testing.assert_allclose(ours.coef_, theirs.coef_, atol=1e-5)
    np.testing.assert_allclose(ours.predict(X), theirs.predict(X), atol=1e-4)
    if ratio:
        solution = ours._lineage.state.weights[:10, 0]
        assert ((solution == 0) == (theirs.coef_ == 0)).all()


def test_elastic_net_needs_no_retained_data_and_a_lasso_is_refused():
    X, y = data("diabetes")
    model = ElasticNet(alpha=0.1).fit(X, y)
    for i in range(0, 300, 3):
        model.unlearn(X[i : i + 3], y[i : i + 3])
    fresh = ElasticNet(alpha=0.1 * len(y) / 142).fit(X[300:], y[300:])
    a, b = model._lineage.state.weights, fresh._lineage.state.weights
    assert np.linalg.norm(a - b) <= 1e-8 * np.linalg.norm(b)
    with pytest.raises(InvalidInput, match="no distance can be proved"):
        ElasticNet(l1_ratio=1.0).fit(X, y)


@pytest.mark.parametrize("weighted", [True, False])
def test_huber_agrees_with_scikit_learn_at_its_scale(weighted):
    X, y = data("diabetes")
    weight = np.random.default_rng(0).uniform(0.5, 2, len(y)) if weighted else None
    y = y - np.median(y)
    theirs = linear_model.HuberRegressor(alpha=0.01, tol=1e-9, max_iter=10000).fit(X, y, weight)
    s = theirs.scale_
    options = {"alpha": 0.01 * s, "threshold": 1.35 * s, "intercept_scaling": 30.0}
    ours = HuberRegressor(**options, sigma=1e-3).fit(X, y, weight)
    np.testing.assert_allclose(ours.coef_, theirs.coef_, atol=0.2)
    np.testing.assert_allclose(ours.predict(X), theirs.predict(X), atol=0.2)


@pytest.mark.parametrize("ours", [LogisticRegression, RidgeClassifier, LinearSVC])
def test_class_weights_agree_with_scikit_learn_and_balanced_is_refused(ours):
    """Of many classes, scikit-learn's LinearSVC weighs positive rows only; ours weighs all."""
    X, y = data("cancer" if ours is LinearSVC else "iris")
    given = {0: 3.0} if ours is LinearSVC else {0: 3.0, 2: 0.25}
    theirs = {
        LogisticRegression: linear_model.LogisticRegression(solver="newton-cholesky", tol=1e-12),
        RidgeClassifier: linear_model.RidgeClassifier(),
        LinearSVC: svm.LinearSVC(dual=False, tol=1e-12),
    }[ours].set_params(class_weight=given)
    model = ours(class_weight=given, sigma=1e-7).fit(X, y)
    np.testing.assert_allclose(model.coef_, theirs.fit(X, y).coef_, atol=1e-5)
    model.unlearn(X[:2], y[:2], retained=(X[2:], y[2:]))
    for bad in ("balanced", {0: -1.0}, {0: np.nan}):
        with pytest.raises(InvalidInput, match="class_weight"):
            ours(class_weight=bad).fit(X, y)


@pytest.mark.parametrize("estimator", [LinearSVC(intercept_scaling=2.0), HuberRegressor()])
def test_penalised_models_continue_from_disk(tmp_path, estimator):
    X, y = data("cancer")
    model = clone(estimator).fit(X, y)
    model.unlearn(X[:1], y[:1], retained=(X[1:], y[1:]))
    model.save_state(tmp_path / "state")
    again = clone(estimator).load_state(tmp_path / "state")
    np.testing.assert_array_equal(again.coef_, model.coef_)
    again.unlearn(X[1:2], y[1:2], retained=(X[2:], y[2:]))
    assert again.n_features_in_ == X.shape[1]
    with pytest.raises(InvalidInput, match="construct it with the same"):
        clone(estimator).set_params(intercept_scaling=3.0).load_state(tmp_path / "state")


@pytest.mark.parametrize("intercept", [True, False])
def test_large_softmax_agrees_with_scikit_learn(intercept):
    X, y = load_digits(return_X_y=True)
    X = np.hstack([X / 16] + [np.roll(X / 16, k, axis=1) for k in range(1, 7)])
    options = {"C": 0.1, "fit_intercept": intercept}
    ours = LogisticRegression(**options, sigma=1e-2).fit(X, y)
    theirs = linear_model.LogisticRegression(**options, tol=1e-9, max_iter=10000).fit(X, y)
    solution = ours._lineage.state.weights[: X.shape[1]].T
    np.testing.assert_allclose(solution, theirs.coef_, atol=1e-4)
    certificate = ours.unlearn(X[:5], y[:5], retained=(X[5:], y[5:]))
    assert certificate.grade == "certified"
    fresh = LogisticRegression(**options, sigma=1e-2).fit(X[5:], y[5:])._lineage.state.weights
    assert np.linalg.norm(fresh - ours._lineage.state.weights) <= 2 * ours.policy_.tolerance


@pytest.mark.parametrize("estimator", ALL, ids=repr)
def test_unlearning_reaches_a_retrain(estimator):
    X, y = data("diabetes" if isinstance(estimator, REGRESSORS) else "iris")
    keep = np.arange(len(y)) % 7 != 0
    gone = clone(estimator).set_params(random_state=3).fit(X, y)
    for rows in np.array_split(np.flatnonzero(~keep), 4):
        keep_now = np.setdiff1d(np.arange(len(y)), np.flatnonzero(~keep)[: rows[-1] // 7 + 1])
        certificate = gone.unlearn(X[rows], y[rows], retained=(X[keep_now], y[keep_now]))
        assert not certificate.production
    fresh = clone(estimator).set_params(random_state=4)
    if isinstance(estimator, PoissonRegressor | GammaRegressor | ElasticNet):
        fresh.set_params(alpha=estimator.alpha * len(y) / keep.sum())
    fresh.fit(X[keep], y[keep])
    a, b = gone._lineage.state.weights, fresh._lineage.state.weights
    assert np.linalg.norm(a - b) <= 2 * gone.policy_.tolerance
    assert not np.array_equal(gone.coef_.T.ravel()[:1], a.ravel()[:1])


def test_ridge_needs_no_retained_data():
    X, y = data("diabetes")
    model = Ridge().fit(X, y)
    for i in range(0, 300, 3):
        model.unlearn(X[i : i + 3], y[i : i + 3])
    fresh = Ridge().fit(X[300:], y[300:])
    a, b = model._lineage.state.weights, fresh._lineage.state.weights
    assert np.linalg.norm(a - b) <= 1e-8 * np.linalg.norm(b)


def test_bad_requests_change_nothing():
    X, y = data("cancer")
    model = LogisticRegression(random_state=0).fit(X, y)
    model.unlearn(X[:1], y[:1], retained=(X[1:], y[1:]))
    before = pickle.dumps((model.coef_, model.intercept_)), model._lineage.members.heads()
    left = (X[2:], y[2:])
    cases = [
        (AlreadyDeleted, lambda: model.unlearn(X[:1], y[:1], retained=left)),
        (UnknownRecord, lambda: model.unlearn(X[1:2] + 1e-9, y[1:2], retained=left)),
        (UnknownRecord, lambda: model.unlearn(X[1:2], 1 - y[1:2], retained=left)),
        (UnknownRecord, lambda: model.unlearn(X[1:2], y[1:2], sample_weight=[2.0], retained=left)),
        (InvalidInput, lambda: model.unlearn(X[[1, 1]], y[[1, 1]], retained=left)),
        (InvalidInput, lambda: model.unlearn(X[1:2], [7], retained=left)),
        (InvalidInput, lambda: model.unlearn(X[1:2], y[1:2], ids=["a"], retained=left)),
        (ValueError, lambda: model.unlearn(X[1:2, :3], y[1:2], retained=left)),
        (ValueError, lambda: model.unlearn(X[:0], y[:0], retained=left)),
        (ValueError, lambda: model.unlearn(X[1:2] * np.nan, y[1:2], retained=left)),
        (ExpungeError, lambda: model.unlearn(X[1:2], y[1:2], retained=(X, y))),
    ]
    for error, call in cases:
        with pytest.raises(error):
            call()
        now = pickle.dumps((model.coef_, model.intercept_)), model._lineage.members.heads()
        assert now == before
    model.unlearn(X[1:2], y[1:2], retained=left)


def test_persons_go_whole():
    X, y = data("cancer")
    people = [f"p{i // 3}" for i in range(len(y))]
    model = LogisticRegression().fit(X, y, ids=people)
    with pytest.raises(IncompletePerson):
        model.unlearn(X[:2], y[:2], ids=people[:2], retained=(X[2:], y[2:]))
    with pytest.raises(InvalidInput):
        model.unlearn(X[:3], y[:3], retained=(X[3:], y[3:]))
    with pytest.raises(InvalidInput, match="retained rows' ids"):
        model.unlearn(X[:3], y[:3], ids=people[:3], retained=(X[3:], y[3:]))
    left = (X[3:], y[3:], None, people[3:])
    certificate = model.unlearn(X[:3], y[:3], ids=people[:3], retained=left)
    assert certificate.guarantee.unit == "person"
    assert certificate.commitments.deleted.count == 3


def test_budget_ends():
    X, y = data("cancer")
    model = LogisticRegression(releases=2).fit(X, y)
    model.unlearn(X[:1], y[:1], retained=(X[1:], y[1:]))
    with pytest.raises(BudgetExhausted, match="epsilon would really be"):
        model.unlearn(X[1:2], y[1:2], retained=(X[2:], y[2:]))


def test_copies_predict_and_cannot_unlearn(tmp_path):
    X, y = data("cancer")
    model = LogisticRegression().fit(X, y)
    for twin in (pickle.loads(pickle.dumps(model)), copy.deepcopy(model)):  # noqa: S301
        assert (twin.predict(X) == model.predict(X)).all()
        with pytest.raises(ExpungeError, match="copy"):
            twin.unlearn(X[:1], y[:1])
    lineage = model._lineage
    for secret in (
        lineage.noise_key,
        lineage.state.weights.tobytes(),
        lineage.members.key.tobytes(),
    ):
        assert secret not in pickle.dumps(model)
    assert repr(model) == "LogisticRegression()"


@pytest.mark.parametrize("estimator", ALL, ids=repr)
def test_state_survives_a_save(estimator, tmp_path):
    X, y = data("diabetes" if isinstance(estimator, REGRESSORS) else "iris")
    model = clone(estimator).fit(X, y)
    model.unlearn(X[:2], y[:2], retained=(X[2:], y[2:]))
    model.save_state(tmp_path / "state")
    assert (tmp_path / "state").stat().st_mode & 0o077 == 0
    again = clone(estimator).load_state(tmp_path / "state")
    np.testing.assert_array_equal(again.predict(X), model.predict(X))
    with pytest.raises(AlreadyDeleted):
        again.unlearn(X[:2], y[:2], retained=(X[2:], y[2:]))
    certificate = again.unlearn(X[2:4], y[2:4], retained=(X[4:], y[4:]))
    assert certificate.budget.release == 3
    with pytest.raises(FolderProblem, match="exists"):
        again.save_state(tmp_path / "state")
    with pytest.raises(FolderProblem, match="no saved state"):
        clone(estimator).load_state(tmp_path)


def test_a_state_may_be_larger_than_other_files(tmp_path, monkeypatch):
    """One factor a class: 20 classes of 4,000 features take 2.6 GB."""
    X, y = data("cancer")
    LogisticRegression().fit(X, y).save_state(tmp_path / "state")
    size = (tmp_path / "state" / "state.safetensors").stat().st_size
    monkeypatch.setattr(regular, "LARGE", size - 1)
    LogisticRegression().load_state(tmp_path / "state").unlearn(
        X[:1], y[:1], retained=(X[1:], y[1:])
    )


def test_frames_pipelines_and_searches():
    X, y = data("cancer")
    names = [f"f{i}" for i in range(X.shape[1])]
    for frame in (pd.DataFrame(X, columns=names), pl.DataFrame(X, schema=names)):
        model = LogisticRegression(random_state=0).fit(frame, y)
        assert list(model.feature_names_in_) == names
        model.unlearn(frame[:2], y[:2], retained=(frame[2:], y[2:]))
    search = GridSearchCV(LogisticRegression(), {"C": [0.1, 10]}, cv=3, n_jobs=2).fit(X, y)
    assert search.best_estimator_.unlearn(X[:1], y[:1], retained=(X[1:], y[1:])).grade
    pipe = make_pipeline(Normalizer(), LogisticRegression()).fit(X, y)
    assert pipe.score(X, y) > 0.85
    assert make_pipeline(MinMaxScaler(), RidgeClassifier()).fit(X, y).score(X, y) > 0.9


def test_sparse_rows_are_deleted_in_either_form():
    X, y = load_digits(return_X_y=True)
    X, y = X[:300] / 16, y[:300]
    for fitted, asked in ((sp.csr_matrix(X), X), (X, sp.csr_matrix(X))):
        model = LogisticRegression().fit(fitted, y)
        model.unlearn(asked[:2], y[:2], retained=(asked[2:], y[2:]))
        with pytest.raises(AlreadyDeleted):
            model.unlearn(fitted[:2], y[:2])


@pytest.mark.parametrize("bad", [0, -1, np.inf, np.nan, "1", None])
def test_parameters_are_checked(bad):
    X, y = data("iris")
    for model in (
        LogisticRegression(C=bad),
        Ridge(alpha=bad),
        RidgeClassifier(alpha=bad),
        PoissonRegressor(alpha=bad),
    ):
        with pytest.raises(ValueError, match="must be a float in the range"):
            model.fit(X, y)
    for name in ("epsilon", "delta", "sigma"):
        with pytest.raises((ValueError, ExpungeError)):
            LogisticRegression(**{name: bad}).fit(X, y)


def test_hardened_noise():
    pytest.importorskip("opendp", reason="the extra `hardened` is not installed")
    X, y = data("cancer")
    model = LogisticRegression(noise="discrete").fit(X, y)
    certificate = model.unlearn(X[:1], y[:1], retained=(X[1:], y[1:]))
    assert certificate.guarantee.kind == "zcdp"
    assert "continuousNoiseModel" not in certificate.trust


def test_unknown_noise():
    X, y = data("cancer")
    with pytest.raises(InvalidInput, match="gaussian"):
        LogisticRegression(noise="none").fit(X, y)


@pytest.mark.parametrize("k", [1, 20, 300])
def test_wrong_retained_rows_are_refused(k):
    """Forgotten weights, people who should be gone, altered values: never a certificate."""
    X, y = data("cancer")
    weight = np.random.default_rng(0).uniform(0.5, 2, len(y))
    model = LogisticRegression().fit(X, y, weight)
    order = np.random.default_rng(1).permutation(len(y))
    gone, left = order[:k], order[k:]
    swapped = np.r_[gone[:1], left[1:]]
    wrong = [
        (X[left], y[left]),
        (X[swapped], y[swapped], weight[swapped]),
        (X[left] + 1e-12, y[left], weight[left]),
        (X[left[1:]], y[left[1:]], weight[left[1:]]),
    ]
    for retained in wrong:
        with pytest.raises(RetainedMismatch):
            model.unlearn(X[gone], y[gone], sample_weight=weight[gone], retained=retained)
    right = (X[left], y[left], weight[left])
    assert model.unlearn(X[gone], y[gone], sample_weight=weight[gone], retained=right).grade


def test_ids_go_by_position():
    X, y = data("cancer")
    weight = np.ones(len(y))
    weight[::5] = 0
    ids = pd.Series([f"p{i}" for i in range(len(y))], index=np.arange(len(y))[::-1])
    model = LogisticRegression().fit(X, y, weight, ids=ids)
    left = np.arange(2, len(y))
    retained = (X[left], y[left], weight[left], ids.iloc[left])
    model.unlearn(X[1:2], y[1:2], ids=["p1"], retained=retained)


def test_unscaled_features_are_certified():
    """Age, a flag and an income need no scaling for the bound to hold."""
    rng = np.random.default_rng(0)
    n = 3000
    X = np.column_stack(
        [rng.integers(18, 90, n), rng.random(n) < 0.1, rng.lognormal(10.5, 0.7, n).round()]
    ).astype(float)
    y = (X[:, 0] / 50 + rng.standard_normal(n) > 1).astype(int)
    kinds = np.minimum(y + (X[:, 1] > 0), 2)
    for model, target in (
        (LogisticRegression(), y),
        (LogisticRegression(), kinds),
        (Ridge(), X[:, 0] + X[:, 1]),
        (RidgeClassifier(), y),
    ):
        model.fit(X, target)
        assert model.unlearn(X[:5], target[:5], retained=(X[5:], target[5:])).grade == "certified"


def test_a_restored_seeded_estimator_draws_new_noise(tmp_path):
    X, y = data("cancer")
    model = LogisticRegression(random_state=0).fit(X, y)
    model.save_state(tmp_path / "state")
    again = LogisticRegression(random_state=0).load_state(tmp_path / "state")
    tags = []
    for one in (model, again):
        noise = one._source(one.policy_, one._lineage.number + 1).normal((3,))
        tags.append(noise.tolist())
    assert tags[0] == tags[1]
    first = model._source(model.policy_, 1).normal((3,)).tolist()
    assert tags[0] != first


def test_the_users_arrays_stay_as_they_are():
    X, y = data("cancer")
    weight = np.ones(len(y))
    weight.setflags(write=False)
    model = LogisticRegression().fit(X, y, weight)
    rows = model.rows(X, y, weight)
    rows.drop(np.array([0]))
    assert weight.all()


def test_parameters_changed_after_fitting_do_not_matter_until_the_next_fit(tmp_path):
    X, y = data("iris")
    model = LogisticRegression(multi_class="ovr").fit(X, y)
    model.save_state(tmp_path / "state")
    model.set_params(multi_class="multinomial")
    model.unlearn(X[:1], y[:1], retained=(X[1:], y[1:]))
    other = LogisticRegression().load_state(tmp_path / "state")
    other.unlearn(X[:1], y[:1], retained=(X[1:], y[1:]))


def test_numpy_scalars_are_parameters():
    X, y = data("iris")
    LogisticRegression(C=np.float32(1), sigma=np.float32(0.1), releases=np.int64(10)).fit(X, y)


def test_a_failed_refit_keeps_the_old_model():
    X, y = data("iris")
    model = LogisticRegression(random_state=0).fit(X, y)
    before = model.coef_.copy(), model.classes_.copy()
    with pytest.raises(ExpungeError):
        model.set_params(sigma=1e-18).fit(X, y > 0)
    np.testing.assert_array_equal(model.coef_, before[0])
    np.testing.assert_array_equal(model.classes_, before[1])


def test_rows_matched_before_are_matched_again_when_they_change():
    """The same features with other targets, other weights or rows that come back."""
    X, y = data("cancer")
    model = LogisticRegression().fit(X, y)
    rows = model.rows(X, y)
    rows.drop(np.array([0]))
    model.unlearn(X[:1], y[:1], retained=rows)
    lineage = model._lineage
    rows.drop(np.array([1]))
    assert lineage.match(rows) is lineage.match(rows)
    flipped = model.rows(X, np.where(np.arange(len(y)) == 5, 1 - y, y), rows.weight)
    heavier = model.rows(X, y, np.where(np.arange(len(y)) == 5, 2.0, rows.weight))
    for wrong in (flipped, heavier):
        with pytest.raises(RetainedMismatch):
            model.unlearn(X[1:2], y[1:2], retained=wrong)
    rows.weight[5] = 2.0
    with pytest.raises(RetainedMismatch):
        model.unlearn(X[1:2], y[1:2], retained=rows)


@pytest.mark.parametrize("named", [False, True])
@pytest.mark.parametrize("which", [0, 1, 2])
def test_one_of_equal_rows_is_deleted_with_the_others_retained(which, named):
    """Without ids equal rows stand for each other, whichever of them is dropped or left out."""
    X, y = data("cancer")
    X[[4, 9]], y[[4, 9]] = X[2], y[2]
    ids = [f"p{i}" for i in range(len(y))] if named else None
    same = [2, 4, 9]
    gone, rest = same[which], np.delete(np.arange(len(y)), same[which])

    def some(index):
        return None if ids is None else [ids[i] for i in index]

    model = LinearSVC().fit(X, y, ids=ids)
    left = (X[rest], y[rest], None, some(rest))
    assert model.unlearn(X[[gone]], y[[gone]], ids=some([gone]), retained=left).grade == "certified"

    model = LinearSVC().fit(X, y, ids=ids)
    rows = model.rows(X, y, ids=ids)
    for index in (100, gone, *(i for i in same if i != gone)):
        asked = index if named else same[0]
        request = (X[[index]], y[[index]]) if index == 100 else (X[[asked]], y[[asked]])
        rows.drop(np.array([index]))
        model.unlearn(*request, ids=some([index]), retained=rows)
    with pytest.raises(AlreadyDeleted):
        model.unlearn(X[[gone]], y[[gone]], ids=some([gone]), retained=rows)
    fresh = LinearSVC().fit(*(part[np.delete(np.arange(len(y)), [*same, 100])] for part in (X, y)))
    a, b = model._lineage.state.weights, fresh._lineage.state.weights
    assert np.linalg.norm(a - b) <= 2 * model.policy_.tolerance


def test_equal_rows_are_not_retained_more_often_than_they_are_left():
    X, y = data("cancer")
    X[[4, 9]], y[[4, 9]] = X[2], y[2]
    model = LinearSVC().fit(X, y)
    rest = np.delete(np.arange(len(y)), 100)
    rest[20] = 2
    with pytest.raises(RetainedMismatch):
        model.unlearn(X[100:101], y[100:101], retained=(X[rest], y[rest]))


@pytest.mark.parametrize("estimator", ALL, ids=repr)
def test_a_failed_refit_changes_no_attribute(estimator):
    X, y = data("diabetes" if isinstance(estimator, REGRESSORS) else "iris")
    model = clone(estimator).fit(pd.DataFrame(X, columns=list(map(str, range(X.shape[1])))), y)
    before = dict(vars(model))
    several = np.column_stack([y, y])
    for other, target, sigma in ((X[:, :2], y, -1.0), (X, np.zeros_like(y), -1.0), (X, several, 0)):
        with pytest.raises((ValueError, ExpungeError)):
            model.set_params(sigma=sigma).fit(other, target)
        model.set_params(sigma=estimator.sigma)
        now = vars(model)
        assert now.keys() == before.keys()
        assert all(now[name] is before[name] for name in before if name != "sigma")


STATES = [
    (LogisticRegression(), RidgeClassifier()),
    (Ridge(), ElasticNet()),
    (ElasticNet(), Ridge()),
    (Ridge(), RidgeClassifier()),
    (LogisticRegression(), LogisticRegression(class_weight={0: 2.0})),
]


@pytest.mark.parametrize(("saved", "loading"), STATES)
def test_a_state_is_continued_by_its_own_estimator_only(tmp_path, saved, loading):
    X, y = data("diabetes" if isinstance(saved, REGRESSORS) else "iris")
    clone(saved).fit(X, y).save_state(tmp_path / "state")
    again = clone(loading)
    before = dict(vars(again))
    with pytest.raises(InvalidInput, match="construct it with the same"):
        again.load_state(tmp_path / "state")
    assert vars(again) == before


@pytest.mark.parametrize("content", [None, b"", b"[", b"[]", b"\xff"])
def test_a_damaged_state_is_named(tmp_path, content):
    X, y = data("iris")
    LogisticRegression().fit(X, y).save_state(tmp_path / "state")
    for name in sorted(path.name for path in (tmp_path / "state").iterdir()):
        assert (tmp_path / "state" / name).stat().st_mode & 0o077 == 0
        kept = (tmp_path / "state" / name).read_bytes()
        (tmp_path / "state" / name).unlink()
        if content is not None:
            (tmp_path / "state" / name).write_bytes(content)
        with pytest.raises(ExpungeError):
            LogisticRegression().load_state(tmp_path / "state").unlearn(X[:1], y[:1])
        (tmp_path / "state" / name).write_bytes(kept)
    LogisticRegression().load_state(tmp_path / "state")


@pytest.mark.parametrize("estimator", [LogisticRegression(), Ridge(), ElasticNet()], ids=repr)
def test_what_cannot_be_folded_into_the_factor_is_saved_without_it(
    tmp_path, monkeypatch, estimator
):
    """The next deletion forms a new Hessian then; nobody's deletion is refused for that."""
    X, y = data("diabetes" if isinstance(estimator, REGRESSORS) else "iris")
    model = clone(estimator).fit(X, y)
    model.unlearn(X[:1], y[:1], retained=(X[1:], y[1:]))

    def hopeless(self):
        raise ToleranceUnreachable("nearly nothing is left")

    with monkeypatch.context() as patched:
        patched.setattr(Curvature, "folded", hopeless)
        model.save_state(tmp_path / "state")
    again = clone(estimator).load_state(tmp_path / "state")
    with pytest.raises(NeedsRetainedData):
        again.unlearn(X[1:2], y[1:2])
    again.unlearn(X[1:2], y[1:2], retained=(X[2:], y[2:]))
    again.save_state(tmp_path / "again")
    again = clone(estimator).load_state(tmp_path / "again")
    again.unlearn(X[2:3], y[2:3], retained=(X[3:], y[3:]))


@pytest.mark.parametrize("ours", [LogisticRegression, RidgeClassifier, LinearSVC])
def test_class_weights_of_labels_that_are_not_there(ours):
    """As in scikit-learn: refused when a label goes without (a typo), else of no effect."""
    X, y = data("iris")
    names = np.array(["setosa", "versicolor", "virginica"])[y]
    for given in ({"setosa": 2.0, "virgnica": 3.0}, {0: 2.0}):
        with pytest.raises(InvalidInput, match="which the data do not have"):
            ours(class_weight=given).fit(X, names)
    ours(class_weight=dict.fromkeys(["setosa", "versicolor", "virginica", "other"], 2.0)).fit(
        X, names
    )


@pytest.mark.parametrize("form", [lambda X, y: X, lambda X, y: [X, y], lambda X, y: (X,)])
def test_retained_rows_of_another_form_are_refused(form):
    X, y = data("iris")
    model = LinearSVC().fit(X, y)
    for retained in (form(X[1:], y[1:]), lambda: form(X[1:], y[1:])):
        with pytest.raises(InvalidInput, match="expected retained rows as a tuple"):
            model.unlearn(X[:1], y[:1], retained=retained)


@pytest.mark.parametrize("bad", [{"releases": 1.5}, {"releases": True}, {"random_state": 1.5}])
def test_whole_numbers_are_whole(bad):
    X, y = data("iris")
    with pytest.raises(InvalidInput, match=next(iter(bad))):
        LogisticRegression(**bad).fit(X, y)


@pytest.mark.parametrize("estimator", ALL, ids=repr)
def test_no_weight_at_all_is_refused(estimator):
    X, y = data("diabetes" if isinstance(estimator, REGRESSORS) else "iris")
    with pytest.raises(ValueError, match="weight"):
        clone(estimator).fit(X, y, np.zeros(len(y)))
