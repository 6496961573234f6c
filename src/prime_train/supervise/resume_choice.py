"""Chooses the checkpoint that an attempt resumes from. Pure."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from prime_train.checkpoints.layout import Checkpoint


def find_newest_complete(newest_first: Sequence[Checkpoint]) -> Checkpoint | None:
    return next((checkpoint for checkpoint in newest_first if checkpoint.complete), None)


def choose_checkpoint(newest_first: Sequence[Checkpoint], unreadable: Collection[int]) -> tuple[int, tuple[str, ...]]:
    """The step to resume from (0 = the beginning), and why each newer checkpoint is rejected."""
    rejected: list[str] = []
    for checkpoint in newest_first:
        if checkpoint.complete and checkpoint.step not in unreadable:
            return checkpoint.step, tuple(rejected)
        problem = checkpoint.problem or "the trainer could not load it"
        rejected.append(f"step_{checkpoint.step}: {problem}")
    return 0, tuple(rejected)


def would_lose_checkpoints(newest_first: Sequence[Checkpoint], interval_steps: int | None) -> bool:
    """Whether a start from the beginning loses more than one checkpoint interval, which any crash may lose."""
    newest = newest_first[0].step if newest_first else 0
    return newest > (interval_steps or 0)
