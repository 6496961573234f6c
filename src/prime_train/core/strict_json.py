"""Parses JSON that comes from outside: no value is deeper or larger than later code can be expected to survive."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from json import JSONDecoder

_DEPTH = 64  # the deepest record of ours nests 8 levels, the deepest config.json of a model 6


def parse_json(content: str | bytes, *, not_finite: bool = False) -> Any:
    """The value of a JSON text. Raises ValueError if it is no JSON, nests deeper than any record, or has a number or a
    character that no later code can be expected to survive: Infinity, NaN, 1e999, integers above 64 bits, half a
    surrogate pair. `not_finite` permits Infinity and NaN, which a config.json may have.
    """
    text = content if isinstance(content, str) else content.decode("utf-8")
    try:
        value = _decoder(not_finite).decode(text)
    except RecursionError:
        raise ValueError(f"it nests more than {_DEPTH} levels") from None
    if text.count("{") + text.count("[") > _DEPTH:
        _check_depth(value)
    if "\\ud" in text or "\\uD" in text:
        import json

        json.dumps(value, ensure_ascii=False).encode("utf-8")  # raises UnicodeEncodeError, which is a ValueError
    return value


@cache
def _decoder(not_finite: bool) -> JSONDecoder:
    from json import JSONDecoder

    constant = float if not_finite else _refuse_constant
    return JSONDecoder(parse_constant=constant, parse_float=_finite, parse_int=_bounded)


def _check_depth(value: Any) -> None:
    level = [value] if isinstance(value, dict | list) else []
    for _ in range(_DEPTH):
        if not level:
            return
        inner = (each for node in level for each in (node.values() if isinstance(node, dict) else node))
        level = [each for each in inner if isinstance(each, dict | list)]
    if level:
        raise ValueError(f"it nests more than {_DEPTH} levels")


def _refuse_constant(written: str) -> Any:
    raise ValueError(f"{written} is no number of JSON")


def _finite(written: str) -> float:
    value = float(written)
    if value - value != 0.0:
        raise ValueError(f"{written[:40]} is beyond the range of numbers")
    return value


def _bounded(written: str) -> int:
    if len(written) > 20 or not -(2**63) <= (value := int(written)) < 2**64:
        raise ValueError(f"{written[:40]} has more than 64 bits")
    return value
