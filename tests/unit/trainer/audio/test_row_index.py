"""An index of rows: a start by it opens no file, and one that is damaged, foreign or out of date is made again."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from prime_train.core.errors import UserError
from prime_train.trainer.audio.clip_files import ArrowFile, Columns
from prime_train.trainer.audio.columns import refuse_other_names
from prime_train.trainer.audio.row_index import LEAST_BATCHES
from prime_train.trainer.audio.tables import ClipTable, open_clips, open_sources
from tests.unit.core.test_planted_files import as_root, give_away

FILES, BATCHES = 8, LEAST_BATCHES // 8
YEAR_2024_NS = 1_700_000_000 * 10**9


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PRIME_TRAIN_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "audio"


def write(path: Path, rows: int, label: int = 0, declared: bytes = b"") -> Path:
    """A file with BATCHES record batches, written long ago."""
    path.parent.mkdir(exist_ok=True)
    table = pa.table({"audio": [f"{path.name} {row}".encode() for row in range(rows)], "label": [label] * rows})
    table = table.replace_schema_metadata({b"huggingface": declared})
    with pa.OSFile(str(path), "wb") as file, pa.ipc.new_stream(file, table.schema) as writer:
        writer.write_table(table, max_chunksize=-(-rows // BATCHES))
    os.utime(path, ns=(YEAR_2024_NS, YEAR_2024_NS))
    return path


@pytest.fixture
def clips(tmp_path: Path) -> Path:
    for number in range(FILES):
        write(tmp_path / "clips" / f"{number}.arrow", BATCHES * (number + 1), label=number)
    return tmp_path / "clips"


def is_opened(table: ClipTable) -> list[bool]:
    return ["_batches" in vars(part) for part in table.parts]


def content(table: ClipTable) -> list[tuple[bytes, tuple[int, ...]]]:
    return [(bytes(table.read_clip(row)), table.read_labels(row)) for row in range(table.rows)]


def test_a_second_start_opens_no_file_and_has_the_same_rows(clips: Path, cache: Path) -> None:
    first = open_clips(clips, Columns())
    assert is_opened(first) == [True] * FILES
    again = open_clips(clips, Columns())
    assert (again.rows, again.starts, again.identity) == (first.rows, first.starts, first.identity)
    assert again.count_labels().tolist() == first.count_labels().tolist() == [BATCHES * n for n in range(1, FILES + 1)]
    assert is_opened(again) == [False] * FILES
    again.read_clip(0)
    assert is_opened(again) == [True] + [False] * (FILES - 1)
    assert content(again) == content(first)
    both = open_sources([clips, write(clips.parent / "one.arrow", 3, label=9)], Columns())
    assert both.count_labels().tolist() == [*first.count_labels().tolist(), 0, 3]
    assert len(list(cache.iterdir())) == 1  # a file with few record batches has none


def test_other_columns_have_an_index_of_their_own(clips: Path, cache: Path) -> None:
    open_clips(clips, Columns())
    assert open_clips(clips, Columns(label=None)).count_labels().tolist() == []
    assert open_clips(clips, Columns(label=None)).count_labels().tolist() == []
    assert open_clips(clips, Columns()).count_labels().sum() == BATCHES * 36
    assert len(list(cache.iterdir())) == 2


def grow(clips: Path) -> None:
    write(clips / "3.arrow", 99)


def touch(clips: Path) -> None:
    os.utime(clips / "3.arrow", ns=(YEAR_2024_NS, YEAR_2024_NS + 1))


def add(clips: Path) -> None:
    write(clips / "9.arrow", 5, label=1)


def rename(clips: Path) -> None:
    (clips / "3.arrow").rename(clips / "a.arrow")


@pytest.mark.parametrize("change", [grow, touch, add, rename])
def test_other_files_are_counted_again_in_its_place(change: Callable[[Path], None], clips: Path, cache: Path) -> None:
    open_clips(clips, Columns())
    change(clips)
    table = open_clips(clips, Columns())
    assert all(is_opened(table))
    assert not any(is_opened(open_clips(clips, Columns())))
    assert content(open_clips(clips, Columns())) == content(table)
    assert len(list(cache.iterdir())) == 1


def test_files_that_have_just_been_written_leave_no_index(clips: Path, cache: Path) -> None:
    os.utime(clips / "3.arrow")
    open_clips(clips, Columns())
    assert not cache.exists()


@pytest.mark.parametrize("size", ["same", "other"])
def test_a_file_that_changes_after_the_start_is_refused_and_counted_again(size: str, clips: Path, cache: Path) -> None:
    open_clips(clips, Columns())
    table = open_clips(clips, Columns())
    write(clips / "3.arrow", BATCHES * 4 + (size == "other"), label=4)
    os.utime(clips / "3.arrow", ns=(YEAR_2024_NS, YEAR_2024_NS + (size == "same")))
    assert table.read_labels(0) == (0,)
    with pytest.raises(UserError, match="it has changed since its rows were counted") as caught:
        table.read_labels(table.starts[3])
    assert caught.value.where == str(clips / "3.arrow")
    assert list(cache.iterdir()) == []
    assert open_clips(clips, Columns()).read_labels(table.starts[3]) == (4,)


def test_an_index_with_other_rows_than_the_file_is_deleted(clips: Path, cache: Path) -> None:
    open_clips(clips, Columns())
    (index,) = cache.iterdir()
    change_index(index, lambda found: found["rows"].__setitem__(3, 7))
    table = open_clips(clips, Columns())
    with pytest.raises(UserError, match="it has changed"):
        table.read_clip(table.starts[3])
    assert open_clips(clips, Columns()).rows == BATCHES * 36


def change_index(path: Path, change: Callable[[Any], None]) -> None:
    """Change what an index has, with the hash that it would have then."""
    from prime_train.trainer.audio.row_index import _hash

    found = json.loads(path.read_text())["index"]
    change(found)
    path.write_text(json.dumps({"index": found, "sha256": _hash(found)}))


WRONG: list[Callable[[Any], None]] = [
    lambda index: index.update(version=2),
    lambda index: index.update(files="0" * 64),
    lambda index: index.update(rows=index["rows"][:-1]),
    lambda index: index.update(rows=[*index["rows"][:-1], -1]),
    lambda index: index.update(rows=[*index["rows"][:-1], True]),
    lambda index: index.update(rows=[*index["rows"][:-1], 2**50]),
    lambda index: index.update(rows=[*index["rows"][:-1], 1.5]),
    lambda index: index.update(rows={"0": 1}),
    lambda index: index.update(labels=None),
    lambda index: index.update(labels=[1] * (2**16 + 1)),
    lambda index: index.update(labels=["x"]),
    lambda index: index.pop("alike"),
    lambda index: index.pop("rows"),
]


@pytest.mark.parametrize("number", range(len(WRONG)))
def test_an_index_that_makes_no_sense_is_made_again(number: int, clips: Path, cache: Path) -> None:
    expected = content(open_clips(clips, Columns()))
    (index,) = cache.iterdir()
    before = index.read_bytes()
    change_index(index, WRONG[number])
    table = open_clips(clips, Columns())
    assert all(is_opened(table))
    assert content(table) == expected
    assert index.read_bytes() == before


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_changed_bytes_of_an_index_change_no_row(data: st.DataObject, clips: Path, cache: Path) -> None:
    expected = open_clips(clips, Columns())
    (index,) = cache.iterdir()
    changed = bytearray(index.read_bytes())
    at = data.draw(st.integers(0, len(changed) - 1))
    changed[at] = data.draw(st.integers(0, 255))
    index.write_bytes(changed[: data.draw(st.integers(at, len(changed)))])
    table = open_clips(clips, Columns())
    assert (table.starts, table.count_labels().tolist()) == (expected.starts, expected.count_labels().tolist())


def test_a_link_in_the_place_of_an_index_is_replaced(clips: Path, cache: Path, tmp_path: Path) -> None:
    open_clips(clips, Columns())
    (index,) = cache.iterdir()
    other = tmp_path / "other.json"
    index.rename(other)
    index.symlink_to(other)
    before = other.read_bytes()
    assert all(is_opened(open_clips(clips, Columns())))
    assert not index.is_symlink()
    assert other.read_bytes() == before


@as_root
def test_an_index_that_another_user_put_there_is_not_believed(clips: Path, cache: Path) -> None:
    open_clips(clips, Columns())
    (index,) = cache.iterdir()
    give_away(index)
    assert all(is_opened(open_clips(clips, Columns())))


def test_a_cache_that_cannot_be_written_costs_the_index_alone(clips: Path, cache: Path) -> None:
    cache.parent.mkdir()
    cache.write_text("a file")
    assert open_clips(clips, Columns()).rows == open_clips(clips, Columns()).rows == BATCHES * 36


@pytest.mark.usefixtures("cache")
def test_parquet_is_known_by_its_index_too(tmp_path: Path) -> None:
    table = pa.table({"audio": [b"x"] * 64 * LEAST_BATCHES, "label": [1] * 64 * LEAST_BATCHES})
    pq.write_table(table, tmp_path / "a.parquet")
    os.utime(tmp_path / "a.parquet", ns=(YEAR_2024_NS, YEAR_2024_NS))
    open_clips(tmp_path / "a.parquet", Columns())
    again = open_clips(tmp_path / "a.parquet", Columns())
    assert is_opened(again) == [False]
    assert (again.rows, again.read_labels(5)) == (64 * LEAST_BATCHES, (1,))


def declare(name: str) -> bytes:
    label = {"_type": "ClassLabel", "names": [name]}
    return json.dumps({"info": {"features": {"label": label}}}).encode()


@pytest.mark.usefixtures("cache")
def test_names_are_read_from_one_file_where_all_declare_the_same(clips: Path) -> None:
    for number in range(FILES):
        write(clips / f"{number}.arrow", BATCHES, declared=declare("owl"))
    open_clips(clips, Columns())
    refuse_other_names([clips], Columns())
    other = write(clips.parent / "other.arrow", 1, declared=declare("wren"))
    with pytest.raises(UserError, match="its label 0 is wren"):
        refuse_other_names([clips, other], Columns())
    os.utime(write(clips / "7.arrow", BATCHES, declared=declare("wren")), ns=(YEAR_2024_NS, YEAR_2024_NS + 1))
    open_clips(clips, Columns())
    with pytest.raises(UserError, match="its label 0 is wren"):
        refuse_other_names([clips], Columns())


@pytest.mark.usefixtures("cache")
def test_a_wrong_label_is_refused_at_each_start(clips: Path) -> None:
    write(clips / "3.arrow", BATCHES, label=-1)
    for _ in range(2):
        with pytest.raises(UserError, match=r"3\.arrow row 0 has the label -1"):
            open_clips(clips, Columns()).count_labels()


def test_rows_of_labels_are_those_that_have_them(tmp_path: Path) -> None:
    labels = pa.array([[1, None], None, [], [4, 2], [None], [0]], type=pa.list_(pa.int64()))
    table = pa.table({"audio": [b"x"] * 6, "label": labels})
    path = tmp_path / "a.arrow"
    with pa.OSFile(str(path), "wb") as file, pa.ipc.new_stream(file, table.schema) as writer:
        writer.write_table(table, max_chunksize=4)
    found = ArrowFile(path, Columns()).list_labels()
    assert np.stack(found).T.tolist() == [[0, 1], [3, 4], [3, 2], [5, 0]]
