"""Direct, conjugate gradients, Nyström: against dense inverses, and what each says of failure."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from deep_example import CASES, CE, Dense, attention, cnn, mlp, relative
from expunge.deep.curvature import Operator
from expunge.deep.inverse import (
    NotConverged,
    Sketch,
    cg,
    choose,
    direct,
    escalate,
    lissa,
    nystrom_cg,
    sketch,
)
from expunge.deep.network import view
from expunge.errors import InvalidInput

LAMBDA = 1e-2


@pytest.fixture(autouse=True, scope="module")
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


class Matrix:
    """A matrix as an operator, PSD or not."""

    def __init__(self, A, psd=True):
        self.A, self.psd, self.size = A, psd, len(A)

    def __call__(self, V):
        return self.A @ V


def spd(values, seed=0):
    """Return a matrix with these eigenvalues."""
    generator = torch.Generator().manual_seed(seed)
    values = torch.as_tensor(values, dtype=torch.float64)
    Q = torch.linalg.qr(torch.randn(len(values), len(values), generator=generator).double())[0]
    return (Q * values) @ Q.T


def rhs(size, columns=3, seed=1):
    """Return right-hand sides of very different norms."""
    generator = torch.Generator().manual_seed(seed)
    b = torch.randn(size, columns, generator=generator, dtype=torch.float64)
    return b * 10.0 ** torch.arange(0.0, 6 * columns, 6).double()


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("kind", ["ggn", "fisher_empirical"])
@pytest.mark.parametrize("solver", [direct, cg, nystrom_cg])
def test_solutions_are_those_of_the_dense_inverse(name, kind, solver):
    case = CASES[name]()
    net = view(case.module)
    A = Dense(case).matrix(kind) + (LAMBDA + 0.01) * torch.eye(net.size, dtype=torch.float64)
    b = rhs(net.size)
    operator = Operator(kind, net, case.loss, case.data, wd=0.01)
    found = solver(LAMBDA, tol=1e-10).solve(operator, b)
    X = torch.linalg.solve(A, b)
    for x, y, c, r in zip(found.value.T, X.T, b.T, found.info["residuals"], strict=True):
        left = float((c - A @ x).norm() / c.norm())
        assert left <= 1e-10
        assert abs(left - float(r)) < 1e-12
        # ‖x − x*‖ ≤ ‖r‖/(λ + wd), as these matrices have no negative eigenvalue
        assert float((x - y).norm()) <= (float(r) + 1e-13) * float(c.norm()) / (LAMBDA + 0.01)
    assert found.status == "ok"
    assert found.residual == float(found.info["residuals"].max())
    assert found.products > 0
    assert found.seconds > 0


@pytest.mark.parametrize("solver", [direct, cg, nystrom_cg])
def test_a_float32_network_is_solved_beyond_its_own_precision(solver):
    case, exact = attention(torch.float32), attention()
    exact.module.load_state_dict(case.module.state_dict())
    same = type(exact)(exact.module, case.inputs.double(), case.targets, CE)
    net = view(case.module)
    A = Dense(same).ggn() + LAMBDA * torch.eye(net.size, dtype=torch.float64)
    b = torch.randn(net.size)
    found = solver(LAMBDA, tol=1e-9).solve(Operator("ggn", net, CE, case.data), b)
    assert found.value.dtype == torch.float64
    assert relative(A @ found.value, b) < 2e-9
    assert abs(relative(A @ found.value, b) - found.residual) < 1e-11


def test_the_residual_is_the_true_one_not_that_of_the_recursion():
    A = spd(torch.logspace(-1, 3, 60))

    class Rough(Matrix):
        """Products in single precision, exact ones on request."""

        dtype = torch.float32

        def __call__(self, V):
            return (A.float() @ V.float()).double()

        def exact(self):
            return Matrix(A)

    b = rhs(60, 1)[:, 0]
    found = cg(tol=1e-10).solve(Rough(A), b)
    assert relative(A @ found.value, b) < 1e-10
    assert relative(found.value, torch.linalg.solve(A, b)) < 1e-8

    class Wrong(Rough):
        """Products of another matrix: the recursion converges, the solution is not one."""

        def __call__(self, V):
            return super().__call__(V) * 3.0

    found = cg(tol=1e-10, max_iterations=500).solve(Wrong(A), b, strict=False)
    assert found.status == "not_converged"
    assert abs(relative(A @ found.value, b) - found.residual) < 1e-11


def test_nystrom_needs_fewer_iterations_for_the_same_solution():
    values = torch.cat([torch.logspace(3, 0, 20), torch.full((80,), 1e-3)])
    A = Matrix(spd(values))
    b = rhs(100)
    plain, better = (s.solve(A, b) for s in (cg(1e-3), nystrom_cg(1e-3, rank=30)))
    assert relative(better.value, plain.value) < 1e-6
    assert better.iterations < plain.iterations / 4
    assert better.products >= 30


def test_more_rank_needs_fewer_iterations():
    case = cnn()
    net = view(case.module)
    operator = Operator("ggn", net, CE, case.data)
    b = torch.randn(net.size, dtype=torch.float64)
    counts = [nystrom_cg(1e-4, rank=rank).solve(operator, b).iterations for rank in (1, 10, 40)]
    assert counts[0] > counts[1] > counts[2]
    assert counts[0] <= cg(1e-4).solve(operator, b).iterations + 2


def test_a_sketch_serves_every_damping_and_a_matrix_close_by():
    case = mlp()
    net = view(case.module)
    ggn = Operator("ggn", net, CE, case.data)
    hessian = Operator("hessian", net, CE, case.data)
    made = sketch(ggn, net.size, 20)
    b = torch.randn(net.size, dtype=torch.float64)
    for damping in (1.0, 0.5):
        found = nystrom_cg(damping, sketch=made).solve(hessian, b)
        A = Dense(case).hessian() + damping * torch.eye(net.size, dtype=torch.float64)
        assert relative(A @ found.value, b) < 1e-8


def test_a_sketch_of_full_rank_is_the_matrix():
    A = spd(torch.linspace(0.0, 5.0, 12))
    made = sketch(Matrix(A), 12, 12)
    assert relative((made.U * made.eigenvalues) @ made.U.T, A) < 1e-7
    low = sketch(Matrix(A), 12, 4)
    gap = A - (low.U * low.eigenvalues) @ low.U.T
    assert float(torch.linalg.eigvalsh(gap)[0]) > -1e-7  # a Nyström approximation lies below
    assert torch.equal(low.U, sketch(Matrix(A), 12, 4).U)
    assert not torch.equal(low.U, sketch(Matrix(A), 12, 4, seed=1).U)


def test_weight_decay_is_not_sketched_but_not_forgotten():
    case = mlp()
    net = view(case.module)
    bare, decayed = (Operator("ggn", net, CE, case.data, wd=wd) for wd in (0.0, 3.0))
    a, b = (sketch(op, net.size, 15) for op in (bare, decayed))
    assert relative(b.eigenvalues, a.eigenvalues) < 1e-6
    z = torch.randn(net.size, 1, dtype=torch.float64)
    assert relative(b.inverse(1.0)(z), a.inverse(4.0)(z)) < 1e-6


@settings(max_examples=25, deadline=None)
@given(
    size=st.integers(1, 25),
    columns=st.integers(1, 30),
    spread=st.floats(0, 4),
    damping=st.floats(1e-3, 1e3),
    scale=st.floats(-150, 150),
    seed=st.integers(0, 99),
)
def test_every_column_of_any_block_is_solved(size, columns, spread, damping, scale, seed):
    A = spd(torch.logspace(-spread, 0, size), seed)
    b = rhs(size, columns, seed)[:, :columns] / 10.0 ** (3.0 * columns) * 10.0**scale
    b[:, seed % columns] = 0.0
    for solver in (direct(damping), cg(damping), nystrom_cg(damping, rank=5)):
        found = solver.solve(Matrix(A), b)
        left = b - A @ found.value - damping * found.value
        norms = b.abs().amax(0)
        assert bool((left.abs().amax(0) <= 1e-7 * norms).all())
        assert float(found.value[:, seed % columns].abs().max()) == 0.0
        assert found.value.shape == b.shape


def test_the_smallest_numbers_and_nothing():
    A = Matrix(spd([1.0, 2.0, 3.0]))
    for solver in (direct(), cg(), nystrom_cg(1e-9, rank=2)):
        tiny = solver.solve(A, torch.full((3,), 1e-300, dtype=torch.float64))
        assert relative(A(tiny.value) * 1e300, torch.ones(3)) < 1e-7
        none = solver.solve(A, torch.zeros(3))
        assert none.residual == 0.0
        assert torch.equal(none.value, torch.zeros(3).double())


def test_a_column_that_is_done_costs_nothing_more():
    A = spd(torch.logspace(-3, 0, 50))
    Q = torch.linalg.eigh(A)[1]
    easy = torch.stack([Q[:, i] for i in range(9)], 1)
    hard = torch.cat([easy, rhs(50, 1)], 1)
    found = cg().solve(Matrix(A), hard)
    alone = cg().solve(Matrix(A), hard[:, 9])
    assert found.products <= alone.products + 60


def test_indefinite_systems_are_never_ok():
    case = mlp(seed=3)
    net = view(case.module)
    H = Dense(case).hessian()
    least = float(torch.linalg.eigvalsh(H)[0])
    assert least < -1e-3
    operator = Operator("hessian", net, CE, case.data)
    damping = -least / 2
    A = H + damping * torch.eye(net.size, dtype=torch.float64)
    for seed in range(5):
        b = torch.randn(net.size, generator=torch.Generator().manual_seed(seed)).double()
        for solver in (
            direct(damping),
            cg(damping),
            nystrom_cg(damping, sketch=sketch(Operator("ggn", net, CE, case.data), net.size, 9)),
        ):
            found = solver.solve(operator, b, strict=False)
            assert found.status == "negative_curvature"
            assert least - 1e-12 <= found.info["curvature"] <= -damping
            with pytest.raises(NotConverged, match="more damping") as caught:
                solver.solve(operator, b)
            assert caught.value.solution.status == "negative_curvature"
        truncated = cg(damping).solve(operator, b, strict=False)
        assert relative(truncated.value, torch.linalg.solve(A, b)) > 0.1
    assert found.info["curvature"] == pytest.approx(least, abs=-least)


@settings(max_examples=60, deadline=None)
@given(
    size=st.integers(2, 30),
    negative=st.floats(1e-3, 10),
    tol=st.floats(1e-10, 0.1),
    seed=st.integers(0, 999),
)
def test_no_indefinite_matrix_is_solved_unless_its_negative_part_is_not_asked_for(
    size, negative, tol, seed
):
    values = torch.cat([torch.tensor([-negative]), torch.logspace(-2, 1, size - 1)])
    A = spd(values, seed)
    b = rhs(size, 1, seed)[:, 0]
    found = cg(tol=tol).solve(Matrix(A), b, strict=False)
    values, Q = torch.linalg.eigh(A)
    share = abs(float(Q[:, 0] @ b)) / float(b.norm())
    if share > tol:
        assert found.status == "negative_curvature"
        assert found.info["curvature"] >= float(values[0]) - 1e-9


def test_negative_curvature_of_one_column_is_that_of_all():
    A = torch.diag(torch.tensor([-1.0, 1.0, 2.0], dtype=torch.float64))
    b = torch.tensor([[0.0, 1.0], [1.0, 1.0], [1.0, 1.0]], dtype=torch.float64)
    found = cg().solve(Matrix(A), b, strict=False)
    assert found.status == "negative_curvature"
    assert relative(A @ found.value[:, 0], b[:, 0]) < 1e-8  # this one is solved
    assert float(found.info["residuals"][1]) > 0.1


def test_a_flatness_threshold_stops_earlier():
    A = Matrix(spd([1e-6, 1.0, 2.0]))
    assert cg().solve(A, torch.ones(3)).status == "ok"
    found = cg(flat=1e-3).solve(A, torch.ones(3), strict=False)
    assert found.status == "negative_curvature"
    assert 0.0 < found.info["curvature"] <= 1e-3


def test_too_few_iterations_are_an_error():
    A = Matrix(spd(torch.logspace(-4, 0, 80)))
    b = rhs(80, 1)[:, 0]
    for solver in (cg(max_iterations=5), nystrom_cg(1e-9, max_iterations=2, rank=2)):
        with pytest.raises(NotConverged, match="allow more iterations") as caught:
            solver.solve(A, b)
        found = caught.value.solution
        assert found.status == "not_converged"
        assert found.iterations == solver.max_iterations
        left = relative(A(found.value) + solver.damping * found.value, b)
        assert left == pytest.approx(found.residual, rel=1e-9)
        assert left > solver.tol
        with pytest.raises(NotConverged):
            found.require()


def test_a_singular_system_is_not_solved():
    A = spd([0.0, 0.0, 1.0, 2.0])
    b = torch.tensor([1.0, 2.0, 3.0, 4.0])
    for solver in (direct(), cg()):
        assert solver.solve(Matrix(A), b, strict=False).status != "ok"
    inside = A @ b.double()
    assert relative(A @ cg().solve(Matrix(A), inside).value, inside) < 1e-8


def test_the_matrix_of_zeros():
    A, b = Matrix(torch.zeros(3, 3).double()), torch.ones(3)
    for solver in (direct, cg, nystrom_cg):
        assert relative(solver(2.0).solve(A, b).value, b / 2) < 1e-12
        assert solver(0.0).solve(A, b, strict=False).status == "negative_curvature"


def test_numbers_that_are_none_are_found_out():
    A = spd([1.0, 2.0, 3.0])
    A[0, 0] = torch.nan
    for solver in (
        direct(),
        cg(),
        cg(1.0),
        nystrom_cg(1.0, sketch=sketch(Matrix(spd([1, 2, 3])), 3, 2)),
    ):
        found = solver.solve(Matrix(A), torch.ones(3), strict=False)
        assert found.status == "diverged"
        with pytest.raises(NotConverged):
            found.require()
    with pytest.raises(InvalidInput, match="not finite"):
        sketch(Matrix(A), 3, 2)


def test_what_is_refused():
    A = Matrix(spd([1.0, 2.0, 3.0]))
    b = torch.ones(3)
    for solver in (direct, cg, nystrom_cg):
        for damping in (-1.0, float("nan"), float("inf")):
            with pytest.raises(InvalidInput, match="damping"):
                solver(damping).solve(A, b)
        for wrong in (b / 0.0, torch.ones(3, 0), torch.ones(0), torch.ones(3, 1, 1)):
            with pytest.raises(InvalidInput, match="right-hand side"):
                solver().solve(A, wrong)
    for tol in (0.0, 1.0, -1.0):
        with pytest.raises(InvalidInput, match="tol"):
            cg(tol=tol).solve(A, b)
    with pytest.raises(InvalidInput, match=r"positive semidefinite.*sketch of the ggn"):
        nystrom_cg(1.0).solve(Matrix(A.A, psd=False), b)
    with pytest.raises(InvalidInput, match="negative eigenvalue"):
        sketch(Matrix(spd([-1.0, 1.0, 2.0])), 3, 3)
    for rank in (0, 4):
        with pytest.raises(InvalidInput, match="rank"):
            sketch(A, 3, rank)
    flat = Sketch(torch.eye(3).double()[:, :2], torch.tensor([1.0, 0.0]).double(), 0.0, 2)
    with pytest.raises(InvalidInput, match="singular"):
        nystrom_cg(0.0, sketch=flat).solve(A, b)
    with pytest.raises(InvalidInput, match="too large"):
        direct().solve(lambda v: v, torch.zeros(30_000))
    with pytest.raises(InvalidInput, match="needs an Operator"):
        lissa(1.0).solve(A, b)


def test_damping_is_raised_until_it_is_enough():
    case = mlp(seed=3)
    net = view(case.module)
    H, eye = Dense(case).hessian(), torch.eye(net.size, dtype=torch.float64)
    operator, b = Operator("hessian", net, CE, case.data), torch.randn(net.size).double()
    least = float(torch.linalg.eigvalsh(H)[0])
    for start in (direct(1e-6), cg(1e-6)):
        solver, found = escalate(start, operator, b)
        assert -least < solver.damping < 100.0 * -least + 1e-2
        assert relative((H + solver.damping * eye) @ found.value, b) < 1e-8
    enough = cg(-2 * least)
    assert escalate(enough, operator, b)[0] is enough
    with pytest.raises(NotConverged, match="more damping"):
        escalate(cg(1e-6), operator, b, attempts=1)
    with pytest.raises(NotConverged, match="more iterations"):
        escalate(cg(1.0, max_iterations=1, tol=1e-12), operator, b)


def test_the_choice():
    A = Matrix(torch.eye(3).double())
    assert isinstance(choose(A, 4_000), direct)
    assert isinstance(choose(A, 10_000), cg)
    assert isinstance(choose(A, 10_000, 2), nystrom_cg)
    assert isinstance(choose(Matrix(A.A, psd=False), 10_000, 2), cg)
    assert isinstance(choose(A, 10_000, 1_001), direct)
    assert isinstance(choose(A, 10**6, 200_000), nystrom_cg)
    assert choose(A, 10_000, damping=0.5).damping == 0.5


def test_an_operator_on_another_device_is_followed():
    class Meta(Matrix):
        device = torch.device("cpu")

    found = cg(0.1).solve(Meta(spd([1.0, 2.0])), torch.ones(2))
    assert found.value.device.type == "cpu"
