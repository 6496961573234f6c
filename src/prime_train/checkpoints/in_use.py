"""Finds the process that uses a folder, and marks a folder as in use. Deletes only its own marks.

A process that copies, packs or reads a checkpoint writes a file IN_USE.<anything> into its folder, with the text
"PID:START_TICKS HOST". The mark of an ended process is ignored; the mark of another host always counts.
"""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Iterator, Sequence
from pathlib import Path

from prime_train.checkpoints.listing import MANIFEST
from prime_train.core import outside
from prime_train.core.process_id import Holder, Identity, identify, own_mark
from prime_train.core.rundir import write_atomic

MARK = "IN_USE"


@contextlib.contextmanager
def using(folder: Path) -> Iterator[None]:
    """Protect a folder from prime-train's deletions until the block or this process ends. Raises OSError."""
    # With the pid, because several processes may use a folder at once.
    mark = folder / f"{MARK}.{os.getpid()}"
    _write(mark, own_mark())
    try:
        yield
    finally:
        mark.unlink(missing_ok=True)


def _write(mark: Path, text: str) -> None:
    """Write a mark that no reader sees half-written. A process that is killed meanwhile leaves nothing."""
    with contextlib.ExitStack() as stack:
        folder = os.open(mark.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        stack.callback(os.close, folder)
        try:
            # It has no name until it is whole: a half-written mark, left by a kill, would protect the folder forever.
            nameless = os.open(mark.parent, os.O_TMPFILE | os.O_WRONLY | os.O_CLOEXEC, 0o666)
        except OSError:  # a file system without such files, for example NFS
            write_atomic(mark, text, is_private=False)
            return
        file = stack.enter_context(open(nameless, "w", encoding="utf-8"))
        file.write(text)
        file.flush()
        os.fsync(nameless)
        mark.unlink(missing_ok=True)  # of an ended process that had the same pid
        os.link(f"/proc/self/fd/{nameless}", mark.name, dst_dir_fd=folder)
        os.fsync(folder)


def marked_by(folder: Path) -> str:
    """The running process that marked the folder as in use: "process 12 on gpu-3"; empty where there is none."""
    with contextlib.suppress(FileNotFoundError, NotADirectoryError):
        for name in sorted(filter(is_mark, os.listdir(folder))):
            if user := _user(folder / name):
                return user
    return ""


def is_mark(name: str) -> bool:
    return name == MARK or name.startswith(f"{MARK}.")


def remove_dead(checkpoints: Path) -> None:
    """Delete the marks of ended processes in the folders below `checkpoints`, where it can. Follows no links."""
    for folder in _list(checkpoints):
        if folder.is_dir(follow_symlinks=False):
            for mark in _list(folder.path):
                if mark.name.startswith(f"{MARK}.") and not _user(Path(mark.path)):
                    with contextlib.suppress(OSError):
                        Path(mark.path).unlink()


def _list(folder: Path | str) -> list[os.DirEntry[str]]:
    with contextlib.suppress(OSError), os.scandir(folder) as entries:
        return list(entries)
    return []


def _user(mark: Path) -> str:
    """The live process that a mark file names. An unreadable mark counts as in use. Host and ticks may be missing."""
    try:
        words = outside.read_text(mark, outside.MARK_BYTES, mark.parent).split()
    except FileNotFoundError:
        return ""
    except (outside.OutsideError, ValueError):
        return f"the process that wrote {mark.name}"
    host = words[1] if len(words) > 1 else socket.gethostname()
    try:
        pid, _, ticks = words[0].partition(":")
        named = Identity(int(pid), int(ticks)) if ticks else identify(int(pid)) or Identity(int(pid), 0)
        holder = Holder(named, host)
    except (IndexError, ValueError):
        return f"the process that wrote {mark.name}"
    return str(holder) if holder.counts else ""


def opened_by(folders: Sequence[Path]) -> str:
    """A process of this host that has a file in one of the folders open or mapped; empty where none is found.

    Not its manifest, which every listing opens. Processes of other users and hosts cannot be seen.
    """
    # Marks are not enough: an inference engine that loads weights writes none.
    roots = [f"{os.path.realpath(folder)}/" for folder in folders]
    for entry in os.scandir("/proc"):
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        if name := _opens(Path(entry.path), roots):
            return f"process {entry.name} has {name} open,"
    return ""


def _opens(process: Path, roots: Sequence[str]) -> str:
    with contextlib.suppress(OSError):  # it ended, or belongs to another user
        for fd in os.scandir(process / "fd"):
            with contextlib.suppress(OSError):
                opened = Path(fd.path).readlink()
                if _is_in(str(opened), roots) and not opened.is_dir():
                    return opened.name
    with contextlib.suppress(OSError), open(process / "maps", encoding="utf-8", errors="surrogateescape") as maps:
        for line in maps:
            target = line.rstrip("\n").partition("/")[2]
            if target and _is_in(f"/{target}", roots):
                return Path(target).name
    return ""


def _is_in(target: str, roots: Sequence[str]) -> bool:
    # The whole target, too: a checkpoint can be one file.
    return any(f"{target}/".startswith(root) for root in roots) and not target.endswith(f"/{MANIFEST}")
