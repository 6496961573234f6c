"""Locates prime-rl's per-step outputs, and describes when its checkpoint is complete.

prime-rl writes no marker behind a checkpoint and takes the highest step_N for the latest one. Two files show from
outside that a save has finished: torch writes the trainer's `.metadata` after all shards, and the orchestrator writes
`progress.pt`. In 2026-08 all of it is below one run directory; before, the orchestrator's part was below run_default/,
and weights were exported to weights/.

Source: prime-rl, trainer/ckpt.py, orchestrator/ckpt.py and utils/pathing.py of 2026-01, 2026-05 and 2026-08.
"""

from __future__ import annotations

from pathlib import Path

from prime_train.checkpoints.inventory import Places
from prime_train.checkpoints.step_folders import Layout, Marker

_METADATA = ("trainer/.metadata", ".metadata")
_TRAINER = Marker(_METADATA, "no .metadata: the trainer's save did not finish")
_ORCHESTRATOR = Marker(
    ("orchestrator/progress.pt", "progress.pt"),
    "no orchestrator/progress.pt: the orchestrator's save did not finish",
)


def layout(*, orchestrated: bool) -> Layout:
    """`orchestrated`: the run has an orchestrator, which saves a part of its own."""
    return Layout(markers=(_TRAINER, _ORCHESTRATOR) if orchestrated else (_TRAINER,), metadata=_METADATA)


def places(folder: Path, checkpoint_dir: Path | None = None, *, orchestrated: bool) -> Places:
    """Where a run in `folder` writes, in any generation. `checkpoint_dir`: ckpt.output_dir where the config sets it."""
    own = (folder, folder / "run_default")
    saved = [root / "checkpoints" for root in own]
    if checkpoint_dir is not None:
        saved[:0] = [checkpoint_dir / "checkpoints", checkpoint_dir]
    return Places(
        folder,
        tuple(saved),
        layout(orchestrated=orchestrated),
        weights=(folder / "weights",),
        broadcasts=tuple(root / "broadcasts" for root in own),
        rollouts=tuple(root / "rollouts" for root in own),
    )
