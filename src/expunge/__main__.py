"""``python -m expunge`` is the command line."""

from __future__ import annotations

from expunge.cli import main

main()
