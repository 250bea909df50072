"""``python -m expunge.demo [--out DIR] [--picture FILE.svg]``."""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

from rich.console import Console

from expunge.demo import demonstrate
from expunge.errors import ExpungeError


def main() -> int:
    """Run the demonstration; with ``--picture``, draw the picture of the README from it."""
    parser = argparse.ArgumentParser(prog="python -m expunge.demo", description=__doc__)
    parser.add_argument("--out", type=Path, help="directory of the demonstration")
    parser.add_argument("--picture", type=Path, help="SVG file to draw from its numbers")
    given = parser.parse_args()
    try:
        with tempfile.TemporaryDirectory() as scratch:
            usual = Path("expunge-demo") if given.picture is None else Path(scratch) / "demo"
            report, _ = demonstrate(given.out or usual, Console())
    except ExpungeError as error:
        print(f"expunge: {error}", file=sys.stderr)
        return 2
    if given.picture is not None:
        from expunge.report import plots

        given.picture.write_text(plots.picture(report), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
