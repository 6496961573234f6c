"""Checks which ports are in use on this machine. Makes no connection."""

from __future__ import annotations

import errno
import random
import socket
from collections.abc import Iterable
from pathlib import Path

from prime_train.facts.machine import BusyPort

TABLES = (Path("/proc/net/tcp"), Path("/proc/net/tcp6"))
_EPHEMERAL = range(49152, 65536)  # RFC 6335, s. 6: dynamic ports
_LISTENING = "0A"  # TCP_LISTEN of include/net/tcp_states.h in the Linux kernel


def find_busy_ports(ports: Iterable[int], *, offline: bool) -> tuple[BusyPort, ...]:
    """The ports that a server cannot listen on. With `offline`, reads the kernel's table instead of opening sockets."""
    wanted = sorted(set(ports))
    if not offline:
        return tuple(BusyPort(port, why) for port in wanted if (why := _listen_error(port)))
    listening = _listening(TABLES)
    return tuple(BusyPort(port, "a process listens on it") for port in wanted if port in listening)


def find_free_port() -> int:
    """A free port, from the kernel's table. Another process may take it before its use."""
    taken = _listening(TABLES)
    return next(port for port in random.sample(_EPHEMERAL, len(_EPHEMERAL)) if port not in taken)


def _listen_error(port: int) -> str:
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # a port that was just closed is free
        try:
            probe.bind(("127.0.0.1", port))
            probe.listen(1)  # SO_REUSEADDR allows two binds, but only one listener
        except OSError as error:
            return "it is in use" if error.errno == errno.EADDRINUSE else (error.strerror or str(error))
    return ""


def _listening(tables: Iterable[Path]) -> frozenset[int]:
    """The ports with a listener on any address. Source: proc_pid_net(5): the port is hexadecimal."""
    found: set[int] = set()
    for table in tables:
        if not table.exists():  # a kernel without IPv6
            continue
        for line in table.read_text().splitlines()[1:]:
            columns = line.split()
            if len(columns) > 3 and columns[3] == _LISTENING:
                found.add(int(columns[1].rpartition(":")[2], 16))
    return frozenset(found)
