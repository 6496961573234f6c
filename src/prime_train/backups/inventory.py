"""Lists the backups of a run and judges which are complete. Reads only; deletes nothing.

A backup is a folder RUN/step_N.ID with the objects of all files, then the manifest, then the marker. It is complete if
the marker names the manifest's hash, the manifest names the files that the run's format needs, and every object of the
manifest is there with its size. Objects are named by their hash, so one that is there is never another one.

Others may write to a bucket, so each folder is judged alone: what is wrong with one is its problem, and the others are
listed. What is read of all of them together is bounded in bytes and in seconds.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import NamedTuple

from prime_train.backups import manifest as manifests
from prime_train.backups.listing import Listed
from prime_train.backups.manifest import MANIFEST, MARKER, Manifest
from prime_train.backups.settings import is_safe_run_name
from prime_train.backups.source import root_names
from prime_train.backups.store import ObjectError, Store
from prime_train.checkpoints import step_folders
from prime_train.checkpoints.cleanup import find_superseded
from prime_train.checkpoints.layout import SavedCheckpoint
from prime_train.checkpoints.step_folders import StepPlaces
from prime_train.checkpoints.step_names import group_names
from prime_train.core.errors import UserError

_MOST_READ_BYTES = 256 * 2**20  # of all manifests: a thousand checkpoints of 47 GB
_REQUEST_BYTES = 64 * 2**10  # what a request takes in the time of reading and judging a text
_DEADLINE_S = 30.0  # for all manifests of a run together; 300 of them take about a second


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
    manifest: Manifest | None = None
    pinned: bool = False
    judged: bool = True  # False: it could not be read, so it may be complete; it is neither restored nor deleted

    @property
    def complete(self) -> bool:
        return not self.problem

    @property
    def broken(self) -> bool:
        """Its upload finished, and it is not as it was, or cannot be read."""
        return bool(self.problem) and (not self.judged or {MARKER, MANIFEST} <= set(self.objects))

    @property
    def saved_s(self) -> float:
        return self.manifest.saved_s if self.manifest is not None else self.changed_s


def list_backups(store: Store, run: str, places: StepPlaces) -> list[StoredBackup]:
    """Every backup of a run, newest first.

    `places` are those of the run on this machine. Raises UserError where the bucket cannot be read.
    """
    check_run_name(run)
    store.check()
    folders: dict[str, dict[str, Listed]] = {}
    for name, listed in store.list(run).items():
        folder, _, rest = name.partition("/")
        if manifests.parse_folder(folder) is not None:
            folders.setdefault(folder, {})[rest] = listed
    texts = _read_texts(store, run, folders)
    found = [_judge(run, folder, objects, texts[folder], places) for folder, objects in folders.items()]
    return sorted(found, key=lambda one: (one.step, one.complete, one.saved_s), reverse=True)


def inspect(store: Store, run: str, folder: str, objects: dict[str, Listed], places: StepPlaces) -> StoredBackup:
    """The state of one backup, whose objects were listed."""
    return _judge(run, folder, objects, _read_texts(store, run, {folder: objects})[folder], places)


class _Texts(NamedTuple):
    """Marker and manifest of a backup, or why they were not read."""

    marker: bytes = b""
    manifest: bytes = b""
    problem: str = ""
    judged: bool = True  # with a problem: whether it is one of the backup


def _read_texts(store: Store, run: str, folders: Mapping[str, Mapping[str, Listed]]) -> dict[str, _Texts]:
    texts, wanted, left_bytes = dict[str, _Texts](), [], _MOST_READ_BYTES
    # Small ones first, so that a few huge manifests do not use up what the usual ones need.
    for folder in sorted(folders, key=lambda one: _reading_order(one, folders[one])):
        objects = folders[folder]
        if problem := _find_unreadable(objects):
            texts[folder] = _Texts(problem=problem)
            continue
        left_bytes -= objects[MARKER].size_bytes + objects[MANIFEST].size_bytes + _REQUEST_BYTES
        if left_bytes < 0:
            why = f"not judged: the manifests of this run have more than {_MOST_READ_BYTES // 2**20} MiB"
            texts[folder] = _Texts(problem=why, judged=False)
        else:
            wanted.append(folder)
    until_s = time.monotonic() + _DEADLINE_S
    with ThreadPoolExecutor(store.provider.workers, "backup") as pool:
        read = pool.map(lambda folder: _read(store, f"{run}/{folder}", until_s), wanted)
        return texts | dict(zip(wanted, read, strict=True))


def _reading_order(folder: str, objects: Mapping[str, Listed]) -> tuple[int, int]:
    parsed, manifest = manifests.parse_folder(folder), objects.get(MANIFEST)
    return (manifest.size_bytes if manifest else 0).bit_length(), -(parsed or (0, ""))[0]


def _find_unreadable(objects: Mapping[str, Listed]) -> str:
    """Why marker and manifest of a backup are not read, as far as the listing shows; "" where they are."""
    if (itself := objects.get("")) is not None and itself.problem:
        return itself.problem
    bounds = {MARKER: manifests.MOST_MARKER_BYTES, MANIFEST: manifests.MOST_MANIFEST_BYTES}
    for name, most_bytes in bounds.items():
        listed = objects.get(name)
        if listed is None:
            return f"no {name}: {'the upload did not finish' if name == MARKER else 'it is being deleted'}"
        if listed.problem:
            return f"{name}: {listed.problem}"
        if not 0 < listed.size_bytes <= most_bytes:
            return f"{name} has {listed.size_bytes:,} bytes, and prime-train writes 1 to {most_bytes:,}"
    return ""


def _read(store: Store, path: str, until_s: float) -> _Texts:
    if time.monotonic() > until_s:
        why = f"not judged: the manifests of this run could not be read within {_DEADLINE_S:g} s"
        return _Texts(problem=why, judged=False)
    try:
        marker = store.read(f"{path}/{MARKER}", manifests.MOST_MARKER_BYTES)
        text = store.read(f"{path}/{MANIFEST}", manifests.MOST_MANIFEST_BYTES)
    except ObjectError as error:
        return _Texts(problem=f"{error.what.removeprefix(f'{path}/')}: {error.why}", judged=False)
    if marker is None or text is None:
        return _Texts(problem=f"no {MANIFEST if marker is not None else MARKER}: it is being deleted")
    return _Texts(marker, text)


def _judge(run: str, folder: str, objects: Mapping[str, Listed], texts: _Texts, places: StepPlaces) -> StoredBackup:
    parsed = manifests.parse_folder(folder)
    assert parsed is not None
    step, identity = parsed
    found, problem = None, texts.problem
    if not problem:
        try:
            manifests.parse_marker(texts.marker, texts.manifest)
            found = manifests.parse(texts.manifest, run, step, identity)
            problem = _find_misfit(found, places) or _find_missing_object(found, objects)
        except manifests.ManifestError as error:
            problem = str(error)
    return StoredBackup(
        step=step,
        id=identity,
        folder=f"{run}/{folder}",
        stored_bytes=sum(listed.size_bytes for listed in objects.values()),
        changed_s=max((listed.changed_s for listed in objects.values()), default=0.0),
        objects=tuple(sorted(name for name, listed in objects.items() if not listed.hides)),
        problem=problem,
        manifest=found,
        pinned=manifests.PINNED in objects,
        judged=texts.judged and not any(listed.hides for listed in objects.values()),
    )


def _find_missing_object(found: Manifest, objects: Mapping[str, Listed]) -> str:
    for name, size_bytes in found.objects.items():
        have = objects.get(name)
        if have is None:
            return f"{name[:22]}... is missing"
        if have.problem or have.size_bytes != size_bytes:
            lacks = have.problem or f"it has {have.size_bytes:,} of {size_bytes:,} bytes"
            return f"{name[:22]}... cannot be used: {lacks}"
    return ""


def _find_misfit(found: Manifest, places: StepPlaces) -> str:
    """Why this run could not resume from the files that a manifest names; "" where it could."""
    roots = root_names(places)
    if unknown := next((root for root in found.roots if root not in roots), None):
        return f"it has files for the folder {unknown[:100]!r}, and this run keeps its own in {', '.join(roots)}"
    names = {file.name for file in found.files if roots[file.root] in places.checkpoints}
    if not places.layout.proofs:
        return step_folders.find_missing_name(names, places.layout)
    groups = group_names(names, found.step, places.layout)
    if isinstance(groups, str):
        return groups
    if not groups:
        return "it names no file of a checkpoint"
    missing = (step_folders.find_missing_name(group, places.layout) for group in groups.values())
    return next(filter(None, missing), "")


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
    as_checkpoints = [SavedCheckpoint(one.step, one.folder, 0, "", one.pinned) for one in newest.values()]
    beyond = find_superseded(as_checkpoints, keep_last, keep_every_steps)
    doubles.sort(key=lambda one: one[0].step)
    return [*((newest[one.step], f"beyond keep_last = {keep_last}") for one in beyond), *doubles]


def check_run_name(run: str) -> None:
    """Raise UserError for a name that cannot be a folder of a bucket."""
    if not is_safe_run_name(run):
        why = "a folder in a bucket has letters, digits and . _ = + - here"
        raise UserError(f"the run's name is {run!r}", "run.name", why, "rename the run with --run-name")
