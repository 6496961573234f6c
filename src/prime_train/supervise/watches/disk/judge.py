"""Judges the disk that a run writes to: when it is full, whether the next checkpoint fits, what may go. Pure.

The disk is looked at by disk_program.py, deletions are done by disk_removal_program.py, both beside the loop.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import inf

from prime_train.checkpoints.cleanup import Deletion, Keep, list_deletable
from prime_train.supervise.watches.disk import messages as words
from prime_train.supervise.watches.disk.room import (
    Doing,
    Limits,
    Point,
    Room,
    Trend,
    Wanted,
    chosen,
    in_writing,
    room_of,
    slope,
    total_bytes,
    wanted_of,
)
from prime_train.supervise.watches.disk.sample import Sample, Space
from prime_train.supervise.watches.watch import Alarm, Answer

_SETTLED = 8  # saves of which is remembered what stayed
_SETTLED_ENOUGH = 4
_STEPS_SEEN = 30
_DUE_S = 30.0  # a save that begins so soon is as good as begun


@dataclass(frozen=True, slots=True)
class Memory:
    """What one judgement hands to the next. The value before the first sample is `Memory()`."""

    trends: Mapping[int, Trend] = field(default_factory=dict)  # by device
    steps: tuple[tuple[float, int], ...] = ()  # monotonic seconds and step, one for each step seen
    stayed: tuple[Point, ...] = ()  # when a save began: what of the checkpoints never goes
    newest_seen: int = -1
    standing: frozenset[str] = frozenset()  # names of the alarms of the last look


@dataclass(frozen=True, slots=True)
class Verdict:
    """What is wrong, and what to delete."""

    memory: Memory
    alarms: tuple[Alarm, ...] = ()
    deletions: tuple[Deletion, ...] = ()


def judge(memory: Memory, sample: Sample, doing: Doing, keep: Keep, limits: Limits, now_s: float) -> Verdict:
    """The verdict on one sample, `now_s` on the clock of the files (epoch)."""
    memory = _remember(memory, sample, doing, keep, limits, now_s)
    doing = replace(doing, saving=doing.saving or bool(in_writing(sample.items, keep, now_s)))
    due_s = _due_s(memory, doing)
    alarms = [words.refuses(refusal, _at_save(due_s, doing, limits)) for refusal in sample.refusals]
    if not sample.spaces:
        return Verdict(_standing(memory, alarms), tuple(alarms))
    disk = sample.spaces[0]
    going = list_deletable(sample.items, keep, now_s) if limits.delete else ()
    if memory.standing & {words.LAST_ROOM, words.NO_ROOM}:
        room = room_of(sample, doing, keep, replace(limits, margin_bytes=int(limits.margin_bytes * limits.calm)), now_s)
    else:
        room = room_of(sample, doing, keep, limits, now_s)
    full_s = _full_s(disk, memory, limits, going)
    wanted = wanted_of(sample, disk, room, full_s, limits)
    deletions = chosen(going, wanted)
    alarms += _room_alarms(disk, room, memory, doing, limits)
    if full_s < inf:
        is_late = full_s < limits.pause_ahead_s and doing.settled and not doing.saving
        alarms.append(words.filling(disk, full_s, doing, going, _pause(is_late, limits)))
    alarms += _others_filling(sample, memory, doing, limits)
    alarms += _over(sample, disk, wanted, deletions, doing, limits)
    alarms += [words.few_inodes(space) for space in sample.spaces if _lacks_inodes(space, limits)]
    return Verdict(_standing(memory, alarms), tuple(alarms), deletions)


def _standing(memory: Memory, alarms: Sequence[Alarm]) -> Memory:
    return replace(memory, standing=frozenset(alarm.name for alarm in alarms))


# --- what is remembered ----------------------------------------------------------------------------


def _remember(memory: Memory, sample: Sample, doing: Doing, keep: Keep, limits: Limits, now_s: float) -> Memory:
    trends = dict(memory.trends)
    for number, space in enumerate(sample.spaces):
        used = space.total_bytes - space.free_bytes - (_stepwise_bytes(sample) if number == 0 else 0)
        trends[space.device] = trends.get(space.device, Trend()).grown(Point(sample.at_s, used))
    steps = memory.steps
    if steps and doing.step < steps[-1][1]:  # an attempt that went back to a checkpoint
        steps = ()
    if not steps or steps[-1][1] != doing.step:
        steps = (*steps, (sample.at_s, doing.step))[-_STEPS_SEEN:]
    newest = max((item.step for item in sample.items if item.kind == "checkpoint"), default=-1)
    stayed = memory.stayed
    if newest > memory.newest_seen >= 0:
        stayed = (*stayed, Point(sample.at_s, _staying_bytes(sample, keep, limits, now_s)))[-_SETTLED:]
    return replace(memory, trends=trends, steps=steps, stayed=stayed, newest_seen=newest)


def _stepwise_bytes(sample: Sample) -> int:
    """What comes and goes with the steps of the run: it makes the saw-tooth, and is reckoned by itself."""
    return sum(item.size_bytes for item in sample.items if item.kind != "rollouts")


def _staying_bytes(sample: Sample, keep: Keep, limits: Limits, now_s: float) -> int:
    """Complete checkpoints that nothing deletes: pinned ones, those of keep_every_steps; where nothing deletes any,
    all beyond keep_last."""
    gone = {one.item.paths for one in list_deletable(sample.items, keep, now_s)} if limits.delete else set()
    usable = sorted((i for i in sample.items if i.kind == "checkpoint" and i.complete), key=lambda item: item.step)
    older = usable[: -max(1, keep.keep_last or 1)]
    return sum(item.size_bytes for item in older if item.paths not in gone)


# --- the next save ---------------------------------------------------------------------------------


def _due_s(memory: Memory, doing: Doing) -> float | None:
    """Seconds until the next save begins; None where that is not known."""
    if doing.next_save_step is None or len(memory.steps) < 2:
        return None
    (first_s, first), (last_s, last) = memory.steps[0], memory.steps[-1]
    if last <= first or last_s <= first_s:
        return None
    return max(0.0, (doing.next_save_step - doing.step) * (last_s - first_s) / (last - first))


def _is_due(due_s: float | None, limits: Limits) -> bool:
    return due_s is None or due_s < max(_DUE_S, 3 * limits.interval_s)


def _at_save(due_s: float | None, doing: Doing, limits: Limits) -> Answer:
    """Where a save would fail the run goes on as long as none is made: somebody may make room meanwhile."""
    return _pause(doing.saving or _is_due(due_s, limits), limits)


def _pause(is_urgent: bool, limits: Limits) -> Answer:
    return "pause" if is_urgent and limits.may_pause else "alert"


def _room_alarms(disk: Space, room: Room | None, memory: Memory, doing: Doing, limits: Limits) -> Iterator[Alarm]:
    if room is None or (room.fits and room.fits_again):
        return
    due_s = _due_s(memory, doing)
    if not room.fits:
        yield words.no_room(disk, room, due_s, doing, _at_save(due_s, doing, limits))
        return
    trend = memory.trends[disk.device]
    grows = max(0.0, trend.fast_bytes_per_s or 0.0, trend.slow_bytes_per_s or 0.0)
    at_save_bytes = room.free_bytes + room.goes_bytes - grows * (due_s or 0.0)
    # A pause saves once more. While a save is in flight, that one takes the room: it is too late, or too early.
    is_now = not doing.saving and (_is_due(due_s, limits) or at_save_bytes < room.need_bytes)
    yield words.last_room(disk, room, doing, _pause(is_now, limits))


# --- when it is full -------------------------------------------------------------------------------


def _full_s(disk: Space, memory: Memory, limits: Limits, going: Sequence[Deletion]) -> float:
    """Seconds until the disk is full; infinite where it does not fill, or where that is too far off to tell."""
    trend = memory.trends[disk.device]
    free_bytes = disk.free_bytes + total_bytes(going)
    slow = (trend.slow_bytes_per_s or 0.0) + _stays_bytes_per_s(memory)
    fast = trend.fast_bytes_per_s or 0.0
    calm = limits.calm if words.FILLING in memory.standing else 1.0
    slow_s = free_bytes / slow if slow > 0 else inf
    fast_s = free_bytes / fast if fast > 0 else inf
    return min(
        slow_s if slow_s < limits.horizon_s * calm else inf,
        fast_s if fast_s < limits.fast_horizon_s * calm else inf,
    )


def _stays_bytes_per_s(memory: Memory) -> float:
    """What checkpoints add for good."""
    return max(0.0, slope(memory.stayed)) if len(memory.stayed) >= _SETTLED_ENOUGH else 0.0


def _others_filling(sample: Sample, memory: Memory, doing: Doing, limits: Limits) -> Iterator[Alarm]:
    """The other file systems that the run writes to: told, and nothing else follows."""
    for space in sample.spaces[1:]:
        full_s = _full_s(space, replace(memory, stayed=()), limits, ())
        if full_s < inf:
            yield words.filling(space, full_s, doing, (), "alert")


# --- limits ----------------------------------------------------------------------------------------


def _over(
    sample: Sample, disk: Space, wanted: Wanted, deletions: Sequence[Deletion], doing: Doing, limits: Limits
) -> Iterator[Alarm]:
    """Limits of the config that are passed, and what may go is not enough."""
    if wanted.over_budget > total_bytes(deletions):
        yield words.over_budget(sample, disk, doing, limits)
    if wanted.over_ratio > total_bytes(deletions):
        yield words.over_ratio(disk, limits)


def _lacks_inodes(space: Space, limits: Limits) -> bool:
    return space.total_inodes > 10 * limits.few_inodes and space.free_inodes < limits.few_inodes
