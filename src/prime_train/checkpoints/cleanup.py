"""Plans which folders of a run may be deleted, and in which order: for its disk watch, and for `ckpt prune`. Pure.

Everything that the run could still need stays: the newest complete checkpoint that is not known to be unreadable,
everything newer, everything pinned or kept by its step, and everything that is being written, loaded or read.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Literal, TypeVar

from prime_train.checkpoints.layout import SavedCheckpoint

Kind = Literal["checkpoint", "weights", "broadcast", "rollouts", "leftover"]
Wholeness = Literal["complete", "unfinished", "broken"]

QUIET_S = 600.0  # an unfinished folder without a change for this long counts as abandoned
READ_AT_ONCE = 2  # the weights that are being loaded, and those that are loaded next


@dataclass(frozen=True, slots=True)
class StoredItem:
    """The files of one kind that one step wrote, in one folder or in several that belong together."""

    kind: Kind
    step: int
    paths: tuple[Path, ...]
    size_bytes: int
    wholeness: Wholeness
    changed_s: float  # seconds since the epoch: the latest change of a file in it
    problem: str = ""
    pinned: bool = False
    in_use: str = ""  # the user: "process 12 on gpu-3"; empty where not in use
    needed: str = ""  # why the trainer itself still needs it: "it is the best one"

    @property
    def complete(self) -> bool:
        return self.wholeness == "complete"


@dataclass(frozen=True, slots=True)
class Keep:
    """What must stay besides the newest complete checkpoint."""

    keep_last: int | None = None  # None: all of them, as long as the disk has room
    keep_every_steps: int | None = None
    saving_step: int | None = None
    loading_step: int | None = None  # the attempt has not loaded it yet; until then no complete checkpoint is deleted
    unreadable: frozenset[int] = frozenset()  # they pass every check, but the trainer could not load them
    broadcasts: int = READ_AT_ONCE  # so many of the newest complete ones may still be read by an engine
    least_whole: int = 1  # so many of the newest complete checkpoints stay even where space is short
    writing: bool = True  # a process may still be writing unfinished folders


@dataclass(frozen=True, slots=True)
class Deletion:
    """An item that may be deleted, and why. `last_resort`: within keep_last; deleted only if a save would not fit."""

    item: StoredItem
    reason: str
    last_resort: bool = False


def newest_usable(items: Iterable[StoredItem], keep: Keep) -> StoredItem | None:
    """The checkpoint that a run would resume from. A checkpoint that is being saved again does not count."""
    return max(_usable(items, keep), key=lambda item: item.step, default=None)


def list_deletable(items: Sequence[StoredItem], keep: Keep, now_s: float) -> tuple[Deletion, ...]:
    """Everything that may be deleted at `now_s`: the least useful kind first, and oldest first within a kind."""
    # A pin, a user or a save in progress protects a folder of any kind and age.
    busy = (keep.saving_step, keep.loading_step)
    free = [item for item in items if not (item.pinned or item.in_use or item.needed or item.step in busy)]
    # What a resume could need comes last, because the caller deletes from the front until enough space is free.
    groups = (
        [Deletion(item, "its deletion was interrupted") for item in free if item.kind == "leftover"],
        _unfinished_saves(items, free, keep, now_s),
        _old_broadcasts(items, free, keep, now_s),
        _beyond_keep_last(items, free, keep),
        _old_weights(items, free, keep),
        _old_rollouts(items, free, keep, now_s),
        _within_keep_last(items, free, keep),
    )
    oldest_first = [sorted(group, key=lambda one: one.item.step) for group in groups]
    return tuple(chain.from_iterable(oldest_first))


def plan(deletable: Sequence[Deletion], wanted_bytes: float, *, last_resort: bool) -> tuple[Deletion, ...]:
    """The first deletions that together free `wanted_bytes`, or all. Interrupted deletions are always included."""
    chosen: list[Deletion] = []
    freed_bytes = 0
    for one in deletable:
        # Nothing can read a leftover, so it goes even where enough space is free.
        is_leftover = one.item.kind == "leftover"
        is_wanted = freed_bytes < wanted_bytes and (last_resort or not one.last_resort)
        if is_leftover or is_wanted:
            chosen.append(one)
            freed_bytes += one.item.size_bytes
    return tuple(chosen)


def reason_to_keep(deletion: Deletion, items: Sequence[StoredItem], keep: Keep, now_s: float) -> str:
    """Why a deletion that was planned earlier must not be done any more; empty where it may be done."""
    paths = deletion.item.paths
    # The whole plan again, because a deletion is right only while a newer checkpoint is complete.
    if any(one.item.paths == paths for one in list_deletable(items, keep, now_s)):
        return ""
    found = next((item for item in items if item.paths == paths), None)
    if found is None:
        return "it is gone"
    if found.in_use:
        return f"{found.in_use} uses it"
    if found.needed:
        return found.needed
    return "it is pinned" if found.pinned else "it is needed again"


def _checkpoints(items: Iterable[StoredItem]) -> list[StoredItem]:
    return [item for item in items if item.kind == "checkpoint"]


def _usable(items: Iterable[StoredItem], keep: Keep) -> list[StoredItem]:
    """Complete checkpoints that are not being saved and not known to be unreadable, oldest first."""
    complete = [item for item in _checkpoints(items) if item.complete and item.step != keep.saving_step]
    readable = [item for item in complete if item.step not in keep.unreadable]
    return sorted(readable, key=lambda item: item.step)


def _is_quiet(item: StoredItem, keep: Keep, now_s: float) -> bool:
    return not keep.writing or now_s - item.changed_s >= QUIET_S


def _unfinished_saves(
    items: Sequence[StoredItem], free: Sequence[StoredItem], keep: Keep, now_s: float
) -> list[Deletion]:
    """Saves that did not finish. While a process may write: only quiet ones older than the newest complete one."""
    newest = newest_usable(items, keep)
    found = []
    for item in _checkpoints(free):
        # A save on a slow disk pauses between files, so an unfinished folder counts only after a long silence.
        if item.wholeness != "unfinished" or not _is_quiet(item, keep, now_s):
            continue
        # One that is newer than every complete checkpoint may still be written, even if it is quiet.
        if not keep.writing or (newest is not None and item.step < newest.step):
            found.append(Deletion(item, item.problem or "its save did not finish"))
    return found


def _beyond_keep_last(items: Sequence[StoredItem], free: Sequence[StoredItem], keep: Keep) -> list[Deletion]:
    """Complete checkpoints beyond keep_last, and unreadable ones that are older than the newest usable one."""
    usable = _usable(items, keep)
    if not usable or keep.loading_step is not None:  # it is not known yet whether the newest one can be loaded
        return []
    found = []
    if keep.keep_last is not None:
        free_paths = {item.paths for item in free}
        beyond = find_superseded(usable, max(keep.keep_last, keep.least_whole), keep.keep_every_steps)
        found += [Deletion(item, f"beyond keep_last = {keep.keep_last}") for item in beyond if item.paths in free_paths]
    for item in _checkpoints(free):
        is_old = item.complete and item.step < usable[-1].step and item.step in keep.unreadable
        if is_old and not (keep.keep_every_steps and item.step % keep.keep_every_steps == 0):
            found.append(Deletion(item, f"it could not be loaded, and step {usable[-1].step} is complete"))
    return found


def _within_keep_last(items: Sequence[StoredItem], free: Sequence[StoredItem], keep: Keep) -> list[Deletion]:
    """Complete checkpoints within keep_last that are older than the newest one."""
    usable = _usable(items, keep)
    # Until the attempt has loaded its checkpoint, an older one may have to take its place.
    if keep.loading_step is not None:
        return []
    # Each item has one reason: what is beyond keep_last must not wait for the last resort.
    free_paths = {item.paths for item in free} - {one.item.paths for one in _beyond_keep_last(items, free, keep)}
    return [
        Deletion(item, f"step {usable[-1].step} is newer and complete", last_resort=True)
        for item in find_superseded(usable, keep.least_whole, keep.keep_every_steps)
        if item.paths in free_paths
    ]


def _old_weights(items: Sequence[StoredItem], free: Sequence[StoredItem], keep: Keep) -> list[Deletion]:
    """Exported weights beyond keep_last without a checkpoint of their step: a resume needs both."""
    if keep.keep_last is None:
        return []
    saved, free_paths = {item.step for item in _checkpoints(items)}, {item.paths for item in free}
    every = [item for item in items if item.kind == "weights"]
    return [
        Deletion(item, f"beyond keep_last = {keep.keep_last}")
        for item in find_superseded(every, keep.keep_last, keep.keep_every_steps)
        if item.paths in free_paths and item.step not in saved
    ]


def _old_broadcasts(
    items: Sequence[StoredItem], free: Sequence[StoredItem], keep: Keep, now_s: float
) -> list[Deletion]:
    """Broadcasts older than those that may be read, without a checkpoint of their step: a resume reads both."""
    broadcasts = [item for item in items if item.kind == "broadcast"]
    whole = sorted(item.step for item in broadcasts if item.complete)
    readable = whole[-max(READ_AT_ONCE, keep.broadcasts) :]
    # An engine may still load the older one of two, and nothing in the folder shows which it reads.
    if len(readable) < READ_AT_ONCE:
        return []
    saved = {item.step for item in _checkpoints(items)}
    old = [item for item in free if item.kind == "broadcast" and item.step < readable[0]]
    unused = [item for item in old if item.step not in saved]
    reason = f"the broadcasts of step {readable[0]} and later are kept"
    # An unfinished one may still be written, so it has to be quiet first.
    return [Deletion(item, reason) for item in unused if item.complete or _is_quiet(item, keep, now_s)]


def _old_rollouts(items: Sequence[StoredItem], free: Sequence[StoredItem], keep: Keep, now_s: float) -> list[Deletion]:
    """Rollouts before the checkpoint that the run would resume from: no later step reads them."""
    newest = newest_usable(items, keep)
    if newest is None:
        return []
    # An attempt that loads an older checkpoint reads the rollouts behind that one.
    before = min(newest.step, keep.loading_step if keep.loading_step is not None else newest.step)
    old = [item for item in free if item.kind == "rollouts" and item.step < before]
    reason = f"the checkpoint of step {newest.step} is complete"
    return [Deletion(item, reason) for item in old if _is_quiet(item, keep, now_s)]


K = TypeVar("K", StoredItem, SavedCheckpoint)


def find_superseded(checkpoints: Iterable[K], keep_last: int, keep_every_steps: int | None) -> list[K]:
    """Complete checkpoints beyond the newest `keep_last`, oldest first: none that is pinned or kept by its step."""
    complete = [checkpoint for checkpoint in checkpoints if checkpoint.complete]
    # The newest one stays even with keep_last = 0, because a run resumes from it.
    beyond = sorted(complete, key=lambda checkpoint: checkpoint.step)[: -max(1, keep_last)]
    if keep_every_steps:
        beyond = [checkpoint for checkpoint in beyond if checkpoint.step % keep_every_steps != 0]
    return [checkpoint for checkpoint in beyond if not checkpoint.pinned]
