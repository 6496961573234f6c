from __future__ import annotations

import multiprocessing
import os
from pathlib import Path

import pytest

from prime_train.core.errors import UserError
from prime_train.trainer.data.cache import entry


def write_slowly(folder: Path) -> None:
    """A thousand appends, which two builders at once would mix."""
    with open(folder / "numbers", "a") as file:
        for number in range(1000):
            file.write(f"{number}\n")
            file.flush()


def read(_: int) -> str:
    return (entry("kind", "key", write_slowly) / "numbers").read_text()


def test_processes_that_want_the_same_entry_get_one_whole_one(cache: Path) -> None:
    with multiprocessing.get_context("fork").Pool(4) as pool:
        texts = pool.map(read, range(4), chunksize=1)
    assert texts == ["".join(f"{number}\n" for number in range(1000))] * 4
    assert sorted(path.name for path in (cache / "kind").iterdir()) == ["key", "key.lock"]


def test_what_a_killed_builder_left_is_not_taken_for_anentry(cache: Path) -> None:
    (cache / "kind" / ".key.partial").mkdir(parents=True)
    (cache / "kind" / ".key.partial" / "numbers").write_text("half")
    assert read(0).startswith("0\n1\n")


def test_a_build_that_fails_leaves_nothing(cache: Path) -> None:
    def fail(folder: Path) -> None:
        (folder / "part").touch()
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        entry("kind", "key", fail)
    assert [path.name for path in (cache / "kind").iterdir()] == ["key.lock"]


def test_a_cache_that_cannot_be_written_is_told(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    blocker = cache.parent / "a file"
    blocker.touch()
    monkeypatch.setenv("PRIME_TRAIN_CACHE", str(blocker))
    with pytest.raises(UserError) as caught:
        read(0)
    assert os.strerror(20) in caught.value.what  # ENOTDIR
    assert "PRIME_TRAIN_CACHE" in caught.value.fix
