"""The ablations of `experiments.zhang`: one setting varied, the others as in the main table."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from torch import nn

from experiments.summary import table
from experiments.zhang_trials import (
    CONJUGATE,
    DELTA,
    EPSILON,
    Pair,
    Trial,
    prepare,
)
from expunge.deep.curvature import gradient
from expunge.deep.descent import Recipe
from expunge.deep.inverse import lissa
from expunge.deep.measure import accuracy, weight_distance
from expunge.deep.methods.zhang import Released, Zhang
from expunge.deep.network import view
from expunge.deep.problem import Problem
from expunge.deep.training import cross_entropy, train
from expunge.deep.zhang_bounds import implied_epsilon, sigma_needed


@dataclass(frozen=True)
class Ablation:
    """A table, and what of it is drawn: curves over ``x``."""

    name: str
    title: str
    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    label: str
    x: tuple[float, ...]
    curves: dict[str, tuple[float, ...]]
    logarithmic: bool = True

    def lines(self) -> list[str]:
        """Return the Markdown."""
        return [f"### {self.title}", "", *table(self.head, self.rows)]


def percent(model: nn.Module, *parts: Pair) -> list[float]:
    """Return accuracies in per cent."""
    return [100 * accuracy(model, part) for part in parts]


def numbers(*values: float) -> tuple[str, ...]:
    """Return three digits of each."""
    return tuple(f"{value:.3g}" for value in values)


def damping(trial: Trial) -> Ablation:
    """λ from just above |λ_min| to 100 λ_max, with both gradients."""
    least, top = trial.ends
    values = sorted({1.05 * abs(least), *(k * top for k in (0.1, 1.01, 10.0, 100.0))})
    values = [value for value in values if value > -least]
    found, rows = {}, []
    for mode in ("retained", "forget"):
        each = []
        for value in values:
            method = trial.method(damping=value, gradient=mode, solver=CONJUGATE, sigma=0.0)
            released = method.unlearn(trial.problem())
            score = percent(released.model, trial.forget, trial.test)
            step = released.evidence["step"].value
            gap = weight_distance(released.model, trial.same)
            each.append((*score, step, gap))
            rows.append((f"{value:.3g}", f"{value / top:.2g}", mode, *numbers(*each[-1])))
        for index, what in enumerate(("forget", "test")):
            found[f"{what}, {mode} gradient"] = tuple(it[index] for it in each)
    same = percent(trial.same, trial.forget, trial.test)
    for index, what in enumerate(("forget", "test")):
        found[f"{what}, retrain"] = (same[index],) * len(values)
    return Ablation(
        "lambda",
        "Damping λ",
        ("λ", "λ/λ_max", "gradient", "forget %", "test %", "step", "distance to retrain"),
        tuple(rows),
        "λ",
        tuple(values),
        found,
    )


def radius(trial: Trial, radii: tuple[float | None, ...] = (5.0, 10.0, 20.0, None)) -> Ablation:
    """C: what the ball costs in accuracy, and what noise it asks for."""
    rows, tests, needs = [], [], []
    for value in radii:
        recipe = replace(trial.case.recipe, max_norm=value, seed=trial.seed)
        data = tuple(torch.cat(pair) for pair in zip(trial.forget, trial.retain, strict=True))
        model = train(trial.case.network(trial.seed), data, recipe)
        (test,) = percent(model, trial.test)
        needed = math.inf if value is None else sigma_needed(2 * value, EPSILON, DELTA)
        implied = math.inf if value is None else implied_epsilon(2 * value, 1e-3, DELTA)
        norm = float(view(model).vector().norm())
        rows.append(("none" if value is None else f"{value:g}", *numbers(norm, test, needed)))
        rows[-1] += numbers(implied)
        tests.append(test)
        needs.append(needed)
    shown = [(r, t) for r, t in zip(radii, tests, strict=True) if r is not None]
    return Ablation(
        "radius",
        "Radius C",
        ("C", "‖w‖", "test %", "σ needed for ε = 1", "implied ε at σ = 0.001"),
        tuple(rows),
        "C",
        tuple(r for r, _ in shown),
        {"test": tuple(t for _, t in shown)},
    )


def series(trial: Trial, repeats: tuple[int, ...], depths: tuple[int, ...]) -> Ablation:
    """Repeats, depth and scale of LiSSA: residual on all data, standard error, time."""
    value, operator = max(0.1 * trial.ends[1], 1.05 * abs(trial.ends[0])), trial.operator()
    slope = gradient(operator.objective.network, cross_entropy, trial.retain, wd=trial.wd)
    probe = lissa(value, depth=1, repeats=1).solve(operator, slope, strict=False)
    norm = probe.info["batch_norm"]
    scales = {
        "‖H‖ + λ": trial.ends[1] + value,
        "B̂ + λ": norm + value,
        "10(B̂ + λ)": 10 * (norm + value),
    }
    rows, curves = [], {}
    for name, scale in scales.items():
        for count in repeats:
            left = []
            for depth in depths:
                solver = lissa(value, scale, count, depth)
                found = solver.solve(operator, slope, strict=False)
                residual = math.inf if found.status == "diverged" else found.residual
                blind = found.info.get("standard_error", math.nan)
                rows.append((name, str(count), str(depth)))
                rows[-1] += numbers(residual, blind, found.seconds)
                left.append(residual)
            curves[f"{name}, {count} repeats"] = tuple(left)
    return Ablation(
        "lissa",
        f"LiSSA at λ = {value:.3g}",
        ("scale", "repeats", "depth", "residual on all data", "standard error", "seconds"),
        tuple(rows),
        "depth",
        tuple(map(float, depths)),
        curves,
    )


def noise(trial: Trial) -> Ablation:
    """σ from none to what the claim takes."""
    needed = sigma_needed(2 * trial.case.radius, EPSILON, DELTA)
    values = (0.0, 1e-3, 1e-2, 3e-2, 1e-1, needed)
    rows, scores = [], []
    for sigma in values:
        method = trial.method(solver=CONJUGATE, sigma=sigma, noise_seed=trial.seed)
        released = method.unlearn(trial.problem())
        score = percent(released.model, trial.retain, trial.forget, trial.test)
        assert released.account is not None
        claim = "refused" if released.account.refused else f"({EPSILON:g}, {DELTA:g})"
        rows.append((f"{sigma:.3g}", *numbers(*score, released.account.implied), claim))
        scores.append(score)
    return Ablation(
        "sigma",
        "Noise σ",
        ("σ", "retain %", "forget %", "test %", "implied ε", "claim"),
        tuple(rows),
        "σ",
        values[1:],
        {
            what: tuple(score[index] for score in scores[1:])
            for index, what in enumerate(("retain", "forget", "test"))
        },
    )


def sizes(trial: Trial, counts: tuple[int, ...]) -> Ablation:
    """m: distance to the retrain before and after, accuracy on what is forgotten."""
    rows, scores = [], []
    for count in counts:
        smaller = prepare(replace(trial.case, forget=count), trial.seed)
        released = smaller.method(solver=CONJUGATE, sigma=0.0).unlearn(smaller.problem())
        models = (smaller.trained, released.model, smaller.same)
        score = [percent(model, smaller.forget)[0] for model in models]
        gaps = [weight_distance(model, smaller.same) for model in models[:2]]
        rows.append((str(count), *numbers(*score, *gaps)))
        scores.append(score)
    names = ("before", "Zhang", "retrain")
    return Ablation(
        "forget",
        "Records to forget m",
        ("m", *(f"forget %, {n}" for n in names), "distance to retrain, before", "after"),
        tuple(rows),
        "m",
        tuple(map(float, counts)),
        {name: tuple(s[i] for s in scores) for i, name in enumerate(names)},
    )


def requests(trial: Trial, count: int, size: int) -> Ablation:
    """Requests one after the other; the composed ε, and the distance to a retrain at the end."""
    needed = sigma_needed(2 * trial.case.radius, EPSILON, DELTA)
    method = Zhang(solver=CONJUGATE, sigma=1e-3, noise_seed=trial.seed, damping=trial.damping)
    X, y = (torch.cat(pair) for pair in zip(trial.forget, trial.retain, strict=True))
    hidden, problem, rows, tests = None, None, [], []
    for t in range(count):
        a, b = size * t, size * (t + 1)
        model = trial.trained if hidden is None else hidden.model
        kept = (X[b:], y[b:])
        problem = Problem(model, cross_entropy, (X[a:b], y[a:b]), kept, train=trial.case.recipe)
        released, hidden = replace(method, smallest=trial.smallest).request(problem, hidden)
        score = percent(released.model, (X[:b], y[:b]), trial.test)
        worth = implied_epsilon(2 * trial.case.radius, needed, DELTA, t + 1)
        rows.append((str(t + 1), *numbers(*score, _worth(released), worth)))
        tests.append(score)
    return Ablation(
        "requests",
        f"Requests of {size} records, one after the other",
        (
            "request",
            "forgotten so far %",
            "test %",
            "implied ε",
            "ε had σ been that of one release",
        ),
        tuple(rows),
        "requests",
        tuple(float(t + 1) for t in range(count)),
        {name: tuple(s[i] for s in tests) for i, name in enumerate(("forgotten so far", "test"))},
        logarithmic=False,
    )


def _worth(released: Released) -> float:
    return math.inf if released.account is None else released.account.implied


def residuals(trial: Trial) -> Ablation:
    """The residual kept, left out, and left out and calibrated by two SGD steps on 1 % of R."""
    values = [1.05 * abs(trial.ends[0]), 0.1 * trial.ends[1], trial.damping]
    values = sorted(value for value in values if value > -trial.ends[0])
    few = max(1, len(trial.retain[1]) // 100)
    part = (trial.retain[0][:few], trial.retain[1][:few])
    recipe = Recipe("sgd", lr=0.05, epochs=2, batch_size=few, seed=trial.seed)
    rows, curves = [], {}
    for name, mode in (("kept", "retained"), ("left out", "forget"), ("calibrated", "forget")):
        tests = []
        for value in values:
            method = trial.method(damping=value, gradient=mode, solver=CONJUGATE, sigma=0.0)
            model = method.unlearn(trial.problem()).model
            if name == "calibrated":
                model = train(model, part, recipe)
            score = percent(model, trial.retain, trial.forget, trial.test)
            gap = weight_distance(model, trial.same)
            rows.append((name, f"{value:.3g}", *numbers(*score, gap)))
            tests.append(score[2])
        curves[f"test, {name}"] = tuple(tests)
    return Ablation(
        "residual",
        "The residual gradient",
        ("residual", "λ", "retain %", "forget %", "test %", "distance to retrain"),
        tuple(rows),
        "λ",
        tuple(values),
        curves,
    )


@dataclass(frozen=True)
class Extent:
    """How much the ablations vary."""

    repeats: tuple[int, ...] = (1, 5, 10)
    depths: tuple[int, ...] = (100, 400, 1000)
    forget: tuple[int, ...] = (10, 100, 1000, 6000)
    requests: int = 10
    size: int = 100


def ablations(trial: Trial, extent: Extent) -> Iterator[Ablation]:
    """Yield all of them."""
    yield damping(trial)
    yield radius(trial)
    yield series(trial, extent.repeats, extent.depths)
    yield noise(trial)
    yield sizes(trial, extent.forget)
    yield requests(trial, extent.requests, extent.size)
    yield residuals(trial)
