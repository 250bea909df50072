"""What can be done with a model folder: train, forget, retrain and ask how it stands.

Plain functions on paths, each of them atomic: it happens as a whole, or raises and changes nothing.
Checking is in :mod:`expunge.folder.checking`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TypeVar

from expunge.certificate.blocks import Request
from expunge.certificate.keys import keyid, passphrase_from_environment
from expunge.certificate.plain import is_unicode, quoted
from expunge.certificate.statement import Certificate, Issuer, ModelRelease
from expunge.certificate.trust import Role
from expunge.errors import FolderProblem, InvalidInput, KeyUnusable, Unfinished
from expunge.folder import layout
from expunge.folder.config import Config
from expunge.folder.files import FORMATS, column_names
from expunge.folder.keyring import Keys, Passphrase, open_keys
from expunge.folder.options import Training, noise_for
from expunge.folder.records import (
    Records,
    ids_of,
    require_live,
    require_retained,
    staying,
)
from expunge.folder.requests import VOLUNTARY, Asked
from expunge.folder.results import Forgotten, Retrained, Trained, guarantee
from expunge.folder.standing import Status, status
from expunge.folder.store import Folder, create, opened, require_free
from expunge.folder.table import Table, read_ids
from expunge.linear.lineage import Context, Lineage, Step, begin
from expunge.linear.objective import Progress, silent
from expunge.linear.rows import Rows, Source

Through = Callable[[Rows], Source]
_T = TypeVar("_T")

__all__ = [
    "Asked",
    "Forgotten",
    "Retrained",
    "Status",
    "Trained",
    "Training",
    "forget",
    "requested_ids",
    "retrain",
    "status",
    "train",
]


def here(rows: Rows) -> Source:
    """Make the passes over rows in this process."""
    return rows


def train(
    data: Path,
    out: Path,
    training: Training,
    *,
    passphrase: Passphrase = passphrase_from_environment,
    progress: Progress = silent,
    through: Through = here,
) -> Trained:
    """Train a model on a table of people and make its folder.

    Parameters
    ----------
    data : Path
        CSV or Parquet.
    out : Path
        The folder to make; must not exist, or be empty.
    training : Training
    passphrase, progress : callables
    through : callable
        Makes of the rows the source that passes are made over, as on a cluster.

    Raises
    ------
    InvalidInput, ToleranceUnreachable, CertificateRefused, KeyUnusable, FolderProblem
        Then there is no folder.
    """
    require_free(out)
    config = Config(
        data=_recordable(data),
        keys=_recordable(training.keys),
        label=training.label,
        identifier=training.identifier,
        issuer=training.issuer,
    )
    keys = open_keys(training.keys, passphrase)
    table, records = training.read(data)
    rows, ids = records.rows(table), ids_of(table)
    policy = training.policy(rows, records)
    start = time.perf_counter()
    lineage, step = begin(
        policy,
        through(rows),
        noise_for(policy, training.seed, 1),
        ids=ids,
        context=Context(issuer=Issuer(training.issuer), log_index=0),
        progress=progress,
    )
    seconds = time.perf_counter() - start
    progress("writing the folder")
    with _writing(out):
        create(out, config, keys, lineage, step)
    release = _of(ModelRelease, step.published.statement)
    proof = out / layout.proof_of(layout.stem(release))
    return Trained(out, release, proof, policy, rows.count, len(set(ids)), seconds)


def forget(
    folder: Path,
    ids: Sequence[str],
    *,
    data: Path | None = None,
    keys: Path | None = None,
    asked: Asked = VOLUNTARY,
    seed: int | None = None,
    passphrase: Passphrase = passphrase_from_environment,
    progress: Progress = silent,
    through: Through = here,
) -> Forgotten:
    """Delete people from a model: one batch, one release, one certificate.

    Parameters
    ----------
    folder : Path
    ids : sequence of str
        Whom to delete, all their rows; see :func:`requested_ids`.
    data : Path, optional
        The table of the training, or what is left of it; by default where the training found it.
        It has to have the rows of ``ids``. Rows of people deleted earlier are ignored. Everybody
        else's are needed only if the deletion cannot be proved from the sealed state; then they
        must be exactly those of the training.
    keys : Path, optional
        The directory of the keys, if it is not where the training found it.
    asked : Asked
        The rule and the date of the requests.
    seed : int, optional
        For folders trained with a seed.
    passphrase, progress, through : callables
        As for :func:`train`.

    Raises
    ------
    UnknownRecord, AlreadyDeleted, IncompletePerson, LastOfClass, RetainedMismatch, InvalidInput
        If the request or the data do not fit the model.
    BudgetExhausted, ToleranceUnreachable, KeyUnusable, FolderProblem
        If it cannot be certified. Whatever is raised, the folder is as it was.
    """
    ids = read_ids(list(ids))
    with opened(folder) as store:
        signers = _keys(store, keys, passphrase)
        began = time.perf_counter()
        store.require_unaltered(signers.sealing)
        lineage = store.lineage()
        noise = noise_for(store.policy, seed, lineage.number + 1)
        require_live(lineage.members, ids)
        records = _records(store)
        data = data or _recorded(store)
        table = records.table(data)
        mask = table.mask_of(ids)
        leaving = table.select(mask)
        now = datetime.now(UTC).replace(microsecond=0)
        requests, kept = asked.requests(ids, now)
        context = _context(store, now, requests)
        retained = _Retained(store, lineage, records, table, through, frozenset(ids), leaving)
        start = time.perf_counter()
        step = lineage.prepare(
            records.rows(leaving),
            noise,
            ids=ids_of(leaving),
            retained=retained,
            context=context,
            progress=progress,
        )
        seconds = time.perf_counter() - start - retained.seconds
        path = _commit(store, lineage, step, signers, kept)
        total = time.perf_counter() - began
    certificate = _of(Certificate, step.published.statement)
    name = layout.stem(certificate)
    return Forgotten(
        people=len(ids),
        records=len(leaving),
        certificate=certificate,
        certificate_path=path,
        proof_path=folder / layout.proof_of(name),
        page_path=folder / layout.page_of(name),
        data=data,
        releases_left=lineage.policy.releases - certificate.budget.release,
        seconds=seconds,
        total=total,
        path=step.trace.path,
    )


def retrain(
    folder: Path,
    *,
    data: Path | None = None,
    keys: Path | None = None,
    seed: int | None = None,
    passphrase: Passphrase = passphrase_from_environment,
    progress: Progress = silent,
    through: Through = here,
) -> Retrained:
    """Train from scratch on what is retained, as the next release of the same policy.

    Afterwards the sealed state is a function of the retained rows alone. Parameters and errors as
    for :func:`forget`; all retained rows are needed.
    """
    with opened(folder) as store:
        signers = _keys(store, keys, passphrase)
        store.require_unaltered(signers.sealing)
        lineage = store.lineage()
        noise = noise_for(store.policy, seed, lineage.number + 1)
        records = _records(store)
        table = records.table(data or _recorded(store))
        rows = _Retained(store, lineage, records, table, through)()
        start = time.perf_counter()
        now = datetime.now(UTC).replace(microsecond=0)
        step = lineage.prepare_retrain(
            rows, noise, context=_context(store, now, ()), progress=progress
        )
        seconds = time.perf_counter() - start
        path = _commit(store, lineage, step, signers)
    release = _of(ModelRelease, step.published.statement)
    left = lineage.policy.releases - release.budget.release
    proof = folder / layout.proof_of(layout.stem(release))
    promised = guarantee(lineage.policy)
    return Retrained(release, promised, path, proof, rows.count, left, seconds)


def requested_ids(source: Path | str, folder: Path) -> list[str]:
    """Read the ids of a request from a file, or from standard input for "-".

    A table with several columns has them in the id column of the folder's training.

    Raises
    ------
    InvalidInput
        If there are none, or the file cannot be read.
    """
    if str(source) == "-":
        return read_ids("-")
    column = None
    if str(source).lower().endswith(FORMATS):
        names = column_names(Path(source))
        if len(names) > 1:
            with opened(folder) as store:
                column = store.config.identifier
    return read_ids(source, column)


@dataclass
class _Retained:
    """Reads everybody else's rows when they are needed, and remembers how long that took."""

    store: Folder
    lineage: Lineage
    records: Records
    table: Table
    through: Through
    leaving: frozenset[str] = frozenset()
    gone: Table | None = None
    seconds: float = 0.0

    def __call__(self) -> Source:
        start = time.perf_counter()
        members = self.lineage.members
        table, tags = staying(self.table, members, self.leaving)
        rows = self.records.rows(table)
        count = self.lineage.state.count - (0 if self.gone is None else len(self.gone))
        require_retained(self.lineage, rows, ids_of(table), count, tags)
        self.seconds = time.perf_counter() - start
        return self.through(rows)


def _records(store: Folder) -> Records:
    return Records.of(store.policy, store.config.label, store.config.identifier)


def _keys(store: Folder, directory: Path | None, passphrase: Passphrase) -> Keys:
    """Load the keys, which must be ones that the folder tells everybody to trust."""
    directory = directory or Path(store.config.keys)
    keys, now = open_keys(directory, passphrase), datetime.now(UTC)
    for role, signer in ((Role.issuer, keys.issuer), (Role.log, keys.log)):
        if signer.keyid not in map(keyid, store.trust.keys_for(role, now)):
            raise KeyUnusable(
                f"the {role} key in {directory} is not one that the folder's trust.json "
                "names now: restore the keys, or add the new ones there"
            )
    return keys


def _recordable(path: Path) -> str:
    """Return a path as ``config.json`` has it."""
    found = str(path.resolve())
    if not is_unicode(found):
        raise InvalidInput(f"the path {quoted(found)} is not UTF-8; rename it")
    return found


def _recorded(store: Folder) -> Path:
    path = Path(store.config.data)
    if not path.exists():
        raise FolderProblem(
            f"the table of the training is no longer at {path}; say where it is (--data)"
        )
    return path


def _commit(
    store: Folder, lineage: Lineage, step: Step, keys: Keys, requests: bytes | None = None
) -> Path:
    """Commit, and say of a failure whether it came before or after the release had happened."""
    release = step.published.statement
    try:
        with _writing(store.place.root):
            return store.commit(lineage, step, keys, requests)
    except FolderProblem as error:
        if store.latest().digest == release.digest:
            raise Unfinished(
                f"release {release.budget.release} of {store.place.root} HAS happened, though not "
                "all of its files are in place; `expunge status` puts them there, once this is "
                f"mended: {error}"
            ) from error
        raise


@contextmanager
def _writing(folder: Path) -> Iterator[None]:
    """Name the folder where there is no room, or no right, to write."""
    try:
        yield
    except OSError as error:
        place = error.filename or folder
        raise FolderProblem(f"cannot write {place}: {error.strerror or error}") from error


def _context(store: Folder, now: datetime, requests: tuple[Request, ...]) -> Context:
    """Say who certifies: whoever the log says has done so from the beginning."""
    issuer = store.latest().issuer
    if store.config.issuer != issuer.name:
        raise FolderProblem(
            f"config.json names the issuer {quoted(store.config.issuer)}, and the newest release "
            f"{quoted(issuer.name)}: restore config.json"
        )
    return Context(issuer=issuer, log_index=0, issued_at=now, requests=requests)


def _of(kind: type[_T], statement: object) -> _T:
    if not isinstance(statement, kind):
        raise TypeError(f"expected a {kind.__name__}")
    return statement
