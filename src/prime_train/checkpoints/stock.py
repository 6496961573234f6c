"""Lists everything that the steps of a run wrote, and walks no complete folder twice. Deletes nothing."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

from prime_train.checkpoints import in_use, layout, removal
from prime_train.checkpoints.cleanup import Kind, StoredItem, Wholeness
from prime_train.checkpoints.folder_layout import MeasuredFolder, measure, steps
from prime_train.checkpoints.layout import PIN
from prime_train.checkpoints.listing import name_step
from prime_train.checkpoints.needed import find_needed
from prime_train.checkpoints.step_folders import STABLE, StepPlaces, is_finished, problem

_GROWING = 4  # so many of the newest steps may still receive rollouts
_MEASURE_AGAIN_S = 600.0  # a complete folder is measured again after this, even if its markers did not change


@dataclass(slots=True)
class Stock:
    """Lists a run's items repeatedly. Complete folders are not walked each time, because nothing changes in them."""

    places: StepPlaces
    _walked: dict[Path, tuple[tuple[int, ...], float, MeasuredFolder]] = field(default_factory=dict)

    def take(self, now_s: float) -> list[StoredItem]:
        """Every item at `now_s` (epoch), by kind and step. Raises OSError, but not for files that vanish."""
        places = self.places
        saved = self._steps(places.checkpoints)
        items = self._checkpoints(saved, now_s)
        needed = find_needed(places.checkpoints, places.layout, dict(saved))
        items = [replace(item, needed=needed[item.step]) if item.step in needed else item for item in items]
        items += [self._stable("weights", step, parts, now_s) for step, parts in self._steps(places.weights)]
        items += [self._stable("broadcast", step, parts, now_s) for step, parts in self._steps(places.broadcasts)]
        # The newest folders of rollouts still get files, so they do not count as complete.
        rollouts = self._steps(places.rollouts)
        items += [self._item("rollouts", *step, "complete", "", now_s) for step in rollouts[:-_GROWING]]
        items += [self._item("rollouts", *step, "unfinished", "", now_s) for step in rollouts[-_GROWING:]]
        # The deletion of a folder with its markers was not decided: removal.put_back renames the folder back.
        asides = [path for root in places.folders for path in removal.list_set_aside(root)]
        decided, why = filter(removal.is_decided, asides), "its deletion was interrupted"
        items += [self._item("leftover", -1, [path], "unfinished", why, now_s) for path in decided]
        # What is deleted is forgotten, because a run makes folders for weeks.
        seen = {path for item in items for path in item.paths}
        self._walked = {path: known for path, known in self._walked.items() if path in seen}
        return items

    def _checkpoints(self, found: Sequence[tuple[int, list[Path]]], now_s: float) -> list[StoredItem]:
        form = self.places.layout
        unseen = [parts[0] for _, parts in found if len(parts) == 1 and parts[0] not in self._walked]
        looked = layout.look(map(name_step, unseen)) if form.manifest else ()
        first = {seen.checkpoint.step: self._first_seen(seen, now_s) for seen in looked}
        return [first.get(step) or self._saved(step, folders, now_s) for step, folders in found]

    def _first_seen(self, seen: layout.SeenCheckpoint, now_s: float) -> StoredItem:
        """By one listing and one read of the manifest, which give all that there is to know: there may be thousands."""
        checkpoint, files, status = seen
        step, folder = checkpoint.step, checkpoint.path
        if not checkpoint.complete:
            wholeness: Wholeness = "broken" if layout.MANIFEST in files else "unfinished"
            return self._item("checkpoint", step, [folder], wholeness, checkpoint.problem, now_s)
        if status is None:  # a link took its name
            return self._saved(step, [folder], now_s)
        size_bytes, changed_s = checkpoint.size_bytes, max([each.st_mtime for each in files.values()])
        # Of the folder before it was listed, so that a later change is noticed.
        key = (*_key_of(status), *_key_of(files[layout.MANIFEST]))
        self._walked[folder] = (key, now_s, MeasuredFolder(size_bytes, changed_s))
        user = in_use.marked_by(folder) if any(map(in_use.is_mark, files)) else ""
        return StoredItem("checkpoint", step, (folder,), size_bytes, "complete", changed_s, "", checkpoint.pinned, user)

    def _saved(self, step: int, folders: list[Path], now_s: float) -> StoredItem:
        form = self.places.layout
        lacks = problem(folders, form)
        wholeness: Wholeness = "complete" if not lacks else "broken" if is_finished(folders, form) else "unfinished"
        return self._item("checkpoint", step, folders, wholeness, lacks, now_s)

    def _steps(self, folders: Sequence[Path]) -> list[tuple[int, list[Path]]]:
        return sorted(steps(folders, self.places.layout).items())

    def _stable(self, kind: Kind, step: int, folders: list[Path], now_s: float) -> StoredItem:
        whole = any((folder / STABLE).exists() for folder in folders)
        lacks = "" if whole else f"no {STABLE}"
        return self._item(kind, step, folders, "complete" if whole else "unfinished", lacks, now_s)

    def _item(
        self, kind: Kind, step: int, folders: list[Path], wholeness: Wholeness, lacks: str, now_s: float
    ) -> StoredItem:
        parts = [self._measured(folder, wholeness == "complete", now_s) for folder in folders]
        total_bytes, changed_s = sum(part.size_bytes for part in parts), max(part.changed_s for part in parts)
        pinned = any((folder / PIN).exists() for folder in folders)
        user = next(filter(None, map(in_use.marked_by, folders)), "")
        return StoredItem(kind, step, tuple(folders), total_bytes, wholeness, changed_s, lacks, pinned, user)

    def _measured(self, folder: Path, is_whole: bool, now_s: float) -> MeasuredFolder:
        # It may grow, so it is walked each time.
        if not is_whole:
            return measure(folder)
        key, known = self._key(folder), self._walked.get(folder)
        if known is None or known[0] != key or now_s - known[1] >= _MEASURE_AGAIN_S:
            known = self._walked[folder] = (key, now_s, measure(folder))
        return known[2]

    def _key(self, folder: Path) -> tuple[int, ...]:
        """Inode, time and size of a folder and its markers: they change when one of them is written again."""
        found: list[int] = []
        markers = (layout.MANIFEST,) if self.places.layout.manifest else removal.MARKERS
        for path in (str(folder), *(f"{folder}/{marker}" for marker in markers)):
            with suppress(FileNotFoundError, NotADirectoryError):
                found += _key_of(os.stat(path))  # noqa: PTH116 - pathlib takes three times as long
        return tuple(found)


def _key_of(status: os.stat_result) -> tuple[int, int, int]:
    return status.st_ino, status.st_mtime_ns, status.st_size
