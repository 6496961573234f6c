"""`python -m tests.fuzz.frames`: sends hostile frames to the relay of machine 0 and to the follower of another machine.

Neither may end in an exception. The relay may fail its attempt, but its events stay whole, its exit code is one, and
where no machine has failed, each machine still joins.
"""

from __future__ import annotations

import contextlib
import io
import json
import random
import sys
import tempfile
import threading
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from prime_train.bus.base import Bus, BusMessage, decode_message, encode_message, matches
from prime_train.core.errors import UserError
from prime_train.core.machines import Machines
from prime_train.core.rundir import RunDir
from prime_train.events import EventLog, Follower, LaunchAsked, Record, TrainerFailed, encode
from prime_train.programs.base import RunTomlProgram
from prime_train.spec import RunSpec
from prime_train.supervise.launch.program import Launch
from prime_train.supervise.machines import follower, relay
from prime_train.supervise.machines.channel import Channel, read_frame
from prime_train.supervise.machines.post import Post
from prime_train.supervise.machines.protocol import KINDS, Lost, join, name_command, name_report
from prime_train.supervise.machines.replica_places import OtherReplicas
from tests.fuzz import series
from tests.fuzz.values import change, extreme, garble
from tests.unit.trainer import tiny

MACHINES = Machines(0, ("127.0.0.1", "127.0.0.2", "127.0.0.3"))
LAUNCH = {"kind": "launch", "attempt": 2, "resume_step": 40, "micro_batch": 4}
CONFIG = "config"
_OFTEN = ("join", "log", "log", "log", "event", "event", "exited", "stop")
_EVENTS = (LaunchAsked(2, 0), TrainerFailed(2, 8, "data", "what", "why", "fix", "where"))


class WireBus:
    """A bus in this process that takes any bytes, as a server does."""

    def __init__(self) -> None:
        self._subscriptions: list[_Wire] = []

    def subscribe(self, pattern: str, name: str = "") -> _Wire:
        del name
        self._subscriptions.append(_Wire(pattern))
        return self._subscriptions[-1]

    def publish(self, subject: str, body: Mapping[str, Any], message_id: str) -> None:
        self.feed(subject, encode_message(body, message_id))

    def feed(self, subject: str, content: bytes) -> None:
        with contextlib.suppress(ValueError):  # each client of a server drops what is no message
            found = decode_message(subject, content)
            for each in self._subscriptions:
                if matches(each.pattern, subject):
                    each.found.append(found)
                    each.arrived.set()

    def as_bus(self) -> Bus:
        return self  # type: ignore[return-value]


class _Wire:
    lost = rejected = 0

    def __init__(self, pattern: str) -> None:
        self.pattern = pattern
        self.found: deque[BusMessage] = deque()
        self.arrived = threading.Event()

    def take(self, timeout_s: float) -> list[BusMessage]:
        self.arrived.wait(timeout_s)
        self.arrived.clear()
        return [self.found.popleft() for _ in range(len(self.found))]

    def acknowledge(self) -> None: ...

    def close(self) -> None: ...


def make_content(chance: random.Random, channel: Channel) -> bytes:
    """The bytes of a bus message: a frame that fits, one with other values, or none."""
    kind = chance.choice((*_OFTEN, *KINDS))
    message: dict[str, Any] = {"kind": kind, **{name: "x" if of is str else 1 for name, of in KINDS[kind].items()}}
    if kind == "join":
        message = join(CONFIG)
    elif kind == "event":
        message["line"] = encode(Record(1.0, "trainer-002-rank8", 0, chance.choice(_EVENTS), "x"))
    text = chance.choice((change, extreme, extreme, lambda found, _: json.dumps(found)))(message, chance)
    body = {
        "from": channel.own,
        "to": channel.peer,
        "number": channel._received + 1 if chance.random() < 0.2 else channel._sent + 1,
        "heard": chance.choice((0, 0, channel._received, 10**6)),
        "message": "MESSAGE",
        "is_last": chance.random() < 0.05,
    }
    shaped = extreme(body, chance) if chance.random() < 0.2 else json.dumps(body)
    line = f'{{"id": "x", "body": {shaped.replace(json.dumps("MESSAGE"), text)}}}'.encode("utf-8", "surrogatepass")
    channel._sent += 1
    return garble(line, chance) if chance.random() < 0.1 else line


class _Machine:
    """A machine with the password of one, which may be hostile."""

    def __init__(self, bus: WireBus, rank: int) -> None:
        self.bus, self.rank = bus, rank
        self._commands = bus.subscribe(name_command(rank))
        self.channel = Channel(bus.as_bus(), name_report(rank), self._pull)

    def _pull(self, limit_s: float) -> None:
        for received in self._commands.take(limit_s):
            frame = read_frame(received)
            if frame is not None and frame.receiver == self.channel.own:
                self.channel.hear(frame)

    def speak(self, chance: random.Random) -> None:
        for _ in range(chance.randrange(1, 4)):
            self.bus.feed(name_report(self.rank), make_content(chance, self.channel))


# --- the relay ------------------------------------------------------------------------------------------


class _Attempt:
    """The relay of an attempt. What it prints goes to a strict log, like that of an attempt."""

    def __init__(self, folder: Path, *, has_replicas: bool) -> None:
        self.run_dir = RunDir(folder)
        self.bus = WireBus()
        replicas = OtherReplicas(self.run_dir.replicas(2), 2, here=2, least=3) if has_replicas else None
        post = Post(MACHINES, self.bus.as_bus(), CONFIG)
        self.relay = relay._Relay(
            MACHINES, LAUNCH, post, 8, EventLog(self.run_dir.events, "machines-002"), self.run_dir, replicas
        )

    def join(self, rank: int) -> bool:
        """Whether a machine that behaves may join."""
        _Machine(self.bus, rank).channel.send(join(CONFIG))
        self.relay.turn()
        return rank in self.relay.joined


@contextlib.contextmanager
def _log() -> Iterator[None]:
    before, sys.stdout = sys.stdout, io.TextIOWrapper(io.BytesIO(), encoding="utf-8")
    try:
        yield
    finally:
        sys.stdout = before


def play_relay(chance: random.Random) -> list[str]:
    relay.ask_to_stop = lambda: None  # the supervisor would be this process
    with tempfile.TemporaryDirectory(prefix="frames-") as folder, _log():
        attempt = _Attempt(Path(folder), has_replicas=chance.random() < 0.5)
        attempt.relay.has_secret = chance.random() < 0.5
        try:
            machines: list[_Machine] = []
            for _ in range(chance.randrange(1, 12)):
                if not machines or chance.random() < 0.25:
                    machines.append(_Machine(attempt.bus, chance.choice((1, 2, 8))))
                    if chance.random() < 0.7:
                        machines[-1].channel.send(join(CONFIG))
                elif chance.random() < 0.1:
                    chance.choice(machines).channel.close()
                else:
                    (machines[-1] if chance.random() < 0.7 else chance.choice(machines)).speak(chance)
                attempt.relay.turn()
            return _judge(attempt)
        finally:
            attempt.relay.events.close()


def _judge(attempt: _Attempt) -> list[str]:
    found = []
    read = Follower(attempt.run_dir.events)
    read.poll()
    if read.damage:
        found.append(f"the events of the relay are damaged: {read.damage}")
    failed = attempt.relay.failed
    if failed is not None and not 0 < failed < 256:
        found.append(f"the exit code would be {failed}")
    missing = attempt.relay.missing() if failed is None else ()
    return found + [f"machine {rank} cannot join any more" for rank in missing if not attempt.join(rank)]


# --- the follower ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Program(RunTomlProgram):
    name: str = "bundled"

    def plan(self, run: RunSpec, run_dir: RunDir, attempt: int, resume_step: int) -> tuple[Launch, ...]:
        del run, resume_step
        return (Launch("trainer", (sys.executable, "-c", ""), run_dir.path, run_dir.log(attempt, "trainer")),)


class _NoChildren:
    """Takes the place of the trainer's process: what is asked for is planned and not started."""

    def start(self, *_: object) -> None: ...

    def remove(self, _: object) -> bool:
        return False

    def end_rest(self, *, gently: bool) -> None: ...


def play_follower(chance: random.Random) -> list[str]:
    follower._TICK_S = follower._END_GRACE_S = 0.001
    with tempfile.TemporaryDirectory(prefix="frames-") as folder:
        run = tiny.run_spec(Path(folder))
        following = follower._Follower(run, RunDir(Path(folder)), MACHINES_1, _Program(), lambda _: None)
        following.children = _NoChildren()  # type: ignore[assignment]
        bus = WireBus()
        ours = _Machine(bus, 1)
        theirs = Channel(bus.as_bus(), name_command(1), lambda _: None, ours.channel.own)
        for _ in range(chance.randrange(6)):  # they wait for the follower, as on the way
            bus.feed(name_command(1), make_content(chance, theirs))
        theirs.close()
        with contextlib.suppress(Lost, UserError):
            following._serve(ours.channel, CONFIG)
    return []


MACHINES_1 = Machines(1, MACHINES.addresses)


def play(chance: random.Random) -> list[str]:
    return (play_relay if chance.random() < 0.6 else play_follower)(chance)


if __name__ == "__main__":
    sys.exit(series.play("tests.fuzz.frames", play, sys.argv[1:]))
