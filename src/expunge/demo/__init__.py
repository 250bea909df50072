"""The demonstration: real people's records, deletions, certificates, and then the truth.

`run` uses the model folder as an operator would, checks the certificates in another process,
retrains from scratch to see how much each release really gave away, and lies once to see whether
the checks notice. It ends with a page. `python -m expunge.demo` does the same and can also draw the
picture of the README.
"""

from __future__ import annotations

from pathlib import Path

from rich.console import Console

from expunge.demo.setting import Setting, prepare
from expunge.demo.story import Story, tell
from expunge.report.facts import Report

__all__ = ["Setting", "Story", "demonstrate", "run"]


def run(out: Path, console: Console) -> Path:
    """Run the demonstration and return the path of its report.

    Parameters
    ----------
    out : Path
        A new directory, or that of an earlier demonstration, which is replaced.
    console : Console
        Where to say what happens.

    Raises
    ------
    DataMissing
        If the data are not installed; the message has the command.
    FolderProblem
        If ``out`` holds anything else.
    """
    return demonstrate(out, console)[1]


def demonstrate(out: Path, console: Console) -> tuple[Report, Path]:
    """Run the demonstration and return the report and the path of its page."""
    from expunge.report.page import page

    setting = prepare(out, console)
    report = tell(setting, console)
    path = setting.out / "report.html"
    path.write_text(page(report), encoding="utf-8")
    console.print(f"\nReport: [bold]{path}[/bold]", highlight=False, soft_wrap=True)
    return report, path
