"""The saves of earlier runs: those of this machine, the latest run first."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

from prime_train.core.process_id import own_user
from prime_train.core.rundir import RunDir
from prime_train.events import CheckpointSaved, RunOpened
from prime_train.facts.earlier_saves import find_earlier_saves
from tests.unit.views.compare.made import write_compared
from tests.unit.views.written_runs import GONE, WHOLE_LIFE, Timeline, records, write_events


def _write(folder: Path, name: str, by: str, at_s: float, saves: Timeline = ()) -> RunDir:
    run_dir = write_compared(folder, name)
    for path in run_dir.events.iterdir():
        path.unlink()
    opened = (0.0, "supervisor", RunOpened(name, GONE, 100, "0.1.0", by=by))
    write_events(run_dir, records((opened, *WHOLE_LIFE[1:], *saves)))
    os.utime(run_dir.events, (at_s, at_s))
    return run_dir


def test_the_latest_run_of_this_machine_is_first(tmp_path: Path) -> None:
    _write(tmp_path, "older", own_user(), 1000.0)
    _write(tmp_path, "newer", own_user(), 2000.0)
    found = find_earlier_saves(tmp_path)
    assert [one.run for one in found] == ["newer", "older"]
    assert (found[0].saves, found[0].size_bytes, found[0].in_background) == (2, 50_000_000, True)
    assert (round(found[0].stall_s, 3), found[0].write_s) == (0.015, 0.35)


def test_a_run_of_another_machine_is_left_out(tmp_path: Path) -> None:
    _write(tmp_path, "there", "someone@elsewhere", 1000.0)
    _write(tmp_path, "unknown", "", 1000.0)
    assert find_earlier_saves(tmp_path) == ()


def test_a_save_of_a_few_bytes_is_left_out(tmp_path: Path) -> None:
    run_dir = write_compared(tmp_path, "small")
    opened = (0.0, "supervisor", RunOpened("small", GONE, 100, "0.1.0", by=own_user()))
    small = [
        replace(event, size_bytes=100) if isinstance(event, CheckpointSaved) else event for *_, event in WHOLE_LIFE
    ]
    for path in run_dir.events.iterdir():
        path.unlink()
    moved = [(second, writer, event) for (second, writer, _), event in zip(WHOLE_LIFE[1:], small[1:], strict=True)]
    write_events(run_dir, records((opened, *moved)))
    assert find_earlier_saves(tmp_path) == ()


def test_no_folder_and_damaged_runs_are_no_error(tmp_path: Path) -> None:
    assert find_earlier_saves(tmp_path / "none") == ()
    damaged = _write(tmp_path, "damaged", own_user(), 1000.0)
    damaged.resolved.write_text("{")
    (tmp_path / "file").write_text("")
    (tmp_path / "link").symlink_to(tmp_path / "damaged")
    assert find_earlier_saves(tmp_path) == ()
