"""Plans and does deletions: backups that newer ones have superseded, remains of uploads, and local checkpoints.

A deletion starts with the marker, so a backup that is half deleted is not complete. A local checkpoint is deleted only
when each object of its backup is proved by hash.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

from prime_train.backups import source as sources
from prime_train.backups.inventory import StoredBackup, list_superseded
from prime_train.backups.manifest import MANIFEST, MARKER
from prime_train.backups.source import BackupSource, ChangedError, Hashes
from prime_train.backups.store import Store
from prime_train.checkpoints import in_use, layout, removal, step_folders
from prime_train.checkpoints.step_folders import StepPlaces

QUIET_S = 24 * 3600.0  # an upload of another machine without a change for this long counts as abandoned


@dataclass(frozen=True, slots=True)
class BackupDeletion:
    stored: StoredBackup
    reason: str


def plan(
    backups: Sequence[StoredBackup],
    keep_last: int,
    keep_every_steps: int | None,
    now_s: float,
    own: Collection[str] = (),
) -> tuple[BackupDeletion, ...]:
    """What may be deleted in the bucket: superseded backups, oldest first, then remains of uploads.

    `own`: ids of local checkpoints; an unfinished upload of one of them will be continued. An unfinished upload is
    deleted only if a newer complete backup exists, or nothing in it changed for a day, because another machine may be
    at work on it. Never deletes the newest complete backup or one that is pinned.
    """
    found = [BackupDeletion(one, reason) for one, reason in list_superseded(backups, keep_last, keep_every_steps)]
    newest = max((one.step for one in backups if one.complete), default=-1)
    for one in backups:
        if one.complete or one.pinned or one.id in own:
            continue
        is_quiet = 0 < one.changed_s < now_s - QUIET_S
        if one.step < newest or is_quiet:
            found.append(BackupDeletion(one, one.problem))
    return tuple(found)


def delete(store: Store, stored: StoredBackup) -> None:
    """Delete a backup: marker, manifest, then the objects. Raises UserError."""
    for first in (MARKER, MANIFEST):
        if first in stored.objects:
            store.delete([f"{stored.folder}/{first}"])
    rest = [f"{stored.folder}/{name}" for name in stored.objects if name not in (MARKER, MANIFEST)]
    if rest:
        store.delete(rest)


def verify(store: Store, stored: StoredBackup, on_read: Callable[[int], None] = lambda _: None) -> str:
    """Prove every object of a complete backup by its hash. Returns the first problem; empty where there is none."""
    assert stored.manifest is not None
    for part in {part.sha256: part for file in stored.manifest.files for part in file.parts}.values():
        proof = store.prove(f"{stored.folder}/{part.object}", part.stored_bytes, part.sha256, part.md5)
        on_read(part.stored_bytes)
        if not proof.matches:
            return f"{part.object[:22]}... does not match its SHA-256 ({proof.how})"
    return ""


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
    for root in sources.root_names(places).values():
        removal.put_back(root)


def finish_deletions(places: StepPlaces) -> None:
    """Complete deletions that were decided and interrupted. What cannot be deleted stays; the trainer reports it."""
    for root in sources.root_names(places).values():
        for aside in removal.list_set_aside(root):
            if removal.is_decided(aside):
                with contextlib.suppress(OSError):
                    removal.finish(aside)


def newest_local(places: StepPlaces) -> int:
    """The step of the newest complete checkpoint on the disk; 0 without one."""
    return next((one.step for one in step_folders.checkpoints(places.checkpoints, places.layout) if one.complete), 0)
