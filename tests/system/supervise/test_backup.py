"""The child that backs a run up: when it runs, what it reports, when it alarms, and the last copy before the end."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from prime_train import events
from prime_train.backups import sync
from prime_train.backups.store import open_store
from prime_train.checkpoints import layout, removal
from prime_train.core.rundir import RunDir
from prime_train.events import AlarmRaised, CheckpointBackedUp, Event, Progress, Record
from prime_train.spec import Backup, Data, PrimeTrain, Run, RunSpec
from prime_train.supervise.core.state import ActiveAlarm, Live, State
from prime_train.supervise.services import backup as backups
from prime_train.supervise.services.backup import BackgroundBackup
from tests.unit.backups import scene

DEADLINE_S = 60.0


def training(newest: int) -> State:
    progress = Record(0.0, "trainer-001-rank0", 1, Progress(1, newest, 1.0, 1.0, 1))
    return State(live=Live(1, 0.0, first_progress=progress), newest_complete=newest)


def spec_of(backup: Backup) -> RunSpec:
    return RunSpec(run=Run(name=scene.RUN, max_steps=100), data=Data(sources=()), prime_train=PrimeTrain(backup=backup))


@pytest.fixture
def settings(tmp_path: Path) -> Backup:
    return scene.local_backup(tmp_path / "bucket", keep_last=2, delete_after_upload=True)


@pytest.fixture
def run_dir(tmp_path: Path) -> RunDir:
    for step in (10, 20, 30):
        scene.write_step(tmp_path / "here", step)
    return RunDir(tmp_path / "here")


@pytest.fixture
def background(run_dir: RunDir, settings: Backup) -> Iterator[BackgroundBackup]:
    made = BackgroundBackup(spec_of(settings), run_dir, partial(scene.places, run_dir.path))
    yield made
    made.end()


def collect(background: BackgroundBackup, state: State, until: Callable[[list[Event]], bool]) -> list[Event]:
    found: list[Event] = []
    deadline_s = time.monotonic() + DEADLINE_S
    while not until(found):
        assert time.monotonic() < deadline_s, found
        background.consider(state)
        found += background.results(state)
        time.sleep(0.01)
    return found


def test_a_training_run_is_backed_up_pruned_and_freed(background: BackgroundBackup, run_dir: RunDir) -> None:
    state = training(30)
    found = collect(background, state, lambda events_: not background.processes() and len(events_) >= 3)
    assert [(event.step, event.problem) for event in found if isinstance(event, CheckpointBackedUp)] == [
        (30, ""),
        (20, ""),
    ]
    assert [event.path for event in found if isinstance(event, events.SpaceFreed)] == [str(run_dir.checkpoint(20))]
    background.consider(state)
    assert background.processes() == ()  # nothing is newer
    scene.write_step(run_dir.path, 40)
    found = collect(background, training(40), lambda events_: any(isinstance(e, events.BackupPruned) for e in events_))
    assert [event.step for event in found if isinstance(event, events.BackupPruned)] == [20]


def test_without_a_trainer_that_trains_there_is_no_child(background: BackgroundBackup) -> None:
    background.consider(State(newest_complete=30))
    background.consider(State(live=Live(1, 0.0), newest_complete=30))
    assert background.processes() == ()


def test_without_a_provider_there_is_no_child(run_dir: RunDir) -> None:
    for backup in (Backup(), Backup(provider="off", bucket="x")):
        idle = BackgroundBackup(spec_of(backup), run_dir, partial(scene.places, run_dir.path))
        idle.consider(training(30))
        assert idle.processes() == ()
        assert not idle.needs_flush(training(30))


def test_a_child_that_is_killed_is_started_again(
    background: BackgroundBackup, settings: Backup, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(backups, "_RETRY_S", 0.0)
    monkeypatch.setattr(backups, "_LAST_READ_S", 0.1)
    state = training(30)
    background.consider(state)
    (child,) = background.processes()
    os.kill(child.pid, signal.SIGKILL)
    found = collect(background, state, lambda events_: sum(isinstance(e, CheckpointBackedUp) for e in events_) >= 3)
    assert "ended early" in found[0].problem if isinstance(found[0], CheckpointBackedUp) else False
    assert [one.complete for one in scene.list_backups(open_store(settings))] == [True, True]


def test_a_bucket_that_fails_for_long_is_an_alarm_until_it_works(
    background: BackgroundBackup, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(backups, "_RETRY_S", 0.0)
    monkeypatch.setattr(backups, "_ALARM_S", 0.0)
    (tmp_path / "bucket").rename(tmp_path / "unmounted")
    state = training(30)
    found = collect(background, state, lambda events_: any(isinstance(e, AlarmRaised) for e in events_))
    (alarm,) = [event for event in found if isinstance(event, AlarmRaised)]
    assert (alarm.watch, alarm.answer) == ("backup", "alert")
    problems = [event.problem for event in found if isinstance(event, CheckpointBackedUp)]
    assert len(problems) == len(set(problems)) == 1
    active = replace(state, alarms=(ActiveAlarm(alarm, 0.0),))
    assert not any(isinstance(event, AlarmRaised) for event in background.results(active))
    (tmp_path / "unmounted").rename(tmp_path / "bucket")
    cleared = collect(background, active, lambda events_: any(isinstance(e, events.AlarmCleared) for e in events_))
    assert any(isinstance(event, CheckpointBackedUp) and event.step == 30 for event in cleared)


def test_the_newest_checkpoint_is_copied_before_the_end(background: BackgroundBackup, settings: Backup) -> None:
    state = State(newest_complete=30)
    assert background.needs_flush(state)
    background.flush(state, lambda: False, 60.0)
    found = background.results(state)
    assert [event.step for event in found if isinstance(event, CheckpointBackedUp)] == [30]
    assert not background.needs_flush(state)
    assert scene.list_backups(open_store(settings))[0].step == 30


def test_a_child_that_is_killed_in_the_last_round_is_started_again(
    background: BackgroundBackup, settings: Backup, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(backups, "_LAST_READ_S", 0.1)
    killed: list[int] = []

    def kill_first() -> bool:
        for child in background.processes()[: not killed]:
            killed.append(child.pid)
            os.kill(child.pid, signal.SIGKILL)
        return False

    state = State(newest_complete=30)
    background.flush(state, kill_first, 60.0)
    found = [event for event in background.results(state) if isinstance(event, CheckpointBackedUp)]
    assert [bool(event.problem) for event in found] == [True, False]
    assert scene.list_backups(open_store(settings))[0].step == 30


def test_a_copy_that_was_complete_when_its_child_was_ended_is_reported_at_the_end(
    background: BackgroundBackup, settings: Backup, run_dir: RunDir
) -> None:
    background.consider(training(30))
    (child,) = background.processes()
    os.kill(child.pid, signal.SIGSTOP)  # it is ended before it reports anything
    background.end()
    list(sync.run_round(scene.upload(open_store(settings), run_dir.path), None))  # what it did until then
    state = State(newest_complete=30)
    background.flush(state, lambda: False, 60.0)
    found = background.results(state)
    (copy,) = [event for event in found if isinstance(event, CheckpointBackedUp)]
    assert (copy.step, copy.problem) == (30, "")
    assert copy.size_bytes > 0
    assert not background.needs_flush(state)


def test_a_copy_of_an_earlier_life_is_not_reported_again(
    background: BackgroundBackup, settings: Backup, run_dir: RunDir
) -> None:
    list(sync.run_round(scene.upload(open_store(settings), run_dir.path), None))
    state = State(newest_complete=30)
    background.flush(state, lambda: False, 60.0)
    assert not any(isinstance(event, CheckpointBackedUp) for event in background.results(state))
    assert not background.needs_flush(state)


def test_a_signal_or_the_limit_ends_the_last_copy(run_dir: RunDir, settings: Backup) -> None:
    for limit_s, is_interrupted, why in ((60.0, True, "signal"), (0.0, False, "limit of 0 s is over")):
        slow = replace(settings, max_upload_mb_per_s=0.001)
        background = BackgroundBackup(spec_of(slow), run_dir, partial(scene.places, run_dir.path))
        state = State(newest_complete=30)
        background.flush(state, lambda is_interrupted=is_interrupted: is_interrupted, limit_s)  # type: ignore[misc]
        (event,) = background.results(state)
        assert isinstance(event, CheckpointBackedUp)
        assert why in event.problem
        assert background.processes() == ()


def test_a_deletion_that_a_kill_left_undecided_is_undone(background: BackgroundBackup, run_dir: RunDir) -> None:
    background.consider(training(30))
    aside = run_dir.checkpoints / f"{removal.ASIDE}step_10.1"
    run_dir.checkpoint(10).rename(aside)
    background.end()
    assert layout.inspect(run_dir.checkpoint(10)).complete
