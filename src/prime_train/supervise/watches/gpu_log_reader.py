"""Reads the kernel's log as it grows, in the GPU watch's child, and says each XID. Judges none of them."""

from __future__ import annotations

import os
import select
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from prime_train.supervise.watches import gpu_kernel_log as kernel_log

_RECORD_BYTES = 65536  # a read of /dev/kmsg with less room than its record fails
_FILE_POLL_S = 0.2  # a file at its end is always "ready": there is nothing to wait for


class KernelLog:
    """The kernel's log from where it stands now, or from after the record `sequence` where that is not negative."""

    def __init__(self, path: Path, sequence: int, say: Callable[[dict[str, Any]], None]) -> None:
        self.place = kernel_log.Place(sequence)
        self._say = say
        self._rest = b""
        self._file = -1  # where it cannot be read
        try:
            self._file = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
        except OSError:  # not for everyone to read: kernel.dmesg_restrict, a container
            return
        for record in self._read():
            number, _ = kernel_log.split(record)
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
        self.place, found = kernel_log.read(self.place, record)
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
