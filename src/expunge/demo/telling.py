"""What the demonstration says in the terminal."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table

from expunge.certificate import words
from expunge.certificate.checks import Report as Checks
from expunge.folder.operations import Forgotten, Trained
from expunge.report.facts import Report, together
from expunge.report.plots import brief, duration


def command(console: Console, text: str) -> None:
    """Show a command as one would type it."""
    console.print(f"[dim]$ {text}[/dim]", highlight=False, soft_wrap=True)


def trained(console: Console, done: Trained) -> None:
    """Say what was trained, and what the policy promises."""
    policy = done.policy
    _say(
        console,
        f"release 1: {done.records:,} records of {done.people:,} people, "
        f"{duration(done.seconds)}; grade {done.grade.value}, ε = {policy.epsilon:g} at "
        f"δ = {policy.delta:g} over {policy.releases:,} releases",
    )


def forgotten(console: Console, done: Forgotten, whole: float) -> None:
    """Say what was deleted and how long it took."""
    people = "1 person" if done.people == 1 else f"{done.people:,} people"
    _say(
        console,
        f"release {done.certificate.budget.release}: {people}, "
        f"{words.count(done.records, 'record')}, {duration(done.seconds)} "
        f"({duration(whole)} with everything), certificate {done.certificate_path.name}",
    )


def lied(console: Console, done: Forgotten) -> None:
    """Say what the dishonest operator claims."""
    _say(
        console,
        f"[red]the control:[/red] in a copy, a dishonest operator deletes nothing and certifies "
        f"{done.people:,} deletions",
    )


def checked(console: Console, checks: Checks, status: int) -> None:
    """Say how a verification ended."""
    colour = "red" if checks.failed else "green"
    _say(console, f"[{colour}]{checks.summary}[/{colour}] (exit status {status})")


def summary(report: Report, console: Console) -> None:
    """Print the certified beside the realised, and time beside time."""
    found = report.findings
    if found is None:
        return
    table = Table(box=None, padding=(0, 2), pad_edge=False, header_style="dim")
    for name in ("release", "people", "records", "ε certified", "ε realised"):
        table.add_column(name, justify="right")
    table.add_column("accuracy", justify="right")
    table.add_column("retrained", justify="right")
    certified = together([report.mu_certified] * len(found.releases))
    realised = together([it.mu for it in found.releases])
    for k, certificate in enumerate(report.certificates):
        table.add_row(
            str(certificate.budget.release),
            f"{certificate.asked:,}",
            f"{report.records[k]:,}",
            brief(report.epsilon(certified[k])),
            brief(report.epsilon(realised[k])),
            f"{100 * found.releases[k].accuracy:.2f} %",
            f"{100 * found.releases[k].retrained:.2f} %",
        )
    console.print(table)
    console.print("[dim]ε of all releases so far; accuracy on held-out people[/dim]")
    times = Table(box=None, padding=(0, 2), pad_edge=False, header_style="dim")
    for name in ("time", "alone", "with everything"):
        times.add_column(name, justify="left" if name == "time" else "right")
    whole = {it.label: duration(it.seconds) for it in found.timings if it.whole}
    for it in found.timings:
        if not it.whole:
            times.add_row(it.label, duration(it.seconds), whole.get(it.label, ""))
    console.print()
    console.print(times)


def _say(console: Console, text: str) -> None:
    console.print(f"  {text}", highlight=False, soft_wrap=True)
