"""Real trainings on two machines, which are two folders and two addresses of loopback: FSDP2 over gloo."""

from pathlib import Path

from prime_train.checkpoints import layout
from prime_train.events import AttemptEnded, TrainerStarted
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
