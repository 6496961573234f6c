"""Reads the events of a run while they are written, and notices what is damaged. Writes nothing.

A line that is no record is left out, and the rest is read. Positions and checksums show what is missing.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import stat
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import BinaryIO

from prime_train.core.errors import ExitCode, UserError
from prime_train.core.outside import OutsideError, open_regular
from prime_train.events.record import LINE_BYTES, Damage, Event, Progress, Record, Unrecognised, merge, read_line, retry

_SUFFIX = ".jsonl"
_THIN_BYTES = 1 << 20
_BLOCK_BYTES = 64 << 10
_UNREADABLE = frozenset({errno.EACCES, errno.EPERM, errno.ENOTDIR, errno.ELOOP})
Brief = Sequence[type[Event]]  # kinds of events
PROGRESS: Brief = (Progress,)


class Follower:
    """Reads the events of a run directory while they are written: each `poll` returns the new ones."""

    def __init__(self, directory: Path, files: Mapping[str, ReadFile] | None = None, brief: Brief = PROGRESS) -> None:
        """`files`: how far each file was read before. `brief`: kinds that the first read of a long file thins."""
        self._directory = directory
        self._files = dict(files or {})
        self._brief = brief

    @classmethod
    def near_end(cls, directory: Path, last_bytes: int) -> Follower:
        """A follower whose first poll returns the records in the last `last_bytes` of each file."""
        follower = cls(directory)
        with contextlib.suppress(OSError):  # the first poll reports what cannot be read
            for name, path, status in follower._scan():
                # A line that begins before the offset would be read from its middle and count as damaged.
                if status.st_size > last_bytes:
                    offset = _next_line(path, directory, status.st_size - last_bytes)
                    follower._files[name] = ReadFile(name, status.st_ino, offset)
        return follower

    @property
    def files(self) -> Mapping[str, ReadFile]:
        return self._files

    @property
    def read_bytes(self) -> int:
        """Bytes of all files that were read up to now."""
        return sum(file.offset for file in self._files.values())

    @property
    def damage(self) -> tuple[Damage, ...]:
        """What was not read up to now, by file; files without faults are left out."""
        found = (file.damage for _, file in sorted(self._files.items()))
        return tuple(damage for damage in found if damage != Damage(damage.file))

    def poll(self) -> list[Record]:
        return list(self.stream())

    def stream(self) -> Iterator[Record]:
        """The new records in order, as `order.merge` defines it.

        Each is read when it is asked for, and the next call must wait until all were: a long run has more than fit into
        memory.

        Costs one stat per file without new records. The first read of a file above a megabyte returns only the first
        and the last of consecutive Progress events: those between do not change the state, and are most of the file.
        Later reads return every event, because the step time is computed from them.
        Raises UserError where the folder may not be read.
        """
        try:
            # All files are opened before any record is returned, because the order of one depends on the others.
            read = [(found[0].removesuffix(_SUFFIX), self._read_new(*found)) for found in retry(self._scan)]
            grown = [(writer, records) for writer, records in read if records is not None]
            return merge(grown) if grown else iter(())
        except FileNotFoundError:  # the run was deleted during the scan
            return iter(())
        except OSError as error:
            if error.errno not in _UNREADABLE:
                raise
            what = f"the events of the run may not be read: {(error.strerror or '').lower()}"
            why = "they belong to another user, or their folder or its permissions were changed"
            fix = f"ls -ld {self._directory}; then chown or chmod it"
            raise UserError(what, str(error.filename or self._directory), why, fix, ExitCode.OUT_OF_REACH) from error

    def _scan(self) -> list[tuple[str, str, os.stat_result]]:
        """Name, path and status of each file. A writer's name is that of its file."""
        with os.scandir(self._directory) as entries:
            named = [entry for entry in entries if entry.name.endswith(_SUFFIX)]
            return [(entry.name, entry.path, entry.stat(follow_symlinks=False)) for entry in named]

    def _read_new(self, name: str, path: str, status: os.stat_result) -> Iterator[Record] | None:
        """The new records of one file; None if it has not grown.

        A file that was cut, or replaced by another one, is read from its start.
        """
        known = self._files.get(name)
        if known is None:
            known = self._files[name] = ReadFile(name, status.st_ino)
        is_same = status.st_ino == known.inode
        # The usual case costs one stat: most files of a run belong to attempts that have ended.
        if is_same and status.st_size == known.offset + known.passed_bytes and stat.S_ISREG(status.st_mode):
            return None
        try:
            file = retry(lambda: open_regular(path, self._directory))
        except (OutsideError, IsADirectoryError) as error:
            known.unopened = str(error) if isinstance(error, OutsideError) else "it is a folder"
            return None
        known.unopened = ""
        if not is_same or not known.continues_in(file, status.st_size):
            known.begin_again(status.st_ino)
        if status.st_size < known.offset + known.passed_bytes:
            known.passed_bytes = 0
        file.seek(known.offset + known.passed_bytes)
        is_long = known.offset == 0 and status.st_size > _THIN_BYTES
        return known.read(file, self._brief if is_long else None)


def _next_line(path: str, directory: Path, offset: int) -> int:
    """The start of the first line from `offset` on."""
    with open_regular(path, directory) as file:
        file.seek(offset - 1)
        return offset - 1 + len(file.readline(LINE_BYTES))


@dataclass(slots=True)
class ReadFile:
    """One file: how far it was read, and what was found wrong."""

    name: str
    inode: int
    offset: int = 0
    lines: int = 0  # before the offset, also those that are no records
    positions: dict[str, int] = field(default_factory=dict)  # life -> its highest position that was read
    life: str = ""  # of the latest record
    shift: int = 0  # of that record: its position less the lines before it, which grows where lines are missing
    is_again: bool = False  # it is read another time
    missing: int = 0
    damaged: int = 0
    foreign: int = 0
    unknown: int = 0
    unopened: str = ""
    first: str = ""  # its line number, and why it is no record
    passed_bytes: int = 0  # behind the offset: of a line that is too long already, and has no end yet

    @property
    def damage(self) -> Damage:
        return Damage(self.name, self.missing, self.damaged, self.foreign, self.unknown, self.unopened, self.first)

    def continues_in(self, file: BinaryIO, size: int) -> bool:
        """Whether the file was neither cut nor changed where it was read last: a line ends there."""
        if size < self.offset:
            return False
        # A file that was cut and has grown again may be longer than before, but hardly has a line that ends at this
        # very place.
        file.seek(max(0, self.offset - 1))
        return self.offset == 0 or file.read(1) == b"\n"

    def begin_again(self, inode: int) -> None:
        """Read from the start; records that were read before are not returned again."""
        self.inode = inode
        self.offset = self.lines = self.passed_bytes = 0
        self.is_again = True

    def read(self, file: BinaryIO, brief: Brief | None) -> Iterator[Record]:
        """The records from the current position; of consecutive lines of the kinds in `brief` the first and last.

        Closes the file after the last one.
        """
        with file:
            blocks = self.blocks(file)
            for index, line in thin(blocks, brief) if brief is not None else number_lines(blocks):
                record = self._take(line, index)
                if record is not None:
                    yield record

    def blocks(self, file: BinaryIO) -> Iterator[Block]:
        """The complete lines without their ends, some thousand at a time. Too long ones are damaged and left out.

        Does not use str.splitlines, which also splits at U+2028 and the like inside JSON strings. The offset stays
        before a last line without an end: the rest is not written yet. What is too long of it is not read again,
        because a gigabyte without an end would be read at each poll.
        """
        rest = b"\0" * min(self.passed_bytes, LINE_BYTES + 1)  # of a line that does not end in the block
        cut_bytes = self.passed_bytes - len(rest)  # of that line, and not kept
        while block := file.read(_BLOCK_BYTES):
            *lines, rest = (rest + block).split(b"\n")
            if lines:
                first = self.lines
                self.lines += len(lines)
                self.offset += sum(map(len, lines)) + len(lines) + cut_bytes
                cut_bytes = 0
                if max(map(len, lines)) > LINE_BYTES:
                    lines = [line if len(line) <= LINE_BYTES else b"too long" for line in lines]
                yield first, lines
            # A line without an end could fill the memory: what is beyond the limit is counted and dropped.
            cut_bytes += max(0, len(rest) - LINE_BYTES - 1)
            rest = rest[: LINE_BYTES + 1]
        self.passed_bytes = cut_bytes + len(rest) if len(rest) > LINE_BYTES else 0

    def _take(self, line: bytes, index: int) -> Record | None:
        """The record of a line, unless it is damaged or not the writer's. `index`: the number of lines before it."""
        record, fault, why = read_line(line)
        if record is None:
            if fault == "damaged" and line and not self.is_again:
                self.damaged += 1
                self.first = self.first or f"line {index + 1}: {why}"
            return None
        if f"{record.writer}{_SUFFIX}" != self.name:
            self.foreign += not self.is_again
            return None
        if not self.is_again:
            # Lines that another program added lower the shift. The next life counts them too, and begins at zero.
            is_same_life, self.life = record.life == self.life, record.life
            expected = self.shift if is_same_life else max(0, self.shift)
            self.shift = record.seq - index
            self.missing += max(0, self.shift - expected)
        if record.seq <= self.positions.get(record.life, -1):
            self.foreign += not self.is_again
            return None
        self.positions[record.life] = record.seq
        self.unknown += isinstance(record.event, Unrecognised)
        return record


Block = tuple[int, list[bytes]]  # the number of the first line, and lines that follow each other


def number_lines(blocks: Iterable[Block]) -> Iterator[tuple[int, bytes]]:
    return chain.from_iterable(enumerate(lines, first) for first, lines in blocks)


def thin(blocks: Iterable[Block], brief: Brief) -> Iterator[tuple[int, bytes]]:
    """The lines with their numbers, but of consecutive lines of the kinds in `brief` only the first and the last."""
    is_brief = re.compile(b'"kind":"(?:' + "|".join(sorted(kind.kind for kind in brief)).encode() + b')"').search
    held: tuple[int, bytes] | None = None
    is_series = False
    for first, lines in blocks:
        are_brief = list(map(is_brief, lines))
        if is_series and all(are_brief):  # as nearly always in a long file
            held = first + len(lines) - 1, lines[-1]
            continue
        for index, (line, found) in enumerate(zip(lines, are_brief, strict=True), first):
            if found and is_series:
                held = index, line
                continue
            if held is not None and not found:
                yield held
                held = None
            is_series = found is not None
            yield index, line
    if held is not None:
        yield held


def read(directory: Path) -> list[Record]:
    """All events of a run in order; see `Follower.poll` for long runs."""
    return Follower(directory).poll()
