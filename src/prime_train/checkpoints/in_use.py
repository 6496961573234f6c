"""Says who uses a folder, and marks one as used. Deletes nothing but the mark it has set.

Who copies, packs or reads a checkpoint for long puts a file IN_USE.<anything> into its folder, with "PID:START_TICKS
HOST" in it. The mark of a process that has ended counts for nothing; that of another host is believed.
"""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Iterator, Sequence
from pathlib import Path

from prime_train.checkpoints.layout import MANIFEST
from prime_train.process_id import Holder, Identity, identify, own_mark
from prime_train.rundir import write_atomic

MARK = "IN_USE"


@contextlib.contextmanager
def using(folder: Path) -> Iterator[None]:
    """Keep a folder from every deletion of ours until the block ends, or this process does. Raises OSError."""
    mark = folder / f"{MARK}.{os.getpid()}"
    write_atomic(mark, own_mark())
    try:
        yield
    finally:
        mark.unlink(missing_ok=True)


def marked_by(folder: Path) -> str:
    """Who has marked the folder as used: "process 12 on gpu-3"; empty where nobody has who lives."""
    with contextlib.suppress(FileNotFoundError, NotADirectoryError):
        for name in sorted(os.listdir(folder)):
            if (name == MARK or name.startswith(f"{MARK}.")) and (user := _user(folder / name)):
                return user
    return ""


def _user(mark: Path) -> str:
    """The live process that a mark file names. An unreadable mark counts as in use. Host and ticks may be missing."""
    try:
        words = mark.read_text(encoding="utf-8").split()
    except FileNotFoundError:
        return ""
    host = words[1] if len(words) > 1 else socket.gethostname()
    try:
        pid, _, ticks = words[0].partition(":")
        began = identify(int(pid)) or Identity(int(pid), 0)
        holder = Holder(Identity(int(pid), int(ticks)) if ticks else began, host)
    except (IndexError, ValueError):
        return f"whoever wrote {mark.name}"
    return str(holder) if holder.counts else ""


def opened_by(folders: Sequence[Path]) -> str:
    """A process of this host that has a file in one of the folders open or mapped; empty where none is seen.

    A manifest does not count: whoever looks which checkpoints there are opens it. Processes of other users and hosts
    are not seen.
    """
    roots = [f"{os.path.realpath(folder)}/" for folder in folders]
    for entry in os.scandir("/proc"):
        if entry.name.isdigit() and int(entry.name) != os.getpid() and (name := _opens(Path(entry.path), roots)):
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
    return any(target.startswith(root) for root in roots) and not target.endswith(f"/{MANIFEST}")
