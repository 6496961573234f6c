"""A packed file reads as the file that was saved, wherever the reading starts, and stays packed."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prime_train.checkpoints import layout
from prime_train.checkpoints.packing import archive
from prime_train.checkpoints.packing.packed_file import PackedFile
from tests.system.checkpoints.test_archive import SMALL, content, write
from tests.unit.checkpoints.packing.test_planes import numbers

SAVED = numbers("f", 2300)
NAME = "__0_0.distcp"


@pytest.fixture(scope="module", params=["plain", "packed", "half packed"])
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    found = write(tmp_path_factory.mktemp("packed"), {NAME: SAVED})
    if request.param != "plain":
        archive.compress(found, SMALL)
    if request.param == "half packed":
        with pytest.raises(KeyboardInterrupt):
            archive.restore(found, on_read=_Interrupt(4000), sizes=SMALL)
    (entry,) = layout.entries(found)
    assert (entry.kept_bytes > 0, bool(entry.segments)) == {
        "plain": (True, False),
        "packed": (False, True),
        "half packed": (True, True),
    }[request.param]
    return found


class _Interrupt:
    """Ends a restore after so many bytes."""

    def __init__(self, left_bytes: int) -> None:
        self.left_bytes = left_bytes

    def __call__(self, count: int) -> None:
        self.left_bytes -= count
        if self.left_bytes < 0:
            raise KeyboardInterrupt


@given(reads=st.lists(st.tuples(st.integers(0, 9300), st.integers(0, 2500)), max_size=5))
def test_any_part_reads_as_it_was_saved(folder: Path, reads: list[tuple[int, int]]) -> None:
    before = content(folder)
    with io.BufferedReader(PackedFile(folder, layout.entries(folder)[0]), 512) as file:
        for start, count in reads:
            file.seek(start)
            assert file.read(count) == SAVED[start : start + count]
            assert file.tell() == max(start, min(start + count, len(SAVED)))
        file.seek(-7, io.SEEK_END)
        assert file.read() == SAVED[-7:]
    assert content(folder) == before


def read_from(folder: Path, start: int) -> bytes:
    with io.BufferedReader(PackedFile(folder, layout.entries(folder)[0])) as file:
        file.seek(start)
        return file.read()


def test_a_damaged_segment_is_an_error(folder: Path) -> None:
    (entry,) = layout.entries(folder)
    if not entry.segments:
        pytest.skip("nothing is packed")
    path = folder / entry.segments[-1].file
    whole = path.read_bytes()
    try:
        for damaged in (whole[:3], whole[:-9], b"x" * len(whole)):
            path.write_bytes(damaged)
            with pytest.raises(ValueError, match=r"segment|ends|piece|width"):
                read_from(folder, entry.segments[-1].start)
    finally:
        path.write_bytes(whole)
