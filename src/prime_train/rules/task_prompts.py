"""The length of the prompts of a run's built-in tasks. Opens no taskset of verifiers, judges nothing."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import NamedTuple

from prime_train.environments.environment import Task
from prime_train.spec import RunSpec

_TASKS = 32  # of each environment; the lengths of their prompts hardly differ
_CHARS_PER_TOKEN = 4  # of English text in a large vocabulary; a vocabulary trained on the tasks itself has fewer


class TaskPrompt(NamedTuple):
    """The longest first prompt of one of [[tasks]]. It has at least `tokens` tokens, the chat template left out."""

    kind: str
    tokens: int


def find_prompts(run: RunSpec) -> Iterator[TaskPrompt]:
    """The longest prompt of each built-in environment whose arguments are valid."""
    from prime_train.environments.arguments import find_faults  # here, because most runs have no tasks
    from prime_train.environments.load import open_environment

    for source in run.tasks:
        if source.kind != "verifiers" and not any(find_faults(source)):
            environment = open_environment(source, run.run.seed)
            chars = max(_count_chars(environment.task("train", number)) for number in range(_TASKS))
            yield TaskPrompt(source.kind, chars // _CHARS_PER_TOKEN)


def _count_chars(task: Task) -> int:
    """Characters of the messages and of the tools, which the chat template writes into the prompt."""
    tools = sum(len(tool.name) + len(tool.description) + len(json.dumps(tool.parameters)) for tool in task.tools)
    return tools + sum(len(message.content) for message in task.messages)
