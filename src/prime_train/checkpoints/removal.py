"""Deletes checkpoint folders. A half-deleted folder never looks like a complete checkpoint. Decides nothing."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from prime_train.checkpoints.listing import LINK, MANIFEST, list_entries
from prime_train.core import outside

ASIDE = ".going-"  # prime-train and prime-rl ignore names with this prefix
_TRIES = 5  # of a deletion from which another process takes files away
ASKED = ".asked-"  # the same for what has no marker, until its deletion is decided
# Files that make a folder count as complete: manifest, torch's metadata, progress, the mark of complete weights.
MARKERS = (MANIFEST, "trainer/.metadata", ".metadata", "orchestrator/progress.pt", "progress.pt", "STABLE")


def refuse_link(folder: Path) -> None:
    """Raise OSError where the folder is a symbolic link: the files behind it may be the user's own."""
    if folder.is_symlink():
        raise OSError(errno.ELOOP, LINK, str(folder))


def remove(folder: Path) -> None:
    """Delete the folder, its manifest first, so that a half-deleted folder is incomplete. It need not exist.

    It is renamed first: a process that packs it could add a file. OSError where a file stays, and for a link.
    """
    refuse_link(folder)
    _delete_marker(folder, MANIFEST)
    aside = _aside(folder)
    with contextlib.suppress(FileNotFoundError):
        folder.rename(aside)
        finish(aside)


def remove_unless(folders: Sequence[Path], find_obstacle: Callable[[Sequence[Path]], str]) -> str:
    """Delete folders that belong together, unless `find_obstacle` returns a reason; returns it, empty where deleted.

    They are renamed before the check, so that no process can start to use them meanwhile, and back with an obstacle. A
    kill before the decision leaves the markers, and `put_back` restores the names; after it they are gone. What has no
    marker, as a checkpoint that is one file, gets another name with the decision. Raises OSError where the deletion
    fails; the folders are then incomplete.
    """
    renamed: list[tuple[Path, Path]] = []
    for folder in folders:
        refuse_link(folder)
    try:
        for folder in folders:
            aside = _aside(folder, ASIDE if _has_marker(folder) else ASKED)
            with contextlib.suppress(FileNotFoundError):  # another process deleted it first
                folder.rename(aside)
                renamed.append((folder, aside))
        obstacle = find_obstacle([aside for _, aside in renamed])
    # Also after Ctrl-C: the run must find its folders under their names.
    except BaseException:
        _rename_back(renamed)
        raise
    if obstacle:
        _rename_back(renamed)
        return obstacle
    for _, aside in renamed:
        finish(aside)
    return ""


def _aside(folder: Path, prefix: str = ASIDE) -> Path:
    # With the time, because an earlier deletion of the same step may have left its folder.
    return folder.with_name(f"{prefix}{folder.name}.{time.time_ns()}")


def _has_marker(folder: Path) -> bool:
    return any((folder / marker).exists() for marker in MARKERS)


def _rename_back(renamed: Sequence[tuple[Path, Path]]) -> None:
    for folder, aside in reversed(renamed):
        aside.rename(folder)


def finish(aside: Path) -> None:
    """Delete a renamed folder or file: its markers first, then the rest. It need not exist."""
    refuse_link(aside)
    if aside.name.startswith(ASKED):
        decided = aside.with_name(ASIDE + aside.name.removeprefix(ASKED))
        with contextlib.suppress(FileNotFoundError):
            aside.rename(decided)
        aside = decided
    if aside.is_file():
        aside.unlink()
        return
    # Without them the deletion is decided: a kill leaves only something more to delete.
    for marker in MARKERS:
        _delete_marker(aside, marker)
    for _ in range(_TRIES):
        # A process that packs it may take a file away meanwhile, at which rmtree gives up the rest.
        with contextlib.suppress(FileNotFoundError):
            shutil.rmtree(aside)
        if not os.path.lexists(aside):
            return


def _delete_marker(folder: Path, marker: str) -> None:
    """It need not exist. A folder in its place is deleted, too, because the deletion would never get beyond it.

    Each folder on the way is opened, so that a link that takes its name meanwhile leads nowhere: what is behind a link
    is not part of the checkpoint.
    """
    *inner, name = marker.split("/")
    with contextlib.ExitStack() as opened:
        place: int | None = None
        for part in (os.fspath(folder), *inner):
            try:
                place = os.open(part, outside.FOLDER_FLAGS, dir_fd=place)
            except (FileNotFoundError, NotADirectoryError):  # the second also for a link
                return
            opened.callback(os.close, place)
        try:
            os.unlink(name, dir_fd=place)
        except FileNotFoundError:
            return
        except IsADirectoryError:
            shutil.rmtree(name, dir_fd=place)


def list_set_aside(root: Path) -> list[Path]:
    """The folders under `root` that were renamed for a deletion that did not finish. A link is not one of them."""
    return sorted(Path(entry.path) for entry in _scan(root, ASIDE) if not entry.is_symlink())


def list_links(root: Path) -> list[Path]:
    """Symbolic links under `root` with the name of a checkpoint or of an interrupted deletion. None is followed."""
    return sorted(Path(entry.path) for entry in _scan(root, ASIDE, "step_") if entry.is_symlink())


def _scan(root: Path, *prefixes: str) -> list[os.DirEntry[str]]:
    return [entry for entry in list_entries(root) if entry.name.startswith(prefixes)]


def describe_stranger(path: Path) -> str:
    """Why what has the name of a checkpoint is none that prime-train saved: a link or a file; "" for a folder."""
    if path.is_symlink():
        return LINK
    return "it is not a folder" if os.path.lexists(path) and not path.is_dir() else ""


def is_decided(aside: Path) -> bool:
    """Whether the deletion of a renamed folder was decided, which shows in missing markers."""
    return not _has_marker(aside)


def put_back(root: Path) -> list[Path]:
    """Rename back the folders whose deletion was started but not decided; returns them."""
    back = []
    asked = [Path(entry.path) for entry in _scan(root, ASKED) if not entry.is_symlink()]
    for aside in sorted(asked) + [aside for aside in list_set_aside(root) if not is_decided(aside)]:
        folder = root / aside.name.removeprefix(ASKED).removeprefix(ASIDE).rpartition(".")[0]
        if not os.path.lexists(folder):
            aside.rename(folder)
            back.append(folder)
    return back
