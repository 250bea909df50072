"""Arguments and options that several commands share."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from expunge.linear.rows import Rows, Source

PATH = click.Path(path_type=Path)

folder = click.argument("folder", type=PATH)
data = click.argument("data", type=PATH)
other_data = click.option(
    "--data", type=PATH, help="The table of people, if it is not where the training found it."
)
keys = click.option(
    "--keys", type=PATH, help="The directory of keys, if it is not where the training found it."
)
seed = click.option(
    "--seed", type=click.IntRange(min=0), help="Repeatable noise, for tests: not for production."
)


workers = click.option(
    "--workers", type=click.IntRange(min=1), help="Make the passes in so many processes (Dask)."
)
scheduler = click.option(
    "--scheduler", metavar="ADDRESS", help="Make the passes on the Dask cluster of this scheduler."
)


@contextmanager
def spreading(workers: int | None, scheduler: str | None) -> Iterator[Callable[[Rows], Source]]:
    """Yield what gives rows to the workers that the options ask for, or leaves them here."""
    if workers is None and scheduler is None:
        from expunge.folder.operations import here

        yield here
        return
    if workers is not None and scheduler is not None:
        raise click.UsageError("give --workers or --scheduler, not both")
    from expunge.linear.cluster import connect, local_cluster, spread

    with connect(scheduler) if scheduler else local_cluster(workers or 1) as client:
        yield lambda rows: spread(rows, client)


def passphrase() -> bytes | None:
    """Return the passphrase of the keys from the environment, or ask for it on a terminal."""
    from expunge.certificate.keys import passphrase_from_environment

    found = passphrase_from_environment()
    if found is None and sys.stdin.isatty():
        text: str = click.prompt("Passphrase of the keys", hide_input=True, err=True)
        return text.encode()
    return found
