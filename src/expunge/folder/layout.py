"""Where things lie in a model folder.

::

    FOLDER/  model.safetensors  policy.json  config.json  trust.json  ledger.sqlite3
             certificates/0000-policy.dsse.json  0001-training.dsse.json  0002.dsse.json
                          0002.proof.json  0002.html  …
             sealed/      state.safetensors  state.mac  members.safetensors  annex/  requests/

``sealed/`` is secret and can be read by its owner only. During a change it also holds
``pending-<release>/``: see :mod:`expunge.folder.pending`.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from expunge import regular
from expunge.certificate.statement import Certificate, Release

CONFIG = "config.json"
LEDGER = "ledger.sqlite3"
MODEL = "model.safetensors"
POLICY = "policy.json"
TRUST = "trust.json"
CERTIFICATES = "certificates"
SEALED = "sealed"
STATE = f"{SEALED}/state.safetensors"
STATE_MAC = f"{SEALED}/state.mac"
MEMBERS = f"{SEALED}/members.safetensors"
ANNEX = f"{SEALED}/annex"
REQUESTS = f"{SEALED}/requests"
DIRECTORIES = (CERTIFICATES, SEALED, ANNEX, REQUESTS)
POLICY_STEM = "0000-policy"


def stem(release: Release) -> str:
    """Return the name under which a release's files are kept, such as ``0002``."""
    number = f"{release.budget.release:04d}"
    return number if isinstance(release, Certificate) else f"{number}-{release.reason}"


def envelope_of(name: str) -> str:
    """Return the path, in the folder, of the signed statement called ``name``."""
    return f"{CERTIFICATES}/{name}.dsse.json"


def proof_of(name: str) -> str:
    """Return the path of its inclusion proof."""
    return f"{CERTIFICATES}/{name}.proof.json"


def page_of(name: str) -> str:
    """Return the path of its page for people."""
    return f"{CERTIFICATES}/{name}.html"


def annex_of(name: str) -> str:
    """Return the path of its sealed annex."""
    return f"{ANNEX}/{name}.sealed"


def requests_of(name: str) -> str:
    """Return the path of what is kept, sealed, about its requests."""
    return f"{REQUESTS}/{name}.sealed"


def most_bytes(name: str) -> int:
    """Return how large the file at a path in the folder can be."""
    if name in (CONFIG, TRUST, STATE_MAC):
        return regular.SMALL
    if name == POLICY or name.endswith(".html"):
        return regular.PAGE
    return regular.STATEMENT if name.startswith(CERTIFICATES) else regular.LARGE


@dataclass(frozen=True)
class Layout:
    """Paths below the folder ``root``."""

    root: Path

    def at(self, path: str) -> Path:
        """Return the place of a path that is relative to the folder."""
        return self.root / path

    def pending(self, release: int) -> Path:
        """Return the directory of a release on its way."""
        return self.at(f"{SEALED}/pending-{release:04d}")
