"""Checks which checkpoints of the bundled trainer are complete. Reads sizes and, on request, hashes; never deletes.

A checkpoint is a folder `step_N`. Its manifest `COMPLETE.json` is written last and names every file with its size and
SHA-256. Without the manifest, or with a file that differs from it, a run cannot resume from the folder. A manifest can
also mark the checkpoint as damaged, which makes it incomplete forever, and state that a file is stored packed
(packed.py). Manifests are copied and downloaded: one that names anything but plain names below its folder is broken,
and so is one that does not name the files without which no checkpoint of torch loads.
"""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from prime_train.checkpoints.dcp import METADATA
from prime_train.checkpoints.listing import (
    LINK,
    Files,
    ListedFolder,
    NamedStep,
    list_and_read,
    list_newest_first,
    name_step,
    read_manifest,
    written_s,
)
from prime_train.checkpoints.listing import MANIFEST as MANIFEST
from prime_train.checkpoints.packing.packed import (
    SUFFIX,
    ManifestEntry,
    Read,
    find_changed_content,
    find_size_difference,
    parse_entry,
)
from prime_train.core import outside
from prime_train.core.outside import parse_json
from prime_train.core.rundir import sync, write_atomic

PIN = "PINNED"  # a file of this name protects a checkpoint from prime-train's deletions
_parse_start = json.JSONDecoder().raw_decode
_HELD_BYTES = 2**16  # of manifests that are not judged yet: those of a hundred checkpoints


class SavedCheckpoint(NamedTuple):  # thousands are made for a list, which a dataclass takes longer for
    """One `step_N` folder. `problem` describes what is wrong with it; empty when it is complete."""

    step: int
    folder: str  # a text, because pathlib takes long to make a path
    size_bytes: int
    problem: str
    pinned: bool = False
    written_s: float = 0.0  # since the epoch, of the manifest; of the folder's last change if there is none
    entries: tuple[ManifestEntry, ...] = ()  # of the manifest; () if it is not complete, and where nothing is packed

    @property
    def complete(self) -> bool:
        return not self.problem

    @property
    def path(self) -> Path:
        return Path(self.folder)


def write_manifest(folder: Path, step: int) -> int:
    """Sync every file of `folder`, then write the manifest, after which no file may change. Returns the bytes."""
    import hashlib  # lazy, because it loads OpenSSL, and a process that only looks at checkpoints hashes nothing

    files: dict[str, dict[str, int | str]] = {}
    for path in sorted(p for p in folder.rglob("*") if p.is_file() and p.name not in (MANIFEST, PIN)):
        with open(path, "rb") as file:
            os.fsync(file.fileno())
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        files[str(path.relative_to(folder))] = {"bytes": path.stat().st_size, "sha256": digest}
    # Names too: after a power cut a file that was synced can be missing from a folder that was not.
    for directory, _, _ in os.walk(folder, topdown=False):
        sync(Path(directory))
    sync(folder.parent)  # retention deletes older checkpoints next, so this one must not lose its name
    # Last of all, because it stands for everything else being on the disk.
    manifest = {"version": 1, "step": step, "files": files}
    write_atomic(folder / MANIFEST, json.dumps(manifest, indent=1), is_private=False)
    return sum(int(entry["bytes"]) for entry in files.values())


def mark_damaged(folder: Path, problem: str) -> None:
    """Mark a checkpoint as damaged in its manifest, so that no later start resumes from it. Not behind a link."""
    if folder.is_symlink():
        raise ValueError(LINK)
    _rewrite(folder, _manifest(folder) | {"damaged": problem})


def inspect(
    folder: Path, *, hashes: bool = False, on_read: Read = lambda _: None, any_files: bool = False
) -> SavedCheckpoint:
    """The state of one checkpoint folder, by file sizes, and with `hashes` by contents. One that is gone is incomplete.

    Its files are listed once and its manifest is read once, because a run may have thousands of checkpoints.
    `any_files`: it is of another trainer, so it need not have the files of torch.distributed.checkpoint.
    """
    reading = _Reading(on_read if hashes else None, any_files=any_files)
    return _judge_listed(list_and_read(name_step(folder)), reading).checkpoint


class SeenCheckpoint(NamedTuple):
    """A checkpoint, the files in its folder as they were listed, and the folder's own status before that."""

    checkpoint: SavedCheckpoint
    files: Files
    folder_status: os.stat_result | None  # None for a link, and for a folder that is gone


def look(folders: Iterable[NamedStep]) -> Iterator[SeenCheckpoint]:
    """The state of each checkpoint folder by file sizes, with what was listed of it."""
    listed: list[ListedFolder] = []
    held_bytes = 0
    for folder in folders:
        listed.append(list_and_read(folder))
        held_bytes += len(listed[-1].content)
        # Many are listed before they are judged: a core that does the two in turns takes a fifth longer.
        if held_bytes > _HELD_BYTES:
            yield from map(_judge_listed, listed)
            listed, held_bytes = [], 0
    yield from map(_judge_listed, listed)


class _Reading(NamedTuple):
    """Which contents are compared with their hashes: none without `on_read`, else every `parts`-th file's."""

    on_read: Read | None
    part: int = 0
    parts: int = 1
    any_files: bool = False


_SIZES_ONLY = _Reading(None)


def _judge_listed(listed: ListedFolder, reading: _Reading = _SIZES_ONLY) -> SeenCheckpoint:
    (folder, step), content, files, status = listed
    found = _settle(folder, step, content, files, reading)
    written, total_bytes = files.get(MANIFEST), sum([each.st_size for each in files.values()])
    # A folder of this name is not listed.
    pinned = PIN in files or (found.problem != "" and os.path.exists(f"{folder}/{PIN}"))  # noqa: PTH110
    saved_s = written_s(folder) if written is None else written.st_mtime
    saved = SavedCheckpoint(step, folder, total_bytes, found.problem, pinned, saved_s, found.entries)
    return SeenCheckpoint(saved, files, status)


def problem(folder: Path, *, on_read: Read | None = None, part: int = 0, parts: int = 1) -> str:
    """What is wrong, or empty. With `on_read` hashes are compared, in `parts` processes every `parts`-th file each."""
    named = name_step(folder)
    return _settle(*named, read_manifest(named.folder), {}, _Reading(on_read, part, parts)).problem


class _Judged(NamedTuple):
    problem: str
    entries: tuple[ManifestEntry, ...] = ()


_WHOLE = _Judged("")


def _settle(folder: str, step: int, content: bytes | str, files: Files, reading: _Reading) -> _Judged:
    """What a manifest holds and what is wrong, for a folder that has the name of this step.

    A checkpoint whose manifest changes meanwhile, because it is packed or restored, is judged again. `files`: what was
    listed of the folder; other files are looked up.
    """
    while True:
        found = _judge(folder, step, content, files, reading)
        # Only a problem is looked at again. A complete checkpoint is the usual case, and one look at it is enough.
        content, before = read_manifest(folder) if found.problem else content, content
        if content == before:
            return found
        # The listing is older than the manifest that is judged next.
        files = {}


def _judge(folder: str, step: int, content: bytes | str, files: Files, reading: _Reading) -> _Judged:
    if isinstance(content, str):
        return _Judged(content)
    if reading is _SIZES_ONLY and _is_as_saved(content, step, files):
        return _WHOLE
    try:
        manifest = parse_json(content)
        written_for = int(manifest["step"])
        damaged = str(manifest.get("damaged", ""))
        found = tuple(_entries(manifest))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        return _Judged(f"{MANIFEST} is unreadable: {error}")
    # Before the files, because a damaged file can have the right size.
    if damaged:
        return _Judged(f"found damaged: {damaged}")
    # A folder that was copied to another name would resume at a wrong step.
    if written_for != step:
        return _Judged(f"{MANIFEST} was written for step {written_for}")
    if not reading.any_files and (lacks := _find_missing_entry([entry.name for entry in found])):
        return _Judged(lacks)
    for entry in found[reading.part :: reading.parts]:
        if not _is_as_listed(entry, files) and (differs := find_size_difference(Path(folder), entry)):
            return _Judged(differs)
        if reading.on_read is not None and (differs := find_changed_content(Path(folder), entry, reading.on_read)):
            return _Judged(differs)
    return _Judged("", found if any(entry.segments or entry.sha256_as_saved for entry in found) else ())


def _is_as_saved(content: bytes, step: int, files: Files) -> bool:
    """Whether a manifest has nothing but what `write_manifest` writes, and each file was listed with its size.

    Most have: of thousands none needs its entries, and a name that was listed is one of a file below the folder.
    """
    try:
        text = content.decode("utf-8")
        manifest, end = _parse_start(text)
        named: dict[str, dict[str, Any]] = manifest["files"]
        if "\\" in text or end != len(text) or len(manifest) != 3:
            return False
        if text.count(":") != 3 + 3 * len(named):  # a key that is there twice may hide what `parse_json` refuses
            return False
        if manifest["version"] != 1 or manifest["step"] != step or len(named) < 2:
            return False
        for name, raw in named.items():
            listed = files[name]
            if listed.st_size != raw["bytes"] or not isinstance(raw["sha256"], str) or len(raw) != 2:
                return False
            if not stat.S_ISREG(listed.st_mode):
                return False
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return False
    return METADATA in named


def _find_missing_entry(names: Collection[str]) -> str:
    """What a manifest with these files lacks: torch's index of the tensors, and a file that has some; "" if nothing."""
    if METADATA not in names:
        return f"{MANIFEST} names no {METADATA}, without which nothing can be loaded"
    return "" if len(names) > 1 else f"{MANIFEST} names no file with tensors"


def find_missing_name(names: Collection[str]) -> str:
    """What a checkpoint of these files lacks, packed or not; "" if nothing."""
    if MANIFEST not in names:
        return f"no {MANIFEST}"
    is_there = METADATA in names or any(name.startswith(f"{METADATA}{SUFFIX}") for name in names)
    return "" if is_there else f"no {METADATA}"


def _is_as_listed(entry: ManifestEntry, files: Files) -> bool:
    """Whether the listing proves that a file which is not packed has its size."""
    listed = None if entry.segments else files.get(entry.name)
    return listed is not None and listed.st_size == entry.size_bytes and stat.S_ISREG(listed.st_mode)


def entries(folder: Path) -> list[ManifestEntry]:
    """The entry of each file in the manifest of a complete checkpoint, sorted by name."""
    return _entries(_manifest(folder))


def update_entry(folder: Path, entry: ManifestEntry) -> None:
    """Replace the manifest's entry of one file; it is on the disk when this returns."""
    manifest = _manifest(folder)
    manifest["files"][entry.name] = entry.as_json()
    _rewrite(folder, manifest)


def _rewrite(folder: Path, manifest: dict[str, Any]) -> None:
    """Replace the manifest. Its time stays, because it is the time of the save."""
    path = folder / MANIFEST
    saved_ns = path.stat().st_mtime_ns
    write_atomic(path, json.dumps(manifest, indent=1), is_private=False, modified_ns=saved_ns)


def _manifest(folder: Path) -> dict[str, Any]:
    manifest: dict[str, Any] = outside.read_json(folder / MANIFEST, outside.RECORD_BYTES, within=folder)
    return manifest


def _entries(manifest: dict[str, Any]) -> list[ManifestEntry]:
    return [parse_entry(name, raw) for name, raw in sorted(manifest["files"].items())]


def scan(root: Path, *, hashes: bool = False) -> list[SavedCheckpoint]:
    """Every checkpoint folder under `root`, newest first."""
    folders = list_newest_first(root)
    # A listing is believed when it is judged, so none waits for contents to be read.
    return (
        [inspect(Path(one.folder), hashes=True) for one in folders]
        if hashes
        else [one.checkpoint for one in look(folders)]
    )


def newest_complete(root: Path) -> SavedCheckpoint | None:
    """The checkpoint that a run resumes from. Older checkpoints are not inspected."""
    judged = (_judge_listed(list_and_read(folder)).checkpoint for folder in list_newest_first(root))
    return next((checkpoint for checkpoint in judged if checkpoint.complete), None)
