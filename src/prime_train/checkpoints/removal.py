"""Removes checkpoint folders so that no moment of it looks like a complete checkpoint. Decides nothing."""

from __future__ import annotations

import contextlib
import os
import shutil
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from prime_train.checkpoints.layout import MANIFEST

ASIDE = ".going-"  # neither we nor prime-rl look at names that begin like this
# What makes a folder count, of ours and of prime-rl: manifest, torch's metadata, progress, the mark of whole weights.
MARKERS = (
    MANIFEST,
    "trainer/.metadata",
    ".metadata",
    "orchestrator/progress.pt",
    "progress.pt",
    "STABLE",
)


def remove(folder: Path) -> None:
    """Delete the folder, its manifest first: killed half-way, it is incomplete. Fine if it is not there.

    It is renamed before the rest goes: a process that packs it meanwhile can put no file into it any more, which would
    fail the deletion, nor a manifest.
    """
    (folder / MANIFEST).unlink(missing_ok=True)
    aside = folder.with_name(f"{ASIDE}{folder.name}.{time.time_ns()}")
    with contextlib.suppress(FileNotFoundError):
        folder.rename(aside)
        finish(aside)


def remove_unless(folders: Sequence[Path], hindered: Callable[[Sequence[Path]], str]) -> str:
    """Delete folders that go together, unless `hindered` says why not; what it said, empty where they are gone.

    They are renamed first, at once and back again: what `hindered` looks at, under the names it is given, nobody can
    begin to use meanwhile. Killed before it is decided, they have their markers and `put_back` brings them back;
    killed after, they have none. Raises OSError where they cannot be deleted; they are incomplete then.
    """
    renamed: list[tuple[Path, Path]] = []
    try:
        for folder in folders:
            aside = folder.with_name(f"{ASIDE}{folder.name}.{time.time_ns()}")
            with contextlib.suppress(FileNotFoundError):  # somebody else was faster
                folder.rename(aside)
                renamed.append((folder, aside))
        problem = hindered([aside for _, aside in renamed])
    except BaseException:
        _bring_back(renamed)
        raise
    if problem:
        _bring_back(renamed)
        return problem
    for _, aside in renamed:
        finish(aside)
    return ""


def _bring_back(renamed: Sequence[tuple[Path, Path]]) -> None:
    for folder, aside in reversed(renamed):
        aside.rename(folder)


def finish(aside: Path) -> None:
    """Delete a folder that was renamed for it: first what makes it count, then the rest. Fine if it is not there."""
    for marker in MARKERS:
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            (aside / marker).unlink()
    with contextlib.suppress(FileNotFoundError):
        shutil.rmtree(aside)


def set_aside(root: Path) -> list[Path]:
    """The folders under `root` whose deletion did not come to its end."""
    try:
        return sorted(Path(entry.path) for entry in os.scandir(root) if entry.name.startswith(ASIDE))
    except (FileNotFoundError, NotADirectoryError):
        return []


def is_decided(aside: Path) -> bool:
    """Whether the deletion of a renamed folder was decided: its markers are gone."""
    return not any((aside / marker).exists() for marker in MARKERS)


def put_back(root: Path) -> list[Path]:
    """Give folders back their names whose deletion was begun and not decided; those that came back."""
    back = []
    for aside in set_aside(root):
        folder = root / aside.name.removeprefix(ASIDE).rpartition(".")[0]
        if not is_decided(aside) and not folder.exists():
            aside.rename(folder)
            back.append(folder)
    return back
