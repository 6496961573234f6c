"""The length of the prompts of a run's built-in tasks. Opens no taskset of verifiers, judges nothing."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from os.path import commonprefix
from typing import NamedTuple

from prime_train.environments.arguments import find_faults
from prime_train.environments.environment import Task
from prime_train.environments.load import open_environment
from prime_train.spec import RunSpec

_TASKS = 32  # of each environment; the lengths of their prompts hardly differ
_CHARS_PER_TOKEN = 4  # of English text in a large vocabulary
# A vocabulary that is trained on the tasks has the 256 bytes, some control tokens, and a merge for each other token.
# With few merges only what every prompt repeats becomes long tokens; of the rest a token has two characters at most.
_SMALL_VOCABULARY, _CHARS_PER_OWN_TOKEN = 320, 2


class TaskPrompt(NamedTuple):
    """The longest first prompt of one of [[tasks]]. It has at least `tokens` tokens, the chat template left out."""

    kind: str
    tokens: int


def find_prompts(run: RunSpec) -> Iterator[TaskPrompt]:
    """The longest prompt of each built-in environment whose arguments are valid."""
    is_small = run.tokenizer.path is None and run.tokenizer.vocab_size <= _SMALL_VOCABULARY
    for source in run.tasks:
        if source.kind != "verifiers" and not any(find_faults(source)):
            environment = open_environment(source, run.run.seed)
            texts = [_join_texts(environment.task("train", number)) for number in range(_TASKS)]
            yield TaskPrompt(source.kind, _count_least_tokens(texts, is_small=is_small))


def _join_texts(task: Task) -> str:
    """The text of the tools and the messages, which the chat template writes into the prompt."""
    tools = (tool.name + tool.description + json.dumps(tool.parameters) for tool in task.tools)
    return "".join((*tools, *(message.content for message in task.messages)))


def _count_least_tokens(texts: Sequence[str], *, is_small: bool) -> int:
    """Tokens that the longest text has at least."""
    longest = max(map(len, texts))
    both_ends = texts, [text[::-1] for text in texts]
    repeated = min(longest, sum(len(commonprefix(ends)) for ends in both_ends))  # noqa: RUF071 - characters are meant
    own_chars = _CHARS_PER_OWN_TOKEN if is_small else _CHARS_PER_TOKEN
    return repeated // _CHARS_PER_TOKEN + (longest - repeated) // own_chars
