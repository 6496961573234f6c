"""What a rule says of a config, as frozen values. No I/O, no rendering, no judgement.

A rule yields Problems: they name RunSpec fields and know nothing of files. The judge turns each into
a Finding, which names the key as the user wrote it and the place where it stands. Named tuples, not
dataclasses: a lint makes these classes at each start, at a seventh of the cost.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum
from types import MappingProxyType
from typing import Any, NamedTuple


class Severity(IntEnum):
    """ERROR: the run cannot work or loses data. WARNING: it works, and probably not as meant. NOTE: worth knowing."""

    NOTE = 0
    WARNING = 1
    ERROR = 2

    def __str__(self) -> str:
        return self.name.lower()


Patch = Mapping[str, Any]  # dotted key -> the value that cures; None = take the key away
NO_PATCH: Patch = MappingProxyType({})


class Problem(NamedTuple):
    """One thing a rule found. `at` and the keys of `patch` are RunSpec fields: "batch.global_batch".

    A RunSpec field in backquotes inside a text is shown as the key of the user's own file. An empty
    `fix` is written from the patch, an empty `why` is the rule's own; `severity` replaces the rule's. `safe` says
    that the run does the same with the patch as without it.
    """

    at: str
    what: str
    fix: str = ""
    patch: Patch = NO_PATCH
    why: str = ""
    severity: Severity | None = None
    safe: bool = False


class Span(NamedTuple):
    """A stretch of a text: lines and columns count characters from 1, the end is exclusive."""

    line: int
    column: int
    end_line: int
    end_column: int


class Finding(NamedTuple):
    """A Problem with its place. `key` is the user's own, `field` the RunSpec's ("" where there is none).

    `safe`: the patch keeps every value that the user chose, and may be written without a look at it.
    """

    code: str
    severity: Severity
    path: str
    span: Span
    key: str
    field: str
    what: str
    why: str
    fix: str
    patch: Patch = NO_PATCH
    written: str = ""  # the value as the file has it, shortened; "" where the key is not in the file
    safe: bool = False


class Skipped(NamedTuple):
    """A rule that could not judge, because a fact it needs is not known."""

    code: str
    needs: str
    reason: str
