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
from functools import cache
from itertools import islice
from typing import Any, NamedTuple

from prime_train.config.prime_rl.schema import Generation, Row, TableRows, generations, load
from prime_train.config.prime_rl.validate_value import NONE, fits

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
_SUCCESSORS = {"eval": "evals", "synthesize": "evals"}  # roots that another took the place of
_MAX_COUNTED = 1000  # keys: beyond them the file is something else


class Choice(NamedTuple):
    """`because` tells how the generation is known. `rivals` are other generations that fit as well."""

    generation: str
    root: str
    because: str
    rivals: tuple[str, ...]
    unknown: int  # keys that the chosen table does not have, or has for another kind of value
    known: int
    is_named: bool  # whether the file's own name says that root


def choose(values: Mapping[str, Any], path: str, said: str | None, asked: str | None) -> Choice:
    """The choice for a file's values, without its [prime_train]."""
    named = (
        (said, "prime_train.prime_rl says so"),
        (asked, "--prime-rl asks for it"),
    )
    for name, because in named:
        if name in generations():
            return _of_any_age(_fitted(load(name), values, path, because), values, path)
    installed = installed_generation()
    if installed is not None:
        because = f"prime-rl {installed[1]} is installed"
        return _of_any_age(_fitted(load(installed[0]), values, path, because), values, path)
    fits = [_fitted(load(name), values, path, "") for name in reversed(generations())]
    best = min(fits, key=_misfit)  # of equals the newest
    rivals = tuple(fit.generation for fit in fits if _misfit(fit) == _misfit(best) and fit is not best)
    if rivals:
        return best._replace(because=f"the newest of those that its keys fit: {', '.join(rivals)} too", rivals=rivals)
    return best._replace(because="its keys fit it best")


def _of_any_age(choice: Choice, values: Mapping[str, Any], path: str) -> Choice:
    """The choice, with the root that the file has in the generation that knows its keys best: it may be older."""
    if not choice.unknown:
        return choice
    best = min((_fitted(load(name), values, path, "") for name in reversed(generations())), key=_misfit)
    root = _SUCCESSORS.get(best.root, best.root)
    return choice._replace(root=root) if root in load(choice.generation).roots else choice


def _misfit(choice: Choice) -> tuple[int, bool]:
    return choice.unknown - choice.known, not choice.is_named


def _fitted(generation: Generation, values: Mapping[str, Any], path: str, because: str) -> Choice:
    """The root of a generation that knows most of the keys."""
    counted = {root: _count(generation, generation.root(root), values) for root in generation.roots}
    fewest = min(unknown - known for known, unknown in counted.values())
    roots = [root for root, (known, unknown) in counted.items() if unknown - known == fewest]
    parts = path.replace("\\", "/").removesuffix(".toml").split("/")
    hinted = [_hinted(roots, part) for part in reversed(parts)]
    root = next((root for root in hinted if root), None) or _first(roots)
    known, unknown = counted[root]
    return Choice(generation.name, root, because, (), unknown, known, hinted[0] is not None)


def _hinted(roots: list[str], name: str) -> str | None:
    """The root that a file or folder is named after."""
    words = re.split(r"[-_. 0-9]+", name.lower())
    return next((root for root, names in _HINTS if root in roots and any(word in words for word in names)), None)


def _first(roots: list[str]) -> str:
    order = [root for root, _ in _HINTS]
    return min(roots, key=lambda root: order.index(root) if root in order else len(order))


def _count(generation: Generation, table: TableRows, values: Mapping[str, Any]) -> tuple[int, int]:
    """(known, unknown) keys of a file, those right below an unknown table counted too."""
    known = unknown = 0
    stack: list[tuple[TableRows, Any]] = [(table, values)]
    while stack and known + unknown < _MAX_COUNTED:
        around, value = stack.pop()
        if isinstance(value, list):
            stack.extend((around, item) for item in value)
            continue
        if not isinstance(value, dict):
            unknown += 1
            continue
        for key, below in islice(value.items(), _MAX_COUNTED):
            row = _row(around, key)
            if row is None:
                is_open = bool(around.open)
                known, unknown = (known + 1, unknown) if is_open else (known, unknown + 1)
                unknown += len(below) if not is_open and isinstance(below, dict | list) else 0
            elif row.table and isinstance(below, dict):
                known += 1
                stack.append((generation.table(row.table), below))
            elif row.array and isinstance(below, list):
                known += 1
                stack.append((generation.table(row.array), below))
            elif row.map and isinstance(below, dict):
                known += 1
                stack.extend((generation.table(row.map), item) for item in below.values())
            else:
                fitting = fits(row, below) or (below == NONE and row.optional)
                known, unknown = (known + 1, unknown) if fitting else (known, unknown + 1)
    return known, unknown


def _row(table: TableRows, key: str) -> Row | None:
    return table.row(key) or table.row(table.alias(key) or "")


@cache
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
    """The newest generation whose first release is not after a version."""
    fitting = (name for name in generations() if _numbers(load(name).first_release) <= _numbers(version))
    return max(fitting, default=None)


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(number) for number in re.findall(r"\d+", version)[:3])
