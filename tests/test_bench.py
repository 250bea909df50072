"""The benchmarks run on small data, and their numbers are what they are called."""

from __future__ import annotations

import importlib.util
import sys
from dataclasses import replace

import numpy as np
import pytest
from bench import convex
from bench.convex import Case
from bench.lifetime import accuracy
from bench.peers import __main__ as peers
from bench.peers import ours, private, published, reference
from bench.peers.retrain import retrains
from bench.peers.setting import Setting, digits, fresh, residual
from scipy.stats import norm
from sklearn.datasets import load_digits
from sklearn.linear_model import LogisticRegression

from expunge.datasets import Split

SMALL = Setting(l2=1e-2, releases=50)


def small() -> Case:
    X, y = load_digits(return_X_y=True)
    split = Split(X[:1200] / 16, y[:1200], X[1200:] / 16, y[1200:], (), "digits")
    return replace(digits("small", split), sigma=0.01)


def optimum(case: Case, keep: np.ndarray, penalty: float) -> np.ndarray:
    model = LogisticRegression(
        C=1 / penalty, fit_intercept=False, solver="newton-cholesky", tol=1e-14
    )
    return model.fit(case.X[keep], case.y[keep]).coef_.T


def told(capsys: pytest.CaptureFixture[str]) -> tuple[dict[str, float], str]:
    """Return what was printed, by name, and stderr."""
    out = capsys.readouterr()
    lines = [line.split("\t") for line in out.out.splitlines()]
    assert all(len(line) == 3 for line in lines)
    values = {name: float(value) for name, value, _ in lines}
    assert len(values) == len(lines)
    assert np.isfinite(list(values.values())).all()
    return values, out.err


def test_deleting_against_retraining(capsys):
    convex.run(small(), 3)
    values, _ = told(capsys)
    assert values["small.rows"] == len(small().y)
    assert values["small.epsilon_realised"] <= values["small.epsilon_certified_one"]
    assert values["small.our_residual"] < 1e-3 < values["small.sklearn_default_residual"]


def test_accuracy_is_the_mean_over_the_noise():
    case = small()
    w = optimum(case, np.arange(len(case.y)), 2.0)
    margin = (case.X_test @ w)[:, 0] * (2 * case.y_test - 1)
    exact = norm.cdf(margin / 0.3).mean()
    assert accuracy(case, w, 0.3, seed=0, draws=4000) == pytest.approx(exact, abs=0.003)
    assert accuracy(case, w, 0.0, seed=0, draws=1) == np.mean(margin > 0)


def test_an_intercept_counts():
    case = small()
    w = np.vstack([np.zeros((case.X.shape[1], 1)), [[1.0]]])
    assert accuracy(case, w, 0.0, seed=0, draws=1) == case.y_test.mean()


def test_the_published_features():
    case = small()
    np.testing.assert_allclose(np.linalg.norm(case.X, axis=1), 1.0)
    assert case.X.min() < 0
    assert set(case.y) == {0, 1}
    y = load_digits().target
    kept = np.isin(y[:1200], (3, 8))
    np.testing.assert_array_equal(case.y, y[:1200][kept] == 3)


def test_ours_reaches_the_retrained_model():
    case, order = small(), np.array([5, 0, 17])
    found = ours.removals(case, SMALL, order)
    assert len(found.released) == len(found.engine) == 3
    assert found.covered == 49
    penalty = SMALL.penalty(case)
    for gone, weights in ((order[:0], found.before), (order, found.after)):
        keep = np.setdiff1d(np.arange(len(case.y)), gone)
        assert np.linalg.norm(weights - optimum(case, keep, penalty)) <= 1e-4
    assert np.linalg.norm(found.after - found.before) > 1e-3


def test_retrains_stop_where_they_say():
    case, penalty = small(), SMALL.penalty(small())
    keep = np.arange(1, len(case.y))
    assert residual(case, keep, optimum(case, keep, penalty), penalty) < 1e-9
    zero = np.zeros((case.X.shape[1], 1))
    plain = np.linalg.norm(case.X[keep].T @ (0.5 - case.y[keep]))
    assert residual(case, keep, zero, penalty) == pytest.approx(plain)
    found = {way.name: way for way in retrains(case, SMALL, 0, 1e-6)}
    for start in ("cold", "warm"):
        assert found[f"sklearn_{start}_to_our_residual"].residual < 1e-6
        assert found[f"sklearn_{start}_default"].residual > 1e-6
    assert all(way.seconds > 0 for way in found.values())
    if importlib.util.find_spec("statsmodels"):
        assert found["statsmodels_cold_default"].residual < 0.1


UTILS = """
import torch

def load(folder, name):
    found = torch.load(f"{folder}/{name}_extracted.pth")
    return [found[key] for key in ("X_train", "y_train", "X_test", "y_test")]
"""

SCRIPT = """
import argparse, sys
import torch
from torchvision import datasets, transforms
from utils import load

parser = argparse.ArgumentParser()
for name, kind in (("data-dir", str), ("result-dir", str), ("extractor", str), ("dataset", str),
                   ("train-mode", str), ("lam", float), ("std", float), ("num-steps", int),
                   ("num-removes", int)):
    parser.add_argument("--" + name, type=kind, required=True)
args = parser.parse_args()
if args.std < 0:
    print("no such noise")
    sys.exit(3)
device = torch.device("cuda")
X, y, X_test, y_test = (part.to(device) for part in
                        load(args.data_dir, args.extractor + "_" + args.dataset))
assert isinstance(X.device, torch.device) and X.dtype == torch.float32
w = X.t().mv(2 * y - 1) / len(X) + args.std * torch.randn(X.size(1))
w_approx = w.clone()
perm = torch.randperm(len(X))
times, grad_norm_approx = torch.zeros(args.num_removes), torch.zeros(args.num_removes)
for i in range(args.num_removes):
    w_approx -= X[perm[i]] * (2 * y[perm[i]] - 1) / len(X)
    times[i], grad_norm_approx[i] = 1 + i, args.lam
print("done")
"""


@pytest.fixture
def checkout(tmp_path):
    """A folder with the interface of the reference implementation, and none of its text."""
    if importlib.util.find_spec("torch") is None:
        pytest.skip("needs PyTorch")
    (tmp_path / "utils.py").write_text(UTILS)
    (tmp_path / reference.SCRIPT).write_text(SCRIPT)
    return tmp_path


def test_the_reference_is_run_as_it_is(checkout, capsys):
    assert reference.why_not(checkout) is None
    case, setting = small(), replace(SMALL, std=0.0, l2=0.25)
    found = fresh(reference.removals, checkout, case, setting, 4)
    assert len(set(found.order)) == 4
    np.testing.assert_array_equal(found.seconds, [1, 2, 3, 4])
    np.testing.assert_array_equal(found.bounds, 0.25)
    sign = (2 * case.y - 1)[:, None]
    before = (case.X * sign).mean(axis=0)[:, None]
    np.testing.assert_allclose(found.before, before, atol=1e-6)
    gone = (case.X * sign)[found.order].sum(axis=0)[:, None] / len(case.y)
    np.testing.assert_allclose(found.after, before - gone, atol=1e-6)
    assert [found.supported(b) for b in (0.2, 0.25, 0.6, 9.0)] == [0, 1, 2, 4]
    assert sorted(p.name for p in checkout.iterdir()) == [reference.SCRIPT, "utils.py"]
    assert capsys.readouterr().out == ""


def test_a_reference_that_gives_up_says_why(checkout):
    with pytest.raises(RuntimeError, match=r"stopped with 3: no such noise"):
        fresh(reference.removals, checkout, small(), replace(SMALL, std=-1.0), 4)


def test_a_reference_that_is_not_there(tmp_path):
    assert "--certified-removal" in str(reference.why_not(None))
    assert reference.SCRIPT in str(reference.why_not(tmp_path))


def test_side_by_side(monkeypatch, capsys):
    monkeypatch.setattr(peers, "cases", lambda folder: iter([small()]))
    monkeypatch.setattr(sys, "argv", ["peers", "--quick"])
    peers.main()
    values, errors = told(capsys)
    assert "--certified-removal" in errors
    assert values["small.ours_covered"] == len(small().y) - 1
    assert values["small.ours_residual"] < values["small.sklearn_cold_default_residual"]
    assert not any("reference" in name for name in values)


def test_ratios_are_taken_within_a_round(capsys):
    case, ten = small(), np.full(10, 1.0)
    pairs = []
    for busy, ratio in ((1.0, 10.0), (7.0, 20.0), (1.0, 40.0)):
        theirs = reference.Reference(ten, busy * ratio * ten, ten, case.X, case.X)
        pairs.append((theirs, ours.Ours(1.0, 1.0, busy * ten, busy * ten / 2, case.X, case.X, 1)))
    peers.speed("x", pairs)
    values, _ = told(capsys)
    for kind, factor in (("with", 1), ("without", 2)):
        name = f"x.reference_over_ours_{kind}_release"
        assert values[name] == pytest.approx(20 * factor)
        assert values[f"{name}_least"] == pytest.approx(10 * factor)
        assert values[f"{name}_most"] == pytest.approx(40 * factor)
    assert values["x.reference_median"] == 40
    assert values["x.ours_with_release_mean"] == 3


FAKE = """
class LogisticRegression:
    def __init__(self, **options):
        assert options.pop("epsilon") == 1 and options.pop("C") == 0.5
        assert abs(options.pop("data_norm") - 1) < 1e-9 and options == {"fit_intercept": False}

    def fit(self, X, y):
        assert len(X) == len(y)

    def score(self, X, y):
        return 0.75
"""


def test_private_training(tmp_path, monkeypatch, capsys):
    case, package = small(), tmp_path / "diffprivlib"
    data = {"X": case.X, "y": case.y, "X_test": case.X_test, "y_test": case.y_test}
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "models.py").write_text(FAKE)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    found = private.train(sys.executable, data, 1.0, 2.0, draws=2)
    assert found is not None
    np.testing.assert_array_equal(found.accuracy, [0.75, 0.75])
    (package / "models.py").write_text("raise ImportError('too old')")
    assert private.train(sys.executable, data, 1.0, 2.0, draws=2) is None
    assert "too old" in capsys.readouterr().err


def test_the_published_setting(capsys):
    case = small()
    life = published.life_of(case, replace(SMALL, releases=21), 20)
    published.tell(case, SMALL, life)
    values, _ = told(capsys)
    assert [stop.deleted for stop in life.stops] == list(range(0, 21, 2))
    assert values["small.epsilon_certified"] == pytest.approx(SMALL.epsilon, abs=1e-6)
    assert values["small.mu_realised_worst"] <= values["small.mu_certified"]
    assert values["small.lost_worst"] < 1.0


def test_guo_until_the_budget_is_spent():
    case = small()
    assert published.guo_supported(case, replace(SMALL, l2=0.1, std=100.0), 5) == 5
    assert published.guo_supported(case, replace(SMALL, std=1e-6), 5) == 0
    mean, spread = published.guo_models(case, replace(SMALL, std=1e-9), 2)
    assert spread == 0.0
    assert mean > 0.8
