"""The small file in which a rank keeps the times of its latest steps, for the supervisor. Standard library only.

A step takes the place of the oldest one, so the file never grows. It is not synced: after a crash none of it counts.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import re
import struct
from dataclasses import dataclass
from pathlib import Path

from prime_train.core.outside import parse_json, read_bytes
from prime_train.core.rundir import make_folder, open_private, write_atomic

STEPS_KEPT = 64
_HEAD_BYTES = 512  # JSON, filled up with blanks
_ROW = struct.Struct("<q5d")
_LIMIT_BYTES = _HEAD_BYTES + STEPS_KEPT * _ROW.size
_LONGEST_S = 1e6
_MOST_RANKS = 1024  # of one machine
_MOST_WORK = 2.0**53  # beyond it no float holds each whole number
_NAME = re.compile(r"rank(\d{1,6})\.times")


@dataclass(frozen=True, slots=True)
class RankStep:
    """One step of a rank. The seconds of its own work are `data_s` and `compute_s`."""

    step: int
    step_s: float  # the whole step
    data_s: float  # until the rows were there
    compute_s: float  # forward and backward, without the exchange
    wait_s: float  # in exchanges: for the slowest rank, and for the network
    work: float = 0.0  # positions that it computed; 0 = not known


@dataclass(frozen=True, slots=True)
class RankTimes:
    """The latest steps of a rank, oldest first. `gpu`: the UUID, "" on a CPU."""

    rank: int
    machine: str
    gpu: str
    steps: tuple[RankStep, ...]


class RankTimesFile:
    """The file of one rank, for writing. An error of the disk ends no training: the steps are missing then."""

    def __init__(self, folder: Path, rank: int, machine: str, gpu: str) -> None:
        head = json.dumps({"rank": rank, "machine": machine[:200], "gpu": gpu[:80]}).encode()
        self._file = -1
        # The supervisor creates the folder of an attempt; without a supervisor nothing reads the times.
        with contextlib.suppress(OSError):
            folder.mkdir(mode=0o700, exist_ok=True)
            with contextlib.suppress(FileNotFoundError):  # of a replica that was lost, and starts again
                _path(folder, rank).unlink()
            self._file = open_private(_path(folder, rank), os.O_WRONLY | os.O_CREAT | os.O_EXCL)
            os.pwrite(self._file, head.ljust(_HEAD_BYTES), 0)

    def add(self, one: RankStep) -> None:
        """Write a step. One call of the system, which takes some microseconds."""
        row = _ROW.pack(one.step, one.step_s, one.data_s, one.compute_s, one.wait_s, one.work)
        if self._file >= 0:
            with contextlib.suppress(OSError):
                os.pwrite(self._file, row, _HEAD_BYTES + one.step % STEPS_KEPT * _ROW.size)


def read_all_times(folder: Path, within: Path) -> dict[int, RankTimes]:
    """The times of each rank of an attempt, by its number. What is no file of a rank is left out."""
    found: dict[int, RankTimes] = {}
    with contextlib.suppress(OSError):
        names = sorted(name for name in os.listdir(folder) if _NAME.fullmatch(name))
        for name in names[:_MOST_RANKS]:
            with contextlib.suppress(OSError, ValueError, KeyError, TypeError, AttributeError):
                times = _parse(read_bytes(folder / name, _LIMIT_BYTES, within))
                if name == f"rank{times.rank}.times":
                    found[times.rank] = times
    return found


def read_content(folder: Path, rank: int, within: Path) -> bytes | None:
    """The file of one rank as it is, for another machine; None where there is none, or a rank is about to write it."""
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError, AttributeError):
        content = read_bytes(_path(folder, rank), _LIMIT_BYTES, within)
        return content if _parse(content).rank == rank else None
    return None


def keep_content(folder: Path, rank: int, content: bytes) -> None:
    """Write what `read_content` returned on another machine. Raises ValueError for anything else, and OSError."""
    try:
        is_known = len(content) <= _LIMIT_BYTES and _parse(content).rank == rank
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(str(error)) from error
    if not is_known:
        raise ValueError(f"it is no file of rank {rank}")
    make_folder(folder)
    write_atomic(_path(folder, rank), content)


def _path(folder: Path, rank: int) -> Path:
    return folder / f"rank{rank}.times"


def _parse(content: bytes) -> RankTimes:
    """Raises ValueError, KeyError or TypeError for anything else than what a rank writes."""
    head = parse_json(content[:_HEAD_BYTES].decode())
    whole = (len(content) - _HEAD_BYTES) // _ROW.size * _ROW.size
    rows = enumerate(_ROW.iter_unpack(content[_HEAD_BYTES : _HEAD_BYTES + max(0, whole)]))
    steps = [RankStep(*row) for slot, row in rows if row[0] > 0 and row[0] % STEPS_KEPT == slot and _is_time(row[1:])]
    rank, machine, gpu = head["rank"], head["machine"], head["gpu"]
    if type(rank) is not int or not (machine + gpu).isprintable() or len(machine + gpu) > _HEAD_BYTES:
        raise ValueError("the head names no rank")
    return RankTimes(rank, machine, gpu, tuple(sorted(steps, key=lambda one: one.step)))


def _is_time(values: tuple[float, ...]) -> bool:
    *seconds, work = values
    is_known = all(math.isfinite(value) and 0 <= value <= _LONGEST_S for value in seconds)
    return is_known and 0 <= work <= _MOST_WORK
