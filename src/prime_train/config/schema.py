"""The legal keys of a config format as values: tables, fields, types and bounds. Judges nothing.

`table_of` makes the tables of run.toml from the dataclasses of the RunSpec, `prime_rl/schema.py` those of prime-rl from
the table of a generation. The classes are named tuples, because each lint creates them at its start, and one of
`dataclasses` takes seven times longer.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from types import MappingProxyType, UnionType
from typing import Annotated, Any, Literal, NamedTuple, Union, get_args, get_origin, get_type_hints

from prime_train.spec.annotations import Doc, Elsewhere, Key, Limit, MinLen
from prime_train.toml.document import KeyPath

ANY_TAG = ""  # stands for an unknown value of a tag


class Number(NamedTuple):
    """An integer; if `whole` is false, any finite number. `words`: strings that are legal too."""

    whole: bool
    bounds: tuple[Limit, ...] = ()
    words: tuple[str, ...] = ()


class Text:
    """A string."""


class Flag:
    """true or false."""


class Anything:
    """A value of any type."""


class OneOf(NamedTuple):
    """One of a few strings."""

    values: tuple[str, ...]


class Array(NamedTuple):
    """A list of `item`s, at least `min_len` of them."""

    item: Shape
    min_len: int = 0


class Map(NamedTuple):
    """A table of any keys, each with an `item`."""

    item: Shape


class Scalars:
    """A table of any keys, each a string, a number, true or false."""


class AnyOf(NamedTuple):
    """A value of one of several shapes."""

    shapes: tuple[Shape, ...]


class Field(NamedTuple):
    """One key of a table. `name` is the RunSpec's, `key` the file's.

    The rest is of prime-rl. `default` is () for a table or a list that exists by default.
    """

    name: str
    key: str
    shape: Shape
    doc: str
    default: Any  # None: there is none
    required: bool = False
    optional: bool = False  # whether the text "None" stands for no value
    aliases: tuple[str, ...] = ()
    when: tuple[str, ...] = ()  # the members of the union that have it; () = all
    is_late: bool = False  # whether the default of a union is made late, so that prime-rl takes no tag from it


class Table(NamedTuple):
    """The legal keys of a table, by their names in the file. `make` builds the value from RunSpec field names.

    A table with a `tag` is a union: the value of that key selects the member. `open`: whether unknown keys are legal,
    or the members that allow them, beside those that the table does not know. `aliases`: another name of a key -> the
    key.
    """

    fields: Mapping[str, Field]
    make: Callable[..., Any]
    name: str = ""  # in the table of a generation
    tag: str = ""
    open: bool | tuple[str, ...] = False
    aliases: Mapping[str, str] = MappingProxyType({})

    def find(self, name: str) -> Field | None:
        """The field of a key, or of the key that `name` is an alias of."""
        return self.fields.get(name) or self.fields.get(self.aliases.get(name, ""))

    def member(self, values: Mapping[str, Any]) -> str | None:
        """The member of the union that `values` belong to; None without a union, ANY_TAG if it is not known."""
        if not self.tag:
            return None
        item = self.fields.get(self.tag)
        member = values.get(self.tag, item.default if item else None)
        return member if isinstance(member, str) and item is not None and member in choices(item) else ANY_TAG

    @property
    def may_be_open(self) -> bool:
        """Whether unknown keys are legal for some member."""
        return self.open is not False

    @property
    def names_plugins(self) -> bool:
        """Whether the tag is any text, the name of a plug-in: the package of an unknown one may have any key."""
        item = self.fields.get(self.tag)
        return item is not None and may_be(item.shape, Text)

    def is_open(self, member: str | None) -> bool:
        return self.open is True or (isinstance(self.open, tuple) and member in (*self.open, ANY_TAG))

    def required(self, member: str | None = None) -> Iterator[Field]:
        """The fields that a member of the union must have; without a member those that every one must have."""
        return (item for item in self.fields.values() if item.required and (not item.when or member in item.when))


Path = tuple[str, ...]
Shape = Number | Text | Flag | Anything | OneOf | Array | Map | Scalars | AnyOf | Table


def shapes_of(shape: Shape) -> tuple[Shape, ...]:
    """The shapes that a value may have."""
    return shape.shapes if isinstance(shape, AnyOf) else (shape,)


def may_be(shape: Shape, *kinds: type[Any]) -> bool:
    """Whether a value may have a shape of one of these kinds."""
    return any(isinstance(each, kinds) for each in shapes_of(shape))


def choices(item: Field) -> tuple[str, ...]:
    """The strings that are legal in addition to other types."""
    return next((shape.values for shape in shapes_of(item.shape) if isinstance(shape, OneOf)), ())


def table_below(shape: Shape) -> tuple[Table | None, bool]:
    """(the table below a key, whether an index or a free name stands between them)."""
    for each in shapes_of(shape):
        match each:
            case Table():
                return each, False
            case Array(item=Table() as item) | Map(item=Table() as item):
                return item, True
    return None, False


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
        required = item.default is dataclasses.MISSING
        table_fields[key] = Field(name, key, shape, doc, None if required else item.default, required)
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
        return OneOf(tuple(arguments))
    if origin is Mapping:
        return Scalars()
    if origin is tuple and arguments[1:] == (Ellipsis,):
        min_len = next((note.length for note in metadata if isinstance(note, MinLen)), 0)
        return Array(_shape(arguments[0])[0], min_len)
    return table_of(hint)


def field_name(table: Table, key: KeyPath) -> str:
    """The RunSpec field of a key path."""
    names: list[str] = []
    shape: Shape = table
    for part in key:
        if isinstance(shape, Array):
            names.append(str(part))
            shape = shape.item
        elif isinstance(shape, Table) and part in shape.fields:
            item = shape.fields[str(part)]
            names.append(item.name)
            shape = item.shape
    return ".".join(names)
