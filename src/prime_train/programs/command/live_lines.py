"""Reads what a training reports through `prime_train.live`. Pure but for reading files.

The lines come from any script, so a line that is too long, no JSON or of another form is left out and
counted.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from prime_train.core import outside
from prime_train.core.outside import OutsideError, parse_json, to_count

_FILE = re.compile(r"rank(\d{1,7})-\d{1,10}\.jsonl")
_MOST_FILES = 4096  # ranks of one machine, and their restarts
_PIECE_BYTES = 1 << 20  # of one file at a time
_LONGEST_LINE = 8192  # a path and a little more
_LONGEST_TEXT = 4096
_LONGEST_PHASE_S = 30 * 24 * 3600.0


class LiveLine(NamedTuple):
    """One line of one rank. A value that the line does not have is None or ""."""

    rank: int
    at_s: float  # since the epoch, by the clock of the training
    step: int  # optimizer steps done
    loss: float | None = None
    tokens: float | None = None
    phase: str = ""
    limit_s: float = 0.0  # of that phase; 0 where the script gives none
    checkpoint: str = ""  # the path of one that is complete
    of_step: int | None = None  # of that checkpoint
    total: int | None = None  # steps at the end of the training
    finished: bool = False
    note: str = ""
    listens: bool = False  # it looks for a request to stop
    settings: int | None = None  # a version of the settings that it takes, on all ranks
    first: int | None = None  # the first step with it
    saves: bool = False  # it looks for requests to save


def parse_live_line(line: bytes, rank: int) -> LiveLine | None:
    """The line, or None where it has another form."""
    try:
        values = parse_json(line)
    except ValueError:
        return None
    if not isinstance(values, Mapping):
        return None
    step, at_s = to_count(values.get("step")), _number(values.get("t"))
    if step is None or at_s is None:
        return None
    return LiveLine(
        rank,
        at_s,
        step,
        loss=_number(values.get("loss")),
        tokens=_number(values.get("tokens")),
        phase=_text(values, "phase"),
        limit_s=_limit(values.get("limit_s")),
        checkpoint=_text(values, "checkpoint"),
        of_step=to_count(values.get("of_step")),
        total=to_count(values.get("total")),
        finished=values.get("finished") is True,
        note=_text(values, "note"),
        listens=values.get("listens") is True,
        settings=to_count(values.get("settings")),
        first=to_count(values.get("first")),
        saves=values.get("saves") is True,
    )


def _number(value: object) -> float | None:
    """A float. `live` writes those that JSON does not have as texts."""
    if value in ("nan", "inf", "-inf"):
        return float(str(value))
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def _limit(value: object) -> float:
    """Seconds; 0 for what is no time that a phase can take."""
    number = _number(value)
    return number if number is not None and 0 < number <= _LONGEST_PHASE_S else 0.0


def _text(values: Mapping[str, Any], key: str) -> str:
    value = values.get(key)
    return value[:_LONGEST_TEXT] if isinstance(value, str) and value.isprintable() else ""


class LiveLines:
    """The folder of one attempt, and how far each file was read."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.left_out = 0  # lines of another form
        self._offsets: dict[str, int] = {}

    def take(self) -> tuple[LiveLine, ...]:
        """The new whole lines of every rank, in order of time. A file that cannot be read has none."""
        found: list[LiveLine] = []
        for name in self._list_files():
            match = _FILE.fullmatch(name)
            assert match is not None
            for line in self._read_new(name):
                parsed = parse_live_line(line, int(match[1])) if len(line) <= _LONGEST_LINE else None
                if parsed is not None:
                    found.append(parsed)
                elif line.strip():
                    self.left_out += 1
        return tuple(sorted(found, key=lambda line: line.at_s))

    def _list_files(self) -> list[str]:
        try:
            names = [entry.name for entry in self.folder.iterdir() if _FILE.fullmatch(entry.name)]
        except OSError:
            return []
        return sorted(names)[:_MOST_FILES]

    def _read_new(self, name: str) -> list[bytes]:
        offset = self._offsets.get(name, 0)
        try:
            with outside.open_regular(self.folder / name, self.folder) as file:
                file.seek(offset)
                piece = file.read(_PIECE_BYTES)
        except (OutsideError, OSError):
            return []
        whole = piece.rfind(b"\n") + 1
        if whole == 0 and len(piece) == _PIECE_BYTES:  # longer than any line of `live`
            whole = len(piece)
        self._offsets[name] = offset + whole
        return piece[:whole].splitlines()
