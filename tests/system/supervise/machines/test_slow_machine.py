"""A machine that is slower than the others is named, although the watch of machine 0 sees only its own files."""

from pathlib import Path

from prime_train.events import AlarmRaised
from tests.unit.cli.commands import wait_until
from tests.unit.supervise.machines import hosts


def test_the_slow_rank_of_another_machine_is_named_and_no_other_one(tmp_path: Path) -> None:
    hosts.write(tmp_path)
    endless = ("run.max_steps=100000", "checkpoint.interval_steps=100000", "parallel.machines=2")
    port, settings = hosts.free_port(), (*hosts.set_processes(4), *endless)

    def slow() -> list[AlarmRaised]:
        events = hosts.read_events(hosts.run_dir(tmp_path))
        return [event for event in events if isinstance(event, AlarmRaised) and event.name == "slow_rank"]

    with (
        hosts.machine(tmp_path, 0, port, *settings, fork_from_attempt=2, harm="forward 0.1,0.1"),
        hosts.machine(tmp_path, 1, port, *settings, fork_from_attempt=2, harm="forward 0.1,0.2"),
    ):
        wait_until(lambda: bool(slow()))
    assert {alarm.subject for alarm in slow()} == {"rank 3"}
