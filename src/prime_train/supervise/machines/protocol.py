"""The messages between the relay of machine 0 and the follower of another machine, and the addresses of both.

Opens no connection.

A message is an object whose `kind` is in KINDS. The other side is checked like any input: its kind, and the types of
its values. Neither side runs anything that it is sent: a follower plans its trainer from its own copy of the config.
"""

from __future__ import annotations

import socket
from collections.abc import Mapping
from typing import Any

import psutil

from prime_train import __version__
from prime_train.core.errors import ExitCode, UserError
from prime_train.core.machines import Machines, find_machine, is_loopback, name_machine


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


def find_own(machines: Machines) -> str:
    """The address of this machine that the others reach.

    A name of this machine may be that of its loopback interface (Debian's 127.0.1.1). Then the address of the interface
    on the way to another machine counts.
    """
    own = resolve(machines.addresses[machines.rank])
    other = resolve(machines.addresses[1 if machines.rank == 0 else 0])
    if is_loopback(own) and not is_loopback(other):
        return _find_source(other)
    return own


def find_interface(address: str) -> str:
    """The interface with this address; "" if none has it, as inside some containers."""
    if is_loopback(address):
        return "lo"
    interfaces = psutil.net_if_addrs().items()
    return next((name for name, found in interfaces if any(one.address == address for one in found)), "")


def _find_source(address: str) -> str:
    """The address from which this machine sends to another one. A UDP socket that is connected sends nothing."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        probe.connect((address, 9))
        return str(probe.getsockname()[0])


ROLE = "machines"  # of the relay, among the processes of an attempt
MISSING = "machine_missing"  # the cause_id of an attempt for which a machine never came
NOT_THERE = ("machines", "machine_not_there")  # of the alarm for a machine that is gone while its run is paused
CONFIG_HASH = "PRIME_TRAIN_CONFIG_SHA256"  # the variable from which the relay has `hash_config` of its run

LOG_BYTES = 64 * 1024  # of output in one message
SILENT_S = 15.0  # a machine that is silent so long may be replaced by one that has not proven who it is

# From a follower: join, log, event, sign, times, exited, tested, stop. To one: refused, launch, plan, lighthouse, end,
# paused, test, closed.
KINDS: dict[str, dict[str, type]] = {
    "join": {"config": str, "version": str},
    "log": {"text": str},
    "event": {"line": str},
    "exited": {"code": int},
    "stop": {"by": str},
    "launch": {"attempt": int, "resume_step": int, "micro_batch": int},
    "plan": {"version": int, "text": str},
    "lighthouse": {"port": int},
    "sign": {"replica": int, "text": str},
    "times": {"rank": int, "text": str},
    "end": {"stops": bool},
    "paused": {"why": str},
    "test": {},
    "tested": {"passed": bool, "what": str, "seconds": float},
    "refused": {"why": str},
    "closed": {"code": int},
}
Message = dict[str, Any]


class Lost(Exception):
    """The other side has left or is silent, or it sent what is no message."""


def hash_config(text: str) -> str:
    """Machines train one run only if this is equal on all of them."""
    import hashlib  # lazy, because it loads OpenSSL, and a run on one machine needs none

    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def join(config: str) -> Message:
    """The first message of a machine, with the hash of its config."""
    return {"kind": "join", "config": config, "version": __version__}


def find_difference(message: Message, config: str) -> str:
    """What keeps a machine from joining; "" if it may."""
    if message["version"] != __version__:
        return f"it has prime-train {message['version'][:40]}, and machine 0 has {__version__}"
    return "" if message["config"] == config else "its config is not that of machine 0"


def name_report(rank: int | str) -> str:
    """The subject on which a machine reports; "*" for all machines."""
    return f"pt.machines.r.{name_machine(rank) if isinstance(rank, int) else rank}.link"


def name_command(rank: int) -> str:
    """The subject on which a machine hears."""
    return f"pt.machines.cmd.{name_machine(rank)}"


def find_rank(subject: str) -> int:
    """The machine that reports on a subject; -1 if it is none."""
    return find_machine(subject.split(".")[3])


def parse(message: Mapping[str, Any]) -> Message:
    """The message of another machine, without values that it does not have. Raises Lost."""
    try:
        expected = KINDS[message["kind"]]
        if any(type(message[name]) is not kind for name, kind in expected.items()):
            raise TypeError
    except (KeyError, TypeError):
        raise Lost(f"it sent what is no message: {str(message)[:80]}") from None
    return {"kind": message["kind"], **{name: message[name] for name in expected}}
