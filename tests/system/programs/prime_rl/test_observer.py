"""The observer beside a launcher that runs: what its processes do, and what the launcher makes nothing of."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path

import psutil
import pytest

from prime_train.config import detect
from prime_train.core.process_id import identify
from prime_train.core.rundir import RunDir
from prime_train.events import (
    ChildStarted,
    Event,
    EventLog,
    LaunchAsked,
    Phase,
    Progress,
    StopAsked,
    TrainerFailed,
    TrainerFinished,
    TrainerStopped,
    read,
)
from prime_train.programs.prime_rl.judge import PrimeRlLimits
from prime_train.programs.prime_rl.launcher import Launcher
from prime_train.programs.prime_rl.observer import PrimeRlObserver
from prime_train.programs.prime_rl.settings import prepare_run
from prime_train.supervise.core.fold import fold_all
from prime_train.supervise.core.state import State
from prime_train.supervise.launch import environment
from prime_train.supervise.watches.watch import Alarm
from tests.fakes.prime_rl_launcher import behaviour, install
from tests.fakes.prime_rl_launcher.config import config

DEADLINE_S = 60.0
SHORT = PrimeRlLimits(tail_quiet_s=2.0, env_error_s=4.0)


@dataclass
class Watched:
    """A launcher and its observer."""

    run_dir: RunDir
    observer: PrimeRlObserver
    launcher: subprocess.Popen[bytes]
    log: EventLog

    @property
    def state(self) -> State:
        return fold_all(read(self.run_dir.events))

    def written(self) -> list[Event]:
        return [record.event for record in read(self.run_dir.events) if record.writer.startswith("prime_rl")]

    def alarms(self) -> tuple[Alarm, ...]:
        return self.observer.look(self.state, time.time())

    def until(self, holds: Callable[[], bool]) -> None:
        give_up_s = time.monotonic() + DEADLINE_S
        while not holds():
            assert time.monotonic() < give_up_s, self.written()
            self.alarms()
            time.sleep(0.05)

    def end(self) -> None:
        """End what runs, as the supervisor does, and hear the last words."""
        end_tree(self.launcher)
        self.observer.end(self.state)


def end_tree(launcher: subprocess.Popen[bytes]) -> None:
    try:
        tree = [psutil.Process(launcher.pid), *psutil.Process(launcher.pid).children(recursive=True)]
    except psutil.NoSuchProcess:
        tree = []
    for process in tree:
        with suppress(psutil.NoSuchProcess):
            process.kill()
    launcher.wait(DEADLINE_S)


@contextmanager
def watched(folder: Path, kind: str = "rl", max_steps: int = 8, **options: object) -> Iterator[Watched]:
    """A stand-in that behaves as `options` say, begun as the supervisor begins it."""
    python = install(folder / "env")
    text = config(kind, python, max_steps)
    reading = detect.read(text, "words.toml")
    assert reading.run is not None
    run, run_dir = prepare_run(reading.run, "words", folder), RunDir(folder / "runs" / "words")
    found_here = python.parent / reading.root
    started = Launcher(text, reading.run, reading.root, found_here, "abc", os.environ["PATH"], folder)
    (launch,) = started.plan(run, run_dir, 1, 0)
    for path, content in launch.files:
        path.parent.mkdir(parents=True)
        path.write_text(content)
    log = EventLog(run_dir.events, "supervisor")
    log.append(LaunchAsked(1, 0, roles=("prime_rl",)))
    observer = PrimeRlObserver(run, run_dir, 1, 0, replace(SHORT))
    observer.begin()
    variables = {variable.name: variable.value for variable in launch.variables}
    variables[environment.SUPERVISOR] = f"{os.getpid()}:0"
    with open(launch.log, "wb") as out:
        launcher = subprocess.Popen(
            launch.argv,
            cwd=launch.cwd,
            env=os.environ | variables | behaviour(folder / "starts", **options),
            stdout=out,
            stderr=out,
        )
    identity = identify(launcher.pid)
    assert identity is not None
    log.append(ChildStarted(1, "prime_rl", identity.pid, identity.start_ticks, str(launch.log)))
    found = Watched(run_dir, observer, launcher, log)
    try:
        yield found
    finally:
        end_tree(launcher)
        observer.end()
        log.close()


def test_a_whole_run_is_reported_as_a_trainer_reports_it(tmp_path: Path) -> None:
    with watched(tmp_path) as it:
        assert it.launcher.wait(DEADLINE_S) == 0
        it.observer.end(it.state)
        written = it.written()
    steps = [event.step for event in written if isinstance(event, Progress)]
    assert steps == list(range(8))
    last = written[-1]
    assert isinstance(last, TrainerFinished)
    assert (last.step, last.loss) == (8, 0.125)
    assert last.final.endswith("/words/checkpoints/step_8")
    assert any(isinstance(event, Phase) and event.name == "setup" for event in written)


def test_an_orchestrator_that_never_ends_does_not_keep_the_run(tmp_path: Path) -> None:
    with watched(tmp_path, fault="tail_deadlocks") as it:
        it.until(lambda: any(isinstance(event, TrainerFinished) for event in it.written()))
        assert it.launcher.poll() is None, "the launcher itself waits for ever"


def test_an_error_in_an_environment_is_heard(tmp_path: Path) -> None:
    with watched(tmp_path, fault="env_raises", at_step=4) as it:
        it.until(lambda: bool(it.alarms()))
        (alarm,) = it.alarms()
    assert (alarm.name, alarm.subject, alarm.answer) == ("env_error", "env server words", "restart")
    assert alarm.where.endswith("envs/train/words.log")


def test_a_server_that_ends_with_0_is_missed(tmp_path: Path) -> None:
    with watched(tmp_path, fault="inference_exits", at_step=4) as it:
        it.until(lambda: bool(it.alarms()))
        (alarm,) = it.alarms()
        assert it.launcher.poll() is None
    assert (alarm.name, alarm.subject) == ("service_gone", "inference")


def test_a_part_that_fails_is_reported_before_the_launcher_has_ended_the_rest(tmp_path: Path) -> None:
    with watched(tmp_path, fault="trainer_raises", at_step=4, join_s=20.0) as it:
        it.until(lambda: any(isinstance(event, TrainerFailed) for event in it.written()))
        assert it.launcher.poll() is None
        (failed,) = [event for event in it.written() if isinstance(event, TrainerFailed)]
    assert failed.what == "RuntimeError: boom at step 4"
    assert Path(failed.where.rpartition(":")[0]).name in ("trainer.log", "stderr.log")


def test_what_we_asked_for_is_a_stop_and_what_others_did_is_a_failure(tmp_path: Path) -> None:
    for asked, kind in ((True, TrainerStopped), (False, TrainerFailed)):
        with watched(tmp_path / str(asked), max_steps=1000, step_s=0.1) as it:
            it.until(lambda it=it: it.state.newest_complete > 0)  # type: ignore[misc]
            if asked:
                it.log.append(StopAsked("SIGINT"))
            it.launcher.terminate()
            assert it.launcher.wait(DEADLINE_S) == 1
            it.observer.end(it.state)
            last = it.written()[-1]
        assert isinstance(last, kind)
        if isinstance(last, TrainerStopped):
            assert last.step >= 2


def test_an_error_of_its_own_is_reported_to_the_loop_and_not_swallowed(tmp_path: Path) -> None:
    with watched(tmp_path, step_s=0.2) as it:
        it.until(lambda: any(isinstance(event, Progress) for event in it.written()))
        metrics = tmp_path / "outputs" / "words" / "metrics.jsonl"
        metrics.rename(tmp_path / "gone")
        metrics.mkdir()
        with pytest.raises(IsADirectoryError):
            it.until(lambda: False)
