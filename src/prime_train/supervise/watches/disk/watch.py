"""The disk watch: has the disk sampled, judges, and has deleted what may go. The loop never waits for a disk."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from prime_train.checkpoints import removal
from prime_train.checkpoints.cleanup import Deletion, Keep, Kind
from prime_train.checkpoints.inventory import Places
from prime_train.core.process_id import Identity
from prime_train.core.rundir import RunDir
from prime_train.facts.disk import mount_of
from prime_train.spec import RunSpec
from prime_train.supervise.state import State
from prime_train.supervise.watches.disk import messages as words
from prime_train.supervise.watches.disk.judge import Memory, judge
from prime_train.supervise.watches.disk.removal_program import Order
from prime_train.supervise.watches.disk.room import Doing, Limits
from prime_train.supervise.watches.disk.sample import Sample, sample_from
from prime_train.supervise.watches.sampler import Sampler
from prime_train.supervise.watches.watch import Alarm

_PROGRAM = Path(__file__).with_name("disk_program.py")
_REMOVAL = Path(__file__).with_name("removal_program.py")
_AT_ONCE = 64  # deletions that one process is asked for: what fits on a command line
_FAILED_S = 600.0  # before what could not be deleted is tried again
_AGAIN_S = 60.0  # before the look at the disk is started again
_SILENT_S = 45.0
_SLOW_REMOVAL_S = 1800.0
_ADAM_BYTES = 12  # per parameter: weights and two moments in fp32. Source: ZeRO, arXiv 1910.02054, s. 3.1


@dataclass(frozen=True, slots=True)
class Freed:
    """What came of a deletion. `failed` is empty where it was done."""

    kind: Kind
    step: int  # -1 of what was left of an interrupted deletion
    path: Path
    size_bytes: int
    reason: str
    failed: str


class DiskWatch:
    """The watch of one run. What it did is fetched with `freed`."""

    name = "disk"

    def __init__(
        self,
        run: RunSpec,
        run_dir: RunDir,
        places: Places,
        keep: Keep,
        *,
        answer: Literal["alert", "pause"] = "pause",
        interval_s: float = 10.0,
    ) -> None:
        self._run = run
        self._places = places
        self._kept = keep  # while the run does not run
        cleanup = run.prime_train.cleanup
        self._limits = Limits(
            delete=cleanup.enabled,
            max_disk_gb=cleanup.max_disk_gb,
            max_used_ratio=cleanup.max_used_ratio,
            may_pause=answer == "pause",
            interval_s=interval_s,
        )
        self._log = run_dir.watches / "disk.log"
        self._sampler = self._new_sampler()
        self._began_s = 0.0
        self._memory = Memory()
        self._alarms: tuple[Alarm, ...] = ()
        self._removal: Sampler | None = None
        self._asked: dict[str, Deletion] = {}
        self._removed_s = 0.0  # monotonic: what was seen before it is not acted on
        self._freed: list[Freed] = []
        self._failed: dict[str, tuple[float, str]] = {}

    def _new_sampler(self) -> Sampler:
        arguments = (str(self._limits.interval_s), json.dumps(self._places.as_json()))
        return Sampler(_PROGRAM, arguments, self._log)

    def begin(self) -> None:
        """Start to look. What a dead supervisor was about to delete gets its name back first."""
        self.stand_still()
        self._began_s = time.monotonic()
        self._sampler.begin()

    def look(self, state: State, now_s: float) -> tuple[Alarm, ...]:
        """Everything that is wrong with the disk; deletions are begun here too. Never waits for the disk."""
        self._collect()
        for told in self._sampler.take():
            sample = self._but_failed(sample_from(told))
            keep = keep_while_running(self._kept, state)
            verdict = judge(self._memory, sample, doing_of(self._run, state), keep, self._limits, now_s)
            self._memory, self._alarms = verdict.memory, verdict.alarms
            if verdict.deletions and state.live is not None and sample.at_s > self._removed_s:
                self._remove(verdict.deletions[:_AT_ONCE], keep)
        return (*self._alarms, *self._troubles())

    def freed(self) -> list[Freed]:
        """What was deleted, or could not be, since the last call."""
        freed, self._freed = self._freed, []
        return freed

    def stand_still(self) -> None:
        """Delete nothing until the next look: call it before the checkpoint for an attempt is chosen.

        It touches the checkpoints' folder, as that choice does. Raises OSError where a folder cannot be renamed.
        """
        if self._removal is not None:
            self._removal.end()
            self._collect()
            self._close_removal()
        for root in self._places.folders:
            removal.put_back(root)

    def processes(self) -> tuple[Identity, ...]:
        removal = self._removal.processes() if self._removal is not None else ()
        return (*self._sampler.processes(), *removal)

    def end(self) -> None:
        self._sampler.end()
        if self._removal is not None:
            self._removal.end()

    # --- deletions ---

    def _remove(self, deletions: Sequence[Deletion], keep: Keep) -> None:
        if self._removal is not None:
            return
        self._asked = {str(one.item.paths[0]): one for one in deletions}
        order = Order(self._places, keep, tuple(deletions))
        self._removal = Sampler(_REMOVAL, (json.dumps(order.as_json()),), self._log)
        self._removal.begin()

    def _collect(self) -> None:
        """Take in what the deletions have come to so far."""
        if self._removal is None:
            return
        has_ended = self._removal.ended is not None  # before the last lines are taken, not after
        for told in self._removal.take():
            if one := self._asked.pop(told["path"], None):
                self._tell(one, told["failed"])
        if not self._asked and has_ended:
            self._close_removal()
        elif has_ended and self._removal.silent_s > _SILENT_S:  # it was killed
            for one in self._asked.values():
                self._tell(one, "the process that deletes was ended")
            self._close_removal()

    def _tell(self, one: Deletion, failed: str) -> None:
        path = one.item.paths[0]
        if failed:
            self._failed[str(path)] = (time.monotonic(), failed)
        self._freed.append(Freed(one.item.kind, one.item.step, path, one.item.size_bytes, one.reason, failed))

    def _close_removal(self) -> None:
        if self._removal is not None:
            self._removal.end()
        self._removal, self._asked, self._removed_s = None, {}, time.monotonic()

    def _but_failed(self, sample: Sample) -> Sample:
        """The sample without hope for what could not be deleted a moment ago."""
        failed = {path: why for path, (at_s, why) in self._failed.items() if sample.at_s - at_s < _FAILED_S}
        items = (
            replace(item, in_use=item.in_use or failed.get(str(item.paths[0]), "")) if failed else item
            for item in sample.items
        )
        return replace(sample, items=tuple(items))

    # --- the look itself ---

    def _troubles(self) -> list[Alarm]:
        """What is wrong with the looking and the deleting."""
        path, found = str(self._places.root), []
        if (code := self._sampler.ended) is not None:
            found.append(words.blind(path, code, str(self._log)))
            if time.monotonic() - self._began_s > _AGAIN_S:
                self._began_s = time.monotonic()
                self._sampler = self._new_sampler()
                self._sampler.begin()
        elif (silent_s := self._sampler.silent_s) > _SILENT_S + 3 * self._limits.interval_s:
            found.append(words.silent(path, _mounted(self._places.root), silent_s))
        if self._removal is not None and (slow_s := self._removal.silent_s) > _SLOW_REMOVAL_S:
            found.append(words.slow_removal(path, slow_s))
        return found


def _mounted(path: Path) -> str:
    """ ", nfs4 at /data": read from the table of mounts, never from the file system itself."""
    mount = mount_of(path)
    return f", {mount.kind} at {mount.point}," if mount is not None else ""


def keep_while_running(keep: Keep, state: State) -> Keep:
    """What must stay while the run is where `state` says."""
    attempt = state.attempt
    is_loading = state.live is not None and state.live.first_progress is None and attempt is not None
    return replace(
        keep,
        writing=True,
        saving_step=state.saving_step,
        loading_step=attempt.resume_step if is_loading and attempt is not None and attempt.resume_step else None,
        unreadable=frozenset(state.unreadable),
    )


def doing_of(run: RunSpec, state: State) -> Doing:
    """What the judgement needs to know of the run's own doing."""
    interval, last = run.checkpoint.interval_steps, state.max_steps or run.run.max_steps
    following = last if not interval else min(last, (state.step // interval + 1) * interval)
    params = state.started.params if state.started is not None else None
    return Doing(
        name=run.run.name,
        step=state.step,
        next_save_step=following,
        saving=state.saving_step is not None,
        settled=state.live is not None and state.live.first_progress is not None,
        first_save_bytes=params * _ADAM_BYTES if params else None,
    )
