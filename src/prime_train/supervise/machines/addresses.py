"""Finds the addresses of the machines of a run, and the one on which this machine is reached. Opens no connection."""

from __future__ import annotations

import ipaddress
import socket

import psutil

from prime_train.core.errors import ExitCode, UserError
from prime_train.core.machines import Machines


def resolve(name: str) -> str:
    """The IPv4 address of a machine, or the IPv6 address if it has no other. Raises UserError."""
    try:
        found = socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)
    except OSError as error:
        raise UserError(
            what=f"its address is not known: {error.strerror or error}",
            where=name,
            why="the machines of a run connect to machine 0 by its address",
            fix="--machine-addresses with addresses instead of names",
            exit_code=ExitCode.OUT_OF_REACH,
        ) from None
    return str(min(found, key=lambda one: one[0] != socket.AF_INET)[4][0])


def resolve_all(names: tuple[str, ...]) -> frozenset[str]:
    """Every address from which a machine of the run may connect."""
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


def _is_loopback(address: str) -> bool:
    return ipaddress.ip_address(address).is_loopback


def _find_source(address: str) -> str:
    """The address from which this machine sends to another one. A UDP socket that is connected sends nothing."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        probe.connect((address, 9))
        return str(probe.getsockname()[0])
