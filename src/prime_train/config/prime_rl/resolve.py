"""Resolves the values of a prime-rl file: shared keys reach each side, and an unset key has its default. Pure.

Source: prime-rl's utils/validation.py, propagate_shared_fields; in 2026-01 the auto_setup methods of rl.py.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from functools import cache
from typing import Any, NamedTuple

from prime_train.config import schema
from prime_train.config.prime_rl.schema import SchemaGeneration
from prime_train.config.prime_rl.validate_value import NONE, convert
from prime_train.config.schema import Field, Table, choices, may_be, table_below
from prime_train.toml.document import KeyPath, value_at

Shared = Iterable[tuple[str, list[str]]]


class Conflict(NamedTuple):
    """A shared key and the key of one side, with different values."""

    shared: KeyPath
    side: KeyPath


class Filled(NamedTuple):
    """The values with the shared keys on each side.

    `origin`: a key that was filled -> the key that the file sets. `shared`: those of "fills", whose value the side's
    class validates.
    """

    values: dict[str, Any]
    origin: dict[KeyPath, KeyPath]
    conflicts: list[Conflict]
    shared: dict[KeyPath, KeyPath]


def fill(values: Mapping[str, Any], shared: Mapping[str, Shared]) -> Filled:
    """The values after each shared key was given to the sides. `shared` is that of one root in a validators file.

    "wins" and "overwrites" replace the value of a side, "fills" and "follows" do not. "enables" creates a table on
    each side. Only "fills" leads to a conflict. A side may end in "/" and a name, which is the folder below the shared
    one. "folds", "replaces" and "moves" then give an older key's value to the newer key: "folds" merges tables,
    and "moves" keeps the value of a newer key that is set.
    """
    result = Filled(dict(values), {}, [], {})
    for how in ("wins", "fills", "overwrites", "follows"):
        for key, sides in shared.get(how, ()):
            source = _path(key)
            if source[0] not in result.values or (value := value_at(result.values, source)) is None:
                continue
            for name, slash, below in (side.partition("/") for side in sides):
                side, given = _path(name), f"{value}/{below}" if slash else value
                held = value_at(values, side)
                if how == "fills" and held is not None and held != given:
                    result.conflicts.append(Conflict(source, side))
                if held is None or how in ("wins", "overwrites"):
                    _put(result, side, given, source)
                    result.shared.update({side: source} if how == "fills" and side in result.origin else {})
    for key, sides in shared.get("enables", ()):
        source = _path(key)
        value = value_at(values, source)
        for side in map(_path, sides):
            if (isinstance(value, dict) or value == NONE) and value_at(result.values, side) is None:
                _put(result, side, {} if isinstance(value, dict) else NONE, source)
    for how in ("folds", "replaces", "moves"):
        for older, (newer,) in shared.get(how, ()):
            _replace(result, _path(older), _path(newer), how)
    return result


@cache
def _path(key: str) -> KeyPath:
    return tuple(key.split("."))


def _replace(filled: Filled, older: KeyPath, newer: KeyPath, how: str) -> None:
    """Gives the value of an older key to the newer one."""
    value, held = value_at(filled.values, older), value_at(filled.values, newer)
    if value is None or (held is not None and how == "moves"):
        return
    if how == "folds" and isinstance(value, dict) and isinstance(held, dict):
        for name in value:
            _replace(filled, (*older, name), (*newer, name), how)
    else:
        _set(filled, newer, value, _find_origin(filled.origin, older))


def _find_origin(origin: Mapping[KeyPath, KeyPath], path: KeyPath) -> KeyPath:
    """The key of the file that a value comes from."""
    above = next((path[:end] for end in range(len(path), 0, -1) if path[:end] in origin), ())
    return (*origin[above], *path[len(above) :]) if above else path


def _put(filled: Filled, path: KeyPath, value: Any, source: KeyPath) -> None:
    """Sets one value of a component that the file has: prime-rl fills no other."""
    if isinstance(filled.values.get(str(path[0])), dict):
        _set(filled, path, value, source)


def _set(filled: Filled, path: KeyPath, value: Any, source: KeyPath) -> None:
    """Sets one value. The tables around it are copied, because the file's own must not change."""
    node = filled.values
    for part in path[:-1]:
        below = node.get(str(part), {})
        if not isinstance(below, dict):
            return
        node[str(part)] = dict(below)
        node = node[str(part)]
    node[str(path[-1])] = value
    filled.origin[path] = source


class Held(NamedTuple):
    """The value of a key: None without one, {} for a table that exists by default. `at`: the key that sets it, ()."""

    value: Any
    at: KeyPath


_NO_VALUE = Held(None, ())


class _ResolvedKey(NamedTuple):
    """A key: its raw value, and the table with the keys below it.

    `is_inside`: whether the next part of a path is an index or a free name. `item` is None for the whole file.
    """

    raw: Any
    at: KeyPath
    item: Field | None
    table: Table | None
    is_inside: bool
    is_written: bool


_ANY = Field("", "", schema.Anything(), "", None)


class Undecided(Exception):
    """The value of a key is faulty, or may be set in another file."""


class ResolvedView:
    """The value of each key as prime-rl has it before its validators run. `faulty`: the keys with a fault."""

    def __init__(
        self, generation: SchemaGeneration, root: str, filled: Filled, faulty: Collection[KeyPath] = ()
    ) -> None:
        self._root = generation.roots[root]
        self._filled = filled
        self._faulty = frozenset(faulty)
        self._lengths = {len(key) for key in faulty}
        self._known: dict[KeyPath, Held] = {}
        self._sound: dict[KeyPath, bool] = {}
        self._places: dict[KeyPath, _ResolvedKey | None] = {
            (): _ResolvedKey(filled.values, (), None, self._root, False, True)
        }

    def get(self, path: KeyPath) -> Held:
        """The value of a key. Raises Undecided if it is faulty, or not in a table that the user imported."""
        if path not in self._known:
            self._known[path] = self._find(path)
        return self._known[path]

    def get_sound(self, path: KeyPath) -> Held:
        """The value of a key. Raises Undecided also if it or a table around it has a fault, under any of its names."""
        found = self.get(path)
        if not self._faulty:  # as nearly always
            return found
        if path not in self._sound:
            keys = {key[:length] for key in (path, found.at) for length in self._lengths}
            self._sound[path] = self._faulty.isdisjoint(keys)
        if not self._sound[path]:
            raise Undecided
        return found

    def elements(self, path: KeyPath) -> Iterator[KeyPath]:
        """The paths of the elements of an array or a map."""
        value = self.get(path).value
        if isinstance(value, dict | list):
            yield from ((*path, key) for key in (range(len(value)) if isinstance(value, list) else value))

    def check(self, path: KeyPath) -> None:
        """Raises KeyError if the generation has no such key."""
        table: Table | None = self._root
        inside = False
        for part in path:
            if inside:
                inside = False
                continue
            if table is None or (part not in table.fields and not table.may_be_open):
                raise KeyError(path)
            table, inside = table_below(table.fields.get(str(part), _ANY).shape)

    def _find(self, path: KeyPath) -> Held:
        place = self._place(path)
        if place is None:
            return _NO_VALUE
        at = _find_origin(self._filled.origin, place.at) if place.is_written else ()
        return Held(place.raw if place.item is None else _typed(place.item, place.raw), at)

    def _place(self, path: KeyPath) -> _ResolvedKey | None:
        """Where a key is found. A table is looked up once for all keys in it."""
        if path not in self._places:
            around = self._place(path[:-1])
            self._places[path] = None if around is None else self._step(around, path[-1])
        return self._places[path]

    def _step(self, around: _ResolvedKey, part: str | int) -> _ResolvedKey | None:
        """The place of one key in the table, array or map at `around`; None if it has no value."""
        raw, table = around.raw, around.table
        if raw is None:
            return None
        if around.is_inside:
            return around._replace(raw=raw[part], at=(*around.at, part), is_inside=False)
        if table is None:
            raise Undecided
        name = str(part)
        item = table.fields.get(name)
        if item is None and not table.may_be_open:
            raise Undecided
        if not isinstance(raw, dict):
            return None
        item = item or _ANY
        if item.when and (member := table.member(raw)) and member not in item.when:
            return None
        name = next((each for each in (name, *item.aliases) if each in raw), name)
        if name in raw:
            return _make_place(item, raw[name], (*around.at, name), around.is_written)
        return _make_place(item, _default(item), (), False)


def _make_place(item: Field, raw: Any, at: KeyPath, is_written: bool) -> _ResolvedKey:
    raw = None if raw == NONE and item.optional else raw
    table, is_inside = table_below(item.shape)
    return _ResolvedKey(raw, at, item, table, is_inside and isinstance(raw, dict | list), is_written)


def _default(item: Field) -> Any:
    if item.default != ():
        return list(item.default) if isinstance(item.default, tuple) else item.default
    return {} if may_be(item.shape, Table, schema.Map) else []


def _typed(item: Field, value: Any) -> Any:
    """The value as pydantic reads it. Raises Undecided if pydantic refuses it."""
    if isinstance(value, dict | list) and not may_be(item.shape, Table, schema.Array, schema.Map, schema.Anything):
        raise Undecided
    is_converted = may_be(item.shape, schema.Number, schema.Flag) and not may_be(item.shape, schema.Text)
    if isinstance(value, str) and is_converted and value not in choices(item):
        value = convert(item.shape, value)
        if value is None:
            raise Undecided
    return value
