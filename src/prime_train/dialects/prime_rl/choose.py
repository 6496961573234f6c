"""Chooses the generation and the root that a prime-rl file is to be judged by. Judges nothing of it.

The generation is what the file says in [prime_train], else what the caller asks for, else that of the prime-rl
installed beside this program, else the one whose table knows most of the file's keys. The root is the one whose
table knows most of them; where several know as many, the file's name decides.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping
from typing import Any, NamedTuple

from prime_train.dialects.prime_rl.schema import Generation, TableRows, generations, load

_HINTS = (
    ("rl", ("rl",)),
    ("sft", ("sft",)),
    ("orchestrator", ("orch", "orchestrator")),
    ("inference", ("infer", "inference")),
    ("env-server", ("env", "server")),
    ("evals", ("eval", "evals")),
    ("eval", ("eval", "evals")),
    ("synthesize", ("synthesize",)),
    ("trainer", ("train", "trainer")),
)
_MAX_COUNTED = 5000  # keys: beyond them the file is something else


class Choice(NamedTuple):
    """`because` tells how the generation is known. `rivals` are other generations that fit as well."""

    generation: str
    root: str
    because: str
    rivals: tuple[str, ...]
    unknown: int  # keys that the chosen table does not have
    known: int


def choose(values: Mapping[str, Any], path: str, said: str | None, asked: str | None) -> Choice:
    """The choice for a file's values, without its [prime_train]."""
    named = (
        (said, "prime_train.prime_rl says so"),
        (asked, "--prime-rl asks for it"),
    )
    for name, because in named:
        if name in generations():
            return _fitted(load(name), values, path, because)
    installed = installed_generation()
    if installed is not None:
        return _fitted(load(installed[0]), values, path, f"prime-rl {installed[1]} is installed")
    fits = [_fitted(load(name), values, path, "") for name in reversed(generations())]
    best = min(fits, key=lambda fit: fit.unknown)  # of equals the newest
    rivals = tuple(fit.generation for fit in fits if fit.unknown == best.unknown and fit is not best)
    if rivals:
        return best._replace(because=f"its keys fit {' and '.join(rivals)} as well", rivals=rivals)
    return best._replace(because="its keys fit it best")


def _fitted(generation: Generation, values: Mapping[str, Any], path: str, because: str) -> Choice:
    """The root of a generation that knows most of the keys."""
    counted = {root: _count(generation, generation.root(root), values) for root in generation.roots}
    fewest = min(unknown for _, unknown in counted.values())
    roots = [root for root, (_, unknown) in counted.items() if unknown == fewest]
    root = _hinted(roots, path)
    return Choice(generation.name, root, because, (), fewest, counted[root][0])


def _hinted(roots: list[str], path: str) -> str:
    """The root that the file is named after, else its folders; the first in the usual order where none is."""
    for part in reversed(path.replace("\\", "/").removesuffix(".toml").split("/")):
        words = re.split(r"[-_. 0-9]+", part.lower())
        for root, names in _HINTS:
            if root in roots and any(name in words for name in names):
                return root
    order = [root for root, _ in _HINTS]
    return min(roots, key=lambda root: order.index(root) if root in order else len(order))


def _count(generation: Generation, table: TableRows, values: Mapping[str, Any]) -> tuple[int, int]:
    """(known, unknown) keys among the leaves of a file."""
    known = unknown = 0
    stack: list[tuple[TableRows | None, Any]] = [(table, values)]
    while stack and known + unknown < _MAX_COUNTED:
        around, value = stack.pop()
        if isinstance(value, list) and value and isinstance(value[0], dict):
            stack.extend((around, item) for item in value)
        elif not isinstance(value, dict) or not value:
            known, unknown = (known + 1, unknown) if around is not None else (known, unknown + 1)
        else:
            stack.extend(_below(generation, around, value))
    return known, unknown


def _below(
    generation: Generation, table: TableRows | None, values: dict[str, Any]
) -> list[tuple[TableRows | None, Any]]:
    """The values of a table, each with the table that judges what is below it; an open one is its own."""
    found: list[tuple[TableRows | None, Any]] = []
    for key, value in values.items():
        row = table.row(key) or table.row(table.alias(key) or "") if table is not None else None
        if row is None or table is None:
            found.append((table if table is not None and table.open else None, value))
        elif row.map and isinstance(value, dict):
            below = generation.below(row)
            found.extend((below, item) for item in value.values())
        else:
            found.append((generation.below(row) or table, None if not (row.table or row.array) else value))
    return found


def installed_generation() -> tuple[str, str] | None:
    """(generation, version) of the prime-rl that this interpreter would import; None where there is none.

    Read from the names of the .dist-info folders: importing importlib.metadata takes longer than a lint may.
    """
    for folder in sys.path:
        try:
            names = os.listdir(folder or ".")
        except OSError:
            continue
        for name in names:
            match = re.fullmatch(r"prime_rl-([0-9][^-]*)\.dist-info", name)
            if match:
                generation = _of_version(match.group(1))
                return None if generation is None else (generation, match.group(1))
    return None


def _of_version(version: str) -> str | None:
    """The generation whose span of releases holds a version."""
    for name in generations():
        first, before = load(name).versions
        if (not first or _numbers(version) >= _numbers(first)) and (not before or _numbers(version) < _numbers(before)):
            return name
    return None


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(number) for number in re.findall(r"\d+", version)[:3])
