"""How results look on a terminal."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
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
FOR_TESTS = "NOT FOR PRODUCTION: the noise was seeded, so it protects nobody."


def console(*, error: bool = False) -> Console:
    """Return where to print; long lines are left to the terminal, so that paths stay whole."""
    from rich.console import Console

    return Console(stderr=error, highlight=False, soft_wrap=True)


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


def headline(screen: Console, text: str) -> None:
    """Print what happened."""
    screen.print(text, style="bold", markup=False)


def facts(screen: Console, pairs: Sequence[tuple[str, str]]) -> None:
    """Print labels and values, aligned."""
    width = max(len(label) for label, _ in pairs)
    for label, value in pairs:
        screen.print(f"  [dim]{label:<{width}}[/dim]  ", end="")
        screen.print(value, markup=False)


def note(screen: Console, text: str) -> None:
    """Print a paragraph that must not be missed."""
    screen.print(text, style="yellow", markup=False, soft_wrap=False)


def checks(screen: Console, found: Sequence[Check]) -> None:
    """Print every check with its verdict."""
    width = max(len(check.name) for check in found)
    for check in found:
        verdict = check.verdict.value
        screen.print(f"  [{COLOURS[verdict]}]{verdict:<11}[/]  ", end="")
        reason = f"  {check.reason}" if check.reason else ""
        screen.print(f"{check.name:<{width}}{reason}".rstrip(), markup=False)


def promise(guarantee: Guarantee, grade: Grade) -> list[tuple[str, str]]:
    """Return how strong a guarantee is, as facts."""
    return [
        ("Grade", f"{grade}: {MEANINGS[grade]}"),
        (
            "Guarantee",
            f"ε = {guarantee.epsilon:g}, δ = {guarantee.delta:g} for each {guarantee.unit}, over "
            f"all {guarantee.releases_covered:,} releases together",
        ),
    ]


def seconds(value: float) -> str:
    """Return a time as people read it.

    >>> seconds(0.00342), seconds(1.26)
    ('3.4 ms', '1.3 s')
    """
    return f"{1000 * value:.1f} ms" if value < 1 else f"{value:.1f} s"
