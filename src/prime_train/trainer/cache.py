"""Caches what is made once from a source of data: a tokenizer, the tokens of chats. Those of text: data/token_parts.py.

An entry is a folder named by its key. It appears complete or not at all; one process builds it, others wait. Its file
SHA256.json names the size and the hash of every other file. All of it is on the disk before the entry has its name, and
each process compares it once before it uses it: a damaged entry is made again. Comparing takes 0.6 CPU-seconds per GiB
(measured: sha256 of hashlib on a core with SHA instructions, 2026-11), and the text of a usual run has 160 MB.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

from prime_train.core import outside
from prime_train.core.errors import UserError, explain_disk_error
from prime_train.core.installation import cache_path
from prime_train.core.rundir import sync, write_atomic

HASHES = "SHA256.json"
_verified: set[tuple[Path, int, int]] = set()  # entries that this process has compared: path, inode, time
_remade: list[str] = []


Opened = TypeVar("Opened")  # documents, or chats


@dataclass(frozen=True, slots=True)
class Origin(Generic[Opened]):
    """A source that was found but is not opened yet."""

    name: str  # for messages
    fingerprint: str  # of names, sizes and modification times: differs where the text may differ
    identity: str  # of names and sizes: the same on every machine with the same files
    size_bytes: int  # on disk
    open: Callable[[], Opened]


def digest(value: object) -> str:
    """A short hash of a JSON-able value: the key of an entry."""
    return hashlib.sha256(json.dumps(value).encode()).hexdigest()[:24]


def entry(kind: str, key: str, build: Callable[[Path], None]) -> Path:
    """The folder of this entry; `build` fills an empty one where there is none yet, or a damaged one."""
    folder = Path(cache_path(kind, key))
    with writing(folder.parent, "tokenizers and tokenised text are kept there between runs"):
        if not find_fault(folder):
            return folder
        folder.parent.mkdir(parents=True, exist_ok=True)
        with open(folder.with_name(f"{key}.lock"), "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if fault := find_fault(folder):
                if folder.exists():
                    report_damage(folder, fault)
                _build(folder, build)
    return folder


@contextmanager
def writing(
    folder: Path, kept: str = "tokenised text is kept there, so that each document is tokenised once"
) -> Iterator[None]:
    """Convert an OSError in the block to a UserError that names the folder and the cause."""
    try:
        yield
    except OSError as error:
        found = explain_disk_error(error.errno or 0, folder)
        what = f"cannot write the cache: {error.strerror}: {found.what}"
        fix = f"{found.fix}; or set PRIME_TRAIN_CACHE to another directory"
        raise UserError(what, str(folder), f"{found.why}; {kept}", fix) from error


def take_remade() -> list[str]:
    """One line for each damaged entry that this process has made again since the last call."""
    taken = _remade.copy()
    _remade.clear()
    return taken


def find_fault(folder: Path) -> str:
    """What is wrong with an entry; empty where its content is as it was built. Reads every byte once per process."""
    try:
        status = (folder / HASHES).stat()
        version = (folder, status.st_ino, status.st_mtime_ns)
        if version in _verified:
            return ""
        expected = outside.read_json(folder / HASHES, outside.RECORD_BYTES, within=folder)
        if expected != _hash_files(folder):
            return f"its files are not those that {HASHES} names"
    except FileNotFoundError as error:
        return f"{Path(error.filename).name} is missing"
    except (ValueError, OSError) as error:
        return f"it cannot be read: {error}"
    _verified.add(version)
    return ""


def _hash_files(folder: Path) -> dict[str, Any]:
    """Size and SHA-256 of every file of an entry except HASHES itself."""
    found = {}
    for path in sorted(folder.rglob("*")):
        if path.name != HASHES and not path.is_dir():
            with outside.open_regular(path, within=folder) as file:
                sha256 = hashlib.file_digest(file, "sha256").hexdigest()
                found[path.relative_to(folder).as_posix()] = {"bytes": file.tell(), "sha256": sha256}
    return found


def report_damage(folder: Path, fault: str) -> None:
    """Write that an entry is made again, and keep the line for `take_remade`."""
    text = f"the cached {folder.parent.name} in {folder} are damaged ({fault}), and are made again"
    sys.stderr.write(f"{text}\n")
    _remade.append(text)


def _build(folder: Path, build: Callable[[Path], None]) -> None:
    partial, damaged = folder.with_name(f".{folder.name}.partial"), folder.with_name(f".{folder.name}.damaged")
    for left in (partial, damaged):
        shutil.rmtree(left, ignore_errors=True)  # left by a killed build; the lock excludes a running one
    partial.mkdir()
    try:
        build(partial)
        _finish(partial)
        if folder.exists():
            folder.rename(damaged)  # processes that have mapped its files keep them
        partial.rename(folder)
        sync(folder.parent)
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise
    shutil.rmtree(damaged, ignore_errors=True)


def _finish(folder: Path) -> None:
    """Bring every file and name of a built entry to the disk, then the file of their hashes."""
    for directory, _, names in os.walk(folder, topdown=False):
        for name in names:
            sync(Path(directory, name))
        sync(Path(directory))
    write_atomic(folder / HASHES, json.dumps(_hash_files(folder), indent=1), is_private=False)
