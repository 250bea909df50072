"""The benchmark of scale runs on small files, and shows what it says."""

from __future__ import annotations

import os

import numpy as np
import pyarrow.parquet as pq
import pytest
from bench import scale


def told(capsys):
    lines = [line.split("\t") for line in capsys.readouterr().out.splitlines()]
    values = {name: float(value) for name, value, _ in lines}
    assert len(values) == len(lines) > 0
    assert np.isfinite(list(values.values())).all()
    return values


@pytest.fixture
def paths(tmp_path, monkeypatch):
    monkeypatch.setattr(scale, "GROUP", 100)
    scale.write(tmp_path, 5000, 4)
    found = sorted(tmp_path.iterdir())
    assert sum(pq.read_metadata(path).num_rows for path in found) == 5000
    assert pq.read_metadata(found[0]).num_row_groups == 4
    return found


def test_a_training_and_its_deletions(paths, capsys):
    scale.train(paths, 4, 0, (1, 100))
    found = told(capsys)
    assert found["certified_distance"] < found["delete_100.distance"] <= found["tolerance"]
    assert found["delete_100_measured.passes"] >= 1
    assert found["passes_to_fit"] > 3
    assert found["seconds_per_pass_hessian"] < found["seconds_to_fit"]
    assert 50 < found["peak_memory"] <= found["peak_memory_after_deletions"]


def test_stages_memory_and_members(paths, capsys):
    for one in scale.ONE.values():
        one(paths, 4)
    found = told(capsys)
    assert set(found) >= {"stages.parquet", "stages.gradient", "memory.gradient"}
    assert 32 + 32 + 8 < found["members.bytes_per_row"] < 200


def test_a_line_is_projected(capsys):
    series = [(n, dict.fromkeys(scale.PROJECTED, 2.0 + n * 1e-7)) for n in (10**6, 10**7)]
    whole = series[1][1] | {"peak_memory": 250.0}
    scale.project(10**7, whole, series)
    found = told(capsys)
    assert found["projection_to_1e9_rows.seconds_to_fit"] == pytest.approx(102.0)
    assert found["projection_to_1e9_rows.seconds_to_fit_by_ratio"] == pytest.approx(300.0)
    assert found["projection_to_1e9_rows.peak_memory"] == pytest.approx(497.5)


@pytest.mark.slow
def test_all_of_it(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("sys.argv", ["scale", "--rows", "20000", "--directory", str(tmp_path)])
    scale.main()
    found = told(capsys)
    assert found["workers=2,rows=2500.certified_distance"] == found["rows=2500.certified_distance"]
    assert os.listdir(tmp_path) == []
