"""Reads what other programs call the keys of our formats. Judges nothing, and is read only where a key is unknown."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any, NamedTuple

from prime_train.registry.gpus import read_table


class OtherNames(NamedTuple):
    """The other names of one format's keys, in lower case with underscores.

    A name with a table before it counts only in that table. `names`: a name -> the keys that it may mean.
    `tables`: another name of a table -> its name here. `hints`: a name -> what to write in its place. `others`: names
    that look like one of ours and mean something else.
    """

    names: Mapping[str, tuple[str, ...]]
    tables: Mapping[str, str]
    hints: Mapping[str, str]
    others: frozenset[str]


@cache
def other_names(section: str) -> OtherNames:
    """The names in one section of the shipped file; none for a section that it does not have."""
    found: Mapping[str, Any] = read_table("other_names.toml").get(section, {})
    places = found.get("names", {})
    names = {name: (place,) if isinstance(place, str) else tuple(place) for name, place in places.items()}
    others = frozenset(found.get("others", {}).get("names", ()))
    return OtherNames(names, found.get("tables", {}), found.get("hints", {}), others)
