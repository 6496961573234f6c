"""Run as a program: looks every INTERVAL_S at the disks of a run and at its own files; a JSON object to a line.

python disk_program.py INTERVAL_S PLACES_AS_JSON

It is a program of its own because a network disk that does not answer holds whoever looks at it.
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

from prime_train.checkpoints.cleanup import Item
from prime_train.checkpoints.inventory import Places, Stock, places_from
from prime_train.supervise.watches.disk.sample import Refusal, Sample, Space, as_json

_PROBE_BYTES = 4096  # a block: what a quota on blocks or on files refuses
_NICE = 5
_ROLLOUTS_TOLD = 200


def look(places: Places, stock: Stock) -> Sample:
    """One sample. Raises OSError where the run's folder cannot be read."""
    folders = _folders(places)
    items = stock.take(time.time())
    counted = {path for item in items for path in item.paths}
    own_bytes = sum(item.size_bytes for item in items) + _rest_bytes(places.root, counted)
    spaces, refusals = [], []
    for folder in folders:
        spaces.append(_space(folder))
        refusals += _refusals(folder)
    return Sample(time.monotonic(), tuple(spaces), own_bytes, tuple(_told(items)), tuple(refusals))


def _told(items: Sequence[Item]) -> list[Item]:
    """All but the newer rollouts of a long run: the oldest go first, and the supervisor reads each of these lines."""
    rollouts = sorted((item for item in items if item.kind == "rollouts"), key=lambda item: item.step)
    return [item for item in items if item.kind != "rollouts"] + rollouts[:_ROLLOUTS_TOLD]


def _folders(places: Places) -> list[Path]:
    """One existing folder of each file system that the run writes to, that of the checkpoints first."""
    found: dict[int, Path] = {}
    for folder in (places.checkpoints[0], places.root, *places.folders):
        existing = next(parent for parent in (folder, *folder.parents) if parent.is_dir())
        found.setdefault(existing.stat().st_dev, existing)
    return list(found.values())


def _space(folder: Path) -> Space:
    status = os.statvfs(folder)
    return Space(
        str(folder),
        folder.stat().st_dev,
        status.f_bavail * status.f_frsize,
        status.f_blocks * status.f_frsize,
        status.f_favail,
        status.f_files,
    )


def _refusals(folder: Path) -> list[Refusal]:
    """What the file system says to a block of ours: a quota and a read-only mount show up in no count."""
    try:
        with tempfile.TemporaryFile(dir=folder, buffering=0) as file:  # without a name, where that can be had
            file.write(bytes(_PROBE_BYTES))
    except OSError as error:
        return [Refusal(str(folder), error.errno or 0, error.strerror or str(error))]
    return []


def _rest_bytes(root: Path, counted: set[Path]) -> int:
    """All files below `root` but for the folders in `counted`."""
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


def main() -> None:
    interval_s, places = float(sys.argv[1]), places_from(json.loads(sys.argv[2]))
    os.nice(_NICE)
    stock = Stock(places)
    while True:
        began_s = time.monotonic()
        try:
            sample = look(places, stock)
        except OSError as error:
            sample = Sample(began_s, (), 0, (), (Refusal(str(places.root), error.errno or 0, str(error)),))
        sys.stdout.write(json.dumps(as_json(sample)) + "\n")
        sys.stdout.flush()
        time.sleep(max(0.1, interval_s - (time.monotonic() - began_s)))


if __name__ == "__main__":
    main()
