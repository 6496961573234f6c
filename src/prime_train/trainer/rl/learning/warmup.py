"""Draws solved tasks for the first steps of a run, which imitate them. The same step draws the same tasks."""

from __future__ import annotations

from collections.abc import Sequence

from prime_train.core.errors import UserError
from prime_train.environments.environment import Environment
from prime_train.spec import RunSpec
from prime_train.spec.answers import global_batch
from prime_train.trainer.chats.chat import Chat
from prime_train.trainer.chats.chat_tokens import ChatTokenizer
from prime_train.trainer.chats.labels import label
from prime_train.trainer.rl.learning.batch import Demonstration
from prime_train.trainer.rl.rollouts.task_order import TaskOrder

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
        raise UserError(
            what=f"{_MAX_DRAWS * wanted} tasks in a row gave only {len(rows)} demonstrations",
            where="rl.warmup_steps",
            why="the first steps imitate solved tasks, and the environments of [[tasks]] must show them solved",
            fix="rl.warmup_steps = 0, with model.path = a folder of a trained model",
        )

    def _demonstrate(self, environment: Environment, number: int) -> list[Demonstration]:
        task = environment.task("train", number)
        solution = environment.demonstrate(task)
        if solution is None:
            return []
        chat = Chat((*task.messages, *solution), task.tools, first_learned=len(task.messages))
        documents = (labelled.cut(self._run.data.ctx_tokens) for labelled in label(chat, self._chat))
        return [Demonstration(labelled.tokens, labelled.learned) for labelled in documents]
