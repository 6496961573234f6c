"""Reads a prime-rl file that has the keys of an earlier one. Only what reads the differing values is done again.

The files of a folder often differ in a few values. In a file without faults a value has these effects: it may be a
fault, it is counted for the choice of the generation, and validators and RunSpec fields read it. If a value may have
another effect (the tag of a union, a key that no table lists, a fault), `EarlierFiles.read` returns None, and the file
is read from the start. tests/config/prime_rl/test_alike.py compares the two ways.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from prime_train.config.parsed_config import Earlier, Reading
from prime_train.config.prime_rl.detect_generation import find_root_words, rows_counted
from prime_train.config.prime_rl.field_values import Source, known_of
from prime_train.config.prime_rl.run import fields_of, renew
from prime_train.config.prime_rl.schema import Generation, Row, TableRows
from prime_train.config.prime_rl.validate import Walk
from prime_train.config.prime_rl.validate_value import NONE, fits, value_fault
from prime_train.config.prime_rl.validators import Check, any_fires, keys_read
from prime_train.toml.document import Document, KeyPath, is_above_or_below, value_at

_MAX_KEPT = 100  # files with different keys
_MAX_DIFFERENT = 20  # values; with more, reading from the start is as fast


class _Difference(NamedTuple):
    """A key with its values in two files."""

    key: KeyPath
    before: Any
    after: Any


class _Effect(NamedTuple):
    """What the value of one key has an effect on."""

    row: Row
    counted: tuple[tuple[Row, bool], ...]  # the rows, of all generations, that count the value; whether it fits each
    fields: tuple[str, ...]
    checks: tuple[Check, ...]


class _File(Earlier):
    """A file without faults, and what each of its values has an effect on, found when it is first asked for."""

    def __init__(self, reading: Reading, walk: Walk) -> None:
        super().__init__(reading)
        self.walk = walk
        self.effects: dict[KeyPath, _Effect | None] = {}
        self._reads: list[tuple[Check, frozenset[KeyPath]]] | None = None
        self._known: dict[str, Any] | None = None

    def source(self, values: Mapping[str, Any]) -> Source:
        return Source(self.walk.generation, self.walk.root, values, {}, frozenset())

    @property
    def known(self) -> Mapping[str, Any]:
        if self._known is None:
            self._known = known_of(self.source(self.walk.values))[1]
        return self._known

    def effect(self, key: KeyPath) -> _Effect | None:
        """The effect of a value; None if it may have another one than those of `_Effect`."""
        if key not in self.effects:
            self.effects[key] = self._find(key)
        return self.effects[key]

    def _find(self, key: KeyPath) -> _Effect | None:
        row = _plain_row(self.walk.generation, self.walk.root, key)
        if row is None or (rows := rows_counted(self.walk.values, key)) is None:
            return None
        if self._reads is None:
            self._reads = list(keys_read(self.walk))
        checks = tuple(check for check, keys in self._reads if any(is_above_or_below(key, read) for read in keys))
        value = value_at(self.walk.values, key)
        counted = tuple((row, fits(row, value)) for row in rows)
        return _Effect(row, counted, fields_of(self.source(self.walk.values), key), checks)

    def read(self, document: Document, different: list[_Difference]) -> Reading | None:
        """The reading of a file that differs from this one in these values; None if one has another effect."""
        fields: dict[str, None] = {}
        checks: dict[int, Check] = {}
        for key, before, value in different:
            effect = self.effect(key)
            if effect is None or not _same_effect(effect, key, before, value):
                return None
            fields |= dict.fromkeys(effect.fields)
            checks |= {id(check): check for check in effect.checks}
        theirs = {key: value for key, value in document.values.items() if key in self.walk.values}
        walk = Walk(self.walk.generation, self.walk.root, theirs, self.walk.whole)
        if different and any_fires(walk, checks.values()):
            return None
        run = self.reading.run
        if fields and run is not None:
            run = renew(run, self.source(theirs), self.known, fields)
        return self.reading._replace(document=document, run=run, alike=self)


class EarlierFiles:
    """The files that a command has read, one for each set of keys."""

    def __init__(self) -> None:
        self._files: dict[Any, _File] = {}
        self._unlike: Document | None = None  # the last file with the keys of one of these that could not be read by it

    def __len__(self) -> int:
        return len(self._files)

    def keep(self, reading: Reading, walk: Walk, requested: str | None) -> None:
        """Keeps a file whose walk found no fault and no alias, and that no validator refuses."""
        if reading.document is self._unlike:  # what is known of the effects would be lost
            return
        if len(self._files) >= _MAX_KEPT:
            self._files.clear()
        self._files[_kind(reading.document, requested)] = _File(reading, walk)

    def read(self, document: Document, requested: str | None) -> Reading | None:
        """The reading of a file that differs from one of these in values alone; None if there is none, or a value has
        an effect that is not known here. It names that file, and shares the equal parts of its RunSpec."""
        if document.fault is not None or (like := self._files.get(_kind(document, requested))) is None:
            return None
        different = _differences(like.reading.document.values, document.values)
        if different is None or len(different) > _MAX_DIFFERENT:
            return None
        reading = like.read(document, different)
        self._unlike = document if reading is None else None
        return reading


def _same_effect(effect: _Effect, key: KeyPath, before: Any, value: Any) -> bool:
    """Whether a value is legal as the one before, and counted as it."""
    if NONE in (before, value) or value_fault(effect.row, value, key) is not None:
        return False
    return all(fits(row, value) is fitted for row, fitted in effect.counted)


def _kind(document: Document, requested: str | None) -> Any:
    """Files with equal kinds are probably alike, and their paths name the same roots."""
    tables = tuple((key, tuple(value) if isinstance(value, dict) else None) for key, value in document.values.items())
    parts = document.path.replace("\\", "/").removesuffix(".toml").split("/")
    return requested, tables, tuple(map(find_root_words, parts))


def _differences(before: Any, after: Any) -> list[_Difference] | None:
    """The values that differ; None if keys, lengths or types differ.

    An array without tables is one value. It keeps its own stack, because dotted keys nest deeper than Python's limit.
    """
    found: list[_Difference] = []
    stack: list[tuple[KeyPath, Any, Any]] = [((), before, after)]
    while stack:
        at, one, other = stack.pop()
        if len(one) != len(other) or (isinstance(one, dict) and list(one) != list(other)):
            return None
        for key, value in one.items() if isinstance(one, dict) else enumerate(one):
            now = other[key]
            if type(value) is not type(now):
                return None
            if isinstance(value, dict) or (isinstance(value, list) and _has_tables(value, now)):
                stack.append(((*at, key), value, now))
            elif value != now or ((not value or isinstance(value, list)) and repr(value) != repr(now)):  # 0.0 == -0.0
                if isinstance(value, list) and len(value) != len(now):
                    return None
                found.append(_Difference((*at, key), value, now))
    return found


def _has_tables(*arrays: list[Any]) -> bool:
    return any(isinstance(item, dict | list) for array in arrays for item in array)


def _plain_row(generation: Generation, root: str, key: KeyPath) -> Row | None:
    """The row of a key that holds a plain value, and is neither the tag of a union nor in a table of unlisted keys."""
    table: TableRows | None = generation.root(root)
    row: Row | None = None
    tag, inside = "", False
    for part in key:
        if inside:  # an array or a map, where this part is an index or a free name
            inside, row = False, None
            continue
        if table is None or isinstance(part, int) or (row := table.row(part)) is None:
            return None
        tag, table, inside = table.tag, generation.below(row), bool(row.array or row.map)
    return row if table is None and tag != key[-1] else None
