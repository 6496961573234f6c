from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from prime_train.core.errors import UserError
from prime_train.trainer.cache import HASHES, _verified, entry, find_fault, take_remade


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


def test_a_cache_that_cannot_be_written_is_reported(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    blocker = cache.parent / "a file"
    blocker.touch()
    monkeypatch.setenv("PRIME_TRAIN_CACHE", str(blocker))
    with pytest.raises(UserError) as caught:
        read(0)
    assert os.strerror(20) in caught.value.what  # ENOTDIR
    assert "PRIME_TRAIN_CACHE" in caught.value.fix


def damage_nothing(_file: Path) -> None:
    """Sanity: an entry that nobody touched is not made again."""


def empty(file: Path) -> None:
    file.write_bytes(b"")


def zero_second_half(file: Path) -> None:
    """What a power cut leaves of a file whose blocks were not written."""
    content = file.read_bytes()
    file.write_bytes(content[: len(content) // 2] + bytes(len(content) - len(content) // 2))


def cut(file: Path) -> None:
    os.truncate(file, file.stat().st_size // 2)


def make_a_pipe(file: Path) -> None:
    file.unlink()
    os.mkfifo(file)


@pytest.mark.parametrize("name", ["numbers", HASHES])
@pytest.mark.parametrize(
    "damage", [damage_nothing, empty, zero_second_half, cut, Path.unlink, make_a_pipe], ids=lambda one: one.__name__
)
def test_a_damaged_entry_is_made_again_and_named(
    cache: Path, damage: Callable[[Path], None], name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    expected = read(0)
    folder = cache / "kind" / "key"
    damage(folder / name)
    _verified.clear()  # as in another process
    assert read(0) == expected
    assert find_fault(folder) == ""
    named = [] if damage is damage_nothing else [str(folder)]
    assert [str(folder) for line in take_remade() if str(folder) in line] == named
    assert [str(folder) for line in capsys.readouterr().err.splitlines() if str(folder) in line] == named
    assert sorted(path.name for path in folder.parent.iterdir()) == ["key", "key.lock"]


def test_an_entry_is_compared_once_per_process(cache: Path) -> None:
    read(0)
    _verified.clear()
    before = read(0)
    zero_second_half(cache / "kind" / "key" / "numbers")
    assert read(0) != before, "hashing it at each use would cost as much as making it"
