"""The command line: `main` reads arguments, calls :mod:`expunge.folder`, and shows what came of it.

Nothing is computed here, and nothing heavy is imported before a command runs.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

import click

from expunge import __version__
from expunge.cli.checks import status, verify
from expunge.cli.deletion import forget, retrain
from expunge.cli.demonstration import demo
from expunge.cli.keys import keys
from expunge.cli.training import schema, train
from expunge.errors import ExpungeError

WRONG = 2
INTERRUPTED = 130


@click.group(
    invoke_without_command=True,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.version_option(__version__, message="expunge %(version)s")
@click.pass_context
def cli(context: click.Context) -> None:
    """Remove people's data from trained models, with a certificate that anybody can check.

    \b
    expunge keys new KEYS
    expunge train people.csv --label ill --id person --out model --keys KEYS
    expunge forget model --id 1234
    expunge verify model
    """
    if context.invoked_subcommand is None:
        click.echo(context.get_help())


for _command in (keys, schema, train, forget, retrain, verify, status, demo):
    cli.add_command(_command)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run one command and exit: 0 done, 1 or 3 as `verify` says, 2 for an error (one line)."""
    sys.exit(run(arguments))


def run(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit status."""
    try:
        result = cli.main(arguments, prog_name="expunge", standalone_mode=False)
        sys.stdout.flush()
    except click.ClickException as error:
        return _fail(error.format_message())
    except ExpungeError as error:
        return _fail(str(error))
    except BrokenPipeError:
        sys.stderr.close()
        return WRONG
    except OSError as error:
        return _fail(f"{error.filename or 'a file'}: {error.strerror or error}")
    except (click.Abort, KeyboardInterrupt):
        return _fail("interrupted", INTERRUPTED)
    return result if isinstance(result, int) else 0


def _fail(message: str, status: int = WRONG) -> int:
    line = "".join(c if c.isprintable() else "�" for c in " ".join(message.split()))
    click.echo(f"expunge: {line}", err=True)
    return status
