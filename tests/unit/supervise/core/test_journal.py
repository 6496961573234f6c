from __future__ import annotations

import json
import shutil
import zlib
from pathlib import Path
from typing import Any

import pytest

from prime_train.core.errors import UserError
from prime_train.core.rundir import RunDir
from prime_train.events import EventLog, LaunchAsked, RunClosed, RunOpened, read
from prime_train.supervise.core import journal as journals
from prime_train.supervise.core.fold import fold_all
from prime_train.supervise.core.journal import WRITER, Journal

OPENED = RunOpened("words", 1, 10, "0")


def open_journal(run_dir: RunDir) -> Journal:
    return Journal(run_dir, lambda *_: None, lambda *_: None)


def test_an_appended_event_is_in_the_state(tmp_path: Path) -> None:
    journal = open_journal(RunDir(tmp_path))
    journal.append(OPENED)
    journal.append(LaunchAsked(1, 0))
    assert journal.state.attempt is not None
    assert journal.state.attempt.number == 1
    journal.close()


def test_an_event_that_is_not_read_back_stops_the_supervisor(tmp_path: Path) -> None:
    """Later positions of another writer's life prove nothing."""
    run_dir = RunDir(tmp_path / "run")
    journal = open_journal(run_dir)
    journal._log = EventLog(tmp_path / "elsewhere", WRITER)  # as on a disk that loses what is written
    other = EventLog(run_dir.events, WRITER)
    for _ in range(3):
        other.append(OPENED)
    other.close()
    with pytest.raises(UserError, match="events") as lost:
        journal.append(OPENED)
    assert "another program changes their file" in lost.value.why


def test_the_reason_for_lost_events_is_a_deleted_folder_only_where_it_was_deleted(tmp_path: Path) -> None:
    run_dir = RunDir(tmp_path / "run")
    journal = open_journal(run_dir)
    journal.append(OPENED)
    shutil.rmtree(run_dir.path)
    with pytest.raises(UserError) as lost:
        journal.append(OPENED)
    assert "the run directory was deleted" in lost.value.why


def test_half_a_line_of_another_program_does_not_swallow_the_next_event(tmp_path: Path) -> None:
    run_dir = RunDir(tmp_path)
    journal = open_journal(run_dir)
    journal.append(OPENED)
    with open(run_dir.events / f"{WRITER}.jsonl", "ab") as file:
        file.write(b'{"v":2,"t":')
    journal.append(LaunchAsked(1, 0))
    assert journal.state.attempt is not None
    journal.close()


def test_a_run_that_is_over_has_its_state_beside_its_events(tmp_path: Path) -> None:
    run_dir = RunDir(tmp_path)
    journal = open_journal(run_dir)
    journal.append(OPENED)
    journal.append_last(RunClosed("stopped", 75, "asked"))
    journal.close()
    state, follower = journals._load(run_dir)
    assert state.closed
    assert follower.poll() == []
    assert state == fold_all(read(run_dir.events))


def test_a_run_that_goes_on_has_no_state_beside_its_events(tmp_path: Path) -> None:
    run_dir = RunDir(tmp_path)
    journal = open_journal(run_dir)
    journal.append(OPENED)
    journal.close()
    assert not run_dir.snapshot.exists()


@pytest.mark.parametrize("offset", [-1, -(2**40), 2**62, 2**70, 1.5, "1", None])
def test_a_state_of_an_impossible_place_is_not_used(tmp_path: Path, offset: Any) -> None:
    run_dir = RunDir(tmp_path)
    journal = open_journal(run_dir)
    journal.append(OPENED)
    journal.append_last(RunClosed("stopped", 75, "asked"))
    journal.close()
    kept = json.loads(run_dir.snapshot.read_text().splitlines()[0])
    kept["files"][0]["offset"] = offset
    body = json.dumps(kept)
    run_dir.snapshot.write_text(f"{body}\n{zlib.crc32(body.encode()):08x}\n")
    state, follower = journals._load(run_dir)
    assert not state.run
    assert len(follower.poll()) == 2
