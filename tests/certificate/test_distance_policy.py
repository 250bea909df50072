"""Policies and model files of the losses and penalties that the recheck of distances knows."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

import certificate_example as example
from expunge import modelfile
from expunge.certificate import policy, residual
from expunge.certificate.policy import Policy
from expunge.errors import InvalidInput, VerificationFailed


def payload(**changes: Any) -> bytes:
    """The payload of the example's policy, with fields of the predicate changed or (None) gone."""
    statement = json.loads(example.policy(loss="squared").to_payload())
    statement["predicate"].update(changes)
    kept = {k: v for k, v in statement["predicate"].items() if v is not None or k not in changes}
    return json.dumps({**statement, "predicate": kept}).encode()


def test_every_loss_of_a_model_can_be_rechecked() -> None:
    assert set(modelfile.LOSSES) == set(residual.LOSSES)
    assert set(residual.LOSSES) - set(residual.CURVATURES) == set(policy.PENALISED)


@pytest.mark.parametrize("loss", policy.PENALISED)
def test_an_intercept_that_is_not_penalised_is_refused_with_the_reason(loss: str) -> None:
    assert example.policy(loss=loss).loss == loss
    with pytest.raises(InvalidInput, match=r"curvature jumps.*constant feature"):
        example.policy(loss=loss, fit_intercept=True)


@pytest.mark.parametrize("l1", [0.0, 0.1, 1e-300, 12345.678])
@pytest.mark.parametrize("intercept", [False, True])
def test_the_l1_penalty_is_written_and_read_back_exactly(l1: float, intercept: bool) -> None:
    made = example.policy(loss="squared", l1=l1, fit_intercept=intercept)
    assert Policy.from_payload(made.to_payload()) == made
    predicate = json.loads(made.to_payload())["predicate"]
    assert float(predicate["l1Total"]) == l1
    assert isinstance(predicate["l1Total"], str)


def test_the_l1_penalty_is_part_of_the_digest() -> None:
    digests = {example.policy(loss="squared", l1=l1).digest for l1 in (0.0, 1e-9, 1.0)}
    assert len(digests) == 3


@pytest.mark.parametrize("l1", [-1.0, float("nan"), float("inf"), "1"])
def test_an_l1_penalty_out_of_range_is_refused(l1: Any) -> None:
    with pytest.raises(InvalidInput, match="l1 must be a finite number"):
        example.policy(loss="squared", l1=l1)


@pytest.mark.parametrize("loss", sorted(set(modelfile.LOSSES) - {"squared"}))
def test_an_l1_penalty_goes_with_squared_loss_only(loss: str) -> None:
    with pytest.raises(InvalidInput, match="squared only"):
        example.policy(loss=loss, l1=1.0)


@pytest.mark.parametrize("l1", [None, 0, 1.5, "-1", "1e+3", "nan", "0x1", ["1"]])
def test_a_payload_is_read_strictly(l1: Any) -> None:
    assert Policy.from_payload(payload(l1Total="2.5")).l1 == 2.5
    with pytest.raises(VerificationFailed):
        Policy.from_payload(payload(l1Total=l1))


@pytest.mark.parametrize(
    ("loss", "rows", "classes"),
    [("squared-hinge", 1, ("no", "yes")), ("squared-hinge", 3, (0, 1, 2)), ("huber", 2, None)],
)
def test_a_model_file_keeps_its_loss(loss: str, rows: int, classes: Any) -> None:
    model = modelfile.ReleasedModel(np.ones((rows, 2)), None, loss, classes)
    found = modelfile.decode(modelfile.encode(model))
    assert (found.loss, found.classes) == (loss, classes)


@pytest.mark.parametrize(("rows", "classes"), [(1, None), (1, (0, 1, 2)), (3, (0, 1))])
def test_a_squared_hinge_model_needs_its_classes(rows: int, classes: Any) -> None:
    with pytest.raises(InvalidInput):
        modelfile.ReleasedModel(np.ones((rows, 2)), None, "squared-hinge", classes)
