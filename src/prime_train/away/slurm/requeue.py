"""Decides whether a job on Slurm starts its run, and whether it is requeued at its end. Pure.

A job may run many times: at its time limit it saves and is requeued. Progress is a newer complete checkpoint.
"""

from __future__ import annotations

from typing import NamedTuple

from prime_train.core.errors import ExitCode


class StartProgress(NamedTuple):
    """What the latest start of a job found. `fruitless`: consecutive starts before it without a newer checkpoint."""

    job_id: str
    restarts: int  # of this job by Slurm
    step: int  # of the newest complete checkpoint; 0 without one
    fruitless: int


class RequeueDecision(NamedTuple):
    """`exit_code` is the job's own if it is not requeued; `why` is one line for its output."""

    requeue: bool
    exit_code: int
    why: str


class RunEnd(NamedTuple):
    """The end of `prime-train run` in a job. `code`: its exit code, or minus the signal that killed it.

    `signalled`: Slurm had sent SIGTERM, because the time limit is near or the job is pre-empted.
    `stop_requested`: `prime-train stop` had requested the end.
    """

    code: int
    signalled: bool
    stop_requested: bool


def at_start(before: StartProgress | None, job_id: str, restarts: int, step: int) -> StartProgress:
    """The progress of a job that starts. A job with another number was submitted by a person and counts from zero."""
    if before is None or before.job_id != job_id or step > before.step:
        return StartProgress(job_id, restarts, step, 0)
    if restarts == before.restarts:  # the same start again, which counts once
        return before
    return StartProgress(job_id, restarts, before.step, before.fruitless + 1)


def refuses_start(progress: StartProgress, max_fruitless: int) -> RequeueDecision | None:
    """The end of a job that was requeued too often without progress; None if it may start."""
    if progress.fruitless < max_fruitless:
        return None
    why = _spent(progress.step, progress.fruitless)
    return RequeueDecision(requeue=False, exit_code=ExitCode.RETRIES_SPENT, why=why)


def at_end(progress: StartProgress, end: RunEnd, step: int, max_fruitless: int) -> RequeueDecision:
    """Whether the job is requeued, after its run has ended with `step` as its newest complete checkpoint.

    Only an end that Slurm caused, or a kill, is worth another start; each exit code of a failure means that the run
    would end in the same way (docs/exit-codes.md).
    """
    killed = end.code < 0 or end.code > 128
    code = 128 - end.code if end.code < 0 else end.code
    if end.stop_requested:
        code = ExitCode.RESUMABLE if killed else code
        return RequeueDecision(requeue=False, exit_code=code, why="it was stopped by request")
    if not killed and not (end.code == ExitCode.RESUMABLE and end.signalled):
        return RequeueDecision(requeue=False, exit_code=code, why=f"the run ended with exit code {code}")
    fruitless = 0 if step > progress.step else progress.fruitless + 1
    if fruitless >= max_fruitless:
        return RequeueDecision(requeue=False, exit_code=ExitCode.RETRIES_SPENT, why=_spent(step, fruitless))
    cause = "the time limit is near" if end.signalled else f"a signal killed the run (exit code {code})"
    return RequeueDecision(requeue=True, exit_code=ExitCode.RESUMABLE, why=f"{cause}; it continues from {_from(step)}")


def _spent(step: int, fruitless: int) -> str:
    starts = f"{fruitless} starts of the job" if fruitless > 1 else "the start of the job"
    return f"{starts} brought no checkpoint beyond {_from(step)}, so it is not requeued"


def _from(step: int) -> str:
    return f"step {step:,}" if step else "the beginning"
