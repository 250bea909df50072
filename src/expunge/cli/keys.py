"""``expunge keys``: make and show signing keys."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from expunge.cli.arguments import PATH
from expunge.cli.show import facts, headline, line, note, result

if TYPE_CHECKING:
    from rich.console import Console


@click.group()
def keys() -> None:
    """Make and show the keys that sign certificates, the log, and seal annexes."""


@keys.command()
@click.argument("directory", type=PATH)
@click.option("--passphrase-file", type=PATH, help="Write the passphrase here, not on the screen.")
@click.option("--no-passphrase", is_flag=True, help="Leave the private keys unencrypted.")
def new(directory: Path, passphrase_file: Path | None, no_passphrase: bool) -> None:
    """Make new keys in DIRECTORY."""
    if no_passphrase and passphrase_file is not None:
        raise click.UsageError("--passphrase-file and --no-passphrase exclude each other")
    from expunge.folder.keyring import make_keys

    passphrase = make_keys(directory, encrypted=not no_passphrase, passphrase_file=passphrase_file)
    done = f"keys were made in {directory}"
    if passphrase is not None and passphrase_file is None:
        done += ", and nobody knows their passphrase: remove them and make others"
    with result(done) as screen:
        headline(screen, f"Keys made in {directory}.")
        _show(screen, directory)
        if passphrase is None:
            note(screen, "The private keys are not encrypted: whoever reads the files can sign.")
        elif passphrase_file is not None:
            note(screen, f"The passphrase is in {passphrase_file}, and nowhere else.")
        else:
            note(screen, f"Passphrase, shown only now: {passphrase}")
        line(screen, f"Give {directory / 'trust.json'} to whoever will check certificates.")


@keys.command()
@click.argument("directory", type=PATH)
def show(directory: Path) -> None:
    """Show the ids of the public keys in DIRECTORY."""
    with result() as screen:
        _show(screen, directory)


def _show(screen: Console, directory: Path) -> None:
    from expunge.certificate.keys import keyid
    from expunge.folder.keyring import public_keys

    trusted = public_keys(directory).keys
    facts(screen, [(key.name, keyid(key.public)) for key in trusted])
