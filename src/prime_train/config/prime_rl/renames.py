"""Finds the key of a prime-rl generation that replaces a key of another one, by the table renames.toml."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cache
from types import MappingProxyType
from typing import Any, NamedTuple

import tomli

from prime_train.config.prime_rl.schema import SchemaGeneration, generations, load
from prime_train.config.schema import table_below
from prime_train.core.installation import shipped
from prime_train.toml.document import KeyPath

# Prefixes that the keys of a root omit, because the table has every key as in the `rl` root.
_FRONTS = {
    "rl": ("",),
    "sft": ("", "trainer."),
    "trainer": ("trainer.", ""),
    "orchestrator": ("orchestrator.", ""),
    "inference": ("inference.",),
    "evals": ("evals:", "", "orchestrator."),  # "evals:" marks keys that no other root has
}


class Move(NamedTuple):
    """The replacement of a key. `to` is () if nothing replaces it."""

    was_of: str  # the generation that has the key
    to: KeyPath
    how: str  # the conversion of its value, for `convert_moved`; "": none; "person": only the user can choose the value
    why: str  # the reason if nothing replaces the key, or ""


class _Entry(NamedTuple):
    names: tuple[str, ...]  # one per generation; "" if the generation does not have the key
    how: str
    why: str


class Renames(NamedTuple):
    """The rows of renames.toml. `columns` are the generations that each row has names for."""

    columns: tuple[str, ...]
    entries: tuple[_Entry, ...]
    shims: Mapping[str, list[str]] = MappingProxyType({})  # generation -> older keys that it still reads
    later: tuple[str, ...] = ()  # keys of a prime-rl that is newer than every generation


@cache
def renames() -> Renames:
    with open(shipped("prime_rl", "renames.toml"), "rb") as file:
        return parse_renames(tomli.load(file))


def parse_renames(table: Mapping[str, Any]) -> Renames:
    """The rows of a table: its groups, then each section, which adds one newer generation."""
    columns = (f"before {table['generations'][0]}", *table["generations"])
    found = []
    for group in table["group"]:
        for row in group["keys"]:
            written = row if group.get("before") else ["", *row]
            names, rest = tuple(written[: len(columns)]), written[len(columns) :]
            found.append(_Entry(names, rest[0] if rest else group.get("how", ""), group.get("why", "")))
    rows = Renames(columns, tuple(found), table.get("shims", {}), tuple(table.get("later", {}).get("keys", ())))
    for section in table.get("section", ()):
        rows = _with_section(rows, section)
    return rows


def _with_section(rows: Renames, section: Mapping[str, Any]) -> Renames:
    """The rows with one more generation. A row of its section is (key in the generation before, key in this one)."""
    why = section.get("why", "")
    moved = {row[0]: _Entry((row[1],), row[2] if len(row) > 2 else "", why) for row in section["keys"]}
    entries = [entry._replace(names=(*entry.names, entry.names[-1])) for entry in rows.entries]
    for number, entry in enumerate(rows.entries):
        was = _longest(entry.names[-1], moved)
        if was:
            now = moved[was].names[0] and f"{moved[was].names[0]}{_rest(entry.names[-1], was)}"
            entries[number] = _Entry((*entry.names, now), moved[was].how or entry.how, moved[was].why or entry.why)
    older = {entry.names[-1]: entry.names for entry in rows.entries}
    for was in moved.keys() - older.keys():
        above = _longest(was, older)
        names = (
            older[above] if above else (was,) * len(rows.columns)
        )  # without a row, all older generations have the same name
        below = _rest(was, above) if above else ""
        before = (name and f"{name}{below}" for name in names[1:])
        entries.append(moved[was]._replace(names=("", *before, *moved[was].names)))
    return rows._replace(columns=(*rows.columns, section["generation"]), entries=tuple(entries))


def _longest(path: str, names: Iterable[str]) -> str:
    """The longest of the names that is equal to the path or is above it; "" if there is none."""
    return max((name for name in names if name and _rest(path, name) is not None), key=len, default="")


def move(generation: SchemaGeneration, root: str, path: KeyPath) -> Move | None:
    """The replacement of a key that `generation` does not have; None if no known generation has it."""
    columns, entries, *_ = renames()
    target = columns.index(generation.name) if generation.name in columns else len(columns) - 1
    written, indices = _as_pattern(path)
    fronts = _FRONTS.get(root, ("",))
    best: tuple[int, Move] | None = None
    for front in fronts:
        for entry in entries:
            for column, name in enumerate(entry.names):
                rest = _rest(front + written, name) if name and column != target else None
                if rest is None or (best is not None and len(name) <= best[0]):
                    continue
                went = entry.names[target]
                below = "" if entry.how == "person" else rest  # the keys below it have replacements of their own
                to = _in_root(generation, root, went + below, indices) if went else ()
                if went and (not to or to == path):
                    continue
                how = "" if entry.how == "sources" and to[-1] != "source" else entry.how
                best = len(name), Move(columns[column], to, how, entry.why)
    if best is not None:
        return best[1]
    had = next((name for name in reversed(generations()) if name != generation.name and _has(name, root, path)), None)
    return None if had is None else Move(had, (), "", "")


def is_shim(generation: str, path: KeyPath) -> bool:
    """Whether a generation still reads a key of an older one, and converts it."""
    names = renames().shims.get(generation, ())
    return any(_rest(_as_pattern(path)[0], name) is not None for name in names)


def is_later(path: KeyPath) -> bool:
    """Whether a prime-rl that is newer than every generation has the key where the path has it."""
    return any(_rest(_as_pattern(path)[0], name) is not None for name in renames().later)


def _has(name: str, root: str, path: KeyPath) -> bool:
    schema = load(name)
    return root in schema.roots and schema.find(root, path) is not None


def _rest(path: str, name: str) -> str | None:
    """The part of a path below a name: "" if it is the name itself, None if the path is not below the name."""
    if path == name:
        return ""
    return path[len(name) :] if path.startswith((f"{name}.", f"{name}[]")) else None


def _as_pattern(path: KeyPath) -> tuple[str, list[int]]:
    """(key path with [] in place of array indices, these indices)."""
    written, indices = "", []
    for part in path:
        if isinstance(part, int):
            written += "[]"
            indices.append(part)
        else:
            written += f".{part}" if written else part
    return written, indices


def _in_root(generation: SchemaGeneration, root: str, written: str, indices: list[int]) -> KeyPath:
    """The key path in a root; () if the root has no such key."""
    for front in _FRONTS.get(root, ("",)):
        if not written.startswith(front):
            continue
        left = iter(indices)
        path: list[str | int] = []
        for part in written[len(front) :].split("."):
            path.append(part.removesuffix("[]"))
            if part.endswith("[]"):
                path.append(next(left, 0))
        around = generation.find(root, tuple(path[:-1]))
        below = table_below(around.shape)[0] if around is not None else None
        if generation.find(root, tuple(path)) is not None or (below is not None and below.may_be_open):
            return tuple(path)
    return ()


def convert_moved(how: str, value: Any) -> Any:
    """The value for the replacement of a key; None if only the user can choose it."""
    match how, value:
        case "", _:
            return value
        case "count", list():
            return len(value)
        case "resume", int() if value >= 1:
            return {"step": value}
        case "resume", -1:
            return {}
        case "sources", list():
            sources = [_source(item) for item in value]
            return sources if all(sources) else None
        case "algorithm", "rl":
            return "grpo"
        case _:
            return None


_OF_A_SOURCE = {
    "name": "name",
    "ratio": "ratio",
    "group_size": "group_size",
    "rollouts_per_example": "group_size",
    "num_examples": "num_examples",
}


def _source(environment: Any) -> dict[str, Any] | None:
    """The source in 2026-08 for an environment of an earlier generation.

    Its arguments become keys of the taskset; whether the taskset has the same names for them, only the user knows.
    None if it has keys with no place in a source.
    """
    if not isinstance(environment, dict) or not isinstance(environment.get("id"), str):
        return None
    kept = {_OF_A_SOURCE[key]: value for key, value in environment.items() if key in _OF_A_SOURCE}
    arguments = environment.get("args", {})
    if (
        environment.keys() - _OF_A_SOURCE.keys() - {"id", "args"}
        or not isinstance(arguments, dict)
        or "id" in arguments
    ):
        return None
    if len(environment.keys() & _OF_A_SOURCE.keys()) > len(kept):  # two names of one key
        return None
    return {"name": environment["id"]} | kept | {"env": {"taskset": {"id": environment["id"]} | arguments}}
