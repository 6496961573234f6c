"""`python -m tests.fuzz.frames`: sends hostile frames to the relay of machine 0 and to the follower of another machine.

Neither may end in an exception. The relay may fail its attempt, but its events stay whole, its exit code is one, and
where the run has a secret and no machine has failed, the machine with the secret still joins.
"""

from __future__ import annotations

import contextlib
import io
import json
import random
import socket
import struct
import sys
import tempfile
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from prime_train.core.errors import UserError
from prime_train.core.machines import Machines
from prime_train.core.rundir import RunDir
from prime_train.events import Follower, LaunchAsked, Record, TrainerFailed, encode
from prime_train.programs.base import RunTomlProgram
from prime_train.spec import RunSpec
from prime_train.supervise.launch.program import Launch
from prime_train.supervise.machines import follower, relay
from prime_train.supervise.machines.protocol import KINDS, Channel, Lost, join, prove
from tests.fuzz import series
from tests.fuzz.values import change, extreme, garble
from tests.unit.trainer import tiny

MACHINES = Machines(0, ("127.0.0.1", "127.0.0.2", "127.0.0.3"))
LAUNCH = {"kind": "launch", "attempt": 2, "resume_step": 40, "micro_batch": 4}
SECRET, CONFIG = "of this run", "config"
_OFTEN = ("join", "join", "log", "log", "log", "event", "event", "exited", "stop", "alive")
_EVENTS = (LaunchAsked(2, 0), TrainerFailed(2, 8, "data", "what", "why", "fix", "where"))


def frame(chance: random.Random, nonce: str, secret: str) -> bytes:
    """One line: a message that fits, one with other values, or no message."""
    kind = chance.choice((*_OFTEN, *KINDS))
    values: dict[str, object] = {name: "x" if of is str else 1 for name, of in KINDS[kind].items()}
    message: dict[str, object] = {"kind": kind, **values}
    if kind == "join":
        message = join(chance.choice((1, 2)), CONFIG, secret, nonce, "own nonce")
    elif kind == "event":
        message["line"] = encode(Record(1.0, "trainer-002-rank8", 0, chance.choice(_EVENTS), "x"))
    text = chance.choice((change, extreme, extreme, lambda found, _: json.dumps(found)))(message, chance)
    line = text.encode("utf-8", "surrogatepass")
    return (garble(line, chance) if chance.random() < 0.1 else line) + b"\n" * (chance.random() < 0.95)


# --- the relay ------------------------------------------------------------------------------------------


class _Port:
    """The relay of an attempt and its port. What it prints goes to a strict log, like that of an attempt."""

    def __init__(self, folder: Path, secret: str) -> None:
        self.run_dir = RunDir(folder)
        self.relay = relay._Relay(MACHINES, self.run_dir, LAUNCH, CONFIG, 8)
        self.relay.door.secret = secret
        self.relay.door.allowed = frozenset(MACHINES.addresses)
        self.server = socket.create_server(("127.0.0.1", 0))
        self.opened: list[Channel] = []

    def connect(self, address: str) -> Channel:
        made = socket.create_connection(self.server.getsockname(), 5, source_address=(address, 0))
        channel = Channel(made)
        self.opened.append(channel)
        self.relay.door.accept(self.server)
        return channel

    def join(self, rank: int, secret: str) -> bool:
        """Whether a machine that behaves may join."""
        channel = self.connect(f"127.0.0.{rank + 1}")
        with contextlib.suppress(Lost):
            nonce = next((str(one["nonce"]) for one in channel.receive()), "")
            channel.send(join(rank, CONFIG, secret, nonce, "own nonce"))
        self.relay.turn()
        return rank in self.relay.joined

    def close(self) -> None:
        self.server.close()
        guests = [guest.channel for guest in self.relay.door.guests]
        for channel in (*self.opened, *guests, *self.relay.joined.values()):
            channel.close()
        self.relay.events.close()


@contextlib.contextmanager
def _log() -> Iterator[None]:
    before, sys.stdout = sys.stdout, io.TextIOWrapper(io.BytesIO(), encoding="utf-8")
    try:
        yield
    finally:
        sys.stdout = before


def play_relay(chance: random.Random) -> list[str]:
    secret = chance.choice((SECRET, ""))
    relay._ask_to_stop = lambda: None  # the supervisor would be this process
    with tempfile.TemporaryDirectory(prefix="frames-") as folder, _log():
        port = _Port(Path(folder), secret)
        try:
            nonces: list[tuple[Channel, str]] = []
            for _ in range(chance.randrange(1, 12)):
                _act(port, nonces, chance)
                port.relay.turn()
            return _judge(port, secret)
        finally:
            port.close()


def _act(port: _Port, nonces: list[tuple[Channel, str]], chance: random.Random) -> None:
    """Connect and perhaps join, send some lines, or leave."""
    if not nonces or chance.random() < 0.25:
        rank = chance.choice((1, 2, 8))
        channel = port.connect(f"127.0.0.{rank + 1}")
        with contextlib.suppress(Lost):
            nonce = next((str(one["nonce"]) for one in channel.receive()), "")
            if chance.random() < 0.7:
                # A machine with the secret may be hostile, too.
                channel.send(join(rank, CONFIG, chance.choice((SECRET, SECRET, "")), nonce, "own nonce"))
            nonces.append((channel, nonce))
        return
    channel, nonce = nonces[-1] if chance.random() < 0.7 else chance.choice(nonces)
    with contextlib.suppress(OSError):
        if chance.random() < 0.1:
            channel.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            channel.close()
            return
        channel.socket.settimeout(0.2)  # the relay reads in its next turn
        channel.socket.sendall(b"".join(frame(chance, nonce, SECRET) for _ in range(chance.randrange(1, 4))))


def _judge(port: _Port, secret: str) -> list[str]:
    found = []
    read = Follower(port.run_dir.events)
    read.poll()
    if read.damage:
        found.append(f"the events of the relay are damaged: {read.damage}")
    failed = port.relay.failed
    if failed is not None and not 0 < failed < 256:
        found.append(f"the exit code would be {failed}")
    for rank in port.relay.missing() if failed is None and secret else ():
        # One address may have eight guests, who are dropped after ten seconds.
        port.relay.door.guests.clear()
        if not port.join(rank, secret):
            found.append(f"machine {rank} cannot join any more")
    return found


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
    secret = chance.choice((SECRET, ""))
    follower._TICK_S = follower._END_GRACE_S = 0.001
    with tempfile.TemporaryDirectory(prefix="frames-") as folder:
        run = tiny.run_spec(Path(folder))
        following = follower._Follower(run, RunDir(Path(folder)), MACHINES_1, _Program(), lambda _: None)
        following.secret, following.children = secret, _NoChildren()  # type: ignore[assignment]
        ours, theirs = socket.socketpair()
        machine_0 = threading.Thread(target=_act_as_machine_0, args=(theirs, chance, secret))
        machine_0.start()
        channel = Channel(ours)
        try:
            following._serve(channel, CONFIG)
        except (Lost, UserError):
            pass
        finally:
            channel.close()
            machine_0.join(30)
    return ["machine 0 still sends"] if machine_0.is_alive() else []


MACHINES_1 = Machines(1, MACHINES.addresses)


def _act_as_machine_0(connection: socket.socket, chance: random.Random, secret: str) -> None:
    """Prove the secret, perhaps, and send some lines."""
    connection.settimeout(5)
    with connection, contextlib.suppress(OSError, ValueError, KeyError):
        if chance.random() < 0.7:
            connection.sendall(json.dumps({"kind": "challenge", "nonce": "x"}).encode() + b"\n")
            joined = json.loads(connection.makefile("rb").readline())
            welcome = {"kind": "welcome", "proof": prove(secret, joined["nonce"], joined)}
            connection.sendall(json.dumps(welcome).encode() + b"\n")
        for _ in range(chance.randrange(1, 6)):
            line = extreme(dict(LAUNCH), chance).encode() + b"\n"
            connection.sendall(line if chance.random() < 0.5 else frame(chance, "x", secret))


def play(chance: random.Random) -> list[str]:
    return (play_relay if chance.random() < 0.6 else play_follower)(chance)


if __name__ == "__main__":
    sys.exit(series.play("tests.fuzz.frames", play, sys.argv[1:]))
