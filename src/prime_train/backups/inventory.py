"""Lists the backups of a run and judges which are complete. Reads only; deletes nothing.

A backup is a folder RUN/step_N.ID with the objects of all files, then the manifest, then the marker. It is complete if
the marker names the manifest's hash and every object of the manifest is there with its size. Objects are named by their
hash, so one that is there is never another one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from prime_train.backups import manifest as manifests
from prime_train.backups.settings import is_safe_run_name
from prime_train.backups.store import Listed, Store
from prime_train.checkpoints.cleanup import find_superseded
from prime_train.checkpoints.layout import SavedCheckpoint
from prime_train.core.errors import UserError


@dataclass(frozen=True, slots=True)
class StoredBackup:
    """One backup in the bucket. `problem` is empty if it is complete; then `manifest` is there."""

    step: int
    id: str
    folder: str  # below the store's root
    stored_bytes: int
    changed_s: float  # the latest change of an object in it; 0 where the provider does not name it
    objects: tuple[str, ...]  # every object in the folder, also those that the manifest does not name
    problem: str
    manifest: manifests.Manifest | None = None
    pinned: bool = False

    @property
    def complete(self) -> bool:
        return not self.problem

    @property
    def saved_s(self) -> float:
        return self.manifest.saved_s if self.manifest is not None else self.changed_s


def list_backups(store: Store, run: str) -> list[StoredBackup]:
    """Every backup of a run, newest first. Raises UserError where the bucket cannot be read."""
    check_run_name(run)
    store.check()
    folders: dict[str, dict[str, Listed]] = {}
    for name, listed in store.list(run).items():
        folder, _, rest = name.partition("/")
        if manifests.parse_folder(folder) is not None:
            folders.setdefault(folder, {})[rest] = listed
    found = [inspect(store, run, folder, objects) for folder, objects in folders.items()]
    return sorted(found, key=lambda one: (one.step, one.complete, one.saved_s), reverse=True)


def inspect(store: Store, run: str, folder: str, objects: dict[str, Listed]) -> StoredBackup:
    """The state of one backup, whose objects were listed."""
    parsed = manifests.parse_folder(folder)
    assert parsed is not None
    step, identity = parsed
    found, problem = _read(store, f"{run}/{folder}", run, step, identity, objects)
    return StoredBackup(
        *(step, identity, f"{run}/{folder}"),
        sum(listed.size_bytes for listed in objects.values()),
        max((listed.changed_s for listed in objects.values()), default=0.0),
        tuple(sorted(objects)),
        problem,
        found,
        manifests.PINNED in objects,
    )


def _read(
    store: Store, path: str, run: str, step: int, identity: str, objects: dict[str, Listed]
) -> tuple[manifests.Manifest | None, str]:
    if manifests.MARKER not in objects:
        return None, f"no {manifests.MARKER}: the upload did not finish"
    marker = store.read(f"{path}/{manifests.MARKER}", manifests.MOST_MARKER_BYTES)
    text = store.read(f"{path}/{manifests.MANIFEST}", manifests.MOST_MANIFEST_BYTES)
    if marker is None or text is None:
        return None, f"no {manifests.MANIFEST if marker is not None else manifests.MARKER}: it is being deleted"
    try:
        manifests.parse_marker(marker, text)
        found = manifests.parse(text, run, step, identity)
    except manifests.ManifestError as error:
        return None, str(error)
    for name, size_bytes in found.objects.items():
        have = objects.get(name)
        if have is None or have.size_bytes != size_bytes:
            lacks = "is missing" if have is None else f"has {have.size_bytes:,} of {size_bytes:,} bytes"
            return found, f"{name[:22]}... {lacks}"
    return found, ""


def newest_complete(backups: Sequence[StoredBackup]) -> StoredBackup | None:
    return next((one for one in backups if one.complete), None)


def list_superseded(
    backups: Sequence[StoredBackup], keep_last: int, keep_every_steps: int | None
) -> list[tuple[StoredBackup, str]]:
    """The complete backups that newer ones have superseded, oldest first, each with the reason.

    The same retention as for checkpoints on the disk. Where a step has two complete backups, because it was saved
    again, the newer one counts.
    """
    newest: dict[int, StoredBackup] = {}
    doubles: list[tuple[StoredBackup, str]] = []
    for one in (one for one in backups if one.complete):
        if one.step in newest:
            if not one.pinned:
                doubles.append((one, f"step {one.step} was saved again"))
        else:
            newest[one.step] = one
    as_checkpoints = [SavedCheckpoint(one.step, Path(one.folder), 0, "", one.pinned) for one in newest.values()]
    beyond = find_superseded(as_checkpoints, keep_last, keep_every_steps)
    doubles.sort(key=lambda one: one[0].step)
    return [*((newest[one.step], f"beyond keep_last = {keep_last}") for one in beyond), *doubles]


def check_run_name(run: str) -> None:
    """Raise UserError for a name that cannot be a folder of a bucket."""
    if not is_safe_run_name(run):
        why = "a folder in a bucket has letters, digits and . _ = + - here"
        raise UserError(f"the run's name is {run!r}", "run.name", why, "rename the run with --run-name")
