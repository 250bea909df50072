"""The demonstration in order: train, forget, verify, retrain, compare, lie."""

from __future__ import annotations

import shutil
import statistics
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import pyarrow.parquet as parquet
from rich.console import Console

from expunge.certificate.checks import Report as Checks
from expunge.certificate.clocks import Regime
from expunge.certificate.statement import ModelRelease
from expunge.demo import lie, telling, truth
from expunge.demo.setting import ISSUER, Setting, drop_people
from expunge.demo.truth import Moment
from expunge.errors import ExpungeError
from expunge.folder import inspection, layout, operations
from expunge.folder.checking import Given
from expunge.folder.operations import Asked, Forgotten, Training
from expunge.report.facts import Control, Findings, Report, Timing

ASKED = Asked(Regime.gdpr, ("17(1)(b)",))


@dataclass(frozen=True)
class Deletion:
    """A deletion, and how long the whole command took."""

    done: Forgotten
    whole: float


@dataclass(frozen=True)
class Story:
    """What happened, for the auditor.

    ``moments`` are the training and every deletion; ``batch_seconds`` are those of the batch, alone
    and with everything, over several tries in copies.
    """

    setting: Setting
    training: ModelRelease
    deletions: tuple[Deletion, ...]
    moments: tuple[Moment, ...]
    batch_seconds: tuple[float, float]


def tell(setting: Setting, console: Console) -> Report:
    """Play the demonstration and return the report.

    Raises
    ------
    ExpungeError
        If anything fails, the checks included.
    """
    story = _operate(setting, console)
    drop_people(setting)
    console.print("\n[bold]Checks, in processes of their own[/bold]")
    retained = ("--retained", setting.retained.name)
    _verify(setting, _hand_over(setting, story), console)
    honest = _verify(setting, (setting.folder.name, *retained), console)
    lied = _verify(setting, ("lie", *retained), console)
    if honest.failed or "evidence" not in {check.name for check in lied.failed}:
        raise ExpungeError(
            f"the demonstration went wrong: {honest.summary}; for the lie: {lied.summary}"
        )
    console.print("\n[bold]The truth: retrained from scratch after every deletion[/bold]")
    findings = truth.find(setting, story.moments, _timings(story))
    report = _report(story, honest, lied, findings)
    telling.summary(report, console)
    return report


def _operate(setting: Setting, console: Console) -> Story:
    """Do what an operator does, honestly; and once, in a copy of the folder, not."""
    console.print("\n[bold]What the operator does[/bold]")
    telling.command(console, f"expunge keys new {setting.keys.name} --passphrase-file passphrase")
    telling.command(
        console,
        f"expunge train {setting.data.name} --label {setting.label} --id {setting.identifier} "
        f"--schema {setting.schema.name} --keys {setting.keys.name} --out {setting.folder.name} "
        f"--issuer '{ISSUER}'",
    )
    trained = operations.train(
        setting.data,
        setting.folder,
        Training(
            label=setting.label,
            identifier=setting.identifier,
            keys=setting.keys,
            schema=setting.schema,
            issuer=ISSUER,
        ),
        passphrase=setting.passphrase,
    )
    telling.trained(console, trained)
    moments, deletions = [truth.look(setting, ())], []
    for person in setting.single:
        deletions.append(_forget(setting, (person,), console))
        moments.append(truth.look(setting, (person,)))
    copy, seconds = lie.copy_before(setting), truth.time_batch(setting, ASKED)
    deletions.append(_forget(setting, setting.batch, console))
    moments.append(truth.look(setting, setting.batch))
    telling.lied(console, lie.claim(copy, setting, ASKED))
    return Story(setting, trained.statement, tuple(deletions), tuple(moments), seconds)


def _forget(setting: Setting, people: tuple[str, ...], console: Console) -> Deletion:
    whom = f"--id {people[0]}" if len(people) == 1 else "--ids requests.txt"
    telling.command(console, f"expunge forget {setting.folder.name} {whom} --regime gdpr")
    if len(people) > 1:
        (setting.out / "requests.txt").write_text("\n".join(people) + "\n", encoding="utf-8")
    start = time.perf_counter()
    done = operations.forget(setting.folder, people, asked=ASKED, passphrase=setting.passphrase)
    whole = time.perf_counter() - start
    telling.forgotten(console, done, whole)
    return Deletion(done, whole)


def _hand_over(setting: Setting, story: Story) -> tuple[str, ...]:
    """Copy what somebody without data and folder needs, and return how it is checked."""
    setting.handed_over.mkdir()
    name = layout.stem(story.deletions[-1].done.certificate)
    for path in (
        layout.envelope_of(name),
        layout.proof_of(name),
        layout.envelope_of(layout.POLICY_STEM),
        layout.MODEL,
        layout.TRUST,
    ):
        shutil.copy(setting.folder / path, setting.handed_over)
    here = setting.handed_over.name
    return (
        f"{here}/{Path(layout.envelope_of(name)).name}",
        *("--model", f"{here}/{layout.MODEL}", "--trust", f"{here}/{layout.TRUST}"),
    )


def _verify(setting: Setting, arguments: tuple[str, ...], console: Console) -> Checks:
    """Check by the command line in another process; return the checks by name.

    Raises
    ------
    ExpungeError
        If that process does not come to the same end as this one.
    """
    telling.command(console, f"expunge verify {' '.join(arguments)}")
    process = subprocess.run(
        [sys.executable, "-m", "expunge", "verify", *arguments],
        cwd=setting.out,
        capture_output=True,
        text=True,
        check=False,
    )
    target, *options = arguments
    paths = {k[2:]: setting.out / v for k, v in zip(options[::2], options[1::2], strict=True)}
    found = inspection.verify(setting.out / target, Given(**paths))
    if process.returncode != found.exit_status:
        raise ExpungeError(
            f"the command line ends with {process.returncode}, the library with "
            f"{found.exit_status}: {process.stdout}{process.stderr}"
        )
    telling.checked(console, found.report, process.returncode)
    return found.report


def _timings(story: Story) -> list[Timing]:
    single, several = story.deletions[:-1], f"delete {len(story.setting.batch):,} people"
    batch, batch_whole = story.batch_seconds
    alone = statistics.median(it.done.seconds for it in single)
    retrained, whole = truth.time_retrain(story.setting)
    return [
        Timing("delete one person", alone, whole=False, retrain=False),
        Timing(several, batch, whole=False, retrain=False),
        Timing("retrain, expunge", retrained, whole=False, retrain=True),
        *truth.time_peer(story.setting),
        Timing(
            "delete one person",
            statistics.median(it.whole for it in single),
            whole=True,
            retrain=False,
        ),
        Timing(several, batch_whole, whole=True, retrain=False),
        Timing("retrain, expunge", whole, whole=True, retrain=True),
    ]


def _report(story: Story, honest: Checks, lied: Checks, findings: Findings) -> Report:
    setting = story.setting
    table = parquet.read_metadata(setting.data)
    newest, here = story.deletions[-1].done.certificate_path.name, setting.handed_over.name
    return Report(
        data=f"The data: {setting.source}; {table.num_rows:,} yearly records to train on.",
        model="The model, a logistic regression, tells from plan, age, family, income and health "
        "at enrolment whether a person sees a doctor in a year.",
        training=story.training,
        certificates=[it.done.certificate for it in story.deletions],
        checks=honest.checks,
        summary=honest.summary,
        repeat=[
            (
                "The newest certificate, by somebody who has neither data nor folder",
                f"expunge verify {here}/{newest} --model {here}/{layout.MODEL} "
                f"--trust {here}/{layout.TRUST}",
            ),
            (
                "Log, all certificates, published model, and the newest certificate against the "
                "retained data",
                f"expunge verify {setting.folder.name} --retained {setting.retained.name}",
            ),
            ("The lie", f"expunge verify lie --retained {setting.retained.name}"),
            ("Everything on this page", "expunge demo"),
        ],
        findings=findings,
        control=Control(
            claim=f"In a copy of the folder a dishonest operator claims to have deleted the same "
            f"{len(setting.batch):,} people.",
            truth="It deletes nothing: the old parameters are published with fresh noise, under a "
            "signed certificate, in the log, whose every number is in order.",
            checks=lied.checks,
        ),
        note="The data are public, so this page may show what otherwise only an auditor sees: "
        "distances before noise, and times.",
    )
