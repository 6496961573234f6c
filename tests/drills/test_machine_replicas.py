"""One of two machines with a replica each is killed: the other one trains on, and the machine comes back."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest

from prime_train.core.rundir import RunDir
from prime_train.events import AttemptEnded, CheckpointSaved, Event, Progress, ReplicaLost, ReplicasJoined
from prime_train.trainer.replicas.life_sign import read_sign
from tests.drills.networks import can_make_networks, joined_networks
from tests.unit.cli.commands import wait_until
from tests.unit.supervise.machines import hosts

pytest.importorskip("torchft", reason="torchft is not installed: pip install 'prime-train[replicas]'")
pytestmark = pytest.mark.timeout(900)
_NEVER_FORKED = 99
_SECRET = "the secret of the drill"
_LENGTH = ("run.max_steps=100000", "checkpoint.interval_steps=100", "eval.interval_steps=100000")
_ROWS = 127  # of a step, which takes long enough that a start takes some hundred steps alone
_BATCH = (f"batch.global_batch={_ROWS}", "schedule.kind=constant")
_LAYOUT = ("parallel.processes=2", "parallel.replicas=2", "parallel.machines=2", "parallel.collective_limit_s=20")
_MICRO_BATCH = "batch.micro_batch={}"


@dataclass(frozen=True)
class _Seen:
    """What the run has written on machine 0."""

    run_dir: RunDir

    def events(self, kind: type[Any]) -> list[Any]:
        found: list[Event] = hosts.read_events(self.run_dir)
        return [event for event in found if isinstance(event, kind)]

    def step(self) -> int:
        return max((event.step for event in self.events(Progress)), default=0)

    def members(self) -> tuple[str, ...]:
        joined = self.events(ReplicasJoined)
        return joined[-1].members if joined else ()

    def await_steps(self, *members: str) -> None:
        """Wait until these replicas have made some steps together."""
        wait_until(lambda: self.members() == members)
        reached = self.step()
        wait_until(lambda: self.step() > reached + 10)

    def lines(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.run_dir.metrics.read_text(encoding="utf-8").splitlines()]


def _kill_tree(follower: subprocess.Popen[str]) -> None:
    """A machine that loses its power: the follower, its guard, the launcher and the replica are gone at once."""
    for process in [psutil.Process(follower.pid), *psutil.Process(follower.pid).children(recursive=True)]:
        with suppress(psutil.NoSuchProcess):  # each ends with the one above it
            process.kill()


@pytest.mark.parametrize("rounds", [(), ("parallel.sync_every=5", "parallel.sync=diloco")])
def test_a_lost_machine_costs_its_replica_alone_and_comes_back(tmp_path: Path, rounds: tuple[str, ...]) -> None:
    hosts.write(tmp_path)
    port, seen = hosts.free_port(), _Seen(hosts.run_dir(tmp_path))
    with ExitStack() as stack:

        def start(rank: int) -> subprocess.Popen[str]:
            settings = (*_LENGTH, *_BATCH, *_LAYOUT, _MICRO_BATCH.format(2), *rounds)
            machine = hosts.machine(tmp_path, rank, port, *settings, fork_from_attempt=_NEVER_FORKED)
            return stack.enter_context(machine)

        first, second = start(0), start(1)
        seen.await_steps("0", "1")
        _kill_tree(second)
        wait_until(lambda: bool(seen.events(ReplicaLost)))
        seen.await_steps("0")
        second = start(1)
        seen.await_steps("0", "1")
        # Machine 0 gets the weights of machine 1, whose replica got them from machine 0 before.
        sign = read_sign(seen.run_dir.replicas(1), 0)
        assert sign is not None
        os.kill(sign.pid, signal.SIGKILL)
        wait_until(lambda: len(seen.events(ReplicaLost)) == 2)
        seen.await_steps("0", "1")
        # A change of settings reaches the machine that came back.
        change = [sys.executable, "-m", "prime_train", "set", hosts.NAME, f"run.max_steps={seen.step() + 200}"]
        subprocess.run(change, cwd=tmp_path / "0", check=True, timeout=hosts.LIMIT_S, capture_output=True)
        output, of_second = (process.communicate(timeout=hosts.LIMIT_S)[0] for process in (first, second))
    assert (first.returncode, second.returncode) == (0, 0), output + of_second
    assert [event.outcome for event in seen.events(AttemptEnded)] == ["finished"]
    lost = seen.events(ReplicaLost)
    assert [event.replica for event in lost] == [1, 0]
    assert "machine 1 (127.0.0.2) was lost" in lost[0].what
    assert seen.events(CheckpointSaved)[-1].step == len(seen.lines())
    _compare(seen, tmp_path, tolerance=1.0 if rounds else 0.02)  # in a round each replica learns from its own rows


@pytest.mark.skipif(not can_make_networks(), reason="network namespaces need root and iproute2")
def test_a_cut_machine_comes_back_and_an_attempt_goes_on_from_a_checkpoint(tmp_path: Path) -> None:
    """Also on addresses beyond loopback, and with a notice to one machine, which leaves alone."""
    hosts.write(tmp_path)
    seen = _Seen(hosts.run_dir(tmp_path))
    with joined_networks(2) as networks, ExitStack() as stack:
        addresses = ",".join(networks.address(rank) for rank in range(2))

        def start(rank: int) -> subprocess.Popen[str]:
            settings = (*_LENGTH, *_BATCH, *_LAYOUT, _MICRO_BATCH.format(2))
            place: dict[str, Any] = {"addresses": addresses, "within": networks.enter(rank), "secret": _SECRET}
            machine = hosts.machine(tmp_path, rank, 29_400, *settings, fork_from_attempt=_NEVER_FORKED, **place)
            return stack.enter_context(machine)

        first, second = start(0), start(1)
        seen.await_steps("0", "1")
        networks.cut(1)
        seen.await_steps("0")
        networks.mend(1)
        seen.await_steps("0", "1")
        wait_until(lambda: bool(seen.events(CheckpointSaved)))
        launchers = networks.list_processes(0).items()
        os.kill(next(pid for pid, command in launchers if "replicas.launcher" in command), signal.SIGKILL)
        wait_until(lambda: bool(seen.events(AttemptEnded)))
        wait_until(lambda: any(event.attempt == 2 for event in seen.events(ReplicasJoined)))
        seen.await_steps("0", "1")
        second.send_signal(signal.SIGTERM)
        seen.await_steps("0")
        first.send_signal(signal.SIGTERM)
        output, of_second = (process.communicate(timeout=hosts.LIMIT_S)[0] for process in (first, second))
    assert (first.returncode, second.returncode) == (75, 75), output + of_second
    assert [event.attempt for event in seen.events(AttemptEnded)] == [1, 2]
    assert [event.replica for event in seen.events(ReplicaLost)] == [1]
    assert "torchft listens on ports of 10.203.8.1" in output
    _compare(seen, tmp_path)


def _compare(seen: _Seen, root: Path, tolerance: float = 0.02) -> None:
    """The steps are those of a run on one machine without replicas."""
    lines = seen.lines()
    assert [line["step"] for line in lines] == list(range(1, len(lines) + 1))
    length = (_MICRO_BATCH.format(_ROWS), f"run.max_steps={len(lines)}", f"eval.interval_steps={len(lines)}")
    alone = _Seen(hosts.train_alone(root / "1", *_BATCH, *length)).lines()
    assert [line["tokens_seen"] for line in lines] == [line["tokens_seen"] for line in alone]
    assert [line["loss"] for line in lines] == pytest.approx([line["loss"] for line in alone], rel=tolerance)
