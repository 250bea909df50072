"""``expunge verify`` and ``expunge status``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from expunge.cli import arguments, show
from expunge.cli.arguments import PATH
from expunge.cli.show import FOR_TESTS, console, facts, headline, note, promise

if TYPE_CHECKING:
    from expunge.folder.checking import Checked
    from expunge.folder.operations import Status

OWN_KEYS = (
    "The keys trusted here are those that the folder itself names, so this shows that it agrees "
    "with itself. Check with --trust and a trust.json that you got from the issuer."
)
NO_CHECKPOINT = (
    "Nothing is shown about the log's past without a checkpoint that somebody else held: give one "
    "with --checkpoint (a checkpoint, or any proof file handed out earlier)."
)


@click.command()
@click.argument("target", type=PATH)
@click.option("--model", type=PATH, help="The published model file.")
@click.option("--retained", type=PATH, metavar="DATA", help="The rows that are retained.")
@click.option("--folder", type=PATH, help="The model folder that a certificate comes from.")
@click.option("--trust", type=PATH, help="Trust policy of your own: whose signature counts.")
@click.option("--checkpoint", type=PATH, help="Checkpoint, or proof file, that was held outside.")
def verify(
    target: Path,
    model: Path | None,
    retained: Path | None,
    folder: Path | None,
    trust: Path | None,
    checkpoint: Path | None,
) -> int:
    """Check TARGET, a certificate or a model folder.

    Exit status: 0 consistent, 1 a check failed, 3 consistent but not for production.
    """
    from expunge.folder.checking import Given
    from expunge.folder.inspection import verify

    given = Given(model=model, retained=retained, trust=trust, checkpoint=checkpoint)
    checked = verify(target, given, folder)
    _show_checked(checked, whole_log=target.is_dir() and checkpoint is None)
    return checked.exit_status


def _show_checked(checked: Checked, *, whole_log: bool) -> None:
    screen = console()
    if checked.certificate is not None and checked.subject.startswith("certificate"):
        from expunge.certificate.render import terminal

        screen.print(terminal(checked.certificate, checked.report), markup=False)
    else:
        screen.print(f"Checks of {checked.subject}", style="bold", markup=False)
        show.checks(screen, checked.report.checks)
    if checked.own_keys:
        note(screen, OWN_KEYS)
    if whole_log:
        note(screen, NO_CHECKPOINT)
    if not checked.production:
        note(screen, FOR_TESTS)
    headline(screen, checked.summary)


@click.command()
@arguments.folder
def status(folder: Path) -> None:
    """Say how the model in FOLDER stands; nothing changes."""
    from expunge.folder.operations import status

    _show_status(status(folder))


def _show_status(found: Status) -> None:
    from expunge.certificate.words import day

    screen, policy, latest = console(), found.policy, found.latest
    trees = latest.commitments
    headline(screen, f"Model folder {found.folder}")
    rows = [
        ("Model", f"{policy.loss}, {policy.features} encoded features"),
        ("Issuer", found.issuer),
        ("Records", f"{trees.retained.count:,} retained, {trees.deleted.count:,} deleted"),
        ("Releases", f"{latest.budget.release:,} used, {found.releases_left:,} left"),
        ("Newest", f"release {latest.budget.release}, {day(latest.issued_at)}"),
        *promise(found.guarantee, found.grade),
        ("Lineage", policy.lineage),
        ("Log", f"{found.entries:,} entries"),
        ("Log root", found.checkpoint.split("\n")[2]),
    ]
    facts(screen, rows)
    if not latest.production:
        note(screen, FOR_TESTS)
