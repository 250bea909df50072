"""What an auditor is shown for a recheck at level (c): the sealed state of the newest release."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from expunge.certificate.keys import load_sealing_key, unseal
from expunge.certificate.residual import Rows
from expunge.certificate.sealed import Sealed
from expunge.certificate.statement import Release
from expunge.errors import InvalidInput, KeyUnusable
from expunge.folder import layout
from expunge.folder.config import Config
from expunge.folder.records import Records, ids_of, staying
from expunge.folder.store import Folder


def sealing_key(config: Config) -> bytes:
    """Load the sealing key from where the folder says it is; raise ``KeyUnusable`` if it cannot."""
    path = Path(config.keys) / "sealing.key"
    if not path.is_file():
        raise KeyUnusable(f"there is no sealing key at {path}")
    return load_sealing_key(path)


def sealed_for(store: Folder, certificate: Release, data: Path) -> Sealed:
    """Open the sealed state for a recheck of the newest certificate against retained data.

    Parameters
    ----------
    store : Folder
    certificate : Release
    data : Path
        The retained rows; those of people deleted earlier are ignored.

    Raises
    ------
    InvalidInput
        If the certificate is not of the current release, or the data cannot be read.
    RetainedMismatch, UnknownRecord
        If the data are not those that the model retains.
    FolderProblem, KeyUnusable
        If the sealed state was altered, or it or the sealing key cannot be read.
    """
    if certificate.digest != store.latest().digest:
        raise InvalidInput(
            f"{layout.stem(certificate)} is not the newest release of {store.place.root}; only "
            "the newest can be checked against retained data, as older states are not kept"
        )
    key = sealing_key(store.config)
    store.require_unaltered(key)
    lineage = store.lineage()
    members = lineage.members
    records = Records.of(store.policy, store.config.label, store.config.identifier)
    table, tags = staying(records.table(data), members)
    rows, ids = records.rows(table), ids_of(table)
    positions = members.find(lineage.digests(rows), ids, tags)
    return Sealed(
        weights=lineage.state.weights,
        rows=Rows(rows.X, rows.target, rows.weight),
        salts=members.salts(positions),
        ids=ids,
        deleted_leaves=members.leaves(np.flatnonzero(members.retained.flags == 0)),
        annex=_annex(store, certificate, key),
    )


def _annex(store: Folder, certificate: Release, key: bytes) -> bytes:
    """Return the annex; nothing, which fails the check of its digest, if it has been altered."""
    try:
        return unseal(key, store.read(layout.annex_of(layout.stem(certificate))))
    except KeyUnusable:
        return b""
