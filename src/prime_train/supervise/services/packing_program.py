"""Packs the superseded checkpoints of a live run one by one, never the newest, and prints a JSON line for each.

packing_program.py CHECKPOINTS NEWEST_STEP

It has the lowest priority for the cores and for the disk. It may be killed, and a checkpoint may be deleted, at any
moment.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import psutil

from prime_train.checkpoints import in_use, layout
from prime_train.checkpoints.packing import archive, packing_plan
from prime_train.core.errors import UserError
from prime_train.supervise.watches.sample_lines import write


def main() -> None:
    root, newest_step = Path(sys.argv[1]), int(sys.argv[2])
    os.nice(19)
    psutil.Process().ionice(psutil.IOPRIO_CLASS_IDLE)
    for found in list_unpacked(root, newest_step):
        if _is_done(found.path):
            continue
        began_s = time.monotonic()
        problem = pack(found.path)
        if (found.path / layout.MANIFEST).exists():
            stored = packing_plan.measure(found.path)
            row = {"step": found.step, "size_bytes": stored.size_bytes, "stored_bytes": stored.stored_bytes}
            write(row | {"s": round(time.monotonic() - began_s, 3), "problem": problem})
    write({"done": newest_step})


def list_unpacked(root: Path, newest_step: int) -> list[layout.SavedCheckpoint]:
    """Complete checkpoints before `newest_step` and before the newest on disk; the oldest, deleted first, come last."""
    complete = [found for found in layout.scan(root) if found.complete]
    return [found for found in complete[1:] if found.step < newest_step]


def pack(folder: Path) -> str:
    """Pack one checkpoint. Returns the problem; empty if it is packed or deleted. Raises OSError."""
    try:
        if user := in_use.marked_by(folder):
            return f"{user} uses it"
        if _is_done(folder):
            return ""
        in_use.remove_dead(folder.parent)
        with in_use.using(folder):
            archive.compress(folder)
    except FileNotFoundError:  # the trainer's retention deleted it meanwhile
        return ""
    except archive.DamagedError as error:
        return str(error) if (folder / layout.MANIFEST).exists() else ""
    except UserError as error:
        return f"{error.what}: {error.why}"
    return ""


def _is_done(folder: Path) -> bool:
    """Whether nothing is left to pack, or to clean up after a program that was killed."""
    try:
        return not packing_plan.work_bytes(folder) and not packing_plan.has_leftovers(folder)
    except FileNotFoundError:  # deleted meanwhile
        return True


if __name__ == "__main__":
    main()
