"""Run as a program: samples the disks of a run and its own files every INTERVAL_S, one JSON object to a line.

python disk_program.py INTERVAL_S PLACES_AS_JSON

It is a program of its own because a network disk that does not answer blocks each process that reads it.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from prime_train.checkpoints.aside import measure_aside
from prime_train.checkpoints.leftovers import find_leftovers
from prime_train.checkpoints.packing.foreign import measure_packed
from prime_train.checkpoints.step_folders import StepPlaces, places_from
from prime_train.checkpoints.stock import Stock
from prime_train.supervise.watches.disk.sample import DiskSample, Refusal, Space
from prime_train.supervise.watches.disk.written import WrittenFolders
from prime_train.supervise.watches.sample_lines import serve

_PROBE_BYTES = 4096  # a block, which a quota on blocks or on files refuses
_NICE = 5
_MOST_ROLLOUTS = 200


def look(places: StepPlaces, stock: Stock, written: WrittenFolders | None = None) -> DiskSample:
    """One sample. Raises OSError if the run's folder cannot be read. `written`: only in a layout that is not known."""
    folders = _list_folders(places, written.take() if written is not None else ())
    items = stock.take(time.time())
    counted = {path for item in items for path in item.paths}
    left = [one for folder in places.temporary for one in find_leftovers(folder, places.layout.temporary)]
    aside_bytes = sum(measure_aside(places).values()) + measure_packed(places)
    own_bytes = sum(item.size_bytes for item in items) + _measure_rest(places.root, counted)
    own_bytes += aside_bytes + sum(one.size_bytes for one in left)
    spaces, refusals = [], []
    for folder in folders:
        spaces.append(_measure_space(folder))
        refusals += _try_write(folder)
    # Without the newer rollouts of a long run, because cleanup starts with the oldest ones.
    rollouts = sorted((item for item in items if item.kind == "rollouts"), key=lambda item: item.step)
    kept = (*(item for item in items if item.kind != "rollouts"), *rollouts[:_MOST_ROLLOUTS])
    return DiskSample(time.monotonic(), tuple(spaces), own_bytes, kept, tuple(refusals))


def _list_folders(places: StepPlaces, written: Sequence[Path]) -> list[Path]:
    """One existing folder of each file system that the run writes to, that of the checkpoints first."""
    found: dict[int, Path] = {}
    # A whole checkpoint must fit where a save writes its temporary file.
    for folder in (places.checkpoints[0], places.root, *places.folders, *places.temporary):
        existing = _find_existing(folder)
        found.setdefault(existing.stat().st_dev, existing)
    for folder in (*places.outputs, *written):
        existing = _find_existing(folder)
        # A working directory on a read-only disk holds the code, so the trainer writes elsewhere.
        if os.access(existing, os.W_OK):
            found.setdefault(existing.stat().st_dev, existing)
    return list(found.values())


def _find_existing(folder: Path) -> Path:
    return next(parent for parent in (folder, *folder.parents) if parent.is_dir())


def _measure_space(folder: Path) -> Space:
    status = os.statvfs(folder)
    free_bytes, total_bytes = status.f_bavail * status.f_frsize, status.f_blocks * status.f_frsize
    return Space(str(folder), folder.stat().st_dev, free_bytes, total_bytes, status.f_favail, status.f_files)


def _try_write(folder: Path) -> list[Refusal]:
    """Write one block, because a quota and a read-only mount appear in no count."""
    try:
        with tempfile.TemporaryFile(dir=folder, buffering=0) as file:
            file.write(bytes(_PROBE_BYTES))
    except OSError as error:
        return [Refusal(str(folder), error.errno or 0, error.strerror or str(error))]
    return []


def _measure_rest(root: Path, counted: set[Path]) -> int:
    """The bytes of all files below `root`, without the folders in `counted`."""
    size_bytes, waiting = 0, [root]
    while waiting:
        folder = waiting.pop()
        try:
            with os.scandir(folder) as entries:
                for entry in entries:
                    path = Path(entry.path)
                    if path in counted:
                        continue
                    with contextlib.suppress(FileNotFoundError):
                        if entry.is_dir(follow_symlinks=False):
                            waiting.append(path)
                        else:
                            size_bytes += entry.stat(follow_symlinks=False).st_size
        except (FileNotFoundError, NotADirectoryError):
            continue
    return size_bytes


def main(interval_s: float, places: StepPlaces) -> NoReturn:
    os.nice(_NICE)
    stock = Stock(places)
    written = WrittenFolders(places.root) if places.outputs else None

    def sample() -> DiskSample:
        began_s = time.monotonic()
        try:
            return look(places, stock, written)
        except OSError as error:
            return DiskSample(began_s, (), 0, (), (Refusal(str(places.root), error.errno or 0, str(error)),))

    serve(sample, interval_s)


if __name__ == "__main__":
    main(float(sys.argv[1]), places_from(json.loads(sys.argv[2])))
