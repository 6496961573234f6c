"""The newest change of a run directory."""

from __future__ import annotations

import os
from pathlib import Path

from prime_train.cli.status_wandb import find_newest_change


def _write(path: Path, time_s: float) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("x", encoding="utf-8")
    os.utime(path, (time_s, time_s))


def test_the_newest_file_counts_down_to_those_of_a_checkpoint(tmp_path: Path) -> None:
    assert find_newest_change(tmp_path) is None
    assert find_newest_change(tmp_path / "absent") is None
    _write(tmp_path / "metrics.jsonl", 100.0)
    assert find_newest_change(tmp_path) == 100.0
    _write(tmp_path / "checkpoints" / "step_50" / "COMPLETE.json", 300.0)
    _write(tmp_path / "events" / "supervisor.jsonl", 200.0)
    assert find_newest_change(tmp_path) == 300.0


def test_a_link_out_of_the_directory_is_not_followed(tmp_path: Path) -> None:
    _write(tmp_path / "elsewhere" / "file", 900.0)
    _write(tmp_path / "run" / "metrics.jsonl", 100.0)
    (tmp_path / "run" / "link").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "run" / "file").symlink_to(tmp_path / "elsewhere" / "file")
    assert find_newest_change(tmp_path / "run") == 100.0
