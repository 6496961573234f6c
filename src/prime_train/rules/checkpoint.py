"""Checkpoints that would not be there when they are needed. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from prime_train.findings import Problem, Severity
from prime_train.rules.base import rule
from prime_train.spec import RunSpec


@rule("CKP001", Severity.WARNING)
def no_checkpoint_on_the_way(run: RunSpec) -> Iterator[Problem]:
    """A run should have a checkpoint before its end.

    a crash would start it again from the first step

    Bad:
        [checkpoint]
        interval_steps = 5000
    Good:
        [checkpoint]
        interval_steps = 200
    """
    interval, max_steps = run.checkpoint.interval_steps, run.run.max_steps
    if interval is None or interval <= max_steps:
        return
    yield Problem(
        "checkpoint.interval_steps",
        f"the first checkpoint is due at step {interval}, and `run.max_steps` is {max_steps}",
        patch={"checkpoint.interval_steps": max(1, max_steps // 10)},
    )


@rule("CKP002", Severity.WARNING)
def keep_every_misses(run: RunSpec) -> Iterator[Problem]:
    """keep_every_steps should be a multiple of interval_steps.

    only a step that has a checkpoint can be kept: most of those asked for are never written

    Bad:
        [checkpoint]
        interval_steps = 100
        keep_every_steps = 250
    Good:
        [checkpoint]
        interval_steps = 100
        keep_every_steps = 300
    """
    interval, keep_every = run.checkpoint.interval_steps, run.checkpoint.keep_every_steps
    if interval is None or keep_every is None or keep_every % interval == 0:
        return
    yield Problem(
        "checkpoint.keep_every_steps",
        f"{keep_every} is not a multiple of `checkpoint.interval_steps` {interval}",
        patch={"checkpoint.keep_every_steps": max(1, round(keep_every / interval)) * interval},
    )
