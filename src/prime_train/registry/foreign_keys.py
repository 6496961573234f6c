"""Reads registry/foreign/keys: the keys that the files of another program may have. docs/foreign_keys.py writes them.

A format without a file there has keys that are not known, and so has every table that its file leaves out.
"""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

import tomli

from prime_train.core.installation import shipped


class LegalKeys(NamedTuple):
    """The keys that a table may have.

    `at` is the table's own key, "" for the top. `unknown` is what happens to another key: it is `refused` or `ignored`
    by the program, or it is `open`, because the user's own script may have it. `why` says so. A plug-in whose name
    does not begin with `own_plugins` may add keys; "" for a program without plug-ins.
    """

    at: str
    unknown: str
    why: str
    names: frozenset[str]
    own_plugins: str = ""


@cache
def legal_keys(format_: str) -> tuple[LegalKeys, ...]:
    """The tables of a format; none for a format whose keys are not known."""
    try:
        with open(shipped("foreign", "keys", f"{format_}.toml"), "rb") as file:
            tables = tomli.load(file)["table"]
    except FileNotFoundError:
        return ()
    return tuple(LegalKeys(**{**table, "names": frozenset(table["names"].split())}) for table in tables)
