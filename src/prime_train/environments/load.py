"""Opens the environments of a run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

from prime_train.environments.built_in import open_reverse_text, open_sort_digits
from prime_train.environments.calculator import open_calculator
from prime_train.environments.environment import Environment
from prime_train.environments.verifiers import open_taskset
from prime_train.spec.rl import TaskSource

_OPENERS: dict[str, Callable[[TaskSource, int, str], Environment]] = {
    "reverse-text": open_reverse_text,
    "sort-digits": open_sort_digits,
    "calculator": open_calculator,
    "verifiers": open_taskset,
}


def open_environment(source: TaskSource, seed: int, name: str = "") -> Environment:
    """The environment, with `name` or its usual one. Raises UserError if it cannot be opened as configured."""
    return _OPENERS[source.kind](source, seed, name or usual_name(source))


def open_environments(sources: Sequence[TaskSource], seed: int) -> tuple[Environment, ...]:
    """All environments of a run: the second reverse-text is "reverse-text-2". UserError closes the ones before."""
    opened: list[Environment] = []
    seen: Counter[str] = Counter()
    try:
        for source in sources:
            name = usual_name(source)
            seen[name] += 1
            opened.append(open_environment(source, seed, name if seen[name] == 1 else f"{name}-{seen[name]}"))
    except BaseException:
        for environment in opened:
            environment.close()
        raise
    return tuple(opened)


def usual_name(source: TaskSource) -> str:
    """The kind of a built-in environment, the id of a taskset without its folders."""
    return source.kind if source.id is None else Path(source.id).name or source.id
