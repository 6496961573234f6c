"""Judges the disk that a run writes to: when it is full, whether the next checkpoint fits, what to delete. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from math import inf

from prime_train.checkpoints.cleanup import Deletion, Keep, list_deletable
from prime_train.supervise.watches.disk import messages
from prime_train.supervise.watches.disk.room import (
    DiskLimits,
    DiskRoom,
    Doing,
    Trend,
    UsedPoint,
    WantedBytes,
    choose_deletions,
    compute_needs,
    compute_room,
    list_in_writing,
    slope,
    total_bytes,
)
from prime_train.supervise.watches.disk.sample import DiskSample, Refusal, Space
from prime_train.supervise.watches.watch import Alarm, Answer

_SAVES_SEEN = 8  # for the bytes that stay after a save
_SAVES_ENOUGH = 4
_STEPS_SEEN = 30
_SAVES_COMPARED = 3  # of the newest checkpoints, for the steps between two of them
_DUE_S = 30.0  # a save that begins this soon counts as begun


@dataclass(frozen=True, slots=True)
class DiskHistory:
    """State between two judgements. The value before the first sample is `DiskHistory()`."""

    trends: Mapping[int, Trend] = field(default_factory=dict)  # by device
    steps: tuple[tuple[float, int], ...] = ()  # monotonic seconds and step, one pair for each step seen
    stayed: tuple[UsedPoint, ...] = ()  # when a save began: bytes of the checkpoints that are never deleted
    newest_seen: int = -1
    saves: tuple[int, ...] = ()  # steps of the newest complete checkpoints, in rising order
    standing: frozenset[str] = frozenset()  # names of the alarms of the last look


@dataclass(frozen=True, slots=True)
class DiskVerdict:
    """The alarms, and the deletions to make."""

    memory: DiskHistory
    alarms: tuple[Alarm, ...] = ()
    deletions: tuple[Deletion, ...] = ()


def judge(
    memory: DiskHistory, sample: DiskSample, doing: Doing, keep: Keep, limits: DiskLimits, now_s: float
) -> DiskVerdict:
    """The verdict on one sample, `now_s` on the clock of the files (epoch)."""
    memory = _remember(memory, sample, doing, keep, limits, now_s)
    doing = _add_seen(doing, memory, bool(list_in_writing(sample.items, keep, now_s)))
    due_s = _predict_due_s(memory, doing)
    at_save = _choose_at_save(due_s, doing, limits)
    alarms = [_judge_refusal(refusal, sample, doing, at_save) for refusal in sample.refusals]
    if not sample.spaces:
        return DiskVerdict(_keep_standing(memory, alarms), tuple(alarms))
    disk = sample.spaces[0]
    deletable = list_deletable(sample.items, keep, now_s) if limits.delete else ()
    if memory.standing & {messages.LAST_ROOM, messages.NO_ROOM}:
        calmer = replace(limits, margin_bytes=int(limits.margin_bytes * limits.calm))
        room = compute_room(sample, doing, keep, calmer, now_s)
    else:
        room = compute_room(sample, doing, keep, limits, now_s)
    full_s = _predict_full_s(disk, memory, limits, deletable)
    wanted = compute_needs(sample, disk, room, full_s, limits)
    deletions = choose_deletions(deletable, wanted)
    alarms += _judge_room(disk, room, memory, doing, limits)
    if full_s < inf:
        # Where no checkpoint is known, a pause could lose every step.
        is_late = full_s < limits.pause_ahead_s and doing.is_running and not doing.saving and doing.knows_layout
        alarms.append(messages.report_filling(disk, full_s, doing, deletable, _choose_pause(is_late, limits)))
    alarms += _judge_others(sample, memory, doing, limits)
    alarms += _judge_limits(sample, disk, wanted, deletions, doing, limits)
    few = limits.few_inodes
    lacking = (space for space in sample.spaces if space.total_inodes > 10 * few and space.free_inodes < few)
    alarms += map(messages.report_few_inodes, lacking)
    return DiskVerdict(_keep_standing(memory, alarms), tuple(alarms), deletions)


def _add_seen(doing: Doing, memory: DiskHistory, is_writing: bool) -> Doing:
    """What the run does, with what its files show of it."""
    following = doing.next_save_step
    if following is None:
        following = predict_next_save(memory.saves, doing)
    return replace(doing, saving=doing.saving or is_writing, next_save_step=following)


def _keep_standing(memory: DiskHistory, alarms: Sequence[Alarm]) -> DiskHistory:
    return replace(memory, standing=frozenset(alarm.name for alarm in alarms))


def _remember(
    memory: DiskHistory, sample: DiskSample, doing: Doing, keep: Keep, limits: DiskLimits, now_s: float
) -> DiskHistory:
    trends = dict(memory.trends)
    # These bytes appear and go with the steps of the run; their saw-tooth would hide the trend.
    step_bytes = sum(item.size_bytes for item in sample.items if item.kind != "rollouts")
    for number, space in enumerate(sample.spaces):
        used = space.total_bytes - space.free_bytes - (step_bytes if number == 0 else 0)
        trends[space.device] = trends.get(space.device, Trend()).add(UsedPoint(sample.at_s, used))
    steps = memory.steps
    if steps and doing.step < steps[-1][1]:  # an attempt that went back to a checkpoint
        steps = ()
    if not steps or steps[-1][1] != doing.step:
        steps = (*steps, (sample.at_s, doing.step))[-_STEPS_SEEN:]
    newest = max((item.step for item in sample.items if item.kind == "checkpoint"), default=-1)
    stayed = memory.stayed
    if newest > memory.newest_seen >= 0:
        stayed = (*stayed, UsedPoint(sample.at_s, _count_staying_bytes(sample, keep, limits, now_s)))[-_SAVES_SEEN:]
    saves = _add_saves(memory.saves, sample)
    return replace(memory, trends=trends, steps=steps, stayed=stayed, newest_seen=newest, saves=saves)


def _add_saves(saves: tuple[int, ...], sample: DiskSample) -> tuple[int, ...]:
    """The steps with what is complete by now. Those between two of them may have been deleted before they were seen."""
    whole = sorted(item.step for item in sample.items if item.kind == "checkpoint" and item.complete)
    later = whole if not saves else [step for step in whole if step > saves[-1]]
    return (*saves, *later)[-_SAVES_COMPARED:]


def predict_next_save(saves: Sequence[int], doing: Doing) -> int | None:
    """The step of the next save by the steps of those before, oldest first; None where they do not show it."""
    gaps = {after - before for before, after in pairwise(saves)}
    # Saves at an interval of time have other steps between them each time, and so has one that was asked for.
    if len(gaps) != 1:
        return None
    due = saves[-1] + gaps.pop()
    if due < doing.step:
        return None
    return due if doing.last_step is None else min(due, doing.last_step)


def _count_staying_bytes(sample: DiskSample, keep: Keep, limits: DiskLimits, now_s: float) -> int:
    """The bytes of complete checkpoints that are never deleted.

    Pinned ones and those of keep_every_steps; without cleanup, all beyond keep_last.
    """
    gone = {one.item.paths for one in list_deletable(sample.items, keep, now_s)} if limits.delete else set()
    usable = sorted((i for i in sample.items if i.kind == "checkpoint" and i.complete), key=lambda item: item.step)
    older = usable[: -max(1, keep.keep_last or 1)]
    return sum(item.size_bytes for item in older if item.paths not in gone)


def _predict_due_s(memory: DiskHistory, doing: Doing) -> float | None:
    """Seconds until the next save begins; None if that is not known."""
    if doing.next_save_step is None or len(memory.steps) < 2:
        return None
    (first_s, first), (last_s, last) = memory.steps[0], memory.steps[-1]
    if last <= first or last_s <= first_s:
        return None
    return max(0.0, (doing.next_save_step - doing.step) * (last_s - first_s) / (last - first))


def _is_due(due_s: float | None, limits: DiskLimits) -> bool:
    return due_s is None or due_s < max(_DUE_S, 3 * limits.interval_s)


def _judge_refusal(refusal: Refusal, sample: DiskSample, doing: Doing, at_save: Answer) -> Alarm:
    """Where the layout is not known, another disk than the run's own is one that the trainer may write to."""
    is_own = not sample.spaces or refusal.path == sample.spaces[0].path
    if doing.knows_layout or is_own:
        return messages.report_refusal(refusal, at_save)
    return messages.report_full_output(refusal)


def _choose_at_save(due_s: float | None, doing: Doing, limits: DiskLimits) -> Answer:
    """If a save would fail, the run continues until one is due, because the user may make room meanwhile."""
    return _choose_pause(doing.saving or _is_due(due_s, limits), limits)


def _choose_pause(is_urgent: bool, limits: DiskLimits) -> Answer:
    return "pause" if is_urgent and limits.may_pause else "alert"


def _judge_room(
    disk: Space, room: DiskRoom | None, memory: DiskHistory, doing: Doing, limits: DiskLimits
) -> Iterator[Alarm]:
    if room is None or (room.fits and room.fits_again):
        return
    due_s = _predict_due_s(memory, doing)
    if not room.fits:
        yield messages.report_no_room(disk, room, due_s, doing, _choose_at_save(due_s, doing, limits))
        return
    trend = memory.trends[disk.device]
    grows = max(0.0, trend.fast_bytes_per_s or 0.0, trend.slow_bytes_per_s or 0.0)
    at_save_bytes = room.free_bytes + room.deletable_bytes - grows * (due_s or 0.0)
    # A pause saves once more. A save in flight takes the same room, so a pause would come too late or too early.
    is_now = not doing.saving and (_is_due(due_s, limits) or at_save_bytes < room.need_bytes)
    yield messages.report_last_room(disk, room, doing, _choose_pause(is_now, limits))


def _predict_full_s(disk: Space, memory: DiskHistory, limits: DiskLimits, deletable: Sequence[Deletion]) -> float:
    """Seconds until the disk is full; infinite if it does not fill, or only beyond the horizon."""
    trend = memory.trends[disk.device]
    free_bytes = disk.free_bytes + total_bytes(deletable)
    staying = slope(memory.stayed) if len(memory.stayed) >= _SAVES_ENOUGH else 0.0  # what checkpoints add for good
    slow = (trend.slow_bytes_per_s or 0.0) + max(0.0, staying)
    fast = trend.fast_bytes_per_s or 0.0
    calm = limits.calm if messages.FILLING in memory.standing else 1.0
    slow_s = free_bytes / slow if slow > 0 else inf
    fast_s = free_bytes / fast if fast > 0 else inf
    return min(
        slow_s if slow_s < limits.horizon_s * calm else inf, fast_s if fast_s < limits.fast_horizon_s * calm else inf
    )


def _judge_others(sample: DiskSample, memory: DiskHistory, doing: Doing, limits: DiskLimits) -> Iterator[Alarm]:
    """The other file systems that the run writes to: an alert, and no other answer."""
    for space in sample.spaces[1:]:
        full_s = _predict_full_s(space, replace(memory, stayed=()), limits, ())
        if full_s < inf:
            yield messages.report_filling(space, full_s, doing, (), "alert")


def _judge_limits(
    sample: DiskSample,
    disk: Space,
    wanted: WantedBytes,
    deletions: Sequence[Deletion],
    doing: Doing,
    limits: DiskLimits,
) -> Iterator[Alarm]:
    """Limits of the config that stay exceeded after all allowed deletions."""
    if wanted.over_budget > total_bytes(deletions):
        yield messages.report_over_budget(sample, disk, doing, limits)
    if wanted.over_ratio > total_bytes(deletions):
        yield messages.report_over_ratio(disk, limits)
