"""Reads what our own table, [prime_train], says in a prime-rl file. prime-rl never sees it. Judges nothing."""

from __future__ import annotations

from typing import Any

from prime_train.spec.supervision import PrimeTrain


def prime_train(ours: Any, keys: dict[str, str]) -> PrimeTrain:
    """What [prime_train] says of the run; a value that its schema refuses is not known. Adds its fields to `keys`."""

    def above_zero(name: str) -> Any:
        keys[f"prime_train.{name}"] = f"prime_train.{name}"
        value = ours.get(name) if isinstance(ours, dict) else None
        if not isinstance(value, int | float) or isinstance(value, bool):
            return None
        return value if 0 < value < float("inf") else None

    tokens, hours, usd = map(above_zero, ("expected_prompt_tokens", "budget_hours", "budget_usd"))
    return PrimeTrain(
        expected_prompt_tokens=tokens if isinstance(tokens, int) else None,
        budget_hours=None if hours is None else float(hours),
        budget_usd=None if usd is None else float(usd),
    )
