"""Applies a patch to a TOML text and keeps its comments and layout. Writes no file, judges no value.

tomli parses the result of each step: an edit must change exactly the values in the patch, else it is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import tomli

from prime_train.core.findings import Patch
from prime_train.toml.document import KeyPath, dotted, key_path, patched, to_toml, value_at
from prime_train.toml.edit_ops import (
    Cut,
    cut_statement,
    insert,
    remove,
    rename_headers,
    rename_key,
    replace_value,
    statements_below,
)


class EditRefused(Exception):
    """The patch cannot be applied to this text. The message has the reason."""


def edited(text: str, patch: Patch) -> str:
    """The text with every key of the patch set, or deleted if its value is None. Raises EditRefused.

    A deleted key whose value is set under a new key is moved with its comments, and keeps its notation. So is a table
    whose values are all set under a new key, some of them under new names.
    """
    moves, others = _moves(_values(text), patch)
    for old, new in moves:
        text = _move_key(text, old, new)
    for old, new in _find_reshapes(_values(text), others):
        try:
            text = _reshape(text, old, new, others[new])
        except EditRefused:
            continue
        del others[old], others[new]
    for key, value in others.items():
        step = _remove(key) if value is None else _set(key, value)
        text = _step(text, {key: value}, step)
    return text


def _values(text: str) -> dict[str, Any]:
    try:
        return tomli.loads(text)
    except (ValueError, RecursionError) as error:
        raise EditRefused(f"the text is not TOML: {error}") from None


def _moves(values: Mapping[str, Any], patch: Patch) -> tuple[list[tuple[str, str]], dict[str, Any]]:
    """(pairs of old and new name, the other changes of the patch)."""
    others = dict(patch)
    moves: list[tuple[str, str]] = []
    for old in [key for key, value in patch.items() if value is None]:
        value = _at(values, old)
        for new, wanted in list(others.items()):
            if wanted is not None and _same(wanted, value) and _at(values, new) is None:
                moves.append((old, new))
                del others[old], others[new]
                break
    return moves, others


def _move_key(text: str, old: str, new: str) -> str:
    return _step(text, {old: None, new: _at(_values(text), old)}, lambda text: _move(text, old, new))


def _find_reshapes(values: Mapping[str, Any], patch: Patch) -> list[tuple[str, str]]:
    """(old, new) of the tables, and arrays of them, whose values are all set under a new key."""
    found: list[tuple[str, str]] = []
    for old in [key for key, value in patch.items() if value is None]:
        leaves = [value for path, value in _leaves(_at(values, old)) if path]
        for new, wanted in patch.items():
            free = wanted is not None and _at(values, new) is None and all(new != taken for _, taken in found)
            if leaves and free and isinstance(wanted, dict | list):
                held = [value for path, value in _leaves(wanted) if path]
                if all(any(_same(value, one) for one in held) for value in leaves):
                    found.append((old, new))
                    break
    return found


def _reshape(text: str, old: str, new: str, wanted: Any) -> str:
    """The text with a table moved as it is, then each value in it renamed, added or removed, one by one."""
    text = _move_key(text, old, new)
    target = key_path(new, _values(text))
    before, after = dict(_leaves(_at(_values(text), new))), dict(_leaves(wanted))
    gone = [path for path, value in before.items() if path not in after or not _same(after[path], value)]
    come = [path for path, value in after.items() if path not in before or not _same(before[path], value)]
    for path in gone:
        places = [one for one in come if _same(after[one], before[path]) and one not in before]
        if not places:
            raise EditRefused(f"{dotted((*target, *path))} has no place in {new}")
        to = next((one for one in places if one[-1] == path[-1]), places[0])
        come.remove(to)
        text = _step(
            text,
            {dotted((*target, *path)): None, dotted((*target, *to)): before[path]},
            lambda t: _move_below(t, (*target, *path), (*target, *to)),  # noqa: B023
        )
    for path in come:
        key = dotted((*target, *path))
        text = _step(text, {key: after[path]}, _set(key, after[path]))
    for path in _empty_tables(_at(_values(text), new), wanted):
        key = dotted((*target, *path))
        text = _step(text, {key: None}, _remove(key))
    return text


def _move_below(text: str, source: KeyPath, target: KeyPath) -> Iterator[str | None]:
    yield rename_key(text, source, target, dots=True)
    yield from _move(text, dotted(source), dotted(target))


def _leaves(value: Any, at: KeyPath = ()) -> Iterator[tuple[KeyPath, Any]]:
    """(key path, value) of everything below a table or an array of tables; of other values, the value itself."""
    if isinstance(value, dict):
        for name, below in value.items():
            yield from _leaves(below, (*at, name))
    elif isinstance(value, list) and value and all(isinstance(item, dict) for item in value):
        for number, item in enumerate(value):
            yield from _leaves(item, (*at, number))
    else:
        yield at, value


def _empty_tables(value: Any, wanted: Any, at: KeyPath = ()) -> Iterator[KeyPath]:
    """The tables that hold nothing, and that the wanted value does not have."""
    if value == {} and at and value_at(wanted, at) is None:
        yield at
    below = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for part, inside in below:
        yield from _empty_tables(inside, wanted, (*at, part))


def _step(text: str, patch: Patch, ways: Callable[[str], Iterator[str | None]]) -> str:
    """The result of the first way that changes exactly the values of the patch."""
    values = _values(text)
    try:
        wanted = _without_empty(patched(values, patch), patch)
    except (AttributeError, IndexError, TypeError):
        raise EditRefused(f"{', '.join(patch)} is below a value that is not a table") from None
    for result in ways(text):
        if result is None:
            continue
        try:
            got = tomli.loads(result)
        except (ValueError, RecursionError):
            continue
        if _same(_without_empty(got, patch), wanted):
            return result
    raise EditRefused(f"{', '.join(patch)} cannot be written in this layout")


def _move(text: str, old: str, new: str) -> Iterator[str | None]:
    values = _values(text)
    source, target = key_path(old, values), key_path(new, values)
    yield rename_key(text, source, target)
    yield rename_headers(text, source, target)
    yield _move_statements(text, source, target)
    yield from _set(new, _at(values, old))(remove(text, source))


def _move_statements(text: str, source: KeyPath, target: KeyPath) -> str | None:
    result: str | None = text
    for path in statements_below(text, source):
        piece = cut_statement(result, path) if result is not None else None
        if piece is None:
            return None
        result = insert(piece.text, (*target, *path[len(source) :]), piece)
    return result


def _remove(key: str) -> Callable[[str], Iterator[str | None]]:
    def ways(text: str) -> Iterator[str | None]:
        yield remove(text, key_path(key, _values(text)))

    return ways


def _set(key: str, value: Any) -> Callable[[str], Iterator[str | None]]:
    def ways(text: str) -> Iterator[str | None]:
        values = _values(text)
        path = key_path(key, values)
        try:
            written = to_toml(value)
        except TypeError as error:
            raise EditRefused(str(error)) from None
        yield replace_value(text, path, written)
        if path[0] not in values and isinstance(value, Mapping) and value:
            yield _as_table(text, path, value)
        yield insert(text, path, Cut(text, written, "", ()))
        yield insert(remove(text, path), path, Cut(text, written, "", ()))

    return ways


def _as_table(text: str, path: KeyPath, value: Mapping[str, Any]) -> str | None:
    """The text with a new [table], and one for each table below it; arrays stay on one line."""
    result: str | None = text
    plain = [(name, below) for name, below in value.items() if not isinstance(below, Mapping) or not below]
    tables = [(name, below) for name, below in value.items() if isinstance(below, Mapping) and below]
    for name, below in plain:
        result = insert(result, (*path, name), Cut(result, to_toml(below), "", ())) if result is not None else None
    for name, below in tables:
        result = _as_table(result, (*path, name), below) if result is not None else None
    return result


def _at(values: Mapping[str, Any], key: str) -> Any:
    """The value of a dotted key; None if it is missing, because TOML has no null."""
    return value_at(values, key_path(key, values))


def _without_empty(values: dict[str, Any], patch: Patch) -> dict[str, Any]:
    """Without the tables that a deletion leaves empty, because only some layouts keep them."""
    for key in [key for key, value in patch.items() if value is None]:
        path = key_path(key, values)
        for length in range(len(path) - 1, 0, -1):
            around, name = value_at(values, path[: length - 1]), path[length - 1]
            if isinstance(around, dict) and around.get(str(name)) == {}:
                del around[str(name)]
    return values


def _same(a: Any, b: Any) -> bool:
    """Whether value and type are equal: TOML distinguishes 1, 1.0 and true. nan equals nan."""
    if isinstance(a, dict) and isinstance(b, dict):
        return a.keys() == b.keys() and all(_same(a[key], b[key]) for key in a)
    if isinstance(a, list | tuple) and isinstance(b, list | tuple):
        return len(a) == len(b) and all(_same(x, y) for x, y in zip(a, b, strict=True))
    return type(a) is type(b) and (a == b or (a != a and b != b))
