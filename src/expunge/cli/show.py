"""How results look on a terminal."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

import click

from expunge.certificate.plain import printable

if TYPE_CHECKING:
    from pathlib import Path

    from rich.console import Console

    from expunge.certificate.checks import Check
    from expunge.guarantee import Grade, Guarantee

COLOURS = {"PASS": "green", "FAIL": "bold red", "NOT CHECKED": "yellow"}

MEANINGS = {
    "exact": "as if retrained",
    "certified": "guaranteed under checked conditions, listed in each certificate",
    "conditional": "guaranteed only if an assumption holds that nobody checked",
    "heuristic": "no guarantee; tests only",
}

LEARNED = (
    "The encoding (scales, categories) was learned from the data, also from people who may ask to "
    "be forgotten, and it stays as it is. Certificates are therefore conditional: they hold only "
    "if it does not depend on deleted people. Declare it with --schema to avoid this; "
    "`expunge schema` writes a template."
)
WEAK = (
    "A weak guarantee: who was deleted can be told too often. Smaller --epsilon and --delta make "
    "it stronger."
)
FOR_TESTS = "NOT FOR PRODUCTION: the noise was seeded, so it protects nobody."

WRONG, DONE = 2, 4


class NotPrinted(click.ClickException):
    """The result of a command could not be printed; ``status`` says whether it did anything."""

    def __init__(self, done: str, reason: str) -> None:
        told = reason and f"the result could not be printed: {reason}"
        super().__init__("; ".join(part for part in (done, told) if part))
        self.status = DONE if done else WRONG


@contextmanager
def result(done: str = "") -> Iterator[Console]:
    """Give the screen for what came of a command, and see that it gets there.

    Raises
    ------
    NotPrinted
        If it does not. It says what is ``done`` all the same, if anything is; a reader that only
        went away is nothing to complain of.
    """
    try:
        yield console()
        if sys.stdout is not None:
            sys.stdout.flush()
    except (OSError, SystemExit) as error:
        silence()
        gone = isinstance(error, BrokenPipeError | SystemExit)
        raise NotPrinted(done, "" if gone else getattr(error, "strerror", "")) from error


def silence() -> None:
    """Drop what standard output could not take, so that the end of the program does not retry."""
    with suppress(OSError, AttributeError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def console(*, error: bool = False) -> Console:
    """Return where to print; long lines are left to the terminal, so that paths stay whole."""
    from rich.console import Console

    return Console(stderr=error, highlight=False, emoji=False, soft_wrap=True)


@contextmanager
def progress() -> Iterator[Callable[[str], None]]:
    """Show on a terminal what is being done; nothing is shown elsewhere.

    The spinner starts with the first message, after any question for a passphrase.
    """
    screen = console(error=True)
    spinner = screen.status("")

    def report(message: str) -> None:
        spinner.update(message)
        spinner.start()

    try:
        yield report if screen.is_terminal else lambda message: None
    finally:
        spinner.stop()


def line(screen: Console, text: str, **look: Any) -> None:
    """Print one line, in which nothing of others acts on the terminal."""
    screen.print(printable(text), markup=False, **look)


def headline(screen: Console, text: str) -> None:
    """Print what happened."""
    line(screen, text, style="bold")


def facts(screen: Console, pairs: Sequence[tuple[str, str]]) -> None:
    """Print labels and values, aligned."""
    width = max(len(label) for label, _ in pairs)
    for label, value in pairs:
        line(screen, f"  {label:<{width}}  ", style="dim", end="")
        line(screen, value)


def note(screen: Console, text: str) -> None:
    """Print a paragraph that must not be missed."""
    line(screen, text, style="yellow", soft_wrap=False)


def checks(screen: Console, found: Sequence[Check]) -> None:
    """Print every check with its verdict."""
    width = max(len(check.name) for check in found)
    for check in found:
        verdict = check.verdict.value
        line(screen, f"  {verdict:<11}  ", style=COLOURS[verdict], end="")
        line(screen, f"{check.name:<{width}}  {check.reason}".rstrip())


def promise(guarantee: Guarantee, grade: Grade) -> list[tuple[str, str]]:
    """Return how strong a guarantee is, as facts."""
    from expunge.certificate.words import count, percent

    return [
        ("Grade", f"{grade}: {MEANINGS[grade]}"),
        (
            "Guarantee",
            f"ε = {guarantee.epsilon:g}, δ = {guarantee.delta:g} for each {guarantee.unit}, over "
            f"all {count(guarantee.releases_covered, 'release')} together",
        ),
        (
            "Strength",
            "nobody who sees the models tells them from retrained ones more than "
            f"{percent(guarantee.success_probability)} of the time; blind guessing: 50 %",
        ),
    ]


def warnings(screen: Console, guarantee: Guarantee, *, production: bool) -> None:
    """Print what weakens a promise."""
    from expunge.certificate import words

    if guarantee.success_probability > words.WEAK:
        note(screen, WEAK)
    if not production:
        note(screen, FOR_TESTS)


def witness(screen: Console, proof: Path) -> None:
    """Say what somebody outside is to keep."""
    line(
        screen,
        f"Send {proof} to somebody outside, who keeps it: with `expunge verify --checkpoint` it "
        "shows later that nothing was removed from the log.",
    )


def seconds(value: float) -> str:
    """Return a time as people read it.

    >>> seconds(0.00342), seconds(0.1832), seconds(1.26)
    ('3.4 ms', '183 ms', '1.3 s')
    """
    if value >= 1:
        return f"{value:.1f} s"
    return f"{1000 * value:.0f} ms" if value >= 0.01 else f"{1000 * value:.1f} ms"
