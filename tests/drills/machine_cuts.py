"""Trains on two machines with networks of their own, and cuts the cable between them or kills the server of their bus.

What has to hold: a cut below a minute ends nothing, a longer one is a lost machine and no other cause, no process is
left, and the run ends with the weights of a run on one machine. Run as a program it prints one JSON line:

    python -m tests.drills.machine_cuts FOLDER SECONDS     a cut of so many seconds; 0 kills the server instead
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path

from prime_train.core.rundir import RunDir
from prime_train.events import AttemptEnded, CheckpointSaved
from tests.drills.networks import Networks, joined_networks
from tests.unit.cli.commands import wait_until
from tests.unit.supervise.machines import hosts

PORT = 29_400
STEPS = 200
_LENGTH = (f"run.max_steps={STEPS}", "checkpoint.interval_steps=20", f"eval.interval_steps={STEPS}")
_KILLS = 3
_SECRET = "the secret of the drill"
_NEVER_FORKED = 99  # an attempt: the server of the forks would start trainers in its own network


@dataclass
class MachineCounts:
    """What was seen. `ends`: the outcome of each attempt, with its cause."""

    cut_s: float
    kills: int = 0
    ends: list[str] = field(default_factory=list)
    codes: list[int] = field(default_factory=list)
    trainers_in_cut: int = 0  # of the machine that was cut off, at the end of a cut of more than two minutes
    recovered_s: float = 0.0  # from the end of the disturbance to the next checkpoint
    different_weights: int = 0
    left: list[str] = field(default_factory=list)  # processes after the end
    output: list[str] = field(default_factory=list)  # only where a machine failed


def disturb(folder: Path, cut_s: float) -> MachineCounts:
    """One run of two machines. `cut_s` 0: its server is killed three times."""
    hosts.write(folder)
    settings = (*hosts.set_processes(2), *_LENGTH)
    alone = hosts.train_alone(folder / "1", *settings)
    counts = MachineCounts(cut_s)
    with joined_networks(2) as networks, ExitStack() as stack:
        addresses = f"{networks.address(0)},{networks.address(1)}"
        machines: list[subprocess.Popen[str]] = [
            stack.enter_context(
                hosts.machine(
                    folder,
                    rank,
                    PORT,
                    *settings,
                    "parallel.machines=2",
                    addresses=addresses,
                    within=networks.enter(rank),
                    secret=_SECRET,
                    fork_from_attempt=_NEVER_FORKED,
                )
            )
            for rank in range(2)
        ]
        run_dir = hosts.run_dir(folder)
        _wait_for_save(run_dir, 1)
        (_cut if cut_s else _kill_servers)(networks, run_dir, counts)
        began_s, saves = time.monotonic(), _count_saves(run_dir)
        wait_until(lambda: _count_saves(run_dir) > saves or machines[0].poll() is not None)
        counts.recovered_s = round(time.monotonic() - began_s, 1)
        texts = [machine.communicate(timeout=hosts.LIMIT_S)[0] for machine in machines]
        counts.codes = [machine.returncode for machine in machines]
        counts.left = [command for rank in range(2) for command in networks.list_processes(rank).values()]
    ended = [event for event in hosts.read_events(run_dir) if isinstance(event, AttemptEnded)]
    counts.ends = [f"{event.outcome}: {event.what}" for event in ended]
    if any(counts.codes):
        counts.output = [text[-4000:] for text in texts]
        counts.different_weights = 1
    else:
        counts.different_weights = int(hosts.read_weights(run_dir, STEPS) != hosts.read_weights(alone, STEPS))
    return counts


def _cut(networks: Networks, _run_dir: RunDir, counts: MachineCounts) -> None:
    networks.cut(1)
    time.sleep(counts.cut_s)  # how long a cut lasts is an input, and no event to wait for
    if counts.cut_s > 120:
        commands = networks.list_processes(1).values()
        counts.trainers_in_cut = sum("prime_train.trainer" in command for command in commands)
    networks.mend(1)


def _kill_servers(networks: Networks, run_dir: RunDir, counts: MachineCounts) -> None:
    for _ in range(_KILLS):
        saves = _count_saves(run_dir)
        wait_until(lambda: len(_list_servers(networks)) == 1)  # a save may come before the server is there again
        os.kill(_list_servers(networks)[0], signal.SIGKILL)
        counts.kills += 1
        _wait_for_save(run_dir, saves + 1)


def _list_servers(networks: Networks) -> list[int]:
    """The servers of the bus on machine 0. One that was killed has no command any more."""
    commands = networks.list_processes(0).items()
    return [pid for pid, command in commands if "nats-server" in command.partition(" ")[0]]


def _wait_for_save(run_dir: RunDir, count: int) -> None:
    wait_until(partial(_has_saves, run_dir, count))


def _has_saves(run_dir: RunDir, count: int) -> bool:
    return _count_saves(run_dir) >= count


def _count_saves(run_dir: RunDir) -> int:
    return sum(isinstance(event, CheckpointSaved) for event in hosts.read_events(run_dir))


def main() -> None:
    folder, cut_s = sys.argv[1:]
    os.environ.setdefault("PYTEST_VERSION", "drill")  # the run on one machine is forked: see fork_server
    sys.stdout.write(json.dumps(asdict(disturb(Path(folder), float(cut_s)))) + "\n")


if __name__ == "__main__":
    main()
