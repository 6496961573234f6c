"""Reads the tables of other programs in registry/foreign: their defaults, and the settings that cannot work.

The fields of an entry are those of `Doom`; a test compares each entry with its examples. A condition and the braces in
a text are in the language of config/foreign/conditions.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import tomli

from prime_train.core.installation import shipped

_RECOGNISE = "recognise"
_NOTHING: Mapping[str, Any] = {}


class Doom(NamedTuple):
    """A setting that cannot work, or not as intended. `judges` are the formats of the parts that are judged.

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
    names = sorted(path.stem for path in Path(shipped("foreign")).glob("*.toml"))
    return {name: program_table(name) for name in names if name != _RECOGNISE}


@cache
def program_table(name: str) -> ProgramTable:
    """The table of a program. Raises FileNotFoundError if there is none."""
    with open(shipped("foreign", f"{name}.toml"), "rb") as file:
        table = tomli.load(file)
    judges = tuple(table.get("judges", (name,)))
    file_name = _FILES.get(name, "job.sh" if name in _IN_SCRIPTS else f"{name}.yaml")
    return ProgramTable(
        name=name,
        title=table["title"],
        home=table["home"],
        judges=judges,
        defaults=_flat(table.get("defaults", {})),
        doomed=tuple(_doom(entry, judges, file_name) for entry in table.get("doomed", ())),
    )


def _doom(entry: Mapping[str, Any], judges: tuple[str, ...], file: str) -> Doom:
    lists = {key: tuple(entry[key]) for key in ("at", "judges", "remove") if key in entry}
    return Doom(**{"judges": judges, "file": file} | dict(entry) | lists)


def _flat(table: Mapping[str, Any], around: str = "") -> dict[str, Any]:
    """The values of a table by their dotted keys."""
    found: dict[str, Any] = {}
    for key, value in table.items():
        if isinstance(value, dict):
            found |= _flat(value, f"{around}{key}.")
        else:
            found[f"{around}{key}"] = value
    return found
