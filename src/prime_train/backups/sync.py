"""One round of a backup: push what is due, prune the bucket, free the local disk. Yields a result for each step.

It may be killed at any moment and repeated. Each round first completes what an earlier one left. A deletion in the
bucket starts with the marker, so a backup that is half deleted is not complete. A local checkpoint is deleted only when
each object of its backup is proved by hash.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from prime_train.backups import inventory
from prime_train.backups import source as sources
from prime_train.backups.inventory import StoredBackup, list_superseded
from prime_train.backups.manifest import MANIFEST, MARKER, ObjectPart
from prime_train.backups.pull import PartError, read_part
from prime_train.backups.push import Sent, Upload, push
from prime_train.backups.source import BackupSource, ChangedError, Hashes
from prime_train.backups.store import ObjectError, Store
from prime_train.checkpoints import in_use, layout, removal, step_folders
from prime_train.checkpoints.step_folders import StepPlaces
from prime_train.core.errors import UserError

QUIET_S = 24 * 3600.0  # an upload of another machine without a change for this long counts as abandoned


@dataclass(frozen=True, slots=True)
class BackupDeletion:
    stored: StoredBackup
    reason: str


def plan(
    backups: Sequence[StoredBackup], keep_last: int, keep_every_steps: int | None, now_s: float
) -> tuple[BackupDeletion, ...]:
    """What may be deleted in the bucket: superseded backups, oldest first, then remains of uploads.

    An unfinished upload is deleted only if a newer complete backup exists, or nothing in it changed for a day, because
    another machine may be at work on it. Never deletes the newest complete backup, one that is pinned, or one that
    could not be judged. `now_s`: see `read_now_s`.
    """
    found = [BackupDeletion(one, reason) for one, reason in list_superseded(backups, keep_last, keep_every_steps)]
    newest = max((one.step for one in backups if one.complete), default=-1)
    for one in backups:
        is_quiet = 0 < one.changed_s < now_s - QUIET_S
        if one.judged and not (one.complete or one.pinned) and (one.step < newest or is_quiet):
            found.append(BackupDeletion(one, one.problem))
    return tuple(found)


def prove_newest(
    store: Store, backups: Sequence[StoredBackup], on_read: Callable[[int], None] = lambda _: None
) -> list[StoredBackup]:
    """The backups, of which the newest complete one is proved by its hashes.

    One that fails is no longer complete, and the one before is proved. Raises UserError.
    """
    found = list(backups)
    for index, one in enumerate(found):
        if one.complete:
            problem = verify(store, one, on_read)
            if not problem:
                break
            found[index] = replace(one, problem=problem)
    return found


def read_now_s(store: Store, backups: Sequence[StoredBackup]) -> float:
    """The time up to which the bucket's clock has certainly come, in seconds since the epoch. Raises UserError.

    The clock of this machine may be years ahead, and other machines wrote the times in the bucket. So it counts only as
    far as the provider's own clock; where that is not shown, as far as the latest change of this run.
    """
    shown_s = store.read_clock_s()
    if shown_s is None:
        shown_s = max((one.changed_s for one in backups), default=0.0)
    return min(shown_s, time.time())


def delete(store: Store, stored: StoredBackup) -> None:
    """Delete a backup: marker, manifest, then the objects. Raises UserError."""
    for first in (MARKER, MANIFEST):
        if first in stored.objects:
            store.delete([f"{stored.folder}/{first}"])
    rest = [f"{stored.folder}/{name}" for name in stored.objects if name not in (MARKER, MANIFEST)]
    if rest:
        store.delete(rest)


def verify(store: Store, stored: StoredBackup, on_read: Callable[[int], None] = lambda _: None) -> str:
    """Prove every object of a complete backup by its hash. Returns the first problem; empty where there is none.

    A packed object is read and unpacked: who forges a manifest can give rubbish its right hash.
    """
    assert stored.manifest is not None
    for part in {part.sha256: part for file in stored.manifest.files for part in file.parts}.values():
        problem = _find_fault(store, stored.folder, part)
        on_read(part.stored_bytes)
        if problem:
            return problem
    return ""


def _find_fault(store: Store, folder: str, part: ObjectPart) -> str:
    if part.packed:
        try:
            read_part(store, folder, part)
        except PartError as error:
            return str(error)
        return ""
    proof = store.prove(f"{folder}/{part.object}", part.stored_bytes, part.sha256, part.md5)
    return "" if proof.matches else f"{part.object[:22]}... does not match its SHA-256 ({proof.how})"


@dataclass(frozen=True, slots=True)
class FreedCheckpoint:
    """A local checkpoint that was deleted, or why it was not."""

    step: int
    path: Path
    size_bytes: int
    problem: str = ""


def list_offloadable(
    local: Sequence[BackupSource], backups: Sequence[StoredBackup], local_keep: int
) -> list[tuple[BackupSource, StoredBackup]]:
    """Local checkpoints beyond the newest `local_keep` that have a complete backup of their step, oldest first."""
    complete = {one.step: one for one in reversed(backups) if one.complete}  # the newest of a step comes last
    beyond = sorted(local, key=lambda one: one.step)[: -max(1, local_keep)]
    return [(one, complete[one.step]) for one in beyond if one.step in complete and not one.pinned]


def offload(
    store: Store, places: StepPlaces, source: BackupSource, stored: StoredBackup, hashes: Hashes
) -> FreedCheckpoint:
    """Delete a local checkpoint whose backup has the same content, and is proved by hash. Raises UserError, OSError."""
    problem = _find_difference(store, places, source, stored, hashes)
    problem = problem or removal.remove_unless(source.paths, _find_obstacle)
    return FreedCheckpoint(source.step, source.paths[0], source.size_bytes, problem)


def _find_difference(
    store: Store, places: StepPlaces, source: BackupSource, stored: StoredBackup, hashes: Hashes
) -> str:
    if user := next((user for path in source.paths if (user := in_use.marked_by(path))), ""):
        return f"{user} uses it"
    try:
        identity = sources.identify(source, places, sources.list_files(source), hashes)
    except ChangedError as error:
        return str(error)
    if identity.id != stored.id:
        return "its backup has another content"
    return verify(store, stored)


def _find_obstacle(asides: Sequence[Path]) -> str:
    """The last check, after the folders were renamed so that no process can start to use them."""
    if not asides:
        return "it is gone"
    if opened := in_use.opened_by(asides):
        return f"{opened} and reads or writes it"
    if any((aside / layout.PIN).exists() for aside in asides):
        return "it is pinned"
    user = next((user for aside in asides if (user := in_use.marked_by(aside))), "")
    return f"{user} uses it" if user else ""


def put_back(places: StepPlaces) -> None:
    """Give folders their names back whose deletion was started but not decided. Raises OSError."""
    for root in places.folders:
        removal.put_back(root)


def finish_deletions(places: StepPlaces) -> None:
    """Complete deletions that were decided and interrupted. What cannot be deleted stays; the trainer reports it."""
    for root in places.folders:
        for aside in removal.list_set_aside(root):
            if removal.is_decided(aside):
                with contextlib.suppress(OSError):
                    removal.finish(aside)


def newest_local(places: StepPlaces) -> int:
    """The step of the newest complete checkpoint on the disk; 0 without one."""
    return next((one.step for one in step_folders.checkpoints(places.checkpoints, places.layout) if one.complete), 0)


@dataclass(frozen=True, slots=True)
class SyncResult:
    """One thing that was done, or failed with a `problem`.

    `path` is set for local checkpoints that were freed. "held": a final round had nothing to push, because the newest
    checkpoint was in the bucket.
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
    """Push the newest due checkpoint until none is due, then prune, then free.

    Raises UserError, OSError. `is_final`: the newest checkpoint is due at any interval. Older ones are not pushed then,
    because time is short.
    """
    store, places, backup = upload.store, upload.places, upload.store.backup
    failed: set[int] = set()
    pushed: set[int] = set()
    while True:
        backups = inventory.list_backups(store, upload.run, places)
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
        except ObjectError as error:  # something in the bucket has its place; the other checkpoints are copied
            failed.add(due[0].step)
            yield SyncResult("failed", due[0].step, problem=f"{error.what}: {error.why}")
    if is_final:
        yield from _report_held(local, [one for one in backups if one.complete and one.step not in pushed])
    yield from _report_older_line(local, backups)
    yield from prune_round(upload, backups, keep_every_steps, pushed)
    if backup.delete_after_upload:
        finish_deletions(places)
        for source, stored in list_offloadable(local, backups, backup.local_keep):
            freed = offload(store, places, source, stored, upload.hashes)
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


def prune_round(
    upload: Upload, backups: Sequence[StoredBackup], keep_every_steps: int | None, pushed: Collection[int] = ()
) -> Iterator[SyncResult]:
    """Delete what the retention does not keep. Raises UserError. `pushed`: steps that the bucket has just accepted."""
    keep_last, now_s = upload.store.backup.keep_last, read_now_s(upload.store, backups)
    newest = inventory.newest_complete(backups)
    # Backups go because of a newer one, so that one must be whole. What this process wrote was compared on its way.
    if newest is not None and newest.step not in pushed and plan(backups, keep_last, keep_every_steps, now_s):
        backups = prove_newest(upload.store, backups)
    for one in plan(backups, keep_last, keep_every_steps, now_s):
        try:
            delete(upload.store, one.stored)
        except ObjectError as error:
            yield SyncResult("failed", one.stored.step, problem=f"{error.what}: {error.why}")
        else:
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
            why = "the background backup of a live run and `backup push` do the same work"
            fix = "wait for it: `prime-train backup status RUN` shows what is in the bucket"
            raise UserError("another process backs this run up", str(folder / "lock"), why, fix) from None
        yield
    finally:
        os.close(fd)
