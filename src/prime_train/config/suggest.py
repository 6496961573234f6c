"""Explains a key that a schema does not know: a misspelling, a key of another table, a name of another tool. Pure.

Imported only for a file with such a key.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from prime_train.config.parsed_config import UNKNOWN_KEY, Fault
from prime_train.config.schema import Array, Shape, Table, field_name
from prime_train.config.validate_value import (
    describe_short,
    describe_unknown,
    has_type,
    is_shallow,
    misplaced,
    name_table,
)
from prime_train.toml.did_you_mean import edit_distance, nearest
from prime_train.toml.document import KeyPath, count_shared, dotted, value_at

_MAX_NAMED = 3  # tables with a key of the same name


class KnownKeys(NamedTuple):
    """What the file may have and what it has. `other_names`: keys of other tools -> our dotted key."""

    root: Table
    values: Mapping[str, Any]
    other_names: Mapping[str, str]


class _Meant(NamedTuple):
    """The keys that the user may have meant, equally near. `is_certain`: there is one, and no other meaning."""

    places: tuple[KeyPath, ...] = ()
    why: str = ""
    is_certain: bool = False


class _KnownKey(NamedTuple):
    """A key that the file may have."""

    key: KeyPath
    shape: Shape


def explain_unknown(known: KnownKeys, table: Table, path: KeyPath, value: Any) -> Fault:
    """The fault of a key that is not in its table, with the change that the user most likely wants."""
    what, meant = describe_unknown(path, value), _find_meant(known, table, path, value)
    if not meant.places:
        return Fault(UNKNOWN_KEY, path, what, f"take it out; {name_table(path[:-1])} knows {', '.join(table.fields)}")
    what = f"{what}; {meant.why}"
    if len(meant.places) > 1:
        return Fault(UNKNOWN_KEY, path, what, "move it to the one that you mean, or take it out")
    (place,) = meant.places
    if isinstance(value, dict) or not _is_in_missing_item(known.values, place):
        fault = Fault(UNKNOWN_KEY, path, what, "", safe=meant.is_certain)
        return misplaced(known.values, fault, value, place, field_name(known.root, place))
    array, key = place[:-2], str(place[-1])
    fix = f"{name_table(place[:-1])} with {key} = {describe_short(value)}"
    patch = {dotted(path): None, dotted(array): [{key: value}]} if is_shallow(value) else {}
    return Fault(UNKNOWN_KEY, path, what, fix, patch, field_name(known.root, array))


def _find_meant(known: KnownKeys, table: Table, path: KeyPath, value: Any) -> _Meant:
    """A misspelt key, a key of another table, or another tool's name for one. A table is no key of another table."""
    at, key = path[:-1], str(path[-1])
    item = _item_around(at)
    close = _find_close(table, value_at(known.values, at), key)
    named = _translate(known, at, key)
    # A setting of the whole run has another meaning in one of several items, and maybe in another table.
    if named and named[-1] != close and (not item or named[0] == at[0]):
        return _Meant((named,), f"its name here is {dotted(named)}", not item and at[:1] in ((), named[:1]))
    places = [] if isinstance(value, dict) else list(_list_places(known, at))
    homes = [place for place in places if place.key[-1] == key]
    is_slip = close is not None and 4 * edit_distance(key, close) <= len(key)
    if homes and not (item and is_slip):
        near = _choose_nearest(homes, at, value)
        return _Meant(near, f"it belongs in {_name_tables(near)}", len(homes) == 1 and near[0][: len(item)] == item)
    if close:
        return _Meant(((*at, close),), f"did you mean {close}?", is_slip)
    if item:  # a key of an item is searched only near the item
        places = [place for place in places if count_shared(place.key, at) > 0]
    far = nearest(key, {str(place.key[-1]) for place in places})
    if far is None:
        return _Meant()
    near = _choose_nearest([place for place in places if place.key[-1] == far], at, value)
    return _Meant(near, f"did you mean {_list_some(map(dotted, near))}?")


def _translate(known: KnownKeys, at: KeyPath, key: str) -> KeyPath:
    """Our key for the name that another tool has for a setting; () for none."""
    plain = key.lower().replace("-", "_")
    name = known.other_names.get(dotted((*at, plain))) or known.other_names.get(plain)
    return tuple(name.split(".")) if name else ()


def _find_close(table: Table, written: Any, key: str) -> str | None:
    """The key of the table that `key` misspells; of equals one that is not set."""
    close = nearest(key, table.fields)
    unset = nearest(key, [name for name in table.fields if name not in written])
    if close is None or unset is None or close == unset:
        return close
    return unset if edit_distance(key, unset) <= edit_distance(key, close) else close


def _item_around(at: KeyPath) -> KeyPath:
    """The innermost item of an array that a table is, or is in; () for none."""
    return next((at[:length] for length in range(len(at), 0, -1) if isinstance(at[length - 1], int)), ())


def _choose_nearest(places: list[_KnownKey], at: KeyPath, value: Any) -> tuple[KeyPath, ...]:
    """The places with most of their path in common with `at`, of those that may have the value if there are any."""
    fitting = [place for place in places if has_type(place.shape, value)] or places
    shared = max(count_shared(place.key, at) for place in fitting)
    return tuple(place.key for place in fitting if count_shared(place.key, at) == shared)


def _name_tables(places: tuple[KeyPath, ...]) -> str:
    names = list(dict.fromkeys(name_table(place[:-1]) for place in places))
    if len(names) == 1:
        return names[0] if len(places) == 1 else f"one of {names[0]}"
    return f"{_list_some(names)}, which mean different things"


def _list_some(names: Iterable[str]) -> str:
    shown = list(names)
    others = [f"{len(shown) - _MAX_NAMED} others"] if len(shown) > _MAX_NAMED else []
    return " or ".join([*shown[:_MAX_NAMED], *others])


def _list_places(known: KnownKeys, at: KeyPath) -> Iterator[_KnownKey]:
    """Every key that is no table. Of an array, in the item that `at` is in, else in the first two items.

    Two items show that the place is in doubt. An array without items has one here: the change would make it.
    """
    stack: list[tuple[KeyPath, Shape]] = [((), known.root)]
    while stack:
        path, shape = stack.pop()
        if isinstance(shape, Table):
            stack += [((*path, key), item.shape) for key, item in reversed(list(shape.fields.items()))]
        elif isinstance(shape, Array) and isinstance(shape.item, Table):
            there = value_at(known.values, path)
            count = len(there) if isinstance(there, list) else 0
            inside = at[len(path) : len(path) + 1] if at[: len(path)] == path else ()
            stack += [((*path, number), shape.item) for number in inside or range(min(2, max(1, count)))]
        else:
            yield _KnownKey(path, shape)


def _is_in_missing_item(values: Mapping[str, Any], place: KeyPath) -> bool:
    """Whether a key is in an item of an array that the file does not have."""
    return len(place) > 1 and isinstance(place[-2], int) and value_at(values, place[:-1]) is None
