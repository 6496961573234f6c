"""Writes the file in which one process of a training reports, and names the requests beside it.

Standard library only, Python 3.9 or later. Nothing here raises because of the folder or a full disk.
"""

from __future__ import annotations

import json
import math
import os
import time
from pathlib import Path
from typing import Any

STOP = "stop"  # a file: the supervisor asks for a save and the end
STOP_AT = "stop_at"  # a file: the step after which all ranks of this machine stop
SAVE = "save"  # a file: the supervisor asks for a checkpoint; rank 0 removes it
SAVE_AT = "save_at"  # a file: the step after which all ranks of this machine save
RESUME = "resume"  # a file: the path of the checkpoint to resume from

_BETWEEN_LINES_S = 0.25  # a loop of a thousand steps per second writes four lines
# How far a rank may be ahead of rank 0: by a step, and by what it has given to its device without waiting.
_AHEAD_STEPS, _AHEAD_S = 2, 2.0


class RankReport:
    """The file of this process. Only the newest step waits in memory, at most a quarter of a second."""

    def __init__(self, folder: Path, rank: str) -> None:
        self.rank = rank
        self.stop, self.stop_at, self.resume = folder / STOP, folder / STOP_AT, folder / RESUME
        self.save, self.save_at = folder / SAVE, folder / SAVE_AT
        self.planned_at = self.saved_at = -1  # the step that this rank chose for the latest save, and its latest save
        self.listens_to_saves = False
        self.newest = 0
        self._first: tuple[float, int] | None = None  # monotonic seconds, step
        self.looked_s = -math.inf
        self.listens = False
        self.stops = False
        self._written_s = -math.inf
        self._waiting: tuple[float, int, Any, Any] | None = None
        self._path = folder / f"rank{rank}-{os.getpid()}.jsonl"
        self._file = -1
        self._failed = False
        self._cut = False

    def step(self, number: int, loss: Any, tokens: Any) -> None:
        self.newest = number
        now_s = time.monotonic()
        if self._first is None:
            self._first = now_s, number
        self._waiting = (time.time(), number, loss, tokens)
        if now_s - self._written_s >= _BETWEEN_LINES_S:
            self._written_s = now_s
            self.flush()

    def choose_last_step(self) -> int:
        """A step that no rank has reached yet, by the mean step time of this one."""
        if self._first is None:
            return self.newest + _AHEAD_STEPS
        took_s, steps = time.monotonic() - self._first[0], self.newest - self._first[1]
        return self.newest + max(_AHEAD_STEPS, math.ceil(_AHEAD_S * steps / max(took_s, _AHEAD_S)))

    def flush(self) -> None:
        """Write the step that waits."""
        if self._waiting is None:
            return
        at_s, number, loss, tokens = self._waiting
        self._waiting = None
        line: dict[str, Any] = {"t": round(at_s, 3), "step": number}
        if loss is not None:
            line["loss"] = _number(loss)  # a tensor on a GPU is waited for here, four times a second at most
        if tokens is not None:
            line["tokens"] = _number(tokens)
        self._append(line)

    def write(self, **values: Any) -> None:
        """Write a line of another kind, after the step before it."""
        self.flush()
        self._append({"t": round(time.time(), 3), "step": self.newest, **values})

    def _append(self, line: dict[str, Any]) -> None:
        if self._failed:
            return
        try:
            if self._file < 0:
                flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
                self._file = os.open(self._path, flags, 0o600)
            data = (("\n" if self._cut else "") + json.dumps(line) + "\n").encode()
            sent = 0
            while sent < len(data):  # a network disk may take a part
                sent += os.write(self._file, data[sent:])
                self._cut = sent < len(data)  # the next line begins anew if the disk becomes full here
        except FileNotFoundError:  # the folder is gone, and with it everybody who reads it
            self._failed = True
        except OSError:  # a full disk may have room again later
            pass


def _number(value: Any) -> Any:
    """A plain number; None where there is none. JSON has no NaN, so that is a text."""
    try:
        number = float(value.detach() if hasattr(value, "detach") else value)
    except (TypeError, ValueError, RuntimeError):  # a tensor with several values raises RuntimeError
        return None
    if not math.isfinite(number):
        return str(number)
    return int(number) if number.is_integer() and isinstance(value, int) else number
