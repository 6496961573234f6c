"""What the annotation of a field carries beside its type: what it means, its key, its bounds. Checks no value.

annotated-types has the bounds as dataclasses and imports typing_extensions: together a tenth of the time that a
lint takes to start. pydantic reads ours as a group of annotated-types' own, which are made when it asks.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from annotated_types import BaseMetadata


class Doc(NamedTuple):
    """What a field means, for docs/config.md."""

    text: str


class Key(NamedTuple):
    """The key in run.toml where it cannot be the field's name (`async` is a Python keyword)."""

    name: str


class Elsewhere:
    """Marks a part that run.toml does not have: other dialects fill it, and it is None in ours."""


class Limit:
    """A number must be `sign` (one of >, >=, <, <=) than `limit`.

    Source of the group protocol: annotated-types 0.7, GroupedMetadata.
    """

    __is_annotated_types_grouped_metadata__ = True
    __slots__ = ("limit", "sign")

    def __init__(self, sign: str, limit: float) -> None:
        self.sign = sign
        self.limit = limit

    def __repr__(self) -> str:
        return f"{self.sign} {self.limit:g}"

    def __iter__(self) -> Iterator[BaseMetadata]:
        import annotated_types

        made = {">": annotated_types.Gt, ">=": annotated_types.Ge, "<": annotated_types.Lt, "<=": annotated_types.Le}
        yield made[self.sign](self.limit)


def Gt(limit: float) -> Limit:
    return Limit(">", limit)


def Ge(limit: float) -> Limit:
    return Limit(">=", limit)


def Lt(limit: float) -> Limit:
    return Limit("<", limit)


def Le(limit: float) -> Limit:
    return Limit("<=", limit)


class MinLen:
    """A list in a file must have at least `length` entries; a RunSpec of a run that has no such list holds none.

    Hence pydantic, which reads back what was resolved, is told no limit.
    """

    __is_annotated_types_grouped_metadata__ = True
    __slots__ = ("length",)

    def __init__(self, length: int) -> None:
        self.length = length

    def __repr__(self) -> str:
        return f"at least {self.length}"

    def __iter__(self) -> Iterator[BaseMetadata]:
        return iter(())
