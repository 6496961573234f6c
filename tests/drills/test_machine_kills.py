"""Processes of the second of two machines are killed: the run goes on, with the weights of a run without kills."""

import os
import signal
from contextlib import ExitStack
from pathlib import Path

import pytest

from prime_train.core.process_id import identify
from prime_train.core.rundir import RunDir
from prime_train.events import AttemptEnded, CheckpointSaved, TrainerStarted
from tests.unit.cli.commands import wait_until
from tests.unit.supervise.machines import hosts


@pytest.mark.timeout(900)  # five trainings, on a busy machine
def test_a_run_survives_kills_on_another_machine(tmp_path: Path) -> None:
    """The trainer of machine 1 is killed, then its supervisor: the weights stay those of a run without kills."""
    hosts.write(tmp_path)
    length = ("run.max_steps=150", "checkpoint.interval_steps=15", "eval.interval_steps=150")
    alone = hosts.train_alone(tmp_path / "1", *hosts.set_processes(2), *length)
    port, settings = hosts.free_port(), (*hosts.set_processes(2), *length, "parallel.machines=2")
    run_dir, other = hosts.run_dir(tmp_path), hosts.run_dir(tmp_path, 1)
    with ExitStack() as stack:
        first, second = (
            stack.enter_context(hosts.machine(tmp_path, rank, port, *settings, fork_from_attempt=3)) for rank in (0, 1)
        )
        _wait_for_checkpoint(run_dir, attempt=1)
        os.kill(_trainer_pid(other, attempt=1), signal.SIGKILL)
        _wait_for_checkpoint(run_dir, attempt=2)
        orphan = identify(_trainer_pid(other, attempt=2))
        second.kill()
        second = stack.enter_context(hosts.machine(tmp_path, 1, port, *settings, fork_from_attempt=3))
        output, of_second = (process.communicate(timeout=hosts.LIMIT_S)[0] for process in (first, second))
    assert (first.returncode, second.returncode) == (0, 0), output + of_second
    ended = {event.attempt: event for event in hosts.read_events(run_dir) if isinstance(event, AttemptEnded)}
    assert "machine 1 (127.0.0.2): its trainer was killed by signal 9" in ended[1].what
    assert "machine 1 (127.0.0.2) was lost" in ended[2].what
    assert [ended[number].newest_complete > 0 for number in (1, 2)] == [True, True]
    assert ended[3].outcome == "finished"
    assert orphan is not None
    assert not orphan.alive, "a trainer ends with its supervisor"
    assert hosts.read_weights(run_dir, 150) == hosts.read_weights(alone, 150)


def _wait_for_checkpoint(run_dir: RunDir, *, attempt: int) -> None:
    """Wait until this attempt has saved one more checkpoint than it began with."""
    wait_until(
        lambda: any(
            isinstance(event, CheckpointSaved) and event.attempt == attempt for event in hosts.read_events(run_dir)
        )
    )


def _trainer_pid(run_dir: RunDir, *, attempt: int) -> int:
    started = [event for event in hosts.read_events(run_dir) if isinstance(event, TrainerStarted)]
    return next(event.pid for event in started if event.attempt == attempt)
