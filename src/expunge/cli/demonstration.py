"""``expunge demo``."""

from __future__ import annotations

from pathlib import Path

import click

from expunge.cli.arguments import PATH
from expunge.cli.show import console


@click.command()
@click.option("--out", type=PATH, default=Path("expunge-demo"), show_default=True)
def demo(out: Path) -> None:
    """Show everything on real people's records: train, forget, check, and retrain to compare."""
    from expunge.demo import run

    run(out, console())
