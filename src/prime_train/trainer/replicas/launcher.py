"""Starts the replicas of an attempt, and starts a lost one again.

python -m prime_train.trainer.replicas.launcher RUN_DIR --attempt N --resume-step S

The supervisor starts it in the place of torchrun. Never imports torch. Exits with 0 when the replica that leads has
finished, and with the code of a failed one when no replica is left: a new attempt then starts from a checkpoint.

On several machines each has one, for the replicas of its own numbers. That of machine 0 has the lighthouse, and the
others get the address by the relay.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import FrameType

from prime_train.core.machine_secret import require_secret
from prime_train.core.machines import ADDRESSES, LOOPBACK, Machines, read_machines
from prime_train.core.python_child import own_module
from prime_train.core.replica_files import LIGHTHOUSE
from prime_train.core.rundir import RunDir, make_folder, write_atomic
from prime_train.events import EventLog, LighthouseLost, ReplicaLost, TrainerFailed
from prime_train.spec import RunSpec
from prime_train.trainer.attempt import (
    HERE_ENV,
    HOST_ENV,
    REPLICA_ENV,
    REPLICAS_ENV,
    RESTART_ENV,
    read_run,
    watch_supervisor,
)
from prime_train.trainer.loops.metrics import drop_after
from prime_train.trainer.replicas.drained import count_replicas, find_drained
from prime_train.trainer.replicas.groups import GroupProcesses, forget_times, start_group
from prime_train.trainer.replicas.judge import (
    HangLimits,
    SeenSteps,
    WatchedReplica,
    compute_restart_s,
    count_failures,
    find_hung,
    judge_end,
    judge_other_machine,
)
from prime_train.trainer.replicas.life_sign import folder_of, read_sign, take_failure
from prime_train.trainer.replicas.limits import DEFAULT_LIMIT_S
from prime_train.trainer.replicas.round_plan import ENDLESS_JOIN_S, choose_sum_limit_s

_TURN_S = 0.25  # a turn is 0.5 ms, and the training may have one core
_END_LIMIT_S = 10.0  # for the other replicas to end after the leader has finished
_LATE_S = 5.0  # for the signs of other machines to arrive


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m prime_train.trainer.replicas.launcher", description="Start them.")
    parser.add_argument("run_dir", type=Path, metavar="RUN_DIR")
    parser.add_argument("--attempt", type=int, required=True, help="number of this attempt, from 1")
    parser.add_argument("--resume-step", type=int, default=0, help="checkpoint to resume from; 0 = none")
    given = parser.parse_args(arguments)
    run_dir = RunDir(given.run_dir.resolve())
    watch_supervisor()
    run = read_run(run_dir)
    # Here, because any replica may be the first to write a line.
    drop_after(run_dir.metrics, given.resume_step)
    machines = read_machines(os.environ)
    if machines is not None:  # what torchft listens on needs no secret, so at least the machines have one
        require_secret(machines, os.environ)
    launcher = ReplicaLauncher(run, run_dir, given.attempt, given.resume_step, machines)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, launcher.on_signal)
    try:
        return launcher.run_attempt()
    finally:
        launcher.end()


@dataclass(slots=True)
class ReplicaLauncher:
    """The processes of one attempt on this machine."""

    run: RunSpec
    run_dir: RunDir
    attempt: int
    resume_step: int
    machines: Machines | None = None  # None = one machine
    folder: Path = field(init=False)
    _events: EventLog = field(init=False)
    _replicas: dict[int, WatchedReplica] = field(default_factory=dict)
    _processes: dict[int, GroupProcesses] = field(default_factory=dict)
    _restarts: dict[int, int] = field(default_factory=dict)
    _reasons: dict[int, str] = field(default_factory=dict)  # why a replica was killed
    _lighthouse: subprocess.Popen[str] | None = None
    _seen: SeenSteps = field(default_factory=SeenSteps)
    _last_failure: TrainerFailed | None = None
    _drained: dict[int, str] = field(default_factory=dict)  # replica, and the GPU without which the run goes on
    _freed: set[int] = field(default_factory=set)  # those among them whose end is reported
    _numbers: range = field(init=False)  # of the replicas of this machine
    _over_since_s: float | None = None

    def __post_init__(self) -> None:
        first = self._rank * self.run.parallel.replicas_here
        self._numbers = range(first, first + count_replicas(self.run, os.environ.get("CUDA_VISIBLE_DEVICES")))
        self.folder = folder_of(self.run_dir, self.attempt)
        self._events = EventLog(self.run_dir.events, f"trainer-{self.attempt:03d}-replicas")

    def run_attempt(self) -> int:
        """Start all replicas, and look at them until the attempt is over. Returns the exit code."""
        make_folder(self.folder)
        if self._rank == 0:
            self._start_lighthouse()
        for number in self._numbers:
            self._start(number, self.resume_step)
        while (code := self._judge_end()) is None:
            self._look()
            time.sleep(_TURN_S)
        if code:
            self._report_failure()
            for process in self._processes.values():
                process.kill()
        return code if code >= 0 else 128 - code

    @property
    def _rank(self) -> int:
        return 0 if self.machines is None else self.machines.rank

    def _judge_end(self) -> int | None:
        replicas = list(self._replicas.values())
        if self._rank:
            return judge_other_machine(replicas, self._seen)
        others = self._list_others()
        code = judge_end(replicas, self._seen, self.resume_step, others)
        if not code or not others:
            self._over_since_s = None
            return code
        # The last sign of a replica on another machine may still be on the way.
        self._over_since_s = self._over_since_s or time.monotonic()
        return code if time.monotonic() > self._over_since_s + _LATE_S else None

    def _list_others(self) -> list[WatchedReplica]:
        """The replicas of the other machines that have joined, by their signs, which the relay writes."""
        layout = self.run.parallel
        signs = ((number, read_sign(self.folder, number)) for number in range(layout.replicas_here, layout.replicas))
        return [WatchedReplica(number, 0.0, sign) for number, sign in signs if sign is not None]

    def _look(self) -> None:
        now_s = time.monotonic()
        if self._lighthouse is not None and self._lighthouse.poll() is not None:
            what = f"it ended with exit code {self._lighthouse.returncode}"
            self._start_lighthouse()
            self._events.append(LighthouseLost(self.attempt, what))
        for number, one in self._replicas.items():
            self._replicas[number] = one = self._read(one, now_s)
        replicas = list(self._replicas.values())
        ends_hangs = self.run.prime_train.watch.hang == "restart"
        hung = find_hung(replicas, self._limits(), self._seen, now_s) if ends_hangs else {}
        for number, why in hung.items():
            self._reasons.setdefault(number, f"it hung: {why}")
            self._processes[number].kill()
        self._end_drained()
        if self._judge_end() is None and self._over_since_s is None and not self._is_ending(replicas):
            for one in replicas:
                if one.exit_code and one.number not in self._drained and now_s >= one.ended_s + self._restart_s(one):
                    self._restart(one)

    def _read(self, one: WatchedReplica, now_s: float) -> WatchedReplica:
        """The replica as it is. The exit code is looked at first: the last sign is written before it."""
        process = self._processes[one.number]
        code = process.poll()
        sign = read_sign(self.folder, one.number)
        if sign is None or sign.pid != process.pid:  # half of a write, or that of the process before
            sign = one.sign
        if sign is not None:
            self._seen = self._seen.add(sign.step, now_s)
        if code is not None and one.exit_code is None:
            one = replace(one, ended_s=now_s)
            one = replace(one, failures=count_failures(one) if code else 0)
            if code:
                self._report_loss(replace(one, sign=sign, exit_code=code))
        return replace(one, sign=sign, exit_code=code)

    def _end_drained(self) -> None:
        """End the replicas on drained GPUs. One that has ended by itself is reported as free, too."""
        drained = find_drained(self.run, self.run_dir, self.attempt, self._drained)
        self._drained = {number: gpu for number, gpu in drained.items() if number in self._replicas}
        self._freed &= self._drained.keys()
        for number, gpu in self._drained.items():
            if self._replicas[number].exit_code is None:
                self._reasons.setdefault(number, f"{gpu} is drained")
                self._processes[number].kill()
            elif number not in self._freed:
                self._report_loss(self._replicas[number])

    def _is_ending(self, replicas: Sequence[WatchedReplica]) -> bool:
        """Whether the run stops or is at its last step: a replica that starts then would find no other one."""
        stages = {one.sign.stage for one in replicas if one.sign is not None and one.exit_code in (None, 0)}
        return bool(stages & {"done", "left"}) or self.run_dir.stop_request(self.attempt).exists()

    def _restart_s(self, one: WatchedReplica) -> float:
        settings = self.run.prime_train.restart
        return compute_restart_s(one.failures, settings.backoff_s, settings.backoff_max_s)

    def _restart(self, one: WatchedReplica) -> None:
        """Start a lost replica again. It reads no checkpoint, because the others have a newer state for it."""
        self._restarts[one.number] = self._restarts.get(one.number, 0) + 1
        self._start(one.number, 0 if self._seen.step else self.resume_step, one.failures)

    def _start(self, number: int, resume_step: int, failures: int = 0) -> None:
        arguments = (str(self.run_dir.path), "--attempt", str(self.attempt), "--resume-step", str(resume_step))
        variables = {
            REPLICA_ENV: str(number),
            REPLICAS_ENV: str(len(self._numbers) if self.machines is None else self.run.parallel.replicas),
            RESTART_ENV: str(self._restarts.get(number, 0)),
            "RUST_LOG": _log_level(),
        }
        if self.machines is not None:  # a replica is whole on one machine, so its ranks know of no other
            here = str(self.run.parallel.replicas_here)
            variables |= {ADDRESSES: "", HOST_ENV: self.machines.own, HERE_ENV: here}
        size = self.run.parallel.group_processes
        self._processes[number] = start_group(start_replica, arguments, variables, number - self._numbers.start, size)
        self._replicas[number] = WatchedReplica(number, time.monotonic(), failures=failures)

    def _start_lighthouse(self) -> None:
        """Start a lighthouse, and write its address for the replicas. Raises OSError, TimeoutError."""
        layout = self.run.parallel
        # One that comes back must not begin without those that are in a round, which may be a long one.
        waits = ("--join-limit-s", str(ENDLESS_JOIN_S)) if layout.sync_every else ()
        host = LOOPBACK if self.machines is None else self.machines.own
        options = ("--min-replicas", str(layout.min_replicas), "--host", host, *waits)
        command = own_module("prime_train.trainer.replicas.lighthouse", *options)
        pipe = subprocess.PIPE
        self._lighthouse = subprocess.Popen(
            command, stdin=pipe, stdout=pipe, text=True, env=os.environ | {"RUST_LOG": _log_level()}
        )
        assert self._lighthouse.stdout is not None
        address = self._lighthouse.stdout.readline().strip()
        if address:  # else it has ended, and the next turn starts another one
            write_atomic(self.folder / LIGHTHOUSE, address)

    def _limits(self) -> HangLimits:
        heartbeat = self.run.prime_train.heartbeat
        return HangLimits(
            startup_s=heartbeat.startup_limit_s,
            step_s=heartbeat.step_limit_s,
            slow_s=heartbeat.slow_phase_limit_s,
            sum_s=choose_sum_limit_s(self.run) or DEFAULT_LIMIT_S,
        )

    def _report_failure(self) -> None:
        """Write why the last replica ended, as a trainer without replicas does."""
        if self._last_failure is not None:
            self._events.append(self._last_failure)

    def on_signal(self, number: int, _frame: FrameType | None) -> None:
        """Pass a request to stop on to every replica."""
        for process in self._processes.values():
            process.send_signal(number)

    def end(self) -> None:
        """End what still runs: first the replicas, which leave by themselves when the leader has finished."""
        until_s = time.monotonic() + _END_LIMIT_S
        for process in self._processes.values():
            with suppress(subprocess.TimeoutExpired):
                process.wait(max(0.0, until_s - time.monotonic()))
            if process.poll() is None:
                process.kill()
                process.wait()
        if self._lighthouse is not None:
            self._lighthouse.kill()
            self._lighthouse.wait()

    def _report_loss(self, one: WatchedReplica) -> None:
        what, size = self._reasons.pop(one.number, ""), self.run.parallel.group_processes
        gpus = (self._drained[one.number],) if one.number in self._drained else ()
        if gpus:
            self._freed.add(one.number)
        failure = take_failure(self.folder, one.number, size)
        forget_times(self.run_dir.rank_times(self.attempt), one.number, size)
        # After a signal to one rank, the others write that their peer is gone.
        if failure is not None and (one.exit_code or 0) >= 0:
            self._last_failure = failure
            what = what or failure.what
        step = one.sign.step if one.sign is not None else 0
        what = what or describe_exit(one.exit_code or 0)
        self._events.append(ReplicaLost(self.attempt, one.number, step, what, self._restart_s(one), gpus))


def start_replica(arguments: Sequence[str], variables: Mapping[str, str]) -> subprocess.Popen[bytes]:
    """One process of a replica. Raises OSError."""
    command = own_module("prime_train.trainer", *arguments)
    return subprocess.Popen(command, stdin=subprocess.DEVNULL, env=os.environ | variables)


def _log_level() -> str:
    return os.environ.get("RUST_LOG", "warn")  # by default torchft writes several lines in each step


def describe_exit(code: int) -> str:
    return f"it was killed by signal {-code}" if code < 0 else f"it ended with exit code {code}"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
