"""Features of a frozen backbone: values, resuming to the bit, refusals, erasure."""

import json

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from expunge.deep import feature_cache
from expunge.deep.core import CoreOverlap, fingerprint, separation
from expunge.deep.feature_cache import open_features
from expunge.deep.features import compute_features, features_of, norm_of
from expunge.deep.network import UnsupportedModel
from expunge.errors import FolderProblem, InvalidInput
from expunge.guarantee import Tag


@pytest.fixture(autouse=True)
def _one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def backbone(seed=0):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(6, 9), nn.BatchNorm1d(9), nn.Tanh(), nn.Dropout(0.5))


def data(n=37):
    made = torch.Generator().manual_seed(1)
    return torch.randn(n, 6, generator=made), torch.arange(n) % 3


def test_values_are_those_of_eval_mode_clipped_in_float64(tmp_path):
    net, (x, y) = backbone().train(), data()
    net[1].running_mean.fill_(0.3)
    weight, bias = (net[0].weight.double(), net[0].bias.double())
    h = x.double() @ weight.T + bias
    h = torch.tanh((h - 0.3) / torch.sqrt(torch.tensor(1.0 + net[1].eps, dtype=torch.float64)))
    norm = h.norm(dim=1, keepdim=True)
    expected = (h * torch.clamp(1.5 / norm, max=1.0)).detach().numpy()
    cache = compute_features(net, (x, y), tmp_path / "f", clip=1.5, chunk=8)
    assert cache.features.dtype == np.float64
    np.testing.assert_allclose(cache.features, expected, atol=1e-6)
    assert np.linalg.norm(cache.features, axis=1).max() <= 1.5 * (1 + 1e-12)
    assert (np.linalg.norm(expected, axis=1) < 1.49).any()
    np.testing.assert_array_equal(cache.targets, y)
    assert net.training
    assert net[3].training


def test_the_norm_comes_from_core_data():
    net, core = backbone(), data()
    norms = np.linalg.norm(features_of(net, core), axis=1)
    assert norm_of(net, core) == norms.max()
    assert norm_of(net, core, quantile=0.5) == np.quantile(norms, 0.5)
    with pytest.raises(InvalidInput, match="quantile"):
        norm_of(net, core, quantile=0.0)


@pytest.mark.parametrize("stop", [0, 1, 3])
def test_an_interrupted_run_goes_on_to_the_same_bits(tmp_path, monkeypatch, stop):
    whole = compute_features(backbone(), data(), tmp_path / "whole", chunk=8)
    fill, calls = feature_cache.FeatureCache.fill, []

    def failing(self, k, *rest):
        if k == stop:
            self.features[k * 8] = 7.0  # half a chunk is on disk
            raise KeyboardInterrupt
        calls.append(k)
        fill(self, k, *rest)

    with monkeypatch.context() as patched:
        patched.setattr(feature_cache.FeatureCache, "fill", failing)
        with pytest.raises(KeyboardInterrupt):
            compute_features(backbone(), data(), tmp_path / "part", chunk=8)
    assert calls == list(range(stop))
    with pytest.raises(FolderProblem, match="unfinished"):
        open_features(tmp_path / "part")
    done = []
    cache = compute_features(
        backbone(), data(), tmp_path / "part", chunk=8, progress=lambda d, n: done.append((d, n))
    )
    assert done[-1] == (37, 37)
    for name in ("features", "targets", "records"):
        assert (tmp_path / "part" / f"{name}.npy").read_bytes() == (
            tmp_path / "whole" / f"{name}.npy"
        ).read_bytes()
    assert cache.complete
    assert whole.complete


def test_any_loader_gives_the_same_features(tmp_path):
    x, y = data()
    loader = DataLoader(TensorDataset(x, y), batch_size=5)
    a = compute_features(backbone(), (x, y), tmp_path / "a", chunk=8)
    b = compute_features(backbone(), loader, tmp_path / "b", chunk=8)
    assert np.array_equal(a.features, b.features)
    assert np.array_equal(a.records, b.records)


@pytest.mark.parametrize("name", ["features", "targets", "records"])
def test_an_altered_cache_is_refused(tmp_path, name):
    compute_features(backbone(), data(), tmp_path / "f", chunk=8)
    path = tmp_path / "f" / f"{name}.npy"
    raw = bytearray(path.read_bytes())
    raw[-1] ^= 1
    path.write_bytes(raw)
    with pytest.raises(FolderProblem, match="not those that were written"):
        open_features(tmp_path / "f")
    with pytest.raises(FolderProblem, match="not those that were written"):
        compute_features(backbone(), data(), tmp_path / "f", chunk=8)


def test_damaged_and_missing_caches_are_refused(tmp_path):
    with pytest.raises(FolderProblem, match="no features"):
        open_features(tmp_path)
    compute_features(backbone(), data(), tmp_path / "f", chunk=8)
    (tmp_path / "f" / "manifest.json").write_text("[1]")
    with pytest.raises(FolderProblem, match="cannot be read"):
        open_features(tmp_path / "f")
    (tmp_path / "g").mkdir()
    (tmp_path / "g" / "mine.txt").write_text("mine")
    with pytest.raises(InvalidInput, match="not empty"):
        compute_features(backbone(), data(), tmp_path / "g")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"net": 1}, "another backbone"),
        ({"clip": 2.0}, "another clip"),
        ({"preprocessing": {"mean": 1}}, "another preprocessing"),
        ({"chunk": 16}, "another chunk"),
        ({"rows": 36}, "another number of rows"),
        ({"x": True}, "other records"),
    ],
)
def test_a_cache_of_something_else_is_refused(tmp_path, change, message):
    compute_features(backbone(), data(), tmp_path / "f", chunk=8)
    x, y = data(change.get("rows", 37))
    if "x" in change:
        x[20, 0] += 1.0
    options = {"chunk": 8} | {k: v for k, v in change.items() if k not in ("net", "rows", "x")}
    with pytest.raises(InvalidInput, match=message):
        compute_features(backbone(change.get("net", 0)), (x, y), tmp_path / "f", **options)


def test_batch_statistics_and_chance_are_refused(tmp_path):
    class Dropping(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(6, 3)

        def forward(self, x):
            return nn.functional.dropout(self.layer(x), 0.5)

    class Mixing(nn.Linear):
        def forward(self, x):
            return super().forward(x - x.mean(0))

    norm = nn.Sequential(nn.Linear(6, 3), nn.BatchNorm1d(3, track_running_stats=False))
    for net, message in (
        (norm, "statistics of the batch"),
        (Dropping(), "draws random"),
        (Mixing(6, 3), "other records"),
    ):
        with pytest.raises(UnsupportedModel, match=message):
            compute_features(net, data(), tmp_path / "f")


def test_erased_rows_are_gone_and_the_rest_is_sound(tmp_path):
    cache = compute_features(backbone(), data(), tmp_path / "f", chunk=8)
    before = np.array(cache.features)
    cache.erase([3, 20])
    cache.erase([20])
    again = open_features(tmp_path / "f")
    assert again.erased == [3, 20]
    assert not again.features[[3, 20]].any()
    assert not again.records[[3, 20]].any()
    kept = np.setdiff1d(np.arange(37), [3, 20])
    assert np.array_equal(again.features[kept], before[kept])
    assert before[3].tobytes() not in (tmp_path / "f" / "features.npy").read_bytes()


@pytest.mark.parametrize("at", [0, 1])
def test_an_erasure_that_was_interrupted_is_finished(tmp_path, monkeypatch, at):
    cache = compute_features(backbone(), data(), tmp_path / "f", chunk=8)
    write, count = feature_cache._replace, []

    def failing(*args):
        if len(count) == at:
            raise KeyboardInterrupt
        count.append(1)
        write(*args)

    with monkeypatch.context() as patched:
        patched.setattr(feature_cache, "_replace", failing)
        with pytest.raises(KeyboardInterrupt):
            cache.erase([3])
    again = open_features(tmp_path / "f")
    assert again.erased == ([3] if at else [])
    assert bool(again.features[3].any()) == (at == 0)


def test_fingerprints_see_weights_buffers_and_layers():
    base = fingerprint(backbone())
    assert fingerprint(backbone().eval()) == base
    assert fingerprint(backbone().requires_grad_(False)) == base
    other = backbone()
    other[1].running_mean[0] = 1e-30
    swapped = backbone()
    swapped[2] = nn.ReLU()
    softer = backbone()
    softer[3].p = 0.4
    for net in (other, swapped, softer, backbone(1), backbone().double()):
        assert fingerprint(net) != base


def test_core_and_users_must_not_overlap():
    assert separation(["a", "b"], ["c"]) == separation(["a"], ["c", "c"])
    assert separation(["a"], ["c"])[1] != separation(["a"], ["d"])[1]
    assert separation(["a"], None)[0] is Tag.assumed
    with pytest.raises(CoreOverlap, match="'b'"):
        separation(["a", "b"], ["b", "c"])
    with pytest.raises(InvalidInput, match="ids only"):
        separation(None, ["c"])


def test_the_cache_is_its_owners_alone(tmp_path):
    compute_features(backbone(), data(), tmp_path / "f")
    assert (tmp_path / "f").stat().st_mode & 0o077 == 0
    manifest = json.loads((tmp_path / "f" / "manifest.json").read_text())
    assert manifest["format"] == "expunge-features/1"
