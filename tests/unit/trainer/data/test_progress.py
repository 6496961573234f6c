from __future__ import annotations

import time
from pathlib import Path

import pytest

from prime_train.trainer.data.progress import SourceProgress, Total, describe, report_reading


class Clock:
    """A time that the test moves."""

    def __init__(self) -> None:
        self.now_s = time.time()

    def __call__(self) -> float:
        return self.now_s


def open_progress(folder: Path, clock: Clock) -> SourceProgress:
    return SourceProgress(folder, "books", 1000, "documents", clock=clock)


def test_a_line_with_the_rate_comes_every_5_seconds(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    clock = Clock()
    progress = open_progress(tmp_path, clock)
    progress.begin()
    for _ in range(100):
        clock.now_s += 0.25
        progress.add(5, 1000)
    first, *lines = capsys.readouterr().err.splitlines()
    assert first == "tokenising 1000 documents of books"
    assert len(lines) == 5
    assert lines[0] == "tokenised 100 of 1000 documents of books: 4,000 tokens/s, 45 s left at this rate"
    assert lines[-1] == "tokenised 500 of 1000 documents of books: 4,000 tokens/s, 25 s left at this rate"


def test_one_process_reports_what_all_have_made(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    clock = Clock()
    several = [open_progress(tmp_path, clock) for _ in range(3)]
    for progress in several:
        progress.begin()
    for _ in range(2):
        clock.now_s += 5
        for progress in several:
            progress.add(10, 500)
    lines = capsys.readouterr().err.splitlines()
    assert [line.split(":")[0] for line in lines] == [
        "tokenising 1000 documents of books",
        "tokenised 10 of 1000 documents of books",
        "tokenised 40 of 1000 documents of books",
    ]
    assert lines[-1].endswith("300 tokens/s, 2 min 40 s left at this rate")


def test_an_interrupted_source_goes_on_with_its_count(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    clock = Clock()
    open_progress(tmp_path, clock).add(600, 9000)
    clock.now_s += 60
    progress = open_progress(tmp_path, clock)
    progress.begin()
    assert capsys.readouterr().err == "tokenising 1000 documents of books, 600 are in the cache\n"
    assert progress.total() == Total(600, 9000)


def test_half_a_record_of_a_killed_process_is_not_counted(tmp_path: Path) -> None:
    progress = open_progress(tmp_path, Clock())
    progress.add(1, 10)
    with open(tmp_path / "made", "ab") as file:
        file.write(b"123")
    assert open_progress(tmp_path, Clock()).total() == Total(1, 10)


def test_documents_that_are_made_again_give_no_more_than_all() -> None:
    line = describe("books", 10, "documents", Total(8, 80), Total(12, 120), 5.0)
    assert line == "tokenised 10 of 10 documents of books: 8 tokens/s, 0.0 s left at this rate"


def test_reading_is_reported_while_it_lasts(capsys: pytest.CaptureFixture[str]) -> None:
    lines = ""
    with report_reading("3 parquet files", 2**30, interval_s=0.01):
        while "\n" not in lines:
            lines += capsys.readouterr().err
    assert lines.startswith("reading 3 parquet files: ")
    assert " of 1.0 GiB, " in lines
