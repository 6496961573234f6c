"""Each test of chats has a cache of its own, and the tokenizers are loaded once."""

from __future__ import annotations

from pathlib import Path

import pytest

from prime_train.trainer.chats.chat_tokens import ChatTokenizer
from tests.unit.trainer.chats.chats import TEMPLATES, load_folder, write_family


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "cache"
    monkeypatch.setenv("PRIME_TRAIN_CACHE", str(folder))
    return folder


@pytest.fixture(scope="session")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("tokenizers")
    return {name: write_family(root / name, name) for name in TEMPLATES}


@pytest.fixture(scope="session")
def tokenizers(folders: dict[str, Path]) -> dict[str, ChatTokenizer]:
    return {name: load_folder(folder) for name, folder in folders.items()}
