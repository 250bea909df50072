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
from expunge.folder.records import Records, ids_of, retained_table
from expunge.folder.store import Folder, read_file


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
        If the sealed state or the sealing key cannot be read.
    """
    if certificate.digest != store.latest().digest:
        raise InvalidInput(
            f"{layout.stem(certificate)} is not the newest release of {store.place.root}; only "
            "the newest can be checked against retained data, as older states are not kept"
        )
    lineage = store.lineage()
    members = lineage.members
    records = Records.of(store.policy, store.config.label, store.config.identifier)
    table = retained_table(records.table(data), members)
    rows, ids = records.rows(table), ids_of(table)
    positions = members.find(lineage.digests(rows), ids)
    return Sealed(
        weights=lineage.state.weights,
        rows=Rows(rows.X, rows.target, rows.weight),
        salts=members.salts(positions),
        ids=ids,
        deleted_leaves=members.leaves(np.flatnonzero(members.retained.flags == 0)),
        annex=_annex(store, certificate),
    )


def _annex(store: Folder, certificate: Release) -> bytes:
    """Return the annex; nothing, which fails the check of its digest, if it has been altered."""
    key = load_sealing_key(Path(store.config.keys) / "sealing.key")
    content = read_file(store.place.at(f"{layout.ANNEX}/{layout.stem(certificate)}.sealed"))
    try:
        return unseal(key, content)
    except KeyUnusable:
        return b""
