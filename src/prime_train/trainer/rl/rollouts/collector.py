"""Rank 0's side of reinforcement learning: environments, engine, and the rollouts of coming steps."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

from prime_train.core.errors import UserError
from prime_train.environments.environment import Environment
from prime_train.environments.load import open_environments
from prime_train.events import Phase
from prime_train.spec import RunSpec
from prime_train.spec.answers import global_batch, rl_settings
from prime_train.trainer.attempt import Attempt
from prime_train.trainer.chats.chat import Chat
from prime_train.trainer.chats.chat_tokens import ChatTokenizer
from prime_train.trainer.chats.labels import label
from prime_train.trainer.chats.lost_parts import refuse_lost_tools
from prime_train.trainer.device import Device
from prime_train.trainer.model.decoder import ModelConfig
from prime_train.trainer.rl.batch import Demonstration
from prime_train.trainer.rl.engines.engine import Engine
from prime_train.trainer.rl.engines.select import open_engine
from prime_train.trainer.rl.rollouts.groups import Selection, select_samples
from prime_train.trainer.rl.rollouts.rollout import Failures
from prime_train.trainer.rl.rollouts.rollout_queue import RolloutPool, RolloutQueue, RolloutWait, TaskOrder

_MAX_DRAWS = 10  # for each demonstration that is needed; an environment may demonstrate only some of its tasks


class Warmup:
    """Demonstrations of the training tasks of all environments."""

    def __init__(self, run: RunSpec, environments: Sequence[Environment], chat: ChatTokenizer) -> None:
        self._run = run
        self._environments = environments
        self._chat = chat

    def draw(self, step: int) -> tuple[Demonstration, ...]:
        """The `global_batch` demonstrations of a step. Raises UserError if the environments show too few."""
        wanted = global_batch(self._run)
        first = (step - 1) * wanted
        order = TaskOrder(self._environments, self._run.run.seed, {"place": first})
        rows: list[Demonstration] = []
        for _ in range(_MAX_DRAWS * wanted):
            drawn = order.next_task()
            rows += self._demonstrate(self._environments[drawn.environment], drawn.number)
            if len(rows) >= wanted:
                return tuple(rows[:wanted])
        what = f"{_MAX_DRAWS * wanted} tasks in a row gave only {len(rows)} demonstrations"
        why = "the first steps imitate solved tasks, and the environments of [[tasks]] must show them solved"
        fix = "rl.warmup_steps = 0, with model.path = a folder of a trained model"
        raise UserError(what, "rl.warmup_steps", why, fix)

    def _demonstrate(self, environment: Environment, number: int) -> list[Demonstration]:
        task = environment.task("train", number)
        solution = environment.demonstrate(task)
        if solution is None:
            return []
        chat = Chat((*task.messages, *solution), task.tools, first_learned=len(task.messages))
        documents = (labelled.cut(self._run.data.ctx_tokens) for labelled in label(chat, self._chat))
        return [Demonstration(labelled.tokens, labelled.learned) for labelled in documents]


_REPORT_EVERY_S = 10.0


@dataclass(frozen=True, slots=True)
class Collector:
    """What collects the rollouts. `closing` ends all of it."""

    environments: Sequence[Environment]
    engine: Engine
    pool: RolloutPool
    queue: RolloutQueue
    warmup: Warmup
    failures: Failures
    closing: ExitStack

    def take(self, attempt: Attempt, step: int, waiting: RolloutWait) -> Selection | None:
        """What the step learns from; None if a stop came first. Raises UserError if too many rollouts failed."""
        groups = self.queue.take(step, waiting)
        if groups is None:
            return None
        for group in groups:
            for outcome in group.outcomes:
                self.failures.add(outcome)
        for event in self.failures.report(step):
            attempt.emit(event)
        self.failures.check()
        return select_samples(groups, rl_settings(attempt.run), step)


def open_collector(
    attempt: Attempt, chat: ChatTokenizer, config: ModelConfig, device: Device, position: dict[str, Any] | None
) -> Collector:
    """`position`: of the rollout queue of an earlier attempt."""
    run = attempt.run
    with ExitStack() as opened:
        environments = open_environments(run.tasks, run.run.seed)
        for environment in environments:
            opened.callback(environment.close)
        refuse_lost_tools(environments, chat.template)
        engine = open_engine(attempt, config, device)
        opened.callback(engine.close)
        pool = RolloutPool(engine, chat, rl_settings(run).concurrency)
        opened.callback(pool.close)
        return Collector(
            environments=environments,
            engine=engine,
            pool=pool,
            queue=RolloutQueue(run, environments, pool, position),
            warmup=Warmup(run, environments, chat),
            failures=Failures(attempt.number, rl_settings(run).max_failed_ratio, global_batch(run)),
            closing=opened.pop_all(),
        )


def report_waiting(attempt: Attempt) -> Callable[[int, int], None]:
    """A report for `RolloutWait`: events, so that the wait is no hang, until none has finished for rollout_limit_s."""
    limit_s = rl_settings(attempt.run).rollout_limit_s
    reported_s = changed_s = time.monotonic()
    before = -1

    def report(finished: int, awaited: int) -> None:
        nonlocal reported_s, changed_s, before
        now_s = time.monotonic()
        if finished != before:
            before, changed_s = finished, now_s
        if now_s - reported_s >= _REPORT_EVERY_S and now_s - changed_s <= limit_s:
            reported_s = now_s
            attempt.emit(Phase(attempt.number, "train", f"{finished} of {awaited} rollouts are finished"))

    return report
