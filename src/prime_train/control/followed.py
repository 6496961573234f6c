"""Follows one run: events, curves, supervisor and GPUs. Each look reads what is written since the one before."""

from __future__ import annotations

import contextlib
import errno
import os
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from prime_train.control.curves import CurveFollower
from prime_train.control.timeline import Entry, make_entry
from prime_train.core.errors import UserError
from prime_train.core.outside import RECORD_BYTES, read_json
from prime_train.core.process_id import Holder
from prime_train.core.rundir import RunDir
from prime_train.events import Follower, LaunchAsked, Progress, Record, TrainerStarted
from prime_train.events.record import describe
from prime_train.supervise.core.fold import fold
from prime_train.supervise.core.state import State
from prime_train.supervise.processes.lock import find_holder
from prime_train.supervise.services.used_gpus import UsedGpus, find_gpus
from prime_train.supervise.services.wandb_links import find_link
from prime_train.supervise.watches.gpu.health import read_gpu_health

ENTRIES_KEPT = 2000  # of a run; the files of its events have them all
_SLOW_EVERY_S = 2.0  # between two looks at the lock and at the GPUs
_MOST_RANKS = 4096
Fingerprint = str  # of the files of a run's events: equal if nothing was written


@dataclass(slots=True)
class RankSeen:
    """A process of the newest attempt, as it reported itself."""

    rank: int
    pid: int
    device: str
    writer: str
    step: int | None = None
    sign_s: float | None = None  # when it wrote its latest event


class FollowedRun:
    """What is known of one run, up to the latest `poll`."""

    def __init__(self, run_dir: RunDir) -> None:
        self.run_dir = run_dir
        self.state = State()
        self.entries: deque[Entry] = deque(maxlen=ENTRIES_KEPT)
        self.ranks: dict[int, RankSeen] = {}
        self.world_size: int | None = None
        self.curves = CurveFollower(run_dir)
        self.holder: Holder | None = None
        self.gpus: Mapping[str, Any] = {}  # the latest sample of the GPU watch
        self.unreadable = ""  # why the events cannot be read
        self.viewed_s = 0.0  # when a page last asked for its details
        self._follower = Follower(run_dir.events)
        self._stepped: set[int] = set()
        self._slow_s = 0.0

    @property
    def name(self) -> str:
        """The name of its folder, by which every command finds it."""
        return self.run_dir.path.name

    @property
    def is_supervised(self) -> bool:
        return self.holder is not None

    @property
    def damage(self) -> str:
        return describe(self._follower.damage)

    def poll(self, now_s: float) -> bool:
        """Read what is new. Returns whether anything that is shown may have changed."""
        is_changed = now_s - self._slow_s >= _SLOW_EVERY_S and self._look_around(now_s)
        try:
            records = self._follower.poll()
        except (UserError, OSError) as error:
            reason = f"{error.what}: {error.why}" if isinstance(error, UserError) else error.strerror or str(error)
            is_changed = is_changed or self.unreadable != reason
            self.unreadable = reason
            return is_changed
        for record in records:
            self._take(record)
        return is_changed or bool(records)

    def _take(self, record: Record) -> None:
        self.state = fold(self.state, record)
        self.curves.add(record)
        entry = make_entry(record, self.state, self._stepped)
        if entry is not None:
            self.entries.append(entry)
        match record.event:
            case LaunchAsked():
                self.ranks.clear()
            case TrainerStarted(rank=rank, pid=pid, device=device) as started if len(self.ranks) < _MOST_RANKS:
                self.ranks[rank] = RankSeen(rank, pid, device, record.writer, sign_s=record.time_s)
                self.world_size = started.world_size
            case event:
                seen = next((one for one in self.ranks.values() if one.writer == record.writer), None)
                if seen is not None:
                    seen.sign_s = record.time_s
                    seen.step = event.step if isinstance(event, Progress) else seen.step

    def _look_around(self, now_s: float) -> bool:
        """Look at the lock and at the GPUs. Returns whether they have changed."""
        self._slow_s = now_s
        before = self.holder, self.gpus
        self.holder = find_holder(self.run_dir)
        self.gpus = read_gpu_health(self.run_dir, now_s) if self.is_supervised else {}
        return before != (self.holder, self.gpus)

    @cached_property
    def config(self) -> Mapping[str, Any]:
        """The document of resolved.json; empty if it cannot be read."""
        with contextlib.suppress(OSError, ValueError):
            found = read_json(self.run_dir.resolved, RECORD_BYTES, self.run_dir.path)
            if isinstance(found, dict):
                return found
        return {}

    @property
    def used_gpus(self) -> UsedGpus | None:
        """The GPUs that it uses, by which it costs."""
        with contextlib.suppress(OSError, ValueError):
            return find_gpus(self.run_dir, self.state.started, self.config)
        return None

    @cached_property
    def link(self) -> str | None:
        """Its page at W&B."""
        with contextlib.suppress(OSError):
            return find_link(self.run_dir, self.config)
        return None


def fingerprint(run_dir: RunDir) -> Fingerprint:
    """Names, sizes and times of the files of events; "" where they cannot be listed."""
    try:
        with os.scandir(run_dir.events) as entries:
            found = sorted(
                (entry.name, status.st_ino, status.st_size, status.st_mtime_ns)
                for entry in entries
                if entry.name.endswith(".jsonl") and (status := entry.stat(follow_symlinks=False))
            )
    except OSError as error:
        return errno.errorcode.get(error.errno or 0, "")
    return repr(found)
