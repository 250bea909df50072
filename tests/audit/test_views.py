"""Scores of rows: vectors, stability at both ends, and every kind of model."""

from __future__ import annotations

import mpmath as mp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import softmax
from sklearn.linear_model import LogisticRegression, RidgeClassifier
from sklearn.svm import SVC

from expunge.audit import svc
from expunge.audit.views import outputs_of, view
from expunge.errors import InvalidInput

P = np.array([[0.7, 0.2, 0.1], [0.1, 0.8, 0.1], [0.3, 0.3, 0.4]])


def test_vectors():
    found = outputs_of(P, [0, 2, 2])
    assert found.modified_entropy == pytest.approx([0.16216725, 3.37041297, 0.76377941], abs=5e-9)
    assert found.entropy == pytest.approx([0.80181855, 0.63903186, 1.08889998], abs=5e-9)
    published = svc.published_modified_entropy(found)
    assert published == pytest.approx([2.50121665, 4.32316801, 1.75374724], abs=5e-9)
    again = svc.published_modified_entropy(outputs_of(P, [2, 0, 2]))
    assert again == pytest.approx(published, abs=1e-12)
    assert outputs_of([[2.0, 0.0, -1.0]], [0]).phi[0] == pytest.approx(1.68673831, abs=5e-9)


@given(st.lists(st.floats(-600, 600), min_size=2, max_size=5), st.integers(0, 1))
@settings(max_examples=50, deadline=None)
def test_scores_in_extended_precision(logits, label):
    """No cancellation where probabilities are near 0 or 1."""
    with mp.workdps(600):
        z = [mp.mpf(v) for v in logits]
        total = mp.fsum(mp.exp(v) for v in z)
        p = [mp.exp(v) / total for v in z]
        rest = mp.fsum(v for j, v in enumerate(p) if j != label)
        phi, loss = mp.log(p[label] / rest), -mp.log(p[label])
        floor = mp.mpf("1e-30")
        terms = [v * mp.log(max(1 - v, floor)) for j, v in enumerate(p) if j != label]
        modified = -(rest * mp.log(max(p[label], floor)) + mp.fsum(terms))
        found = outputs_of([logits], [label], gives="logits")
        if abs(phi) < 700:
            assert found.phi[0] == pytest.approx(float(phi), rel=1e-9, abs=1e-9)
            assert found.loss[0] == pytest.approx(float(loss), rel=1e-9, abs=1e-300)
            assert found.p_y[0] == pytest.approx(float(p[label]), rel=1e-9)
            assert found.modified_entropy[0] == pytest.approx(float(modified), rel=1e-7, abs=1e-25)


def test_every_kind_of_model_gives_the_same():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(90, 4))
    y = np.array(["a", "b", "c"])[(X[:, 0] > 0).astype(int) + (X[:, 1] > 0)]
    model = LogisticRegression().fit(X, y)
    expected = view(model).outputs(X, y)
    for other in (
        view(model.decision_function, classes=model.classes_),
        view(model.predict_proba, classes=model.classes_),
        view(model.predict_proba, classes=model.classes_, gives="probabilities"),
    ):
        assert other.outputs(X, y).phi == pytest.approx(expected.phi, rel=1e-9)
    assert np.array_equal(expected.correct, (model.predict(X) == y).astype(float))
    assert view(RidgeClassifier().fit(X, y)).outputs(X, y).log_p.shape == (90, 3)


def test_logits_are_used_where_probabilities_saturate():
    """scikit-learn gives 1 − p = 0 where the margin is 60."""
    X, y = np.array([[-60.0], [60.0], [-1.0], [1.0]]), np.array([0, 1, 0, 1])
    model = LogisticRegression(C=1e6).fit(X, y)
    model.coef_, model.intercept_ = np.array([[1.0]]), np.array([0.0])
    assert view(model).outputs(X, y).phi == pytest.approx([60.0, 60.0, 1.0, 1.0])


def test_decision_values_that_are_no_logits_are_not_used():
    rng = np.random.default_rng(1)
    X = rng.normal(size=(60, 2))
    y = (X[:, 0] > 0).astype(int)
    inner = SVC(random_state=0).fit(X, y)

    class Calibrated:
        classes_ = inner.classes_
        decision_function = staticmethod(inner.decision_function)

        @staticmethod
        def predict_proba(X):
            return softmax(np.column_stack([0 * X[:, 0], 3 * inner.decision_function(X)]), axis=1)

    found = view(Calibrated()).outputs(X, y)
    assert found.p == pytest.approx(Calibrated.predict_proba(X), rel=1e-9)


def test_networks_and_expunge():
    torch = pytest.importorskip("torch")
    from expunge.linear import LogisticRegression as Ours

    torch.set_num_threads(1)
    net = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.Dropout(0.5))
    net.train()
    X = np.random.default_rng(0).normal(size=(20, 4))
    found = view(net).outputs(X, np.zeros(20, int))
    assert net.training
    logits = net[0](torch.as_tensor(X, dtype=torch.float32)).detach().double().numpy()
    assert found.log_p == pytest.approx(np.log(softmax(logits, axis=1)), abs=1e-9)
    y = (X[:, 0] > 0).astype(int)
    ours = Ours(random_state=0).fit(X, y)
    assert view(ours).outputs(X, y).p[:, 1] == pytest.approx(ours.predict_proba(X)[:, 1])


def test_binary_columns():
    assert outputs_of([0.0, 2.0], [1, 1]).phi == pytest.approx([0.0, 2.0])
    found = outputs_of([0.5, 0.9], [1, 0], gives="probabilities")
    assert found.p_y == pytest.approx([0.5, 0.1])


@pytest.mark.parametrize(
    ("answers", "y", "gives", "word"),
    [
        ([[1.0, np.nan]], [0], None, "NaN"),
        ([[1.0, np.inf]], [0], None, "NaN"),
        ([[-np.inf, -np.inf]], [0], None, "no possible class"),
        ([[1.0, 2.0]], [0, 1], None, "one label"),
        ([[1.0, 2.0]], [2], None, "whole numbers"),
        ([[1.0, 2.0]], [0.5], None, "whole numbers"),
        ([[1.0, 2.0]], [0], "probabilities", "no probabilities"),
        ([[1.0, 2.0]], [0], "odds", "gives must be"),
        ([[["x"]]], [0], None, "numbers"),
        (np.zeros((2, 2, 2)), [0, 0], None, "rows, classes"),
    ],
)
def test_bad_answers_are_refused(answers, y, gives, word):
    with pytest.raises(InvalidInput, match=word):
        outputs_of(answers, y, gives=gives)


def test_bad_models_are_refused():
    with pytest.raises(InvalidInput, match="no model"):
        view(3)
    with pytest.raises(InvalidInput, match="does not know the label"):
        view(lambda X: X, classes=["a", "b"]).outputs(np.eye(2), ["a", "z"])
