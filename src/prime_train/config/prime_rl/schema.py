"""What one generation of prime-rl allows, read from its table when a file needs it. Judges nothing.

A table is loaded when a file of that generation is read, and a row is parsed when a file has its key.
"""

# pathlib takes longer to import than this takes to run.
# ruff: noqa: PTH122

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from typing import Any, NamedTuple

from prime_train.config.prime_rl.features import Features
from prime_train.core.errors import UserError
from prime_train.core.paths import cache_path, shipped
from prime_train.toml.document import KeyPath

ANY_TAG = ""  # stands for a tag that the file sets to something unknown


class Row(NamedTuple):
    """One legal key. At most one of `table`, `array` and `map` names the table below it."""

    words: tuple[str, ...] = ()  # whole, number, text, flag, none, any, list[...], map, map[...]
    choices: tuple[str, ...] = ()  # strings that are legal beside what `words` allow
    bounds: tuple[tuple[str, float], ...] = ()
    default: Any = None  # [] for a table or a list that is there unasked
    required: bool = False
    when: tuple[str, ...] = ()  # the members of the union that know it; () = all
    aliases: tuple[str, ...] = ()
    table: str = ""
    array: str = ""
    map: str = ""

    @property
    def optional(self) -> bool:
        return "none" in self.words


class TableRows:
    """The legal keys of one table. `tag` is the key that says which member of a union it is.

    `open` says whether unknown keys pass; or names the members for which they do.
    """

    def __init__(self, rows: Mapping[str, Any]) -> None:
        about = rows.get(".", {})
        opened = about.get("open", False)
        self.rows = rows
        self.tag: str = about.get("tag", "")
        self.open: bool | tuple[str, ...] = tuple(opened) if isinstance(opened, list) else opened
        self._parsed: dict[str, Row | None] = {}
        self._aliases: dict[str, str] | None = None

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

    def alias(self, name: str) -> str | None:
        """The key that `name` is another word for."""
        return self._words().get(name)

    def spellings(self) -> Iterator[str]:
        """Every word that a file may have: the names, and the other words for them."""
        yield from self.names()
        yield from self._words()

    def _words(self) -> dict[str, str]:
        if self._aliases is None:
            listed = [(key, raw) for key, raw in self.rows.items() if isinstance(raw, dict)]
            self._aliases = {alias: key for key, raw in listed for alias in raw.get("aliases", ())}
        return self._aliases

    def member(self, values: Mapping[str, Any]) -> str | None:
        """Which member of the union a table of values is; None where it is no union, ANY_TAG where none is known."""
        if not self.tag:
            return None
        said = values.get(self.tag)
        row = self.row(self.tag)
        if said is None:
            said = row.default if row else None
        return said if isinstance(said, str) and row is not None and said in row.choices else ANY_TAG

    def is_open(self, member: str | None) -> bool:
        return self.open is True or (isinstance(self.open, tuple) and member in (*self.open, ANY_TAG))

    def required(self, member: str | None) -> Iterator[str]:
        for name, raw in self.rows.items():
            if isinstance(raw, dict) and raw.get("required"):
                when = raw.get("when")
                if when is None or member in when:
                    yield name


def _value(value: Any) -> Any:
    if isinstance(value, list):
        return tuple(_value(item) for item in value)
    return value


class Generation(NamedTuple):
    """One generation's schema. `feeds`: root -> RunSpec field -> the keys that set it; the first one in a file counts.

    `first_release` is the version of prime-rl from which the table holds, "" for the oldest generation.
    """

    name: str
    source: str
    as_of: str
    first_release: str
    features: Features
    roots: Mapping[str, str]
    feeds: Mapping[str, Mapping[str, list[str]]]
    tables: Mapping[str, Mapping[str, Any]]
    opened: dict[str, TableRows]  # those that were asked for

    @classmethod
    def of(cls, table: Mapping[str, Any], name: str = "") -> Generation:
        """The schema of a table as `table.compact` makes it and the files hold it. A file's name comes first."""
        name = name or table["generation"]
        # Tables that users imported before features existed have `versions` and take their neighbour's features.
        first_release = table["first_release"] if "first_release" in table else table["versions"][0]
        features = Features.of(table["features"]) if "features" in table else _shipped_neighbour(name).features
        given: dict[str, Any] = {key: table[key] for key in ("source", "as_of", "roots", "feeds", "tables")}
        return cls(name=name, first_release=first_release, features=features, opened={}, **given)

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
        """The row of a key path; numbers address array elements. None where there is no such key."""
        table: TableRows | None = self.root(root)
        row: Row | None = None
        inside = False  # of an array or a map: the next part is an index or a free name
        for part in path:
            if inside:
                inside = False
                continue
            if table is None or isinstance(part, int):
                return None
            row = table.row(part) or table.row(table.alias(part) or "")
            if row is None:
                return None
            table = self.below(row)
            inside = bool(row.array or row.map)
        return row

    def paths(self, root: str) -> Iterator[tuple[KeyPath, Row]]:
        """Every key that has one address, with its row: array elements and free names have none."""
        stack: list[tuple[KeyPath, TableRows]] = [((), self.root(root))]
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
    """Generation -> its file. A table that the user keeps takes the place of a shipped one of that name."""
    return {**_in(shipped("prime_rl")), **_in(cache_path("prime_rl"))}


def _in(folder: str) -> dict[str, str]:
    try:
        names = os.listdir(folder)
    except OSError:  # nothing is kept
        return {}
    return {os.path.splitext(name)[0]: f"{folder}/{name}" for name in names if name.endswith(".json")}


def generations() -> tuple[str, ...]:
    """The generations that have a table, oldest first: the name of a generation is its year and month."""
    return tuple(sorted(tables()))


def newest() -> str:
    return generations()[-1]


def generation_before(name: str, among: Iterable[str]) -> str:
    """The newest of the generations that is not after `name`; the oldest where all are after it."""
    known = sorted(among)
    return max((one for one in known if one <= name), default=known[0])


def shipped_generations() -> tuple[Generation, ...]:
    """The shipped tables, oldest first."""
    return tuple(_read(path, name) for name, path in sorted(_in(shipped("prime_rl")).items()))


def _shipped_neighbour(name: str) -> Generation:
    tables = _in(shipped("prime_rl"))
    neighbour = generation_before(name, tables)
    return _read(tables[neighbour], neighbour)


def load(name: str) -> Generation:
    """The table of a generation. Raises UserError where one that the user keeps cannot be read."""
    return _read(tables()[name], name)


@cache
def _read(path: str, name: str) -> Generation:
    try:
        with open(path, encoding="utf-8") as file:
            return Generation.of(json.load(file), name)
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        if path.startswith(shipped()):
            raise
        raise UserError(
            what="no table of prime-rl can be read there",
            where=path,
            why=f"{type(error).__name__}: {error}",
            fix="prime-train schema import --python PATH --keep writes it anew; else take the file away",
        ) from None
