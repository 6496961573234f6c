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
from prime_train.core.rundir import RunDir, make_folder, open_private, write_atomic
from prime_train.events import TrainerFailed

Stage = Literal["setup", "ready", "waits", "works", "sums", "saves", "done", "left"]
_STAGES = frozenset(get_args(Stage))
LIGHTHOUSE = "lighthouse"  # the file with the address; another one after a lighthouse was lost
_LINE_BYTES = 256


@dataclass(frozen=True, slots=True)
class LifeSign:
    """One sign. `since_s` is on the monotonic clock, which all processes of a machine share."""

    stage: Stage
    step: int  # that was committed last
    since_s: float
    pid: int
    sum_limit_s: float = 0.0  # after which a sum ends by itself; 0 = not known
    is_wide: bool = False  # the step may be slow for a reason


def folder_of(run_dir: RunDir, attempt: int) -> Path:
    """The folder for the files of the replicas of an attempt."""
    return run_dir.attempt(attempt) / "replicas"


def sign_path(folder: Path, replica: int) -> Path:
    return folder / f"replica-{replica}.json"


class SignFile:
    """The file of one replica, which has one writer. An error of the disk costs the sign alone."""

    def __init__(self, folder: Path, replica: int) -> None:
        make_folder(folder)
        self._file = open_private(sign_path(folder, replica), os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW)

    def write(self, stage: Stage, step: int, sum_limit_s: float = 0.0, *, is_wide: bool = False) -> None:
        sign = LifeSign(stage, step, time.monotonic(), os.getpid(), sum_limit_s, is_wide)
        # Of one length, so that no end of an earlier line stays behind it.
        with suppress(OSError):
            os.pwrite(self._file, json.dumps(asdict(sign)).ljust(_LINE_BYTES).encode() + b"\n", 0)


def keep_failure(folder: Path, replica: int, failed: TrainerFailed) -> None:
    """Write why a replica ended, for the launcher. Raises OSError."""
    make_folder(folder)
    write_atomic(folder / f"failure-{replica}.json", json.dumps(asdict(failed)))


def take_failure(folder: Path, replica: int) -> TrainerFailed | None:
    """Why a replica ended, once; None where it did not write it, as after a SIGKILL."""
    path = folder / f"failure-{replica}.json"
    try:
        found = TrainerFailed(**outside.read_json(path, outside.RECORD_BYTES, within=folder))
        path.unlink()
    except (OSError, ValueError, TypeError):
        return None
    return found


def read_sign(folder: Path, replica: int) -> LifeSign | None:
    """The latest sign of a replica; None where there is none, or a reader came between two halves of a write."""
    try:
        found = outside.read_json(sign_path(folder, replica), outside.MARK_BYTES, within=folder)
        times = float(found["since_s"]), float(found["sum_limit_s"])
        sign = LifeSign(
            found["stage"], int(found["step"]), times[0], int(found["pid"]), times[1], bool(found["is_wide"])
        )
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return sign if sign.stage in _STAGES else None
