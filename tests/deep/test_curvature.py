"""Products and diagonals against dense autograd, curvlinops and finite differences."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from deep_example import CASES, CE, Dense, cnn, half_square, mlp, relative, scores, words
from expunge.deep.batches import as_batches
from expunge.deep.curvature import KINDS, Operator, gradient, product
from expunge.deep.inverse import cg, direct
from expunge.deep.network import UnsupportedModel, view
from expunge.deep.objective import Objective
from expunge.deep.records import diagonal, record_gradients, record_jacobians
from expunge.errors import InvalidInput

WD = 0.03
FISHER = ("fisher_empirical", "fisher_true")


@pytest.fixture(autouse=True, scope="module")
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def pieces(data, sizes):
    """Cut a whole into batches of these sizes."""
    whole = as_batches(data)
    ends = [sum(sizes[: i + 1]) for i in range(len(sizes))]
    return [whole.take(list(range(e - s, e))) for s, e in zip(sizes, ends, strict=True)]


MATRICES = [(name, kind) for name in CASES for kind in KINDS]
MATRICES.remove(("scores", "fisher_true"))  # no labels


@pytest.mark.parametrize(("name", "kind"), MATRICES)
def test_matrices_are_those_of_dense_autograd(name, kind):
    case = CASES[name]()
    net, dense = view(case.module), Dense(case)
    assert net.size == len(dense.w)
    eye = torch.eye(net.size, dtype=torch.float64)
    expected = dense.matrix(kind) + WD * eye
    assert relative(Operator(kind, net, case.loss, case.data, wd=WD).dense(), expected) < 1e-12
    v = torch.randn(net.size, dtype=torch.float64)
    for form in (case.data, pieces(case.data, [4, 4, 3]), pieces(case.data, [1, 7, 3])):
        for chunk in (None, 1, 5):
            found = product(kind, net, case.loss, form, v, wd=WD, chunk=chunk)
            assert relative(found, expected @ v) < 1e-12


@pytest.mark.parametrize("name", CASES)
def test_gradients_and_jacobians_of_records(name):
    case = CASES[name]()
    net, dense = view(case.module), Dense(case)
    expected = dense.gradient() + WD * dense.w
    for form in (case.data, pieces(case.data, [4, 4, 3])):
        for chunk in (None, 3):
            found = gradient(net, case.loss, form, wd=WD, chunk=chunk)
            assert relative(found, expected) < 1e-12
            each = torch.cat(list(record_gradients(net, case.loss, form, chunk=chunk)))
            assert relative(each.mean(0), dense.gradient()) < 1e-12
            J = torch.cat(list(record_jacobians(net, form, chunk=chunk)))
            assert relative(J, dense.jacobian()) < 1e-12


@pytest.mark.parametrize(("name", "kind"), [m for m in MATRICES if m[1] in FISHER])
def test_diagonals(name, kind):
    case = CASES[name]()
    expected = Dense(case).matrix(kind).diagonal() + WD
    for chunk in (None, 1, 4):
        found = diagonal(kind, view(case.module), case.loss, case.data, wd=WD, chunk=chunk)
        assert relative(found, expected) < 1e-12


def test_true_fisher_is_the_gauss_newton_matrix_of_cross_entropy():
    case = cnn()
    net = view(case.module)
    ggn = Operator("ggn", net, CE, case.data).dense()
    assert relative(Operator("fisher_true", net, CE, case.data).dense(), ggn) < 1e-12
    assert relative(diagonal("fisher_true", net, CE, case.data), ggn.diagonal()) < 1e-12
    empirical = diagonal("fisher_empirical", net, CE, case.data)
    assert relative(empirical, ggn.diagonal()) > 0.1


def test_true_fisher_of_one_logit():
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(3, 1), nn.Flatten(0)).double()
    X, y = torch.randn(6, 3).double(), torch.tensor([0.0, 1, 1, 0, 1, 0])

    def loss(f, t):
        return F.binary_cross_entropy_with_logits(f, t, reduction="none")

    q = torch.sigmoid(net(X)).detach()
    Z = torch.cat([X, torch.ones(6, 1)], 1)
    expected = (Z.T * (q * (1 - q))) @ Z / 6
    found = Operator("fisher_true", view(net), loss, (X, y)).dense()
    assert relative(found, expected) < 1e-12
    assert relative(diagonal("fisher_true", view(net), loss, (X, y)), expected.diagonal()) < 1e-12


def test_batch_grad_sq_is_neither_and_depends_on_the_batches():
    case = mlp()
    net = view(case.module)
    found = [
        diagonal("batch_grad_sq", net, CE, pieces(case.data, sizes))
        for sizes in ([4, 4, 3], [11], [1] * 11)
    ]
    assert relative(found[1], Dense(case).gradient() ** 2) < 1e-12
    assert relative(found[2], Dense(case).fisher_empirical().diagonal()) < 1e-12
    assert relative(found[0], found[1]) > 0.1


@pytest.mark.parametrize(("name", "kind"), MATRICES)
def test_float32(name, kind):
    case, exact = CASES[name](torch.float32), CASES[name]()
    net, v = view(case.module), torch.randn(len(Dense(case).w))
    found = product(kind, net, case.loss, case.data, v)
    assert found.dtype == torch.float32
    wanted = Dense(exact).matrix(kind) @ v.double()
    assert relative(found, wanted) < 1e-4
    at = view(exact.module).vector()
    raised = product(kind, net, case.loss, case.data, v.double(), at=at)
    lifted = product(kind, net, exact.loss, exact.data, v.double(), at=at)
    assert raised.dtype == torch.float64
    assert relative(raised, lifted) < 1e-6


def test_exact_is_the_same_matrix_in_float64():
    case = cnn(torch.float32)
    operator = Operator("ggn", view(case.module), CE, case.data)
    double = operator.exact()
    assert double.dtype == torch.float64
    assert operator.exact() is double
    assert double.exact() is double
    case64 = cnn(torch.float64)
    case64.module.load_state_dict(case.module.state_dict())
    same = type(case64)(case64.module, case.inputs.double(), case.targets, CE)
    assert relative(double.dense(), Dense(same).ggn()) < 1e-12


def three_hvps(case, v):
    """Double backward, forward over reverse, and both by `torch.func`: all in one batch."""
    dense = Dense(case)
    w = dense.w.clone().requires_grad_()
    (g,) = torch.autograd.grad(dense.mean(w), w, create_graph=True)
    yield torch.autograd.grad(g @ v, w)[0]
    yield torch.func.jvp(torch.func.grad(dense.mean), (dense.w,), (v,))[1]
    yield torch.func.vjp(torch.func.grad(dense.mean), dense.w)[1](v)[0]


@pytest.mark.parametrize(("dtype", "slack"), [(torch.float64, 1e-12), (torch.float32, 1e-4)])
def test_three_ways_to_a_hessian_product_agree(dtype, slack):
    for make in (mlp, cnn):
        case = make(dtype)
        net = view(case.module)
        v = torch.randn(net.size, dtype=dtype)
        kept = Operator("hessian", net, CE, case.data)
        passing = Operator("hessian", net, CE, case.data, memory=0)
        for other in (*three_hvps(case, v), passing(v)):
            assert relative(kept(v), other) < slack


def test_finite_differences():
    case = mlp()
    net = view(case.module)
    w, v = net.vector(), torch.randn(net.size, dtype=torch.float64)
    v, h = v / v.norm(), 1e-5
    ahead, behind = (gradient(net, CE, case.data, at=w + s * h * v, wd=WD) for s in (1, -1))
    found = product("hessian", net, CE, case.data, v, wd=WD)
    assert relative(found, (ahead - behind) / (2 * h)) < 1e-7


@settings(max_examples=15, deadline=None)
@given(
    kind=st.sampled_from(KINDS),
    sizes=st.lists(st.integers(1, 6), min_size=2, max_size=4),
    chunk=st.integers(1, 20),
    wd=st.floats(0, 2),
    seed=st.integers(0, 9),
)
def test_products_are_linear_symmetric_and_blind_to_batches(kind, sizes, chunk, wd, seed):
    case = mlp(seed=seed)
    n = sum(sizes)
    X, y = torch.randn(n, 4, dtype=torch.float64), torch.randint(3, (n,))
    net = view(case.module)
    whole = Operator(kind, net, CE, (X, y), wd=wd)
    cut = Operator(kind, net, CE, pieces((X, y), sizes), wd=wd, chunk=chunk, memory=0)
    U = torch.randn(net.size, 3, dtype=torch.float64)
    AU = whole(U)
    assert relative(cut(U), AU) < 1e-12
    gram = U.T @ AU
    assert float((gram - gram.T).abs().max()) <= 1e-10 * float(gram.abs().max())
    assert (
        relative(
            whole(U @ torch.tensor([1.0, -2, 0.5]).double()), AU[:, 0] - 2 * AU[:, 1] + AU[:, 2] / 2
        )
        < 1e-10
    )
    assert relative(torch.stack([whole(u) for u in U.T], 1), AU) < 1e-12
    if kind != "hessian":
        assert whole.psd
        assert float(torch.linalg.eigvalsh(gram)[0]) > -1e-12


def test_a_mean_of_batch_means_would_be_wrong():
    case = mlp()
    net, v = view(case.module), torch.randn(43, dtype=torch.float64)
    parts = pieces(case.data, [10, 1])
    right = product("ggn", net, CE, parts, v)
    wrong = sum(product("ggn", net, CE, part, v) for part in parts) / 2
    assert relative(right, Dense(case).ggn() @ v) < 1e-12
    assert relative(wrong, right) > 0.05


@pytest.mark.parametrize("kind", KINDS)
def test_repetition_gives_the_same_bits(kind):
    case = cnn(torch.float32)
    net, v = view(case.module), torch.randn(len(Dense(case).w))
    first, again = (product(kind, net, CE, case.data, v) for _ in range(2))
    assert torch.equal(first, again)
    operator = Operator(kind, net, CE, case.data, chunk=4)
    assert torch.equal(operator(v), operator(v))


def test_graphs_are_kept_only_as_far_as_memory_goes():
    case = cnn()
    net, v = view(case.module), torch.randn(len(Dense(case).w), dtype=torch.float64)
    record = Operator("hessian", net, CE, case.data).estimate.record
    expected = Dense(case).hessian() @ v
    for budget, kept, graphs in ((0, 0, 0), (5 * record, 5, 2), (10**9, 11, 6)):
        operator = Operator("hessian", net, CE, case.data, chunk=2, memory=budget)
        assert operator.estimate.kept == kept
        for _ in range(3):
            assert relative(operator(v), expected) < 1e-12
        assert len(operator._graphs) == graphs


def test_the_memory_estimate_is_of_the_right_size():
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(100, 200), nn.Tanh(), nn.Linear(200, 10))
    data = torch.randn(64, 100), torch.zeros(64, dtype=torch.long)
    record = Operator("hessian", view(net), CE, data).estimate.record
    stored = 4 * (100 + 200 + 10)
    assert stored <= record <= 8 * stored
    chunk = Operator("hessian", view(net), CE, data, chunk=1000).estimate.chunk
    assert chunk == 64


def test_the_module_is_left_as_it_was():
    case = cnn(torch.float32)
    module = case.module
    module[1].train()
    module[0].weight.grad = torch.ones_like(module[0].weight)
    before = {k: v.clone() for k, v in module.state_dict().items()}
    modes = [part.training for part in module.modules()]
    rng = torch.get_rng_state()
    switches = torch.are_deterministic_algorithms_enabled()
    v = torch.randn(view(module).size, generator=torch.Generator().manual_seed(0))
    loader = DataLoader(TensorDataset(*case.data), batch_size=4)
    for kind in KINDS:
        product(kind, view(module), CE, loader, v)
        diagonal("fisher_true", view(module), CE, loader)
    assert all(torch.equal(before[k], v) for k, v in module.state_dict().items())
    assert [part.training for part in module.modules()] == modes
    assert torch.equal(torch.get_rng_state(), rng)
    assert torch.are_deterministic_algorithms_enabled() == switches
    assert torch.equal(module[0].weight.grad, torch.ones_like(module[0].weight))
    assert all(p.grad is None for p in list(module.parameters())[1:])


def test_dropout_is_off_even_in_train_mode():
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 5), nn.Dropout(0.5), nn.Linear(5, 3)).double().train()
    X, y = torch.randn(6, 4).double(), torch.arange(6) % 3
    v = torch.randn(view(net).size, dtype=torch.float64)
    found = product("ggn", view(net), CE, (X, y), v)
    assert net.training
    assert net[1].training
    assert torch.equal(found, product("ggn", view(net.eval()), CE, (X, y), v))


def test_parts_of_a_network():
    case = words()
    dense = Dense(case)
    whole = view(case.module)
    assert whole.names == ("idle", "table.weight", "inner.weight", "inner.bias")
    H = Operator("hessian", whole, CE, case.data).dense()
    assert float(H[:2].abs().max()) == 0.0  # nothing uses them
    part = view(case.module, "inner.*")
    assert (
        relative(Operator("hessian", part, CE, case.data).dense(), dense.hessian()[30:, 30:])
        < 1e-12
    )


def test_constant_and_linear_networks():
    net = nn.Linear(2, 1).double()
    X, y = torch.ones(3, 2).double(), torch.zeros(3, 1).double()

    def linear_loss(f, t):
        return f[:, 0]

    def constant_loss(f, t):
        return 0.0 * f.detach()[:, 0] + 1.0

    v = torch.ones(3, dtype=torch.float64)
    for memory in (0, None):
        for loss in (linear_loss, constant_loss):
            for kind in ("hessian", "ggn"):
                operator = Operator(kind, view(net), loss, (X, y), wd=0.5, memory=memory)
                assert torch.equal(operator(v), 0.5 * v)
    assert torch.equal(gradient(view(net), constant_loss, (X, y)), torch.zeros(3).double())


class NoForward(torch.autograd.Function):
    """A cube without a forward derivative or a batching rule."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x**3

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return 3 * x**2 * g


class Cube(nn.Module):
    """x³, by hand or not."""

    def __init__(self, by_hand):
        super().__init__()
        self.by_hand = by_hand

    def forward(self, x):
        return NoForward.apply(x) if self.by_hand else x**3


def test_operations_without_a_forward_derivative():
    torch.manual_seed(0)
    X, y = torch.randn(6, 4).double(), torch.arange(6) % 3
    hand, plain = (
        nn.Sequential(nn.Linear(4, 3), Cube(by_hand), nn.Linear(3, 3)).double()
        for by_hand in (True, False)
    )
    hand.load_state_dict(plain.state_dict())
    V = torch.randn(view(plain).size, 2, dtype=torch.float64)
    for kind in KINDS:
        for memory in (0, None):
            found, expected = (
                [Operator(kind, view(net), CE, (X, y), memory=memory)(v) for v in (V, V[:, 0])]
                for net in (hand, plain)
            )
            assert relative(found[0], expected[0]) < 1e-12
            assert relative(found[1], expected[1]) < 1e-12
    for kind in FISHER:
        found, expected = (diagonal(kind, view(net), CE, (X, y)) for net in (hand, plain))
        assert relative(found, expected) < 1e-12


class Random(nn.Module):
    """Dropout that eval mode does not turn off."""

    def forward(self, x):
        return F.dropout(x, 0.5, training=True)


class Centred(nn.Module):
    """Normalises by the batch, without being a BatchNorm."""

    def forward(self, x):
        return x - x.mean(0)


@pytest.mark.parametrize(
    ("layer", "words"),
    [
        (Random(), "random numbers"),
        (Centred(), "other records"),
        (nn.BatchNorm1d(3), r"layer 1 \(BatchNorm1d\).*eval mode"),
        (nn.BatchNorm1d(3, track_running_stats=False).eval(), "use GroupNorm"),
    ],
)
def test_what_is_not_a_sum_over_records_is_refused(layer, words):
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 3), layer)
    with pytest.raises(UnsupportedModel, match=words):
        gradient(view(net), CE, (torch.randn(6, 4), torch.arange(6) % 3))


def test_group_norm_is_accepted_in_train_mode():
    net = nn.Sequential(nn.Linear(4, 4), nn.GroupNorm(2, 4)).train()
    assert gradient(view(net), CE, (torch.randn(6, 4), torch.arange(6) % 3)).shape == (28,)


def test_what_else_is_refused():
    case = mlp()
    net, v = view(case.module), torch.zeros(43, dtype=torch.float64)
    with pytest.raises(InvalidInput, match="kind"):
        product("gauss", net, CE, case.data, v)
    with pytest.raises(InvalidInput, match=r"expected a vector \(43,\)"):
        product("ggn", net, CE, case.data, v[1:])
    with pytest.raises(InvalidInput, match="reduction='none'"):
        product("ggn", net, F.cross_entropy, case.data, v)
    with pytest.raises(InvalidInput, match="chunk"):
        product("ggn", net, CE, case.data, v, chunk=0)
    with pytest.raises(InvalidInput, match="wd"):
        gradient(net, CE, case.data, wd=-1.0)
    with pytest.raises(InvalidInput, match="43 coordinates"):
        gradient(net, CE, case.data, at=v[1:])
    with pytest.raises(InvalidInput, match="first records is not finite"):
        gradient(net, CE, (case.inputs / 0.0, case.targets))
    later = case.inputs.clone()
    later[9, 0] = torch.nan
    with pytest.raises(InvalidInput, match="gradient is not finite"):
        gradient(net, CE, (later, case.targets))
    for solver in (direct(1.0), cg(1.0)):
        found = solver.solve(Operator("ggn", net, CE, (later, case.targets)), v + 1, strict=False)
        assert found.status == "diverged"
    with pytest.raises(InvalidInput, match="kind"):
        diagonal("ggn", net, CE, case.data)
    other = scores()
    for use in (
        lambda: Operator("fisher_true", view(other.module), half_square, other.data),
        lambda: diagonal("fisher_true", view(other.module), half_square, other.data),
    ):
        with pytest.raises(InvalidInput, match="negative log-likelihood"):
            use()


def test_a_loader_that_changes_is_found_out():
    class Noisy(torch.utils.data.Dataset):
        def __len__(self):
            return 20

        def __getitem__(self, i):
            return torch.randn(4), i % 3

    net = view(mlp(torch.float32).module)
    operator = Operator("ggn", net, CE, DataLoader(Noisy(), batch_size=4), memory=0)
    with pytest.raises(InvalidInput, match="first pass"):
        operator(torch.ones(43))


def test_objective_knows_its_numbers():
    case = mlp()
    o = Objective(view(case.module), CE, case.data)
    assert o.batches.rows == 11
    assert relative(o.slope(case.data) / 11, Dense(case).gradient()) < 1e-12
    case.module[0].weight.data.zero_()
    assert float(o.at[:20].abs().min()) > 0.0  # the weights are a copy


class Keywords(nn.Module):
    """Takes a dict, as curvlinops hands it over."""

    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, inputs):
        return self.inner(**inputs)


@pytest.mark.parametrize("name", ["mlp", "cnn", "words"])
def test_curvlinops(name):
    curvlinops = pytest.importorskip("curvlinops")
    case = CASES[name]()
    if name == "cnn":
        case.module[1] = nn.Identity()  # GroupNorm has no forward derivative of its backward
    net = view(case.module)
    data = [(dict(x) if isinstance(x, dict) else x, y) for x, y in pieces(case.data, [4, 4, 3])]
    run, params = case.module, list(net.parameters)
    if name == "words":
        run, params = Keywords(case.module), params[1:]  # an unused parameter is an error there
    size = sum(p.numel() for p in params)
    v = torch.randn(size, dtype=torch.float64)
    for kind, theirs in (
        ("hessian", curvlinops.HessianLinearOperator),
        ("ggn", curvlinops.GGNLinearOperator),
        ("fisher_empirical", curvlinops.EFLinearOperator),
    ):
        expected = (
            theirs(
                run,
                nn.CrossEntropyLoss(),
                params,
                data,
                batch_size_fn=lambda x: len(x["ids"] if isinstance(x, dict) else x),
            )
            @ v
        )
        found = product(kind, net, CE, data, torch.cat([torch.zeros(net.size - size).to(v), v]))
        assert relative(found[net.size - size :], expected) < 1e-12
