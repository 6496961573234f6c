"""Lists what a run's steps wrote to the disk: kind, step, size, whether complete, whether in use. Deletes nothing."""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from prime_train.checkpoints import in_use, layout, removal
from prime_train.checkpoints.cleanup import Item, Kind, Wholeness
from prime_train.checkpoints.step_folders import BUNDLED, Layout, is_finished, layout_from, problem, steps

STABLE = "STABLE"  # a file that is touched when exported weights are whole

_GROWING = 4  # so many of the newest steps may still receive rollouts
_MEASURE_AGAIN_S = 600.0  # a complete folder is measured again after this, even if its markers did not change


@dataclass(frozen=True, slots=True)
class Places:
    """The folders that grow with a run's steps; each holds step folders, and need not exist."""

    root: Path  # the run's own folder
    checkpoints: tuple[Path, ...]
    layout: Layout = BUNDLED
    weights: tuple[Path, ...] = ()  # weights alone, exported beside a checkpoint
    broadcasts: tuple[Path, ...] = ()  # weights on their way to an inference engine
    rollouts: tuple[Path, ...] = ()

    @property
    def folders(self) -> tuple[Path, ...]:
        return (*self.checkpoints, *self.weights, *self.broadcasts, *self.rollouts)

    def as_json(self) -> dict[str, Any]:
        folders = {name: list(map(str, getattr(self, name))) for name in _FOLDERS}
        return {"root": str(self.root), "layout": asdict(self.layout), **folders}


_FOLDERS = ("checkpoints", "weights", "broadcasts", "rollouts")


def places_from(document: Mapping[str, Any]) -> Places:
    """The value that `as_json` wrote."""
    folders = {name: tuple(map(Path, document[name])) for name in _FOLDERS}
    return Places(Path(document["root"]), layout=layout_from(document["layout"]), **folders)


class Measured(NamedTuple):
    """A folder with everything in it."""

    size_bytes: int
    changed_s: float  # seconds since the epoch


def measure(folder: Path) -> Measured:
    """Size and latest change of all files in a folder. Skips files that vanish meanwhile. Follows no links."""
    size_bytes, changed_s, waiting = 0, 0.0, [os.fspath(folder)]
    while waiting:
        with suppress(FileNotFoundError, NotADirectoryError), os.scandir(waiting.pop()) as entries:
            for entry in entries:
                with suppress(FileNotFoundError):
                    status = entry.stat(follow_symlinks=False)
                    changed_s = max(changed_s, status.st_mtime)
                    if stat.S_ISDIR(status.st_mode):
                        waiting.append(entry.path)
                    else:
                        size_bytes += status.st_size
    return Measured(size_bytes, changed_s)


@dataclass(slots=True)
class Stock:
    """Lists a run's items repeatedly. Complete folders are not walked each time, because nothing changes in them."""

    places: Places
    _walked: dict[Path, tuple[tuple[int, ...], float, Measured]] = field(default_factory=dict)

    def take(self, now_s: float) -> list[Item]:
        """Every item at `now_s` (epoch), by kind and step. Raises OSError, but not for files that vanish."""
        places = self.places
        items = [self._saved(step, folders, now_s) for step, folders in self._steps(places.checkpoints)]
        items += [self._stable("weights", step, parts, now_s) for step, parts in self._steps(places.weights)]
        items += [self._stable("broadcast", step, parts, now_s) for step, parts in self._steps(places.broadcasts)]
        rollouts = self._steps(places.rollouts)
        items += [self._item("rollouts", *step, "complete", "", now_s) for step in rollouts[:-_GROWING]]
        items += [self._item("rollouts", *step, "unfinished", "", now_s) for step in rollouts[-_GROWING:]]
        # The deletion of a folder with its markers was not decided: removal.put_back renames the folder back.
        asides = (path for root in places.folders for path in removal.list_set_aside(root) if removal.is_decided(path))
        why = "its deletion was interrupted"
        items += [self._item("leftover", -1, [path], "unfinished", why, now_s) for path in asides]
        seen = {path for item in items for path in item.paths}
        self._walked = {path: known for path, known in self._walked.items() if path in seen}
        return items

    def _saved(self, step: int, folders: list[Path], now_s: float) -> Item:
        form = self.places.layout
        lacks = problem(folders, form)
        wholeness: Wholeness = "complete" if not lacks else "broken" if is_finished(folders, form) else "unfinished"
        return self._item("checkpoint", step, folders, wholeness, lacks, now_s)

    def _steps(self, folders: Sequence[Path]) -> list[tuple[int, list[Path]]]:
        return sorted(steps(folders, self.places.layout).items())

    def _stable(self, kind: Kind, step: int, folders: list[Path], now_s: float) -> Item:
        whole = any((folder / STABLE).exists() for folder in folders)
        lacks = "" if whole else f"no {STABLE}"
        return self._item(kind, step, folders, "complete" if whole else "unfinished", lacks, now_s)

    def _item(self, kind: Kind, step: int, folders: list[Path], wholeness: Wholeness, lacks: str, now_s: float) -> Item:
        parts = [self._measured(folder, wholeness == "complete", now_s) for folder in folders]
        return Item(
            kind,
            step,
            tuple(folders),
            sum(part.size_bytes for part in parts),
            wholeness,
            max(part.changed_s for part in parts),
            lacks,
            any((folder / layout.PIN).exists() for folder in folders),
            next((user for folder in folders if (user := in_use.marked_by(folder))), ""),
        )

    def _measured(self, folder: Path, is_whole: bool, now_s: float) -> Measured:
        if not is_whole:
            return measure(folder)
        key, known = _key(folder), self._walked.get(folder)
        if known is None or known[0] != key or now_s - known[1] >= _MEASURE_AGAIN_S:
            known = self._walked[folder] = (key, now_s, measure(folder))
        return known[2]


def _key(folder: Path) -> tuple[int, ...]:
    """Inode, time and size of a folder and its markers: they change when one of them is written again."""
    found: list[int] = []
    for path in (folder, *(folder / marker for marker in removal.MARKERS)):
        with suppress(FileNotFoundError, NotADirectoryError):
            status = path.stat()
            found += (status.st_ino, status.st_mtime_ns, status.st_size)
    return tuple(found)
