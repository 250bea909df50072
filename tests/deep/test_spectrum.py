"""Lanczos against dense eigenvalues."""

from __future__ import annotations

import math

import pytest
import torch

from expunge.deep.spectrum import lanczos
from expunge.errors import InvalidInput


@pytest.mark.parametrize("size", [1, 2, 30])
def test_all_steps_find_the_extremes(size):
    torch.manual_seed(size)
    A = torch.randn(size, size, dtype=torch.float64)
    A = A + A.T
    found = lanczos(lambda v: A @ v, size, steps=200)
    values = torch.linalg.eigvalsh(A)
    assert found.smallest == pytest.approx(float(values[0]), abs=1e-9)
    assert found.largest == pytest.approx(float(values[-1]), abs=1e-9)
    assert found.products <= size


def test_few_steps_err_on_the_known_side_and_say_by_how_much():
    torch.manual_seed(0)
    A = torch.randn(400, 400, dtype=torch.float64)
    A = A + A.T
    values = torch.linalg.eigvalsh(A)
    found = lanczos(lambda v: A @ v, 400, steps=15)
    assert found.products == 15
    assert float(values[0]) <= found.smallest
    assert found.largest <= float(values[-1])
    for theta, slack in zip((found.smallest, found.largest), found.slack, strict=True):
        assert float((values - theta).abs().min()) <= slack
    more = lanczos(lambda v: A @ v, 400, steps=60)
    assert more.smallest <= found.smallest
    assert max(more.slack) < min(found.slack)


def test_an_invariant_subspace_ends_it():
    found = lanczos(lambda v: 3.0 * v, 50)
    assert (found.smallest, found.largest, found.products) == (
        pytest.approx(3),
        pytest.approx(3),
        1,
    )
    assert lanczos(torch.zeros_like, 5).products == 1


def test_what_is_refused():
    with pytest.raises(InvalidInput, match="steps"):
        lanczos(lambda v: v, 3, steps=0)
    with pytest.raises(InvalidInput, match="finite"):
        lanczos(lambda v: v * math.nan, 3)
