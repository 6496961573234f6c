"""Counts what the processes of a machine tokenise of a source, and writes a line with the rate every 5 seconds."""

from __future__ import annotations

import fcntl
import os
import struct
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from prime_train.core.rundir import write_all
from prime_train.core.units import format_bytes, format_seconds

INTERVAL_S = 5.0
_RECORD = struct.Struct("<qq")  # documents, tokens


@dataclass(frozen=True, slots=True)
class Total:
    """What is in the cache of a source: of this run and of earlier ones."""

    documents: int
    tokens: int


class SourceProgress:
    """The file `made` of a source, to which processes append. `parts`: "documents", or "sections" of a single one."""

    def __init__(
        self, folder: Path, name: str, count: int, parts: str, skipped: int = 0, clock: Callable[[], float] = time.time
    ) -> None:
        self._path, self._lock = folder / "made", folder / "reported"
        self._name, self._count, self._parts = name, count, parts
        self._skipped, self._clock = skipped, clock
        self._total = Total(0, 0)
        self._read_bytes = 0
        self._looked: tuple[float, Total] | None = None  # the time of the last look, and the total at that time

    def begin(self) -> None:
        """Report that tokenising starts. Call it before the first documents."""
        if self._looked is None:
            self._looked = (self._clock(), self.total())
            done = self._total.documents
            cached = f", {done} are in the cache" if done else ""
            skipped = f", {self._skipped} files skipped that are not UTF-8" if self._skipped else ""
            self._report(f"tokenising {self._count} {self._parts} of {self._name}{cached}{skipped}")

    def add(self, documents: int, tokens: int) -> None:
        """Count documents that this process has made, and report what all have made if the interval is over."""
        descriptor = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
        try:
            write_all(descriptor, _RECORD.pack(documents, tokens))
        finally:
            os.close(descriptor)
        since_s, before = self._looked or (self._clock(), self.total())
        elapsed_s = self._clock() - since_s
        if elapsed_s >= INTERVAL_S:
            total = self.total()
            self._looked = (since_s + elapsed_s, total)
            self._report(describe(self._name, self._count, self._parts, before, total, elapsed_s))

    def total(self) -> Total:
        """What is made so far. Reads only what is new."""
        try:
            with open(self._path, "rb") as file:
                file.seek(self._read_bytes)
                content = file.read()
        except FileNotFoundError:
            return self._total
        whole = content[: len(content) // _RECORD.size * _RECORD.size]
        self._read_bytes += len(whole)
        documents, tokens = self._total.documents, self._total.tokens
        for more_documents, more_tokens in _RECORD.iter_unpack(whole):
            documents, tokens = documents + more_documents, tokens + more_tokens
        self._total = Total(documents, tokens)
        return self._total

    def _report(self, line: str) -> None:
        """Write the line, unless another process has written one within the interval."""
        with open(self._lock, "a") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return
            status = os.fstat(lock.fileno())
            if status.st_size and self._clock() - status.st_mtime < 0.9 * INTERVAL_S:
                return
            os.ftruncate(lock.fileno(), 0)
            os.write(lock.fileno(), b"\n")
            os.utime(lock.fileno(), (self._clock(), self._clock()))
            sys.stderr.write(f"{line}\n")


@contextmanager
def report_reading(name: str, size_bytes: int, interval_s: float = INTERVAL_S) -> Iterator[None]:
    """Write a line with the rate every 5 s while the block reads `size_bytes`; 0 = not known. Source: proc(5), io."""
    began_s, before, ended = time.monotonic(), _bytes_read(), threading.Event()

    def report() -> None:
        while not ended.wait(interval_s):
            done, elapsed_s = _bytes_read() - before, time.monotonic() - began_s
            whole, left_s = "", (size_bytes - done) * elapsed_s / max(done, 1)
            if done < size_bytes:  # else more is read than the files have, or their size is not known
                whole = f" of {format_bytes(size_bytes)}, {format_seconds(left_s)} left at this rate"
            sys.stderr.write(f"reading {name}: {format_bytes(done / elapsed_s)}/s, {format_bytes(done)}{whole}\n")

    thread = threading.Thread(target=report, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def _bytes_read() -> int:
    with suppress(OSError):
        for line in Path("/proc/self/io").read_text(encoding="ascii").splitlines():
            if line.startswith("rchar: "):
                return int(line.removeprefix("rchar: "))
    return 0


def describe(name: str, count: int, parts: str, before: Total, total: Total, elapsed_s: float) -> str:
    """The line of progress: documents, tokens per second and the time that the rest takes at this rate."""
    done = min(total.documents, count)
    made = total.documents - before.documents
    left_s = (count - done) * elapsed_s / made if made > 0 else float("inf")
    rate = (total.tokens - before.tokens) / elapsed_s
    return (
        f"tokenised {done} of {count} {parts} of {name}: {rate:,.0f} tokens/s, "
        f"{format_seconds(left_s)} left at this rate"
    )
