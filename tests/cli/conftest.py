from __future__ import annotations

from pathlib import Path

import pytest

import people_example


@pytest.fixture(scope="session")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return people_example.make_home(tmp_path_factory.mktemp("home") / "home")


@pytest.fixture
def home(trained: Path, tmp_path: Path) -> Path:
    return people_example.copy_home(trained, tmp_path / "home")


@pytest.fixture(autouse=True)
def _no_passphrase(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("EXPUNGE_KEY_PASSPHRASE", raising=False)
    monkeypatch.delenv("EXPUNGE_KEY_PASSPHRASE_FILE", raising=False)
