"""The length of a run's longest prompt, and how it is known. Judges nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from prime_train.registry.environments import known_environment
from prime_train.rules.rule import if_known
from prime_train.spec import RunSpec
from prime_train.spec.answers import prime_rl_of

if TYPE_CHECKING:
    from prime_train.facts.facts import DataLengths, Facts


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
