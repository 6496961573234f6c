from __future__ import annotations

from dataclasses import replace
from functools import reduce
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from prime_train.core.rundir import RunDir
from prime_train.events import (
    AlarmRaised,
    AttemptEnded,
    CheckpointSaved,
    Evaluated,
    Event,
    EventLog,
    Follower,
    HangFound,
    LaunchAsked,
    Phase,
    Progress,
    RunOpened,
    Sampled,
    TrainerFailed,
    TrainerStarted,
    read,
)
from prime_train.supervise.core import journal
from prime_train.supervise.core.fold import fold, fold_all
from prime_train.supervise.core.journal import read_state
from prime_train.supervise.core.state import State

HISTORY: tuple[Event, ...] = (
    RunOpened("r", 1, 300, "0"),
    LaunchAsked(1, 0, ("step_4: broken",)),
    TrainerStarted(1, 7, 0, 1, "cpu", "fp32", 1000, 4096, 0),
    Phase(1, "train", "\u2028 detail"),
    Progress(1, 3, float("inf"), float("nan"), 5, 0.5),
    Evaluated(1, 3, 2.0, 10),
    Sampled(1, 3, "a", "b"),
    CheckpointSaved(1, 3, 1, 0.0, 0.25),
    AlarmRaised(1, "gpu", "gpu_lost", "GPU 1", "restart", "hardware", "w", "y", "f", "GPU-1", 3),
    HangFound(1, 9.0, 8.0, "train"),
    TrainerFailed(1, 0, "bug", "w", "y", "f", "x"),
    AttemptEnded(1, -9, "failed", "signal", "w", "y", "f", "x", 3),
    LaunchAsked(2, 3),
    Progress(2, 4, 1.0, 2.0, 6),
)


def write(run_dir: RunDir, count: int) -> None:
    log = EventLog(run_dir.events, "supervisor")
    for event in HISTORY[:count]:
        log.append(event)
    log.close()


def save(run_dir: RunDir) -> State:
    """Save the snapshot of all events, and return its state."""
    follower = Follower(run_dir.events)
    state = fold_all(follower.poll())
    journal.save(run_dir, state, follower)
    return state


@settings(max_examples=30)
@given(st.integers(0, len(HISTORY)))
def test_the_state_from_a_snapshot_is_that_of_the_events(tmp_path_factory: pytest.TempPathFactory, count: int) -> None:
    run_dir = RunDir(tmp_path_factory.mktemp("run"))
    write(run_dir, count)
    covered = save(run_dir)
    state, follower = journal._load(run_dir)
    assert (repr(state), follower.poll()) == (repr(covered), [])  # repr, because nan is not equal to itself
    log = EventLog(run_dir.events, "supervisor")
    for event in HISTORY[count:]:
        log.append(event)
    log.close()
    assert repr(reduce(fold, follower.poll(), state)) == repr(fold_all(read(run_dir.events)))


@pytest.fixture
def run_dir(tmp_path: Path) -> RunDir:
    run_dir = RunDir(tmp_path)
    write(run_dir, len(HISTORY))
    return run_dir


def give_wrong_snapshot(run_dir: RunDir) -> None:
    """A snapshot that fits the events and has another state."""
    follower = Follower(run_dir.events)
    state = fold_all(follower.poll())
    journal.save(run_dir, replace(state, step=77), follower)
    assert read_state(run_dir).state.step == 77


def test_a_damaged_snapshot_is_not_used(run_dir: RunDir) -> None:
    give_wrong_snapshot(run_dir)
    content = run_dir.snapshot.read_bytes()
    for damaged in (b"", content[:50], content.replace(b'"step":77', b'"step":78'), b"[" * 10**5, b"{}\n", content * 2):
        run_dir.snapshot.write_bytes(damaged)
        assert read_state(run_dir).state.step == 4


def test_a_snapshot_of_other_events_is_not_used(run_dir: RunDir) -> None:
    give_wrong_snapshot(run_dir)
    path = run_dir.events / "supervisor.jsonl"
    path.write_bytes(path.read_bytes().replace(b"detail", b"Detail"))
    assert read_state(run_dir).state.step == 4
    path.write_bytes(b"")
    assert read_state(run_dir).state == State()


def test_a_snapshot_of_another_version_is_not_used(run_dir: RunDir, monkeypatch: pytest.MonkeyPatch) -> None:
    give_wrong_snapshot(run_dir)
    code = journal._code() + 1
    monkeypatch.setattr(journal, "_code", lambda: code)
    assert read_state(run_dir).state.step == 4


def test_the_damage_that_was_found_before_a_snapshot_is_still_reported(run_dir: RunDir) -> None:
    path = run_dir.events / "supervisor.jsonl"
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(lines[:3] + lines[4:]))
    save(run_dir)
    assert [(found.file, found.missing) for found in read_state(run_dir).damage] == [("supervisor.jsonl", 1)]


def test_a_short_run_gets_no_snapshot(run_dir: RunDir) -> None:
    read_state(run_dir)
    assert not run_dir.snapshot.exists()


def test_each_module_that_folds_is_part_of_the_code_of_a_snapshot(monkeypatch: pytest.MonkeyPatch) -> None:
    read_files: list[Path] = []

    def note(path: Path, _limit_bytes: int) -> bytes:
        read_files.append(path)
        return b""

    monkeypatch.setattr(journal, "read_bytes", note)
    journal._code.__wrapped__()
    folding = {path.name for path in Path(journal.__file__).parent.glob("fold*.py")}
    assert "fold_supervisor.py" in folding
    assert folding <= {path.name for path in read_files}
