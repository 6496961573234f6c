"""Finds broken GPUs and processes killed for memory in the kernel's log.

NVIDIA's driver numbers its errors (XID). A GPU that has left the bus is reported with number 79, and by some drivers in
up to three lines without a number, with the GPU's address in the first: NVIDIA/NVSentinel#155, leptonai/gpud#1209.
"""

from __future__ import annotations

import contextlib
import os
import re
import select
import time
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

FALLEN_OFF = 79
_LINES_APART = 3  # between the address of a GPU and the report that it has fallen off the bus
_TEXT_LIMIT = 200  # characters of a line that are kept

# "6,1234,5678,-;text": level, sequence number, microseconds since boot. Documentation/ABI/testing/dev-kmsg of Linux.
_RECORD = re.compile(r"^\d+,(\d+),\d+,[^;]*;(.*)$", re.DOTALL)
_ESCAPED = re.compile(r"\\x([0-9a-f]{2})")  # how /dev/kmsg writes what is not printable, including line ends
_XID = re.compile(r"NVRM: Xid \((?P<pci>[^)]{1,60})\)[^:]{0,40}: (?P<code>\d{1,4})\b(?P<text>.*)", re.DOTALL)
_NAMED = re.compile(r"NVRM: .{0,40}\bGPU (?:at )?(?P<pci>(?:PCI:)?[0-9a-fA-F]{4,8}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2}\b)")
_GONE = "fallen off the bus"
_ADDRESS = re.compile(r"(?:([0-9a-fA-F]{4,8}):)?([0-9a-fA-F]{2}):([0-9a-fA-F]{2})")
_KILLED = re.compile(r"Killed process (\d+) \(([^)]*)\)")  # mm/oom_kill.c


class FoundXid(NamedTuple):
    """One XID. `pci` as `address` returns it, "" where the line names no GPU."""

    code: int
    pci: str
    text: str


class LogPlace(NamedTuple):
    """How far a log was read, and the GPU that a line named, because a later line may refer to it."""

    sequence: int = -1  # -1 = no numbered line yet
    named: str = ""
    lines_ago: int = 0


def address(written: str) -> str:
    """ "0000:3b:00" out of "PCI:0000:3B:00", "00000000:3b:00.0", "0000:3b:00 GPU-I:05"; "" if there is none.

    NVML writes the domain with eight digits, the kernel with four. What follows the address names a part of a GPU.
    """
    found = _ADDRESS.search(written)
    if found is None:
        return ""
    domain, bus, device = (int(part or "0", 16) for part in found.groups())
    return f"{domain:04x}:{bus:02x}:{device:02x}"


def split(record: str) -> tuple[int | None, str]:
    """The number and the text of a line of /dev/kmsg; no number for a line of another kind of log."""
    found = _RECORD.match(record)
    if found is None:
        return None, record
    text = _ESCAPED.sub(lambda escaped: chr(int(escaped[1], 16)), found[2])
    return int(found[1]), text


def read(place: LogPlace, record: str) -> tuple[LogPlace, FoundXid | None]:
    """The place after a line, and the XID in the line."""
    sequence, text = split(record)
    named, lines_ago = (place.named, place.lines_ago + 1) if place.lines_ago < _LINES_APART else ("", 0)
    xid = _XID.search(text)
    gpu = None if xid else _NAMED.search(text)
    if gpu is not None:
        named, lines_ago = address(gpu["pci"]), 0
    kept = " ".join(text.split())[:_TEXT_LIMIT]
    found = None
    if xid is not None:
        found = FoundXid(int(xid["code"]), address(xid["pci"]), kept)
    elif _GONE in text and "NVRM" in text:
        found, named = FoundXid(FALLEN_OFF, named, kept), ""
    after = place.sequence if sequence is None else max(place.sequence, sequence)
    return LogPlace(after, named, lines_ago), found


_RECORD_BYTES = 65536  # a read of /dev/kmsg with less room than its record fails
_FILE_POLL_S = 0.2  # poll() always reports a file at its end as ready


class Records:
    """The lines of the kernel's log, or of a file in its place. There are none if this process may not read it."""

    def __init__(self, path: Path) -> None:
        self._rest = b""
        self.file = -1  # while the log cannot be read
        with contextlib.suppress(OSError):  # kernel.dmesg_restrict, a container
            self.file = os.open(path, os.O_RDONLY | os.O_NONBLOCK)

    def read(self) -> Iterator[str]:
        """All whole lines that there are now."""
        while self.file >= 0:
            try:
                piece = os.read(self.file, _RECORD_BYTES)
            except BrokenPipeError:  # records were overwritten before they were read: the next read continues
                continue
            except BlockingIOError:
                return
            except OSError:
                os.close(self.file)
                self.file = -1
                return
            if not piece:
                return
            *lines, self._rest = (self._rest + piece).split(b"\n")
            yield from (line.decode(errors="replace") for line in lines)


class KernelLog:
    """The XIDs of the kernel's log from now on, or from after the record `sequence` if that is not negative."""

    def __init__(self, path: Path, sequence: int, report: Callable[[dict[str, Any]], None]) -> None:
        self.place = LogPlace(sequence)
        self._report = report
        self._records = Records(path)
        for record in self._records.read():
            number, _ = split(record)
            if sequence >= 0 and number is not None and number > sequence:
                self._judge(record)
            elif number is not None:
                self.place = self.place._replace(sequence=max(number, sequence))

    def follow(self) -> None:
        """Report each XID. Returns if the log cannot be read."""
        poll = select.poll()
        if self._records.file >= 0:
            poll.register(self._records.file, select.POLLIN)
        while self._records.file >= 0:
            poll.poll()
            records = list(self._records.read())
            for record in records:
                self._judge(record)
            if not records:
                time.sleep(_FILE_POLL_S)

    def _judge(self, record: str) -> None:
        self.place, found = read(self.place, record)
        if found is not None:
            self._report({"taken_s": time.monotonic(), **found._asdict(), "log_sequence": self.place.sequence})


class KilledProcesses:
    """Processes that the kernel killed for memory from now on. Their pids are those of the machine."""

    def __init__(self, path: Path) -> None:
        self._records = Records(path)
        deque(self._records.read(), maxlen=0)  # what is there already

    def take(self) -> list[tuple[int, str]]:
        """The pid and the name of each process since the last call."""
        found = map(_KILLED.search, self._records.read())
        return [(int(match[1]), match[2]) for match in found if match is not None]
