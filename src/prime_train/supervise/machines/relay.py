"""Stands for the trainers of the other machines: `python -m prime_train.supervise.machines.relay RUN_DIR ...`.

A process of an attempt on machine 0. It waits for the followers of the other machines, has each start its trainer, and
prints their output. Exits when one of them fails or is lost, and ends the others first. Decides nothing else: the
supervisor sees a process of the attempt exit. With replicas a machine may be lost and join again: it exits when too few
replicas live for the limit of a join.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from prime_train.core.errors import ExitCode, UserError
from prime_train.core.machines import SECRET, Machines, read_machines
from prime_train.core.plans import plan_path, read_plan, show_plan
from prime_train.core.process_id import parse_identity, signal_identity
from prime_train.core.rundir import RunDir
from prime_train.events import CheckpointUnreadable, EventLog, Phase, ReplicaLost, TrainerFailed, TrainerStarted, decode
from prime_train.supervise.machines import protocol
from prime_train.supervise.machines.channel import Channel
from prime_train.supervise.machines.post import Join, Post, open_post
from prime_train.supervise.machines.protocol import CONFIG_HASH, MISSING, ROLE, SILENT_S, Lost, Message
from prime_train.supervise.machines.rank_reports import keep_times
from prime_train.supervise.machines.replica_places import OtherReplicas

_TICK_S = 0.2
_END_TICK_S = 0.05
_REPORT_S = 30.0  # between events that name the machines that are waited for
_END_LIMIT_S = 6.0  # for the others to end; the supervisor kills this process after 10 s
_MOST_LOG_BYTES = 64 * 2**20  # of one machine in one attempt
_LEAVE_S = 0.3  # for the server to see that a machine has gone, which rank 0 sees at the same time
_CLOSE_LIMIT_S = 10.0  # to report the end of the run to every machine
_TAKEN = (CheckpointUnreadable, TrainerFailed, TrainerStarted)  # events of other machines; rank 0 writes the rest


class _Relay:
    """The machines of one attempt."""

    def __init__(
        self,
        machines: Machines,
        launch: Message,
        post: Post,
        processes: int,
        events: EventLog,
        run_dir: RunDir,
        replicas: OtherReplicas | None = None,
    ) -> None:
        self.machines = machines
        self.replicas = replicas
        self.plans = run_dir.settings  # the folder of changes of settings
        self.sent_plans: dict[int, int] = {}  # the newest version that each machine has
        self.post = post
        self.has_secret = bool(os.environ.get(SECRET))
        self.attempt = int(launch["attempt"])
        self.launch = launch
        self.times = run_dir.rank_times(self.attempt)
        self.stop_request = run_dir.stop_request(self.attempt)
        self.processes = processes  # of one machine
        self.events = events
        self.joined: dict[int, Channel] = {}
        self.exited: dict[int, int] = {}
        self.differences: dict[int, str] = {}  # of machines that may not join, and did not prove who they are
        self.logged_bytes: dict[int, int] = {}
        self.ending = False
        self.failed: int | None = None  # the exit code of this process

    def run(self, keep: Callable[[], None], is_stopping: Callable[[], bool], join_limit_s: float) -> None:
        """Wait for the machines, and for the first of them to fail; then end the others. Raises UserError."""
        began_s = reported_s = time.monotonic()
        while not is_stopping() and self.failed is None:
            self.post.pull(_TICK_S)
            self.turn()
            keep()
            now_s = time.monotonic()
            if not self.waits():
                if self.replicas is not None and self.replicas.lost and reported_s > began_s:
                    self.events.append(Phase(self.attempt, "train"))
                began_s = reported_s = now_s
            elif self.failed is None:
                if now_s - began_s > join_limit_s:
                    self.give_up(join_limit_s)
                elif now_s - reported_s > _REPORT_S or reported_s == began_s:
                    self.events.append(Phase(self.attempt, "setup", f"waits for {self.name_missing()}"))
                    reported_s = now_s
        self.end()

    def turn(self) -> None:
        for joining in self.post.take_joins():
            try:
                self._join(joining)
            except Lost:  # it has left already, and may come again
                joining.channel.close()
        for rank, channel in list(self.joined.items()):
            try:
                for message in channel.receive():
                    if rank in self.joined:
                        self._handle(rank, message)
                if rank in self.joined:
                    self._send_plans(rank, channel)
                    self._send_lighthouse(rank, channel)
            except Lost as error:
                self._lose(rank, str(error))

    def _join(self, joining: Join) -> None:
        rank, name = joining.rank, self.machines.name(joining.rank)
        there = self.joined.get(rank)
        if joining.problem:
            joining.channel.send({"kind": "refused", "why": joining.problem})
            joining.channel.close()
            if self.has_secret and self.replicas is None:
                _print(f"{name}: {joining.problem}")
                self._fail(rank, "config", f"{name}: {joining.problem}", ExitCode.RUN_FAILED)
            else:  # anyone on that machine may have sent it, or the others train: the attempt waits for the machine
                self.differences[rank] = joining.problem
        elif there is None:
            joining.channel.send(self.launch)
            self.joined[rank] = joining.channel
            self.sent_plans.pop(rank, None)
            if self.replicas is not None:
                self.replicas.begin(rank)
            _print(f"{name} has joined")
        else:
            joining.channel.close()
            if self.has_secret or there.silent_s > SILENT_S:
                self._lose(rank, "its supervisor was started again")

    def _send_plans(self, rank: int, channel: Channel) -> None:
        """Send each change of settings once. The ranks agree on the step by themselves, so a late one does no harm."""
        version = self.sent_plans.get(rank, 0) + 1
        while plan_path(self.plans, version).exists():
            try:
                text = show_plan(read_plan(self.plans, version))
            except (OSError, ValueError):  # the ranks here do not apply it either
                return
            channel.send({"kind": "plan", "version": version, "text": text})
            self.sent_plans[rank] = version
            version += 1

    def _send_lighthouse(self, rank: int, channel: Channel) -> None:
        if self.replicas is not None and (port := self.replicas.find_news(rank)) is not None:
            channel.send({"kind": "lighthouse", "port": port})

    def _handle(self, rank: int, message: Message) -> None:
        match message["kind"]:
            case "log":
                self._log(rank, message["text"])
            case "event":
                record = decode(message["line"])
                taken = _TAKEN if self.replicas is None else ReplicaLost  # whose failure ends nothing
                if record is not None and isinstance(record.event, taken) and record.event.attempt == self.attempt:
                    self.events.append(record.event)
            case "sign" if self.replicas is not None:
                self.replicas.keep_sign(rank, message["replica"], message["text"])
            case "times":
                keep_times(self.times, range(rank * self.processes, (rank + 1) * self.processes), message)
            case "exited":
                self.exited[rank] = code = message["code"]
                if code != 0 and not self.ending:
                    self._report_exit(rank, code)
            case "stop" if self.replicas is not None and self.replicas.count(self._live(rank)) >= self.replicas.least:
                self.joined[rank].send({"kind": "closed", "code": int(ExitCode.RESUMABLE)})
                self._lose(rank, f"it got {message['by']}")
            case "stop":
                _print(f"{self.machines.name(rank)} got {message['by']}: the run is asked to stop")
                ask_to_stop()
            case _:
                raise Lost(f"it sent {message['kind']}")

    def _log(self, rank: int, text: str) -> None:
        """Write the output of a trainer, up to a bound: what a machine sends must not fill the disk of machine 0."""
        before = self.logged_bytes.get(rank, 0)
        self.logged_bytes[rank] = before + len(text)
        if self.logged_bytes[rank] <= _MOST_LOG_BYTES:
            _print(text, end="")
        elif before <= _MOST_LOG_BYTES:
            _print(f"{self.machines.name(rank)}: the rest of its output is left out; it is in the log there")

    def _report_exit(self, rank: int, code: int) -> None:
        name, number = self.machines.name(rank), -code if code < 0 else code - 128
        _print(f"{name}: its trainer exited with {code}")
        if self.replicas is not None:
            if code == ExitCode.RUN_FAILED:  # each start would end by it, so the machine is not to come again by itself
                self.joined[rank].send(
                    {"kind": "refused", "why": "its replicas fail at their start: see the log there"}
                )
            self._lose(rank, f"its replicas ended with exit code {code}")
        elif 0 < number <= 64:
            self._fail(rank, "signal", f"{name}: its trainer was killed by signal {number}", code)
        else:
            self._end_with(code)

    def _lose(self, rank: int, why: str) -> None:
        """End the attempt, or with replicas wait for the machine to come again."""
        self.joined.pop(rank).close()
        ended, what = self.exited.setdefault(rank, 1), f"{self.machines.name(rank)} was lost: {why}"
        if self.ending or ended == 0:
            return
        if self.replicas is None:
            self._fail(rank, "hardware", what, 1)
            return
        del self.exited[rank]
        _print(what)
        for lost in self.replicas.lose(rank, what):
            self.events.append(lost)

    def _live(self, but: int = 0) -> int:
        """How many other machines train."""
        return sum(rank not in self.exited and rank != but for rank in self.joined)

    def waits(self) -> bool:
        """Whether no step is made before another machine comes."""
        if self.replicas is None:
            return bool(self.missing())
        return self.replicas.count(self._live()) < self.replicas.least and 0 not in self.exited.values()

    def _fail(self, rank: int, cause_class: str, what: str, code: int) -> None:
        why, fix = _REASONS[cause_class]
        first_rank, where = rank * self.processes, self.machines.name(rank)
        self.events.append(TrainerFailed(self.attempt, first_rank, cause_class, what, why, fix, where))
        _print(what)
        self._end_with(code)

    def _end_with(self, code: int) -> None:
        """The first exit code counts. The kernel keeps its low eight bits, and a failure must not become a 0."""
        if self.failed is None:
            self.failed = code % 256 or 1

    def missing(self) -> list[int]:
        return [rank for rank in range(1, self.machines.count) if rank not in self.joined and rank not in self.exited]

    def name_missing(self) -> str:
        return ", ".join(map(self.machines.name, self.missing()))

    def give_up(self, limit_s: float) -> None:
        """A machine has not come."""
        first = self.missing()[0]
        what = f"{self.name_missing()} did not come within {limit_s:g} s"
        if self.replicas is not None:
            there = self.replicas.count(self._live())
            what = f"{what}, and {there} of the {self.replicas.least} replicas that a step needs are there"
        if first in self.differences:
            what = f"{what}; one that claimed to be it was refused: {self.differences[first]}"
        self._fail(first, MISSING, what, ExitCode.OUT_OF_REACH)

    def end(self) -> None:
        """End the trainers of the other machines, and take what they report last."""
        if self.failed is None:
            self._lose_gone()
        self.ending = True
        for rank, channel in list(self.joined.items()):
            try:
                channel.send({"kind": "end", "stops": self.stop_request.exists()})
            except Lost as error:
                self._lose(rank, str(error))
        until_s = time.monotonic() + _END_LIMIT_S
        while any(rank not in self.exited for rank in self.joined) and time.monotonic() < until_s:
            self.post.pull(_END_TICK_S)
            self.turn()

    def _lose_gone(self) -> None:
        """A machine that has gone is the cause where rank 0 noticed first, because its collective failed at once."""
        self.post.pull(_LEAVE_S)
        self.turn()
        for rank in [rank for rank in self.joined if self.post.is_gone(rank)]:
            self._lose(rank, "its connection has ended")


_REASONS = {
    "config": ("all machines must train one run", "copy the config to every machine, and install one version"),
    "signal": ("something on that machine ended it", "look at that machine: its memory, its scheduler"),
    "hardware": (
        "the machine, its supervisor or the network to it has failed",
        "look at that machine; the run goes on when `prime-train run` runs there again",
    ),
    MISSING: (
        "every machine of the run trains a part of each step",
        "start the same command there, or raise prime_train.heartbeat.join_limit_s",
    ),
}


def _print(text: str, end: str = "\n") -> None:
    """Write to the log of the relay, which is searched for causes like that of a trainer.

    JSON can hold half a character, which no file stores.
    """
    sys.stdout.write(text.encode(errors="replace").decode() + end)
    sys.stdout.flush()


def ask_to_stop() -> None:
    """Send the supervisor of this process the notice of a scheduler.

    Several machines may get one at the same time, and a second SIGTERM would end the run without a save.
    """
    signal_identity(parse_identity(os.environ["PRIME_TRAIN_SUPERVISOR"]), signal.SIGUSR1)


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog=f"python -m {__spec__.name if __spec__ else ROLE}")
    parser.add_argument("run_dir", type=Path, metavar="RUN_DIR")
    for name in ("--attempt", "--resume-step", "--micro-batch", "--processes"):
        parser.add_argument(name, type=int, required=True)
    parser.add_argument("--replicas", type=int, default=0, help="of each machine; 0 = every machine is needed")
    parser.add_argument("--min-replicas", type=int, default=1)
    parser.add_argument("--join-limit-s", type=float, required=True)
    given = parser.parse_args(arguments)
    machines = read_machines(os.environ)
    assert machines is not None, "the supervisor of machine 0 sets the variables"
    stopping: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, _: stopping.append(number))
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    launch = {"kind": "launch", "attempt": given.attempt}
    # A replica of another machine reads no checkpoint: it gets the training from one of machine 0.
    launch |= {"resume_step": 0 if given.replicas else given.resume_step, "micro_batch": given.micro_batch}
    run_dir = RunDir(given.run_dir)
    events = EventLog(run_dir.events, f"machines-{given.attempt:03d}")
    replicas = None
    if given.replicas:
        replicas = OtherReplicas(run_dir.replicas(given.attempt), given.attempt, given.replicas, given.min_replicas)
    cause_class = "network"  # names were found at the start of the run, so another attempt may find them
    try:
        protocol.find_own(machines)
        cause_class = "env"
        with open_post(machines, os.environ.get(SECRET, ""), os.environ[CONFIG_HASH], _print) as (post, server):
            relay = _Relay(machines, launch, post, given.processes, events, run_dir, replicas)
            relay.run(server.keep, lambda: bool(stopping), given.join_limit_s)
            return relay.failed or 0
    except UserError as error:
        events.append(TrainerFailed(given.attempt, 0, cause_class, error.what, error.why, error.fix, error.where))
        return ExitCode.RUN_FAILED


def report_end(machines: Machines, code: int, config: str) -> None:
    """Report the exit code of the run to the other machines. Those that do not ask within a limit time out."""
    asked: dict[int, Channel] = {}
    until_s = time.monotonic() + _CLOSE_LIMIT_S
    with open_post(machines, os.environ.get(SECRET, ""), config, _print) as (post, server):
        while time.monotonic() < until_s:
            post.pull(_TICK_S)
            server.keep()
            for joining in post.take_joins():
                with suppress(Lost):
                    joining.channel.send({"kind": "closed", "code": code})
                    asked[joining.rank] = joining.channel
            if len(asked) == machines.count - 1 and all(channel.is_delivered for channel in asked.values()):
                break
        for channel in asked.values():
            channel.close()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
