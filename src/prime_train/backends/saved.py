"""Which checkpoints a run has, wherever what trains it saves them. Reads names and sizes only."""

from __future__ import annotations

from prime_train.backends import prime_rl
from prime_train.checkpoints import layout
from prime_train.checkpoints.layout import Checkpoint
from prime_train.rundir import RunDir
from prime_train.spec import from_json


def newest_complete(run_dir: RunDir) -> Checkpoint | None:
    """The checkpoint that the run of a directory resumes from."""
    if not is_prime_rls(run_dir):
        return layout.newest_complete(run_dir.checkpoints)
    return next((checkpoint for checkpoint in checkpoints(run_dir) if checkpoint.complete), None)


def checkpoints(run_dir: RunDir, *, shards: bool = False) -> list[Checkpoint]:
    """Every checkpoint of the run of a directory, newest first. `shards`: see prime_rl.checkpoints."""
    if not is_prime_rls(run_dir):
        return layout.scan(run_dir.checkpoints)
    return prime_rl.checkpoints(from_json(run_dir.resolved.read_text(encoding="utf-8")), shards=shards)


def is_prime_rls(run_dir: RunDir) -> bool:
    """Whether prime-rl trains the run of a directory."""
    return (run_dir.path / prime_rl.RUN_ID).exists()
