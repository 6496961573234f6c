"""What a replica does, in a small file that it overwrites: its stage, and since when. Starts and judges nothing.

A write is one system call of a few microseconds, because a step has several. The heartbeat of torchft comes from a
thread of its own, which lives on while Python hangs; this file stands still then.
"""

from __future__ import annotations

import json
import os
import time
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal, get_args

from prime_train.core import outside
from prime_train.core.replica_files import SIGN_BYTES, sign_path
from prime_train.core.rundir import RunDir, make_folder, open_private, write_atomic
from prime_train.events import TrainerFailed

Stage = Literal["setup", "ready", "waits", "works", "sums", "saves", "done", "left"]
_STAGES = frozenset(get_args(Stage))


@dataclass(frozen=True, slots=True)
class LifeSign:
    """One sign. `since_s` is on the monotonic clock, which all processes of a machine share."""

    stage: Stage
    step: int  # that was committed last
    since_s: float
    pid: int
    round_steps: int = 1  # that it commits together
    sum_limit_s: float = 0.0  # after which a sum ends by itself; 0 = not known
    is_wide: bool = False  # the step may be slow for a reason


def folder_of(run_dir: RunDir, attempt: int) -> Path:
    """The folder for the files of the replicas of an attempt."""
    return run_dir.replicas(attempt)


class SignFile:
    """The file of one replica, which has one writer: rank 0. An error of the disk costs the sign alone.

    No other rank writes a sign, because rank 0 comes no further than the slowest of them.
    """

    def __init__(self, folder: Path, replica: int, rank: int = 0) -> None:
        self._file: int | None = None
        if rank == 0:
            make_folder(folder)
            self._file = open_private(sign_path(folder, replica), os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW)
        self.round_steps = 1

    def write(self, stage: Stage, step: int, sum_limit_s: float = 0.0, *, is_wide: bool = False) -> None:
        if self._file is None:
            return
        sign = LifeSign(stage, step, time.monotonic(), os.getpid(), self.round_steps, sum_limit_s, is_wide)
        # Always as long as before, so that no end of an earlier line stays behind it.
        with suppress(OSError):
            os.pwrite(self._file, json.dumps(asdict(sign)).ljust(SIGN_BYTES - 1).encode() + b"\n", 0)


def keep_failure(folder: Path, replica: int, failed: TrainerFailed) -> None:
    """Write why a rank of a replica ended, for the launcher. Raises OSError."""
    make_folder(folder)
    write_atomic(_failure_path(folder, replica, failed.rank), json.dumps(asdict(failed)))


def take_failure(folder: Path, replica: int, ranks: int = 1) -> TrainerFailed | None:
    """Why a replica ended, once; None where it did not write it, as after a SIGKILL.

    The others fail because one rank is gone, so what was written first counts, and a known cause more than any other.
    """
    found: list[tuple[bool, int, TrainerFailed]] = []
    for path in (_failure_path(folder, replica, rank) for rank in range(ranks)):
        with suppress(OSError, ValueError, TypeError):
            failed = TrainerFailed(**outside.read_json(path, outside.RECORD_BYTES, within=folder))
            found.append((failed.cause_class == "unknown", path.stat().st_mtime_ns, failed))
            path.unlink()
    return min(found, key=lambda one: one[:2])[2] if found else None


def _failure_path(folder: Path, replica: int, rank: int) -> Path:
    return folder / f"failure-{replica}-{rank}.json"


def read_sign(folder: Path, replica: int) -> LifeSign | None:
    """The latest sign of a replica; None where there is none, or a reader came between two halves of a write."""
    try:
        found = outside.read_json(sign_path(folder, replica), outside.MARK_BYTES, within=folder)
        times = float(found["since_s"]), float(found["sum_limit_s"])
        numbers = int(found["pid"]), int(found["round_steps"])
        sign = LifeSign(found["stage"], int(found["step"]), times[0], *numbers, times[1], bool(found["is_wide"]))
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return sign if sign.stage in _STAGES else None
