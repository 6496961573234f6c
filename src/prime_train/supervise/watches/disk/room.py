"""Whether the next checkpoint of a run fits, and what is to be deleted so that it does. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from math import inf
from pathlib import Path
from statistics import median
from typing import NamedTuple

from prime_train.checkpoints.cleanup import (
    QUIET_S,
    Deletion,
    Item,
    Keep,
    find_superseded,
    list_deletable,
    newest_usable,
    plan,
)
from prime_train.supervise.watches.disk.sample import Sample, Space


@dataclass(frozen=True, slots=True)
class Limits:
    """What the config asks for; the rest is not for the user to set."""

    delete: bool = True
    max_disk_gb: float | None = None
    max_used_ratio: float = 0.85
    may_pause: bool = True
    interval_s: float = 10.0
    horizon_s: float = 3600.0  # a disk that is full sooner is told
    fast_horizon_s: float = 900.0  # so is one that fills so fast since minutes
    calm: float = 1.5  # an alarm of a forecast stands until it is so many times better
    pause_ahead_s: float = 180.0  # for the trainer to stop and save while there is room
    margin_bytes: int = 64 * 2**20  # beside a checkpoint: logs, events, metrics
    margin_ratio: float = 0.02  # by which one checkpoint may be larger than another
    few_inodes: int = 1000


@dataclass(frozen=True, slots=True)
class Doing:
    """What the run is doing, as far as the disk is concerned."""

    name: str
    step: int = 0
    next_save_step: int | None = None
    saving: bool = False
    settled: bool = True  # the attempt lives and has loaded its checkpoint
    first_save_bytes: int | None = None  # what a checkpoint should take while there is none


@dataclass(frozen=True, slots=True)
class Room:
    """What there is room for. Bytes."""

    need_bytes: int  # of the next checkpoint, with a margin
    free_bytes: int  # with what the save in flight has already taken
    goes_bytes: int  # what could be deleted at once
    then_bytes: int  # free once the next checkpoint is saved and all that may go then has gone

    @property
    def fits(self) -> bool:
        return self.free_bytes + self.goes_bytes >= self.need_bytes

    @property
    def fits_again(self) -> bool:
        return self.then_bytes >= self.need_bytes


def room_of(sample: Sample, doing: Doing, keep: Keep, limits: Limits, now_s: float) -> Room | None:
    """None while nobody knows what a checkpoint takes, or the run is not yet under way."""
    saved = sorted((i for i in sample.items if i.kind == "checkpoint" and i.complete), key=lambda item: item.step)
    one_bytes = max((item.size_bytes for item in saved[-3:]), default=doing.first_save_bytes)
    if one_bytes is None or not doing.settled:
        return None
    in_flight = sum(item.size_bytes for item in in_writing(sample.items, keep, now_s))
    free_bytes = sample.spaces[0].free_bytes + in_flight
    goes_bytes = total_bytes(list_deletable(sample.items, keep, now_s)) if limits.delete else 0
    then_bytes = free_bytes - one_bytes + _goes_then(sample.items, one_bytes, keep, limits, now_s)
    return Room(one_bytes + _margin(one_bytes, limits), free_bytes, goes_bytes, then_bytes)


def in_writing(items: Sequence[Item], keep: Keep, now_s: float) -> list[Item]:
    """Checkpoints that are being saved: as was told, or by what changes on the disk where nobody tells."""
    newest = newest_usable(items, keep)
    return [
        item
        for item in items
        if item.kind == "checkpoint"
        and item.wholeness == "unfinished"
        and (newest is None or item.step > newest.step)
        and (item.step == keep.saving_step or now_s - item.changed_s < QUIET_S)
    ]


def _goes_then(items: Sequence[Item], one_bytes: int, keep: Keep, limits: Limits, now_s: float) -> int:
    """What will have gone once one more checkpoint is complete."""
    step = max((item.step for item in items), default=0) + 1
    begun = [item for item in items if not (item.kind == "checkpoint" and item.step == keep.saving_step)]
    after = [replace(item, in_use="") for item in begun]
    after.append(Item("checkpoint", step, (Path(f"step_{step}"),), one_bytes, "complete", now_s))
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


def _margin(one_bytes: int, limits: Limits) -> int:
    return int(limits.margin_bytes + limits.margin_ratio * one_bytes)


@dataclass(frozen=True, slots=True)
class Wanted:
    """Bytes to be freed: `soft` from what is beyond keep_last, `hard` from that within it too."""

    soft: float
    hard: float
    over_budget: float
    over_ratio: float


def wanted_of(sample: Sample, disk: Space, room: Room | None, full_s: float, limits: Limits) -> Wanted:
    over_ratio = disk.total_bytes - disk.free_bytes - limits.max_used_ratio * disk.total_bytes
    over_budget = -inf if limits.max_disk_gb is None else sample.own_bytes - limits.max_disk_gb * 1e9
    hard = over_budget
    if room is not None and room.fits:  # where all that may go makes no room, the last ones stay
        in_flight = room.free_bytes - disk.free_bytes
        hard = max(hard, room.need_bytes - room.free_bytes, over_budget + room.need_bytes - in_flight)
    return Wanted(inf if full_s < inf else over_ratio, hard, over_budget, over_ratio)


def chosen(going: Sequence[Deletion], wanted: Wanted) -> tuple[Deletion, ...]:
    soft = plan(going, wanted.soft, last_resort=False)
    hard = plan(going, wanted.hard, last_resort=True)
    return tuple(one for one in going if one in soft or one in hard)


_FAST = 12  # looks: two minutes at ten seconds each
_FAST_ENOUGH = 6
_SLOW_STEP_S = 60.0
_SLOW = 60  # points of the slow history: an hour
_SLOW_ENOUGH = 20


class Point(NamedTuple):
    at_s: float  # time.monotonic()
    used_bytes: float


@dataclass(frozen=True, slots=True)
class Trend:
    """What is kept of the history of one disk: the latest looks, and one point for each minute of the last hour."""

    fast: tuple[Point, ...] = ()
    slow: tuple[Point, ...] = ()
    minute: tuple[Point, ...] = ()  # looks that have not yet become a point of the slow history

    def grown(self, point: Point) -> Trend:
        """The trend with one more look."""
        minute = (*self.minute, point)
        slow = self.slow
        if point.at_s - minute[0].at_s >= _SLOW_STEP_S:
            slow = (*slow, Point(point.at_s, median(seen.used_bytes for seen in minute)))[-_SLOW:]
            minute = ()
        return Trend((*self.fast, point)[-_FAST:], slow, minute)

    @property
    def fast_bytes_per_s(self) -> float | None:
        """What it grows by in most of the last minutes' steps; None while too little is known."""
        if len(self.fast) < _FAST_ENOUGH:
            return None
        return median(
            (after.used_bytes - before.used_bytes) / (after.at_s - before.at_s)
            for before, after in pairwise(self.fast)
            if after.at_s > before.at_s
        )

    @property
    def slow_bytes_per_s(self) -> float | None:
        """What it has grown by in both halves of the last hour, the lesser of them; None while too little is known."""
        if len(self.slow) < _SLOW_ENOUGH:
            return None
        middle = len(self.slow) // 2
        return min(slope(self.slow[:middle]), slope(self.slow[middle:]))


def slope(points: Sequence[Point]) -> float:
    """Bytes a second of the line that fits best (least squares); 0 of a single point."""
    mean_s = sum(point.at_s for point in points) / len(points)
    mean_bytes = sum(point.used_bytes for point in points) / len(points)
    spread = sum((point.at_s - mean_s) ** 2 for point in points)
    if spread == 0:
        return 0.0
    return sum((point.at_s - mean_s) * (point.used_bytes - mean_bytes) for point in points) / spread
