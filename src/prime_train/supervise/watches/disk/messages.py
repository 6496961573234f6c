"""The alarms of the disk watch, one function for each. Only a refused write asks the disk for its counts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from prime_train.checkpoints.cleanup import Deletion
from prime_train.core.errors import explain_disk_error
from prime_train.core.units import format_bytes, format_seconds
from prime_train.supervise.watches.disk.room import DiskLimits, DiskRoom, Doing, total_bytes
from prime_train.supervise.watches.disk.sample import DiskSample, Refusal, Space
from prime_train.supervise.watches.watch import Alarm, Answer

WATCH = "disk"
LAST_ROOM = "disk_last_room"  # the save that a pause makes still fits, but no later one
NO_ROOM = "disk_no_room"
FILLING = "disk_filling"
REFUSES = "disk_refuses"
SILENT = "disk_silent"
_UNKNOWN = (
    "nothing is deleted, because the layout of the trainer's checkpoints is not known; command.checkpoints.dir and "
    "command.checkpoints.layout name it (`prime-train trainers list`)"
)


def report_no_room(disk: Space, room: DiskRoom, due_s: float | None, doing: Doing, answer: Answer) -> Alarm:
    when = "due at a step that is not known" if due_s is None else f"due in {format_seconds(due_s)}"
    what = (
        f"the next checkpoint, {when}, needs {format_bytes(room.need_bytes)} with the files beside it, and "
        f"{disk.path} has {_describe_room(room)}"
    )
    why = "an incomplete save loses all steps since the last complete checkpoint"
    return replace(_alarm(NO_ROOM, disk, answer, what, why, _advise(disk, doing)), savable=False)


def report_last_room(disk: Space, room: DiskRoom, doing: Doing, answer: Answer) -> Alarm:
    needed, free = format_bytes(room.need_bytes), _describe_room(room)
    what = f"{disk.path} has room for one more checkpoint of {needed}, not for two: {free}"
    why = "the files that stay after the next save leave no room for the save after it"
    return _alarm(LAST_ROOM, disk, answer, what, why, _advise(disk, doing))


def _describe_room(room: DiskRoom) -> str:
    free, deletable = format_bytes(room.free_bytes), format_bytes(room.deletable_bytes)
    return f"{free} free and {deletable} deletable" if room.deletable_bytes else f"{free} free, and nothing to delete"


def _advise(disk: Space, doing: Doing) -> str:
    if not doing.knows_layout:
        return f"free space on {disk.path}: {_UNKNOWN}"
    return (
        f"free space on {disk.path}: see what the run keeps with `prime-train ckpt prune {doing.name} --dry-run`; "
        "the same command continues from the newest checkpoint"
    )


def report_filling(disk: Space, full_s: float, doing: Doing, going: Sequence[Deletion], answer: Answer) -> Alarm:
    after = f" after {format_bytes(total_bytes(going))} are deleted" if going else ""
    what = (
        f"{disk.path} is full in {format_seconds(full_s)}{after}: {format_bytes(disk.free_bytes)} of "
        f"{format_bytes(disk.total_bytes)} are free"
    )
    why = "on a full disk a checkpoint stays incomplete, and logs and events end"
    fix = f"see what grows with `du -xhd2 {disk.path} | sort -h | tail`; {_advise(disk, doing)}"
    return _alarm(FILLING, disk, answer, what, why, fix)


def report_over_budget(sample: DiskSample, disk: Space, doing: Doing, limits: DiskLimits) -> Alarm:
    what = (
        f"the run's files take {sample.own_bytes / 1e9:.1f} GB, {limits.max_disk_gb:g} GB are allowed, and nothing "
        "more may be deleted"
    )
    why = "max_disk_gb is set; the newest checkpoint, pinned ones and those of keep_every_steps stay"
    see = f"`prime-train ckpt prune {doing.name} --dry-run`"
    fix = f"raise prime_train.cleanup.max_disk_gb, or see what stays with {see}"
    return _alarm("disk_budget", disk, "alert", what, why, fix)


def report_over_ratio(disk: Space, limits: DiskLimits) -> Alarm:
    used = 1 - disk.free_bytes / max(1, disk.total_bytes)
    what = f"{disk.path} is {used:.0%} full, {limits.max_used_ratio:.0%} are allowed, and the run has nothing to delete"
    why = "other programs may write to this disk too, and a checkpoint needs room beside those that are kept"
    fix = f"free space on {disk.path}, or raise prime_train.cleanup.max_used_ratio"
    return _alarm("disk_ratio", disk, "note", what, why, fix)


def report_few_inodes(disk: Space) -> Alarm:
    what = f"{disk.path} has room for {disk.free_inodes:,} more files, of {disk.total_inodes:,}"
    why = "without a free inode no file can be created, even with free space"
    fix = f"delete small files there: `du --inodes -xd2 {disk.path} | sort -n | tail`"
    return _alarm("disk_inodes", disk, "alert", what, why, fix)


def report_refusal(refusal: Refusal, answer: Answer) -> Alarm:
    found = explain_disk_error(refusal.errno, refusal.path)
    what = f"{refusal.path} accepts no file: {refusal.message}: {found.what}"
    why = f"{found.why}; the next checkpoint would fail there, and logs and events too"
    fix = f"{found.fix}; then give the same command again"
    return Alarm(WATCH, REFUSES, refusal.path, answer, "disk", what, why, fix, refusal.path, savable=False)


def report_full_output(refusal: Refusal) -> Alarm:
    found = explain_disk_error(refusal.errno, refusal.path)
    what = f"{refusal.path} accepts no file: {refusal.message}: {found.what}"
    why = f"{found.why}; what the trainer saves there would stay incomplete"
    return Alarm(WATCH, REFUSES, refusal.path, "alert", "disk", what, why, f"{found.fix}; {_UNKNOWN}", refusal.path)


def report_silent(path: str, mounted: str, silent_s: float) -> Alarm:
    what = f"{path}{mounted} has not answered for {format_seconds(silent_s)}"
    why = "every process that reads or writes there waits in the kernel; so does the trainer when it saves"
    fix = "check that its server answers (`mount`, `dmesg | tail`); the run continues until it needs the disk"
    return Alarm(WATCH, SILENT, path, "alert", "disk", what, why, fix, path)


def report_ended(path: str, code: int, log: str) -> Alarm:
    what = f"the program that samples the disk ended with exit code {code}"
    why = "a disk that fills is not noticed until it starts again"
    return Alarm(WATCH, "disk_watch_ended", path, "note", "disk", what, why, f"read {log}", log)


def report_slow_removal(path: str, silent_s: float) -> Alarm:
    what = f"a deletion on {path} has taken {format_seconds(silent_s)}"
    why = "no other deletion starts before it ends"
    fix = "check that the file system answers: `mount`, `dmesg | tail`"
    return Alarm(WATCH, "disk_removal_slow", path, "note", "disk", what, why, fix, path)


def _alarm(name: str, disk: Space, answer: Answer, what: str, why: str, fix: str) -> Alarm:
    return Alarm(WATCH, name, disk.path, answer, "disk", what, why, fix, disk.path)
