"""Reads what our own table, [prime_train], says in a prime-rl file. prime-rl never sees it. Judges nothing."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from prime_train.spec.supervision import PrimeTrain

_OTHERS = ("prime_rl", "python", "expected_prompt_tokens", "budget_hours", "budget_usd")


def prime_train(ours: Any, keys: dict[str, str]) -> PrimeTrain:
    """What [prime_train] says of the run; a value that its schema refuses is not known. Adds its fields to `keys`."""

    def above_zero(name: str) -> Any:
        keys[f"prime_train.{name}"] = f"prime_train.{name}"
        value = ours.get(name) if isinstance(ours, dict) else None
        if not isinstance(value, int | float) or isinstance(value, bool):
            return None
        return value if 0 < value < float("inf") else None

    tokens, hours, usd = map(above_zero, ("expected_prompt_tokens", "budget_hours", "budget_usd"))
    return replace(
        _supervised(ours, keys),
        expected_prompt_tokens=tokens if isinstance(tokens, int) else None,
        budget_hours=None if hours is None else float(hours),
        budget_usd=None if usd is None else float(usd),
    )


def _supervised(ours: Any, keys: dict[str, str]) -> PrimeTrain:
    """What it says of supervision, in the tables and keys that a run.toml has too."""
    theirs = {key: value for key, value in ours.items() if key not in _OTHERS} if isinstance(ours, dict) else {}
    if not theirs:
        return PrimeTrain()
    from prime_train.config import schema
    from prime_train.config.validate import walk

    for name, value in theirs.items():
        keys[f"prime_train.{name}"] = f"prime_train.{name}"
        if isinstance(value, dict):
            keys.update((f"prime_train.{name}.{key}", f"prime_train.{name}.{key}") for key in value)
    read, _ = walk(schema.table_of(PrimeTrain), theirs, {})
    return read if isinstance(read, PrimeTrain) else PrimeTrain()
