"""The files with the progress of an attempt: what stood in them before it is no progress of it."""

from __future__ import annotations

from pathlib import Path

from prime_train.programs.command.progress_files import ProgressFiles
from prime_train.programs.command.trainer import know_trainer
from prime_train.spec.command import CommandSpec, ProgressSource


def follow(folder: Path, name: str) -> ProgressFiles:
    command = CommandSpec(argv=("train",), cwd=str(folder), progress=ProgressSource(file=name))
    files = ProgressFiles(know_trainer(command))
    files.prepare()
    return files


def take(files: ProgressFiles) -> list[tuple[int | None, float | None]]:
    return [(mark.step, mark.loss) for mark in files.take(is_last=False)]


def test_rows_that_a_restart_adds_to_a_table_have_its_columns(tmp_path: Path) -> None:
    path = tmp_path / "metrics.csv"
    path.write_text("step,loss\n1,3.0\n2,2.5\n")
    files = follow(tmp_path, "metrics.csv")
    assert take(files) == []
    with path.open("a") as file:
        file.write("3,2.25\n")
    assert take(files) == [(3, 2.25)]


def test_rows_of_an_earlier_attempt_are_no_progress(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"step": 1, "loss": 3.0}\n')
    files = follow(tmp_path, "metrics.jsonl")
    with path.open("a") as file:
        file.write('{"step": 2, "loss": 2.5}\n{"step": 3')
    assert take(files) == [(2, 2.5)]
    with path.open("a") as file:
        file.write(', "loss": 2.25}\n')
    assert take(files) == [(3, 2.25)]


def test_a_table_that_begins_later_is_found(tmp_path: Path) -> None:
    files = follow(tmp_path, "metrics.csv")
    assert take(files) == []
    (tmp_path / "metrics.csv").write_text("step,loss\n1,3.0\n")
    assert take(files) == [(1, 3.0)]
