"""Runs the trainer of one machine as machine 0 asks for it, and reports its output and its end. Decides nothing.

The supervisor of machine 0 chooses attempts and checkpoints. When an attempt ends or that process is gone, the trainer
here is ended too, and the follower joins again, because machine 0 then starts another attempt.
"""

from __future__ import annotations

import os
import shutil
import signal
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from queue import Empty, SimpleQueue

from prime_train.core.errors import ExitCode, UserError
from prime_train.core.machines import SECRET, Machines
from prime_train.core.plans import MOST_VERSIONS, load_plan, write_plan
from prime_train.core.process_id import own_identity
from prime_train.core.redaction import own_secrets, redact
from prime_train.core.rundir import RunDir, make_folder, write_atomic
from prime_train.events import Follower, encode
from prime_train.events.bounds import MOST_ATTEMPTS, MOST_STEPS
from prime_train.spec import RunSpec, to_json
from prime_train.supervise.launch import environment
from prime_train.supervise.launch.program import Launch, Program
from prime_train.supervise.launch.run_directory import shrink
from prime_train.supervise.machines.channel import Channel
from prime_train.supervise.machines.machine_test import MachineTest
from prime_train.supervise.machines.protocol import LOG_BYTES, ROLE, Lost, Message, join
from prime_train.supervise.machines.rank_reports import OwnTimes
from prime_train.supervise.machines.replica_places import OwnReplicas
from prime_train.supervise.machines.uplink import Uplink, open_uplink
from prime_train.supervise.processes import process
from prime_train.supervise.processes.children import Children
from prime_train.supervise.processes.process import Exited
from prime_train.supervise.processes.requests import signals_into

_TICK_S = 0.2
_CONNECT_S = 0.5  # between tries to reach machine 0
_STOP_LIMIT_S = 30.0  # after a stop, for machine 0 to report the end of the run
_END_GRACE_S = 5.0  # for a trainer that has finished to exit by itself
Note = Callable[[str], None]


def machine_dir(run_dir: RunDir, rank: int) -> RunDir:
    """The folder of a machine other than 0: its logs, its events, and checkpoints on their way to machine 0.

    It differs from the run directory also where all machines share a disk.
    """
    return RunDir(run_dir.path / "machines" / str(rank))


def follow(
    run: RunSpec, run_dir: RunDir, machines: Machines, program: Program, config_hash: str, note: Note
) -> ExitCode:
    """Follow machine 0 until its run ends. Returns the exit code of the run.

    `run_dir`: that of this machine, whose lock is held; `run` has absolute paths. Raises UserError where machine 0 does
    not come, or has another config. Call it from the main thread.
    """
    follower = _Follower(run, run_dir, machines, program, note)
    process.become_subreaper()
    process.sweep(run_dir.path, follower.foreign)
    with signals_into(follower.inbox), open_uplink(machines, os.environ.get(SECRET, "")) as uplink:
        try:
            return follower.run_until_closed(uplink, config_hash)
        finally:
            follower.children.end_rest(gently=False)


class _Follower:
    def __init__(self, run: RunSpec, run_dir: RunDir, machines: Machines, program: Program, note: Note) -> None:
        self.run = run
        self.run_dir = run_dir
        self.machines = machines
        self.program = program
        self.note = note
        self.inbox: SimpleQueue[object] = SimpleQueue()
        self.foreign = process.list_own_children()
        self.children = Children(run_dir, self.inbox, lambda: self.foreign)
        self.secrets = own_secrets([run.prime_train.alerts.webhook_env])
        self.limit_s = run.prime_train.heartbeat.join_limit_s
        self.trainer: _Trainer | None = None
        self.test = MachineTest(run_dir)
        self.is_paused = False
        self.problem = ""
        self.stop: signal.Signals | None = None

    def run_until_closed(self, uplink: Uplink, config_hash: str) -> ExitCode:
        joined = finished = False
        last_s = time.monotonic()
        while True:
            channel = uplink.open_channel()
            self.problem = uplink.problem or self.problem
            if channel is not None:
                try:
                    code = self._serve(channel, config_hash)
                    if code is not None:
                        return code
                except Lost as error:
                    self.problem = f"; the last time: {error}"
                    if self.trainer is not None or self.is_paused:
                        self.note(f"machine 0: {error}")
                finally:
                    self.test.end()
                    channel.close()
                    self.children.end_rest(gently=False)
                    if self.trainer is not None or self.is_paused:
                        joined, finished = True, self.trainer is not None and self.trainer.has_finished
                        self.trainer, self.is_paused = None, False
                        last_s = time.monotonic()
            waited_s = time.monotonic() - last_s
            # A machine that slept meanwhile gets no report of the end. Its trainer ends with 0 only after the last
            # step, which needs the ranks of all machines.
            if finished and waited_s > _STOP_LIMIT_S:
                self.note("machine 0 is gone, and the trainer here has taken its last step: see the report there")
                return ExitCode.OK
            if self.stop is not None and waited_s > (_STOP_LIMIT_S if joined else 0.0):
                return ExitCode.RESUMABLE
            if waited_s > self.limit_s:
                raise self._no_machine_0(joined=joined)
            self._take(_CONNECT_S)

    def _serve(self, channel: Channel, config_hash: str) -> ExitCode | None:
        """Handle one attempt, or one pause. Returns the exit code of the run when it has ended; None at their end."""
        channel.send(join(config_hash))
        reported = False
        while True:
            for message in channel.receive():
                match message["kind"]:
                    case "launch" if self.trainer is None:
                        self._launch(message)
                    case "plan" if self.trainer is not None:
                        self._take_plan(message["version"], message["text"])
                    case "lighthouse" if self.trainer is not None:
                        self.trainer.replicas.take_port(message["port"])
                    case "paused" if self.trainer is None:
                        self.is_paused = True
                        self.note(f"machine 0: {message['why'][:300]}")
                    case "test" if self.is_paused:
                        self.test.begin()
                    case "closed" if message["code"] in list(ExitCode):
                        return ExitCode(message["code"])
                    case "refused":
                        raise self._refused(message["why"])
                    case "end":
                        self._end(channel, stops=message["stops"])
                        return None
                    case other:
                        raise Lost(f"it sent {other}")
            for exited in self._take(_TICK_S):
                if self.trainer is not None and self.children.remove(exited):
                    self.trainer.code = exited.returncode
            if self.stop is not None and not reported:
                reported = True
                channel.send({"kind": "stop", "by": self.stop.name})
            self._report(channel)
            if self.is_paused and (result := self.test.take()) is not None:
                channel.send(result)

    def _take(self, limit_s: float) -> list[Exited]:
        """The exits that have arrived, after at most `limit_s`. A signal is kept for machine 0."""
        found: list[Exited] = []
        try:
            while True:
                match self.inbox.get(timeout=0 if found else limit_s):
                    case Exited() as exited:
                        found.append(exited)
                    case signal.Signals() as number:
                        self.stop = number
                        return found
        except Empty:
            return found

    def _launch(self, message: Message) -> None:
        attempt, resume_step, micro_batch = (message[name] for name in ("attempt", "resume_step", "micro_batch"))
        is_known = 0 < attempt <= MOST_ATTEMPTS and 0 <= resume_step <= MOST_STEPS
        if not is_known or not 0 < micro_batch <= self.run.batch.micro_batch:
            raise Lost(f"it asked for attempt {attempt} from step {resume_step} with micro-batch {micro_batch}")
        run = self.run if micro_batch == self.run.batch.micro_batch else shrink(self.run, micro_batch)
        make_folder(self.run_dir.path)
        if self.run_dir.checkpoints.exists():  # files on their way to machine 0, which an earlier attempt left
            shutil.rmtree(self.run_dir.checkpoints)
        # Machine 0 sends all changes of settings again: what the run went back from has other values there.
        if self.run_dir.settings.exists():
            shutil.rmtree(self.run_dir.settings)
        write_atomic(self.run_dir.resolved, to_json(run))
        if self.run_dir.replicas(attempt).exists():
            shutil.rmtree(self.run_dir.replicas(attempt))
        for remains in (self.run_dir.stop_request(attempt), self.run_dir.rendezvous(attempt)):
            remains.unlink(missing_ok=True)
        planned = self.program.plan(run, self.run_dir, attempt, resume_step)
        launch = next(one for one in planned if one.role != ROLE)
        host = environment.read_host(str(own_identity()))
        needs = self.program.environment(launch.role, run, self.run_dir, attempt, host)
        launch = replace(launch, variables=(*environment.plan(needs, self.run_dir, host), *launch.variables))
        here = run.parallel.replicas_here
        numbers = range(self.machines.rank * here, (self.machines.rank + 1) * here)
        replicas = OwnReplicas(self.run_dir.replicas(attempt), numbers, self.machines.addresses[0])
        processes = run.parallel.processes_here
        ranks = range(self.machines.rank * processes, (self.machines.rank + 1) * processes)
        times = OwnTimes(self.run_dir, attempt, ranks)
        self.trainer = _Trainer(attempt, launch, Follower(self.run_dir.events), replicas, times)
        self.trainer.skip()
        self.note(f"attempt {attempt} from step {resume_step}")
        self.children.start(launch, attempt)

    def _take_plan(self, version: int, text: str) -> None:
        """Write a change of settings where the ranks of this machine look for it. They judge the values."""
        try:
            if not 0 < version <= MOST_VERSIONS:
                raise ValueError(f"there is no version {version}")
            write_plan(self.run_dir.settings, load_plan(text, version))
        except (OSError, ValueError) as error:
            raise Lost(f"it sent a change of settings that is not taken: {error}") from error

    def _report(self, channel: Channel) -> None:
        """Send what the trainer has printed and written, and at last its exit code."""
        trainer = self.trainer
        if trainer is None or trainer.reported:
            return
        for text in trainer.read_log():
            channel.send({"kind": "log", "text": redact(text, self.secrets)})
        for record in trainer.events.poll():
            channel.send({"kind": "event", "line": encode(record)})
        for sent in (*trainer.replicas.list_signs(), *trainer.times.list_new()):
            channel.send(sent)
        if trainer.code is not None:
            channel.send({"kind": "exited", "code": trainer.code})
            trainer.reported = True

    def _end(self, channel: Channel, *, stops: bool) -> None:
        """The attempt is over: a trainer that has finished exits by itself, any other is ended."""
        trainer = self.trainer
        if trainer is None:
            return
        trainer.stops = stops
        until_s = time.monotonic() + _END_GRACE_S
        while trainer.code is None and time.monotonic() < until_s:
            for exited in self._take(_TICK_S):
                if self.children.remove(exited):
                    trainer.code = exited.returncode
        if trainer.code is None:
            self.children.end_rest(gently=False)
            trainer.code = -signal.SIGKILL
        self._report(channel)

    def _no_machine_0(self, *, joined: bool) -> UserError:
        return UserError(
            what=f"{self.machines.name(0)} did not answer on port {self.machines.port} within {self.limit_s:g} s"
            f"{self.problem}",
            where=self.machines.name(self.machines.rank),
            why="its supervisor starts the trainers of all machines",
            fix="start the same command there, or raise prime_train.heartbeat.join_limit_s",
            exit_code=ExitCode.RESUMABLE if joined else ExitCode.OUT_OF_REACH,
        )

    def _refused(self, why: str) -> UserError:
        what = f"machine 0 refuses this machine: {why[:300]}"
        fix = f"copy the config to every machine, install one version, and set one {SECRET}"
        return UserError(what, self.machines.name(self.machines.rank), "all machines must train one run", fix)


class _Trainer:
    """The trainer of one attempt on this machine: what it printed and wrote, and how much of it is sent."""

    def __init__(self, attempt: int, launch: Launch, events: Follower, replicas: OwnReplicas, times: OwnTimes) -> None:
        self.attempt = attempt
        self.events = events
        self.replicas = replicas
        self.times = times
        self.code: int | None = None
        self.stops = False  # machine 0 has asked it to save and to end
        self.reported = False
        self._log = launch.log
        self._read_bytes = 0

    @property
    def has_finished(self) -> bool:
        """It has taken the last step of the run: one that was asked to stop ends with 0 before that."""
        return self.code == 0 and not self.stops

    def skip(self) -> None:
        """What is there already is of an earlier attempt."""
        self.events.poll()
        self._read_bytes = _size(self._log)

    def read_log(self) -> list[str]:
        texts = []
        while _size(self._log) > self._read_bytes:
            with open(self._log, "rb") as file:
                file.seek(self._read_bytes)
                data = file.read(LOG_BYTES)
            self._read_bytes += len(data)
            texts.append(data.decode("utf-8", "replace"))
        return texts


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0
