"""Reads the logs of a run's attempts and services, from the end and while they grow. Writes nothing."""

from __future__ import annotations

import contextlib
import io
import os
from collections.abc import Iterable, Iterator
from pathlib import Path

from prime_train.core import outside
from prime_train.core.errors import UserError
from prime_train.core.redaction import LONGEST_KEY, LineRedactor, open_key
from prime_train.core.rundir import RunDir
from prime_train.diagnose.log_prefix import ANSI
from prime_train.programs import recorded
from prime_train.supervise.core.state import State
from prime_train.views.text import sanitize

_CHUNK_BYTES = 64 * 1024


def attempts(run_dir: RunDir) -> list[int]:
    """Numbers of the attempts that have a directory, in order."""
    return sorted(int(path.name) for path in run_dir.path.glob("attempts/*") if path.name.isdigit())


def attempt_or_latest(run_dir: RunDir, attempt: int | None) -> int:
    """`attempt` if it exists; the latest one for None. Raises UserError if there is none."""
    numbers = attempts(run_dir)
    if not numbers:
        raise UserError(
            what="there is no log",
            where=str(run_dir.path),
            why="no attempt has started yet",
            fix=f"prime-train status {run_dir.path.name}",
        )
    if attempt is None:
        return numbers[-1]
    if attempt not in numbers:
        raise UserError(
            what=f"there is no attempt {attempt}",
            where=str(run_dir.path),
            why=f"the attempts of this run are {numbers[0]} to {numbers[-1]}",
            fix=f"prime-train logs {run_dir.path.name} --attempt {numbers[-1]}",
        )
    return attempt


def attempt_log(run_dir: RunDir, attempt: int) -> Path:
    """The log of an attempt's first role: the trainer, if there is one."""
    program, run = recorded(run_dir, strict=False)
    first = next((role.name for role in program.roles(run)), "trainer")
    return run_dir.log(attempt, first)


class Printable:
    """Turns the bytes of a log into text for a terminal: without colours, control characters and secrets.

    Holds back an incomplete line, because a secret may continue in the next piece.
    """

    def __init__(self, hidden: Iterable[str]) -> None:
        self._redactor = LineRedactor(hidden)
        self._rest = b""

    def feed(self, chunk: bytes) -> str:
        """The text of all complete lines. A carriage return ends a line, too: a progress bar writes no other end."""
        data = self._rest + chunk
        end = max(data.rfind(b"\n"), data.rfind(b"\r", 0, -1)) + 1  # the last byte may be half of \r\n
        if len(data) - end > _CHUNK_BYTES:
            end = len(data)
        self._rest = data[end:]
        return self._redactor.feed(_printable(data[:end]))

    def flush(self) -> str:
        """The rest, if nothing else will arrive."""
        rest, self._rest = self._rest, b""
        return self._redactor.feed(_printable(rest)) + self._redactor.flush()


def _printable(data: bytes) -> str:
    data = ANSI.sub(b"", data.replace(b"\r\n", b"\n").replace(b"\r", b"\n"))
    return sanitize(data.decode("utf-8", "replace"))


class Tail:
    """A log and the position up to which it was read."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._offset = 0

    def skip_to_last(self, lines: int) -> None:
        """Moves the position to the last `lines` lines, or to the start for 0. Reads only these lines."""
        with contextlib.suppress(FileNotFoundError), outside.open_regular(self.path, self.path.parent) as file:
            self._offset = _start_outside_a_key(file, _start_of_last(file, lines)) if lines else 0

    def more(self) -> Iterator[bytes]:
        """The text from the position on, in chunks; moves the position. Nothing if the log does not exist yet."""
        with contextlib.suppress(FileNotFoundError), outside.open_regular(self.path, self.path.parent) as file:
            file.seek(self._offset)
            while chunk := file.read(_CHUNK_BYTES):
                self._offset += len(chunk)
                yield chunk


def _start_outside_a_key(file: io.BufferedReader, offset: int) -> int:
    """`offset`, or the start of the private key around it: without its first line a key is not recognised."""
    before = max(0, offset - LONGEST_KEY)
    file.seek(before)
    text = file.read(offset - before).decode("latin-1")  # one character per byte
    begin = open_key(text)
    return offset if begin is None else before + text.rfind("\n", 0, begin) + 1


def _start_of_last(file: io.BufferedReader, lines: int) -> int:
    """The offset at which the last `lines` lines start. Reads from the end."""
    position = file.seek(0, io.SEEK_END)
    wanted = lines + 1  # the newline at the end of the file starts no line
    while position > 0:
        size = min(_CHUNK_BYTES, position)
        position -= size
        file.seek(position)
        chunk = file.read(size)
        if position + size == file.seek(0, io.SEEK_END) and not chunk.endswith(b"\n"):
            wanted -= 1  # the last line has no newline yet
        found = chunk.count(b"\n")
        if found >= wanted:
            at = len(chunk)
            for _ in range(wanted):
                at = chunk.rfind(b"\n", 0, at)
            return position + at + 1
        wanted -= found
    return 0


class LineTail:
    """The complete lines of a file that grows, or that another one or a shorter one replaces."""

    def __init__(self, path: Path, most_bytes: int | None = None) -> None:
        """`most_bytes`: what one call reads; text before that is skipped."""
        self.path = path
        self._most_bytes = most_bytes
        self._inode = 0
        self._offset = 0

    def more(self) -> tuple[int, list[bytes]]:
        """The number of bytes that were skipped, and the lines since the last call. None if the file cannot be read."""
        try:
            with outside.open_regular(self.path, self.path.parent) as file:
                status = os.fstat(file.fileno())
                if status.st_ino != self._inode or status.st_size < self._offset:
                    self._inode, self._offset = status.st_ino, 0
                begin = self._offset
                if self._most_bytes is not None:
                    begin = max(begin, status.st_size - self._most_bytes)
                file.seek(begin)
                data = file.read() if self._most_bytes is None else file.read(self._most_bytes)
        except OSError:
            return 0, []
        skipped = begin - self._offset
        whole = data.rfind(b"\n") + 1
        self._offset = begin + whole
        lines = data[:whole].split(b"\n")[:-1]
        return skipped, lines[1:] if skipped else lines  # the first line after a gap is incomplete


_MOST_BYTES = 64 * 1024  # per read of a service's log
_LONGEST = 400  # characters of a line
_SERVER = "inference"  # its role


class ServiceLog:
    """The log of the server in the live attempt."""

    def __init__(self) -> None:
        self._tail: LineTail | None = None

    def more(self, state: State) -> list[str]:
        """The lines since the last call, without colours, each after "inference | ". Only the last _MOST_BYTES."""
        children = state.live.children if state.live is not None else ()
        path = next((Path(child.log) for child in children if child.role == _SERVER), None)
        if path is None:
            self._tail = None
            return []
        if self._tail is None or self._tail.path != path:
            self._tail = LineTail(path, _MOST_BYTES)
        skipped, whole = self._tail.more()
        lines = [f"... {skipped:,} bytes not shown"] if skipped else []
        lines += [sanitize(ANSI.sub(b"", line).decode("utf-8", "replace"))[:_LONGEST] for line in whole]
        return [f"{_SERVER} | {line}" for line in lines]
