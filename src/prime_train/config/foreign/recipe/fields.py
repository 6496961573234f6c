"""Reads the fields of a recipe from one part of another program's file, by the table of its format. Pure.

A table is registry/foreign/mapping/FORMAT.toml. Each field of its [recipe] has alternatives, and the first that gives a
value counts:

- `key`: the value of that key, or of the first of several that has one
- `values` or `words`: what the table has for that value, "" for nothing. What it does not have is not known; `*` is any
  other value. `words` names a table of words.toml, and `also` adds to it
- `contains`: whether the list of that key has one of these texts; with `gives`, that value if it has, else nothing
- `filled`: this, if the key has a value that is not empty
- `default`: what the program takes if the file has no such key; `key` is then where it would be set

A field may be an input of the functions for a program only, which a Recipe does not have.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any, NamedTuple, get_type_hints

from prime_train.config.foreign.values import AUTO, Open
from prime_train.registry.gpus import data_file, read_table
from prime_train.spec.prime_rl_parts import Recipe
from prime_train.toml.document import value_at

_FOLDER, _WORDS = "foreign/mapping", "words"
_NO = frozenset({"false", "none", "no", "null", "0", ""})
_MOST = 10**12  # a larger number is none of a config
# The types of inputs that are no field of a Recipe. What is not here is a text or a switch and is taken as it is.
_INPUTS: Mapping[str, Any] = dict.fromkeys(
    (
        *("max_steps", "checkpoint_steps", "global_batch", "rank_batch", "mini_batch", "answers", "nodes", "node_gpus"),
        *("prompt_tokens", "answer_tokens", "rank_tokens", "step_tokens", "dynamic_tokens", "epochs", "epoch_steps"),
        *("shard_degree", "engines"),
    ),
    int | None,
) | {"engine_share": float | None, "attention_targets": tuple[str, ...] | None}


class Found(NamedTuple):
    """The value of a field. Open: the file sets it, and what it sets is not known.

    `key` is the key of the file that sets it or would set it. `written`: the file has it; otherwise it is the program's
    default. `why` is the reason for it, where an answer shows one.
    """

    value: Any
    key: str = ""
    written: bool = True
    why: str = ""


Fields = Mapping[str, Found]


@cache
def formats() -> frozenset[str]:
    """The formats that have a table."""
    return frozenset(path.stem for path in data_file(_FOLDER).glob("*.toml")) - {_WORDS}


def mapping_of(format: str) -> dict[str, Any]:
    """The table of a format. Raises FileNotFoundError for one without."""
    return read_table(f"{_FOLDER}/{format}.toml")  # read once


@cache
def types() -> Mapping[str, Any]:
    """Field -> its type, for those with a type."""
    return {**get_type_hints(Recipe), **_INPUTS}


def read_fields(format: str, values: Mapping[str, Any]) -> dict[str, Found]:
    """The fields that a part's values give, or that its program takes without them."""
    found = {name: _read_field(name, ways, values) for name, ways in mapping_of(format)["recipe"].items()}
    return {name: field for name, field in found.items() if field is not None}


def value_in(values: Mapping[str, Any], key: str) -> Any:
    """The value of a dotted key, whose tables may be nested or written as one name. None for none."""
    plain = values.get(key)
    return plain if plain is not None else value_at(values, tuple(key.split(".")))


def write_field(format: str, name: str, value: Any, written: str = "") -> tuple[str, str] | None:
    """(key, text) that give a field a value in a file of the format.

    None if no key does. `written`: the key that the file has for it.
    """
    for way in mapping_of(format)["recipe"].get(name, ()):
        if "key" not in way or not {"default", "contains", "filled"}.isdisjoint(way):
            continue
        words, keys = _words(way), _keys(way)
        key = written if written in keys else keys[0]
        if words is None:
            return key, _word(list(value) if isinstance(value, tuple) else value)
        word = next((word for word, meant in words.items() if _plain(meant) == value and word not in ("*", AUTO)), None)
        if word is not None:
            return key, word
    return None


def _read_field(name: str, ways: Sequence[Mapping[str, Any]], values: Mapping[str, Any]) -> Found | None:
    for way in ways:
        if "default" in way:
            return Found(_plain(way["default"]), way.get("key", _keys(ways[0])[0]), written=False)
        for key in _keys(way):
            value = value_in(values, key)
            translated = None if value is None else _translate(name, way, key, value)
            if translated is not None:
                return Found(translated, key)
    return None


def _keys(way: Mapping[str, Any]) -> list[str]:
    keys = way.get("key", "")
    return keys if isinstance(keys, list) else [keys]


def _plain(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


def _translate(name: str, way: Mapping[str, Any], key: str, value: Any) -> Any:
    """The value in the words of a recipe; None if it sets nothing; Open if its meaning is not known."""
    words = _words(way)
    if isinstance(value, Open):
        if value.text == AUTO:
            return _plain(words.get(AUTO)) if words else None
        return Open(f"{key} = {value.text}")
    if "filled" in way:
        return way["filled"] if value and value is not True else None
    if "contains" in way:
        listed = value if isinstance(value, list) else str(value).split(",")
        has_one = not set(way["contains"]).isdisjoint(str(item).strip() for item in listed)
        return has_one if "gives" not in way else way["gives"] if has_one else None
    if words is None:
        return _typed(name, key, value)
    word = _word(value)
    if word in words:
        return _plain(words[word]) if words[word] != "" else None
    if word in _NO:
        return None
    other = words.get("*")
    return Open(f"{key} = {word}") if other is None else None if other == "" else other


def _words(way: Mapping[str, Any]) -> Mapping[str, Any] | None:
    if "words" in way:
        return {**read_table(f"{_FOLDER}/{_WORDS}.toml")[way["words"]], **way.get("also", {})}
    words: Mapping[str, Any] | None = way.get("values")
    return words


def _word(value: Any) -> str:
    if isinstance(value, list):
        return ",".join(map(_word, value))
    return str(value).lower() if not isinstance(value, float) or value % 1 else str(int(value))


def _typed(name: str, key: str, value: Any) -> Any:
    """The value as the type of its field; None if it is not set, as with -1; Open if it has another type."""
    kind = types().get(name)
    if kind == int | None:
        number = _number(value)
        if number is None or number % 1 or number > _MOST:
            return Open(f"{key} = {value}")
        return int(number) if number > 0 else None
    if kind == float | None:
        number = _number(value)
        return Open(f"{key} = {value}") if number is None else number or None
    if kind == bool | None:
        word = _word(value)
        return True if word in ("true", "yes", "on", "1") else False if word in _NO else Open(f"{key} = {word}")
    if kind == tuple[str, ...] | None:
        listed = value if isinstance(value, list) else re.split(r"[,\s]+", str(value).strip())
        names = tuple(str(item).strip() for item in listed if str(item).strip())
        return _targets(key, names)
    if kind == str | None:
        return value if isinstance(value, str) and value else Open(f"{key} = {value}")
    return value


def _number(value: Any) -> float | None:
    if isinstance(value, bool):
        return None
    try:
        number = float(value.replace("_", "")) if isinstance(value, str) else float(value)
    except (TypeError, ValueError, OverflowError):
        return None
    return number if math.isfinite(number) else None


def _targets(key: str, names: tuple[str, ...]) -> tuple[str, ...] | Open | None:
    if not names:
        return None
    if any(name in ("all", "all-linear", "all_linear") for name in names):
        return ("all",)
    is_pattern = any(not re.fullmatch(r"[\w.]+", name) for name in names)
    return Open(f"{key} = {','.join(names)}") if is_pattern else names
