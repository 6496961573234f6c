from __future__ import annotations

import multiprocessing
import os
import signal
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from prime_train.core.rundir import write_atomic
from prime_train.trainer.data import token_parts
from prime_train.trainer.data.token_parts import ENTRY, TokenParts, Tokens

FORK = multiprocessing.get_context("fork")


def tokens_of(document: int) -> Tokens:
    """Different for each document; document 0 has none."""
    return np.arange(document * 7, document * 7 + document % 50, dtype=np.uint16)


def add(parts: TokenParts, documents: list[int]) -> None:
    parts.add(np.asarray(documents), [tokens_of(document) for document in documents])


def read(parts: TokenParts, documents: list[int]) -> list[list[int] | None]:
    """The tokens of each document; None where it is missing or damaged."""
    return [
        parts.read(int(entry["part"]), int(entry["start"]), int(entry["length"])).tolist()
        if entry["part"] and parts.is_whole(entry)
        else None
        for entry in parts.find(np.asarray(documents, dtype=np.int64))
    ]


def run_child(work: Callable[[], None]) -> None:
    """Run the work in a process that is killed after it."""

    def work_and_die() -> None:
        work()
        os.kill(os.getpid(), signal.SIGKILL)

    child = FORK.Process(target=work_and_die)
    child.start()
    child.join()
    assert child.exitcode == -signal.SIGKILL


def test_a_source_that_is_gone_keeps_no_file_open(tmp_path: Path) -> None:
    before = os.listdir("/proc/self/fd")
    parts = TokenParts(tmp_path, np.uint16)
    add(parts, [1, 2])
    assert read(parts, [2]) == [tokens_of(2).tolist()]
    assert len(os.listdir("/proc/self/fd")) > len(before)
    del parts
    assert os.listdir("/proc/self/fd") == before


@given(
    added=st.lists(st.lists(st.integers(0, 300), max_size=5, unique=True), max_size=8),
    wanted=st.lists(st.integers(0, 320), max_size=9),
)
def test_what_was_added_is_read_by_any_process_and_nothing_else(
    tmp_path_factory: pytest.TempPathFactory, added: list[list[int]], wanted: list[int]
) -> None:
    folder = tmp_path_factory.mktemp("parts")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(token_parts, "PART_BYTES", 100)
        first = TokenParts(folder, np.uint16)
        for documents in added:
            add(first, documents)
    known = {document for documents in added for document in documents}
    expected = [tokens_of(document).tolist() if document in known else None for document in wanted]
    assert read(first, wanted) == read(TokenParts(folder, np.uint16), wanted) == expected


def test_writers_have_parts_of_their_own_and_a_part_of_a_killed_one_is_continued(tmp_path: Path) -> None:
    run_child(lambda: add(TokenParts(tmp_path, np.uint16), [1, 2]))
    first, second = TokenParts(tmp_path, np.uint16), TokenParts(tmp_path, np.uint16)
    add(first, [3])
    add(second, [4])
    assert first.find(np.arange(1, 5))["part"].tolist() == [1, 1, 1, 2]
    assert read(second, [1, 2, 3, 4]) == [tokens_of(document).tolist() for document in (1, 2, 3, 4)]


def test_a_full_part_is_followed_by_another(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(token_parts, "PART_BYTES", 64)
    parts = TokenParts(tmp_path, np.uint16)
    for document in (49, 48, 3, 4):
        add(parts, [document])
    assert parts.find(np.asarray([49, 48, 3, 4]))["part"].tolist() == [1, 2, 3, 3]


def test_a_kill_in_the_middle_of_a_write_leaves_whole_documents(tmp_path: Path) -> None:
    run_child(lambda: add(TokenParts(tmp_path, np.uint16), [1, 2]))
    with open(tmp_path / "00001.tokens", "ab") as file:
        file.write(b"odd")  # tokens without an entry
    parts = TokenParts(tmp_path, np.uint16)
    add(parts, [3])
    assert read(parts, [1, 2, 3, 4]) == [tokens_of(1).tolist(), tokens_of(2).tolist(), tokens_of(3).tolist(), None]


@given(place=st.integers(0, 10**6), flip=st.integers(1, 255), name=st.sampled_from(["index", "00001.tokens"]))
def test_a_changed_byte_never_gives_other_tokens(
    tmp_path_factory: pytest.TempPathFactory, place: int, flip: int, name: str
) -> None:
    folder = tmp_path_factory.mktemp("parts")
    documents = [3, 5, 30]
    add(TokenParts(folder, np.uint16), documents)
    content = bytearray((folder / name).read_bytes())
    content[place % len(content)] ^= flip
    (folder / name).write_bytes(content)
    right = [tokens_of(document).tolist() for document in documents]
    found = read(TokenParts(folder, np.uint16), documents)
    assert all(tokens in (None, expected) for tokens, expected in zip(found, right, strict=True))
    in_use = name != "index" or place % len(content) // ENTRY.itemsize in documents
    assert found.count(None) == (1 if in_use else 0)


@pytest.mark.parametrize("name", ["index", "00001.tokens"])
@pytest.mark.parametrize("damage", [lambda file: os.truncate(file, 40), Path.unlink, os.mkfifo])
def test_a_cut_or_missing_file_is_missing_documents(tmp_path: Path, name: str, damage: Callable[[Path], None]) -> None:
    add(TokenParts(tmp_path, np.uint16), [20, 30, 40])
    if damage is os.mkfifo:
        (tmp_path / name).unlink()
    damage(tmp_path / name)
    assert None in read(TokenParts(tmp_path, np.uint16), [20, 30, 40])


def test_a_claim_is_of_one_process_until_it_ends(tmp_path: Path) -> None:
    documents, others = np.asarray([1, 2]), np.asarray([3])
    first, second = TokenParts(tmp_path, np.uint16), TokenParts(tmp_path, np.uint16)
    with first.claim(documents) as mine, second.claim(documents) as also, second.claim(others) as other:
        assert (mine, also, other) == (True, False, True)
    with second.claim(documents) as afterwards:
        assert afterwards


def test_the_claim_of_a_killed_process_is_free(tmp_path: Path) -> None:
    parts = TokenParts(tmp_path, np.uint16)
    documents = np.asarray([1, 2])
    receiving, sending = FORK.Pipe(duplex=False)

    def hold() -> None:
        with parts.claim(documents) as claimed:
            sending.send(claimed)
            signal.pause()

    child = FORK.Process(target=hold)
    child.start()
    assert receiving.recv() is True
    with parts.claim(documents) as claimed:
        assert not claimed
    child.kill()
    child.join()
    with parts.claim(documents) as claimed:
        assert claimed


def test_a_file_of_another_process_may_vanish_while_all_are_brought_to_the_disk(tmp_path: Path) -> None:
    parts = TokenParts(tmp_path, np.uint16)
    add(parts, [1, 2])
    for number in range(100):  # so that much happens between the list of the files and the end of it
        (tmp_path / f"{number}.json").write_text("{}", "utf-8")
    receiving, sending = FORK.Pipe(duplex=False)

    def rename_files() -> None:
        """Replace a file again and again, as a process does that has counted the documents."""
        sending.send(True)
        while True:
            write_atomic(tmp_path / "about.json", "{}", is_private=False)

    child = FORK.Process(target=rename_files, daemon=True)
    child.start()
    try:
        assert receiving.recv()
        for _ in range(50):
            parts.sync()
        assert child.is_alive()
    finally:
        child.kill()
        child.join()
    assert read(parts, [1, 2]) == [tokens_of(1).tolist(), tokens_of(2).tolist()]
