"""The legal keys of each generation of prime-rl, read from its table. Judges nothing.

A table is loaded only for a file of its generation, and a row is parsed only for a file with its key.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from functools import cache, cached_property
from pathlib import Path
from typing import Any, NamedTuple

from prime_train.config.prime_rl.features import Features
from prime_train.core import outside
from prime_train.core.errors import UserError
from prime_train.core.paths import cache_path, shipped
from prime_train.toml.document import KeyPath

ANY_TAG = ""  # stands for an unknown value of the tag


class Row(NamedTuple):
    """One legal key. At most one of `table`, `array` and `map` names the table below it."""

    words: tuple[str, ...] = ()  # whole, number, text, flag, none, any, list[...], map, map[...]
    choices: tuple[str, ...] = ()  # strings that are legal in addition to `words`
    bounds: tuple[tuple[str, float], ...] = ()
    default: Any = None  # () for a table or a list that exists by default
    factory: bool = False  # whether the default of a union is made late, so that prime-rl takes no tag from it
    required: bool = False
    when: tuple[str, ...] = ()  # the members of the union that have it; () = all
    aliases: tuple[str, ...] = ()
    table: str = ""
    array: str = ""
    map: str = ""

    @property
    def optional(self) -> bool:
        return "none" in self.words


class TableRows:
    """The legal keys of one table. `tag` is the key that selects the member of a union.

    `open`: whether unknown keys are legal, or the members that allow them.
    """

    def __init__(self, rows: Mapping[str, Any]) -> None:
        about = rows.get(".", {})
        opened = about.get("open", False)
        self.rows = rows
        self.tag: str = about.get("tag", "")
        self.open: bool | tuple[str, ...] = tuple(opened) if isinstance(opened, list) else opened
        self._parsed: dict[str, Row | None] = {}
        self._named: dict[str, Row | None] = {}

    def names(self) -> Iterator[str]:
        return (name for name in self.rows if name != ".")

    def row(self, name: str) -> Row | None:
        if name not in self._parsed:
            self._parsed[name] = self._parse(name)
        return self._parsed[name]

    def _parse(self, name: str) -> Row | None:
        raw = self.rows.get(name) if name != "." else None
        if raw is None:
            return None
        if isinstance(raw, str):
            return Row(words=tuple(raw.split("|")))
        fields: dict[str, Any] = {key: _value(value) for key, value in raw.items() if key != "type"}
        return Row(words=tuple(raw["type"].split("|")) if "type" in raw else (), **fields)

    def row_by_any_name(self, name: str) -> Row | None:
        """The row of a key, or of the key that `name` is an alias of."""
        if name not in self._named:
            self._named[name] = self.row(name) or self.row(self._aliases.get(name, ""))
        return self._named[name]

    def alias(self, name: str) -> str | None:
        """The key that `name` is an alias of."""
        return self._aliases.get(name)

    def spellings(self) -> Iterator[str]:
        """All names and aliases."""
        yield from self.names()
        yield from self._aliases

    @cached_property
    def _aliases(self) -> dict[str, str]:
        listed = [(key, raw) for key, raw in self.rows.items() if isinstance(raw, dict)]
        return {alias: key for key, raw in listed for alias in raw.get("aliases", ())}

    def member(self, values: Mapping[str, Any]) -> str | None:
        """The member of the union that `values` belong to; None without a union, ANY_TAG if it is not known."""
        if not self.tag:
            return None
        row = self.row(self.tag)
        member = values.get(self.tag, row.default if row else None)
        return member if isinstance(member, str) and row is not None and member in row.choices else ANY_TAG

    def is_open(self, member: str | None) -> bool:
        return self.open is True or (isinstance(self.open, tuple) and member in (*self.open, ANY_TAG))

    def required(self, member: str | None) -> tuple[str, ...]:
        return tuple(name for name, when in self._required if when is None or member in when)

    @cached_property
    def _required(self) -> list[tuple[str, list[str] | None]]:
        """The keys that a member of the union must have, and these members; None for all."""
        listed = [(name, raw) for name, raw in self.rows.items() if isinstance(raw, dict)]
        return [(name, raw.get("when")) for name, raw in listed if raw.get("required")]


def _value(value: Any) -> Any:
    if isinstance(value, list):
        return tuple(_value(item) for item in value)
    return value


class Generation(NamedTuple):
    """The schema of one generation. `feeds`: root -> RunSpec field -> the keys that set it, the first in a file counts.

    `first_release` is the first version of prime-rl with this schema, "" for the oldest generation.
    """

    name: str
    source: str
    as_of: str
    first_release: str
    features: Features
    roots: Mapping[str, str]
    feeds: Mapping[str, Mapping[str, list[str]]]
    tables: Mapping[str, Mapping[str, Any]]
    opened: dict[str, TableRows]  # the tables that were used
    listed: dict[str, tuple[tuple[KeyPath, Row], ...]]  # root -> `paths`, for files with unknown keys

    @classmethod
    def of(cls, table: Mapping[str, Any], name: str = "") -> Generation:
        """The schema in a table file, as `table.compact` makes it. `name` overrules the name in the file."""
        name = name or table["generation"]
        # Tables that users imported before features existed have `versions`, and use their neighbour's features.
        first_release = table["first_release"] if "first_release" in table else table["versions"][0]
        features = Features.of(table["features"]) if "features" in table else _shipped_neighbour(name).features
        given: dict[str, Any] = {key: table[key] for key in ("source", "as_of", "roots", "feeds", "tables")}
        return cls(
            name=name,
            first_release=first_release,
            features=features,
            opened={},
            listed={},
            **given,
        )

    def table(self, name: str) -> TableRows:
        if name not in self.opened:
            self.opened[name] = TableRows(self.tables[name])
        return self.opened[name]

    def root(self, name: str) -> TableRows:
        return self.table(self.roots[name])

    def below(self, row: Row) -> TableRows | None:
        name = row.table or row.array or row.map
        return self.table(name) if name else None

    def find(self, root: str, path: KeyPath) -> Row | None:
        """The row of a key path, in which numbers are array indices; None if there is no such key."""
        table: TableRows | None = self.root(root)
        row: Row | None = None
        inside = False  # an array or a map, where the next part is an index or a free name
        for part in path:
            if inside:
                inside = False
                continue
            if table is None or isinstance(part, int):
                return None
            row = table.row_by_any_name(part)
            if row is None:
                return None
            table = self.below(row)
            inside = bool(row.array or row.map)
        return row

    def paths(self, root: str) -> tuple[tuple[KeyPath, Row], ...]:
        """(key path, row) of every key, except below arrays and maps."""
        if root not in self.listed:
            self.listed[root] = tuple(self._walk((), self.root(root)))
        return self.listed[root]

    def paths_near(self, root: str, at: KeyPath) -> Iterator[tuple[KeyPath, Row]]:
        """`paths`, and those below each entry of an array or a map that the key path `at` leads through."""
        yield from self.paths(root)
        table: TableRows | None = self.root(root)
        inside = False
        for depth, part in enumerate(at):
            row = None if inside or table is None else table.row_by_any_name(str(part))
            if inside and table is not None:
                yield from self._walk(at[: depth + 1], table)
            elif row is None:
                return
            else:
                table = self.below(row)
            inside = row is not None and bool(row.array or row.map)

    def _walk(self, at: KeyPath, table: TableRows) -> Iterator[tuple[KeyPath, Row]]:
        stack: list[tuple[KeyPath, TableRows]] = [(at, table)]
        while stack:
            at, table = stack.pop()
            for name in table.names():
                row = table.row(name)
                if row is None:
                    continue
                yield (*at, name), row
                if row.table:
                    stack.append(((*at, name), self.table(row.table)))


@cache
def tables() -> dict[str, str]:
    """Generation -> its file. The user's own table overrules a shipped one of the same name."""
    return {**_table_files(shipped("prime_rl")), **_table_files(cache_path("prime_rl"))}


def _table_files(folder: str) -> dict[str, str]:
    """Generation -> its file. A folder that does not exist has none: the user has no tables."""
    return {path.stem: str(path) for path in Path(folder).glob("*.json")}


def generations() -> tuple[str, ...]:
    """The generations with a table, oldest first. The name of a generation is its year and month."""
    return tuple(sorted(tables()))


def newest() -> str:
    return generations()[-1]


@cache
def months() -> tuple[str, ...]:
    """The months from the oldest generation to the newest, such as "2026-02". A table with another name has none."""
    named = [name[:7] for name in generations() if re.match(r"20\d\d-(0[1-9]|1[0-2])", name)]
    if not named:
        return ()
    year, month = (int(part) for part in named[0].split("-"))
    found = []
    while f"{year}-{month:02}" <= named[-1]:
        found.append(f"{year}-{month:02}")
        year, month = (year + 1, 1) if month == 12 else (year, month + 1)
    return tuple(found)


def generation_before(name: str, among: Iterable[str]) -> str:
    """The newest of the generations that is not newer than `name`; the oldest if all are newer."""
    known = sorted(among)
    return max((one for one in known if one <= name), default=known[0])


def shipped_generations() -> tuple[Generation, ...]:
    """The shipped tables, oldest first."""
    return tuple(_read(path, name) for name, path in sorted(_table_files(shipped("prime_rl")).items()))


def _shipped_neighbour(name: str) -> Generation:
    tables = _table_files(shipped("prime_rl"))
    neighbour = generation_before(name, tables)
    return _read(tables[neighbour], neighbour)


def load(name: str) -> Generation:
    """The table of a generation. Raises UserError if a table of the user cannot be read."""
    return _read(tables()[name], name)


@cache
def _read(path: str, name: str) -> Generation:
    try:
        with outside.open_regular(path) as file:
            return Generation.of(json.load(file), name)
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        if path.startswith(shipped()):
            raise
        raise UserError(
            what="the table of prime-rl cannot be read",
            where=path,
            why=f"{type(error).__name__}: {error}",
            fix="prime-train schema import --python PATH --keep writes it again; or delete the file",
        ) from None
