"""Backs up a live run in a child process of low priority, and once more at the end of the run.

The child runs only while the trainer trains, because it may delete checkpoints whose copy is proved; it is ended before
an attempt chooses and loads one. It may be ended at any moment, and the next child continues. A bucket that fails for
long raises an alarm; it never stops the run.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any, Literal

from prime_train import events
from prime_train.checkpoints.step_folders import StepPlaces
from prime_train.core.process_id import Identity
from prime_train.core.rundir import RunDir
from prime_train.events import Event
from prime_train.spec import RunSpec
from prime_train.supervise.core.state import State
from prime_train.supervise.watches.sampler import Sampler

_PROGRAM = Path(__file__).with_name("backup_program.py")
_LAST_READ_S = 5.0  # for the last lines of a child that ended to be read
_RETRY_S = 30.0  # after a failed round; doubled by each further one
_LONGEST_RETRY_S = 600.0
_SILENT_S = 1800.0  # one object takes less, so the child hangs
_ALARM_S = 900.0  # of failures in a row
_POLL_S = 0.05
_FLUSH_STARTS = 3  # of a child that is killed in the last round, after which no other round comes
ALARM = ("backup", "backup_failing", "")


class BackgroundBackup:
    """The child process and its results. Without a provider in the config there is none.

    `find_places` is asked at each start, because a script may name its folder with its first checkpoint.
    """

    def __init__(self, run: RunSpec, run_dir: RunDir, find_places: Callable[[], StepPlaces]) -> None:
        self._run = run
        self._backup = run.prime_train.backup
        self._run_dir = run_dir
        self._find_places = find_places
        self._enabled = self._backup.provider not in (None, "off")
        if self._enabled:  # most runs have no backup, and do not load its code
            from prime_train.backups.settings import describe
            from prime_train.backups.sync import put_back

            self._put_back, self._describe = put_back, describe
        self._child: Sampler | None = None
        self._target = 0  # newest complete checkpoint when the child was started
        self._done = 0  # newest complete checkpoint of the last round that ended well
        self._in_bucket = 0  # newest step that was seen to get there
        self._was_cut = False  # a child was ended in its round, perhaps between a copy and its report
        self._ended_early = False  # the last child ended without its last line
        self._failures = 0
        self._failing_since_s: float | None = None  # on the monotonic clock
        self._retry_s = 0.0
        self._found: list[Event] = []
        self._reported: set[tuple[int, str]] = set()  # because every round finds an old problem again

    def consider(self, state: State) -> None:
        """Start a child if a checkpoint may be due; end it if no trainer trains.

        Returns soon. Call it from the main thread, which starts the child.
        """
        if not self._enabled:
            return
        self._gather(state)
        if state.live is None or state.live.first_progress is None or state.live.sent:
            self.end()
        elif self._child is None and state.newest_complete > self._done and time.monotonic() >= self._retry_s:
            self._start(state, is_final=False)

    def results(self, state: State) -> tuple[Event, ...]:
        """The events since the last call, with the alarm where the bucket fails for long."""
        found, self._found = self._found, []
        attempt = state.live.number if state.live else 0
        is_active = any(active.key == ALARM for active in state.alarms)
        if self._failing_since_s is None:
            return (*found, events.AlarmCleared(attempt, *ALARM)) if is_active else tuple(found)
        failing_s = time.monotonic() - self._failing_since_s
        if failing_s < _ALARM_S or is_active:
            return tuple(found)
        what = f"no checkpoint could be backed up for {failing_s / 60:.0f} min"
        why = "if this machine is lost, everything since the last copy is lost"
        fix = f"see {self._run_dir.relative(self._log)}; prime-train backup status {self._run.run.name}"
        about, where = (attempt, *ALARM, "alert", "network"), self._describe(self._backup)
        return (*found, events.AlarmRaised(*about, what, why, fix, where, state.step))

    def processes(self) -> tuple[Identity, ...]:
        return self._child.processes() if self._child is not None else ()

    def end(self) -> None:
        """End the child, so that a checkpoint can be chosen and loaded; takes at most 2 s, even if the disk hangs."""
        if self._child is not None:
            self._child.end()
            self._was_cut = not self._read(self._child) or self._was_cut
            self._child = None
            if self._backup.delete_after_upload:
                self._put_back(self._find_places())

    def flush(self, state: State, is_interrupted: Callable[[], bool], limit_s: float) -> None:
        """Back the newest checkpoint up before `run` ends, within `limit_s`.

        `results` has the outcome. Returns at once where its round is done. `is_interrupted` is asked often, and ends
        the wait.
        """
        if not self.needs_flush(state):
            return
        self.end()
        end_s = time.monotonic() + limit_s
        for _ in range(_FLUSH_STARTS):
            self._start(state, is_final=True)
            waited = self._await_child(state, is_interrupted, end_s)
            if waited != "ended":
                self.end()
                late, interrupted = f"its limit of {limit_s:.0f} s is over", "a signal ended the wait"
                why = late if waited == "late" else interrupted
                self._found.append(events.CheckpointBackedUp(state.newest_complete, 0, 0, limit_s, why))
                return
            if not self._ended_early:
                return

    def _await_child(
        self, state: State, is_interrupted: Callable[[], bool], end_s: float
    ) -> Literal["ended", "interrupted", "late"]:
        while True:
            self._gather(state)
            if self._child is None:
                return "ended"
            time.sleep(_POLL_S)
            if is_interrupted():
                return "interrupted"
            if time.monotonic() > end_s:
                return "late"

    def needs_flush(self, state: State) -> bool:
        """Whether the newest checkpoint was not copied, or its round was ended before it pruned and freed."""
        return self._enabled and min(self._in_bucket, self._done) < state.newest_complete

    @property
    def _log(self) -> Path:
        return self._run_dir.watches / "backup.log"

    def _start(self, state: State, *, is_final: bool) -> None:
        order = {
            "run": self._run.run.name,
            "backup": asdict(self._backup),
            "places": self._find_places().as_json(),
            "folder": str(self._run_dir.backup),
            "keep_every_steps": self._run.checkpoint.keep_every_steps,
            "final": is_final,
        }
        self._target, self._ended_early = state.newest_complete, False
        child = Sampler(_PROGRAM, [json.dumps(order)], self._log)
        try:
            child.begin()
        except OSError as error:  # no processes or no space left: the run continues
            self._fail(self._target, f"no program can be started: {error.strerror}")
        else:
            self._child = child

    def _gather(self, state: State) -> None:
        """Read the results of the child. One that ends without its last line, or hangs, has failed."""
        child = self._child
        if child is None:
            return
        has_ended = child.ended is not None and child.silent_s > _LAST_READ_S
        if self._read(child):
            self._child = None
        elif has_ended or child.silent_s > _SILENT_S:
            problem = "the program that backs up ended early" if has_ended else "the bucket does not answer"
            self._fail(state.newest_complete, f"{problem}: see {self._log}")
            self._child, self._ended_early = None, has_ended
        if self._child is None:
            child.end()

    def _read(self, child: Sampler) -> bool:
        """Take the results of the child; returns whether its last line was among them."""
        has_ended = False
        for row in child.take():
            match row["did"]:
                case "done":
                    has_ended = True
                    self._done, self._failures, self._failing_since_s = self._target, 0, None
                case "ended":
                    has_ended = True
                case "failed":
                    self._fail(row["step"], row["problem"])
                case "sending":
                    pass
                case "held" if not self._was_cut or row["step"] <= self._in_bucket:
                    self._in_bucket = max(self._in_bucket, row["step"])
                case _:
                    self._found.append(self._event(row))
        return has_ended

    def _event(self, row: dict[str, Any]) -> Event:
        match row["did"]:
            case "pushed" | "held":
                self._in_bucket = max(self._in_bucket, row["step"])
                return events.CheckpointBackedUp(row["step"], row["size_bytes"], row["stored_bytes"], row["seconds"])
            case "pruned":
                return events.BackupPruned(row["step"], row["size_bytes"], row["reason"])
            case _:
                return events.SpaceFreed(0, row["path"], row["size_bytes"], row["reason"])

    def _fail(self, step: int, problem: str) -> None:
        self._failures += 1
        self._failing_since_s = self._failing_since_s or time.monotonic()
        self._retry_s = time.monotonic() + min(_LONGEST_RETRY_S, _RETRY_S * 2 ** (self._failures - 1))
        if (step, problem) not in self._reported:
            self._reported.add((step, problem))
            self._found.append(events.CheckpointBackedUp(step, 0, 0, 0.0, problem))
