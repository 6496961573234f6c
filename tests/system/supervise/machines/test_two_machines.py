"""Real trainings on two machines, which are two folders and two addresses of loopback: FSDP2 over gloo."""

import json
import os
import signal
from contextlib import ExitStack
from pathlib import Path

from prime_train.checkpoints import layout
from prime_train.core.process_id import identify
from prime_train.core.rundir import RunDir
from prime_train.events import AttemptEnded, CheckpointSaved, Event, TrainerStarted, read
from tests.unit.cli.commands import wait_until
from tests.unit.supervise.machines import hosts


def _events(run_dir: RunDir) -> list[Event]:
    return [record.event for record in read(run_dir.events)]


def _weights(run_dir: RunDir, step: int) -> dict[str, str]:
    """The hash of every file of a checkpoint that holds tensors."""
    files = json.loads((run_dir.checkpoint(step) / layout.MANIFEST).read_text(encoding="utf-8"))["files"]
    return {name: about["sha256"] for name, about in files.items() if name.endswith(".distcp")}


def _layout(processes: int) -> tuple[str, ...]:
    return (f"parallel.processes={processes}", f"parallel.dp_shard={processes}", "batch.global_batch=8")


def test_weights_are_those_of_one_machine(tmp_path: Path) -> None:
    """Two machines with two processes each, against one machine with four."""
    hosts.write(tmp_path)
    alone = hosts.train_alone(tmp_path / "1", *_layout(4))
    port, settings = hosts.free_port(), (*_layout(4), "parallel.machines=2")
    with hosts.machine(tmp_path, 0, port, *settings) as first, hosts.machine(tmp_path, 1, port, *settings) as second:
        output, of_second = (process.communicate(timeout=hosts.LIMIT_S)[0] for process in (first, second))
    assert (first.returncode, second.returncode) == (0, 0), output + of_second
    together = hosts.run_dir(tmp_path)
    newest = layout.newest_complete(together.checkpoints)
    assert newest is not None
    assert newest.step == 12
    assert len(_weights(together, 12)) == 4
    assert _weights(together, 12) == _weights(alone, 12)
    ranks = {event.rank for event in _events(together) if isinstance(event, TrainerStarted)}
    assert ranks == {0, 1, 2, 3}
    assert not list(hosts.run_dir(tmp_path, 1).checkpoints.iterdir()), "only machine 0 keeps checkpoints"


def test_a_run_survives_kills_on_another_machine(tmp_path: Path) -> None:
    """The trainer of machine 1 is killed, then its supervisor: the weights stay those of a run without kills."""
    hosts.write(tmp_path)
    length = ("run.max_steps=150", "checkpoint.interval_steps=15", "eval.interval_steps=150")
    alone = hosts.train_alone(tmp_path / "1", *_layout(2), *length)
    port, settings = hosts.free_port(), (*_layout(2), *length, "parallel.machines=2")
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
    ended = {event.attempt: event for event in _events(run_dir) if isinstance(event, AttemptEnded)}
    assert "machine 1 (127.0.0.2): its trainer was killed by signal 9" in ended[1].what
    assert "machine 1 (127.0.0.2) was lost" in ended[2].what
    assert [ended[number].newest_complete > 0 for number in (1, 2)] == [True, True]
    assert ended[3].outcome == "finished"
    assert orphan is not None
    assert not orphan.alive, "a trainer ends with its supervisor"
    assert _weights(run_dir, 150) == _weights(alone, 150)


def _wait_for_checkpoint(run_dir: RunDir, *, attempt: int) -> None:
    """Wait until this attempt has saved one more checkpoint than it began with."""
    wait_until(
        lambda: any(isinstance(event, CheckpointSaved) and event.attempt == attempt for event in _events(run_dir))
    )


def _trainer_pid(run_dir: RunDir, *, attempt: int) -> int:
    started = [event for event in _events(run_dir) if isinstance(event, TrainerStarted)]
    return next(event.pid for event in started if event.attempt == attempt)


def test_a_machine_that_never_comes_ends_the_run(tmp_path: Path) -> None:
    hosts.write(tmp_path)
    settings = (*_layout(2), "parallel.machines=2", "prime_train.heartbeat.join_limit_s=1")
    with hosts.machine(tmp_path, 0, hosts.free_port(), *settings) as first:
        output, _ = first.communicate(timeout=hosts.LIMIT_S)
    assert first.returncode == 5, output
    assert "machine 1 (127.0.0.2) did not come within 1 s" in output
    assert sum(isinstance(event, AttemptEnded) for event in _events(hosts.run_dir(tmp_path))) == 1


def test_without_machine_0_a_machine_ends_too(tmp_path: Path) -> None:
    hosts.write(tmp_path)
    settings = (*_layout(2), "parallel.machines=2", "prime_train.heartbeat.join_limit_s=1")
    with hosts.machine(tmp_path, 1, hosts.free_port(), *settings) as second:
        output, _ = second.communicate(timeout=hosts.LIMIT_S)
    assert second.returncode == 4, output
    assert "machine 0 (127.0.0.1) did not answer" in output
