"""Reads the logs of a run's attempts and services, from the end and while they grow. Writes nothing."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Iterator
from pathlib import Path

from prime_train.errors import UserError
from prime_train.programs import recorded
from prime_train.rundir import RunDir
from prime_train.supervise.lock import holder

_CHUNK_BYTES = 64 * 1024


def attempts(run_dir: RunDir) -> list[int]:
    """Numbers of the attempts that have a directory, in order."""
    root = run_dir.path / "attempts"
    if not root.is_dir():
        return []
    return sorted(int(path.name) for path in root.iterdir() if path.name.isdigit())


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


def is_over(run_dir: RunDir) -> bool:
    """Whether no supervisor is alive that could write more."""
    return holder(run_dir) is None


class Tail:
    """The log of one attempt's first role (the trainer, if there is one) and the position up to which it was read."""

    def __init__(self, run_dir: RunDir, attempt: int) -> None:
        program, run = recorded(run_dir, strict=False)
        first = next((role.name for role in program.roles(run)), "trainer")
        self.path: Path = run_dir.log(attempt, first)
        self._offset = 0

    def skip_to_last(self, lines: int) -> None:
        """Moves the position to the last `lines` lines, or to the start for 0. Reads only these lines."""
        with contextlib.suppress(FileNotFoundError), open(self.path, "rb") as file:
            self._offset = _start_of_last(file, lines) if lines else 0

    def more(self) -> Iterator[bytes]:
        """The text from the position on, in chunks; moves the position. Nothing if the log does not exist yet."""
        with contextlib.suppress(FileNotFoundError), open(self.path, "rb") as file:
            file.seek(self._offset)
            while chunk := file.read(_CHUNK_BYTES):
                self._offset += len(chunk)
                yield chunk


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
