"""``expunge deep``: published unlearning methods for networks, and which scheme fits."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import fields
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from expunge.certificate.plain import printable
from expunge.cli.arguments import PATH
from expunge.cli.show import console, facts, headline, line, note, result
from expunge.errors import ExpungeError

if TYPE_CHECKING:
    from expunge.deep.experiment import Plan, Run
    from expunge.deep.results import Table


@click.group()
def deep() -> None:
    """Networks: list methods, run experiments, choose a scheme."""
    if find_spec("torch") is None:
        raise ExpungeError("networks need PyTorch: pip install 'expunge[deep]'")


@deep.command("list")
def list_methods() -> None:
    """List the methods: what they do and need, the grade of the result, and their defaults."""
    from expunge.deep.methods import METHODS

    with result() as screen:
        for name, kind in METHODS.items():
            method: Any = kind()
            needs = ", ".join(sorted(method.needs)) or "nothing"
            grade = "exact" if name == "retrain" else "heuristic"
            words = (kind.__doc__ or "").strip().splitlines()[0]
            line(screen, name, style="bold", end="")
            line(screen, f"  {words}")
            options = ", ".join(f"{f.name} = {f.default!r}" for f in fields(method))
            line(screen, f"  {grade}; needs {needs}" + f"; {options}" * bool(options), style="dim")


@deep.command("run")
@click.argument("experiment", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--out", type=PATH, required=True, help="Directory of runs and tables.")
@click.option("--fresh", is_flag=True, help="Remove all runs kept in it, and begin anew.")
def run_experiment(experiment: Path, out: Path, fresh: bool) -> None:
    """Run EXPERIMENT, a TOML file; started again, it goes on where it stopped."""
    from expunge.certificate.words import count
    from expunge.deep.experiment import read_plan, run

    plan = read_plan(experiment)
    try:
        with _bar(len(plan.seeds) * len(plan.methods)) as report:
            runs = run(plan, out, fresh=fresh, progress=report)
    except KeyboardInterrupt:
        note(console(error=True), f"Finished runs are kept in {out}: the same command goes on.")
        raise
    table = _write_results(plan, runs, out)
    refused = sum(grade == "refused" for grade in table.grades)
    with result(f"the results are in {out}") as screen:
        headline(screen, f"{plan.title}: {len(runs)} runs of {len(plan.methods)} methods.")
        names = ("results.html", "results.md", "results.json")
        facts(screen, [(name.partition(".")[2].upper(), str(out / name)) for name in names])
        for text in (it.text for it in table.notes if not it.label):
            note(screen, text)
        if refused:
            line(screen, f"{count(refused, 'method')} could not be used here: see the notes.")


def _write_results(plan: Plan, runs: list[Run], out: Path) -> Table:
    from expunge.deep.experiment import environment
    from expunge.deep.results import LEGEND, markdown, summarise, summary
    from expunge.report.experiment import experiment_page

    setting = {"seeds": list(plan.seeds), **plan.setting, **environment()}
    table, numbers = summarise(runs, plan.measure.margin), summary(runs)
    whole = {"title": plan.title, "setting": setting, "summary": numbers, "runs": runs}
    page = experiment_page(plan.title, table, numbers, setting, legend=LEGEND)
    for name, text in (
        ("results.json", json.dumps(whole, indent=1, ensure_ascii=False) + "\n"),
        ("results.md", markdown(table, plan.title)),
        ("results.html", page),
    ):
        aside = out / f"{name}.part"
        aside.write_text(text, encoding="utf-8")
        os.replace(aside, out / name)
    return table


@contextmanager
def _bar(total: int) -> Iterator[Callable[[int, int, str], None]]:
    """Show on a terminal which run is being done."""
    from rich.markup import escape
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    screen = console(error=True)
    columns = (
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.fields[name]}"),
    )
    with Progress(*columns, console=screen, transient=True, disable=not screen.is_terminal) as bar:
        task = bar.add_task("", total=total, name="")

        def report(done: int, _total: int, name: str) -> None:
            bar.update(task, completed=done, name=escape(printable(name)))

        yield report


@deep.command("advise")
@click.option("--parameters", type=int, required=True, help="Of the network.")
@click.option("--rows", type=int, required=True, help="Records trained on.")
@click.option("--deletions", type=int, required=True, help="Expected in the life of the model.")
@click.option("--requests", type=int, required=True, help="In how many releases.")
@click.option("--retrain-seconds", type=float, required=True, help="One training from nothing.")
@click.option("--features", type=int, default=512, show_default=True, help="Of the last layer.")
@click.option("--public-backbone", is_flag=True, help="A network without users' data exists.")
@click.option("--data-gone", is_flag=True, help="The retained records will not be at hand.")
@click.option("--whole-network", is_flag=True, help="All weights must learn from users' data.")
@click.option("--adaptive", is_flag=True, help="People choose after seeing released models.")
@click.option("--epsilon", type=float, default=1.0, show_default=True)
@click.option("--delta", type=float, default=1e-5, show_default=True)
def advise_scheme(data_gone: bool, **given: Any) -> None:
    """Say which scheme fits, at what cost, and why."""
    from expunge.deep.advice import Situation, advise

    found = advise(Situation(keeps_data=not data_gone, **given))
    with result() as screen:
        for advice in found:
            cost = "" if advice.seconds is None else f", {advice.seconds:.3g} s a request"
            fits = "fits" if advice.fits else "does not fit"
            line(screen, f"{advice.scheme}: {fits} ({advice.grade.value}{cost})")
            for reason in advice.reasons:
                line(screen, f"  {reason}", style="dim")
