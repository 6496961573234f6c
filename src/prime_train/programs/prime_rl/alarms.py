"""Finds what prime-rl's launcher does not notice. Pure: it judges what prime_rl_judge.py remembers.

An inference or environment server that exits with 0; an error in an environment server that nobody hears of, while
the orchestrator waits (prime-rl#3140); a resume that began from scratch. An orchestrator that does not end after the
trainer has (prime-rl#2912) is no alarm: the run has finished then, and its processes are ended.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from prime_train.programs.prime_rl.judge import Limits, Memory, Run
from prime_train.supervise.watches.watch import Alarm

WATCH = "prime_rl"


def alarms(run: Run, memory: Memory, now_s: float, limits: Limits, logs: Mapping[str, str]) -> tuple[Alarm, ...]:
    """What is wrong at `now_s`. `logs` says where each writer's log is, for the message."""
    if memory.finished or memory.failed is not None or memory.told_to_end or memory.ended_s is not None:
        return ()
    return (*_gone(memory, now_s, limits, logs), *_unheard(memory, now_s, limits, logs), *_begun_anew(run, memory))


def _gone(memory: Memory, now_s: float, limits: Limits, logs: Mapping[str, str]) -> Iterator[Alarm]:
    for server, since_s in memory.gone:
        if now_s - since_s < limits.gone_s:
            continue
        yield Alarm(
            WATCH,
            "service_gone",
            server,
            "restart",
            "unknown",
            f"{server} has ended, and the launcher goes on without it",
            "an exit with code 0 is no error to prime-rl's launcher: trainer and orchestrator would wait for ever",
            "read its log; the run goes on from the newest complete checkpoint",
            logs.get(server, ""),
        )


def _unheard(memory: Memory, now_s: float, limits: Limits, logs: Mapping[str, str]) -> Iterator[Alarm]:
    """An environment fails now and then, which is no matter as long as rollouts come in."""
    for server, at_s in memory.env_errors:
        quiet_s = now_s - max(at_s, memory.moved_s)
        if at_s < memory.moved_s or quiet_s < limits.env_error_s:
            continue
        yield Alarm(
            WATCH,
            "env_error",
            server,
            "restart",
            "unknown",
            f"{server} raised an exception, and no rollout has come in for {quiet_s:.0f} s",
            "prime-rl does not tell the orchestrator of errors in an environment's worker, which then waits for ever",
            "read the traceback in its log; test the environment by itself",
            logs.get(server, ""),
        )


def _begun_anew(run: Run, memory: Memory) -> Iterator[Alarm]:
    if memory.scratch:
        yield Alarm(
            WATCH,
            "started_over",
            "trainer",
            "restart",
            "env",
            f"it was to resume from step {run.resume_step} and began from scratch: {memory.scratch}",
            "prime-rl only warns where it finds no checkpoint, and would write over those of the run",
            "look whether the checkpoint folders are where output_dir and run.name say",
        )
