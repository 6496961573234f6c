"""Run as a program: writes the work of the processes of some trees so far, one JSON object to a line.

python activity_program.py INTERVAL_S PID...
"""

from __future__ import annotations

import os
import socket
import struct
import sys
import time
from pathlib import Path
from typing import Any, NoReturn

import psutil

from prime_train.supervise.watches.sample_lines import serve

# linux/inet_diag.h and linux/netlink.h
_NETLINK_SOCK_DIAG, _SOCK_DIAG_BY_FAMILY, _INET_DIAG_INFO = 4, 20, 2
_NLM_F_REQUEST_DUMP = 0x301
_NLMSG_ERROR, _NLMSG_DONE = 2, 3
_HEADER_BYTES, _DIAG_MSG_BYTES = 16, 72
_ACKED_AT, _RECEIVED_AT = 120, 128  # tcpi_bytes_acked and tcpi_bytes_received in struct tcp_info, linux/tcp.h
_EVERY_STATE = 0xFFFFFFFF
_ANSWER_S = 2.0


def main(interval_s: float, roots: list[int]) -> NoReturn:
    workers: dict[tuple[int, float], bool] = {}
    serve(lambda: sample(roots, workers), interval_s)


def sample(roots: list[int], workers: dict[tuple[int, float], bool]) -> dict[str, Any]:
    """Counters of every process of the trees, and of their TCP sockets. `workers` remembers which ones are workers."""
    stamp_s = time.monotonic()
    processes = []
    inodes: set[int] = set()
    for process in _list_trees(roots):
        try:
            processes.append(_read_counters(process, workers))
            inodes |= _list_sockets(process.pid)
        except psutil.Error:  # it has ended
            continue
    moved = count_tcp_bytes() if inodes else {}
    kept = {str(inode): moved[inode] for inode in inodes if inode in moved}
    return {"stamp_s": stamp_s, "processes": processes, "sockets": kept}


def _list_trees(roots: list[int]) -> list[psutil.Process]:
    found: dict[int, psutil.Process] = {}
    for pid in roots:
        try:
            root = psutil.Process(pid)
            found |= {process.pid: process for process in (root, *root.children(recursive=True))}
        except psutil.Error:
            continue
    return list(found.values())


def _read_counters(process: psutil.Process, workers: dict[tuple[int, float], bool]) -> dict[str, Any]:
    with process.oneshot():
        times = process.cpu_times()
        identity = (process.pid, process.create_time())
        row = {
            "pid": process.pid,
            "started_s": identity[1],
            "name": process.name(),
            "state": process.status(),
            "cpu_s": times.user + times.system,
            "ended_children_cpu_s": times.children_user + times.children_system,
        }
        try:
            io = process.io_counters()
            row |= {
                "read_bytes": max(io.read_bytes, io.read_chars),
                "written_bytes": max(io.write_bytes, io.write_chars),
            }
        except psutil.AccessDenied:  # of another user, or not dumpable
            row |= {"read_bytes": 0, "written_bytes": 0}
    if identity not in workers:
        workers[identity] = _is_worker(process)
    return row | {"worker": workers[identity]}


def _is_worker(process: psutil.Process) -> bool:
    """Whether a rank forked it, or multiprocessing started it: it works for a rank and is none."""
    try:
        command, parent = process.cmdline(), process.parent()
        if any("multiprocessing." in part for part in command[:4]):
            return True
        return parent is not None and bool(command) and command == parent.cmdline() and process.exe() == parent.exe()
    except psutil.AccessDenied:
        return False


def _list_sockets(pid: int) -> set[int]:
    """The inodes of the sockets that a process holds; empty if they may not be read."""
    found = set()
    try:
        entries = os.listdir(f"/proc/{pid}/fd")
    except OSError:
        return set()
    for entry in entries:
        try:
            target = str(Path(f"/proc/{pid}/fd/{entry}").readlink())
        except OSError:
            continue
        if target.startswith("socket:["):
            found.add(int(target[8:-1]))
    return found


def count_tcp_bytes() -> dict[int, int]:
    """Bytes sent and received over each TCP socket of this network namespace, by inode; empty if not available.

    /proc/PID/net/dev would count every process of the namespace, so the numbers come from sock_diag, by socket.
    """
    found: dict[int, int] = {}
    for family in (socket.AF_INET, socket.AF_INET6):
        try:
            with socket.socket(socket.AF_NETLINK, socket.SOCK_DGRAM, _NETLINK_SOCK_DIAG) as query:
                query.settimeout(_ANSWER_S)
                body = struct.pack("=BBBBI48x", family, socket.IPPROTO_TCP, 1 << (_INET_DIAG_INFO - 1), 0, _EVERY_STATE)
                header = struct.pack(
                    "=IHHII", _HEADER_BYTES + len(body), _SOCK_DIAG_BY_FAMILY, _NLM_F_REQUEST_DUMP, 1, 0
                )
                query.send(header + body)
                while _add_sockets(query.recv(1 << 18), found):
                    pass
        except OSError:  # no such netlink family: a sandboxed kernel
            continue
    return found


def _add_sockets(answer: bytes, found: dict[int, int]) -> bool:
    """Add the sockets of one answer; False if it was the last answer."""
    at = 0
    while at + _HEADER_BYTES <= len(answer):
        length, kind = struct.unpack_from("=IH", answer, at)
        if kind in (_NLMSG_ERROR, _NLMSG_DONE) or length < _HEADER_BYTES:
            return False
        message = answer[at + _HEADER_BYTES : at + length]
        if len(message) >= _DIAG_MSG_BYTES:
            (inode,) = struct.unpack_from("=I", message, _DIAG_MSG_BYTES - 4)
            found[inode] = _read_moved_bytes(message[_DIAG_MSG_BYTES:])
        at += (length + 3) & ~3
    return bool(answer)


def _read_moved_bytes(attributes: bytes) -> int:
    """Bytes acknowledged and received, from the tcp_info among a message's attributes."""
    at = 0
    while at + 4 <= len(attributes):
        length, kind = struct.unpack_from("=HH", attributes, at)
        if length < 4:
            return 0
        if kind == _INET_DIAG_INFO and length >= 4 + _RECEIVED_AT + 8:
            acked, received = struct.unpack_from("=QQ", attributes, at + 4 + _ACKED_AT)
            return int(acked + received)
        at += (length + 3) & ~3
    return 0


if __name__ == "__main__":
    main(float(sys.argv[1]), [int(pid) for pid in sys.argv[2:]])
