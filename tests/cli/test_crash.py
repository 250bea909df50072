"""Killed at any instant, a folder is before or after; two commands at once do not meet."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from expunge.cli import run
from expunge.folder.operations import status

WORKER = Path(__file__).parent.parent / "crash_worker.py"


def worker(home: Path, *words: str) -> dict[str, int]:
    environment = {**os.environ, "OPENBLAS_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, str(WORKER), str(home), *words],
        capture_output=True,
        text=True,
        env=environment,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, int] = json.loads(done.stdout)
    print(words, found)
    return found


@pytest.mark.parametrize("command", ["train", "forget"])
def test_ending_at_every_file_operation(home: Path, command: str) -> None:
    found = worker(home, "faults", command, "500")
    assert found["before"] > 10
    assert found["after"] > 1


@pytest.mark.parametrize(("command", "count"), [("train", 25), ("forget", 40)])
def test_sigkill_at_random_instants(home: Path, command: str, count: int) -> None:
    found = worker(home, "kills", command, str(count))
    assert sum(found.values()) == count


def at_once(home: Path, *people: str) -> list[subprocess.CompletedProcess[str]]:
    words = [sys.executable, "-m", "expunge", "forget", str(home / "model"), "--id"]
    running = [
        subprocess.Popen(
            [*words, person], stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        for person in people
    ]
    done = []
    for process in running:
        out, err = process.communicate(timeout=60)
        done.append(subprocess.CompletedProcess(process.args, process.returncode, out, err))
    return done


def test_two_deletions_at_once_happen_one_after_the_other(home: Path) -> None:
    done = at_once(home, "p1", "p2")
    assert [it.returncode for it in done] == [0, 0], [it.stderr for it in done]
    assert status(home / "model").latest.budget.release == 3
    assert run(["verify", str(home / "model"), "--retained", str(home / "people.csv")]) == 0


def test_one_person_is_deleted_once(home: Path) -> None:
    done = at_once(home, "p1", "p1")
    assert sorted(it.returncode for it in done) == [0, 2]
    assert any("deleted before" in it.stderr for it in done)
    assert status(home / "model").latest.budget.release == 2


def test_killed_commands(home: Path) -> None:
    """The whole command, in a process of its own, killed by SIGKILL at a few instants."""
    words = [sys.executable, "-m", "expunge", "forget", str(home / "model"), "--id"]
    for number, delay in enumerate((0.2, 0.5, 0.6, 0.7, 0.8)):
        process = subprocess.Popen([*words, f"p{number}"], stderr=subprocess.DEVNULL, stdout=-3)
        try:
            process.wait(timeout=delay)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        assert run(["verify", str(home / "model"), "--retained", str(home / "people.csv")]) == 0
        assert run(["status", str(home / "model")]) == 0
        assert run(["verify", str(home / "model"), "--retained", str(home / "people.csv")]) == 0
