"""Locates prime-rl's per-step outputs, and decides when its checkpoint is complete.

prime-rl writes no marker after a checkpoint and takes the highest step_N as the latest one. Two files show that a save
has finished: torch writes the trainer's `.metadata` after all shards, and the orchestrator writes
`progress.pt`. In 2026-08 everything is below one run directory; before, the orchestrator's part was below run_default/,
and weights were exported to weights/.

Source: prime-rl, trainer/ckpt.py, orchestrator/ckpt.py and utils/pathing.py of 2026-01, 2026-05 and 2026-08.
"""

from __future__ import annotations

import os
from pathlib import Path

from prime_train.checkpoints import step_folders
from prime_train.checkpoints.layout import SavedCheckpoint
from prime_train.checkpoints.step_folders import FolderLayout, Marker, StepPlaces
from prime_train.core.rundir import RunDir
from prime_train.spec import RunSpec
from prime_train.spec.answers import prime_rl_of

_METADATA = ("trainer/.metadata", ".metadata")
ROLE = "prime_rl"
RUN_ID = "prime_rl_run_id"  # a file of the run directory, which no other run has
COPY = "prime_rl.toml"  # the copy of the config, in the folder of an attempt
ROOTS = ("rl", "sft")  # roots with a launcher; every other root is one part of a run

_TRAINER = Marker(_METADATA, "no .metadata: the trainer's save did not finish")
_ORCHESTRATOR = Marker(
    ("orchestrator/progress.pt", "progress.pt"), "no orchestrator/progress.pt: the orchestrator's save did not finish"
)


def layout(*, orchestrated: bool) -> FolderLayout:
    """`orchestrated`: the run has an orchestrator, which saves its own part."""
    return FolderLayout(markers=(_TRAINER, _ORCHESTRATOR) if orchestrated else (_TRAINER,), metadata=_METADATA)


def folder(run: RunSpec) -> Path:
    """The absolute folder of a run that `settings.prepare_run` returned."""
    launch = prime_rl_of(run).launch
    assert launch.output_dir is not None
    return Path(launch.output_dir) / (launch.run_dir or launch.run_name or "")


def places(run: RunSpec, folder: Path) -> StepPlaces:
    """The folders of a run in `folder` that grow with its steps."""
    parts = prime_rl_of(run)
    apart = parts.saving.output_dir if parts.saving is not None else None
    return locate_places(folder, Path(apart).absolute() if apart else None, orchestrated=parts.rollout is not None)


def locate_places(folder: Path, checkpoint_dir: Path | None = None, *, orchestrated: bool) -> StepPlaces:
    """The same for any generation. `checkpoint_dir`: ckpt.output_dir if the config sets it."""
    own = (folder, folder / "run_default")
    saved = [root / "checkpoints" for root in own]
    if checkpoint_dir is not None:
        saved[:0] = [checkpoint_dir / "checkpoints", checkpoint_dir]
    return StepPlaces(
        folder,
        tuple(saved),
        layout(orchestrated=orchestrated),
        weights=(folder / "weights",),
        broadcasts=tuple(root / "broadcasts" for root in own),
        rollouts=tuple(root / "rollouts" for root in own),
    )


def checkpoints(run: RunSpec) -> list[SavedCheckpoint]:
    """Every checkpoint of the run, newest first. Its parts may be in several folders; `path` is the trainer's part."""
    found = places(run, folder(run))
    return step_folders.checkpoints(found.checkpoints, found.layout)


def logs(run: RunSpec, run_dir: RunDir, attempt: int) -> list[Path]:
    """Every log of one attempt: the launcher's, and the logs of its parts that were written since it started."""
    own = run_dir.log(attempt, ROLE)
    copy = run_dir.attempt(attempt) / COPY
    if not copy.exists():
        return []
    since_s = copy.stat().st_mtime  # it is written before any process starts
    found = {own} if own.exists() else set()
    for root in (folder(run) / "logs", folder(run) / "torchrun"):
        for directory, _, names in os.walk(root):  # does not follow `latest`, a link to another folder here
            for name in names:
                path = Path(directory, name)
                if path.suffix in _LOGS and _read_changed_s(path) >= since_s:
                    found.add(path)
    return sorted(found)


_LOGS = (".log", ".stdout", ".stderr")


def _read_changed_s(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except FileNotFoundError:
        return 0.0
