"""Lists what a bucket holds below a folder, bounded in number, and without an error for one strange object.

Nothing that is listed was written by prime-train for certain. A folder on this machine is walked without following a
link; a pipe, a device, a link and a folder that may not be read are listed with their problem. A server may answer
without end, so pages and objects are counted.
"""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Iterator
from datetime import datetime
from itertools import islice
from typing import Any, NamedTuple

from prime_train.core import outside

MOST_OBJECTS = 1_000_000  # of one run; more is no listing of ours
_MOST_PAGES = 4_000  # a page of S3 has up to 1,000 objects, fewer after many deletions
_MOST_FOLDERS = 100_000  # a backup has two
_DEEPEST = 16  # folders; a backup has two levels


class EndlessError(Exception):
    """A listing is longer than any of ours; the message has the reason."""


class Listed(NamedTuple):
    size_bytes: int
    changed_s: float  # seconds since the epoch; 0 where the provider does not name it
    problem: str = ""  # why it cannot be an object: it is a link, a pipe, a folder that may not be read
    hides: bool = False  # a folder that may not be read: what is in it is not known


def list_folder(where: str) -> Iterator[tuple[str, Listed]]:
    """Everything but folders below a folder of this machine, by its relative name.

    Raises OSError for `where` itself, but not where it is missing.
    """
    waiting, folders = [("", where)], 0
    while waiting:
        prefix, path = waiting.pop()
        folders += 1
        if folders > _MOST_FOLDERS:
            raise EndlessError(f"it has more than {_MOST_FOLDERS:,} folders")
        try:
            entries = _scan(path, is_root=not prefix)
        except OSError as error:
            if not prefix:
                raise
            yield prefix.rstrip("/"), Listed(0, 0.0, f"it cannot be listed: {error.strerror}", hides=True)
            continue
        for entry in entries:
            if entry.is_dir(follow_symlinks=False) and prefix.count("/") < _DEEPEST:
                waiting.append((f"{prefix}{entry.name}/", entry.path))
                continue
            with contextlib.suppress(FileNotFoundError):
                status = entry.stat(follow_symlinks=False)
                yield f"{prefix}{entry.name}", Listed(status.st_size, status.st_mtime, _problem_of(status.st_mode))


def _scan(path: str, *, is_root: bool) -> list[os.DirEntry[str]]:
    """The entries of a folder that is no link; none of a missing one. Raises OSError."""
    try:
        if is_root and stat.S_ISLNK(os.lstat(path).st_mode):
            raise outside.link_error(path)
        with os.scandir(path) as entries:
            return list(islice(entries, MOST_OBJECTS + 1))  # one more than the caller accepts
    except FileNotFoundError:
        return []


def _problem_of(mode: int) -> str:
    return "" if stat.S_ISREG(mode) else "it is a folder" if stat.S_ISDIR(mode) else f"it is {outside.kind_of(mode)}"


def list_s3(fs: Any, where: str) -> Iterator[tuple[str, Listed]]:
    """Every object below a prefix, by its relative name. Raises what the back end raises, and EndlessError."""
    bucket, _, prefix = where.partition("/")
    options: dict[str, Any] = {"Bucket": bucket, "Prefix": f"{prefix}/", "MaxKeys": 1000}
    for _ in range(_MOST_PAGES):
        page = fs.call_s3("list_objects_v2", **options)
        for found in page.get("Contents", ()):
            name = str(found["Key"]).removeprefix(options["Prefix"])
            yield name, Listed(int(found.get("Size") or 0), _seconds(found.get("LastModified")))
        token = page.get("NextContinuationToken")
        if not (page.get("IsTruncated") and token):
            return
        options["ContinuationToken"] = token
    raise EndlessError(f"it has not ended after {_MOST_PAGES:,} pages")


def list_by_fsspec(fs: Any, where: str) -> Iterator[tuple[str, Listed]]:
    """Every object below a folder of any other provider."""
    base = f"{fs._strip_protocol(where).strip('/')}/"
    for name, info in fs.find(where, detail=True).items():
        if info.get("type") == "file" and not info.get("islink"):
            yield str(name).strip("/").removeprefix(base), Listed(int(info.get("size") or 0), _changed_s(info))


def _changed_s(info: dict[str, Any]) -> float:
    values = (info.get(key) for key in ("LastModified", "last_modified", "mtime", "updated"))
    return next((_seconds(value) for value in values if value is not None), 0.0)


def _seconds(value: object) -> float:
    """A time in any form that a provider writes, in seconds since the epoch; 0 for anything else."""
    if isinstance(value, int | float):
        return float(value)
    with contextlib.suppress(ValueError, OverflowError):
        if isinstance(value, datetime):
            return value.timestamp()
        if isinstance(value, str):
            return datetime.fromisoformat(value).timestamp()
    return 0.0
