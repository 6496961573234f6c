"""Names the parts of prime-rl among a launcher's children. Only reads /proc; starts and ends nothing."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil

from prime_train.core import outside
from prime_train.core.process_id import Identity, identify
from prime_train.programs.prime_rl.lines import WORDS, Message, MetricsRow, parse_line, parse_row
from prime_train.programs.prime_rl.run_directory import COPY

LAUNCHER = "launcher"
INFERENCE = "inference"
TAIL = "tail"  # shows a log, and is no part
_PREFIXES = ("PRIME-RL::", "PRL::")  # of the titles from setproctitle, in 2026-08 and later
_ENV_SERVER = "env server"
# configs/envs/train/wordle.json in 2026-08, configs/env_server_train_wordle.toml in 2026-05.
_CONFIG = re.compile(r"(?:/envs/(?:train|eval)/|env_server_(?:train|eval)_)(.+)\.\w+\Z")


@dataclass(frozen=True, slots=True)
class StartedProcess:
    """A process that the launcher has started, and its kind: "inference", "env server NAME", "other"."""

    identity: Identity
    name: str

    @property
    def is_server(self) -> bool:
        """Whether it serves the other parts, so that it must not end before them."""
        return self.name == INFERENCE or self.name.startswith(_ENV_SERVER)


def list_parts(guard: Identity) -> list[StartedProcess] | None:
    """The living children of the launcher. None if the launcher itself, the guard's first child, is gone.

    Orphans become children of the guard too; they are no parts any more.
    """
    children = _list_children(guard.pid) if guard.alive else []
    launchers = [pid for pid in children if name_part(_read_command(pid)) == LAUNCHER]
    if not launchers:
        return None
    found = []
    for pid in _list_children(launchers[0]):
        identity = identify(pid)
        if identity is not None and identity.alive:
            found.append(StartedProcess(identity, name_part(_read_command(pid))))
    return found


def name_part(command: list[str]) -> str:
    """The part that a command line belongs to. A part may replace its whole command line by a title."""
    if command and Path(command[-1]).name == COPY:
        return LAUNCHER
    line = " ".join(command)
    prefix = next((prefix for prefix in _PREFIXES if line.startswith(prefix)), None)
    if prefix is not None:
        title = line.removeprefix(prefix).lower().replace("_", "").replace("-", "")
        titled = ((LAUNCHER, LAUNCHER), ("infer", INFERENCE), ("env", _ENV_SERVER))
        return next((part for word, part in titled if title.startswith(word)), "other")
    # After an interpreter or `uv run`; or a module, by its last name.
    programs = [Path(word).name.rpartition(".")[2] for word in command[:4]]
    if "tail" in programs or any(word.startswith("tail ") for word in command[:3]):
        return TAIL
    if INFERENCE in programs:
        return INFERENCE
    if "env-server" in programs or "env_server" in programs:
        config = _CONFIG.search(command[-1])
        return f"{_ENV_SERVER} {config[1]}" if config else _ENV_SERVER
    return "other"


def _list_children(pid: int) -> list[int]:
    """Direct children. Source: proc_pid_task_tid_list_children(5)."""
    own = Path(f"/proc/{pid}/task/{pid}/children")
    if not own.exists():  # a kernel without CONFIG_PROC_CHILDREN
        with contextlib.suppress(psutil.Error):
            return [child.pid for child in psutil.Process(pid).children()]
        return []
    found: list[int] = []
    with contextlib.suppress(FileNotFoundError):
        for thread in os.scandir(f"/proc/{pid}/task"):  # a child belongs to the thread that started it
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):
                found += map(int, Path(thread.path, "children").read_text(encoding="ascii").split())
    return found


def _read_command(pid: int) -> list[str]:
    try:
        raw = Path(f"/proc/{pid}/cmdline").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return []
    return [word.decode("utf-8", "replace") for word in raw.split(b"\0") if word]


_PIECE_BYTES = 4 * 1024 * 1024  # read from one file at a time
_MOST_BEHIND_BYTES = 64 * 1024 * 1024  # if behind by more, the middle is skipped
_TORCHRUN = "torchrun"  # a folder with a log for each rank; the trainer's log has the lines of rank 0


class FileTail:
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
            with outside.open_regular(self.path) as file:
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
        self._metrics = FileTail(metrics, size_bytes)
        self._logs: dict[Path, FileTail] = {}

    def follow(self, logs: Iterable[Path]) -> None:
        """Follow these files too."""
        for path in logs:
            if path not in self._logs and _TORCHRUN not in path.parts:
                self._logs[path] = FileTail(path)

    def take_messages(self) -> tuple[tuple[str, Message], ...]:
        """The new messages, each with the name of the part that wrote it."""
        found: list[tuple[str, Message]] = []
        for path, tail in self._logs.items():
            part = name_writer(path, self._launcher)
            found += ((part, what) for line in tail.lines() if (what := parse_line(line.decode("utf-8", "replace"))))
        return tuple(found)

    def take_rows(self) -> tuple[MetricsRow, ...]:
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
