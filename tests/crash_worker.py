"""Kills trainings and deletions, and says after each whether the folder is before or after.

``python crash_worker.py HOME faults|kills train|forget COUNT`` where HOME has been made by
`people_example.make_home`. A process of its own, because it forks: it has no threads to lose.

``faults`` ends the child at its 1st, 2nd, … file operation; ``kills`` sends SIGKILL at random
instants. Prints one JSON object: how often a killed child was found before and after.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa

from expunge.certificate.commit import MerkleSet
from expunge.folder.checking import Given
from expunge.folder.inspection import check_folder
from expunge.folder.operations import Training, forget, status, train
from people_example import PEOPLE

KILLED = 77
OPERATIONS = ("fsync", "replace", "rename", "unlink", "rmdir", "mkdir", "open")


def die_at(number: int) -> None:
    """End this process at its ``number``-th file operation, or update of a tree of records."""
    left = [number]

    def wrap(call: Callable[..., Any], late: bool) -> Callable[..., Any]:
        def counted(*args: Any, **options: Any) -> Any:
            left[0] -= 1
            if left[0] == 0:
                if late:
                    call(*args, **options)
                os._exit(KILLED)
            return call(*args, **options)

        return counted

    for name in OPERATIONS:
        setattr(os, name, wrap(getattr(os, name), late=False))
    MerkleSet.apply = wrap(MerkleSet.apply, late=True)  # type: ignore[method-assign]


def in_child(work: Callable[[], Any]) -> int:
    """Run in a fork, and return the fork's process id."""
    child = os.fork()
    if child == 0:
        try:
            work()
            os._exit(0)
        except BaseException as error:
            print(repr(error), file=sys.stderr)
            os._exit(1)
    return child


def ended(child: int) -> int:
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def training(home: Path) -> Training:
    return Training(label="ill", identifier="person", keys=home / "keys")


def new_training(home: Path) -> Callable[[], Any]:
    return lambda: train(home / "people.csv", home / "new", training(home))


def deletion(home: Path, person: str) -> Callable[[], Any]:
    return lambda: forget(home / "new", [person], data=home / "people.csv")


def check(home: Path, *, retained: bool = False) -> int:
    """Return the release that the folder is at; everything about it has to be in order."""
    data = home / "people.csv" if retained else None
    found = check_folder(home / "new", Given(retained=data))
    assert found.exit_status == 0, found.report.failed
    stands = status(home / "new")
    assert stands.latest.commitments.deleted.count == 2 * (stands.latest.budget.release - 1)
    left = [p.name for p in (home / "new/sealed").iterdir() if p.name.startswith(("pend", "done"))]
    assert not left, left
    return stands.latest.budget.release


def outcome_of_training(home: Path) -> str:
    if not (home / "new").exists():
        return "before"
    assert check(home) == 1
    return "after"


def train_again(home: Path) -> None:
    """Whatever a killed training has left is no hindrance, and is swept away."""
    shutil.rmtree(home / "new", ignore_errors=True)
    assert ended(in_child(new_training(home))) == 0
    assert check(home) == 1
    assert not [p for p in home.iterdir() if ".tmp-" in p.name]


def fresh(home: Path, command: str) -> None:
    """Take away what the last round has left, and start from the trained model for a deletion."""
    for path in home.glob("new*"):
        shutil.rmtree(path)
    if command == "forget":
        shutil.copytree(home / "model", home / "new")


def faults(home: Path, command: str, count: int) -> dict[str, int]:
    found = {"before": 0, "after": 0}
    for number in range(1, count + 1):
        fresh(home, command)
        work = new_training(home) if command == "train" else deletion(home, "p1")

        def dying(number: int = number, work: Callable[[], Any] = work) -> None:
            die_at(number)
            work()

        if (code := ended(in_child(dying))) == 0:
            return found
        assert code == KILLED, code
        if command == "train":
            found[outcome_of_training(home)] += 1
            if number % 5 == 0:
                train_again(home)
        else:
            release = check(home, retained=number % 10 == 0)
            found["before" if release == 1 else "after"] += 1
            if number % 4 == 0:
                again = "p1" if release == 1 else "p2"
                assert ended(in_child(deletion(home, again))) == 0
                assert check(home) == release + 1
    raise AssertionError(f"{command} has more than {count} file operations")


def kills(home: Path, command: str, count: int) -> dict[str, int]:
    found = {"before": 0, "after": 0}
    for _ in range(count):
        fresh(home, command)
        if command == "train":
            child = in_child(new_training(home))
        else:
            child = in_child(lambda: [deletion(home, f"p{i}")() for i in range(PEOPLE // 2)])
        time.sleep(random.uniform(0.002, 0.15 if command == "train" else 0.12))
        os.kill(child, signal.SIGKILL)
        ended(child)
        if command == "train":
            found[outcome_of_training(home)] += 1
        else:
            release = check(home, retained=True)
            found["before" if release == 1 else "after"] += 1
            assert ended(in_child(deletion(home, f"p{release - 1}"))) == 0
            assert check(home) == release + 1
    train_again(home)
    return found


if __name__ == "__main__":
    pa.array(["loads what pyarrow loads late"])
    place, kind, name = Path(sys.argv[1]), sys.argv[2], sys.argv[3]
    run = faults if kind == "faults" else kills
    print(json.dumps(run(place, name, int(sys.argv[4]))))
