"""``expunge forget`` and ``expunge retrain``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from expunge.cli import arguments
from expunge.cli.arguments import PATH
from expunge.cli.show import (
    facts,
    headline,
    line,
    progress,
    promise,
    result,
    seconds,
    warnings,
    witness,
)

if TYPE_CHECKING:
    from rich.console import Console

    from expunge.folder.operations import Forgotten, Retrained

REGIMES = ("gdpr", "ccpa", "deleteAct", "none")


@click.command()
@arguments.folder
@click.option("--ids", type=PATH, metavar="FILE", help="File with ids; - for standard input.")
@click.option("--id", "single", multiple=True, metavar="X", help="An id; may be repeated.")
@arguments.other_data
@arguments.keys
@click.option("--regime", type=click.Choice(REGIMES), default="none", show_default=True)
@click.option("--basis", multiple=True, help="Paragraph of the request, such as 17(1)(b).")
@click.option("--received", metavar="DATE", help="When the requests came; now, if left out.")
@arguments.seed
@arguments.workers
@arguments.scheduler
def forget(
    folder: Path,
    ids: Path | None,
    single: tuple[str, ...],
    data: Path | None,
    keys: Path | None,
    regime: str,
    basis: tuple[str, ...],
    received: str | None,
    seed: int | None,
    workers: int | None,
    scheduler: str | None,
) -> None:
    """Delete people from the model in FOLDER: one batch, one release, one certificate."""
    if (ids is None) == (not single):
        raise click.UsageError("say whom to forget: either --ids FILE, or --id X once or more")
    from expunge.certificate.clocks import Regime
    from expunge.folder.operations import Asked, forget, requested_ids
    from expunge.folder.requests import parse_received

    since = None if received is None else parse_received(received)
    people = list(single) if ids is None else requested_ids(ids, folder)
    with progress() as report, arguments.spreading(workers, scheduler) as through:
        forgotten = forget(
            folder,
            people,
            data=data,
            keys=keys,
            asked=Asked(Regime(regime), basis, since),
            seed=seed,
            passphrase=arguments.passphrase,
            progress=report,
            through=through,
        )
    with result(
        f"the deletion HAS happened, its certificate is {forgotten.certificate_path}"
    ) as screen:
        _show(screen, forgotten)


def _show(screen: Console, forgotten: Forgotten) -> None:
    from expunge.certificate.words import count, people

    certificate = forgotten.certificate
    retained = certificate.commitments.retained.count
    headline(
        screen,
        f"Deleted {people(forgotten.people)}, {count(forgotten.records, 'record')}; "
        f"{count(retained, 'record')} retained.",
    )
    rows = [
        ("Certificate", str(forgotten.certificate_path)),
        ("Page", str(forgotten.page_path)),
        *promise(certificate.guarantee, certificate.grade),
        ("Releases left", f"{forgotten.releases_left:,}"),
        (
            "Time",
            f"{seconds(forgotten.seconds)} for the deletion itself, {seconds(forgotten.total)} "
            "with reading and checking the data",
        ),
    ]
    facts(screen, rows)
    warnings(screen, certificate.guarantee, production=certificate.production)
    line(screen, f"Their rows are still in {forgotten.data}: delete them there.")
    witness(screen, forgotten.proof_path)


@click.command()
@arguments.folder
@arguments.other_data
@arguments.keys
@arguments.seed
@arguments.workers
@arguments.scheduler
def retrain(
    folder: Path,
    data: Path | None,
    keys: Path | None,
    seed: int | None,
    workers: int | None,
    scheduler: str | None,
) -> None:
    """Train FOLDER's model from scratch on what is retained, as its next release."""
    from expunge.folder.operations import retrain

    with progress() as report, arguments.spreading(workers, scheduler) as through:
        done = retrain(
            folder,
            data=data,
            keys=keys,
            seed=seed,
            passphrase=arguments.passphrase,
            progress=report,
            through=through,
        )
    with result(f"the retrain HAS happened, its statement is {done.statement_path}") as screen:
        _show_retrained(screen, done)


def _show_retrained(screen: Console, done: Retrained) -> None:
    from expunge.certificate.words import count

    headline(screen, f"Retrained on the {count(done.records, 'retained record')}.")
    rows = [
        ("Statement", str(done.statement_path)),
        ("Releases left", f"{done.releases_left:,}"),
        ("Time", f"{seconds(done.seconds)} for the fit"),
    ]
    facts(screen, rows)
    warnings(screen, done.guarantee, production=done.statement.production)
    witness(screen, done.proof_path)
