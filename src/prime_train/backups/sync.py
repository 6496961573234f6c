"""One round of a backup: push what is due, prune the bucket, free the local disk. Yields a result for each step.

It may be killed at any moment and repeated. Each round first completes what an earlier one left.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from prime_train.backups import inventory, prune
from prime_train.backups import source as sources
from prime_train.backups.inventory import StoredBackup
from prime_train.backups.push import Sent, Upload, push
from prime_train.backups.source import BackupSource, ChangedError
from prime_train.core.errors import UserError


@dataclass(frozen=True, slots=True)
class SyncResult:
    """One thing that was done, or failed with a `problem`. `path` is set for local checkpoints that were freed.

    "held": a final round had nothing to push, because the newest checkpoint was in the bucket.
    """

    did: Literal["pushed", "held", "pruned", "freed", "failed"]
    step: int
    size_bytes: int = 0
    stored_bytes: int = 0
    seconds: float = 0.0
    reason: str = ""
    problem: str = ""
    path: str = ""


def list_due(
    local: Sequence[BackupSource], backups: Sequence[StoredBackup], keep_last: int, interval_steps: int | None
) -> list[BackupSource]:
    """The checkpoints to push, newest first: those that the retention of the bucket would keep.

    With `interval_steps`, only those that are so many steps after the complete backup before them; the newest backup
    of a later step does not count.
    """
    done = sorted(one.step for one in backups if one.complete)
    due = [one for one in local if one.step not in done]
    steps = sorted({*done, *(one.step for one in due)})[-max(1, keep_last) :]
    due = [one for one in due if one.step in steps or one.pinned]
    if interval_steps is None:
        return due
    chosen: list[BackupSource] = []
    for one in sorted(due, key=lambda source: source.step):
        before = max((step for step in (*done, *(other.step for other in chosen)) if step < one.step), default=None)
        if before is None or one.step - before >= interval_steps:
            chosen.append(one)
    return chosen[::-1]


def run_round(
    upload: Upload, keep_every_steps: int | None, *, is_final: bool = False, on_sent: Sent = lambda _: None
) -> Iterator[SyncResult]:
    """Push the newest due checkpoint until none is due, then prune, then free. Raises UserError, OSError.

    `is_final`: the newest checkpoint is due at any interval. Older ones are not pushed then, because time is short.
    """
    store, places, backup = upload.store, upload.places, upload.store.backup
    failed: set[int] = set()
    pushed: set[int] = set()
    while True:
        backups = inventory.list_backups(store, upload.run)
        local = sources.list_sources(places)
        interval = None if is_final else backup.interval_steps
        due = [one for one in list_due(local, backups, backup.keep_last, interval) if one.step not in failed]
        due = [one for one in due if one.step == local[0].step] if is_final else due
        if not due:
            break
        try:
            done = push(upload, due[0], on_sent)
            pushed.add(done.step)
            yield SyncResult("pushed", done.step, done.size_bytes, done.stored_bytes, done.seconds)
        except ChangedError as error:
            failed.add(due[0].step)
            if any(path.exists() for path in due[0].paths):  # the trainer's retention may delete it at any time
                yield SyncResult("failed", due[0].step, problem=str(error))
    if is_final:
        yield from _report_held(local, [one for one in backups if one.complete and one.step not in pushed])
    yield from _report_older_line(local, backups)
    yield from prune_round(upload, backups, keep_every_steps)
    if backup.delete_after_upload:
        prune.finish_deletions(places)
        for source, stored in prune.list_offloadable(local, backups, backup.local_keep):
            freed = prune.offload(store, places, source, stored, upload.hashes)
            did: Literal["freed", "failed"] = "failed" if freed.problem else "freed"
            reason = f"its copy in the bucket is proved by hash, and local_keep = {backup.local_keep}"
            yield SyncResult(did, freed.step, freed.size_bytes, 0, 0.0, reason, freed.problem, str(freed.path))


def _report_held(local: Sequence[BackupSource], backups: Sequence[StoredBackup]) -> Iterator[SyncResult]:
    for one in backups:
        if one.manifest is not None and local and one.step == local[0].step:
            yield SyncResult("held", one.step, one.manifest.size_bytes, one.stored_bytes)


def _report_older_line(local: Sequence[BackupSource], backups: Sequence[StoredBackup]) -> Iterator[SyncResult]:
    """Report that the newest checkpoint is not copied, because the bucket has later steps of an earlier life."""
    later = sorted(one.step for one in backups if one.complete and local and one.step > local[0].step)
    if later and local[0].step not in {one.step for one in backups if one.complete}:
        steps = ", ".join(map(str, later))
        problem = f"the bucket has later steps ({steps}), and its retention would delete this one: use another run name"
        yield SyncResult("failed", local[0].step, problem=problem)


def prune_round(upload: Upload, backups: Sequence[StoredBackup], keep_every_steps: int | None) -> Iterator[SyncResult]:
    """Delete what the retention does not keep. Raises UserError."""
    keep_last = upload.store.backup.keep_last
    for one in prune.plan(backups, keep_last, keep_every_steps, time.time()):
        prune.delete(upload.store, one.stored)
        yield SyncResult("pruned", one.stored.step, one.stored.stored_bytes, 0, 0.0, one.reason)


@contextlib.contextmanager
def hold(folder: Path) -> Iterator[None]:
    """Hold the lock of a run's backup. Raises UserError if another process pushes or prunes for this run."""
    folder.mkdir(parents=True, exist_ok=True)
    fd = os.open(folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UserError(
                what="another process backs this run up",
                where=str(folder / "lock"),
                why="the background backup of a live run and `backup push` do the same work",
                fix="wait for it: `prime-train backup status RUN` shows what is in the bucket",
            ) from None
        yield
    finally:
        os.close(fd)
