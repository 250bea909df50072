"""A model folder on disk: made in one step, opened by one process, changed release by release."""

from __future__ import annotations

import hashlib
import hmac
import json
import os
import re
import shutil
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from expunge import regular
from expunge.certificate.envelope import sign
from expunge.certificate.keys import seal
from expunge.certificate.members import Members
from expunge.certificate.policy import Policy
from expunge.certificate.statement import Release
from expunge.certificate.trust import TrustPolicy
from expunge.errors import MALFORMED, ExpungeError, FolderProblem, VerificationFailed
from expunge.folder import layout
from expunge.folder.config import Config
from expunge.folder.durable import locked, sync, write
from expunge.folder.keyring import Keys
from expunge.folder.layout import Layout
from expunge.folder.ledger import Appended, Ledger
from expunge.folder.pending import (
    Interrupted,
    interrupted,
    removed_positions,
    require_directories,
    settle,
    stage,
)
from expunge.folder.proof import InclusionProof
from expunge.folder.release import after, origin_of, release_files, release_of
from expunge.linear.lineage import Lineage, Step
from expunge.linear.state import dump_members, dump_state, load_lineage, map_members
from expunge.modelfile import digest

_MAC = b"expunge/state/v1\0"


@dataclass(frozen=True, repr=False)
class Folder:
    """A model folder, locked for as long as it is open.

    Attributes
    ----------
    place : Layout
    config : Config
    ledger : Ledger
    policy : Policy
    interrupted : Interrupted or None
        A release that only the owner may finish; if the ledger knows it, what is read here is
        what the folder will hold then.
    """

    place: Layout
    config: Config
    ledger: Ledger
    policy: Policy
    interrupted: Interrupted | None = None

    def __repr__(self) -> str:
        """Say where it is."""
        return f"Folder({str(self.place.root)!r})"

    @property
    def trust(self) -> TrustPolicy:
        """The keys that the folder itself names."""
        try:
            return TrustPolicy.from_json(self.read(layout.TRUST))
        except (VerificationFailed, *MALFORMED) as error:
            raise FolderProblem(f"{self.place.at(layout.TRUST)} is damaged: {error}") from error

    @property
    def has_sealed(self) -> bool:
        """Whether the sealed part is here, and may be read."""
        return os.access(self.place.at(layout.SEALED), os.R_OK | os.X_OK)

    def path(self, name: str) -> Path:
        """Return where the file is now that has this path in the folder."""
        ahead = self.interrupted
        if ahead is not None and ahead.happened and os.path.lexists(ahead.place.at(name)):
            return ahead.place.at(name)
        return self.place.at(name)

    def has(self, name: str) -> bool:
        """Return whether there is a file of this path in the folder."""
        return os.path.lexists(self.path(name))

    def read(self, name: str) -> bytes:
        """Return the content of a file by its path in the folder.

        Raises
        ------
        FolderProblem
            If it is missing, no regular file, too large, or cannot be read.
        """
        return read_file(self.path(name), layout.most_bytes(name))

    def latest(self) -> Release:
        """Return the statement of the current release.

        Raises
        ------
        FolderProblem
            If the log has none, or cannot be read.
        """
        try:
            for index in reversed(self.ledger.indices()):
                release = release_of(self.ledger.entry(index).envelope.payload)
                if release is not None:
                    return release
        except VerificationFailed as error:
            raise FolderProblem(f"the log of {self.place.root} is damaged: {error}") from error
        raise FolderProblem(f"the log of {self.place.root} has no release; restore the folder")

    def lineage(self) -> Lineage:
        """Load the sealed state, which must be that of the current release.

        Raises
        ------
        FolderProblem
            If state, members, model file and log do not belong together.
        """
        members, content = self._members(), self.read(layout.MODEL)
        found = load_lineage(self.read(layout.STATE), members, content)
        last, heads = self.latest(), members.heads()
        trees = last.commitments
        pairs = {
            "the sealed state": (
                (found.number, found.previous, found.policy.digest),
                (last.budget.release, last.digest, self.policy.digest),
            ),
            "the table of records": (
                (heads.training, heads.deleted, heads.retained),
                (trees.training, trees.deleted, trees.retained),
            ),
            layout.MODEL: (digest(content), last.subject[0].sha256),
        }
        for what, (here, logged) in pairs.items():
            if here != logged:
                raise FolderProblem(
                    f"{what} is not that of release {last.budget.release}, the newest in the log; "
                    "restore the whole folder from one copy"
                )
        return found

    def _members(self) -> Members:
        members = map_members(self.place.at(layout.MEMBERS), writable=False)
        ahead = self.interrupted
        if ahead is not None and ahead.happened:
            positions = removed_positions(ahead.place, members)
            if positions is not None:
                members.repeat(positions)
        return members

    def require_unaltered(self, sealing: bytes) -> None:
        """Check the sealed state against the code that its owner left with it.

        Parameters
        ----------
        sealing : bytes
            The sealing key.

        Raises
        ------
        FolderProblem
            If the state is not, byte for byte, what was written with the newest release.
        """
        code = self.read(layout.STATE_MAC)
        if not hmac.compare_digest(code, mac(sealing, self.read(layout.STATE))):
            raise FolderProblem(
                f"the sealed state is not that of release {self.latest().budget.release}, or it "
                "was altered, or sealed with another key; restore the whole folder from one copy"
            )

    def commit(
        self, lineage: Lineage, step: Step, keys: Keys, requests: bytes | None = None
    ) -> Path:
        """Make a prepared release the current one, and return the path of its statement.

        Parameters
        ----------
        lineage : Lineage
            From :meth:`lineage`; it is left as it is.
        step : Step
        keys : Keys
        requests : bytes, optional
            What the operator keeps about the requests; sealed.

        Raises
        ------
        FolderProblem, VerificationFailed
            If the sealed state was altered, or the log refuses the statement; then nothing has
            changed.
        """
        self.require_unaltered(keys.sealing)
        state = dump_state(after(lineage, step))
        release = step.published.statement
        envelope = release.sign(keys.issuer)
        name = layout.stem(release)

        def write_all(appended: Appended) -> None:
            files = release_files(self.ledger, keys, step, envelope, appended.index, appended.note)
            files |= {layout.STATE: state, layout.STATE_MAC: mac(keys.sealing, state)}
            if requests is not None:
                files[layout.requests_of(name)] = seal(keys.sealing, requests)
            removed = None if step.removal is None else step.removal.positions
            stage(self.place, release.budget.release, files, removed)

        try:
            self.ledger.append(
                envelope,
                log_signer=keys.log,
                issuer_public=keys.issuer.public,
                before_commit=write_all,
            )
        finally:
            settle(self.place, self.ledger, self.policy.lineage)
        return self.place.at(layout.envelope_of(name))


@contextmanager
def opened(path: Path, *, public: bool = False) -> Iterator[Folder]:
    """Open a folder for this process alone, finishing or discarding an interrupted release.

    Parameters
    ----------
    path : Path
    public : bool
        Whether to be content with a copy of the public part, which is all that an outsider has.
        Then nothing is changed, and the folder may be anybody's.

    Raises
    ------
    FolderProblem
        If there is no model folder, it is damaged, or another process works on it.
    """
    place = Layout(path)
    if not place.at(layout.CONFIG).is_file():
        what = "is not a model folder" if path.exists() else "does not exist"
        raise FolderProblem(f"{path} {what}; make one with `expunge train`")
    require_directories(place)
    with locked(path), Ledger.open(place.at(layout.LEDGER), read_only=public) as ledger:
        config = Config.from_json(
            read_file(place.at(layout.CONFIG), layout.most_bytes(layout.CONFIG))
        )
        if len(ledger) == 0:
            raise FolderProblem(f"the log of {path} is empty; restore the folder")
        try:
            policy = Policy.from_payload(ledger.entry(0).envelope.payload)
        except (ExpungeError, *MALFORMED) as error:
            raise FolderProblem(f"entry 0 of the log of {path} is no policy: {error}") from error
        folder = Folder(place, config, ledger, policy)
        if not public:
            if not folder.has_sealed:
                raise FolderProblem(f"{place.at(layout.SEALED)} is missing; restore the folder")
            settle(place, ledger, policy.lineage)
        elif folder.has_sealed:
            folder = replace(folder, interrupted=interrupted(place, ledger, policy.lineage))
        yield folder


def read_file(path: Path, limit: int) -> bytes:
    """Return the content of a file; raise ``FolderProblem`` if it cannot be read, see `regular`."""
    try:
        return regular.read(path, limit)
    except OSError as error:
        raise FolderProblem(f"cannot read {path}: {error.strerror}") from error


def mac(sealing: bytes, state: bytes) -> bytes:
    """Return the authentication code (hex) of a sealed state under the sealing key."""
    return hmac.new(sealing, _MAC + state, hashlib.sha256).hexdigest().encode() + b"\n"


def require_free(path: Path) -> None:
    """Raise ``FolderProblem`` unless ``path`` is free for a new folder."""
    if path.is_symlink() or (path.exists() and (not path.is_dir() or any(path.iterdir()))):
        raise FolderProblem(f"{path} exists already; name a new folder, or remove it first")


def create(path: Path, config: Config, keys: Keys, lineage: Lineage, step: Step) -> None:
    """Make a folder of a trained lineage: built beside ``path`` and renamed into place.

    Raises
    ------
    FolderProblem
        If there is something at ``path``.
    """
    require_free(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    _sweep(path)
    building = path.with_name(f"{path.name}.tmp-{uuid.uuid4().hex[:12]}")
    building.mkdir()
    try:
        with locked(building):
            _fill(Layout(building), config, keys, lineage, step)
            require_free(path)
            os.rename(building, path)
        sync(path.parent)
    except BaseException:
        shutil.rmtree(building, ignore_errors=True)
        raise


def _sweep(path: Path) -> None:
    """Remove what trainings that were killed have left beside ``path``."""
    named = re.compile(re.escape(path.name) + r"\.tmp-[0-9a-f]{12}")
    for leftover in path.parent.iterdir():
        if not named.fullmatch(leftover.name):
            continue
        try:
            with locked(leftover, wait=0.0):
                shutil.rmtree(leftover)
        except (FolderProblem, OSError):
            continue


def _fill(place: Layout, config: Config, keys: Keys, lineage: Lineage, step: Step) -> None:
    for name in layout.DIRECTORIES:
        place.at(name).mkdir(mode=0o700 if name.startswith(layout.SEALED) else 0o755)
    policy, state = lineage.policy.to_payload(), dump_state(lineage)
    first, second = sign(policy, keys.issuer), step.published.statement.sign(keys.issuer)
    with Ledger.create(place.at(layout.LEDGER), origin_of(lineage.policy.lineage)) as ledger:
        for envelope in (first, second):
            appended = ledger.append(
                envelope, log_signer=keys.log, issuer_public=keys.issuer.public
            )
        files = release_files(ledger, keys, step, second, appended.index, appended.note)
        proof = InclusionProof.at(ledger, 0, appended.note)
    files |= {
        layout.CONFIG: config.to_json(),
        layout.TRUST: keys.trust.to_json(),
        layout.POLICY: readable(policy),
        layout.STATE: state,
        layout.STATE_MAC: mac(keys.sealing, state),
        layout.MEMBERS: dump_members(lineage.members),
        layout.envelope_of(layout.POLICY_STEM): first.to_json(),
        layout.proof_of(layout.POLICY_STEM): proof.to_json(),
    }
    for name, content in files.items():
        write(place.at(name), content, secret=name.startswith(layout.SEALED))
    for name in (*layout.DIRECTORIES, layout.LEDGER, "."):
        sync(place.at(name))


def readable(payload: bytes) -> bytes:
    """Return a statement indented for people; what counts is the entry in the log."""
    return json.dumps(json.loads(payload), indent=2, ensure_ascii=False).encode() + b"\n"
