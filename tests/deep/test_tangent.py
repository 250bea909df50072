"""Tangent models: against dense retraining with Jacobians of another origin."""

import copy
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import numpy as np
import pytest
import torch
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from expunge.certificate import recheck as certificates
from expunge.certificate.checks import Verdict
from expunge.certificate.keys import KeySigner
from expunge.deep.core import CoreOverlap
from expunge.deep.jacobian import Tangent
from expunge.deep.network import UnsupportedModel
from expunge.deep.quadratic import Objective, Primal, Sums, answers
from expunge.deep.tangent import TangentModel
from expunge.deep.tangent_release import independent_distance, recheck
from expunge.deep.tangent_solvers import Dual, Krylov, choose, kernel, solver_of
from expunge.errors import (
    AlreadyDeleted,
    BudgetExhausted,
    FolderProblem,
    InvalidInput,
    NeedsRetainedData,
    RetainedMismatch,
    ToleranceUnreachable,
    UnknownRecord,
)

SIGNER = KeySigner(Ed25519PrivateKey.generate())
METHODS = ("primal", "dual", "cg")
N, L2, ALPHA = 30, 0.5, 5.0
IDS = [f"person {i // 2}" for i in range(N)]
CORE = {"core 1", "core 2"}


@pytest.fixture(autouse=True)
def _one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


class Adapted(nn.Module):
    """A frozen layer with a low-rank adapter, as users write them."""

    def __init__(self):
        super().__init__()
        self.base = nn.Linear(5, 6).requires_grad_(False)
        self.adapter = nn.ParameterDict(
            {"down": torch.randn(2, 5) * 0.5, "up": torch.randn(6, 2) * 0.5}
        )
        self.norm = nn.GroupNorm(2, 6)
        self.out = nn.Linear(6, 3)

    def forward(self, x):
        h = self.base(x) + x @ self.adapter["down"].T @ self.adapter["up"].T
        return self.out(torch.tanh(self.norm(h)))


def network(kind="plain"):
    torch.manual_seed(0)
    if kind == "adapter":
        return Adapted()
    if kind == "norm":
        net = nn.Sequential(nn.Linear(5, 6), nn.BatchNorm1d(6), nn.LeakyReLU(), nn.Linear(6, 3))
        net[1].running_mean.uniform_(-0.5, 0.5)
        return net
    return nn.Sequential(nn.Linear(5, 6), nn.Tanh(), nn.Dropout(0.3), nn.Linear(6, 3))


PARAMS = {"plain": None, "adapter": "adapter.*", "norm": None, "last": "3.*"}


def data(n=N):
    made = torch.Generator().manual_seed(7)
    return torch.randn(n, 5, generator=made), torch.randint(0, 3, (n,), generator=made)


def dense(kind, x):
    """Return f (n, c) and J (n·c, p), by plain autograd on a float64 copy, row by row."""
    net = network("plain" if kind == "last" else kind).double().eval()
    pattern = {"adapter": "adapter.", "last": "3."}.get(kind, "")
    chosen = [p for name, p in net.named_parameters() if p.requires_grad and pattern in name]
    outputs = net(x.double())
    rows = [
        torch.cat([g.reshape(-1) for g in torch.autograd.grad(o, chosen, retain_graph=True)])
        for o in outputs.reshape(-1)
    ]
    return outputs.detach().numpy(), torch.stack(rows).numpy()


def oracle(kind, x, y, l2=L2):
    f, J = dense(kind, x)
    t = (ALPHA * np.eye(3)[y.numpy()] - f).reshape(-1)
    augmented = np.vstack([J, np.sqrt(l2) * np.eye(J.shape[1])])
    return np.linalg.lstsq(augmented, np.concatenate([t, np.zeros(J.shape[1])]), rcond=None)[0]


def objective(kind, x, y, l2=L2):
    net = network("plain" if kind == "last" else kind)
    tangent = Tangent(net, PARAMS[kind])
    grain = tangent.probe(x, len(x))
    return Objective(tangent, (x, answers(y, 3, ALPHA)), l2), grain


def part(whole, index):
    inputs, y = whole.data.take(index)
    return Objective(whole.tangent, (inputs, y), whole.l2)


def off(v, expected):
    return float(np.linalg.norm(v.numpy() - expected) / np.linalg.norm(expected))


# --- products -------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", list(PARAMS))
def test_products_are_those_of_the_jacobian_and_adjoint(kind):
    x, y = data()
    whole, _ = objective(kind, x, y)
    f, J = dense(kind, x)
    made = torch.Generator().manual_seed(1)
    v = torch.randn(whole.tangent.size, generator=made, dtype=torch.float64)
    u = torch.randn(N, 3, generator=made, dtype=torch.float64)
    core, moved = whole.tangent.forward(x, v)
    pulled = whole.tangent.backward(x, u)
    np.testing.assert_allclose(core, f, atol=1e-12)
    np.testing.assert_allclose(moved.reshape(-1), J @ v.numpy(), atol=1e-12)
    np.testing.assert_allclose(pulled, J.T @ u.numpy().reshape(-1), atol=1e-11)
    left, right = float((moved * u).sum()), float(v @ pulled)
    assert abs(left - right) <= 1e-12 * float(moved.norm() * u.norm())


def test_the_gram_of_a_last_layer_is_shared_by_the_outputs():
    x, y = data()
    whole, grain = objective("last", x, y)
    assert whole.tangent.layer == "3"
    sums = Sums.of(whole, grain)
    _, J = dense("last", x)
    gram = sums.gram.numpy()
    features = gram.shape[0] - 1
    order = [
        (k * features + j) if j < features else 3 * features + k
        for k in range(3)
        for j in range(features + 1)
    ]
    expected = (J.T @ J)[np.ix_(order, order)]
    np.testing.assert_allclose(np.kron(np.eye(3), gram), expected, atol=1e-12 * expected.max())


def test_a_last_layer_is_found_by_what_comes_out():
    class Twice(nn.Module):
        def __init__(self, after):
            super().__init__()
            self.body, self.head, self.after = nn.Linear(5, 4), nn.Linear(4, 3), after

        def forward(self, x):
            return self.after(self.head(torch.relu(self.body(x))))

    x = data()[0]
    for after, params, layer in (
        (nn.Identity(), "head.*", "head"),
        (nn.Identity(), "head.weight", "head"),
        (nn.Identity(), ["head.*", "body.bias"], None),
        (nn.Identity(), "head.bias", None),
        (nn.Tanh(), "head.*", None),
    ):
        tangent = Tangent(Twice(after), params)
        tangent.probe(x, N)
        assert tangent.layer == layer


# --- minimisers -----------------------------------------------------------------------------------


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("kind", list(PARAMS))
def test_minimisers_and_deletions_are_those_of_dense_retraining(kind, method):
    x, y = data()
    whole, grain = objective(kind, x, y)
    solver = solver_of(method, whole, grain).settle(whole, 1e-7)
    assert off(solver.v, oracle(kind, x, y)) <= 1e-9
    index, left = list(range(N)), whole
    for gone in ([0, 1, 2], [4], [9, 20]):
        places = sorted(gone)
        removed = [index[i] for i in places]
        forget = part(whole, removed)
        index = [i for i in index if i not in removed]
        left = part(whole, index)
        expected = oracle(kind, x[index], y[index])
        free = solver.remove(forget, places)
        error = float(np.linalg.norm(free.v.numpy() - expected))
        assert error <= free.bound
        if method == "primal":
            assert off(free.v, expected) <= 1e-10
        solver = free.settle(left, 1e-7)
        assert off(solver.v, expected) <= (1e-9 if method == "cg" else 1e-10)
        assert float(np.linalg.norm(solver.v.numpy() - expected)) <= solver.bound <= 1e-7


def test_the_dual_deletion_formula():
    x, y = data()
    whole, _ = objective("plain", x, y)
    K, t = kernel(whole)
    _, J = dense("plain", x)
    np.testing.assert_allclose(K, J @ J.T, atol=1e-10)
    found = Dual.of(whole).remove(part(whole, [3, 17]), [3, 17])
    keep = np.setdiff1d(np.arange(3 * N), [9, 10, 11, 51, 52, 53])
    expected = np.linalg.solve(
        (J @ J.T)[np.ix_(keep, keep)] + L2 * np.eye(len(keep)), t.numpy()[keep]
    )
    np.testing.assert_allclose(found.inverse @ found.answers, expected, atol=1e-9)


def test_a_wrong_deletion_is_noticed_by_the_measurement():
    x, y = data()
    whole, _ = objective("plain", x, y)
    left = part(whole, range(2, N))
    stale = Dual.of(whole).settle(whole, 1e-8)
    assert left.distance(stale.v)[0] > 0.01
    assert independent_distance(left, stale.v) > 0.01
    wrong = Dual.of(whole).remove(part(whole, [5, 6]), [5, 6])
    bound, _ = left.distance(left.pull((wrong.inverse @ wrong.answers).reshape(-1, 3)))
    assert bound > 0.01
    repaired = wrong.settle(left, 1e-7)
    assert repaired.bound <= 1e-7
    assert off(repaired.v, oracle("plain", x[2:], y[2:])) <= 1e-10


@settings(max_examples=30, deadline=None)
@given(st.floats(-8, 2), st.floats(1e-3, 10.0), st.integers(0, 2**31))
def test_the_bound_is_never_below_the_error(exponent, l2, seed):
    x, y = data(8)
    whole, _ = objective("last", x, y, l2)
    v = oracle("last", x, y, l2)
    made = np.random.default_rng(seed)
    moved = v + 10.0**exponent * made.standard_normal(len(v))
    error = float(np.linalg.norm(moved - v))
    found, _ = whole.distance(torch.tensor(moved))
    assert found >= error * (1 - 1e-9)
    assert independent_distance(whole, torch.tensor(moved)) >= error * (1 - 1e-9)


def test_sums_that_lost_their_meaning_are_formed_again():
    x, y = data()
    whole, grain = objective("last", x, y)
    solver = Primal.of(whole, grain)
    spoilt = replace(solver.sums, high=solver.sums.high - 1e3 * torch.eye(7, 10).double())
    broken = Primal.solved(spoilt, L2, whole.tangent)
    assert broken.bound == np.inf
    assert off(broken.settle(whole, 1e-8).v, oracle("last", x, y)) <= 1e-10


def test_the_method_fits_the_size():
    tangent = Tangent(network())
    assert choose(tangent, 10**6) == "primal"
    wide = Tangent(nn.Linear(100, 50))
    assert [choose(wide, n) for n in (4096, 4097)] == ["dual", "cg"]
    wide.layer = ""
    assert choose(wide, 10**6) == "primal"
    with pytest.raises(InvalidInput, match="method must be"):
        solver_of("magic", objective("plain", *data())[0], 1e-15)


# --- the model ------------------------------------------------------------------------------------


def fitted(kind="plain", **options):
    net = network("plain" if kind == "last" else kind)
    ids = options.pop("ids", IDS)
    chosen = {"core_ids": CORE, "l2": L2, "random_state": 5, **options}
    return TangentModel(net, PARAMS[kind], **chosen).fit(data(), ids=ids)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("kind", list(PARAMS))
def test_a_sequence_of_deletions_is_certified_and_ends_at_the_retrained_minimiser(kind, method):
    x, y = data()
    model, gone = fitted(kind, method=method, random_state=None), []
    for person in ("person 3", "person 11", "person 0"):
        certificate = model.unlearn([person])
        gone.append(person)
        left = np.array([name not in gone for name in IDS])
        expected = oracle(kind, x[left], y[left])
        v, bound = model.minimiser
        assert off(v, expected) <= 1e-6
        assert np.linalg.norm(v.numpy() - expected) <= bound <= model.policy.tolerance
        noise = (model.v - expected) / model.policy.sigma
        assert 0.3 < np.sqrt(np.mean(noise**2)) < 2.0
        assert certificate.grade.value == "certified"
        assert certificate.guarantee.epsilon == 1.0
        assert certificate.commitments.deleted.count == 2 * len(gone)
        checks = recheck(
            certificate,
            model.policy,
            model.content,
            network("plain" if kind == "last" else kind),
            model.opened(),
        )
        assert [check.verdict for check in checks] == [Verdict.PASS] * 4
    f, J = dense(kind, x)
    scores = f + (J @ model.v).reshape(-1, 3)
    np.testing.assert_allclose(model.logits((x, y)), scores, atol=1e-10)
    np.testing.assert_allclose(model.module()(x), scores, atol=1e-10)
    assert np.array_equal(model.predict(x), scores.argmax(1))


def test_signature_numbers_and_file_stand_the_common_recheck():
    model = fitted(random_state=None)
    certificate = model.unlearn(["person 3"])
    now = datetime.now(UTC) + timedelta(seconds=5)
    outside = certificates.Outside(
        trusted=[SIGNER.public], now=now, policy=model.policy.to_payload(), tags=[]
    )
    raw = certificate.sign(SIGNER).to_json()
    found = certificates.recheck(raw, outside, {"model.safetensors": model.content})
    assert found.level == "b"
    assert not found.failed


def test_the_recheck_fails_what_is_wrong():
    model, lazy = (fitted(random_state=None, sigma=1e-3) for _ in range(2))
    before = model.opened()
    certificate = model.unlearn(["person 3"])
    opened = model.opened()
    core = network()
    with torch.no_grad():
        core[0].bias[0] += 1e-3
    moved = copy.copy(opened)
    object.__setattr__(moved, "v", opened.v + 5e-5)
    kept = copy.copy(opened)
    object.__setattr__(kept, "data", before.data)
    object.__setattr__(kept, "salts", before.salts)
    object.__setattr__(kept, "ids", before.ids)
    annex = copy.copy(opened)
    object.__setattr__(annex, "annex", b"{}")
    lazy.unlearn(["person 4"])

    def failed(net=None, shown=opened, policy=model.policy, content=model.content):
        checks = recheck(certificate, policy, content, net or network(), shown)
        return {check.name for check in checks if check.verdict is Verdict.FAIL}

    assert failed() == set()
    assert failed(net=core) == {"core", "evidence"}
    assert failed(shown=moved) == {"evidence"}
    assert failed(shown=kept) == {"commitments", "evidence"}
    assert failed(shown=annex) == {"evidence"}
    assert failed(policy=lazy.policy) == {"core"}
    assert "noise" in failed(content=fitted(sigma=1.0).content)


def test_an_overlap_with_the_core_is_refused_and_an_unknown_core_is_an_assumption():
    with pytest.raises(CoreOverlap, match="person 7"):
        fitted(core_ids={"core 1", "person 7"})
    with pytest.raises(InvalidInput, match="ids only"):
        fitted(ids=None)
    assert fitted(core_ids=None).unlearn(["person 1"]).grade.value == "conditional"


def test_a_whole_class_and_everybody_can_go():
    x, y = data()
    by_record = [str(i) for i in range(N)]
    model = fitted("last", ids=by_record)
    model.unlearn([name for name, label in zip(by_record, y, strict=True) if label == 2])
    left = y != 2
    assert off(model.minimiser[0], oracle("last", x[left], y[left])) <= 1e-9
    for method in METHODS:
        model = fitted(method=method)
        certificate = model.unlearn(set(IDS))
        assert certificate.commitments.retained.count == 0
        assert float(model.minimiser[0].norm()) == 0.0
        assert model.minimiser[1] == 0.0
        with pytest.raises(AlreadyDeleted):
            model.unlearn(["person 1"])


def test_duplicates_are_counted_and_unknown_records_refused():
    x, y = data()
    x[1], y[1] = x[0], y[0]
    model = TangentModel(network(), l2=L2).fit((x, y))
    one = (x[:1], y[:1])
    model.unlearn(records=one)
    assert off(model.minimiser[0], oracle("plain", x[1:], y[1:])) <= 1e-9
    model.unlearn(records=one)
    for strange in (one, (x[5:6] + 1e-3, y[5:6]), (x[5:6], (y[5:6] + 1) % 3)):
        with pytest.raises(UnknownRecord):
            model.unlearn(records=strange)
    with pytest.raises(InvalidInput, match="no ids"):
        model.unlearn(["person 1"])


def test_requests_that_cannot_be_met_change_nothing():
    model = fitted(releases=2)
    before = model.content
    for asked, error in (
        ({"ids": ["nobody"]}, UnknownRecord),
        ({"ids": ["person 1", "nobody"]}, UnknownRecord),
        ({"records": data()}, InvalidInput),
        ({}, InvalidInput),
        ({"ids": ["person 1"], "records": (data()[0][:2], data()[1][:2])}, InvalidInput),
    ):
        with pytest.raises(error):
            model.unlearn(**asked)
    assert model.content == before
    model.unlearn(["person 1"])
    after = model.content
    with pytest.raises(BudgetExhausted):
        model.unlearn(["person 2"])
    assert model.content == after
    assert model.minimiser[0].shape == (57,)
    assert model.opened().data.rows == N - 2


def test_a_budget_that_float64_cannot_meet_is_refused():
    with pytest.raises(ToleranceUnreachable, match="raise sigma"):
        fitted(sigma=1e-13)


def test_real_targets_and_one_output():
    x, _ = data()
    y = (x[:, :1] * 2).double()
    net = nn.Sequential(nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 1))
    model = TangentModel(net, l2=L2).fit((x, y))
    model.unlearn(records=(x[:1], y[:1]))
    assert float(np.mean((model.logits(x[1:]) - y[1:].numpy()) ** 2)) < 0.2
    with pytest.raises(InvalidInput, match="integer class"):
        TangentModel(net).fit((x, torch.zeros(N, dtype=torch.long)))
    with pytest.raises(InvalidInput, match="below 3"):
        TangentModel(network()).fit((x, torch.full((N,), 3)))
    with pytest.raises(InvalidInput, match="real targets"):
        TangentModel(network()).fit((x, y))


def test_networks_that_are_no_sum_over_records_are_refused():
    norm = nn.Sequential(nn.Linear(5, 3), nn.BatchNorm1d(3, track_running_stats=False))
    with pytest.raises(UnsupportedModel, match="statistics of the batch"):
        TangentModel(norm)

    class Mixing(nn.Linear):
        def forward(self, x):
            return super().forward(x - x.mean(0))

    class Dropping(nn.Linear):
        def forward(self, x):
            return nn.functional.dropout(super().forward(x), 0.5)

    for net, message in ((Mixing(5, 3), "other records"), (Dropping(5, 3), "draws random")):
        with pytest.raises(UnsupportedModel, match=message):
            TangentModel(net).fit(data())


def test_the_core_is_a_copy_and_stays_what_it_was():
    net = network().train()
    before = {name: p.clone() for name, p in net.named_parameters()}
    model = TangentModel(net, core_ids=CORE, l2=L2, random_state=5).fit(data(), ids=IDS)
    assert net.training
    assert all(torch.equal(p, before[name]) for name, p in net.named_parameters())
    assert all(p.grad is None for p in net.parameters())
    with torch.no_grad():
        net[0].bias += 1.0
    model.unlearn(["person 3"])
    x, y = data()
    left = np.array([name != "person 3" for name in IDS])
    assert off(model.minimiser[0], oracle("plain", x[left], y[left])) <= 1e-9


@pytest.mark.parametrize("method", METHODS)
def test_saved_and_loaded_it_goes_on(tmp_path, method):
    model, twin = (fitted(method=method) for _ in range(2))
    for each in (model, twin):
        each.unlearn(["person 3"])
    model.save(tmp_path / "state")
    assert (tmp_path / "state").stat().st_mode & 0o077 == 0
    assert '"person 3"' not in (tmp_path / "state" / "state.json").read_text()
    again = TangentModel.load(tmp_path / "state", network(), random_state=5)
    assert again.content == model.content
    assert again.statement.digest == model.statement.digest
    with pytest.raises(AlreadyDeleted):
        again.unlearn(["person 3"])
    with pytest.raises(NeedsRetainedData, match="attach"):
        again.unlearn(["person 5"])
    x, y = data()
    with pytest.raises(RetainedMismatch):
        again.attach((x + 1, y))
    with pytest.raises(RetainedMismatch):
        again.attach((x[1:], y[1:]))
    again.attach((x, y))
    again.unlearn(["person 5"])
    twin.unlearn(["person 5"])
    assert off(again.minimiser[0], twin.minimiser[0].numpy()) <= 1e-9
    with pytest.raises(FolderProblem, match="exists"):
        model.save(tmp_path / "state")
    other = network()
    other[1] = nn.ReLU()
    with pytest.raises(InvalidInput, match="not the core"):
        TangentModel.load(tmp_path / "state", other)
    (tmp_path / "state" / "state.json").write_text("{}")
    with pytest.raises(FolderProblem, match="cannot be read"):
        TangentModel.load(tmp_path / "state", network())


def test_a_gram_matrix_needs_the_deleted_rows_only(tmp_path):
    x, y = data()
    model = fitted("last")
    model.save(tmp_path / "state")
    again = TangentModel.load(tmp_path / "state", network())
    certificate = again.unlearn(["person 3"], records=(x[6:8], y[6:8]))
    assert certificate.grade.value == "certified"
    left = np.array([name != "person 3" for name in IDS])
    assert off(again.minimiser[0], oracle("last", x[left], y[left])) <= 1e-10


def test_copies_and_unfitted_models_are_refused():
    with pytest.raises(TypeError, match="sealed state"):
        copy.deepcopy(fitted())
    with pytest.raises(InvalidInput, match="not been fitted"):
        TangentModel(network()).unlearn(["person 1"])
    with pytest.raises(InvalidInput, match="not been fitted"):
        TangentModel(network()).predict(data())


def test_a_krylov_solution_needs_a_measurement():
    x, y = data()
    whole, _ = objective("plain", x, y)
    assert Krylov.of(whole).bound == np.inf
    assert Krylov.of(whole).settle(whole, 1e3).bound <= 1e3
