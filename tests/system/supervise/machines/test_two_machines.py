"""Real trainings on two machines, which are two folders and two addresses of loopback: FSDP2 over gloo."""

import subprocess
import sys
from pathlib import Path

from prime_train.checkpoints import layout
from prime_train.core.plans import list_versions, read_plan
from prime_train.core.rank_times import read_all_times
from prime_train.events import AttemptEnded, Progress, SettingsApplied, TrainerStarted
from tests.unit.cli.commands import wait_until
from tests.unit.supervise.machines import hosts


def test_weights_are_those_of_one_machine(tmp_path: Path) -> None:
    """Two machines with two processes each, against one machine with four."""
    hosts.write(tmp_path)
    alone = hosts.train_alone(tmp_path / "1", *hosts.set_processes(4))
    port, settings = hosts.free_port(), (*hosts.set_processes(4), "parallel.machines=2")
    with hosts.machine(tmp_path, 0, port, *settings) as first, hosts.machine(tmp_path, 1, port, *settings) as second:
        output, of_second = (process.communicate(timeout=hosts.LIMIT_S)[0] for process in (first, second))
    assert (first.returncode, second.returncode) == (0, 0), output + of_second
    together = hosts.run_dir(tmp_path)
    newest = layout.newest_complete(together.checkpoints)
    assert newest is not None
    assert newest.step == 12
    assert len(hosts.read_weights(together, 12)) == 4
    assert hosts.read_weights(together, 12) == hosts.read_weights(alone, 12)
    ranks = {event.rank for event in hosts.read_events(together) if isinstance(event, TrainerStarted)}
    assert ranks == {0, 1, 2, 3}
    assert not list(hosts.run_dir(tmp_path, 1).checkpoints.iterdir()), "only machine 0 keeps checkpoints"


def test_a_change_reaches_the_ranks_of_both_machines_at_one_step(tmp_path: Path) -> None:
    """The weights are those of one machine that makes the same changes at the same steps."""
    hosts.write(tmp_path)
    settings = (*hosts.set_processes(2), "run.max_steps=100000", "checkpoint.interval_steps=100000")
    port, together = hosts.free_port(), hosts.run_dir(tmp_path)

    def count(kind: type) -> int:
        return sum(isinstance(event, kind) for event in hosts.read_events(together))

    def change(value: str) -> bool:
        command = [sys.executable, "-m", "prime_train", "set", hosts.NAME, value]
        return subprocess.run(command, cwd=tmp_path / "0", check=False, timeout=hosts.LIMIT_S).returncode == 0

    def shorten() -> bool:
        """False where the run has passed the step meanwhile."""
        last = max(event.step for event in hosts.read_events(together) if isinstance(event, Progress)) + 300
        return change(f"run.max_steps={last}")

    with (
        hosts.machine(tmp_path, 0, port, *settings, "parallel.machines=2") as first,
        hosts.machine(tmp_path, 1, port, *settings, "parallel.machines=2") as second,
    ):
        wait_until(lambda: count(Progress) > 0)
        assert change("optim.lr=0.002")
        wait_until(lambda: count(SettingsApplied) == 1)
        wait_until(lambda: list(read_all_times(together.rank_times(1), together.path)) == [0, 1])
        wait_until(shorten)
        output, of_second = (process.communicate(timeout=hosts.LIMIT_S)[0] for process in (first, second))
    assert (first.returncode, second.returncode) == (0, 0), output + of_second
    applied = [event for event in hosts.read_events(together) if isinstance(event, SettingsApplied)]
    assert [event.version for event in applied] == [1, 2]
    there = hosts.run_dir(tmp_path, 1).settings
    plans = [read_plan(together.settings, version) for version in (1, 2)]
    assert [read_plan(there, version) for version in list_versions(there)] == plans

    alone = hosts.train_alike(tmp_path / "1", together, settings)
    newest = layout.newest_complete(together.checkpoints)
    assert newest is not None
    assert hosts.read_weights(alone, newest.step) == hosts.read_weights(together, newest.step)


def test_a_machine_that_never_comes_ends_the_run(tmp_path: Path) -> None:
    hosts.write(tmp_path)
    settings = (*hosts.set_processes(2), "parallel.machines=2", "prime_train.heartbeat.join_limit_s=1")
    with hosts.machine(tmp_path, 0, hosts.free_port(), *settings) as first:
        output, _ = first.communicate(timeout=hosts.LIMIT_S)
    assert first.returncode == 5, output
    assert "machine 1 (127.0.0.2) did not come within 1 s" in output
    assert sum(isinstance(event, AttemptEnded) for event in hosts.read_events(hosts.run_dir(tmp_path))) == 1


def test_without_machine_0_a_machine_ends_too(tmp_path: Path) -> None:
    hosts.write(tmp_path)
    settings = (*hosts.set_processes(2), "parallel.machines=2", "prime_train.heartbeat.join_limit_s=1")
    with hosts.machine(tmp_path, 1, hosts.free_port(), *settings) as second:
        output, _ = second.communicate(timeout=hosts.LIMIT_S)
    assert second.returncode == 4, output
    assert "machine 0 (127.0.0.1) did not answer" in output
