"""Follows prime-rl's logs and its metrics.jsonl as they grow, at a bounded cost. Reads only."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

from prime_train.programs.prime_rl.lines import WORDS, Row, Said, row, said

_PIECE_BYTES = 4 * 1024 * 1024  # read of one file at a time
_MOST_BEHIND_BYTES = 64 * 1024 * 1024  # behind by more, the middle is left out: the end of a log says how it stands
_TORCHRUN = "torchrun"  # a folder with each rank's log: what rank 0 says stands in the trainer's log as well


class Tail:
    """One file and how far it was read. One that was cut short is read from its beginning."""

    def __init__(self, path: Path, offset: int = 0) -> None:
        self.path = path
        self.changed_s = 0.0  # wall clock, as the file system stamps it
        self._offset = offset

    def lines(self) -> Iterator[bytes]:
        """Whole lines that are new and hold one of the words that matter; in a metrics file all of them."""
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
        except (FileNotFoundError, PermissionError):  # the listener tells of what may not be read
            return
        whole = piece.rfind(b"\n") + 1
        if whole == 0 and len(piece) == _PIECE_BYTES:  # a line that is longer than anything prime-rl says
            whole = len(piece)
        self._offset += whole
        yield from self._chosen(piece[:whole])

    def _chosen(self, piece: bytes) -> Iterator[bytes]:
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
    """All logs of an attempt, and its metrics. `metrics` is read from where it stands when this is made."""

    def __init__(self, metrics: Path, launcher: Path) -> None:
        self._launcher = launcher
        size_bytes = metrics.stat().st_size if metrics.exists() else 0
        self._metrics = Tail(metrics, size_bytes)
        self._logs: dict[Path, Tail] = {}

    def follow(self, logs: Iterable[Path]) -> None:
        """Follow these too."""
        for path in logs:
            if path not in self._logs and _TORCHRUN not in path.parts:
                self._logs[path] = Tail(path)

    def heard(self) -> tuple[tuple[str, Said], ...]:
        """What each part says that is new, by its name."""
        found: list[tuple[str, Said]] = []
        for path, tail in self._logs.items():
            who = writer(path, self._launcher)
            found += ((who, what) for line in tail.lines() if (what := said(line.decode("utf-8", "replace"))))
        return tuple(found)

    def rows(self) -> tuple[Row, ...]:
        lines = (line.decode("utf-8", "replace") for line in self._metrics.lines())
        return tuple(found for line in lines if (found := row(line)) is not None)

    @property
    def changed_s(self) -> float:
        """When any of them was written to last, on the wall clock; 0.0 = never."""
        return max((tail.changed_s for tail in (self._metrics, *self._logs.values())), default=0.0)

    @property
    def paths(self) -> dict[str, str]:
        """Where each part's log is."""
        return {writer(path, self._launcher): str(path) for path in self._logs}


def writer(path: Path, launcher: Path) -> str:
    """Whose log it is: "launcher", "trainer", "orchestrator", "inference", "env server NAME"."""
    if path == launcher:
        return "launcher"
    if "envs" in path.parts:
        inside = path.parts[len(path.parts) - 1 - path.parts[::-1].index("envs") + 2 :]
        return f"env server {Path(*inside).with_suffix('')}" if inside else "env server"
    return path.stem
