"""The length of a run's longest prompt, and how it is known. Judges nothing."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from os.path import commonprefix
from typing import TYPE_CHECKING, NamedTuple

from prime_train.registry.known import known_environment
from prime_train.rules.rule import if_known
from prime_train.spec import RunSpec
from prime_train.spec.answers import prime_rl_of

if TYPE_CHECKING:
    from prime_train.environments.environment import Task
    from prime_train.facts.facts import DataLengths, Facts

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
    # Here, because most files that this family judges have no [[tasks]], and opening one needs psutil.
    from prime_train.environments.arguments import find_faults
    from prime_train.environments.load import open_environment

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


class Prompt(NamedTuple):
    """`is_bound`: the prompts have at most that many tokens in published runs; their real length is not known."""

    tokens: int
    known_from: str
    is_bound: bool = False


def find_longest(run: RunSpec, facts: Facts | None, source: int | None = None) -> Prompt | None:
    """The longest prompt of the run, or of one of its training environments; None if it is not known.

    The file's value counts first, then measured data, then the registry.
    """
    parts = prime_rl_of(run)
    expected = run.prime_train.expected_prompt_tokens
    if expected is not None:
        return Prompt(expected, "")
    listed = parts.environments.train if parts.environments is not None else None
    numbers = range(len(listed or ())) if source is None else (source,)
    found = [prompt for number in numbers if (prompt := _find_prompt(run, facts, number)) is not None]
    return max(found, default=None, key=lambda prompt: prompt.tokens)


def _find_prompt(run: RunSpec, facts: Facts | None, number: int) -> Prompt | None:
    parts = prime_rl_of(run)
    front = f"environments.train.{number}."
    measured: tuple[DataLengths, ...] = if_known(facts, "data_lengths") or ()
    for data in measured:
        if data.field.startswith(front) and data.longest_tokens is not None:
            rows = "1 row" if data.measured_rows == 1 else f"{data.measured_rows} rows"
            return Prompt(data.longest_tokens, f", the longest of {rows} in {data.path}")
    listed = parts.environments.train if parts.environments is not None else None
    name = ((listed or ())[number].id or "") if listed else ""
    entry = known_environment(name)
    if entry is None or entry.prompt_tokens is None:
        return None
    return Prompt(entry.prompt_tokens, f", as {name} may have (registry/environments.toml)", True)
