"""Whole supervisions with real processes: a supervisor of its own, and a fake trainer under it."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from prime_train.checkpoints.layout import newest_complete
from prime_train.core.errors import ExitCode
from prime_train.core.process_id import Identity, identify
from prime_train.core.rundir import RunDir
from prime_train.events import (
    AttemptEnded,
    ChildStarted,
    EventLog,
    EventsDamaged,
    HangFound,
    LaunchAsked,
    Record,
    RequestRefused,
    RunClosed,
    ServiceReady,
    SignalSent,
    StopAsked,
    read,
)
from prime_train.supervise.core.fold import fold_all
from prime_train.supervise.core.state import STOP_COMMAND, State
from prime_train.supervise.launch import environment
from prime_train.supervise.processes.lock import find_holder
from prime_train.supervise.processes.requests import STOP_REQUESTED, STOP_SIGNALS, request_stop, write_request
from tests import fakes
from tests.unit.cli import commands

DEADLINE_S = 60.0
_PROGRAM = Path(fakes.__file__).with_name("supervisor.py")
SLOWLY = ("max_steps=100000", "step_s=0.01")  # it trains until something ends it


class Supervised:
    """A supervisor that runs, and what it has written."""

    def __init__(self, run_dir: RunDir, *arguments: str) -> None:
        self.run_dir = run_dir
        self.process = subprocess.Popen(
            [sys.executable, str(_PROGRAM), str(run_dir.path), *arguments], stderr=subprocess.PIPE, text=True
        )

    def end(self) -> int:
        return self.process.wait(DEADLINE_S)

    def until(self, holds: Callable[[State], bool]) -> State:
        """The first state seen that satisfies `holds`."""
        deadline_s = time.monotonic() + DEADLINE_S
        while time.monotonic() < deadline_s:
            state = state_of(self.run_dir)
            if holds(state):
                return state
            assert self.process.poll() is None, "the supervisor ended before"
            time.sleep(0.03)
        raise AssertionError(f"not within {DEADLINE_S} s: {state_of(self.run_dir)}")


@pytest.fixture(autouse=True)
def _hangups_are_heard() -> Iterator[None]:
    """A supervisor that is started under nohup lets hang-ups pass; the tests may be, and these are not about that."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)


@pytest.fixture
def run_dir(tmp_path: Path) -> RunDir:
    return RunDir(tmp_path / "run")


@pytest.fixture
def start(run_dir: RunDir) -> Iterator[Callable[..., Supervised]]:
    """Starts supervisors; afterwards it ends those that are left, and asserts that nothing of the run is."""
    started: list[Supervised] = []

    def begin(*arguments: str) -> Supervised:
        started.append(Supervised(run_dir, *arguments))
        return started[-1]

    yield begin
    ended_by_itself = [supervised.process.poll() is not None for supervised in started]
    for supervised in started:
        with contextlib.suppress(ProcessLookupError):
            supervised.process.kill()
        supervised.process.wait()
        assert supervised.process.stderr is not None
        supervised.process.stderr.close()
    left = belonging(run_dir)
    for process in left:
        process.kill()
    assert all(ended_by_itself)
    assert left == []


def belonging(run_dir: RunDir) -> list[psutil.Process]:
    """Live processes that carry the mark of the run."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if process.environ().get(environment.RUN) == str(run_dir.path) and process.status() != "zombie":
                found.append(process)
    return found


def state_of(run_dir: RunDir) -> State:
    return fold_all(read(run_dir.events))


def launches(run_dir: RunDir) -> list[LaunchAsked]:
    return [record.event for record in read(run_dir.events) if isinstance(record.event, LaunchAsked)]


def endings(run_dir: RunDir) -> list[AttemptEnded]:
    return [record.event for record in read(run_dir.events) if isinstance(record.event, AttemptEnded)]


def training(state: State) -> bool:
    return (
        state.live is not None and bool(state.live.children) and state.newest_complete > state.attempts[-1].resume_step
    )


def await_end(process: Identity | None) -> None:
    """A zombie has ended: who reaps it is the system's business, and may take seconds."""
    give_up_s = time.monotonic() + DEADLINE_S
    while process is not None and process.alive:
        assert time.monotonic() < give_up_s, f"{process} lives"
        time.sleep(0.01)


def trainer_pid(state: State) -> int:
    assert state.live is not None
    return state.live.children[0].pid


# --- ends the trainer brings about itself -----------------------------------------------------------


def test_a_run_that_finishes(start: Callable[..., Supervised], run_dir: RunDir) -> None:
    assert start("finish").end() == 0
    state = state_of(run_dir)
    assert (state.state, state.step, state.restarts, state.exit_code) == ("finished", 40, 0, 0)
    assert state.final == str(run_dir.checkpoint(40))


def test_remains_of_a_machine_whose_events_are_lost_do_not_end_an_attempt(
    start: Callable[..., Supervised], run_dir: RunDir
) -> None:
    run_dir.attempt(1).mkdir(parents=True)
    run_dir.stop_request(1).touch()
    run_dir.rendezvous(1).write_bytes(b"of another attempt 1")
    assert start("finish").end() == ExitCode.OK
    assert not run_dir.rendezvous(1).exists()


def test_a_run_that_is_finished_already_can_go_further(start: Callable[..., Supervised], run_dir: RunDir) -> None:
    assert start("finish").end() == 0
    assert start("finish", "max_steps=60").end() == 0
    assert [launch.resume_step for launch in launches(run_dir)] == [0, 40]
    assert state_of(run_dir).step == 60


def delete_a_line(content: bytes) -> bytes:
    first, _, *rest = content.splitlines(keepends=True)
    return b"".join((first, *rest))


def cut_the_front(content: bytes) -> bytes:
    return b"".join(content.splitlines(keepends=True)[-2:])


def add_a_foreign_line(content: bytes) -> bytes:
    return content + b'{"v":2,"t":1,"w":"supervisor","n":1000000,"id":"x","kind":"stop_asked","by":"foreign"}\n'


def flip_a_bit(content: bytes) -> bytes:
    at = content.index(b"run_closed")
    return content[:at] + bytes((content[at] ^ 1,)) + content[at + 1 :]


@pytest.mark.parametrize("damage", [delete_a_line, cut_the_front, add_a_foreign_line, flip_a_bit])
def test_a_run_whose_events_were_damaged_goes_on(
    start: Callable[..., Supervised], run_dir: RunDir, damage: Callable[[bytes], bytes]
) -> None:
    assert start("finish").end() == 0
    path = run_dir.events / "supervisor.jsonl"
    path.write_bytes(damage(path.read_bytes()))
    before = len(launches(run_dir))
    assert start("finish", "max_steps=60").end() == 0
    assert len(launches(run_dir)) == before + 1
    assert (state_of(run_dir).state, state_of(run_dir).step) == ("finished", 60)
    assert [record for record in read(run_dir.events) if isinstance(record.event, EventsDamaged)]


@pytest.mark.parametrize(
    ("behaviour", "cause_class", "what"),
    [
        ("crash", "unknown", "RuntimeError: boom at step 15"),
        ("raise", "unknown", "RuntimeError: boom at step 15"),
        ("die", "signal", "killed by signal 9 (SIGKILL)"),
        ("exit0", "unknown", "exited with 0 at step 15 of 40"),
    ],
)
def test_a_failure_is_followed_by_an_attempt_from_the_newest_complete_checkpoint(
    start: Callable[..., Supervised], run_dir: RunDir, behaviour: str, cause_class: str, what: str
) -> None:
    assert start(behaviour, "times=once").end() == 0
    assert [launch.resume_step for launch in launches(run_dir)] == [0, 10]
    failed = endings(run_dir)[0]
    assert (failed.cause_class, failed.what, failed.newest_complete) == (cause_class, what, 10)
    assert state_of(run_dir).restarts == 1


def test_an_exception_without_an_account_is_placed_by_the_log(
    start: Callable[..., Supervised], run_dir: RunDir
) -> None:
    start("crash", "times=once").end()
    assert "trainer.py:" in endings(run_dir)[0].where


def test_attempts_without_progress_come_to_an_end(start: Callable[..., Supervised], run_dir: RunDir) -> None:
    assert start("crash").end() == 6
    assert len(launches(run_dir)) == 1 + 3  # the first one left a checkpoint
    assert state_of(run_dir).state == "failed"


def test_an_error_in_the_config_is_not_tried_again(start: Callable[..., Supervised], run_dir: RunDir) -> None:
    assert start("config").end() == 5
    assert len(launches(run_dir)) == 1
    assert "no end-of-text token" in state_of(run_dir).reason


def test_a_truncated_newest_checkpoint_is_left_out_and_reported(
    start: Callable[..., Supervised], run_dir: RunDir
) -> None:
    assert start("truncate", "times=once", "at_step=25").end() == 0
    assert launches(run_dir)[1] == LaunchAsked(2, 10, ("step_20: state.bin has 10 of 1000 bytes",))


def test_an_unreadable_checkpoint_is_not_taken_again(start: Callable[..., Supervised], run_dir: RunDir) -> None:
    assert start("finish", "max_steps=25").end() == 0
    assert start("finish", "unreadable=25").end() == 0
    assert launches(run_dir)[-2:] == [
        LaunchAsked(2, 25),
        LaunchAsked(3, 20, ("step_25: the trainer could not load it",)),
    ]


def test_where_more_than_one_interval_would_be_lost_nothing_starts_over(
    start: Callable[..., Supervised], run_dir: RunDir
) -> None:
    assert start("finish", "max_steps=20").end() == 0
    assert start("finish", "unreadable=10,20").end() == 5
    failed = endings(run_dir)[-1]
    assert failed.what.startswith("no checkpoint can be resumed from: step_20: the trainer could not load it; step_10:")
    assert sorted(path.name for path in run_dir.checkpoints.iterdir()) == ["step_10", "step_20"]


def test_where_the_first_checkpoint_is_lost_the_run_starts_over(
    start: Callable[..., Supervised], run_dir: RunDir
) -> None:
    assert start("finish", "max_steps=10").end() == 0
    assert start("finish", "unreadable=10").end() == 0
    assert launches(run_dir)[-1] == LaunchAsked(3, 0, ("step_10: the trainer could not load it",))


def test_a_hang_is_found_and_killed_and_leaves_its_stack(start: Callable[..., Supervised], run_dir: RunDir) -> None:
    assert start("hang", "times=once", "policy.step_limit_s=0.5").end() == 0
    (hang,) = [record.event for record in read(run_dir.events) if isinstance(record.event, HangFound)]
    assert hang.phase == "train"
    failed = endings(run_dir)[0]
    assert failed.cause_class == "hang"
    assert "misbehave" in failed.where
    assert launches(run_dir)[1].resume_step == 10


def test_an_attempt_that_is_at_fault_before_its_start_is_followed_by_another(
    start: Callable[..., Supervised], run_dir: RunDir
) -> None:
    assert start("finish", "alarm=restart").end() == 0
    first = endings(run_dir)[0]
    assert (first.outcome, first.cause_class, first.what) == ("failed", "hardware", "it is lost")
    assert [record.event.attempt for record in read(run_dir.events) if isinstance(record.event, ChildStarted)] == [2]


def test_a_run_that_is_paused_before_its_start_is_stopped(start: Callable[..., Supervised], run_dir: RunDir) -> None:
    assert start("finish", "alarm=pause").end() == ExitCode.RESUMABLE
    assert [ended.outcome for ended in endings(run_dir)] == ["stopped"]
    assert not any(isinstance(record.event, ChildStarted) for record in read(run_dir.events))


def test_a_program_that_does_not_exist_is_reported_to(start: Callable[..., Supervised], run_dir: RunDir) -> None:
    assert start("finish", "program=/nowhere/python").end() == 5
    assert endings(run_dir)[0].cause_class == "env"


# --- ends that come from outside --------------------------------------------------------------------


def test_kill_9_of_the_trainer_costs_the_steps_since_the_checkpoint(start: Callable[..., Supervised]) -> None:
    supervised = start("finish", *SLOWLY)
    before = supervised.until(training)
    os.kill(trainer_pid(before), signal.SIGKILL)
    after = supervised.until(lambda state: state.attempt_number == 2 and training(state))
    assert after.attempts[0].what == "killed by signal 9 (SIGKILL)"
    assert after.attempts[1].resume_step >= before.newest_complete
    supervised.process.terminate()
    assert supervised.end() == 75


@pytest.mark.parametrize("left", [None, b"", b'{"run": {"name": "cut'])
def test_a_config_that_is_lost_during_the_run_is_written_again(
    start: Callable[..., Supervised], run_dir: RunDir, left: bytes | None
) -> None:
    """Each attempt reads it, and the supervisor has it in memory."""
    supervised = start("finish", *SLOWLY)
    before = supervised.until(training)
    config = run_dir.resolved.read_bytes()
    run_dir.resolved.unlink()
    if left is not None:
        run_dir.resolved.write_bytes(left)
    os.kill(trainer_pid(before), signal.SIGKILL)
    supervised.until(lambda state: state.attempt_number == 2 and training(state))
    assert run_dir.resolved.read_bytes() == config
    supervised.process.terminate()
    assert supervised.end() == 75


@pytest.mark.parametrize("number", STOP_SIGNALS)
def test_a_signal_to_the_supervisor_stops_the_run_with_a_checkpoint(
    start: Callable[..., Supervised], run_dir: RunDir, number: signal.Signals
) -> None:
    supervised = start("finish", *SLOWLY)
    supervised.until(training)
    supervised.process.send_signal(number)
    assert supervised.end() == 75
    state = state_of(run_dir)
    assert (state.state, state.stop_by, state.newest_complete) == ("stopped", number.name, state.step)
    assert not any(isinstance(r.event, SignalSent) and r.event.signal == "SIGTERM" for r in read(run_dir.events))


def test_a_request_stops_the_run_with_a_checkpoint(start: Callable[..., Supervised], run_dir: RunDir) -> None:
    supervised = start("finish", *SLOWLY)
    supervised.until(training)
    requests = run_dir.requests(1)
    (requests / "garbage.json").write_text("garbage")
    (requests / "unknown.json").write_text('{"kind": "delete"}')
    (requests / "link.json").symlink_to(run_dir.config)
    assert request_stop(run_dir, 1).identity.pid == supervised.process.pid
    assert supervised.end() == 75
    state = state_of(run_dir)
    assert (state.state, state.stop_by, state.newest_complete) == ("stopped", STOP_COMMAND, state.step)
    refused = {record.event.file for record in read(run_dir.events) if isinstance(record.event, RequestRefused)}
    assert refused == {f"001/requests/{name}.json" for name in ("garbage", "unknown", "link")}
    assert not any(isinstance(r.event, SignalSent) and r.event.signal == "SIGTERM" for r in read(run_dir.events))


def test_two_requests_at_once_are_one_wish(start: Callable[..., Supervised], run_dir: RunDir) -> None:
    supervised = start("finish", *SLOWLY)
    supervised.until(training)
    holder = find_holder(run_dir)
    assert holder is not None
    for _ in range(2):
        write_request(run_dir.requests(1), STOP_REQUESTED, holder.identity)
    assert supervised.end() == 75
    state = state_of(run_dir)
    assert (state.stop_at_once, state.newest_complete) == (False, state.step)
    assert sum(isinstance(record.event, StopAsked) for record in read(run_dir.events)) == 2


def test_a_stop_that_is_repeated_with_its_id_is_one_stop(start: Callable[..., Supervised], run_dir: RunDir) -> None:
    supervised = start("deaf", *SLOWLY, "policy.stop_grace_s=600")
    supervised.until(training)
    request_stop(run_dir, 1, "lost")
    supervised.until(lambda state: "lost" in state.answered)
    request_stop(run_dir, 1, "lost")
    request_stop(run_dir, 1, "lost")
    assert sum(isinstance(record.event, StopAsked) for record in read(run_dir.events)) == 1
    state = state_of(run_dir)
    assert not state.stop_at_once
    os.kill(trainer_pid(state), signal.SIGKILL)
    assert supervised.end() == 75


def test_a_request_reaches_a_supervisor_that_ctrl_z_stopped(start: Callable[..., Supervised], run_dir: RunDir) -> None:
    supervised = start("finish", *SLOWLY)
    supervised.until(training)
    supervised.process.send_signal(signal.SIGSTOP)
    os.waitid(os.P_PID, supervised.process.pid, os.WSTOPPED | os.WNOWAIT)
    request_stop(run_dir, 1)
    assert supervised.end() == 75
    assert state_of(run_dir).stop_by == STOP_COMMAND


def test_a_request_between_attempts_ends_the_run(start: Callable[..., Supervised], run_dir: RunDir) -> None:
    supervised = start("crash", "policy.backoff_s=600", "policy.backoff_max_s=600", "policy.max_fruitless_attempts=9")
    supervised.until(lambda state: bool(state.attempts) and state.live is None)
    request_stop(run_dir, 1)
    assert supervised.end() == 75
    assert state_of(run_dir).reason.startswith(STOP_COMMAND)


def test_a_trainer_that_does_not_hear_is_ended_after_its_grace(
    start: Callable[..., Supervised], run_dir: RunDir
) -> None:
    supervised = start("deaf", *SLOWLY, "policy.stop_grace_s=0.5")
    supervised.until(training)
    supervised.process.terminate()
    assert supervised.end() == 75
    sent = [record.event.signal for record in read(run_dir.events) if isinstance(record.event, SignalSent)]
    assert sent == ["stop_requested", "SIGTERM", "SIGKILL"]
    assert "stop_grace_s" in endings(run_dir)[0].fix


def test_kill_9_of_the_supervisor_takes_the_trainer_with_it_and_the_same_call_goes_on(
    start: Callable[..., Supervised], run_dir: RunDir
) -> None:
    supervised = start("finish", *SLOWLY)
    state = supervised.until(training)
    trainer = identify(trainer_pid(state))
    supervised.process.kill()
    supervised.process.wait()
    await_end(trainer)
    reached = newest_complete(run_dir.checkpoints)
    assert reached is not None
    assert start("finish", f"max_steps={reached.step + 20}").end() == 0
    assert endings(run_dir)[0].returncode is None
    assert "together with its supervisor" in endings(run_dir)[0].what
    assert launches(run_dir)[1].resume_step == reached.step


def test_what_a_killed_supervisor_leaves_behind_is_ended_by_the_next(
    start: Callable[..., Supervised], run_dir: RunDir
) -> None:
    supervised = start("finish", *SLOWLY, "orphan=yes")
    state = supervised.until(training)
    trainer = identify(trainer_pid(state))
    supervised.process.send_signal(signal.SIGSTOP)
    assert trainer is not None
    guard = psutil.Process(trainer.pid).parent()
    assert guard is not None
    guard.kill()  # otherwise it would end them all
    await_end(trainer)
    supervised.process.kill()
    supervised.process.wait()
    assert [process.name() for process in belonging(run_dir)] == ["sleep"]
    assert start("config").end() == 5
    assert belonging(run_dir) == []


def test_orphans_of_a_killed_supervisor_end_with_it(start: Callable[..., Supervised], run_dir: RunDir) -> None:
    supervised = start("finish", *SLOWLY, "orphan=yes")
    supervised.until(training)
    left = [identify(process.pid) for process in belonging(run_dir)]
    assert len(left) >= 3  # the trainer, its guard, the orphan
    supervised.process.kill()
    for process in left:
        await_end(process)


def test_an_event_that_names_a_stranger_ends_nothing(start: Callable[..., Supervised], run_dir: RunDir) -> None:
    """The pid and the start time are those of another program of the user, in a session with a child of its own."""
    supervised = start("finish", *SLOWLY)
    supervised.until(training)
    with stranger() as other:
        identity = identify(other.pid)
        assert identity is not None
        with contextlib.closing(EventLog(run_dir.events, "supervisor")) as log:
            supervised.process.kill()
            supervised.process.wait()
            log.append(ChildStarted(1, "trainer", other.pid, identity.start_ticks, str(run_dir.log(1, "trainer"))))
        assert start("config").end() == 5
        assert other.poll() is None
        assert len(psutil.Process(other.pid).children()) == 1


@contextlib.contextmanager
def stranger() -> Iterator[subprocess.Popen[str]]:
    """A program that is not the run's, with a child, in a session of its own."""
    with subprocess.Popen(
        ["sh", "-c", "sleep 600 & echo begun; wait"], stdout=subprocess.PIPE, text=True, start_new_session=True
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()
        try:
            yield process
        finally:
            os.killpg(process.pid, signal.SIGKILL)


def test_a_supervisor_that_lost_its_lock_spares_the_trainer_of_its_successor(
    start: Callable[..., Supervised], run_dir: RunDir
) -> None:
    first = start("finish", *SLOWLY)
    first.until(training)
    first.process.send_signal(signal.SIGSTOP)
    run_dir.lock.unlink()
    second = start("finish", *SLOWLY)
    state = second.until(lambda state: training(state) and state.attempt_number == 2)
    trainer = identify(trainer_pid(state))
    assert trainer is not None
    first.process.send_signal(signal.SIGCONT)
    assert first.end() == 2
    assert trainer.alive
    second.process.terminate()
    assert second.end() == 75
    assert len(launches(run_dir)) == 2


def test_orphans_in_another_session_end_with_their_attempt(start: Callable[..., Supervised], run_dir: RunDir) -> None:
    assert start("die", "times=once", "orphan=yes").end() == 0
    assert belonging(run_dir) == []


def test_a_second_supervisor_is_turned_away(start: Callable[..., Supervised], run_dir: RunDir) -> None:
    first = start("finish", *SLOWLY)
    first.until(training)
    second = start("finish", *SLOWLY)
    assert second.end() == 2
    assert second.process.stderr is not None
    told = second.process.stderr.read()
    assert f"held by process {first.process.pid}" in told
    assert "prime-train stop run" in told
    assert len(launches(run_dir)) == 1
    first.process.terminate()
    assert first.end() == 75


def test_the_environment_and_the_file_limit_of_the_trainer(start: Callable[..., Supervised], run_dir: RunDir) -> None:
    supervised = start("finish", *SLOWLY)
    trainer = psutil.Process(trainer_pid(supervised.until(training)))
    assert trainer.environ()[environment.SUPERVISOR].startswith(f"{supervised.process.pid}:")
    soft, hard = trainer.rlimit(psutil.RLIMIT_NOFILE)
    assert soft == hard
    assert os.getsid(trainer.pid) == trainer.pid
    assert not any(file.path == str(run_dir.lock) for file in trainer.open_files())
    supervised.process.terminate()
    assert supervised.end() == 75


def test_a_disk_that_is_full_ends_the_run_with_a_message(start: Callable[..., Supervised], run_dir: RunDir) -> None:
    supervised = start("finish", *SLOWLY)
    state = supervised.until(training)
    size_bytes = (run_dir.events / "supervisor.jsonl").stat().st_size
    psutil.Process(supervised.process.pid).rlimit(psutil.RLIMIT_FSIZE, (size_bytes + 10, -1))
    os.kill(trainer_pid(state), signal.SIGKILL)
    assert supervised.end() == 5
    assert supervised.process.stderr is not None
    assert "cannot be written" in supervised.process.stderr.read()


def test_a_run_directory_that_is_deleted_ends_the_run_with_a_message(
    start: Callable[..., Supervised], run_dir: RunDir
) -> None:
    supervised = start("finish", *SLOWLY)
    state = supervised.until(training)
    run_dir.path.rename(run_dir.path.with_name("elsewhere"))
    shutil.rmtree(run_dir.path.with_name("elsewhere"))
    with contextlib.suppress(ProcessLookupError):  # it may have noticed by itself
        os.kill(trainer_pid(state), signal.SIGKILL)
    assert supervised.end() == 5
    assert supervised.process.stderr is not None
    assert "cannot be read back" in supervised.process.stderr.read()


def test_every_closing_is_the_last_word(start: Callable[..., Supervised], run_dir: RunDir) -> None:
    start("finish").end()
    supervisors = [record for record in read(run_dir.events) if record.writer == "supervisor"]
    assert isinstance(supervisors[-1].event, RunClosed)
    assert [record.seq for record in supervisors] == list(range(len(supervisors)))
    started = [record for record in supervisors if isinstance(record.event, ChildStarted)]
    asked = [record for record in supervisors if isinstance(record.event, LaunchAsked)]
    assert [record.seq for record in asked] == [record.seq - 1 for record in started]


# --- services ---------------------------------------------------------------------------------------


@pytest.fixture
def port() -> int:
    """A free port of this machine."""
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        return int(held.getsockname()[1])


def started(run_dir: RunDir) -> list[str]:
    kinds = (ChildStarted, ServiceReady, AttemptEnded)
    return [type(record.event).__name__ + ":" + getattr(record.event, "role", "") for record in events(run_dir, kinds)]


def events(run_dir: RunDir, kinds: tuple[type, ...]) -> list[Record]:
    return [record for record in read(run_dir.events) if isinstance(record.event, kinds)]


def test_a_trainer_waits_for_its_service_and_the_service_ends_with_it(
    start: Callable[..., Supervised], run_dir: RunDir, port: int
) -> None:
    assert start("good", "engine=serves", f"port={port}").end() == 0
    assert started(run_dir) == [
        "ChildStarted:inference",
        "ServiceReady:inference",
        "ChildStarted:trainer",
        "AttemptEnded:",
    ]


def test_a_service_that_dies_takes_the_attempt_with_it_and_both_come_back(
    start: Callable[..., Supervised], run_dir: RunDir, port: int
) -> None:
    assert start("good", "step_s=0.05", "engine=dies", "engine_times=once", f"port={port}").end() == 0
    failed = endings(run_dir)[0]
    assert (failed.outcome, failed.cause_class) == ("failed", "bug")
    assert "EngineCore" in failed.what
    assert [launch.roles for launch in launches(run_dir)] == [("inference", "trainer")] * 2


def test_a_service_that_never_serves_ends_its_attempts(
    start: Callable[..., Supervised], run_dir: RunDir, port: int
) -> None:
    arguments = ("engine=refuses", f"port={port}", "ready_limit_s=3", "policy.dump_grace_s=0.1")
    assert start("good", *arguments).end() == ExitCode.RETRIES_SPENT
    assert {ending.cause_class for ending in endings(run_dir)} == {"hang"}
    assert any("EngineCore encountered an issue" in ending.what for ending in endings(run_dir))
    assert "ChildStarted:trainer" not in started(run_dir)


def test_a_service_alone_runs_until_it_is_stopped(start: Callable[..., Supervised], run_dir: RunDir, port: int) -> None:
    supervised = start("none", "engine=serves", f"port={port}")
    supervised.until(lambda state: state.state == "running")
    supervised.process.send_signal(signal.SIGTERM)
    assert supervised.end() == ExitCode.RESUMABLE
    assert endings(run_dir)[-1].outcome == "stopped"


def test_a_launch_is_tried_again_while_the_system_has_no_room_for_a_process(tmp_path: Path) -> None:
    library, calls = tmp_path / "no_room.so", tmp_path / "calls"
    source = Path(__file__).with_name("no_room.c")
    subprocess.run(["cc", "-shared", "-fPIC", "-O1", "-o", library, source, "-ldl"], check=True)
    calls.touch()
    written = RunDir(tmp_path.resolve() / "runs" / "full").launch(1, "trainer")  # directly before the start
    variables = {"LD_PRELOAD": str(library), "NO_ROOM": str(calls), "NO_ROOM_CALLS": "6", "NO_ROOM_AFTER": str(written)}
    with commands.supervised(tmp_path, "full", **variables) as (run_dir, process):
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 75
    assert calls.stat().st_size == 6  # of the supervisor and of the guard of its trainer
    launched = [record.event.attempt for record in read(run_dir.events) if isinstance(record.event, LaunchAsked)]
    assert launched == [1]
