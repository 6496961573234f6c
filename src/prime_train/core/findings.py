"""The results of rules as frozen values. No I/O, no rendering, no judgement.

A rule yields Problems with RunSpec fields. The judge turns each one into a Finding with the key and the place in the
user's file. They are named tuples, because at each start of a lint a dataclass takes seven times longer to create.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum
from types import MappingProxyType
from typing import Any, NamedTuple


class Severity(IntEnum):
    """ERROR: the run cannot work or loses data. WARNING: it works, but probably not as intended. NOTE: useful."""

    NOTE = 0
    WARNING = 1
    ERROR = 2

    def __str__(self) -> str:
        return self.name.lower()


Patch = Mapping[str, Any]  # dotted key -> new value; None deletes the key
NO_PATCH: Patch = MappingProxyType({})


class Problem(NamedTuple):
    """One result of a rule. `at` and the keys of `patch` are RunSpec fields: "batch.global_batch".

    A RunSpec field in backquotes inside a text is shown as the key in the user's file. An empty `fix` is made from
    the patch, an empty `why` is the rule's; `severity` replaces the rule's. `safe`: the patch does not change the run.
    """

    at: str
    what: str
    fix: str = ""
    patch: Patch = NO_PATCH
    why: str = ""
    severity: Severity | None = None
    safe: bool = False


class TextSpan(NamedTuple):
    """A part of a text. Lines and columns count characters from 1; the end is exclusive."""

    line: int
    column: int
    end_line: int
    end_column: int


class Finding(NamedTuple):
    """A Problem with its place.

    `key` is the key in the user's file, `field` the RunSpec field or "". `safe`: the patch keeps every value that the
    user chose, and can be applied without a review.
    """

    code: str
    severity: Severity
    path: str
    span: TextSpan
    key: str
    field: str
    what: str
    why: str
    fix: str
    patch: Patch = NO_PATCH
    written: str = ""  # the value in the file, shortened; "" if the key is not in the file
    safe: bool = False


class Skipped(NamedTuple):
    """A rule that did not run, because a fact that it needs is not known."""

    code: str
    needs: str
    reason: str
