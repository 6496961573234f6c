"""Explains a key that a schema does not know: a misspelling, or a name that other programs have for a key. Pure.

Only a misspelt key in the same table is certain. A key in another table is suggested where the name alone shows
what is meant, which `registry/other_names.toml` has. Imported only for a file with an unknown key.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from prime_train.config.parsed_config import UNKNOWN_KEY, Fault
from prime_train.config.schema import Array, Field, Map, Scalars, Shape, Table, field_name
from prime_train.config.validate_value import (
    describe_short,
    describe_unknown,
    expected,
    has_type,
    is_shallow,
    misplaced,
    name_table,
    value_fault,
)
from prime_train.registry.other_names import OtherNames
from prime_train.toml.did_you_mean import edit_distance, nearest
from prime_train.toml.document import KeyPath, count_shared, dotted, value_at

_MAX_NAMED = 3  # tables with a key of the same name
_FAR = 100  # a distance behind every misspelling
_WORD = 6  # letters of a word that stands for a longer name: `warmup`, not `start`
_LONG = 8  # letters of a name in which another first letter is a slip
# In these tables the name may be a setting for this table alone: a batch size for the evaluation.
_APART = ("eval", "inference", "prime_train", "profile", "rl", "tasks")


class KnownKeys(NamedTuple):
    """What the file may have, what it has, and the names that other programs have for its keys."""

    root: Table
    values: Mapping[str, Any]
    other_names: OtherNames


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
    what = describe_unknown(path, value)
    fault = Fault(UNKNOWN_KEY, path, what, f"take it out; {name_table(path[:-1])} knows {', '.join(table.fields)}")
    if hint := _find_hint(known, path, value):
        return fault._replace(fix=hint)
    meant = _find_meant(known, table, path, value)
    if not meant.places:
        return fault
    fault = fault._replace(what=f"{what}; {meant.why}", safe=meant.is_certain)
    if len(meant.places) > 1:
        return _explain_several(fault, meant.places, value)
    (place,) = meant.places
    if isinstance(value, dict) or not _is_in_missing_item(known.values, place):
        return _explain_one(known, fault, place, value)
    array, key = place[:-2], str(place[-1])
    fix = f"{name_table(place[:-1])} with {key} = {describe_short(value)}"
    patch = {dotted(path): None, dotted(array): [{key: value}]} if is_shallow(value) else {}
    return fault._replace(fix=fix, patch=patch, shadows=field_name(known.root, array), safe=False)


def _explain_one(known: KnownKeys, fault: Fault, place: KeyPath, value: Any) -> Fault:
    """The fault with a patch that moves the value; with the legal values where it may not have this one."""
    item = _find_field(known.root, place)
    shadows = field_name(known.root, place)
    if not fault.safe and item is not None and value_fault(item.shape, value, place) is not None:
        return fault._replace(fix=f"set {dotted(place)}: {expected(item.shape)}", shadows=shadows)
    return misplaced(known.values, fault, value, place, shadows)


def _explain_several(fault: Fault, places: tuple[KeyPath, ...], value: Any) -> Fault:
    """A list with a value for each place is divided among them; else the user chooses one."""
    if not isinstance(value, list) or len(value) != len(places) or any(isinstance(one, dict | list) for one in value):
        return fault._replace(fix="set the one that you mean, or take it out")
    parts = {dotted(place): one for place, one in zip(places, value, strict=True)}
    fix = " and ".join(f"{name} = {describe_short(one)}" for name, one in parts.items())
    return fault._replace(fix=fix, patch={dotted(fault.key): None, **parts})


def _find_meant(known: KnownKeys, table: Table, path: KeyPath, value: Any) -> _Meant:
    """Another program's name for a key, a misspelt key of the table, or a key below the same item of an array."""
    at, key = path[:-1], str(path[-1])
    item = _item_around(at)
    close = None if key in known.other_names.others else _find_close(table, value_at(known.values, at), key, value)
    named = _translate(known, path, value)
    if named and not (len(named) == 1 and named[0] == (*at, close)):
        return _Meant(named, f"its name here is {' or '.join(map(dotted, named))}")
    places = [] if isinstance(value, dict) else list(_list_places(known, at))
    is_elsewhere = any(place.key[-1] == key for place in places)
    is_slip = close is not None and _is_slip(key, close)
    inside = [place for place in places if item and place.key[: len(item)] == item]
    homes = [place for place in inside if place.key[-1] == key]
    if homes and not is_slip:
        near = _choose_nearest(homes, at, value)
        return _Meant(near, f"it belongs in {_name_tables(near)}")
    if close:
        is_certain = is_slip and not named and (bool(item) or not is_elsewhere)
        is_certain = is_certain and has_type(table.fields[close].shape, value)
        return _Meant(((*at, close),), f"did you mean {close}?", is_certain)
    far = nearest(key, {str(place.key[-1]) for place in inside})
    if far is None:
        return _Meant()
    near = _choose_nearest([place for place in inside if place.key[-1] == far], at, value)
    return _Meant(near, f"did you mean {_list_some(map(dotted, near))}?")


def _find_hint(known: KnownKeys, path: KeyPath, value: Any) -> str:
    """What to write instead, for a name that another program has; for a table, what its keys are here. "" for none."""
    if not isinstance(value, dict):
        found = (known.other_names.hints.get(name) for name in _spellings(path) if _may_name(path, ()))
        return next((hint for hint in found if hint), "")
    if len(path) > 1 or nearest(str(path[-1]), known.root.fields) or str(path[-1]) in known.other_names.tables:
        return ""
    moved = {key: _translate(known, (*path, key), below) for key, below in value.items()}
    listed = [f"{key} is {' or '.join(map(dotted, places))}" for key, places in moved.items() if places]
    return f"here {', '.join(listed)}" if listed else ""


def _translate(known: KnownKeys, path: KeyPath, value: Any) -> tuple[KeyPath, ...]:
    """Our keys for the name that another program has for a setting; () for none."""
    if isinstance(value, dict):
        name = known.other_names.tables.get(_spellings(path)[0]) if len(path) == 1 else None
        return (tuple(name.split(".")),) if name and _find_field(known.root, tuple(name.split("."))) else ()
    names = next((found for name in _spellings(path) if (found := known.other_names.names.get(name))), ())
    places = tuple(place for place in (tuple(name.split(".")) for name in names) if _find_field(known.root, place))
    return tuple(place for place in places if place != path and _may_name(path, place))


def _spellings(path: KeyPath) -> tuple[str, str]:
    """A key as the table of other names has it: with its table, and alone."""
    plain = str(path[-1]).lower().replace("-", "_")
    return dotted((*path[:-1], plain)), plain


def _may_name(path: KeyPath, place: KeyPath) -> bool:
    """Whether a name in the table of `path` may mean a setting of the whole run at `place`."""
    if _item_around(path[:-1]):
        return False
    return len(path) == 1 or path[0] not in _APART or path[:1] == place[:1]


def _find_field(root: Table, place: KeyPath) -> Field | None:
    """The field for a key outside arrays."""
    shape: Shape | None = root
    item = None
    for part in place:
        item = shape.fields.get(str(part)) if isinstance(shape, Table) else None
        shape = item.shape if item else None
    return item


def _find_close(table: Table, written: Any, key: str, value: Any) -> str | None:
    """The key of the table that `key` misspells or shortens; of equals the only one that is not set."""
    names = {name: _distance(key, name) for name, item in table.fields.items() if _may_hold(item.shape, value)}
    near = {name: distance for name, distance in names.items() if distance is not None}
    least = [name for name, distance in near.items() if distance == min(near.values())]
    unset = [name for name in least if name not in written]
    return least[0] if len(least) == 1 else unset[0] if len(unset) == 1 else None


def _distance(key: str, name: str) -> int | None:
    """The letters that differ; None for another word. A word that only begins a name is further than a misspelling.

    A quarter of the letters may differ: with a third, weight_dtype would be weight_decay.
    """
    plain = key.lower().replace("-", "_")
    most = max(1, min(len(plain), len(name)) // 4)
    if abs(len(plain) - len(name)) <= most and (distance := edit_distance(plain, name)) <= most:
        return distance
    return _FAR if len(plain) >= _WORD and name.startswith(f"{plain}_") else None


def _is_slip(key: str, close: str) -> bool:
    """Whether `key` is `close` without doubt: few letters differ in a long name, and seldom the first one."""
    distance = edit_distance(key.lower().replace("-", "_"), close)
    return 4 * distance <= len(key) and (key[0].lower() == close[0] or (distance == 1 and len(key) >= _LONG))


def _may_hold(shape: Shape, value: Any) -> bool:
    """Whether a value of this kind may be meant for a key: a table is not meant for a number."""
    is_table = isinstance(shape, Table | Map | Scalars) or (isinstance(shape, Array) and isinstance(shape.item, Table))
    has_tables = isinstance(value, dict) or (isinstance(value, list) and any(isinstance(one, dict) for one in value))
    if has_tables or is_table:
        return has_tables and is_table
    return isinstance(shape, Array) or not isinstance(value, list)


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
    """Every key that is no table. In an array: those in the item that `at` is in, else in the first two items.

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
