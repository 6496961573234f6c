"""The environment `reverse-text`: the model writes lowercase letters in reverse order. Pure."""

from __future__ import annotations

from string import ascii_lowercase

from prime_train.environments.arguments import read_arguments
from prime_train.environments.built_in import TextEnvironment
from prime_train.spec.rl import TaskSource


def open_reverse_text(source: TaskSource, seed: int, name: str) -> TextEnvironment:
    """Raises UserError for arguments that it does not have."""
    arguments = read_arguments(source)
    return TextEnvironment(
        name=name,
        seed=seed,
        instruction="Reverse:",
        alphabet=ascii_lowercase[: int(arguments["alphabet"])],
        min_length=int(arguments["min_letters"]),
        max_length=int(arguments["max_letters"]),
        solve=lambda text: text[::-1],
    )
