"""What the disk watch says: one function for each alarm. Judges nothing, looks at nothing."""

from __future__ import annotations

from collections.abc import Sequence

from prime_train.checkpoints.cleanup import Deletion
from prime_train.core.units import format_bytes, format_seconds
from prime_train.supervise.watches.disk.room import Doing, Limits, Room, total_bytes
from prime_train.supervise.watches.disk.sample import Refusal, Sample, Space
from prime_train.supervise.watches.watch import Alarm, Answer

WATCH = "disk"
LAST_ROOM = "disk_last_room"  # the save that a pause makes still fits, and no later one
NO_ROOM = "disk_no_room"  # a save would not fit: who pauses for it must end the trainer without one
FILLING = "disk_filling"
REFUSES = "disk_refuses"  # as NO_ROOM: there is nothing to save to
SILENT = "disk_silent"


def no_room(disk: Space, room: Room, due_s: float | None, doing: Doing, answer: Answer) -> Alarm:
    when = "" if due_s is None else f", due in {format_seconds(due_s)},"
    what = (
        f"the next checkpoint{when} needs {format_bytes(room.need_bytes)} with what is written beside it, and "
        f"{disk.path} has {_have(room)}"
    )
    why = "a save that is cut short costs all steps since the last whole checkpoint"
    return _alarm(NO_ROOM, disk, answer, what, why, make_room(disk, doing))


def last_room(disk: Space, room: Room, doing: Doing, answer: Answer) -> Alarm:
    what = (
        f"{disk.path} has room for one more checkpoint of {format_bytes(room.need_bytes)}, not for two: {_have(room)}"
    )
    why = "what stays after the next save leaves no room for the one after it"
    return _alarm(LAST_ROOM, disk, answer, what, why, make_room(disk, doing))


def _have(room: Room) -> str:
    goes = f" and {format_bytes(room.goes_bytes)} that may go" if room.goes_bytes else ", and nothing may go"
    return f"{format_bytes(room.free_bytes)} free{goes}"


def make_room(disk: Space, doing: Doing) -> str:
    return (
        f"free space on {disk.path}: see what the run keeps with `prime-train ckpt prune {doing.name} --dry-run`; "
        "the same command goes on from the newest checkpoint"
    )


def filling(disk: Space, full_s: float, doing: Doing, going: Sequence[Deletion], answer: Answer) -> Alarm:
    after = f" once {format_bytes(total_bytes(going))} that may go has gone" if going else ""
    what = (
        f"{disk.path} is full in {format_seconds(full_s)}{after}: {format_bytes(disk.free_bytes)} of "
        f"{format_bytes(disk.total_bytes)} are free"
    )
    why = "on a full disk a checkpoint is cut short, and logs and events end"
    fix = f"see what grows with `du -xhd2 {disk.path} | sort -h | tail`; {make_room(disk, doing)}"
    return _alarm(FILLING, disk, answer, what, why, fix)


def over_budget(sample: Sample, disk: Space, doing: Doing, limits: Limits) -> Alarm:
    what = (
        f"the run's files take {sample.own_bytes / 1e9:.1f} GB, {limits.max_disk_gb:g} GB are allowed, and nothing "
        "that remains may go"
    )
    why = "max_disk_gb is set; the newest checkpoint, pinned ones and those of keep_every_steps stay"
    fix = (
        f"raise prime_train.cleanup.max_disk_gb, or see what stays with `prime-train ckpt prune {doing.name} --dry-run`"
    )
    return _alarm("disk_budget", disk, "alert", what, why, fix)


def over_ratio(disk: Space, limits: Limits) -> Alarm:
    used = 1 - disk.free_bytes / max(1, disk.total_bytes)
    what = f"{disk.path} is {used:.0%} full, {limits.max_used_ratio:.0%} are allowed, and nothing of the run may go"
    why = "others may write to this disk too, and a checkpoint needs room beside those that are kept"
    fix = f"free space on {disk.path}, or raise prime_train.cleanup.max_used_ratio"
    return _alarm("disk_ratio", disk, "note", what, why, fix)


def few_inodes(disk: Space) -> Alarm:
    what = f"{disk.path} has room for {disk.free_inodes:,} more files, of {disk.total_inodes:,}"
    why = "without an inode no file can be made, however much space is free"
    fix = f"delete small files there: `du --inodes -xd2 {disk.path} | sort -n | tail`"
    return _alarm("disk_inodes", disk, "alert", what, why, fix)


def refuses(refusal: Refusal, answer: Answer) -> Alarm:
    what = f"{refusal.path} takes no file: {refusal.message}"
    why = "the next checkpoint would fail there, and so would logs and events"
    fix = f"see `df -h {refusal.path}`, `quota -s` and `mount`; then give the same command again"
    return Alarm(WATCH, REFUSES, refusal.path, answer, "disk", what, why, fix, refusal.path)


def silent(path: str, mounted: str, silent_s: float) -> Alarm:
    what = f"{path}{mounted} has not answered for {format_seconds(silent_s)}"
    why = "whoever reads or writes there waits in the kernel, the trainer's checkpoints too"
    fix = "see whether its server answers (`mount`, `dmesg | tail`); the run goes on where it needs no disk"
    return Alarm(WATCH, SILENT, path, "alert", "disk", what, why, fix, path)


def blind(path: str, code: int, log: str) -> Alarm:
    what = f"the look at the disk ended with exit code {code}"
    why = "until it is started again nobody sees the disk fill"
    return Alarm(WATCH, "disk_watch_ended", path, "note", "disk", what, why, f"read {log}", log)


def slow_removal(path: str, silent_s: float) -> Alarm:
    what = f"a deletion on {path} has been under way for {format_seconds(silent_s)}"
    why = "no other deletion is begun before it ends"
    fix = "see whether the file system answers: `mount`, `dmesg | tail`"
    return Alarm(WATCH, "disk_removal_slow", path, "note", "disk", what, why, fix, path)


def _alarm(name: str, disk: Space, answer: Answer, what: str, why: str, fix: str) -> Alarm:
    return Alarm(WATCH, name, disk.path, answer, "disk", what, why, fix, disk.path)
