"""The environment `sort-digits`: the model writes digits in ascending order. Pure."""

from __future__ import annotations

from string import digits

from prime_train.environments.arguments import read_arguments
from prime_train.environments.built_in import TextEnvironment
from prime_train.spec.rl import TaskSource


def open_sort_digits(source: TaskSource, seed: int, name: str) -> TextEnvironment:
    """Raises UserError for arguments that it does not have."""
    arguments = read_arguments(source)
    return TextEnvironment(
        name=name,
        seed=seed,
        instruction="Sort:",
        alphabet=digits,
        min_length=int(arguments["min_digits"]),
        max_length=int(arguments["max_digits"]),
        solve=lambda text: "".join(sorted(text)),
    )
