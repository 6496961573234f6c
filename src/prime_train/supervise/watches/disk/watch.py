"""The disk watch: a child samples the disk, this module judges the samples, and a second child deletes files.

The loop never waits for a disk.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Literal

from prime_train.checkpoints import removal
from prime_train.checkpoints.cleanup import Deletion, Keep
from prime_train.checkpoints.step_folders import StepPlaces
from prime_train.core.process_id import Identity
from prime_train.core.rundir import RunDir
from prime_train.facts.host import mount_of
from prime_train.spec import PrimeTrain, RunSpec
from prime_train.supervise.core.state import State
from prime_train.supervise.launch.program import Context
from prime_train.supervise.watches.disk import messages
from prime_train.supervise.watches.disk.judge import DiskHistory, judge
from prime_train.supervise.watches.disk.places_search import PlacesSearch
from prime_train.supervise.watches.disk.removal_program import Order
from prime_train.supervise.watches.disk.room import DiskLimits, Doing
from prime_train.supervise.watches.disk.sample import DiskSample
from prime_train.supervise.watches.sample_lines import dump, load
from prime_train.supervise.watches.sampler import Sampler
from prime_train.supervise.watches.watch import Alarm, Freed

_PROGRAM = Path(__file__).with_name("disk_program.py")
_REMOVAL = Path(__file__).with_name("removal_program.py")
_AT_ONCE = 64  # deletions for one process, because they must fit on a command line
_FAILED_S = 600.0  # before a failed deletion is retried
_SILENT_S = 45.0
_SLOW_REMOVAL_S = 1800.0
_ADAM_BYTES = 12  # per parameter: weights and two moments in fp32. Source: ZeRO, arXiv 1910.02054, s. 3.1


def create(context: Context) -> DiskWatch:
    run, run_dir, program = context
    answer = run.prime_train.watch.disk
    assert answer != "off"
    return DiskWatch(run, run_dir, partial(program.places, run, run_dir), program.keep(run), answer=answer)


class DiskWatch:
    """The disk watch of one run. `freed` returns what it deleted."""

    name = "disk"

    def __init__(
        self,
        run: RunSpec,
        run_dir: RunDir,
        find_places: Callable[[], StepPlaces],
        keep: Keep,
        *,
        answer: Literal["alert", "pause"] = "pause",
        interval_s: float = 10.0,
    ) -> None:
        self._run = run
        self._places = find_places()
        self._search = PlacesSearch(find_places)
        self._kept = keep  # while no attempt lives
        cleanup = run.prime_train.cleanup
        self._limits = DiskLimits(
            delete=cleanup.enabled,
            max_disk_gb=cleanup.max_disk_gb,
            max_used_ratio=cleanup.max_used_ratio,
            may_pause=answer == "pause",
            interval_s=interval_s,
        )
        self._log = run_dir.watches / "disk.log"
        self._sampler = self._create_sampler(self._places)
        self._memory = DiskHistory()
        self._alarms: tuple[Alarm, ...] = ()
        self._removal: Sampler | None = None
        self._ordered: dict[str, Deletion] = {}
        self._removed_s = 0.0  # monotonic: older samples cause no deletion
        self._freed: list[Freed] = []
        self._failed: dict[str, tuple[float, str]] = {}

    def begin(self) -> None:
        """Start to sample. Folders that a dead supervisor was about to delete get their names back first."""
        self.stand_still()
        self._sampler.begin()

    def look(self, state: State, now_s: float) -> tuple[Alarm, ...]:
        """Everything that is wrong with the disk. Deletions start here too. Never waits for the disk."""
        self._collect()
        self._follow(self._search.take(state))
        self._sampler.keep()
        for raw in self._sampler.take():
            sample = self._mark_failed(load(DiskSample, raw))
            keep = keep_while_running(self._kept, state)
            doing = replace(read_doing(self._run, state), knows_layout=not self._places.outputs)
            verdict = judge(self._memory, sample, doing, keep, self._limits, now_s)
            self._memory, self._alarms = verdict.memory, verdict.alarms
            if verdict.deletions and state.live is not None and sample.at_s > self._removed_s:
                self._remove(verdict.deletions[:_AT_ONCE], keep)
        return (*self._alarms, *self._judge_children())

    def take_settings(self, settings: PrimeTrain) -> None:
        cleanup = settings.cleanup
        self._limits = replace(self._limits, max_disk_gb=cleanup.max_disk_gb, max_used_ratio=cleanup.max_used_ratio)

    def freed(self) -> list[Freed]:
        freed, self._freed = self._freed, []
        return freed

    def stand_still(self) -> None:
        """Delete nothing until the next look.

        Call it before the checkpoint for an attempt is chosen. It reads the checkpoints' folder, as that choice does.
        Raises OSError if a folder cannot be renamed.
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

    def _create_sampler(self, places: StepPlaces) -> Sampler:
        arguments = (str(self._limits.interval_s), json.dumps(places.as_json()))
        return Sampler(_PROGRAM, arguments, self._log)

    def _follow(self, places: StepPlaces | None) -> None:
        """Sample other places from here on. What was seen of those before counts no more, so it causes no deletion."""
        # A deletion in progress has the places before; its result comes first.
        if places is None or places == self._places or self._removal is not None:
            return
        sampler = self._create_sampler(places)
        try:
            sampler.begin()
        except OSError:  # the machine is out of processes or memory; the next look tries again
            return
        # In a thread, because the end of a process that waits for a disk may take long.
        threading.Thread(target=self._sampler.end, name="sampler-end", daemon=True).start()
        self._places, self._sampler, self._memory, self._alarms = places, sampler, DiskHistory(), ()

    def _remove(self, deletions: Sequence[Deletion], keep: Keep) -> None:
        if self._removal is not None:
            return
        self._ordered = {str(one.item.paths[0]): one for one in deletions}
        order = Order(self._places, keep, tuple(deletions))
        self._removal = Sampler(_REMOVAL, (dump(order),), self._log)
        self._removal.begin()

    def _collect(self) -> None:
        if self._removal is None:
            return
        has_ended = self._removal.ended is not None  # before the last lines are taken, not after
        for result in self._removal.take():
            if one := self._ordered.pop(result["path"], None):
                self._record(one, result["failed"])
        if not self._ordered and has_ended:
            self._close_removal()
        elif has_ended and self._removal.silent_s > _SILENT_S:  # it was killed
            for one in self._ordered.values():
                self._record(one, "the process that deletes was killed")
            self._close_removal()

    def _record(self, one: Deletion, failed: str) -> None:
        path = one.item.paths[0]
        if failed:
            _, reported = self._failed.get(str(path), (0.0, ""))
            self._failed[str(path)] = (time.monotonic(), failed)
            if failed == reported:
                return  # it is retried every ten minutes, and reported once
        self._freed.append(Freed(one.item.kind, one.item.step, path, one.item.size_bytes, one.reason, failed))

    def _close_removal(self) -> None:
        if self._removal is not None:
            self._removal.end()
        self._removal, self._ordered, self._removed_s = None, {}, time.monotonic()

    def _mark_failed(self, sample: DiskSample) -> DiskSample:
        """The sample with the items in use whose deletion has just failed."""
        failed = {path: why for path, (at_s, why) in self._failed.items() if sample.at_s - at_s < _FAILED_S}
        if not failed:
            return sample
        items = (replace(item, in_use=item.in_use or failed.get(str(item.paths[0]), "")) for item in sample.items)
        return replace(sample, items=tuple(items))

    def _judge_children(self) -> list[Alarm]:
        path, found = str(self._places.root), []
        if (code := self._sampler.failed) is not None:
            found.append(messages.report_ended(path, code, str(self._log)))
        elif (silent_s := self._sampler.silent_s) > _SILENT_S + 3 * self._limits.interval_s:
            mount = mount_of(self._places.root)  # from the table of mounts, never from the file system itself
            where = f", {mount.kind} at {mount.point}," if mount is not None else ""
            found.append(messages.report_silent(path, where, silent_s))
        if self._removal is not None and (slow_s := self._removal.silent_s) > _SLOW_REMOVAL_S:
            found.append(messages.report_slow_removal(path, slow_s))
        return found


def keep_while_running(keep: Keep, state: State) -> Keep:
    attempt = state.attempt
    is_loading = state.live is not None and state.live.first_progress is None and attempt is not None
    return replace(
        keep,
        writing=True,
        saving_step=state.saving_step,
        loading_step=attempt.resume_step if is_loading and attempt is not None and attempt.resume_step else None,
        unreadable=frozenset(state.unreadable),
    )


def read_doing(run: RunSpec, state: State) -> Doing:
    interval, last = run.checkpoint.interval_steps, state.max_steps or run.run.max_steps
    following: int | None = last if not interval else min(last, (state.step // interval + 1) * interval)
    if run.command is not None:
        following = None  # its trainer decides when it saves: [checkpoint] is not read
    params = state.started.params if state.started is not None else None
    return Doing(
        name=run.run.name,
        step=state.step,
        next_save_step=following,
        last_step=last,
        saving=state.saving_step is not None,
        is_running=state.live is not None and state.live.first_progress is not None,
        first_save_bytes=params * _ADAM_BYTES if params else None,
    )
