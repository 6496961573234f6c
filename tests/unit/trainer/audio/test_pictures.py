"""Which clips a picture shows: as many labels as there are, and never one clip twice."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from prime_train.trainer.audio.clip_files import Columns
from prime_train.trainer.audio.pictures import choose_rows
from prime_train.trainer.audio.tables import ClipTable, open_clips


def open_labels(folder: Path, labels: list[list[int]]) -> ClipTable:
    path = folder / "a.arrow"
    table = pa.table({"audio": [b"x"] * len(labels), "label": pa.array(labels, type=pa.list_(pa.int64()))})
    with pa.OSFile(str(path), "wb") as file, pa.ipc.new_stream(file, table.schema) as writer:
        writer.write_table(table)
    return open_clips(path, Columns())


@pytest.mark.parametrize("classes", [1, 4, 10, 12, 400])
def test_ten_clips_of_a_sorted_set_have_different_labels(classes: int, tmp_path: Path) -> None:
    table = open_labels(tmp_path, [[row * classes // 1200] for row in range(1200)])
    rows = [row for row, _ in zip(choose_rows(table), range(10), strict=False)]
    assert len({table.read_labels(row) for row in rows}) == min(10, classes)
    assert max(rows) - min(rows) >= 900  # neither the first nor the last ones alone


def test_labels_in_turn_are_all_found_however_many_rows_there_are(tmp_path: Path) -> None:
    table = open_labels(tmp_path, [[row % 12] for row in range(30_000)])
    rows = [row for row, _ in zip(choose_rows(table), range(10), strict=False)]
    assert len({table.read_labels(row) for row in rows}) == 10
    assert list(choose_rows(table))[:10] == rows


def test_few_of_many_files_are_opened(tmp_path: Path) -> None:
    for number in range(120):
        (tmp_path / f"{number:03}").mkdir()
        open_labels(tmp_path / f"{number:03}", [[number % 12], [], [number % 12]])
    table = open_clips(tmp_path, Columns())
    rows = [row for row, _ in zip(choose_rows(table), range(10), strict=False)]
    assert len({table.read_labels(row) for row in rows}) == 10
    assert len({row // 3 for row in choose_rows(table)}) <= 50


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(labels=st.lists(st.lists(st.integers(0, 30), max_size=3), min_size=1, max_size=60))
def test_no_clip_comes_twice_and_every_label_comes(labels: list[list[int]], tmp_path: Path) -> None:
    table = open_labels(tmp_path, labels)
    rows = list(choose_rows(table))
    assert len(rows) == len(set(rows))
    assert {label for row in rows for label in table.read_labels(row)} == {label for one in labels for label in one}
    assert rows == list(choose_rows(table))
