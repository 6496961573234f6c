"""Poses held-out tasks of each environment and emits the mean rewards of the most probable answers."""

from __future__ import annotations

import time
from collections.abc import Sequence
from concurrent.futures import Future, wait

from prime_train.environments.environment import Environment
from prime_train.events import Phase, TasksEvaluated
from prime_train.spec.answers import rl_settings
from prime_train.spec.rl import TaskSource
from prime_train.trainer.attempt import Attempt
from prime_train.trainer.rl.rollouts.collect import Assignment
from prime_train.trainer.rl.rollouts.failures import Failures
from prime_train.trainer.rl.rollouts.rollout import Failed, Rollout
from prime_train.trainer.rl.rollouts.rollout_pool import RolloutPool

_REPORT_EVERY_S = 10.0

Outcome = Rollout | Failed


def evaluate_tasks(attempt: Attempt, environments: Sequence[Environment], pool: RolloutPool, step: int) -> None:
    """Emit TasksEvaluated for each environment, and RolloutsFailed where it failed.

    `environments` are those of run.tasks, in its order. An environment that scored no task has no TasksEvaluated.
    Raises UserError if too many tasks failed, EngineError if the engine failed.
    """
    run = attempt.run
    asked = [
        [pool.submit(_assign(attempt, environment, source, number)) for number in range(run.eval.tasks)]
        for environment, source in zip(environments, run.tasks, strict=True)
    ]
    _wait_for_all(attempt, [future for futures in asked for future in futures])
    failures = Failures(attempt.number, rl_settings(run).max_failed_ratio)
    for environment, futures in zip(environments, asked, strict=True):
        outcomes = [future.result() for future in futures]
        for outcome in outcomes:
            failures.add(outcome)
        scored = [outcome for outcome in outcomes if isinstance(outcome, Rollout)]
        if scored:
            attempt.emit(_describe(attempt, step, environment.name, scored, len(outcomes) - len(scored)))
    for event in failures.report(step):
        attempt.emit(event)
    failures.check()


def _assign(attempt: Attempt, environment: Environment, source: TaskSource, number: int) -> Assignment:
    policy = rl_settings(attempt.run)
    return Assignment(
        environment=environment,
        source=source,
        split="held_out",
        task=number,
        seed=0,  # the most probable token needs none
        answer_tokens=attempt.run.eval.task_tokens or policy.answer_tokens,
        temperature=0.0,
        limit_s=policy.rollout_limit_s,
        lane=f"evaluate-{environment.name}-{number}",
    )


def _wait_for_all(attempt: Attempt, asked: Sequence[Future[Outcome]]) -> None:
    """Wait, and report each progress, so that a long evaluation does not count as a hang."""
    pending = set(asked)
    reported_s = time.monotonic()
    while pending:
        done, pending = wait(pending, _REPORT_EVERY_S)
        for future in done:
            future.result()  # raises EngineError
        if done and pending and time.monotonic() - reported_s >= _REPORT_EVERY_S:
            reported_s = time.monotonic()
            finished = len(asked) - len(pending)
            attempt.emit(Phase(attempt.number, "evaluate", f"{finished} of {len(asked)} held-out tasks"))


def _describe(attempt: Attempt, step: int, name: str, scored: Sequence[Rollout], failed: int) -> TasksEvaluated:
    return TasksEvaluated(
        attempt=attempt.number,
        step=step,
        environment=name,
        reward=sum(rollout.reward for rollout in scored) / len(scored),
        tasks=len(scored),
        failed=failed,
        answer_tokens=sum(rollout.answer_tokens for rollout in scored) / len(scored),
    )
