"""The fixtures of the same room in tests/unit, and those of the commands that estimate."""

from pathlib import Path

import pytest

from tests import fork_server
from tests.unit.cli.conftest import *  # noqa: F403


@pytest.fixture
def offline_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory, with caches of its own and without the hub."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PRIME_TRAIN_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hub"))
    return tmp_path


@pytest.fixture
def forked_trainers(monkeypatch: pytest.MonkeyPatch) -> None:
    """The trainers of the runs that a test starts are forked; see tests/fork_server.py."""
    for name, value in fork_server.variables().items():
        monkeypatch.setenv(name, value)
