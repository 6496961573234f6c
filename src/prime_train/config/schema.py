"""The legal keys of a config format as values: tables, fields, types and bounds. Judges nothing.

`table_of` makes the tables of run.toml from the dataclasses of the RunSpec. The classes are named tuples, because each
lint creates them at its start, and one of `dataclasses` takes seven times longer.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from types import UnionType
from typing import Annotated, Any, Literal, NamedTuple, Union, get_args, get_origin, get_type_hints

from prime_train.spec.annotations import Doc, Elsewhere, Key, Limit, MinLen

MISSING = dataclasses.MISSING  # the default of a required key


class Number(NamedTuple):
    """An integer; if `whole` is false, any finite number. `words`: strings that are legal too."""

    whole: bool
    bounds: tuple[Limit, ...] = ()
    words: tuple[str, ...] = ()


class Text:
    """A string."""


class Flag:
    """true or false."""


class Choice(NamedTuple):
    """One of a few strings."""

    values: tuple[str, ...]


class Array(NamedTuple):
    """A list of `item`s, at least `min_len` of them."""

    item: Shape
    min_len: int = 0


class Field(NamedTuple):
    """One key of a table. `name` is the RunSpec's, `key` the file's. A required one has the default MISSING."""

    name: str
    key: str
    shape: Shape
    doc: str
    default: Any

    @property
    def required(self) -> bool:
        return self.default is MISSING


class Table(NamedTuple):
    """The legal keys of a table, by their names in the file. `make` builds the value from RunSpec field names."""

    fields: Mapping[str, Field]
    make: Callable[..., Any]


class Scalars:
    """A table of any keys, each a string, a number, true or false."""


Path = tuple[str, ...]
Shape = Number | Text | Flag | Choice | Array | Scalars | Table


def walk_fields(table: Table, key: Path = (), name: Path = ()) -> Iterator[tuple[Path, Path, Field]]:
    """(key path, path in the RunSpec, field) of every field, also of the tables below, but not of array elements."""
    for item in table.fields.values():
        here = (*key, item.key), (*name, item.name)
        yield *here, item
        if isinstance(item.shape, Table):
            yield from walk_fields(item.shape, *here)


@cache
def table_of(cls: type[Any]) -> Table:
    """The table of a dataclass. Raises TypeError for an annotation that TOML has no type for."""
    hints = get_type_hints(cls, include_extras=True)
    table_fields: dict[str, Field] = {}
    for item in dataclasses.fields(cls):
        name = item.name
        if any(isinstance(note, Elsewhere) for note in getattr(hints[name], "__metadata__", ())):
            continue
        shape, metadata = _shape(hints[name])
        key = next((note.name for note in metadata if isinstance(note, Key)), name)
        doc = next((note.text for note in metadata if isinstance(note, Doc)), "")
        table_fields[key] = Field(name, key, shape, doc, item.default)
    return Table(table_fields, cls)


def _shape(hint: Any) -> tuple[Shape, tuple[Any, ...]]:
    """(shape, metadata) of an annotation. `X | None` is X, because TOML has no null: an unset key is None.

    `int | Literal["auto"]` is a number with a word.
    """
    metadata: tuple[Any, ...] = ()
    words: tuple[str, ...] = ()
    while True:
        origin, arguments = get_origin(hint), get_args(hint)
        if origin is Annotated:
            hint, metadata = arguments[0], (*arguments[1:], *metadata)
        elif origin is Union or origin is UnionType:
            (hint, *literal) = (argument for argument in arguments if argument is not type(None))
            words = tuple(word for one in literal for word in get_args(one))
        else:
            shape = _bare_shape(hint, origin, arguments, metadata)
            return (shape._replace(words=words) if isinstance(shape, Number) else shape), metadata


def _bare_shape(hint: Any, origin: Any, arguments: tuple[Any, ...], metadata: tuple[Any, ...]) -> Shape:
    if hint is bool:
        return Flag()
    if hint is int or hint is float:
        return Number(hint is int, tuple(note for note in metadata if isinstance(note, Limit)))
    if hint is str:
        return Text()
    if origin is Literal:
        return Choice(tuple(arguments))
    if origin is Mapping:
        return Scalars()
    if origin is tuple and arguments[1:] == (Ellipsis,):
        min_len = next((note.length for note in metadata if isinstance(note, MinLen)), 0)
        return Array(_shape(arguments[0])[0], min_len)
    return table_of(hint)
