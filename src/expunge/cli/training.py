"""``expunge schema`` and ``expunge train``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from expunge.cli import arguments
from expunge.cli.arguments import PATH
from expunge.cli.show import (
    LEARNED,
    facts,
    headline,
    line,
    note,
    progress,
    promise,
    result,
    seconds,
    warnings,
    witness,
)

MODELS = "logistic, linear-svc, ridge-classifier; for numbers ridge, poisson, gamma"

if TYPE_CHECKING:
    from rich.console import Console

    from expunge.folder.operations import Trained


@click.command()
@arguments.data
@click.option("--label", required=True, help="Column to predict.")
@click.option("--id", "identifier", required=True, help="Column that says whose row it is.")
@click.option("-o", "--output", type=PATH, help="Write the template here, not on the screen.")
def schema(data: Path, label: str, identifier: str, output: Path | None) -> None:
    """Write a template of a declared encoding of DATA; it holds no numbers from the data."""
    from expunge.folder.durable import write
    from expunge.folder.schema import template
    from expunge.folder.table import read

    if output is not None and output.exists():
        raise click.UsageError(f"{output} exists; name another file")
    text = template(read(data, label=label, identifier=identifier))
    if output is None:
        with result():
            click.echo(text, nl=False)
    else:
        write(output, text.encode())
        with result(f"the template is in {output}") as screen:
            line(screen, f"Template written to {output}: edit it, then train with --schema.")


@click.command()
@arguments.data
@click.option("--label", required=True, help="Column to predict.")
@click.option("--id", "identifier", required=True, help="Column that says whose row it is.")
@click.option("--out", type=PATH, required=True, help="Model folder to make.")
@click.option("--keys", type=PATH, required=True, help="Directory made by `expunge keys new`.")
@click.option("--model", default="logistic", help=f"One of {MODELS}.")
@click.option("--schema", type=PATH, help="Declared encoding; without it one is learned.")
@click.option("--ignore", multiple=True, metavar="COL", help="Column that is no feature.")
@click.option("--penalty", default=1.0, show_default=True, help="Λ of (Λ/2)‖w‖², sum units.")
@click.option("--l1", default=0.0, help="ν of ν‖w‖₁ for ridge: an elastic net.")
@click.option("--epsilon", default=1.0, show_default=True, help="ε of all releases together.")
@click.option("--delta", default=1e-6, show_default=True, help="δ of all releases together.")
@click.option("--releases", default=1000, show_default=True, help="Releases that are covered.")
@click.option("--sigma", type=float, help="Noise per parameter (0.01, or 0.001).")
@click.option("--multi-class", default="multinomial", help="multinomial or ovr.")
@click.option("--noise", default="gaussian", help="gaussian, or discrete (extra `hardened`).")
@click.option("--issuer", default="unnamed", help="Name to print in certificates.")
@arguments.seed
@arguments.workers
@arguments.scheduler
def train(
    data: Path, out: Path, workers: int | None, scheduler: str | None, **choices: Any
) -> None:
    """Train a model on the people of DATA (CSV or Parquet) and make its folder."""
    from expunge.folder.operations import Training, train

    with progress() as report, arguments.spreading(workers, scheduler) as through:
        trained = train(
            data,
            out,
            Training(**choices),
            passphrase=arguments.passphrase,
            progress=report,
            through=through,
        )
    with result(f"the model folder {out} HAS been made") as screen:
        _show(screen, trained)


def _show(screen: Console, trained: Trained) -> None:
    from expunge.certificate.words import count, people

    policy = trained.policy
    kind = "numbers" if policy.classes is None else f"{len(policy.classes)} classes"
    records, owners = count(trained.records, "record"), people(trained.people)
    headline(screen, f"Trained on {records} of {owners}.")
    rows = [
        ("Folder", str(trained.folder)),
        ("Model", f"{policy.loss}, {count(policy.features, 'encoded feature')}, {kind}"),
        *promise(trained.guarantee, trained.grade),
        ("Time", f"{seconds(trained.seconds)} for the fit"),
    ]
    facts(screen, rows)
    if policy.feature_map_tag == "assumed":
        note(screen, LEARNED)
    warnings(screen, trained.guarantee, production=trained.statement.production)
    witness(screen, trained.proof_path)
    line(screen, f"Next: expunge forget {trained.folder} --id ID")
