"""Takes checkpoints that are not whole out of the way of a trainer that would load them. Deletes nothing.

Many trainers load the highest number or what a file `latest` names, without a look inside: after a kill during a save
every restart fails on the same checkpoint. Before a restart the broken ones are renamed, or the tracker is rewritten.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from prime_train.checkpoints import folder_layout, listing, step_folders
from prime_train.checkpoints.folder_layout import NO_STEP, FolderLayout
from prime_train.checkpoints.step_folders import StepPlaces
from prime_train.checkpoints.tracker import has_other_text, read_tracker, write_tracker

# Below the folder of the checkpoints: another place may be another disk. With a number and without those of a step:
# accelerate expects digits in each name there, and torchtitan, Orbax and Hugging Face look for their own pattern.
FOLDER = "incomplete-0"
How = Literal["rename", "tracker", "none"]


@dataclass(frozen=True, slots=True)
class AsideChange:
    """What was done before a restart. `to`: where the files of a renamed checkpoint are; the tracker's file else."""

    step: int  # -1: the tracker names none
    problem: str
    paths: tuple[Path, ...]
    to: tuple[Path, ...]
    tracked: int | None = None  # the step that the tracker names now


@dataclass(frozen=True, slots=True)
class _JudgedStep:
    step: int
    paths: tuple[Path, ...]
    problem: str
    is_known: bool  # False: a file could not be read, so nothing is proven
    is_finished: bool  # all files are there, so only their content is wrong


def make_way(places: StepPlaces, how: How, unreadable: Collection[int] = ()) -> tuple[AsideChange, ...]:
    """Rename each broken checkpoint that the trainer could load next, or name the newest whole one in the tracker.

    `unreadable`: steps that the trainer could not load. They count as broken, although their files prove nothing
    against them.
    Nothing may write there meanwhile. A second call changes nothing. Raises OSError where a file cannot be renamed or
    written; what was done until then stays.
    """
    form = places.layout
    if how == "none" or not form.proofs:
        return ()
    if how == "tracker":
        changes = (
            _name_newest(folder, form, unreadable) for folder in folder_layout.list_roots(places.checkpoints, form)
        )
        return tuple(change for change in changes if change is not None)
    broken = _list_in_the_way(places, unreadable)
    return tuple(AsideChange(one.step, one.problem, one.paths, tuple(map(set_aside, one.paths))) for one in broken)


def _list_in_the_way(places: StepPlaces, unreadable: Collection[int]) -> list[_JudgedStep]:
    """Checkpoints without proof that are newer than the newest whole one, newest first."""
    found: list[_JudgedStep] = []
    whole = False
    saved = folder_layout.steps(places.checkpoints, places.layout)
    unnumbered = saved.pop(NO_STEP, []) if places.layout.step_key else []
    for step in sorted(saved, reverse=True):
        judged = _judge(step, tuple(saved[step]), places.layout, unreadable)
        if not judged.problem:
            whole = True
            break
        found.append(judged)
    # Several that have all their files, and none that is whole: then the layout is another one, and none is broken.
    # A name without a number has no place in the order, so a trainer could choose it before any other.
    found += [one for path in unnumbered if (one := _judge(NO_STEP, (path,), places.layout)).problem]
    finished = [judged for judged in found if judged.is_finished]
    is_doubtful = not whole and len(finished) > 1
    return [judged for judged in found if judged.is_known and not (is_doubtful and judged.is_finished)]


def _judge(step: int, paths: tuple[Path, ...], form: FolderLayout, unreadable: Collection[int] = ()) -> _JudgedStep:
    if step in unreadable:
        return _JudgedStep(step, paths, "the trainer could not load it", is_known=True, is_finished=False)
    is_finished = step_folders.is_finished(paths, form)
    try:
        return _JudgedStep(step, paths, step_folders.find_unproven(paths, form), True, is_finished)
    # A disk that does not answer proves nothing about what it holds.
    except OSError as error:
        return _JudgedStep(step, paths, str(error), False, is_finished)


def set_aside(path: Path) -> Path:
    """Rename a checkpoint into the folder for broken ones. Returns the new path; never one that exists. Raises OSError.

    Names that a trainer could still take for a step are gone with it: some match a part of a name.
    """
    folder = path.parent / FOLDER
    _make_folder(folder)
    to = next(to for n in range(1, 10**6) if not os.path.lexists(to := folder / f"{path.name}.{n}"))
    return path.rename(to)


def _make_folder(folder: Path) -> None:
    """Raises OSError for a link: a rename would lead out of the folder of the checkpoints."""
    folder.mkdir(exist_ok=True)
    if folder.is_symlink():
        raise OSError(errno.ELOOP, listing.LINK, os.fspath(folder))


def _name_newest(folder: Path, form: FolderLayout, unreadable: Collection[int]) -> AsideChange | None:
    """Rewrite the tracker in `folder` where it names a step that is not whole, or none at all."""
    tracker = form.tracker
    # Another text, as "release" of Megatron, is the choice of the user.
    if tracker is None or has_other_text(folder, tracker):
        return None
    saved = folder_layout.steps([folder], replace(form, below=(".",), parts=()))
    named = read_tracker(folder, tracker)
    judged = {step: _judge(step, tuple(saved[step]), form, unreadable) for step in saved}
    if named in judged and (not judged[named].problem or not judged[named].is_known):
        return None
    newest = max((step for step, one in judged.items() if not one.problem), default=None)
    if newest is None or newest == named:
        return None
    missing = "names no step" if named is None else f"names step {named}, which is missing"
    problem = judged[named].problem if named in judged else f"{tracker.file} {missing}"
    write_tracker(folder, tracker, newest)
    path = folder / tracker.file
    return AsideChange(-1 if named is None else named, problem, (path,), (path,), newest)


def measure_aside(places: StepPlaces) -> Mapping[Path, int]:
    """What was set aside and its size in bytes. It stays until the user deletes it."""
    roots = folder_layout.list_roots(places.checkpoints, places.layout)
    entries = (Path(entry.path) for root in roots for entry in listing.list_entries(root / FOLDER))
    return {path: folder_layout.measure(path).size_bytes for path in sorted(entries)}
