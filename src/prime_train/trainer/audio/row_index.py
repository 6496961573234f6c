"""Keeps how many rows each file of clips has, and how many clips each label, so that a later start opens no file.

A file on a network disk costs a read for each record batch before its rows are known, and a start would wait for all of
them. An index is believed for the files that it was made from, by their names, sizes and times. Any other is made again
in its place, so a source has one.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np

from prime_train.core import outside
from prime_train.core.installation import cache_path
from prime_train.core.rundir import make_folder, write_atomic
from prime_train.trainer.audio.clip_files import MOST_FILES, MOST_LABELS, Columns, is_own
from prime_train.trainer.data.order import Integers

LEAST_BATCHES = 64  # record batches in all files; fewer are opened as fast as an index is read
_VERSION = 1
_MOST_ROWS = 2**48
_SETTLED_S = 2.0  # a file may change again within the resolution of its time


@dataclass(frozen=True, slots=True)
class RowIndex:
    """What a start has to know about the files of a source."""

    rows: tuple[int, ...]  # of each file
    labels: Integers  # clips with each label, (labels,)
    alike: bool  # whether all files declare the same names of classes


@dataclass(frozen=True, slots=True)
class IndexedFiles:
    """The files of a source as they are now, and where their index is kept."""

    target: Path
    count: int
    digest: str  # of names, sizes and times
    newest_ns: int

    def read(self) -> RowIndex | None:
        """The index; None where there is none of these files, or none that can be believed."""
        with suppress(OSError, ValueError, TypeError, KeyError):
            if is_own(self.target):
                found = outside.read_json(self.target, outside.RECORD_BYTES, within=self.target.parent)
                return self._check(found["index"], found["sha256"])
        return None

    def _check(self, index: Any, expected: str) -> RowIndex:
        """Raises ValueError, TypeError or KeyError for anything but an index of these files."""
        if _hash(index) != expected or (index["version"], index["files"]) != (_VERSION, self.digest):
            raise ValueError("it is damaged, or of other files")
        rows, labels = _read_counts(index["rows"], MOST_FILES), _read_counts(index["labels"], MOST_LABELS)
        if len(rows) != self.count or sum(rows) > _MOST_ROWS:
            raise ValueError("it has other rows than these files")
        return RowIndex(rows, np.array(labels, dtype=np.int64), index["alike"] is True)

    def write(self, found: RowIndex) -> None:
        """Replace the index. A cache that takes no file, or files that have just changed, leave none."""
        if time.time() - self.newest_ns / 1e9 < _SETTLED_S:
            return
        labels = found.labels.tolist()
        index = {"version": _VERSION, "files": self.digest, "rows": found.rows, "labels": labels, "alike": found.alike}
        with suppress(OSError):
            make_folder(self.target.parent)
            write_atomic(self.target, json.dumps({"index": index, "sha256": _hash(index)}))


def find_index(path: Path, files: Sequence[Path], columns: Columns) -> IndexedFiles:
    """The place for the index of a source. Opens no file. Raises OSError for one that is gone."""
    stamps = [(str(file), (status := file.stat()).st_size, status.st_mtime_ns) for file in files]
    # With the user, because others may have an index of their own in a cache that is shared.
    source = _hash([os.geteuid(), str(path.absolute()), str(columns)])
    target = Path(cache_path("audio", f"{source[:32]}.rows.json"))
    return IndexedFiles(target, len(files), _hash(stamps), max((stamp[2] for stamp in stamps), default=0))


def _hash(value: Any) -> str:
    return sha256(json.dumps(value).encode()).hexdigest()


def _read_counts(value: Any, most: int) -> tuple[int, ...]:
    """Raises ValueError for anything but a list with up to so many counts."""
    if not isinstance(value, list) or len(value) > most:
        raise ValueError("it is no list of counts")
    found = tuple(count for one in value if (count := outside.to_count(one)) is not None)
    if len(found) != len(value):
        raise ValueError("it has something else than counts")
    return found
