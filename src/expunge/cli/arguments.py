"""Arguments and options that several commands share."""

from __future__ import annotations

import sys
from pathlib import Path

import click

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


def passphrase() -> bytes | None:
    """Return the passphrase of the keys from the environment, or ask for it on a terminal."""
    from expunge.certificate.keys import passphrase_from_environment

    found = passphrase_from_environment()
    if found is None and sys.stdin.isatty():
        text: str = click.prompt("Passphrase of the keys", hide_input=True, err=True)
        return text.encode()
    return found
