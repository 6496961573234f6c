"""What a dialect makes of a file: the RunSpec, the faults against the schema, and the key map. Values only."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from prime_train.document import Document, KeyPath
from prime_train.findings import Patch
from prime_train.spec import RunSpec

SYNTAX = "CFG001"
UNKNOWN_KEY = "CFG002"
WRONG_TYPE = "CFG003"
OUT_OF_BOUNDS = "CFG004"
NOT_A_CHOICE = "CFG005"
MISSING_KEY = "CFG006"


@dataclass(frozen=True, slots=True)
class Fault:
    """One place where a file departs from its schema.

    `shadows` is the RunSpec field that took its default because of this fault ("" where none did):
    what a rule says of that field would be about a value the user did not choose.
    """

    code: str
    key: KeyPath
    what: str
    fix: str
    patch: Patch = field(default_factory=dict)
    shadows: str = ""


class Reading(NamedTuple):
    """`run` is None where no RunSpec can be built. `keys` maps RunSpec fields to keys where the two differ."""

    document: Document
    dialect: str
    generation: str  # "" for a dialect that has one only
    root: str  # which of the dialect's files this is
    run: RunSpec | None
    faults: tuple[Fault, ...]
    keys: Mapping[str, str]

    def key(self, run_field: str) -> str:
        """The user's own key for a RunSpec field."""
        return self.keys.get(run_field, run_field)
