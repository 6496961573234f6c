"""Plans what of a run may be deleted while it is on, and in which order. Pure: it names folders, it deletes nothing.

Whatever a run could still need stays: the newest checkpoint that is complete and not known to be unreadable, all that
is newer, what is pinned or kept by its step, what is being written, loaded or read.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from prime_train.checkpoints.retention import superseded

Kind = Literal["checkpoint", "weights", "broadcast", "rollouts", "leftover"]
Wholeness = Literal["complete", "unfinished", "broken"]

QUIET_S = 600.0  # so long nothing in an unfinished folder has changed before it counts as left behind
READ_AT_ONCE = 2  # weights that are loaded now, and those that are loaded next


@dataclass(frozen=True, slots=True)
class Item:
    """What one step left on the disk, in one folder or in several that go together."""

    kind: Kind
    step: int
    paths: tuple[Path, ...]
    size_bytes: int
    wholeness: Wholeness
    changed_s: float  # seconds since the epoch: the latest change of a file in it
    problem: str = ""
    pinned: bool = False
    in_use: str = ""  # by whom: "process 12 on gpu-3"; empty where by nobody

    @property
    def complete(self) -> bool:
        return self.wholeness == "complete"


@dataclass(frozen=True, slots=True)
class Keep:
    """What has to stay besides the newest complete checkpoint."""

    keep_last: int | None = None  # None: all of them, as long as there is room
    keep_every_steps: int | None = None
    saving_step: int | None = None
    loading_step: int | None = None  # of the attempt that has not yet loaded it; until then no whole checkpoint goes
    unreadable: frozenset[int] = frozenset()  # complete to look at, yet the trainer could not load them
    broadcasts: int = READ_AT_ONCE  # the newest whole ones, which an engine or the orchestrator may still read
    writing: bool = True  # somebody may be writing what is unfinished

    @property
    def busy_steps(self) -> frozenset[int]:
        return frozenset(step for step in (self.saving_step, self.loading_step) if step is not None)


@dataclass(frozen=True, slots=True)
class Deletion:
    """Something that may go, and why. `last_resort`: it is within keep_last, and goes where a save would not fit."""

    item: Item
    reason: str
    last_resort: bool = False


def newest_usable(items: Iterable[Item], keep: Keep) -> Item | None:
    """The checkpoint that a run would resume from; one that is being written anew is none."""
    return max(_usable(items, keep), key=lambda item: item.step, default=None)


def may_go(items: Sequence[Item], keep: Keep, now_s: float) -> tuple[Deletion, ...]:
    """All that may be deleted at `now_s`, in the order in which it should: what nobody misses first, then oldest first.

    Leftovers, unfinished saves, broadcasts, checkpoints beyond keep_last, weights, rollouts, and at the very end the
    checkpoints within keep_last.
    """
    free = [item for item in items if not item.pinned and not item.in_use and item.step not in keep.busy_steps]
    groups = (
        [Deletion(item, "its deletion was interrupted") for item in free if item.kind == "leftover"],
        _unfinished(items, free, keep, now_s),
        _broadcasts(items, free, keep, now_s),
        _beyond(items, free, keep),
        _weights(items, free, keep),
        _rollouts(items, free, keep, now_s),
        _within(items, free, keep),
    )
    return tuple(deletion for group in groups for deletion in sorted(group, key=lambda one: one.item.step))


def plan(going: Sequence[Deletion], wanted_bytes: float, *, last_resort: bool) -> tuple[Deletion, ...]:
    """The first of `going` that together free `wanted_bytes`, or all; interrupted deletions are always gone on with."""
    chosen: list[Deletion] = []
    freed_bytes = 0
    for one in going:
        is_leftover = one.item.kind == "leftover"
        if is_leftover or (freed_bytes < wanted_bytes and (last_resort or not one.last_resort)):
            chosen.append(one)
            freed_bytes += one.item.size_bytes
    return tuple(chosen)


def still_may_go(deletion: Deletion, items: Sequence[Item], keep: Keep, now_s: float) -> str:
    """Why a deletion that was planned earlier must not be done by what is there now; empty where it may."""
    paths = deletion.item.paths
    if any(one.item.paths == paths for one in may_go(items, keep, now_s)):
        return ""
    found = next((item for item in items if item.paths == paths), None)
    if found is None:
        return "it is gone"
    if found.in_use:
        return f"{found.in_use} uses it"
    return "it is pinned" if found.pinned else "it is needed again"


def _checkpoints(items: Iterable[Item]) -> list[Item]:
    return [item for item in items if item.kind == "checkpoint"]


def _usable(items: Iterable[Item], keep: Keep) -> list[Item]:
    """Complete checkpoints that can be relied on, oldest first."""
    found = (
        item
        for item in _checkpoints(items)
        if item.complete and item.step != keep.saving_step and item.step not in keep.unreadable
    )
    return sorted(found, key=lambda item: item.step)


def _is_quiet(item: Item, keep: Keep, now_s: float) -> bool:
    return not keep.writing or now_s - item.changed_s >= QUIET_S


def _is_kept_by_step(item: Item, keep: Keep) -> bool:
    return bool(keep.keep_every_steps and item.step % keep.keep_every_steps == 0)


def _unfinished(items: Sequence[Item], free: Sequence[Item], keep: Keep, now_s: float) -> list[Deletion]:
    """Saves that were never finished. While somebody may write: older than the newest complete one, and quiet."""
    newest = newest_usable(items, keep)
    found = []
    for item in _checkpoints(free):
        if item.wholeness != "unfinished" or not _is_quiet(item, keep, now_s):
            continue
        if not keep.writing or (newest is not None and item.step < newest.step):
            found.append(Deletion(item, item.problem or "its save did not finish"))
    return found


def _beyond(items: Sequence[Item], free: Sequence[Item], keep: Keep) -> list[Deletion]:
    """Complete checkpoints beyond keep_last, and those older than the newest one that could not be loaded."""
    usable = _usable(items, keep)
    if not usable or keep.loading_step is not None:  # whether the newest one loads is not known yet
        return []
    found = []
    if keep.keep_last is not None:
        may = {item.paths for item in free}
        beyond = superseded(usable, keep.keep_last, keep.keep_every_steps)
        found += [Deletion(item, f"beyond keep_last = {keep.keep_last}") for item in beyond if item.paths in may]
    for item in _checkpoints(free):
        is_old = item.complete and item.step < usable[-1].step and item.step in keep.unreadable
        if is_old and not _is_kept_by_step(item, keep):
            found.append(Deletion(item, f"it could not be loaded, and step {usable[-1].step} is complete"))
    return found


def _within(items: Sequence[Item], free: Sequence[Item], keep: Keep) -> list[Deletion]:
    """Complete checkpoints within keep_last that a newer one has superseded."""
    usable = _usable(items, keep)
    if keep.loading_step is not None:
        return []
    may = {item.paths for item in free} - {one.item.paths for one in _beyond(items, free, keep)}
    return [
        Deletion(item, f"step {usable[-1].step} is newer and complete", last_resort=True)
        for item in superseded(usable, 1, keep.keep_every_steps)
        if item.paths in may
    ]


def _weights(items: Sequence[Item], free: Sequence[Item], keep: Keep) -> list[Deletion]:
    """Exported weights beyond keep_last, once their checkpoint is gone: a resume hands both out together."""
    if keep.keep_last is None:
        return []
    saved, may = {item.step for item in _checkpoints(items)}, {item.paths for item in free}
    every = [item for item in items if item.kind == "weights"]
    return [
        Deletion(item, f"beyond keep_last = {keep.keep_last}")
        for item in superseded(every, keep.keep_last, keep.keep_every_steps)
        if item.paths in may and item.step not in saved
    ]


def _broadcasts(items: Sequence[Item], free: Sequence[Item], keep: Keep, now_s: float) -> list[Deletion]:
    """Broadcasts older than those that may be read, but for those of a checkpoint: a resume hands them out again."""
    whole = sorted(item.step for item in items if item.kind == "broadcast" and item.complete)
    readable = whole[-max(READ_AT_ONCE, keep.broadcasts) :]
    if len(readable) < READ_AT_ONCE:
        return []
    saved = {item.step for item in _checkpoints(items)}
    return [
        Deletion(item, f"the broadcasts of step {readable[0]} and later are kept")
        for item in free
        if item.kind == "broadcast"
        and item.step < readable[0]
        and item.step not in saved
        and (item.complete or _is_quiet(item, keep, now_s))
    ]


def _rollouts(items: Sequence[Item], free: Sequence[Item], keep: Keep, now_s: float) -> list[Deletion]:
    """Rollouts that no step of the run will read again: those before the checkpoint that it would go on from."""
    newest = newest_usable(items, keep)
    if newest is None:
        return []
    before = min(newest.step, keep.loading_step if keep.loading_step is not None else newest.step)
    return [
        Deletion(item, f"the checkpoint of step {newest.step} is complete")
        for item in free
        if item.kind == "rollouts" and item.step < before and _is_quiet(item, keep, now_s)
    ]
