"""The truth about each made log, read from truth/*.toml, and its half. Reads files of this folder only."""

from __future__ import annotations

import hashlib
import tomllib
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
LOGS = HERE / "logs"
CLASSES = frozenset(
    {"config", "oom", "hardware", "network", "disk", "auth", "env", "bug", "data", "signal", "hang", "unknown"}
)
_HOW = ("python", "bash", "prints")
_KEYS = frozenset({"name", "class", "retry", "cause", "also", "dress", "shape", "source", "needs", "silent", *_HOW})


@dataclass(frozen=True, slots=True)
class MadeLog:
    """One log: how it is made, and what a person finds in it."""

    name: str
    group: str  # the file in truth/
    how: str  # "python", "bash": a program that runs; "prints": the lines of software that cannot run here
    program: str
    classes: tuple[str, ...]  # the first is the best; empty for a healthy log
    retry: str  # "yes", "no" or "after_fix"; "" for a healthy log
    cause: str  # a part of the line of the root cause; "" for a healthy log
    also: tuple[str, ...]  # parts of other lines that report the same failure as well
    dress: tuple[str, ...]  # directives of dress.py
    shape: str
    source: str
    needs: tuple[str, ...]  # modules that the program imports beyond the project's own environment
    is_silent: bool = False  # it ends without a word about a failure; `cause` is its last line

    @property
    def is_healthy(self) -> bool:
        return not self.classes

    @property
    def is_held_out(self) -> bool:
        return is_held_out(self.name)

    @property
    def path(self) -> Path:
        return LOGS / f"{self.name}.log"

    def text(self) -> str:
        """The stored log. A file with a byte-order mark is UTF-16."""
        data = self.path.read_bytes()
        return data.decode("utf-16" if data[:2] in {b"\xff\xfe", b"\xfe\xff"} else "utf-8", errors="replace")

    def right_lines(self) -> frozenset[int]:
        """The numbers (from 1) of the lines that a right verdict may name; several ranks may report one failure."""
        return right_lines(self, self.text())


def right_lines(log: MadeLog, text: str) -> frozenset[int]:
    """The numbers (from 1) of the lines of `text` that name the failure of `log`."""
    parts = [part for part in (log.cause, *log.also) if part]
    lines = text.removesuffix("\n").split("\n")
    return frozenset(number for number, line in enumerate(lines, 1) if any(part in line for part in parts))


def is_held_out(name: str) -> bool:
    """Whether the log belongs to the half that no one looks at while `diagnose` is improved. Fixed by its name."""
    return hashlib.sha256(name.encode()).digest()[0] % 2 == 1


@cache
def made_logs() -> tuple[MadeLog, ...]:
    """Every log of truth/*.toml. Raises ValueError for a record that is not whole."""
    logs = [
        _made_log(path.stem, entry)
        for path in sorted((HERE / "truth").glob("*.toml"))
        for entry in tomllib.loads(path.read_text(encoding="utf-8"))["log"]
    ]
    names = [log.name for log in logs]
    if twice := {name for name in names if names.count(name) > 1}:
        raise ValueError(f"two logs have one name: {sorted(twice)}")
    return tuple(logs)


def _made_log(group: str, entry: dict[str, Any]) -> MadeLog:
    name = entry["name"]
    if unknown := set(entry) - _KEYS:
        raise ValueError(f"{name}: no field is called {sorted(unknown)}")
    how = [key for key in _HOW if key in entry]
    classes = entry.get("class", [])
    classes = tuple([classes] if isinstance(classes, str) else classes)
    if len(how) != 1 or set(classes) - CLASSES:
        raise ValueError(f"{name}: needs one program and known classes, has {how} and {classes}")
    if bool(classes) != bool(entry.get("cause")) or bool(classes) != (entry.get("retry") in {"yes", "no", "after_fix"}):
        raise ValueError(f"{name}: a failing log has a class, a cause and a retry; a healthy one has none of them")
    return MadeLog(
        name=name,
        group=group,
        how=how[0],
        program=entry[how[0]],
        classes=classes,
        retry=entry.get("retry", ""),
        cause=entry.get("cause", ""),
        also=tuple(entry.get("also", ())),
        dress=tuple(entry.get("dress", ())),
        shape=entry.get("shape", ""),
        source=entry.get("source", ""),
        needs=tuple(entry.get("needs", ())),
        is_silent=entry.get("silent", False),
    )
