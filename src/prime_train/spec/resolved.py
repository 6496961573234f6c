"""Writes a RunSpec as the text of resolved.json, and reads it back, also from a run directory of an earlier version."""

from __future__ import annotations

import json
from dataclasses import asdict
from functools import cache
from typing import TYPE_CHECKING, Any

from prime_train.core.strict_json import parse_json
from prime_train.spec.prime_rl_parts import PrimeRl
from prime_train.spec.run_spec import RunSpec

if TYPE_CHECKING:
    from pydantic import TypeAdapter

_PARTS_OF_PRIME_RL = ("launch", "trainer", "rollout")


def to_json(run: RunSpec) -> str:
    """The text of resolved.json: every field, including defaults."""
    return json.dumps(asdict(run), indent=1, default=str)  # str: dates, which an environment of prime-rl may have


def from_json(text: str) -> RunSpec:
    """The RunSpec of a resolved.json. Raises pydantic.ValidationError if the text is invalid."""
    return _adapter().validate_json(_upgrade(text), strict=True)


def _upgrade(text: str) -> str:
    """The text in the shape of a RunSpec, also where its format is not set and its parts of prime-rl stand apart."""
    try:
        document = parse_json(text)
    except ValueError:
        return text  # which from_json refuses
    if not isinstance(document, dict) or "format" in document:
        return text
    found = _find_format(document)
    parts = {name: document[name] for name in PrimeRl.__dataclass_fields__ if document.get(name) is not None}
    return json.dumps(document | {"format": found, "prime_rl": parts if found == "prime-rl" else None})


def _find_format(document: dict[str, Any]) -> str:
    """The format that such a RunSpec was read from: only its parts show it."""
    if document.get("recipe") is not None:
        return "recipe"
    if document.get("jax") is not None:
        return "script"
    served = document.get("inference") is not None and document.get("server") is None
    return "prime-rl" if served or any(document.get(part) is not None for part in _PARTS_OF_PRIME_RL) else "run.toml"


@cache  # because it takes a tenth of a second, and `status` reads many runs
def _adapter() -> TypeAdapter[RunSpec]:
    from pydantic import TypeAdapter

    return TypeAdapter(RunSpec)
