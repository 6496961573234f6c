"""Reads how long the saves of earlier runs in a folder took on this machine. Bounded; changes nothing."""

from __future__ import annotations

import os
import statistics
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from prime_train.core.errors import UserError
from prime_train.core.outside import RECORD_BYTES, read_text
from prime_train.core.process_id import own_user
from prime_train.core.rundir import RunDir
from prime_train.events import CheckpointSaved, Follower, Record, RunOpened

_MOST_RUNS = 20  # the latest ones: an older disk may have been another one
_END_BYTES = 256 << 10  # of each file of events
_LEAST_BYTES = 1 << 20  # a smaller save shows the overhead of the files, and not the disk


class EarlierSaves(NamedTuple):
    """Medians over the saves of one run. `stall_s`: the training stood still. `write_s`: from start to marker.

    `in_background`: the loop went on while a save was written.
    """

    run: str
    saves: int
    size_bytes: int
    stall_s: float
    write_s: float
    in_background: bool


def find_earlier_saves(folder: Path) -> tuple[EarlierSaves, ...]:
    """The saves of each run in the folder that ran on this machine, the latest run first; () for no such run."""
    return tuple(found for path in _latest(folder) if (found := _read_saves(RunDir(path))) is not None)


def _latest(folder: Path) -> list[Path]:
    """The runs whose events changed last."""
    changed: list[tuple[float, Path]] = []
    with suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            with suppress(OSError):  # the run of another user
                if entry.is_dir(follow_symlinks=False):
                    path = Path(entry.path)
                    changed.append((RunDir(path).events.stat().st_mtime, path))
    return [path for _, path in sorted(changed, reverse=True)[:_MOST_RUNS]]


def _read_saves(run_dir: RunDir) -> EarlierSaves | None:
    with suppress(OSError, UserError, ValueError):
        records = Follower.near_end(run_dir.events, _END_BYTES).poll()
        saves = list(_select_saves(records))
        in_background = _saves_in_background(run_dir)
        if saves and in_background is not None:
            size_bytes = round(statistics.median(save.size_bytes for save in saves))
            stall_s = statistics.median(save.stall_s for save in saves)
            write_s = statistics.median(save.write_s for save in saves)
            return EarlierSaves(run_dir.path.name, len(saves), size_bytes, stall_s, write_s, in_background)
    return None


def _select_saves(records: list[Record]) -> Iterator[CheckpointSaved]:
    """The saves after a supervisor of this machine had opened the run. Without such an event the machine is unknown."""
    is_here = False
    for record in records:
        event = record.event
        if isinstance(event, RunOpened):
            is_here = event.by.rpartition("@")[2] == own_user().rpartition("@")[2]
        elif isinstance(event, CheckpointSaved) and is_here and event.write_s > 0 and event.size_bytes >= _LEAST_BYTES:
            yield event


def _saves_in_background(run_dir: RunDir) -> bool | None:
    """Whether the trainer goes on during a save; None where that is not known."""
    from prime_train.spec import from_json  # pydantic, which takes 65 ms, is for a folder with saves alone
    from prime_train.spec.answers import saves_in_background

    run = from_json(read_text(run_dir.resolved, RECORD_BYTES, run_dir.path))
    return None if run.command is not None else saves_in_background(run)
