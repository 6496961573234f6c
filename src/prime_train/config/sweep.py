"""Reads a sweep: which configs its file stands for, and where each of its keys is written. Judges none, starts nothing.

Three forms: a sweep file for W&B (docs.wandb.ai, Sweep configuration options), `hydra.sweeper.params`
(hydra.cc, Extended Override syntax), and `configs`, a list with tables or words such as "optim.lr=1e-3,1e-4 seed=1".
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain, islice, product
from typing import Any, NamedTuple

import tomli

from prime_train.config.foreign.values import YAML_SUFFIXES
from prime_train.core.errors import UserError
from prime_train.toml.document import Document, KeyPath

MOST_CONFIGS = 500  # of one sweep; of a larger one each value is judged once, and a part of the combinations
_LOGARITHMS = ("log_uniform", "q_log_uniform", "log_normal", "q_log_normal")  # their bounds are exponents of e
_NUMBER = re.compile(r"[-+]?(?:\d[\d_]*(?:\.\d*)?|\.\d+)(?:[eE][-+]?\d+)?")
_CHOICE = re.compile(r"choice\((.*)\)")
_RANGE = re.compile(r"range\(\s*(-?\d+)\s*(?:,\s*(-?\d+)\s*)?(?:,\s*([1-9]\d*)\s*)?\)")
_METHODS = ("grid", "random", "bayes")
_GRID_RANGES = ("int_uniform", "q_uniform")  # W&B's grid goes through their values
_PARAMETERS, _CONFIGS, _BASE = "parameters", "configs", "base"
_SWEEPER = ("hydra", "sweeper", "params")


class Sweep(NamedTuple):
    """`base` is the config that the file names, "" for none. `configs` are the values that each one sets.

    `total` is the number of combinations; `configs` may be fewer. `places`: key -> its place in the file.
    """

    document: Document
    base: str
    configs: tuple[Mapping[str, Any], ...]
    total: int
    places: Mapping[str, KeyPath]


class _Dimension(NamedTuple):
    key: str
    values: tuple[Any, ...]
    at: KeyPath


def parse_sweep(text: str, path: str) -> Document | None:
    """The document if the text is a sweep, else None."""
    if _CONFIGS not in text and "method" not in text and _SWEEPER[0] not in text:
        return None  # before it is parsed: most configs are none
    if path.endswith(YAML_SUFFIXES):
        from prime_train.config.foreign.document import read_documents

        document = next(iter(read_documents(text, path)), None)
    else:
        document = Document.parse(text, path)
    return document if document is not None and document.fault is None and _is_sweep(document.values) else None


def _is_sweep(values: Mapping[str, Any]) -> bool:
    is_wandb = isinstance(values.get(_PARAMETERS), dict) and isinstance(values.get("method"), str)
    is_list = isinstance(values.get(_CONFIGS), list) and values.keys() <= {_CONFIGS, _BASE, "name"}
    return is_wandb or is_list or _hydra_params(values) is not None


def _hydra_params(values: Any) -> dict[str, Any] | None:
    for part in _SWEEPER:
        values = values.get(part) if isinstance(values, Mapping) else None
    return values if isinstance(values, dict) else None


def read_sweep(document: Document) -> Sweep:
    """The configs. Raises UserError for a key without values, and for a sweep without any."""
    values = document.values
    if _CONFIGS in values and _PARAMETERS not in values:
        groups = [_read_entry(entry, (_CONFIGS, number), document) for number, entry in enumerate(values[_CONFIGS])]
    elif (params := _hydra_params(values)) is not None:
        groups = [[_Dimension(key, _read_word(str(word)), (*_SWEEPER, key)) for key, word in params.items()]]
    else:
        groups = [list(_read_wandb(values[_PARAMETERS], "", (_PARAMETERS,), document))]
    total = sum(math.prod(len(one.values) for one in group) for group in groups)
    if not any(groups):
        why = "a sweep has keys, each with the values that it takes in turn"
        raise _error(document, (), "it sweeps over nothing", why, "optim.lr: {values: [1e-4, 3e-4]}")
    configs = tuple(islice(chain.from_iterable(map(_combine, groups)), MOST_CONFIGS))
    places = {one.key: one.at for group in reversed(groups) for one in group}
    return Sweep(document, find_base(values), configs, total, places)


def _combine(group: Sequence[_Dimension]) -> Iterator[dict[str, Any]]:
    """Each value once, the other keys with their first one, then the other combinations."""
    keys = [one.key for one in group]
    first = [one.values[0] for one in group]
    seen: set[tuple[int, ...]] = set()
    alone = (
        tuple(place if other == number else 0 for other in range(len(group)))
        for number, one in enumerate(group)
        for place in range(len(one.values))
    )
    every = product(*(range(len(one.values)) for one in group))
    for places in chain([(0,) * len(first)], alone, every):
        if places not in seen:
            seen.add(places)
            yield {key: one.values[place] for key, one, place in zip(keys, group, places, strict=True)}


def find_base(values: Mapping[str, Any]) -> str:
    """The config that the sweep names: by `base`, or in `program` and `command`, as W&B has them."""
    command = values.get("command")
    words = [values.get(_BASE), values.get("program"), *(command if isinstance(command, list) else [command])]
    parts = (part for word in words if isinstance(word, str) for part in word.split())
    return next((part for part in parts if part.endswith((".toml", *YAML_SUFFIXES))), "")


# --- W&B -----------------------------------------------------------------------------------------


def _read_wandb(table: Mapping[str, Any], prefix: str, at: KeyPath, document: Document) -> Iterator[_Dimension]:
    method = document.values["method"]
    if method not in _METHODS:
        why = f"W&B knows {', '.join(_METHODS)}"
        raise _error(document, ("method",), f"there is no method {method!r}", why, "method: grid")
    for name, given in table.items():
        key, place = f"{prefix}{name}", (*at, str(name))
        if isinstance(given, Mapping) and isinstance(given.get(_PARAMETERS), Mapping):
            yield from _read_wandb(given[_PARAMETERS], f"{key}.", (*place, _PARAMETERS), document)
            continue
        values = _values_of(given, is_grid=method == "grid") if isinstance(given, Mapping) else None
        if not values:
            why = "W&B needs value, values, or min and max" + ("; a grid has no range" if method == "grid" else "")
            raise _error(document, place, f"{key} has no values", why, f"{key}: {{values: [...]}}")
        yield _Dimension(key, values, place)


def _values_of(given: Mapping[str, Any], *, is_grid: bool) -> tuple[Any, ...]:
    """The values; for a range both ends, because a rule that holds at both holds between in most cases."""
    if "value" in given:
        return (_as_number(given["value"]),)
    if isinstance(given.get("values"), list):
        return tuple(map(_as_number, given["values"]))
    ends = [_as_number(given[name]) for name in ("min", "max") if name in given] or [_as_number(given.get("mu"))]
    if not all(isinstance(end, int | float) for end in ends) or (len(ends) == 1 and "mu" not in given):
        return ()
    distribution = given.get("distribution") or ("int_uniform" if all(isinstance(end, int) for end in ends) else "")
    if is_grid and distribution not in _GRID_RANGES:
        return ()
    return tuple(dict.fromkeys(_power(end) if distribution in _LOGARITHMS else end for end in ends))


def _power(exponent: float) -> float:
    return math.exp(min(max(exponent, -700.0), 700.0))  # beyond, a float overflows


def _as_number(value: Any) -> Any:
    """The value, as a number where a text is one: 1e-4 is a text in YAML 1.1, and W&B puts it on a command line."""
    if not isinstance(value, str) or len(value) > 30 or not _NUMBER.fullmatch(value):
        return value
    return float(value) if set(value) & set(".eE") else int(value)


# --- words and lists ------------------------------------------------------------------------------


def _read_entry(entry: Any, at: KeyPath, document: Document) -> list[_Dimension]:
    """One entry in `configs`: a table with values, or the words that Hydra would get."""
    if isinstance(entry, Mapping):
        given = {".".join(str(part) for part in key): value for key, value in _leaves(entry, ())}
        return [_Dimension(key, (_as_number(value),), at) for key, value in given.items()]
    pairs = [word.lstrip("+").partition("=") for word in entry.split()] if isinstance(entry, str) else []
    if not pairs or not all(name and separator for name, separator, _ in pairs):
        what, why = f"{str(entry)[:80]!r} sets no key", "an entry is a table of values, or words as Hydra has them"
        raise _error(document, at, what, why, '"optim.lr=1e-3,1e-4 run.seed=1"')
    return [_Dimension(name, _read_word(word), at) for name, _, word in pairs]


def _leaves(table: Mapping[str, Any], key: KeyPath) -> Iterator[tuple[KeyPath, Any]]:
    for name, value in table.items():
        if isinstance(value, Mapping):
            yield from _leaves(value, (*key, name))
        else:
            yield (*key, name), value


def _read_word(word: str) -> tuple[Any, ...]:
    """The values that Hydra reads in `1,2`, `choice(1,2)` and `range(1,3)`. Other functions are one text."""
    steps = _RANGE.fullmatch(word)
    if steps is not None:
        first, last = (0, int(steps[1])) if steps[2] is None else (int(steps[1]), int(steps[2]))
        return tuple(range(first, last, int(steps[3] or 1))[:MOST_CONFIGS]) or (word,)
    choice = _CHOICE.fullmatch(word)
    parts = re.split(r",(?![^\[{(]*[\])}])", word if choice is None else choice[1])  # a comma in brackets parts nothing
    return tuple(_as_value(part.strip()) for part in parts)


def _as_value(text: str) -> Any:
    try:
        return tomli.loads(f"value = {text}")["value"]
    except ValueError:
        return None if text in ("null", "None") else _as_number(text)


def _error(document: Document, at: KeyPath, what: str, why: str, fix: str) -> UserError:
    place = document.nearest(at) if at else None
    line = "" if place is None else f":{place.key.line}"
    return UserError(what, f"{document.path}{line}", why, f"for example {fix}")
