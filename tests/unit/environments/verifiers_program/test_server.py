from __future__ import annotations

from prime_train.environments.verifiers_program.server import nest


def test_arguments_with_dots_are_nested() -> None:
    assert nest({"a": 1, "task.style": 2, "task.deep.x": 3}) == {"a": 1, "task": {"style": 2, "deep": {"x": 3}}}
