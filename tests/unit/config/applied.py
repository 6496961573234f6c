"""Applies a list of differences, the inverse of `diff`: it shows that the list has all of them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from prime_train.config.differences import Difference, Table, is_tables, name_entries
from prime_train.toml.document import key_path

_MISSING: Any = object()


class _Changes:
    """The differences at a key and below it."""

    def __init__(self) -> None:
        self.own: Difference | None = None
        self.below: dict[str, _Changes] = {}


def apply(values: Table, differences: Iterable[Difference]) -> dict[str, Any]:
    """The other table: `apply(before, diff(before, after))` has the values of `after`."""
    root = _Changes()
    for difference in differences:
        node = root
        for part in key_path(difference.key, {}):
            node = node.below.setdefault(str(part), _Changes())
        node.own = difference
    changed = _change(values, root)
    return {} if changed is _MISSING else changed


def _change(value: Any, changes: _Changes) -> Any:
    own = changes.own
    if _is_of_entries(value, changes):
        return _change_list(value, changes)
    if not changes.below:
        return value if own is None else _MISSING if own.after is None else own.after
    table = dict(value) if isinstance(value, Mapping) else {}
    for name, below in changes.below.items():
        table[name] = _change(table.get(name, _MISSING), below)
    table = {name: below for name, below in table.items() if below is not _MISSING}
    if table or own is None:
        return table or _MISSING
    return _MISSING if own.after is None else own.after


def _is_of_entries(value: Any, changes: _Changes) -> bool:
    """Whether the changes are for a list with tables: for its entries, or for their order."""
    if is_tables(value):
        return bool(changes.below) if changes.own is None else _is_labels(changes.own.before)
    is_added = changes.own is not None and bool(changes.below) and _is_labels(changes.own.after)
    return is_added and (value is _MISSING or value == ())


def _is_labels(value: Any) -> bool:
    return isinstance(value, tuple) and bool(value) and all(isinstance(name, str) for name in value)


def _change_list(value: Any, changes: _Changes) -> Any:
    own, entries = changes.own, value if is_tables(value) else ()
    if own is not None and own.after is None:
        return _MISSING
    before: Any = () if own is None else own.before or ()
    if own is None:  # the labels are those of both sides: a position where a change names it, else the name
        names = enumerate(name_entries(entries))
        before = tuple(name if name and str(at) not in changes.below else str(at) for at, name in names)
    had = dict(zip(before, entries, strict=True))
    order: Any = before if own is None else own.after
    return tuple(_change(had.get(label, _MISSING), changes.below.get(label, _Changes())) for label in order)
