"""Checkpoints that are missing when they are needed, or too many for the disk. Pure."""

from __future__ import annotations

from prime_train.core.findings import Problem, Severity
from prime_train.rules.rule import Problems, must_agree, must_not_come_after_the_end, rule, suggest
from prime_train.spec import ENDLESS_STEPS, RunSpec
from prime_train.spec.answers import prime_rl_of

_MANY = 10
_USUAL_INTERVAL = 50


@rule("CKP001", Severity.WARNING)
def no_checkpoint_on_the_way(run: RunSpec) -> Problems:
    """A run should have a checkpoint before its end.

    after a crash the run starts again from the first step

    Source: trainer/loops/pretrain.py (a save at each multiple of the interval, and one at the end).

    Bad:
        [checkpoint]
        interval_steps = 5000
    Good:
        [checkpoint]
        interval_steps = 200
    """
    interval = run.checkpoint.interval_steps
    yield from must_not_come_after_the_end("checkpoint.interval_steps", "checkpoint", interval, run.run.max_steps)


@rule("CKP002", Severity.WARNING)
def keep_every_misses(run: RunSpec) -> Problems:
    """keep_every_steps should be a multiple of interval_steps.

    only a step with a checkpoint can be kept, and most steps at other multiples have none

    Source: checkpoints/cleanup.py (only a complete checkpoint can be kept).

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
    if interval is not None and keep_every is not None and keep_every % interval:
        what = f"{keep_every} is not a multiple of `checkpoint.interval_steps` {interval}"
        yield suggest("checkpoint.keep_every_steps", what, max(1, round(keep_every / interval)) * interval)


@rule("CKP003", Severity.WARNING)
def no_checkpoint_at_all(run: RunSpec) -> Problems:
    """A training run should write checkpoints.

    without [ckpt] nothing is saved, not even at the end: a crash or a full run leaves no model

    Source: prime-rl saves only where [ckpt] is set.

    Bad (prime-rl 2026-08):
        ckpt = "-"
    Bad (prime-rl 2026-08 sft):
        ckpt = "-"
    Good (prime-rl 2026-08):
        [ckpt]
        interval = 50
    """
    parts = prime_rl_of(run)
    if parts.trainer is None or parts.saving is not None or parts.resume is not None or parts.trainer.fake_data:
        return
    yield suggest("checkpoint.interval_steps", "no checkpoints are configured", _tenth(run.run.max_steps))


@rule("CKP004", Severity.WARNING)
def checkpoint_only_at_the_end(run: RunSpec) -> Problems:
    """Checkpoints should have an interval.

    the only checkpoint is written at the end: after a crash the run starts again from the first step

    Source: prime-rl, ckpt.interval (unset: only a final checkpoint).

    Bad (prime-rl 2026-08):
        [ckpt]
        interval = "-"
        keep_last = "-"
    Good (prime-rl 2026-08):
        [ckpt]
        interval = 20
    """
    parts = prime_rl_of(run)
    if parts.saving is None or parts.trainer is None or run.checkpoint.interval_steps is not None:
        return
    if parts.saving.keep_last is None:  # otherwise CKP005 reports it
        yield suggest(
            "checkpoint.interval_steps",
            "no interval: the only checkpoint is the one at the end",
            _tenth(run.run.max_steps),
        )


@rule("CKP005", Severity.WARNING)
def keep_last_without_interval(run: RunSpec) -> Problems:
    """keep_last has an effect only with an interval.

    without an interval the only checkpoint is written at the end: there is nothing to resume from before that

    Source: prime-rl, ckpt.interval (unset: only a final checkpoint).

    Bad (prime-rl 2026-08):
        [ckpt]
        interval = "-"
    Good (prime-rl 2026-08):
        [ckpt]
        interval = 20
        keep_last = 3
    """
    parts = prime_rl_of(run)
    if parts.saving is None or run.checkpoint.interval_steps is not None or parts.saving.keep_last is None:
        return
    yield Problem(
        "saving.keep_last",
        f"{parts.saving.keep_last}, and `checkpoint.interval_steps` is not set",
        patch={"checkpoint.interval_steps": _tenth(run.run.max_steps)},
    )


@rule("CKP006", Severity.WARNING)
def every_checkpoint_kept(run: RunSpec) -> Problems:
    """A run with many checkpoints should not keep them all.

    each holds the weights and the optimizer's two moments, 12 bytes per parameter: a full disk ends the run

    Source: ZeRO, arXiv 1910.02054, s. 3.1; a 32B model's checkpoint is about 300 GB (prime-rl issue 786).

    Bad (prime-rl 2026-08):
        [ckpt]
        interval = 10
        keep_last = "-"
    Good (prime-rl 2026-08):
        [ckpt]
        interval = 10
        keep_last = 3
    """
    interval, saving, max_steps = run.checkpoint.interval_steps, prime_rl_of(run).saving, run.run.max_steps
    if saving is None or saving.keep_last is not None or interval is None or max_steps >= ENDLESS_STEPS:
        return
    if run.checkpoint.keep_every_steps is None and max_steps // interval > _MANY:
        yield suggest(
            "saving.keep_last", f"{max_steps // interval} checkpoints, one every {interval} steps, and all are kept", 3
        )


@rule("CKP007", Severity.NOTE)
def one_checkpoint_kept(run: RunSpec) -> Problems:
    """keep_last should be at least 2.

    prime-rl resumes from the newest step folder, complete or not: with one kept, a crash while saving leaves no other

    Source: prime-rl pull request 1825 (a half-written checkpoint is chosen on resume).

    Bad (prime-rl 2026-08):
        [ckpt]
        keep_last = 1
    Good (prime-rl 2026-08):
        [ckpt]
        keep_last = 2
    """
    parts = prime_rl_of(run)
    if parts.saving is not None and parts.saving.keep_last == 1 and run.checkpoint.interval_steps is not None:
        yield suggest("saving.keep_last", "1 checkpoint is kept", 2)


@rule("CKP008", Severity.ERROR)
def checkpoint_intervals_disagree(run: RunSpec) -> Problems:
    """Trainer and orchestrator must save at the same steps.

    a checkpoint is complete when trainer and orchestrator have both saved: prime-rl refuses two intervals

    Source: prime-rl's validator on ckpt.interval.

    Bad (prime-rl 2026-08):
        ckpt = "-"
        [trainer.ckpt]
        interval = 50
        [orchestrator.ckpt]
        interval = 25
    Good (prime-rl 2026-08):
        ckpt = "-"
        [trainer.ckpt]
        interval = 50
        [orchestrator.ckpt]
        interval = 50
    """
    yield from must_agree(run, "saving.orchestrator_interval_steps", "saving.trainer_interval_steps")


def _tenth(max_steps: int) -> int:
    return _USUAL_INTERVAL if max_steps >= ENDLESS_STEPS else max(1, max_steps // 10)
