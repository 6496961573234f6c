"""Decides whether the next checkpoint of a run fits, and what to delete to make room. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from math import inf
from pathlib import Path
from statistics import linear_regression, median
from typing import NamedTuple

from prime_train.checkpoints.cleanup import (
    QUIET_S,
    Deletion,
    Keep,
    StoredItem,
    find_superseded,
    list_deletable,
    newest_usable,
    plan,
)
from prime_train.supervise.watches.disk.sample import DiskSample, Space


@dataclass(frozen=True, slots=True)
class DiskLimits:
    """The limits of the config, and fixed ones."""

    delete: bool = True
    max_disk_gb: float | None = None
    max_used_ratio: float = 0.85
    may_pause: bool = True
    interval_s: float = 10.0
    horizon_s: float = 3600.0  # an alarm is raised for a disk that will be full sooner
    fast_horizon_s: float = 900.0  # the same, by the growth of the last minutes
    calm: float = 1.5  # the alarm of a forecast stands until the forecast is this many times better
    pause_ahead_s: float = 180.0  # so that the trainer can stop and save while there is room
    margin_bytes: int = 64 * 2**20  # beside a checkpoint: logs, events, metrics
    margin_ratio: float = 0.02  # by which one checkpoint may be larger than another
    few_inodes: int = 1000


@dataclass(frozen=True, slots=True)
class Doing:
    """The state of the run, as far as it concerns the disk."""

    name: str
    step: int = 0
    next_save_step: int | None = None  # None: by the checkpoints that were seen
    last_step: int | None = None
    saving: bool = False
    is_running: bool = True  # the attempt lives and has loaded its checkpoint
    first_save_bytes: int | None = None  # the expected size while there is no checkpoint
    knows_layout: bool = True  # else no checkpoint is judged, and nothing is deleted


@dataclass(frozen=True, slots=True)
class DiskRoom:
    """What fits on the disk. Bytes."""

    need_bytes: int  # of the next checkpoint, with a margin
    free_bytes: int  # including what the save in flight has already taken
    deletable_bytes: int  # what could be deleted now
    later_bytes: int  # free after the next checkpoint is saved and all deletable files are deleted

    @property
    def fits(self) -> bool:
        return self.free_bytes + self.deletable_bytes >= self.need_bytes

    @property
    def fits_again(self) -> bool:
        return self.later_bytes >= self.need_bytes


def compute_room(sample: DiskSample, doing: Doing, keep: Keep, limits: DiskLimits, now_s: float) -> DiskRoom | None:
    """None while the size of a checkpoint is not known, or the run has not started."""
    saved = sorted((i for i in sample.items if i.kind == "checkpoint" and i.complete), key=lambda item: item.step)
    one_bytes = max((item.size_bytes for item in saved[-3:]), default=doing.first_save_bytes)
    if one_bytes is None or not doing.is_running:
        return None
    in_flight = sum(item.size_bytes for item in list_in_writing(sample.items, keep, now_s))
    free_bytes = sample.spaces[0].free_bytes + in_flight
    deletable_bytes = total_bytes(list_deletable(sample.items, keep, now_s)) if limits.delete else 0
    later_bytes = free_bytes - one_bytes + _count_deletable_then(sample.items, one_bytes, keep, limits, now_s)
    margin_bytes = int(limits.margin_bytes + limits.margin_ratio * one_bytes)
    return DiskRoom(one_bytes + margin_bytes, free_bytes, deletable_bytes, later_bytes)


def list_in_writing(items: Sequence[StoredItem], keep: Keep, now_s: float) -> list[StoredItem]:
    """Checkpoints that are being saved: according to the trainer, or because their files have just changed."""
    newest = newest_usable(items, keep)
    return [
        item
        for item in items
        if item.kind == "checkpoint"
        and item.wholeness == "unfinished"
        and (newest is None or item.step > newest.step)
        and (item.step == keep.saving_step or now_s - item.changed_s < QUIET_S)
    ]


def _count_deletable_then(
    items: Sequence[StoredItem], one_bytes: int, keep: Keep, limits: DiskLimits, now_s: float
) -> int:
    """Bytes that can be deleted after one more checkpoint is complete."""
    step = max((item.step for item in items), default=0) + 1
    begun = [item for item in items if not (item.kind == "checkpoint" and item.step == keep.saving_step)]
    after = [replace(item, in_use="") for item in begun]
    after.append(StoredItem("checkpoint", step, (Path(f"step_{step}"),), one_bytes, "complete", now_s))
    if limits.delete:
        return total_bytes(list_deletable(after, replace(keep, saving_step=None, loading_step=None), now_s))
    if keep.keep_last is None:
        return 0
    now, then = ([item for item in found if item.kind == "checkpoint"] for found in (items, after))
    if keep.saving_step is None and find_superseded(now, keep.keep_last, keep.keep_every_steps):
        return 0  # the trainer should have deleted these, and has not
    return sum(item.size_bytes for item in find_superseded(then, keep.keep_last, keep.keep_every_steps))


def total_bytes(deletions: Sequence[Deletion]) -> int:
    return sum(one.item.size_bytes for one in deletions)


@dataclass(frozen=True, slots=True)
class WantedBytes:
    """Bytes to free: `soft` beyond keep_last, `hard` within keep_last too."""

    soft: float
    hard: float
    over_budget: float
    over_ratio: float


def compute_needs(
    sample: DiskSample, disk: Space, room: DiskRoom | None, full_s: float, limits: DiskLimits
) -> WantedBytes:
    over_ratio = disk.total_bytes - disk.free_bytes - limits.max_used_ratio * disk.total_bytes
    over_budget = -inf if limits.max_disk_gb is None else sample.own_bytes - limits.max_disk_gb * 1e9
    hard = over_budget
    if room is not None and room.fits:  # if all deletions together make no room, the newest checkpoints stay
        in_flight = room.free_bytes - disk.free_bytes
        hard = max(hard, room.need_bytes - room.free_bytes, over_budget + room.need_bytes - in_flight)
    return WantedBytes(inf if full_s < inf else over_ratio, hard, over_budget, over_ratio)


def choose_deletions(deletable: Sequence[Deletion], wanted: WantedBytes) -> tuple[Deletion, ...]:
    soft = plan(deletable, wanted.soft, last_resort=False)
    hard = plan(deletable, wanted.hard, last_resort=True)
    return tuple(one for one in deletable if one in soft or one in hard)


_FAST = 12  # looks: two minutes at ten seconds each
_FAST_ENOUGH = 6
_SLOW_STEP_S = 60.0
_SLOW = 60  # points of the slow history: an hour
_SLOW_ENOUGH = 20


class UsedPoint(NamedTuple):
    at_s: float  # time.monotonic()
    used_bytes: float


@dataclass(frozen=True, slots=True)
class Trend:
    """The history of one disk: the latest looks, and one point for each minute of the last hour."""

    fast: tuple[UsedPoint, ...] = ()
    slow: tuple[UsedPoint, ...] = ()
    minute: tuple[UsedPoint, ...] = ()  # looks that are not yet a point of the slow history

    def add(self, point: UsedPoint) -> Trend:
        minute = (*self.minute, point)
        slow = self.slow
        if point.at_s - minute[0].at_s >= _SLOW_STEP_S:
            slow = (*slow, UsedPoint(point.at_s, median(seen.used_bytes for seen in minute)))[-_SLOW:]
            minute = ()
        return Trend((*self.fast, point)[-_FAST:], slow, minute)

    @property
    def fast_bytes_per_s(self) -> float | None:
        """The median growth between the latest looks; None while there are too few."""
        if len(self.fast) < _FAST_ENOUGH:
            return None
        return median(
            (after.used_bytes - before.used_bytes) / (after.at_s - before.at_s)
            for before, after in pairwise(self.fast)
            if after.at_s > before.at_s
        )

    @property
    def slow_bytes_per_s(self) -> float | None:
        """The smaller growth of the two halves of the last hour; None while there are too few points."""
        if len(self.slow) < _SLOW_ENOUGH:
            return None
        middle = len(self.slow) // 2
        return min(slope(self.slow[:middle]), slope(self.slow[middle:]))


def slope(points: Sequence[UsedPoint]) -> float:
    """Bytes a second of the line that fits best (least squares); 0 for a single moment."""
    moments = [point.at_s for point in points]
    if len(set(moments)) < 2:
        return 0.0
    return linear_regression(moments, [point.used_bytes for point in points]).slope
