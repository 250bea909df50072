"""An experiment: every method of a file on every seed, measured; what is done is kept.

Every run (a method on a seed) is one JSON file, named after a digest of all that it depends on and
put in place as a whole: after an interruption, or with methods or seeds added, only what is missing
is done. A setting that changes anything has other names, so results of two settings never mix.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import time
from collections.abc import Callable
from dataclasses import asdict, replace
from functools import cache, cached_property
from pathlib import Path
from typing import Any

import torch
from torch import nn

from expunge import __version__
from expunge.deep.descent import Descent
from expunge.deep.graphs import repeatable
from expunge.deep.measure import (
    accuracy,
    classified,
    f1,
    function_distance,
    mean_loss,
    membership,
    relearn_steps,
    weight_distance,
)
from expunge.deep.methods import METHODS, retrains
from expunge.deep.methods.amnesiac import Amnesiac
from expunge.deep.network import view
from expunge.deep.problem import Method, Problem, Unlearned
from expunge.deep.renewal import duplicate
from expunge.deep.settings import Plan, digest, parameters, read_plan
from expunge.deep.sources import Records, alike, forgotten, load_data, make_model
from expunge.deep.training import (
    TrainingLog,
    cross_entropy,
    records,
    seeded,
    shuffled,
    train,
    train_logged,
)
from expunge.deep.training import mean_loss as batch_loss
from expunge.errors import ExpungeError, InvalidInput

__all__ = ["METHODS", "Plan", "Run", "environment", "read_plan", "run", "warm_retrain"]

Run = dict[str, Any]
Progress = Callable[[int, int, str], None]
"""Called before every run with how many are done, how many there are, and its name."""

RELEARN_FACTOR = 1.05
"""Relearnt: a loss on F of at most so many times the one of the model that knew it."""


@cache
def environment() -> dict[str, str]:
    """Return what results depend on beside the file: versions, and a digest of this package."""
    seal = hashlib.sha256()
    for path in sorted(Path(__file__).parent.rglob("*.py")):
        seal.update(path.read_bytes())
    return {
        "expunge": __version__,
        "code": seal.hexdigest()[:16],
        "torch": torch.__version__,
        "machine": platform.machine(),
    }


def run(
    plan: Plan, out: Path, *, fresh: bool = False, progress: Progress | None = None
) -> list[Run]:
    """Do what is missing in ``out`` and return all runs, seed by seed in the order of the plan.

    Parameters
    ----------
    fresh : bool
        Remove all runs in ``out`` first.

    Raises
    ------
    InvalidInput, DataMissing
        Before anything is trained, if data, model or device cannot be had; if a file of ``out`` is
        not what its name says, or the training does not repeat itself on this machine.
    """
    data = load_data(plan.data, plan.base)
    _device(plan)
    folder = _folder(out, fresh)
    found: list[Run] = []
    total = len(plan.seeds) * len(plan.methods)
    for seed in plan.seeds:
        case: Case | None = None
        names = {label: _name(plan, data, method) for label, method in plan.methods}
        done = {label: _read(folder, name, seed) for label, name in names.items()}
        for label, method in plan.methods:
            made = done[label]
            if made is None:
                if progress is not None:
                    progress(len(found), total, f"seed {seed}: {label}")
                case = case or _checked(Case(plan, data, seed), done)
                made = {"digest": names[label], "seed": seed, **_measured(case, method)}
                _write(folder, made)
            found.append({"label": label, **made})
    return found


def _folder(out: Path, fresh: bool) -> Path:
    folder = out / "runs"
    folder.mkdir(parents=True, exist_ok=True)
    if fresh:
        for path in (*folder.glob("*.json"), *folder.glob("*.part")):
            path.unlink()
    return folder


def _name(plan: Plan, data: Records, method: Method) -> str:
    own = (method.name, parameters(method))
    return digest(plan.setting, data.digest, environment(), *own)


def _read(folder: Path, name: str, seed: int) -> Run | None:
    path = folder / f"{name}-{seed}.json"
    try:
        made = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except ValueError:
        made = None
    if not isinstance(made, dict) or (made.get("digest"), made.get("seed")) != (name, seed):
        raise InvalidInput(
            f"{path} does not hold the run of its name: it is damaged, or of another experiment; "
            "remove it, or begin anew with --fresh"
        )
    return made


def _write(folder: Path, made: Run) -> None:
    path = folder / f"{made['digest']}-{made['seed']}.json"
    aside = path.with_suffix(f".{os.getpid()}.part")
    aside.write_text(json.dumps(made, indent=1, allow_nan=False), encoding="utf-8")
    os.replace(aside, path)


def _device(plan: Plan) -> torch.device:
    try:
        return torch.empty(0, device=plan.device).device
    except (RuntimeError, AssertionError) as error:
        raise InvalidInput(f"device = {plan.device!r} cannot be used here: {error}") from None


class Case:
    """One seed: the trained model as a problem, and what its copies are measured on.

    Attributes
    ----------
    problem : Problem
    test, unseen : pair of tensors
        Test records, and those of them with the mix of classes of F.
    target : float
        Loss on F at which it counts as relearnt.
    seconds : float
        Of the training.
    trained : str
        Digest of the trained weights.
    """

    def __init__(self, plan: Plan, data: Records, seed: int) -> None:
        self.plan, self.data = plan, data
        mask = forgotten(plan.forget, data.train[1], data.ids, seed)
        self.test, labels = data.test, data.train[1][mask]
        if "membership" in plan.measure.metrics:
            if len(labels) < 4:
                raise InvalidInput(
                    f"the membership attack needs 4 records to forget, not {len(labels)}: leave it "
                    "out of metrics in [measure]"
                )
            self.unseen = alike(data.test, labels, seed)
        recipe = replace(plan.train, seed=1000 * seed)
        start = self._fresh(recipe.seed)
        outputs = classified(start, (data.train[0][:2], torch.zeros(2, dtype=torch.int64)))[0]
        if outputs.shape[1] < data.classes:
            raise InvalidInput(
                f"the model has {outputs.shape[1]} outputs, but the labels need {data.classes}"
            )
        started = time.perf_counter()
        model, log = self._trained(start, recipe, data.ids[mask].tolist())
        self.seconds = time.perf_counter() - started
        self.problem = Problem(
            model,
            cross_entropy,
            (data.train[0][mask], labels),
            (data.train[0][~mask], data.train[1][~mask]),
            train=recipe,
            seed=recipe.seed + 1,
            trained_ids=data.ids.tolist(),
            forget_ids=data.ids[mask].tolist(),
            retain_ids=data.ids[~mask].tolist(),
            stored=log,
            fresh=self._fresh,
            buffers="reestimate",
        )
        self.target = RELEARN_FACTOR * mean_loss(model, self.problem.forget)
        self.trained = weights(model)

    def _fresh(self, seed: int) -> nn.Module:
        with seeded(seed, torch.device("cpu")):
            made = make_model(self.plan.model, self.data.shape, self.data.classes, self.plan.base)
        return made.to(_device(self.plan))

    def _trained(
        self, start: nn.Module, recipe: Any, forget_ids: list[int]
    ) -> tuple[nn.Module, TrainingLog | None]:
        methods = [method for _, method in self.plan.methods]
        if not any("stored" in method.needs for method in methods):
            return train(start, self.data.train, recipe), None
        watched = forget_ids if any(isinstance(it, Amnesiac) for it in methods) else []
        ids = self.data.ids.tolist()
        return train_logged(start, self.data.train, recipe, sensitive=watched, ids=ids)

    @cached_property
    def oracles(self) -> list[nn.Module]:
        """Models retrained on R with seeds of their own."""
        first = self.problem.seed + 1
        seeds = range(first, first + self.plan.measure.retrains)
        return [found.model for found in retrains(self.problem, seeds)]


def _checked(case: Case, done: dict[str, Run | None]) -> Case:
    """Return the case, if it is the one that the kept runs are of."""
    if any(made is not None and made["trained"] != case.trained for made in done.values()):
        raise InvalidInput(
            "training again gave other weights than the kept runs started from: it does not repeat "
            "itself here (another machine, device or number of threads, or changed code of the "
            "model): --fresh begins anew"
        )
    return case


def weights(model: nn.Module) -> str:
    """Return a digest of all parameters and buffers."""
    seal = hashlib.sha256()
    for name, tensor in sorted(model.state_dict().items()):
        raw = tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
        seal.update(
            f"{name} {tuple(tensor.shape)} {tensor.dtype}\n".encode() + raw.numpy().tobytes()
        )
    return seal.hexdigest()


def _measured(case: Case, method: Method) -> Run:
    """Run one method; what it refuses, and why, is a result too."""
    made: Run = {
        "method": method.name,
        "parameters": parameters(method),
        "trained": case.trained,
    }
    try:
        found = method.unlearn(case.problem)
        measures = _measures(case, found)
    except ExpungeError as error:
        if method.name == "retrain":
            raise
        return {**made, "refused": " ".join(str(error).split())}
    made |= {
        "weights": weights(found.model),
        "grade": found.grade.value,
        "rows_read": dict(found.rows_read),
        "warnings": list(found.warnings),
        **measures,
        "times": {"seconds": found.seconds, "training": case.seconds},
    }
    if method.name == "retrain":
        loss = mean_loss(found.model, case.problem.retain)
        seconds, epochs, reached = warm_retrain(case.problem, loss)
        made |= {"warm": {"epochs": epochs, "reached": reached}}
        made["times"]["warm"] = seconds
    return made


def _measures(case: Case, found: Unlearned) -> Run:
    model, problem, wanted = found.model, case.problem, case.plan.measure
    parts = {"retain": problem.retain, "forget": problem.forget, "test": case.test}
    made: Run = {"accuracy": {name: accuracy(model, part) for name, part in parts.items()}}
    if "f1" in wanted.metrics:
        made["f1"] = {name: f1(model, part) for name, part in parts.items()}
    if "membership" in wanted.metrics:
        attack = membership(model, problem.forget, case.unseen, seed=problem.seed)
        made["membership"] = asdict(attack)
    if "relearn" in wanted.metrics:
        relearned = relearn_steps(
            model,
            problem.forget,
            case.target,
            lr=wanted.relearn_lr,
            batch_size=wanted.relearn_batch,
            cap=wanted.relearn_cap,
            orders=wanted.relearn_orders,
        )
        steps = list(relearned.steps)
        made["relearn"] = {
            "steps": steps,
            "median": relearned.median,
            "censored": relearned.censored,
        }
    if "distance" in wanted.metrics:
        made["distance"] = {
            **{name: _apart(case, model, parts[name]) for name in ("forget", "test")},
            "weights": weight_distance(model, problem.model),
        }
    return made


def _apart(case: Case, model: nn.Module, data: Any) -> dict[str, float]:
    """Return mean distances to the oracles' predictions."""
    all_of_them = [asdict(function_distance(model, oracle, data)) for oracle in case.oracles]
    return {key: sum(it[key] for it in all_of_them) / len(all_of_them) for key in all_of_them[0]}


def warm_retrain(problem: Problem, loss: float) -> tuple[float, int, bool]:
    """Go on training the old model on R until its mean loss there is at most ``loss``.

    By the recipe of the training, begun anew: at least one epoch, since before it the model has not
    been trained without F at all, and at most as many as the recipe has. The loss is measured after
    each epoch, which is not timed.

    Returns
    -------
    seconds, epochs, reached

    Notes
    -----
    What results has seen F: this is a yardstick for time, not a way to forget.
    """
    recipe = problem.train
    if recipe is None:
        raise InvalidInput("a warm retraining needs the recipe: give Problem(train=Recipe(...))")
    model, seconds = duplicate(problem.model), 0.0
    network = view(model, problem.params)
    data = records(problem.kept(), network.device)
    descent = Descent(network, recipe, -(-data.rows // recipe.batch_size))
    generator = torch.Generator().manual_seed(problem.seed)
    with seeded(problem.seed, network.device), repeatable():
        for epoch in range(1, recipe.epochs + 1):
            model.train()
            started = time.perf_counter()
            for _, batch in shuffled(data, recipe.batch_size, generator):
                descent.step(batch_loss(model, problem.loss, batch))
            seconds += time.perf_counter() - started
            if mean_loss(model, data, problem.loss) <= loss:
                return seconds, epoch, True
    return seconds, recipe.epochs, False
