"""Follows prime-rl's logs and its metrics.jsonl as they grow, at a bounded cost. Reads only."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

from prime_train.programs.prime_rl.lines import WORDS, Message, Row, parse_line, parse_row

_PIECE_BYTES = 4 * 1024 * 1024  # read from one file at a time
_MOST_BEHIND_BYTES = 64 * 1024 * 1024  # if behind by more, the middle is skipped
_TORCHRUN = "torchrun"  # a folder with a log for each rank; the trainer's log has the lines of rank 0


class Tail:
    """One file and how far it was read. A file that was truncated is read from its beginning."""

    def __init__(self, path: Path, offset: int = 0) -> None:
        self.path = path
        self.changed_s = 0.0  # wall clock, as the file system stamps it
        self._offset = offset

    def lines(self) -> Iterator[bytes]:
        """New whole lines with one of the known words; of a metrics file, all new lines."""
        try:
            found = self.path.stat()
            self.changed_s = max(self.changed_s, found.st_mtime)
            if found.st_size < self._offset:
                self._offset = 0
            if found.st_size == self._offset:
                return
            if found.st_size - self._offset > _MOST_BEHIND_BYTES:
                self._offset = found.st_size - _PIECE_BYTES
            with open(self.path, "rb") as file:
                file.seek(self._offset)
                piece = file.read(_PIECE_BYTES)
        except (FileNotFoundError, PermissionError):  # the log follower reports unreadable files
            return
        whole = piece.rfind(b"\n") + 1
        if whole == 0 and len(piece) == _PIECE_BYTES:  # longer than any line of prime-rl
            whole = len(piece)
        self._offset += whole
        yield from self._filter(piece[:whole])

    def _filter(self, piece: bytes) -> Iterator[bytes]:
        if self.path.suffix == ".jsonl":
            yield from piece.splitlines()
            return
        end = 0
        for match in WORDS.finditer(piece):
            if match.start() < end:
                continue
            start = piece.rfind(b"\n", 0, match.start()) + 1
            end = piece.find(b"\n", match.end())
            end = len(piece) if end < 0 else end
            yield piece[start:end]


class Tails:
    """All logs of an attempt, and its metrics, from their present end on."""

    def __init__(self, metrics: Path, launcher: Path) -> None:
        self._launcher = launcher
        size_bytes = metrics.stat().st_size if metrics.exists() else 0
        self._metrics = Tail(metrics, size_bytes)
        self._logs: dict[Path, Tail] = {}

    def follow(self, logs: Iterable[Path]) -> None:
        """Follow these files too."""
        for path in logs:
            if path not in self._logs and _TORCHRUN not in path.parts:
                self._logs[path] = Tail(path)

    def take_messages(self) -> tuple[tuple[str, Message], ...]:
        """The new messages, each with the name of the part that wrote it."""
        found: list[tuple[str, Message]] = []
        for path, tail in self._logs.items():
            part = name_writer(path, self._launcher)
            found += ((part, what) for line in tail.lines() if (what := parse_line(line.decode("utf-8", "replace"))))
        return tuple(found)

    def take_rows(self) -> tuple[Row, ...]:
        lines = (line.decode("utf-8", "replace") for line in self._metrics.lines())
        return tuple(found for line in lines if (found := parse_row(line)) is not None)

    @property
    def changed_s(self) -> float:
        """When any of these files was last written, on the wall clock; 0.0 = never."""
        return max((tail.changed_s for tail in (self._metrics, *self._logs.values())), default=0.0)

    @property
    def paths(self) -> dict[str, str]:
        """The log of each part."""
        return {name_writer(path, self._launcher): str(path) for path in self._logs}


def name_writer(path: Path, launcher: Path) -> str:
    """The part that writes a log: "launcher", "trainer", "orchestrator", "inference", "env server NAME"."""
    if path == launcher:
        return "launcher"
    if "envs" in path.parts:
        inside = path.parts[len(path.parts) - 1 - path.parts[::-1].index("envs") + 2 :]
        return f"env server {Path(*inside).with_suffix('')}" if inside else "env server"
    return path.stem
