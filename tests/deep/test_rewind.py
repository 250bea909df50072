"""Rewinding, descending further and Langevin steps on heads: distances hold, claims follow."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from torch import nn

from expunge.deep.network import view
from expunge.deep.rewind import (
    Course,
    backwards,
    descend,
    descend_further,
    head_course,
    langevin,
    langevin_unlearn,
    rewind,
)
from expunge.deep.rewind_bounds import Constants, head_constants
from expunge.deep.training import cross_entropy
from expunge.errors import InvalidInput
from expunge.guarantee import Grade
from expunge.noise import Seeded

WD = 0.05


def case(rows=50, gone=5):
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(rows, 4, generator=generator, dtype=torch.float64)
    x = x / x.norm(dim=1, keepdim=True)
    y = (x[:, 0] > 0).long() + (x[:, 1] > 0.3).long()
    model = nn.Linear(4, 3).double()
    return model, (x, y), (x[gone:], y[gone:])


def course(steps=40, rewound=20, radius=1.0 + 1e-9):
    return head_course(radius, WD, steps, rewound)


@pytest.mark.parametrize("rewound", [0, 10, 39, 40])
@pytest.mark.parametrize("gone", [1, 5, 25])
def test_the_distance_holds_and_the_checkpoint_helps(rewound, gone):
    model, data, retain = case(gone=gone)
    way = course(rewound=rewound)
    secret = descend(model, data, way)
    found = rewind(model, secret, retain, epsilon=1.0, delta=1e-5, source=Seeded(0))
    oracle = descend(model, retain, way)
    assert float((found.secret.end - oracle.end).norm()) <= found.distance
    assert found.grade is Grade.conditional  # seeded noise
    if rewound == 40:
        assert torch.equal(found.secret.end, oracle.end)


def test_grades():
    model, data, retain = case()
    for radius, grade in ((1.0 + 1e-9, Grade.certified), (None, Grade.conditional)):
        secret = descend(model, data, replace(course(), radius=radius))
        assert rewind(model, secret, retain, epsilon=1.0, delta=1e-5).grade is grade


def test_the_noise_is_what_the_claim_needs():
    model, data, retain = case()
    secret = descend(model, data, course())
    found = rewind(model, secret, retain, epsilon=1.0, delta=1e-5, source=Seeded(1))
    off = (view(found.model).vector() - found.secret.end) / found.sigma
    assert 0.4 < float(off.std()) < 1.8
    assert found.distance / found.sigma == pytest.approx(found.guarantee.mu, rel=1e-6)
    assert "tensor" not in repr(found.secret)


def test_descending_further():
    model, data, retain = case()
    way = course(rewound=0)
    secret = descend(model, data, way)
    bounds = []
    for extra in (0, 10, 60):
        found = descend_further(
            model, secret, retain, extra, epsilon=1.0, delta=1e-5, source=Seeded(0)
        )
        oracle = descend(model, retain, replace(way, steps=way.steps + extra))
        assert float((found.secret.end - oracle.end).norm()) <= found.distance
        bounds.append(found.distance)
    assert bounds[0] > bounds[1] > bounds[2]


def test_steps_taken_back():
    model, data, _ = case()
    way = replace(course(), lr=0.5 / course().constants.smoothness)
    secret = descend(model, data, way)
    back = backwards(model, data, way, secret.end, way.rewound)
    assert float((back - secret.checkpoint).norm()) < 1e-9
    with pytest.raises(InvalidInput, match="checkpoint"):
        backwards(model, data, course(), secret.end, 1)


def test_langevin_makes_few_steps():
    model, data, retain = case(rows=200, gone=1)
    way = course(steps=60, rewound=0)
    published = langevin(model, data, way, 0.3, Seeded(0))
    again = langevin(model, data, way, 0.3, Seeded(0))
    assert torch.equal(published, again)
    end, extra = langevin_unlearn(
        model, published, retain, way, 0.3, rows=200, epsilon=1.0, delta=1e-5, source=Seeded(1)
    )
    assert 0 <= extra < 60
    assert end.shape == published.shape
    assert extra == 0 or not torch.equal(end, published)


def test_a_network_is_hopeless():
    wild = Course(Constants(1.0, 5.0, None), cross_entropy, 0.5, 0.0, 2000, 10)
    model, data, retain = case()
    secret = replace(descend(model, data, replace(wild, steps=3, rewound=1)), course=wild)
    with pytest.raises(InvalidInput, match="not finite"):
        rewind(model, replace(secret, rows=50), retain, epsilon=1.0, delta=1e-5)


def test_bad_input():
    model, data, _ = case()
    with pytest.raises(InvalidInput, match="rewound"):
        course(steps=3, rewound=4)
    with pytest.raises(InvalidInput, match="lr"):
        Course(head_constants("softmax", 1.0, WD), cross_entropy, 9.0, WD, 3, 1)
    with pytest.raises(InvalidInput, match="head_course"):
        replace(course(), weight_decay=0.5)
    with pytest.raises(InvalidInput, match="clip rows"):
        descend(model, data, course(radius=0.5))
    with pytest.raises(InvalidInput, match="Linear"):
        descend(nn.Sequential(model), data, course())
    secret = descend(model, data, course(steps=2, rewound=1))
    with pytest.raises(InvalidInput, match="nothing is deleted"):
        rewind(model, secret, data, epsilon=1.0, delta=1e-5)
    assert math.isfinite(float(secret.end.norm()))
