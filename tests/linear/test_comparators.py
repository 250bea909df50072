"""The published methods: vectors, bounds against dense retrains, and the certificate that fails."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.datasets import load_diabetes

from expunge.errors import InvalidCalibration, InvalidInput, ToleranceUnreachable
from expunge.guarantee import Grade, delta_of, mu_of
from expunge.linear.comparators import METHODS, pose
from expunge.linear.comparators.descent import (
    DescentToDelete,
    NoisyDescent,
    contraction,
    descent_mu,
    neel_sigma,
)
from expunge.linear.comparators.influence import Influence
from expunge.linear.comparators.projective import Projective
from expunge.linear.comparators.sekhari import Sekhari, sekhari_shift
from expunge.linear.rows import make_rows
from expunge.noise import OsEntropy, Seeded
from oracles import derivatives, digits38, minimiser


class Silent:
    """A noise source without noise, to see what is under it."""

    name, production = "none", False

    def normal(self, shape):
        return np.zeros(shape)


def digits():
    X, y = digits38()
    return make_rows(X, y, intercept=False)


def retrained(problem):
    keep = np.delete(np.arange(problem.rows.X.shape[0]), problem.forget)
    X, y = problem.rows.X[keep], problem.rows.target[keep]
    return minimiser(X, y, np.ones(len(keep)), problem.loss, problem.ridge_after, False)


def residual(problem, w):
    keep = np.delete(np.arange(problem.rows.X.shape[0]), problem.forget)
    X, y = problem.rows.X[keep].astype(np.longdouble), problem.rows.target[keep]
    penalty = np.full((X.shape[1], 1), problem.ridge_after, dtype=np.longdouble)
    g, _ = derivatives(X, y, np.ones(len(keep)), problem.loss, penalty, w.astype(np.longdouble))
    return float(np.linalg.norm(g.astype(float)))


def random_problem(seed, k, l2, per_record):
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((80, 4))
    X /= np.maximum(np.linalg.norm(X, axis=1, keepdims=True), 1.0)
    y = np.where(rng.random((80, 1)) < 0.5, 1.0, -1.0)
    rows = make_rows(X, y, intercept=False)
    return pose(rows, np.arange(k), l2=l2, per_record=per_record)


def diabetes(count):
    X, y = load_diabetes(return_X_y=True)
    rows = make_rows(X, y, intercept=False)
    return pose(rows, np.arange(count), l2=1.0, loss="squared")


@pytest.mark.parametrize(
    ("l2", "count", "per_record", "r", "claim", "repaired"),
    [
        (1.0, 1, True, 1.3859e-3, 6.82e-5, 1.3958e-3),
        (0.1, 1, True, 1.7764e-3, 1.3551e-3, 1.9403e-3),
        (100.0, 10, False, 1.3180e-2, 6.107e-3, 1.3823e-2),
    ],
)
def test_certificate_of_the_influence_step_is_false(l2, count, per_record, r, claim, repaired):
    """N2 and T6: Corollary 1 does not bound the residual of an influence step; the repair does."""
    problem = pose(digits(), np.arange(count), l2=l2, per_record=per_record)
    false, mended = (Influence(repaired=kind).unlearn(problem) for kind in (False, True))
    true = residual(problem, false.weights)
    assert true == pytest.approx(r, rel=1e-3)
    assert false.bound == pytest.approx(claim, rel=1e-3)
    assert mended.bound == pytest.approx(repaired, rel=1e-3)
    assert false.bound < true <= mended.bound
    assert false.grade is mended.grade is Grade.heuristic


def test_vectors_of_the_formulae():
    """T7."""
    assert sekhari_shift(0.25, 1.0, 0.01, 10_000, 10) == pytest.approx(0.5, rel=1e-12)
    sigma = neel_sigma(contraction(1.25, 1.0), 1.0, 1.0, 10_000, 5, 1.0, 1e-4)
    assert sigma == pytest.approx(5.96860641e-8, rel=1e-8)
    assert descent_mu(1.0, 0.2, 0.9, 30) == pytest.approx(0.0924725119, rel=1e-9)


def test_projective_update_on_diabetes():
    """T7: the update reaches the projection of the exact one and no further."""
    problem = diabetes(3)
    truth = retrained(problem)
    moved = Projective().unlearn(problem).weights
    assert np.linalg.norm(problem.weights) == pytest.approx(511.59512410, rel=1e-9)
    assert np.linalg.norm(problem.weights - truth) == pytest.approx(16.777391, rel=1e-6)
    assert np.linalg.norm(moved - truth) == pytest.approx(4.608232, rel=1e-6)
    U = problem.forgotten.X
    P = U.T @ np.linalg.pinv(U.T)
    expected = problem.weights + P @ (truth - problem.weights)
    assert moved == pytest.approx(expected, rel=1e-9)


def test_sharpness_of_the_noisy_descent_on_a_quadratic():
    """The bound is attained: gap q^K Z, variance s²Σq^{2j}."""
    q, steps_, s, gap = 0.8, 7, 0.3, 2.0
    shift, spread = q**steps_ * gap, s * math.sqrt(sum(q ** (2 * j) for j in range(steps_)))
    assert descent_mu(gap, s, q, steps_) == pytest.approx(shift / spread, rel=1e-12)


@settings(max_examples=20, deadline=None)
@given(
    seed=st.integers(0, 10_000),
    k=st.integers(1, 5),
    l2=st.sampled_from([0.5, 2.0, 20.0]),
    per_record=st.booleans(),
)
def test_distances_are_as_claimed(seed, k, l2, per_record):
    """Sekhari and Descent-to-Delete, before noise, and the influence repair."""
    problem = random_problem(seed, k, l2 / 80 if per_record else l2, per_record)
    truth = retrained(problem)
    methods = [DescentToDelete(4, 1.0, 1e-5, Silent())]
    methods += [Sekhari(1.0, 1e-5, Silent())] if per_record else []
    for method in methods:
        result = method.unlearn(problem)
        distance = np.linalg.norm(result.noiseless - truth)
        assert distance <= result.bound
        shift = distance + problem.tolerance / problem.ridge_after
        assert shift / result.sigma <= mu_of(1.0, 1e-5)
    found = Influence().unlearn(problem)
    assert residual(problem, found.weights) <= found.bound
    assert np.linalg.norm(problem.weights - truth) <= problem.minimiser_shift + 1e-6


def test_descent_to_delete_keeps_its_error_over_many_deletions():
    """P12: 30 single deletions stay within Sq^I/(1 − q^I)."""
    problem = pose(digits(), np.array([0]), l2=10.0)
    w = problem.weights
    method = DescentToDelete(6, 1.0, 1e-5, Silent())
    for i in range(30):
        step = replace(
            problem,
            rows=problem.rows.without(np.arange(i)),
            forget=np.array([i]),
            weights=w,
        )
        result = method.unlearn(step)
        w = result.noiseless
        full = replace(problem, forget=np.arange(i + 1))
        assert np.linalg.norm(w - retrained(full)) <= result.bound


def test_noisy_descent_hides_the_start():
    """Two worlds, same noise: what is left of the gap is below the claim."""
    problem = pose(digits(), np.arange(5), l2=20.0)
    method = NoisyDescent(15, 1.0, 1e-5, Seeded(7))
    ours = method.unlearn(problem)
    other = replace(problem, weights=retrained(problem))
    theirs = NoisyDescent(15, 1.0, 1e-5, Seeded(7)).unlearn(other)
    q = contraction(problem.smoothness, problem.ridge_after)
    spread = ours.sigma * math.sqrt((1 - q**30) / (1 - q**2))
    gap = np.linalg.norm(ours.weights - theirs.weights)
    assert 0 < gap / spread <= mu_of(1.0, 1e-5)


def test_more_steps_need_less_noise():
    problem = pose(digits(), np.arange(5), l2=20.0)
    for kind in (NoisyDescent, DescentToDelete):
        few, many = (kind(count, 1.0, 1e-5, Silent()).unlearn(problem) for count in (2, 20))
        assert many.sigma < 0.1 * few.sigma


def test_published_calibrations_are_at_least_as_large_or_refused():
    problem = pose(digits(), np.array([0]), l2=0.05, per_record=True)
    for name in ("sekhari", "descentToDelete"):
        extra = {} if name == "sekhari" else {"steps": 3}
        paper, ours = (
            METHODS[name](
                epsilon=1.0, delta=1e-5, source=Silent(), calibration=kind, **extra
            ).unlearn(problem)
            for kind in ("paper", "library")
        )
        assert delta_of(1.0, paper.bound / paper.sigma) <= 1e-5
        assert paper.sigma > ours.sigma
    with pytest.raises(InvalidCalibration):
        Sekhari(9.0, 1e-4, Silent(), "paper").unlearn(problem)


def test_no_grade_is_above_conditional():
    logistic = pose(digits(), np.array([0]), l2=0.05, per_record=True)
    made = {
        "sekhari": Sekhari(1.0, 1e-5, OsEntropy()),
        "descentToDelete": DescentToDelete(3, 1.0, 1e-5, OsEntropy()),
        "noisyDescent": NoisyDescent(3, 1.0, 1e-5, OsEntropy()),
        "influence": Influence(),
        "projective": Projective(),
    }
    assert made.keys() == METHODS.keys()
    for name, method in made.items():
        assert type(method) is METHODS[name]
        result = method.unlearn(diabetes(2) if name == "projective" else logistic)
        assert result.grade in (Grade.conditional, Grade.heuristic)
        assert (result.guarantee.kind == "none") == (name in ("influence", "projective"))
        assert result.weights.shape == (result.weights.size, 1)


def test_what_a_method_cannot_do_is_refused():
    fixed = pose(digits(), np.array([0]), l2=1.0)
    with pytest.raises(InvalidInput, match="per record"):
        Sekhari(1.0, 1e-5, Silent()).unlearn(fixed)
    with pytest.raises(InvalidInput, match="squared"):
        Projective().unlearn(fixed)
    with pytest.raises(InvalidInput, match="slopes"):
        DescentToDelete(3, 1.0, 1e-5, Silent()).unlearn(diabetes(1))
    with pytest.raises(InvalidInput, match="slopes"):
        NoisyDescent(3, 1.0, 1e-5, Silent()).unlearn(diabetes(1))
    with pytest.raises(InvalidInput, match="logistic"):
        Influence().unlearn(diabetes(1))
    loose = replace(fixed, tolerance=1.0)
    with pytest.raises(InvalidInput, match="steady-state"):
        DescentToDelete(200, 1.0, 1e-5, Silent()).unlearn(loose)
    with pytest.raises(InvalidInput, match="norm"):
        pose(digits(), np.array([0]), l2=1.0, norm=0.5)
    with pytest.raises(InvalidInput, match="cannot delete"):
        pose(digits(), np.arange(357), l2=1.0)
    with pytest.raises(ToleranceUnreachable):
        pose(digits(), np.array([0]), l2=1.0, tolerance=1e-16)
