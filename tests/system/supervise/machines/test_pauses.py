"""Pauses and drains of real trainings on two machines, which are two folders and two addresses of loopback."""

import signal
import subprocess
from contextlib import suppress
from pathlib import Path

import psutil

from prime_train.checkpoints import layout
from prime_train.core.errors import ExitCode
from prime_train.events import AlarmCleared, AlarmRaised, ChildStarted, CommandAccepted, GpuTested, Phase
from prime_train.supervise.machines.protocol import NOT_THERE
from tests.system.supervise.machines.commanded_run import LENGTH, CommandedRun, run_at
from tests.unit.cli.commands import wait_until
from tests.unit.supervise.machines import hosts

SECOND = "machine 1 (127.0.0.2)"


def list_trainers(*machines: subprocess.Popen[str]) -> list[str]:
    """The command lines of the trainers below supervisors that live."""
    lines: list[str] = []
    for child in [child for one in machines for child in psutil.Process(one.pid).children(recursive=True)]:
        with suppress(psutil.Error):  # it has ended
            lines.append(" ".join(child.cmdline()))
    return [line for line in lines if "prime_train.trainer" in line]


def has_alarm(run: CommandedRun, kind: type[AlarmRaised | AlarmCleared]) -> bool:
    """Whether the other machine was missing, or came back."""
    return any((one.watch, one.name, one.subject) == (*NOT_THERE, SECOND) for one in run.events(kind))


def test_a_paused_run_goes_on_as_if_it_had_not_been_paused(tmp_path: Path) -> None:
    with run_at(tmp_path) as run:
        first, second = run.start(0), run.start(1)
        run.await_step(1)
        assert len(list_trainers(first, second)) >= 2
        said = run.do("pause", hosts.NAME)
        step = run.newest_complete()
        assert said.startswith(f"paused at step {step:,} with checkpoint of step {step:,}")
        assert list_trainers(first, second) == []
        assert (first.poll(), second.poll()) == (None, None)
        assert run.do("pause", hosts.NAME).startswith("the run is paused already")
        assert run.do("resume", hosts.NAME) == f"attempt 2 is launched from step {step:,}\n"
        last = run.await_step(2) + 300
        run.do("set", hosts.NAME, f"run.max_steps={last}")
        output = run.end(first, second, code=0)
    assert "machine 0: the run is paused, and this machine waits until it goes on" in output
    assert NOT_THERE[0] not in {alarm.watch for alarm in run.events(AlarmRaised)}
    together = hosts.run_dir(tmp_path)
    alone = hosts.train_alike(tmp_path / "1", together, LENGTH)
    newest = layout.newest_complete(together.checkpoints)
    assert newest is not None
    assert hosts.read_weights(alone, newest.step) == hosts.read_weights(together, newest.step)


def test_a_machine_that_dies_while_its_run_is_paused_is_named_and_may_come_again(tmp_path: Path) -> None:
    with run_at(tmp_path) as run:
        first, second = run.start(0), run.start(1)
        run.await_step(1)
        run.do("pause", hosts.NAME)
        second.kill()
        wait_until(lambda: has_alarm(run, AlarmRaised))
        refused = run.give("resume", hosts.NAME)
        assert refused.returncode == ExitCode.USAGE
        assert f"{SECOND} is not there while the run is paused" in refused.stderr.replace("\n", " ")
        assert (run.is_paused(), run.resume_steps()) == (True, [0])
        assert SECOND in run.do("status", hosts.NAME)
        again = run.start(1)
        wait_until(lambda: has_alarm(run, AlarmCleared))
        run.do("resume", hosts.NAME)
        run.await_step(2)
        run.stop(first, again)


def test_machine_0_that_dies_while_its_run_is_paused_goes_on_when_it_is_started_again(tmp_path: Path) -> None:
    with run_at(tmp_path, "prime_train.heartbeat.join_limit_s=30") as run:
        first, second = run.start(0), run.start(1)
        run.await_step(1)
        run.do("pause", hosts.NAME)
        step = run.newest_complete()
        first.kill()
        assert "machine 0 (127.0.0.1) did not answer" in run.end(second)
        again = (run.start(0), run.start(1))
        assert run.await_step(2) > step
        assert run.resume_steps() == [0, step]
        run.do("pause", hosts.NAME)
        run.do("stop", hosts.NAME)
        run.end(*again)


def test_a_pause_before_a_machine_has_come_waits_for_it(tmp_path: Path) -> None:
    with run_at(tmp_path) as run:
        first = run.start(0)
        wait_until(lambda: any("waits for machine 1" in one.detail for one in run.events(Phase)))
        wait_until(lambda: len(run.events(ChildStarted)) == 2)
        assert run.do("pause", hosts.NAME).startswith("paused at step 0 with no checkpoint")
        second = run.start(1)
        wait_until(lambda: run.give("resume", hosts.NAME).returncode == 0)  # refused while it is missing
        run.await_step(2)
        assert run.resume_steps() == [0, 0]
        run.do("pause", hosts.NAME)
        run.stop(second, first)  # a scheduler ends one machine, and so the run


def test_a_drained_machine_is_tested_and_trains_only_after_its_return(tmp_path: Path) -> None:
    with run_at(tmp_path) as run:
        first, second = run.start(0), run.start(1)
        run.await_step(1)
        said = run.do("gpu", "drain", hosts.NAME, "machine-1", "--why", "it gets hot")
        assert "tested: machine-1 passed: cpu passed" in said
        assert [(one.gpu, one.passed) for one in run.events(GpuTested)] == [("machine-1", True)]
        step = run.newest_complete()
        assert list_trainers(first, second) == []
        shown = run.do("status", hosts.NAME).replace("\n", " ")
        assert f"prime-train gpu return {hosts.NAME} machine-1" in shown
        second.send_signal(signal.SIGTERM)  # the machine is taken away
        run.end(second)
        first.kill()  # another supervisor does not forget the drain
        again = (run.start(0), run.start(1))
        wait_until(lambda: any(one.command == "pause" for one in run.events(CommandAccepted)) and run.is_paused())
        refused = run.give("resume", hosts.NAME)
        assert refused.returncode == ExitCode.USAGE
        assert "machine-1 is drained" in refused.stderr
        assert run.resume_steps() == [0]
        run.do("gpu", "return", hosts.NAME, "machine-1")
        run.do("resume", hosts.NAME)
        assert run.await_step(2) > step
        assert run.resume_steps() == [0, step]
        run.stop(*again)
