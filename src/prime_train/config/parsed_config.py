"""The result of reading a config: the RunSpec, the faults against the schema, and the key map. Values only."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from prime_train.config.foreign.values import ForeignPart
from prime_train.core.findings import NO_PATCH, Patch, Severity
from prime_train.spec import RunSpec
from prime_train.toml.document import Document, KeyPath, key_path, value_at

SYNTAX = "CFG001"
UNKNOWN_KEY = "CFG002"
WRONG_TYPE = "CFG003"
OUT_OF_BOUNDS = "CFG004"
NOT_A_CHOICE = "CFG005"
MISSING_KEY = "CFG006"
OTHER_GENERATION = "CFG007"
OTHER_MEMBER = "CFG008"
SET_TWICE = "CFG009"
PASSED_THROUGH = "CFG010"
GENERATION = "CFG011"
REFUSED = "CFG012"
WRONG_ARGUMENT = "JAX009"


class Fault(NamedTuple):
    """A violation of the schema in a file.

    `shadows` is the RunSpec field that has its default because of this fault, or "". No other rule judges that field,
    because the user did not choose its value. `severity` replaces the rule's. `hidden`: the value is not shown.
    `why` replaces the reason of the rule. `keys` are all keys that a refused combination consists of.
    `safe`: the patch keeps each value that the user chose, with its meaning. `meant`: the known key of a similar name.
    `document` is the file of the key, where a reading has several that are not merged.
    """

    code: str
    key: KeyPath
    what: str
    fix: str
    patch: Patch = NO_PATCH
    shadows: str = ""
    severity: Severity | None = None
    hidden: bool = False
    why: str = ""
    keys: tuple[KeyPath, ...] = ()
    safe: bool = False
    meant: KeyPath = ()
    document: Document | None = None


class Reading(NamedTuple):
    """A config that was read. `run` is None if no RunSpec can be built. `keys` maps RunSpec fields to keys.

    With `all_fields`, a field that is not in `keys` has its own name as its key; otherwise the file has no such field.
    `others` are the files that `document` was merged from, where a later file overrules an earlier one. `foreign` are
    the parts of the files of another program; their `others` are beside each other, and `document` is the last.
    """

    document: Document
    dialect: str
    generation: str  # of prime-rl; "" for another format
    root: str  # which of the format's files this is
    run: RunSpec | None
    faults: tuple[Fault, ...]
    keys: Mapping[str, str]
    all_fields: bool = True
    others: tuple[Document, ...] = ()
    because: str = ""  # the reason for the generation
    partial: bool = False  # whether the rest of the run is in another file, or in lines that cannot be read
    foreign: tuple[ForeignPart, ...] | None = None  # None for every other format

    def key(self, run_field: str) -> str:
        """The user's own key for a RunSpec field."""
        if run_field in self.keys or self.all_fields:
            return self.keys.get(run_field, run_field)
        around, _, last = run_field.rpartition(".")
        return f"{self.key(around)}.{last}" if around else run_field

    def has(self, run_field: str) -> bool:
        """Whether the file's format has a key for a RunSpec field, or for the table around it."""
        name = run_field
        while name and not self.all_fields and name not in self.keys:
            around = name.rpartition(".")[0]
            name = around if "." in around or name.startswith("environments.") else ""
        return bool(name)

    @property
    def parts(self) -> tuple[Document, ...]:
        """The files; the one that overrules the others comes first."""
        return tuple(reversed(self.others)) or (self.document,)

    def sets(self, run_field: str) -> bool:
        """Whether the file itself sets a RunSpec field, or a key below it."""
        values = self.document.values
        return value_at(values, key_path(self.key(run_field), values)) is not None
