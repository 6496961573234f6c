"""The messages between the relay of machine 0 and the follower of another machine, and the addresses of both.

Opens no connection.

A message is one line of JSON, an object whose `kind` is in KINDS. The other side is checked like any input: the length
of a line, its kind, and the types of its values. Neither side runs anything that it is sent: a follower plans its
trainer from its own copy of the config.
"""

from __future__ import annotations

import ipaddress
import json
import socket
import time
from dataclasses import dataclass, field
from typing import Any

import psutil

from prime_train import __version__
from prime_train.core.errors import ExitCode, UserError
from prime_train.core.machines import Machines
from prime_train.events import LINE_BYTES


def resolve(name: str) -> str:
    """The IPv4 address of a machine, or the IPv6 address if it has no other. Raises UserError."""
    try:
        found = socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)
    except OSError as error:
        what = f"its address is not known: {error.strerror or error}"
        why = "the machines of a run connect to machine 0 by its address"
        fix = "--machine-addresses with addresses instead of names"
        raise UserError(what, name, why, fix, ExitCode.OUT_OF_REACH) from None
    return str(min(found, key=lambda one: one[0] != socket.AF_INET)[4][0])


def resolve_all(names: tuple[str, ...]) -> frozenset[str]:
    return frozenset(resolve(name) for name in names)


def find_own(machines: Machines) -> str:
    """The address of this machine that the others reach.

    A name of this machine may be that of its loopback interface (Debian's 127.0.1.1). Then the address of the interface
    on the way to another machine counts.
    """
    own = resolve(machines.addresses[machines.rank])
    other = resolve(machines.addresses[1 if machines.rank == 0 else 0])
    if _is_loopback(own) and not _is_loopback(other):
        return _find_source(other)
    return own


def find_interface(address: str) -> str:
    """The interface with this address; "" if none has it, as inside some containers."""
    if _is_loopback(address):
        return "lo"
    interfaces = psutil.net_if_addrs().items()
    return next((name for name, found in interfaces if any(one.address == address for one in found)), "")


def find_public(machines: Machines) -> str:
    """The address of a machine that the whole internet may reach; "" if all are private. Raises UserError."""
    found = sorted(resolve_all(machines.addresses))
    return next((address for address in found if ipaddress.ip_address(address.partition("%")[0]).is_global), "")


def _is_loopback(address: str) -> bool:
    return ipaddress.ip_address(address).is_loopback


def _find_source(address: str) -> str:
    """The address from which this machine sends to another one. A UDP socket that is connected sends nothing."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        probe.connect((address, 9))
        return str(probe.getsockname()[0])


ROLE = "machines"  # of the relay, among the processes of an attempt
MISSING = "machine_missing"  # the cause_id of an attempt for which a machine never came
CONFIG_HASH = "PRIME_TRAIN_CONFIG_SHA256"  # the variable from which the relay has `hash_config` of its run

SEND_LIMIT_S = 10.0
ALIVE_S = 5.0  # between signs of life
LOST_S = 60.0  # without one: the machine, or the network to it, is gone
LOG_BYTES = 64 * 1024  # of output in one message

# Follower to relay: join, log, event, exited, stop. Relay to follower: challenge, welcome, refused, launch, end,
# closed. Both: alive. `proof` is the HMAC of the other side's `nonce` under the secret of the run, which is never sent.
KINDS: dict[str, dict[str, type]] = {
    "challenge": {"nonce": str},
    "join": {"rank": int, "config": str, "version": str, "nonce": str, "proof": str},
    "welcome": {"proof": str},
    "log": {"text": str},
    "event": {"line": str},
    "exited": {"code": int},
    "stop": {"by": str},
    "launch": {"attempt": int, "resume_step": int, "micro_batch": int},
    "end": {},
    "refused": {"why": str},
    "closed": {"code": int},
    "alive": {},
}
Message = dict[str, Any]


class Lost(Exception):
    """The connection has ended, the other side is silent, or it sent what is no message."""


def hash_config(text: str) -> str:
    """Machines train one run only if this is equal on all of them."""
    import hashlib  # lazy, because it loads OpenSSL, and a run on one machine needs none

    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def join(rank: int, config: str, secret: str = "", challenge: str = "", nonce: str = "") -> Message:
    """The join of a machine. `challenge` is the nonce of machine 0, `nonce` the one that machine 0 has to prove."""
    message = {"kind": "join", "rank": rank, "config": config, "version": __version__, "nonce": nonce}
    return message | {"proof": prove(secret, challenge, message)}


def prove(secret: str, nonce: str, joining: Message) -> str:
    """The proof that one has the secret, for this join and this nonce alone."""
    import hmac  # here, because it loads OpenSSL, and a run on one machine needs none

    said = json.dumps([nonce, joining["rank"], joining["config"], joining["version"], joining["nonce"]])
    return hmac.new(secret.encode("utf-8", "surrogatepass"), said.encode(), "sha256").hexdigest()


def is_proven(secret: str, nonce: str, joining: Message, proof: str) -> bool:
    import hmac  # here, as above

    return hmac.compare_digest(prove(secret, nonce, joining).encode(), proof.encode("utf-8", "surrogatepass"))


def parse(line: bytes) -> Message:
    """The message of one line. Raises Lost."""
    try:
        message = json.loads(line)
        expected = KINDS[message["kind"]]
        if any(type(message[name]) is not kind for name, kind in expected.items()):
            raise TypeError
    except (ValueError, KeyError, TypeError, RecursionError):
        raise Lost(f"it sent what is no message: {line[:80]!r}") from None
    return {"kind": message["kind"], **{name: message[name] for name in expected}}


@dataclass(slots=True)
class Channel:
    """One connection. `receive` never waits; `send` waits for at most SEND_LIMIT_S. Both raise Lost."""

    socket: socket.socket
    heard_s: float = field(default_factory=time.monotonic)
    _unread: bytes = b""
    _sent_s: float = field(default_factory=time.monotonic)

    def send(self, message: Message) -> None:
        try:
            self.socket.settimeout(SEND_LIMIT_S)
            self.socket.sendall(json.dumps(message).encode() + b"\n")
        except OSError as error:
            raise Lost(f"the connection has ended: {error.strerror or error}") from None
        self._sent_s = time.monotonic()

    def receive(self) -> list[Message]:
        """The messages that have arrived. Also sends a sign of life when one is due, and checks the other's."""
        messages = []
        try:
            self.socket.settimeout(0)  # with a time-out, Python waits for data even with MSG_DONTWAIT
            data = self.socket.recv(1 << 20)
        except BlockingIOError:
            data = None
        except OSError as error:
            raise Lost(f"the connection has ended: {error.strerror or error}") from None
        now_s = time.monotonic()
        if data == b"":
            raise Lost("it closed the connection")
        if data is not None:
            self.heard_s = now_s
            *lines, self._unread = (self._unread + data).split(b"\n")
            if len(self._unread) > 2 * LINE_BYTES:
                raise Lost("it sent a line without an end")
            messages = [parse(line) for line in lines]
        if now_s - self.heard_s > LOST_S:
            raise Lost(f"no sign of life for {LOST_S:.0f} s")
        if now_s - self._sent_s > ALIVE_S:
            self.send({"kind": "alive"})
        return [message for message in messages if message["kind"] != "alive"]

    @property
    def silent_s(self) -> float:
        return time.monotonic() - self.heard_s

    def close(self) -> None:
        self.socket.close()
