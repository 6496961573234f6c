"""The metadata in a field's annotation: its meaning, its key in run.toml, its limits.

`Limit` replaces the classes of annotated-types, because importing these takes a tenth of the time of a lint.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from operator import ge, gt, le, lt
from typing import TYPE_CHECKING, Annotated, NamedTuple

if TYPE_CHECKING:
    from annotated_types import BaseMetadata


class Doc(NamedTuple):
    """The meaning of a field, for docs/config.md."""

    text: str


class Key(NamedTuple):
    """The key in run.toml, if it cannot be the field's name: `async` is a Python keyword."""

    name: str


class Elsewhere:
    """Marks a part that run.toml does not have: other formats fill it, and it is None in ours."""


_HOLDS: dict[str, Callable[[float, float], bool]] = {">": gt, ">=": ge, "<": lt, "<=": le}


class Limit:
    """A limit on a number: `sign` is one of >, >=, <, <=. pydantic reads it as a group of one annotated-types bound.

    Source of the group protocol: annotated-types 0.7, GroupedMetadata.
    """

    __is_annotated_types_grouped_metadata__ = True
    __slots__ = ("limit", "sign")

    def __init__(self, sign: str, limit: float) -> None:
        self.sign = sign
        self.limit = limit

    def holds(self, value: float) -> bool:
        return _HOLDS[self.sign](value, self.limit)

    def __repr__(self) -> str:
        return f"{self.sign} {self.limit:g}"

    def __iter__(self) -> Iterator[BaseMetadata]:
        import annotated_types

        made = {">": annotated_types.Gt, ">=": annotated_types.Ge, "<": annotated_types.Lt, "<=": annotated_types.Le}
        yield made[self.sign](self.limit)


Gt, Ge, Lt, Le = (partial(Limit, sign) for sign in _HOLDS)

Positive = Annotated[int, Gt(0)]
NotNegative = Annotated[int, Ge(0)]
Fraction = Annotated[float, Ge(0.0), Le(1.0)]


class MinLen(NamedTuple):
    """A list in a file must have at least `length` entries.

    pydantic ignores this, because a RunSpec of a run without such a list has an empty one.
    """

    length: int
