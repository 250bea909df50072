"""Runs of an experiment as a table: means over seeds, retraining and doing nothing first."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from scipy.stats import t as student

from expunge.deep.problem import over_unlearned

Run = dict[str, Any]
Oracles = dict[int, Run]
Value = Callable[[Run, Run], float]
"""From a run and the retraining of its seed to a number."""

NONE = "–"


@dataclass(frozen=True)
class Column:
    """One measure.

    Attributes
    ----------
    head, part : str
        Title, and the key of the run that must be there for it.
    value : callable
    digits : int
        Decimals of a mean.
    kind : {"mean", "size", "ratio", "count"}
        Mean with its interval, in decimals or in significant digits; geometric mean; mean alone.
    """

    head: str
    part: str
    value: Value
    digits: int = 3
    kind: Literal["mean", "size", "ratio", "count"] = "mean"


@dataclass(frozen=True)
class Group:
    """Columns that answer one question; in ``rows`` as in ``labels``."""

    title: str
    about: str
    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


@dataclass(frozen=True)
class Note:
    """Something that has to be known when reading a row; ``label`` is empty if it is all rows."""

    label: str
    kind: str
    text: str


@dataclass(frozen=True)
class Table:
    """Cells ready to print, and what has to be said below."""

    labels: tuple[str, ...]
    grades: tuple[str, ...]
    groups: tuple[Group, ...]
    notes: tuple[Note, ...]


def _share(kind: str, part: str) -> Column:
    kinds = {"accuracy": "accuracy", "f1": "F1"}
    return Column(f"{kinds[kind]} {part}", kind, lambda run, _: run[kind][part])


def _per(part: str) -> Value:
    return lambda run, oracle: oracle["times"][part] / run["times"]["seconds"]


PARTS = ("retain", "forget", "test")
GROUPS: tuple[tuple[str, str, tuple[Column, ...]], ...] = (
    (
        "What it can still do",
        "Share of right answers, and mean F1 over classes, on retained, forgotten and test "
        "records. A method should come close to retraining in all of them, not be above it.",
        tuple(_share(kind, part) for kind in ("accuracy", "f1") for part in PARTS),
    ),
    (
        "What it still knows",
        "Attack: telling forgotten records from unseen ones; 0.5 is guessing. Loss AUC: by the "
        "loss alone, where far below 0.5 is as telling as far above. Relearn: steps until F is "
        "known again; compare with retraining. Distance: total variation between predictions and "
        "those of further retrained models. Moved: distance of the weights from the old ones.",
        (
            Column("attack accuracy", "membership", lambda run, _: run["membership"]["accuracy"]),
            Column("attack AUC", "membership", lambda run, _: run["membership"]["auc"]),
            Column("loss AUC", "membership", lambda run, _: run["membership"]["loss_auc"]),
            Column("relearn steps", "relearn", lambda run, _: run["relearn"]["median"], 0),
            Column(
                "distance on F",
                "distance",
                lambda run, _: run["distance"]["forget"]["variation"],
            ),
            Column(
                "distance on test",
                "distance",
                lambda run, _: run["distance"]["test"]["variation"],
            ),
            Column("moved", "distance", lambda run, _: run["distance"]["weights"], kind="size"),
        ),
    ),
    (
        "What it costs",
        "Seconds of this machine, and how many times faster than retraining from nothing (cold), "
        "and than going on from the old model on R alone (warm); records read, repetitions "
        "counted.",
        (
            Column("seconds", "times", lambda run, _: run["times"]["seconds"], 2),
            Column("× cold", "times", _per("seconds"), kind="ratio"),
            Column("× warm", "times", _per("warm"), kind="ratio"),
            Column("R read", "times", lambda run, _: run["rows_read"]["retain"], kind="count"),
            Column("F read", "times", lambda run, _: run["rows_read"]["forget"], kind="count"),
        ),
    ),
)


def summarise(runs: Sequence[Run], margin: float) -> Table:
    """Return the table of all methods.

    A cell is the mean over seeds ± half a Student 95 % interval; of speed-ups the geometric mean.

    Parameters
    ----------
    margin : float
        Accuracy on R below retraining from which a model counts as over-unlearned.
    """
    groups: dict[str, list[Run]] = {}
    for run in runs:
        groups.setdefault(run["label"], []).append(run)
    first = {"retrain": 0, "null": 1}
    labels = sorted(groups, key=lambda label: first.get(groups[label][0]["method"], 2))
    oracles = {run["seed"]: run for run in runs if run["method"] == "retrain"}
    done = {label: [run for run in groups[label] if "refused" not in run] for label in labels}
    made = []
    for title, about, all_columns in GROUPS:
        columns = [it for it in all_columns if any(it.part in run for run in runs)]
        if columns:
            rows = tuple(
                tuple(_cell(column, done[label], oracles) for column in columns) for label in labels
            )
            made.append(Group(title, about, tuple(it.head for it in columns), rows))
    notes = _general(runs)
    for label in labels:
        notes += _notes(label, groups[label], oracles, margin)
    grades = tuple(_grade(done[label]) for label in labels)
    return Table(tuple(labels), grades, tuple(made), tuple(notes))


def _grade(done: list[Run]) -> str:
    return ", ".join(dict.fromkeys(run["grade"] for run in done)) or "refused"


def _cell(column: Column, done: list[Run], oracles: Oracles) -> str:
    ratio = column.kind == "ratio"
    if not done or (ratio and done[0]["method"] in ("retrain", "null")):
        return NONE
    values = [column.value(run, oracles[run["seed"]]) for run in done]
    if column.kind in ("ratio", "count"):
        return brief(_mean(column, values))
    if column.kind == "size":
        half = half_width(values)
        return brief(_mean(column, values)) + ("" if half is None else f" ± {brief(half)}")
    least = column.part == "relearn" and any(run["relearn"]["censored"] for run in done)
    return ("≥ " if least else "") + interval(values, column.digits)


def _mean(column: Column, values: Sequence[float]) -> float:
    if column.kind == "ratio":
        return float(np.exp(np.mean(np.log(values))))
    return float(np.mean(values))


def brief(value: float) -> str:
    """Return three significant digits, or all digits of a whole number below a million.

    Examples
    --------
    >>> brief(0.01234), brief(12.34), brief(5400.0), brief(2.5e10)
    ('0.0123', '12.3', '5,400', '2.5e+10')
    """
    if 1000 <= value < 1e6:
        return f"{value:,.0f}"
    return f"{value:.3g}"


def interval(values: Sequence[float], digits: int = 3) -> str:
    """Return ``mean ± half the Student 95 % interval``; the mean alone of a single value.

    Examples
    --------
    >>> interval([0.9, 0.92, 0.91]), interval([0.5])
    ('0.910 ± 0.025', '0.500')
    """
    mean = f"{float(np.mean(values)):,.{digits}f}"
    half = half_width(values)
    return mean if half is None else f"{mean} ± {half:,.{digits}f}"


def half_width(values: Sequence[float]) -> float | None:
    """Return half of the Student 95 % interval of a mean; None for a single value."""
    if len(values) < 2:
        return None
    spread = float(np.std(values, ddof=1)) / math.sqrt(len(values))
    return float(student.ppf(0.975, len(values) - 1)) * spread


def _general(runs: Sequence[Run]) -> list[Note]:
    """Return what weakens the whole table."""
    notes = []
    null = [run for run in runs if run["method"] == "null" and "membership" in run]
    blind = sum(run["membership"]["low"] <= 0.5 <= run["membership"]["high"] for run in null)
    if 2 * blind > len(null):
        notes.append(
            "The attack has no power here: it cannot tell even the untouched model's records from "
            f"unseen ones ({blind} of {len(null)} seeds). An AUC near 0.5 shows nothing."
        )
    oracles = [run for run in runs if run["method"] == "retrain"]
    void = [
        run for run in oracles if "relearn" in run
        and (run["relearn"]["censored"] or run["relearn"]["median"] <= 3)
    ]  # fmt: skip
    if void:
        notes.append(
            "Relearn steps decide nothing here: retraining itself needs 3 steps or fewer, or more "
            f"than the cap ({len(void)} of {len(oracles)} seeds)."
        )
    late = [run for run in oracles if not run["warm"]["reached"]]
    if late:
        notes.append(
            "Warm retraining did not reach the loss of retraining within the epochs of the recipe "
            f"({len(late)} of {len(oracles)} seeds): × warm counts all of them."
        )
    return [Note("", "reading", text) for text in notes]


def _notes(label: str, runs: list[Run], oracles: Oracles, margin: float) -> list[Note]:
    done = [run for run in runs if "refused" not in run]
    notes = [
        Note(label, "refused", reason)
        for reason in dict.fromkeys(run["refused"] for run in runs if "refused" in run)
    ]
    lost = [run for run in done if _over(run, oracles[run["seed"]], margin)]
    if lost:
        text = (
            f"accuracy on R is more than {100 * margin:g} points below retraining in {len(lost)} "
            f"of {len(done)} runs: its other figures mean little, for a useless model knows nothing"
        )
        notes.append(Note(label, "over-unlearned", text))
    warned = dict.fromkeys(text for run in done for text in run["warnings"])
    return notes + [Note(label, "warning", text) for text in warned]


def _over(run: Run, oracle: Run, margin: float) -> bool:
    return over_unlearned(run["accuracy"]["retain"], oracle["accuracy"]["retain"], margin)


def summary(runs: Sequence[Run]) -> dict[str, dict[str, Any]]:
    """Return the numbers of the table: by label and column the mean, half width and count."""
    oracles = {run["seed"]: run for run in runs if run["method"] == "retrain"}
    found: dict[str, dict[str, Any]] = {}
    for label in dict.fromkeys(run["label"] for run in runs):
        done = [run for run in runs if run["label"] == label and "refused" not in run]
        found[label] = {}
        for column in (it for _, _, columns in GROUPS for it in columns):
            if done and all(column.part in run for run in done):
                values = [column.value(run, oracles[run["seed"]]) for run in done]
                found[label][column.head] = {
                    "mean": _mean(column, values),
                    "half": None if column.kind == "ratio" else half_width(values),
                    "runs": len(values),
                }
    return found


LEGEND = (
    "Means over seeds ± half a Student 95 % interval; speed-ups are geometric means. Retrain is "
    "what the others are measured by, null does nothing. ≥: not relearnt within the cap in some "
    "run."
)


def markdown(table: Table, title: str) -> str:
    """Return everything as Markdown: one table, then what its columns mean, then the notes."""
    head = ["method", "grade", *(name for group in table.groups for name in group.head)]
    lines = [f"# {title}", "", _line(head), _line(["---"] * len(head))]
    for i, label in enumerate(table.labels):
        cells = [cell for group in table.groups for cell in group.rows[i]]
        lines.append(_line([label, table.grades[i], *cells]))
    lines += ["", LEGEND, ""]
    lines += [f"- *{group.title}.* {group.about}" for group in table.groups]
    if table.notes:
        lines += ["", "Notes", ""]
        lines += [f"- {_named(note)}" for note in table.notes]
    return "\n".join(lines) + "\n"


def _named(note: Note) -> str:
    return f"{note.label}, {note.kind}: {note.text}" if note.label else note.text


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"
