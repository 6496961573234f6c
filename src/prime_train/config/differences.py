"""Lists the values that differ between two runs. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict
from typing import NamedTuple

from prime_train.spec import RunSpec

Value = object  # what a RunSpec has below its tables: a plain value, or a list of plain values


class Difference(NamedTuple):
    """A key whose value differs. The value is None on the side that has no such key."""

    key: str  # run.toml's name, such as `optim.lr` or `data.sources.0.path`
    before: Value
    after: Value


def list_differences(before: RunSpec, after: RunSpec) -> tuple[Difference, ...]:
    """Every key whose value differs, in the order of the RunSpec.

    Values are compared, not texts: the order of keys, comments and the spelling of a number do not count, and a default
    that is written out equals one that is not.
    """
    old, new = flatten(before), flatten(after)
    keys = dict.fromkeys((*old, *new))
    changed = ((key, old.get(key), new.get(key)) for key in keys)
    return tuple(Difference(key, was, value) for key, was, value in changed if was != value)


def flatten(run: RunSpec) -> dict[str, Value]:
    """Dotted keys to values. An entry of a list of tables has its position in the key."""
    return dict(_flatten(asdict(run), ""))


def _flatten(value: Value, key: str) -> Iterator[tuple[str, Value]]:
    if isinstance(value, Mapping):
        for name, inner in value.items():
            yield from _flatten(inner, f"{key}.{name}" if key else str(name))
    elif isinstance(value, list | tuple) and any(isinstance(entry, Mapping) for entry in value):
        for position, entry in enumerate(value):
            yield from _flatten(entry, f"{key}.{position}")
    else:
        yield key, value
