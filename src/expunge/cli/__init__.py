"""The command line: `main` reads arguments, calls :mod:`expunge.folder`, and shows what came of it.

Nothing is computed here, and nothing heavy is imported before a command runs.
"""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Sequence
from contextlib import suppress
from io import TextIOWrapper

import click

from expunge import __version__
from expunge.certificate.plain import printable
from expunge.cli import checks
from expunge.cli.deep import deep
from expunge.cli.deletion import forget, retrain
from expunge.cli.demonstration import demo
from expunge.cli.keys import keys
from expunge.cli.show import DONE, WRONG, NotPrinted, result, silence
from expunge.cli.training import schema, train
from expunge.errors import ExpungeError, Unfinished

INTERRUPTED = 130
DEBUG = "EXPUNGE_DEBUG"


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


for _command in (keys, schema, train, forget, retrain, checks.verify, checks.status, demo, deep):
    cli.add_command(_command)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run one command and exit.

    Exit status: 0 done, 1 or 3 as `verify` says, 2 for an error (one line; nothing has changed), 4
    if it is done but something went wrong afterwards, such as printing the result.
    """
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="replace")
    sys.exit(run(arguments))


def run(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit status."""
    try:
        status = cli.main(arguments, prog_name="expunge", standalone_mode=False)
        with result():
            return status if isinstance(status, int) else 0
    except NotPrinted as error:
        return _fail(error.message, error.status)
    except click.ClickException as error:
        return _fail(error.format_message())
    except Unfinished as error:
        return _fail(str(error), DONE)
    except ExpungeError as error:
        return _fail(str(error))
    except (BrokenPipeError, SystemExit):
        silence()
        return WRONG
    except OSError as error:
        if error.filename is None:
            silence()
        return _fail(f"{error.filename or 'a file or the output'}: {error.strerror or error}")
    except (click.Abort, KeyboardInterrupt):
        return _fail("interrupted", INTERRUPTED)
    except Exception as error:
        if os.environ.get(DEBUG):
            traceback.print_exc()
        return _fail(
            f"{type(error).__name__}: something that was given is damaged, or this is a bug in "
            f"expunge: please report it (with {DEBUG}=1 it says more)"
        )


def _fail(message: str, status: int = WRONG) -> int:
    if message:
        with suppress(OSError):
            click.echo(f"expunge: {printable(' '.join(message.split()))}", err=True)
    return status
