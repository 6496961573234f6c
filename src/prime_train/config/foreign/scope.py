"""What the keys of a condition mean: values, defaults, other parts, and what is not known. Values only."""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from prime_train.config.foreign.values import AUTO, Open, PartialValues
from prime_train.toml.document import value_at

ROOTS = ("DEEPSPEED", "ACCELERATE", "LAUNCH", "SLURM", "TRAINER", "MODEL")
Key = tuple[str, ...]


class UnknownTruth:
    """The one value that stands for "not known"."""

    def __repr__(self) -> str:
        return "UNKNOWN"


UNKNOWN = UnknownTruth()
_NOTHING: Mapping[str, Any] = {}


class Scope(NamedTuple):
    """What a condition may read: a part, the defaults of its program, and the parts beside it by their ROOTS.

    `exists` answers whether a file exists, with None where that is not known.
    """

    values: Mapping[str, Any]
    defaults: Mapping[str, Any] = _NOTHING
    roots: Mapping[str, Mapping[str, Any]] = _NOTHING
    exists: Callable[[str], bool | None] = lambda _: None

    def value(self, key: Key) -> Any:
        """The value of a key, else its default, else None. UNKNOWN below a root without a part."""
        if key[0] in ROOTS:
            values = self.roots.get(key[0])
            return UNKNOWN if values is None else _at(values, key[1:])
        value = _at(self.values, key)
        return self.defaults.get(".".join(key)) if value is None else value

    def is_written(self, key: Key) -> bool | UnknownTruth:
        """Whether the file has a key, even with null as its value. UNKNOWN below a root without a part."""
        values: Any = self.values
        if key[0] in ROOTS:
            values, key = self.roots.get(key[0]), key[1:]
            if values is None:
                return UNKNOWN
        may_hide_keys = _is_partial(values)
        for part in key:
            if not isinstance(values, Mapping) or part not in values:
                return UNKNOWN if may_hide_keys else False
            values = values[part]
        return True


def _at(values: Mapping[str, Any], key: Key) -> Any:
    """The value at a key; UNKNOWN below an Open value, and for a key that partial values do not show."""
    around: Any = values
    for part in key:
        if isinstance(around, Open):
            return UNKNOWN
        around = value_at(around, (part,))
    return UNKNOWN if around is None and _is_partial(values) else around


def _is_partial(values: Any) -> bool:
    return isinstance(values, PartialValues) and values.is_partial


def key_of(node: ast.AST) -> Key:
    """The key that a node names: a dotted name, or a text for a key that is no name. Raises ValueError."""
    match node:
        case ast.Name(id=name):
            return (name,)
        case ast.Attribute(value=around, attr=name):
            return (*key_of(around), name)
        case ast.Constant(value=str() as text):
            return tuple(text.split("."))
    raise ValueError(f"{ast.unparse(node)} names no key")


def is_given(value: Any) -> bool | UnknownTruth:
    """Whether a value is neither absent nor null. "auto" is a value, a variable may be empty."""
    if isinstance(value, UnknownTruth) or (isinstance(value, Open) and value.text != AUTO):
        return UNKNOWN
    return value is not None
