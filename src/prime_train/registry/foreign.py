"""Reads the tables of other programs in registry/foreign: their defaults, and the settings that cannot work.

The fields of an entry are those of `Doom`; a test compares each entry with its examples. A condition and the braces in
a text are in the language of config/foreign/conditions.py.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import tomli

from prime_train.core.installation import shipped

_RECOGNISE = "recognise"
_NOTHING: Mapping[str, Any] = {}
_JUDGES = re.compile(r"(?m)^judges\s*=\s*(\[[^\]]*\])")


class Doom(NamedTuple):
    """A setting that cannot work, or not as intended.

    `table` has it, `judges` are the formats of the parts that are judged.

    `at` are the keys of the condition: the finding is at the first one that is written. `patch` sets keys and `remove`
    takes keys out; `safe`: that keeps what the user chose. `files` are beside the examples `bad` and `good`, which are
    in a file called `file`.
    """

    code: str
    name: str
    severity: str
    when: str
    at: tuple[str, ...]
    what: str
    why: str
    fix: str
    source: str
    bad: str
    good: str
    table: str
    judges: tuple[str, ...]
    file: str
    patch: Mapping[str, Any] = _NOTHING
    remove: tuple[str, ...] = ()
    safe: bool = False
    files: Mapping[str, str] = _NOTHING


class ProgramTable(NamedTuple):
    """What is known of one program. `home`: the repository and commit that `name@commit` in a source means."""

    name: str
    title: str
    home: str
    judges: tuple[str, ...]
    defaults: Mapping[str, Any]
    doomed: tuple[Doom, ...]


_FILES = {"deepspeed": "deepspeed.json", "torchtitan": "torchtitan.toml"}
_IN_SCRIPTS = frozenset(
    {
        "sbatch",
        "torchrun",
        "accelerate-launch",
        "deepspeed-launch",
        "shell",
        "megatron",
        "openrlhf",
        "vllm",
        "vllm-serve",
    }
)


@cache
def program_tables() -> Mapping[str, ProgramTable]:
    """Name -> table. Raises TypeError for an entry with a missing or unknown field."""
    return {name: program_table(name) for name in _texts()}


def tables_for(formats: frozenset[str]) -> tuple[ProgramTable, ...]:
    """The tables that have rules on parts of these formats. The others are not parsed, because lint must be fast."""
    found = []
    for name, text in _texts().items():
        lists = " ".join(_JUDGES.findall(text))
        if name in formats or any(f'"{each}"' in lists for each in formats):
            found.append(program_table(name))
    return tuple(found)


def defaults_of(format_: str) -> Mapping[str, Any]:
    """The values that a program takes for absent keys; none without a table of that name."""
    return program_table(format_).defaults if format_ in _texts() else _NOTHING


@cache
def named_keys(format_: str) -> frozenset[str]:
    """The keys at the top of a file that some entry on the format names, also one that a version no longer has."""
    dooms = (doom for table in tables_for(frozenset({format_})) for doom in table.doomed if format_ in doom.judges)
    return frozenset(key.split(".")[0] for doom in dooms for key in doom.at)


@cache
def _texts() -> Mapping[str, str]:
    """Name -> the text of its table."""
    paths = sorted(Path(shipped("foreign")).glob("*.toml"))
    return {path.stem: path.read_text(encoding="utf-8") for path in paths if path.stem != _RECOGNISE}


@cache
def program_table(name: str) -> ProgramTable:
    """The table of a program. Raises KeyError if there is none."""
    table = tomli.loads(_texts()[name])
    judges = tuple(table.get("judges", (name,)))
    file_name = _FILES.get(name, "job.sh" if name in _IN_SCRIPTS else f"{name}.yaml")
    return ProgramTable(
        name=name,
        title=table["title"],
        home=table["home"],
        judges=judges,
        defaults=_flat(table.get("defaults", {})),
        doomed=tuple(_doom(entry, name, judges, file_name) for entry in table.get("doomed", ())),
    )


def _doom(entry: Mapping[str, Any], table: str, judges: tuple[str, ...], file: str) -> Doom:
    lists = {key: tuple(entry[key]) for key in ("at", "judges", "remove") if key in entry}
    return Doom(**{"table": table, "judges": judges, "file": file} | dict(entry) | lists)


def _flat(table: Mapping[str, Any], around: str = "") -> dict[str, Any]:
    """The values of a table by their dotted keys."""
    found: dict[str, Any] = {}
    for key, value in table.items():
        if isinstance(value, dict):
            found |= _flat(value, f"{around}{key}.")
        else:
            found[f"{around}{key}"] = value
    return found
