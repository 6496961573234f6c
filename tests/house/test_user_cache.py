"""Where the files that prime-train keeps for a user are."""

from __future__ import annotations

from pathlib import Path

import pytest

from prime_train.core.installation import cache_path


def test_the_first_variable_that_is_set_names_the_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PRIME_TRAIN_CACHE", str(tmp_path / "a"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "b"))
    assert cache_path() == str(tmp_path / "a")
    assert cache_path("prime_rl", "2026-09.json") == str(tmp_path / "a" / "prime_rl" / "2026-09.json")
    monkeypatch.delenv("PRIME_TRAIN_CACHE")
    assert cache_path() == str(tmp_path / "b" / "prime-train")
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert cache_path() == str(Path.home() / ".cache" / "prime-train")
