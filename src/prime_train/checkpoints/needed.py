"""Finds the checkpoints that another trainer still needs: what its tracker or a link names, the best. Deletes nothing.

A trainer that resumes from its tracker starts at step 0, or not at all, where that checkpoint is gone. Hugging Face
loads the best one at the end of the training.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from prime_train.checkpoints import file_ends, torch_values
from prime_train.checkpoints.folder_layout import FolderLayout, list_roots, step_of
from prime_train.checkpoints.listing import list_entries
from prime_train.checkpoints.tracker import read_tracker

_LOOKS = 5  # so many of the newest checkpoints are asked which one is the best


def find_needed(folders: Sequence[Path], form: FolderLayout, saved: Mapping[int, Sequence[Path]]) -> Mapping[int, str]:
    """Step -> why the trainer needs it. All steps where the record that says so cannot be read."""
    needed = dict.fromkeys(_list_best(form, saved), "it is the best one")
    try:
        for root in list_roots(folders, form):
            needed |= _list_linked(root, saved)
            if form.tracker is None:
                continue
            if (named := read_tracker(root, form.tracker)) is not None:
                needed[named] = f"{form.tracker.file} names it"
    except OSError as error:
        name = form.tracker.file if form.tracker is not None else "a link"
        return dict.fromkeys(saved, f"{name} may name it: {error.strerror or error}")
    return needed


def _list_linked(root: Path, saved: Mapping[int, Sequence[Path]]) -> dict[int, str]:
    """The steps that a link beside the checkpoints leads to: `LATEST`, `last.ckpt`. Raises OSError."""
    links = {entry.name: Path(entry.path).readlink() for entry in list_entries(root) if entry.is_symlink()}
    targets = {os.path.normpath(root / target): name for name, target in links.items()}
    parts = ((step, os.path.normpath(part)) for step, paths in saved.items() for part in paths)
    return {step: f"{targets[part]} links to it" for step, part in parts if part in targets}


def _list_best(form: FolderLayout, saved: Mapping[int, Sequence[Path]]) -> Iterator[int]:
    """The steps that the newest checkpoint with a record of the best one names."""
    for step in sorted(saved, reverse=True)[:_LOOKS]:
        named = [name for path in saved[step] for name in _read_best(path, form.best)]
        if named:
            steps = (step_of(Path(name), form) for name in named)
            yield from (step for step in steps if step is not None)
            return


def _read_best(path: Path, best: Sequence[str]) -> list[str]:
    found: Sequence[object] = ()
    with suppress(OSError, ValueError):
        match best:
            case (file, key):
                document = file_ends.read_json(path / file)
                found = [document.get(key)] if isinstance(document, dict) else []
            case (key,):
                found = torch_values.find_values(path, key, file_ends.version_of(path.lstat()))
    return [value for value in found if isinstance(value, str) and value]
