"""Finds what NVIDIA's driver wrote of a broken GPU in lines of the kernel's log. Opens no file, keeps no clock.

The driver numbers its errors (XID). A GPU that has left the bus is told with number 79, and by some drivers in up to
three lines without a number, the address of the GPU in the first: NVIDIA/NVSentinel#155, leptonai/gpud#1209.
"""

from __future__ import annotations

import os
import re
import select
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

FALLEN_OFF = 79
_LINES_APART = 3  # between the address of a GPU and the words that it has fallen off the bus
_TEXT_LIMIT = 200  # characters of a line that are told

# "6,1234,5678,-;text": level, sequence number, microseconds since boot. Documentation/ABI/testing/dev-kmsg of Linux.
_RECORD = re.compile(r"^\d+,(\d+),\d+,[^;]*;(.*)$", re.DOTALL)
_ESCAPED = re.compile(r"\\x([0-9a-f]{2})")  # how /dev/kmsg writes what is not printable, line ends among it
_XID = re.compile(r"NVRM: Xid \((?P<pci>[^)]{1,60})\)[^:]{0,40}: (?P<code>\d{1,4})\b(?P<text>.*)", re.DOTALL)
_NAMED = re.compile(r"NVRM: .{0,40}\bGPU (?:at )?(?P<pci>(?:PCI:)?[0-9a-fA-F]{4,8}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2}\b)")
_GONE = "fallen off the bus"
_ADDRESS = re.compile(r"(?:([0-9a-fA-F]{4,8}):)?([0-9a-fA-F]{2}):([0-9a-fA-F]{2})")


class Found(NamedTuple):
    """One XID. `pci` as `address` gives it, "" where the line names no GPU."""

    code: int
    pci: str
    text: str


class Place(NamedTuple):
    """How far a log was read, and the GPU that a line named, which a later one may be about."""

    sequence: int = -1  # -1 = no line with a number yet
    named: str = ""
    lines_ago: int = 0


def address(written: str) -> str:
    """ "0000:3b:00" out of "PCI:0000:3B:00", "00000000:3b:00.0", "0000:3b:00 GPU-I:05"; "" where there is none.

    NVML writes the domain with eight digits, the kernel with four. What follows the address names a part of a GPU.
    """
    found = _ADDRESS.search(written)
    if found is None:
        return ""
    domain, bus, device = (int(part or "0", 16) for part in found.groups())
    return f"{domain:04x}:{bus:02x}:{device:02x}"


def split(record: str) -> tuple[int | None, str]:
    """The number and the text of a line of /dev/kmsg; no number where it is a line of another kind of log."""
    found = _RECORD.match(record)
    if found is None:
        return None, record
    text = _ESCAPED.sub(lambda escaped: chr(int(escaped[1], 16)), found[2])
    return int(found[1]), text


def read(place: Place, record: str) -> tuple[Place, Found | None]:
    """The place after a line, and the XID that it tells."""
    sequence, text = split(record)
    named, lines_ago = (place.named, place.lines_ago + 1) if place.lines_ago < _LINES_APART else ("", 0)
    xid = _XID.search(text)
    gpu = None if xid else _NAMED.search(text)
    if gpu is not None:
        named, lines_ago = address(gpu["pci"]), 0
    found = None
    if xid is not None:
        found = Found(int(xid["code"]), address(xid["pci"]), _told(text))
    elif _GONE in text and "NVRM" in text:
        found = Found(FALLEN_OFF, named, _told(text))
        named = ""
    after = place.sequence if sequence is None else max(place.sequence, sequence)
    return Place(after, named, lines_ago), found


def _told(text: str) -> str:
    return " ".join(text.split())[:_TEXT_LIMIT]


_RECORD_BYTES = 65536  # a read of /dev/kmsg with less room than its record fails
_FILE_POLL_S = 0.2  # a file at its end is always "ready": there is nothing to wait for


class KernelLog:
    """The kernel's log from where it stands now, or from after the record `sequence` where that is not negative."""

    def __init__(self, path: Path, sequence: int, say: Callable[[dict[str, Any]], None]) -> None:
        self.place = Place(sequence)
        self._say = say
        self._rest = b""
        self._file = -1  # where it cannot be read
        try:
            self._file = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
        except OSError:  # not for everyone to read: kernel.dmesg_restrict, a container
            return
        for record in self._read():
            number, _ = split(record)
            if sequence >= 0 and number is not None and number > sequence:
                self._judge(record)
            elif number is not None:
                self.place = self.place._replace(sequence=max(number, sequence))

    @property
    def sequence(self) -> int:
        return self.place.sequence

    def follow(self) -> None:
        """Say each XID. Returns where the log cannot be read."""
        poll = select.poll()
        if self._file >= 0:
            poll.register(self._file, select.POLLIN)
        while self._file >= 0:
            poll.poll()
            records = list(self._read())
            for record in records:
                self._judge(record)
            if not records:
                time.sleep(_FILE_POLL_S)

    def _judge(self, record: str) -> None:
        self.place, found = read(self.place, record)
        if found is not None:
            self._say({"taken_s": time.monotonic(), **found._asdict(), "log_sequence": self.sequence})

    def _read(self) -> Iterator[str]:
        """Whole lines, as many as there are at present."""
        while self._file >= 0:
            try:
                piece = os.read(self._file, _RECORD_BYTES)
            except BrokenPipeError:  # records were overwritten before they were read: the next read goes on
                continue
            except BlockingIOError:
                return
            except OSError:
                os.close(self._file)
                self._file = -1
                return
            if not piece:
                return
            *lines, self._rest = (self._rest + piece).split(b"\n")
            yield from (line.decode(errors="replace") for line in lines)
