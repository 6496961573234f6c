"""Lists the values that differ between two runs, or between two tables of values. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass, replace
from functools import cache
from typing import Any, NamedTuple, get_type_hints

from prime_train.spec import RunSpec
from prime_train.spec.annotations import Key
from prime_train.toml.document import dotted

Value = object  # what a table has: a plain value, a table, or a tuple of these
Table = Mapping[str, Any]

_MISSING: Any = object()  # None cannot stand for it, because a list may hold None
_NAMES = ("name", "id", "path", "kind", "type")  # the first that an entry of a list has is its natural name


class Difference(NamedTuple):
    """A key whose value differs. The value is None on the side that has no such key.

    An entry of a list of tables has its natural name in the key, such as `data.sources."a.txt".weight`, else its
    position. Where entries were added, removed or moved, the key for the list has the names on both sides as values.
    """

    key: str  # run.toml's name, such as `optim.lr` or `data.sources.0.path`
    before: Value
    after: Value


def list_differences(before: RunSpec, after: RunSpec) -> tuple[Difference, ...]:
    """Every key whose value differs, in the order of the RunSpec.

    Values are compared, not texts: the order of keys, comments and the spelling of a number do not count, and a default
    that is written out equals one that is not.
    """
    return diff(values_of(before), values_of(after))


def flatten(run: RunSpec) -> dict[str, Value]:
    """Dotted keys to values. An entry of a list of tables has its position in the key."""
    return flatten_values(values_of(run))


def flatten_values(values: Table) -> dict[str, Value]:
    """`flatten` for a table of `plain` values."""
    return dict(_flatten(values, ()))


def _flatten(value: Any, key: tuple[str, ...]) -> Iterator[tuple[str, Value]]:
    if isinstance(value, Mapping) and value:
        for name, below in value.items():
            yield from _flatten(below, (*key, name))
    elif is_tables(value):
        for position, entry in enumerate(value):
            yield from _flatten(entry, (*key, str(position)))
    elif key:
        yield dotted(key), value


def values_of(run: RunSpec) -> dict[str, Any]:
    """The values of a run under the keys of run.toml, without what is not set."""
    # The server of a run.toml is [inference] itself, and `inference` is computed from it.
    values = plain(replace(run, inference=None) if run.format == "run.toml" else run)
    assert isinstance(values, dict)
    return values


def plain(value: Any) -> Any:
    """Tables as dictionaries without the keys that are None, lists as tuples, other values as they are."""
    if is_dataclass(value) and not isinstance(value, type):
        keys = _keys(type(value))
        return _table((keys.get(item.name, item.name), getattr(value, item.name)) for item in fields(value))
    if hasattr(value, "_asdict"):
        return _table(value._asdict().items())
    if isinstance(value, Mapping):
        return _table(value.items())
    return tuple(map(plain, value)) if isinstance(value, list | tuple) else value


@cache
def _keys(cls: type[Any]) -> dict[str, str]:
    """Field -> key in run.toml, where they differ."""
    hints = get_type_hints(cls, include_extras=True)
    notes = {name: getattr(hint, "__metadata__", ()) for name, hint in hints.items()}
    return {name: note.name for name, found in notes.items() for note in found if isinstance(note, Key)}


def _table(items: Iterable[tuple[Any, Any]]) -> dict[str, Any]:
    found = ((str(name), value, plain(value)) for name, value in items if value is not None)
    # A table without a key that is set is not there, as in a file.
    return {name: inner for name, value, inner in found if inner or not is_dataclass(value)}


def diff(before: Table, after: Table) -> tuple[Difference, ...]:
    """Every key whose value differs between two tables of `plain` values."""
    return tuple(
        Difference(dotted(key), None if was is _MISSING else was, None if value is _MISSING else value)
        for key, was, value in _pair(before, after, ())
        if key and not is_same(was, value)
    )


def _pair(before: Any, after: Any, key: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Any, Any]]:
    """Each key with its value on both sides. What is below a table or an entry of a list comes before the key."""
    sides = (before, after)
    if any(map(is_tables, sides)) and all(map(_is_list, sides)):
        lists = [() if side is _MISSING else side for side in sides]
        labels = _align(*lists)
        old, new = (dict(zip(names, entries, strict=True)) for names, entries in zip(labels, lists, strict=True))
        before, after = (side if side is _MISSING else names for side, names in zip(sides, labels, strict=True))
    else:
        old, new = (dict(side) if isinstance(side, Mapping) else {} for side in sides)
        # A table exists by its keys, and one without keys as a value.
        before, after = _MISSING if old else before, _MISSING if new else after
    for name in dict.fromkeys((*old, *new)):
        yield from _pair(old.get(name, _MISSING), new.get(name, _MISSING), (*key, name))
    yield key, before, after


def _is_list(value: Any) -> bool:
    """Whether a value may be aligned with a list of tables: it is one, it is empty or it is missing."""
    return value is _MISSING or value == () or is_tables(value)


def is_tables(value: Any) -> bool:
    """Whether a value is a list of tables, with at least one."""
    return isinstance(value, tuple) and bool(value) and all(isinstance(entry, Mapping) for entry in value)


def _align(before: Sequence[Table], after: Sequence[Table]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """A label for each entry in both lists; two entries with one label are the same entry.

    Entries with one name are the same, and other entries at one position.
    """
    names = name_entries(before), name_entries(after)

    def label(own: Sequence[str], other: Sequence[str], position: int) -> str:
        name = own[position]
        has_partner = position < len(other) and (not other[position] or other[position] not in own)
        return str(position) if not name or (name not in other and has_partner) else name

    def labels(own: Sequence[str], other: Sequence[str]) -> tuple[str, ...]:
        return tuple(label(own, other, position) for position in range(len(own)))

    return labels(*names), labels(*reversed(names))


def name_entries(entries: Sequence[Table]) -> list[str]:
    """The natural name for each entry in a list; "" for one without, or with the name of another one."""
    found = [next((entry[key] for key in _NAMES if isinstance(entry.get(key), str)), "") for entry in entries]
    count = Counter(found)
    return ["" if count[name] > 1 or name.isdecimal() else name for name in found]


def is_same(one: Any, other: Any) -> bool:
    """Whether two values are equal: 1 and 1.0 are, true and 1 are not, and nan is itself."""
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        return one.keys() == other.keys() and all(is_same(value, other[key]) for key, value in one.items())
    if isinstance(one, tuple) and isinstance(other, tuple):
        return len(one) == len(other) and all(map(is_same, one, other))
    if isinstance(one, bool) or isinstance(other, bool):
        return one is other
    return bool(one == other) or (one != one and other != other)
