"""Packs checkpoints in small segments, to be recorded by power_loss.c.

power_program.py beside CHECKPOINTS TRAINER_ENDED
    packs superseded ones while a trainer runs. When the file TRAINER_ENDED exists, it packs the rest, the newest too,
    and deletes the two newest.
power_program.py alone CHECKPOINTS
    saves, packs, restores and deletes as a run does, without a model.
"""

from __future__ import annotations

import random
import sys
import time
from pathlib import Path

from prime_train.checkpoints import in_use, layout, removal
from prime_train.checkpoints.cleanup import find_superseded
from prime_train.checkpoints.packing import archive
from prime_train.checkpoints.packing.packing_plan import Sizes
from prime_train.core.rundir import sync
from prime_train.supervise.services.packing_program import list_unpacked

SIZES = Sizes(segment_bytes=150_000, piece_bytes=2**15, smallest_bytes=1)
STEPS = range(1, 16)
KEEP_LAST = 4


def pack(folder: Path) -> None:
    try:
        with in_use.using(folder):
            archive.compress(folder, SIZES)
    except (FileNotFoundError, archive.DamagedError):
        if (folder / layout.MANIFEST).exists():
            raise  # the trainer's retention did not delete it


def pack_beside(root: Path, ended: Path) -> None:
    while not ended.exists():
        for found in reversed(list_unpacked(root, sys.maxsize)):
            pack(found.path)
        time.sleep(0.01)
    for found in layout.scan(root):
        pack(found.path)
    for found in layout.scan(root)[:2]:
        removal.remove(found.path)


def weights(step: int) -> bytes:
    """Bytes that pack: numbers whose upper halves are alike."""
    drawn = random.Random(step).randbytes(200_000)
    return b"".join(drawn[at : at + 2] + b"\x80\x3f" for at in range(0, len(drawn), 2))


def save(root: Path, step: int) -> None:
    folder = root / f"step_{step}"
    removal.remove(folder)
    (folder / "part").mkdir(parents=True)
    (folder / "__0_0.distcp").write_bytes(weights(step))
    (folder / "part" / "__1_0.distcp").write_bytes(weights(-step)[:1000])
    (folder / ".metadata").write_bytes(b"index")
    layout.write_manifest(folder, step)


def run_alone(root: Path) -> None:
    root.mkdir()
    sync(root.parent)
    for step in STEPS:
        save(root, step)
        superseded = [found for found in layout.scan(root)[1:] if found.complete]
        for found in superseded[:: 2 if step % 2 else 1]:
            pack(found.path)
        if step % 5 == 0:
            archive.restore(superseded[0].path, sizes=SIZES)
        for gone in find_superseded(layout.scan(root), KEEP_LAST, None):
            removal.remove(gone.path)


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["beside", checkpoints, ended]:
            pack_beside(Path(checkpoints), Path(ended))
        case ["alone", checkpoints]:
            run_alone(Path(checkpoints))
