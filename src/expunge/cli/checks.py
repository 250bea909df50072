"""``expunge verify`` and ``expunge status``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from expunge.cli import arguments, show
from expunge.cli.arguments import PATH
from expunge.cli.show import FOR_TESTS, facts, headline, note, promise, result, warnings

if TYPE_CHECKING:
    from rich.console import Console

    from expunge.folder.checking import Checked
    from expunge.folder.standing import Status

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
    from expunge.folder.kinds import require_certificate

    if not target.is_dir():
        require_certificate(target)
    given = Given(model=model, retained=retained, trust=trust, checkpoint=checkpoint)
    checked = verify(target, given, folder)
    newer = _published_since(checked, folder or target.absolute().parent.parent)
    with result() as screen:
        _show_checked(screen, checked)
        if target.is_dir() and checkpoint is None:
            note(screen, NO_CHECKPOINT)
        if newer:
            note(screen, newer)
        if not checked.production:
            note(screen, FOR_TESTS)
        headline(screen, checked.summary)
    return checked.exit_status


def _show_checked(screen: Console, checked: Checked) -> None:
    if checked.certificate is not None and checked.subject.startswith("certificate"):
        from expunge.certificate.render import terminal

        screen.print(terminal(checked.certificate, checked.report), markup=False)
    else:
        headline(screen, f"Checks of {checked.subject}")
        show.checks(screen, checked.report.checks)
    if checked.own_keys:
        note(screen, OWN_KEYS)


def _published_since(checked: Checked, home: Path) -> str:
    """Say it if the model is not the certified one because the folder has moved on since."""
    from expunge.folder.layout import CONFIG
    from expunge.folder.standing import status

    certificate = checked.certificate
    wrong = any(check.name == "model" for check in checked.report.failed)
    if not wrong or certificate is None or not (home / CONFIG).is_file():
        return ""
    latest, own = status(home, public=True).latest.budget.release, certificate.budget.release
    if latest <= own:
        return ""
    return (
        f"The certificate is of release {own}, and {home} now publishes release {latest}: check "
        f"its model with certificate {latest}, or give the model file of release {own}."
    )


@click.command()
@arguments.folder
def status(folder: Path) -> None:
    """Say how the model in FOLDER stands; nothing changes."""
    from expunge.folder.standing import status

    found = status(folder)
    with result() as screen:
        _show_status(screen, found)


def _show_status(screen: Console, found: Status) -> None:
    from expunge.certificate.words import count, day

    policy, latest = found.policy, found.latest
    trees = latest.commitments
    headline(screen, f"Model folder {found.folder}")
    rows = [
        ("Model", f"{policy.loss}, {count(policy.features, 'encoded feature')}"),
        ("Issuer", latest.issuer.name),
        ("Records", f"{trees.retained.count:,} retained, {trees.deleted.count:,} deleted"),
        ("Releases", f"{latest.budget.release:,} used, {found.releases_left:,} left"),
        ("Newest", f"release {latest.budget.release}, {day(latest.issued_at)}"),
        *promise(found.guarantee, found.grade),
        ("Lineage", policy.lineage),
        ("Log", f"{found.entries:,} entries"),
        ("Log root", "".join(found.checkpoint.split("\n")[2:3])),
    ]
    facts(screen, rows)
    warnings(screen, found.guarantee, production=latest.production)
