"""What a dialect makes of a file: the RunSpec, the faults against the schema, and the key map. Values only."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from prime_train.core.findings import NO_PATCH, Patch, Severity
from prime_train.spec import RunSpec
from prime_train.toml.document import Document, KeyPath

SYNTAX = "CFG001"
UNKNOWN_KEY = "CFG002"
WRONG_TYPE = "CFG003"
OUT_OF_BOUNDS = "CFG004"
NOT_A_CHOICE = "CFG005"
MISSING_KEY = "CFG006"
OTHER_GENERATION = "CFG007"
OTHER_MEMBER = "CFG008"
SAID_TWICE = "CFG009"
PASSED_THROUGH = "CFG010"
GENERATION = "CFG011"
WRONG_ARGUMENT = "JAX009"


class Fault(NamedTuple):
    """One place where a file departs from its schema.

    `shadows` is the RunSpec field that took its default because of this fault ("" where none did):
    what a rule says of that field would be about a value the user did not choose. `severity` replaces the rule's.
    `hidden`: what stands there must not be shown.
    """

    code: str
    key: KeyPath
    what: str
    fix: str
    patch: Patch = NO_PATCH
    shadows: str = ""
    severity: Severity | None = None
    hidden: bool = False


class Reading(NamedTuple):
    """`run` is None where no RunSpec can be built. `keys` maps RunSpec fields to keys.

    Where `all_fields`, a field that `keys` leaves out has its own name as its key; else the file has no such field.
    `others` are the files that `document` was merged from, the last of which counts; () where it stands alone.
    """

    document: Document
    dialect: str
    generation: str  # "" for a dialect that has one only
    root: str  # which of the dialect's files this is
    run: RunSpec | None
    faults: tuple[Fault, ...]
    keys: Mapping[str, str]
    all_fields: bool = True
    others: tuple[Document, ...] = ()
    because: str = ""  # how the generation is known
    partial: bool = False  # whether the rest of the run stands elsewhere, or in lines that cannot be read

    def key(self, run_field: str) -> str:
        """The user's own key for a RunSpec field."""
        if run_field in self.keys or self.all_fields:
            return self.keys.get(run_field, run_field)
        around, _, last = run_field.rpartition(".")
        return f"{self.key(around)}.{last}" if around else run_field

    def has(self, run_field: str) -> bool:
        """Whether the file's dialect has a key for a RunSpec field, or for what holds it."""
        name = run_field
        while name and not self.all_fields and name not in self.keys:
            around = name.rpartition(".")[0]
            name = around if "." in around or name.startswith("environments.") else ""
        return bool(name)

    @property
    def parts(self) -> tuple[Document, ...]:
        """The files, the one that counts most first."""
        return tuple(reversed(self.others)) or (self.document,)

    def says(self, run_field: str) -> bool:
        """Whether the file itself sets a RunSpec field, or something below it."""
        value: object = self.document.values
        for part in self.key(run_field).split("."):
            if isinstance(value, Mapping) and part in value:
                value = value[part]
            elif isinstance(value, list) and part.isdigit() and int(part) < len(value):
                value = value[int(part)]
            else:
                return False
        return True
