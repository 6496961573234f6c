"""Locates prime-rl's per-step outputs and decides whether a checkpoint is complete. Reads names and sizes.

prime-rl writes no completion marker and resumes from the highest step_N. Two files show that a save finished: torch
writes the trainer's `.metadata` after all shards, and the orchestrator writes `progress.pt`. In 2026-08 all parts are
below one run directory; before, the orchestrator's part was below run_default/, and weights were exported to weights/.

Source: prime-rl, trainer/ckpt.py, orchestrator/ckpt.py and utils/pathing.py of 2026-01, 2026-05 and 2026-08.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from prime_train.checkpoints import dcp

STABLE = "STABLE"  # created when the weights are complete
_STEP = re.compile(r"step_(\d+)\Z")
_METADATA = ("trainer/.metadata", ".metadata")
_PROGRESS = ("orchestrator/progress.pt", "progress.pt")


@dataclass(frozen=True, slots=True)
class Roots:
    """Folders that may hold `step_N` folders; they need not exist. One checkpoint can have parts in several."""

    checkpoints: tuple[Path, ...]
    weights: tuple[Path, ...] = ()
    broadcasts: tuple[Path, ...] = ()
    rollouts: tuple[Path, ...] = ()


def roots(run_dir: Path, checkpoint_dir: Path | None = None) -> Roots:
    """Where a run of any generation writes. `checkpoint_dir`: ckpt.output_dir, where the config sets it."""
    own = (run_dir, run_dir / "run_default")
    saved = [folder / "checkpoints" for folder in own]
    if checkpoint_dir is not None:
        saved[:0] = [checkpoint_dir / "checkpoints", checkpoint_dir]
    return Roots(
        tuple(saved),
        (run_dir / "weights",),
        tuple(folder / "broadcasts" for folder in own),
        tuple(folder / "rollouts" for folder in own),
    )


def steps(folders: Sequence[Path]) -> dict[int, list[Path]]:
    """The `step_N` folders of each step below `folders`, in the order of `folders`. Missing folders are skipped."""
    found: dict[int, list[Path]] = {}
    for folder in folders:
        try:
            names = sorted(path for path in folder.iterdir() if _STEP.fullmatch(path.name))
        except (FileNotFoundError, NotADirectoryError):
            continue
        for path in names:
            if path.is_dir() and not path.is_symlink():
                found.setdefault(int(path.name.removeprefix("step_")), []).append(path)
    return found


def problem(folders: Sequence[Path], *, orchestrated: bool, shards: bool = False) -> str:
    """What is missing from one step's checkpoint with parts in `folders`; empty where it is complete.

    `orchestrated`: the run has an orchestrator, which saves its own part. `shards`: also check the length of every
    file that `.metadata` names.
    """
    if not _has(folders, _METADATA):
        return "no .metadata: the trainer's save did not finish"
    if orchestrated and not _has(folders, _PROGRESS):
        return "no orchestrator/progress.pt: the orchestrator's save did not finish"
    for metadata in (folder / name for folder in folders for name in _METADATA) if shards else ():
        if metadata.exists() and (lacks := dcp.missing(metadata.parent)):
            return lacks
    return ""


def _has(folders: Sequence[Path], names: Sequence[str]) -> bool:
    for path in (folder / name for folder in folders for name in names):
        try:
            if path.stat().st_size > 0:
                return True
        except (FileNotFoundError, NotADirectoryError):
            continue
    return False


def newest_complete(found: Roots, *, orchestrated: bool) -> int | None:
    """The step to resume from; None where no checkpoint is complete."""
    saved = steps(found.checkpoints)
    return next(
        (step for step in sorted(saved, reverse=True) if not problem(saved[step], orchestrated=orchestrated)), None
    )
