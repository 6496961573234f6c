"""Says what a key that prime-rl does not know was meant to be: a misspelling, one of another generation, one of
another table. Loaded only when a file has such a key. Changes nothing."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from typing import TYPE_CHECKING, Any

from prime_train.config.parsed_config import OTHER_GENERATION, PASSED_THROUGH, UNKNOWN_KEY, Fault
from prime_train.config.prime_rl.renames import Move, move, moved_value
from prime_train.config.prime_rl.schema import Row, TableRows
from prime_train.config.prime_rl.validate_value import fits
from prime_train.config.validate_value import describe_short, is_shallow
from prime_train.core.findings import Patch
from prime_train.core.paths import shipped
from prime_train.toml.did_you_mean import edit_distance, nearest
from prime_train.toml.document import KeyPath, dotted

if TYPE_CHECKING:
    from prime_train.config.prime_rl.validate import Walk

_MAX_GUESSES = 200  # unknown keys that are compared with every legal one: beyond them the file is something else
_MAX_DEPTH = 20  # of a table that another generation has: below it keys are not told one by one
_SLIP = 2  # letters: what is farther is another word
_MAX_KEY_CHARS = 100  # a longer key is no misspelling of anything


def unknown(state: Walk, table: TableRows, at: KeyPath, key: str, value: Any) -> Iterator[Fault]:
    """The faults of a key that is not in its table: one, or one per key below it where each went its own way."""
    path = (*at, key)
    state.guesses += 1
    if state.guesses > _MAX_GUESSES or len(key) > _MAX_KEY_CHARS:
        yield Fault(UNKNOWN_KEY, path, _no_key(state, path, value), "take it out")
        return
    slip = _misspelt(table, table.spellings(), key, value)
    moved = move(state.generation, state.root, path)
    if moved is not None and not (slip and not moved.to and _distance(key, slip) == 1 and len(key) > 3):
        yield from _moved(state, path, value, moved)
    else:
        yield _meant(state, table, at, key, value, slip)


def lookup(values: Mapping[str, Any], path: KeyPath) -> Any:
    """The value at a key path; None where there is none."""
    current: Any = values
    for part in path:
        is_there = (
            part in current if isinstance(current, dict) else isinstance(current, list) and _indexes(current, part)
        )
        if not is_there:
            return None
        current = current[part]
    return current


def _indexes(entries: list[Any], part: str | int) -> bool:
    return isinstance(part, int) and part < len(entries)


# --- keys of another generation ------------------------------------------------------------------


def _moved(state: Walk, path: KeyPath, value: Any, moved: Move, depth: int = 0) -> Iterator[Fault]:
    """A table goes as a whole where it can, else key by key."""
    row = state.generation.find(state.root, moved.to) if moved.to else None
    is_free = row is not None and not (row.table or row.map or row.array)  # its keys are the user's own
    if isinstance(value, dict) and value and depth < _MAX_DEPTH and not is_free:
        together = _table_as_moved(state, path, value, moved)
        if together is None:
            told: list[Fault] = []
            for name, below in value.items():
                step = move(state.generation, state.root, (*path, name)) or Move(moved.was_of, (), "", moved.why)
                told.extend(_moved(state, (*path, name), below, step, depth + 1))
            if depth == 0 and not all(fault.patch for fault in told):  # else it goes when its last key has gone
                yield _parted(state, path, moved)
            yield from told
            return
        value = together
    yield _moved_fault(state, path, value, moved)


def _parted(state: Walk, path: KeyPath, moved: Move) -> Fault:
    """What is to be said of a table whose keys go different ways."""
    what = f"{dotted(path)} is a table of prime-rl {moved.was_of}; {state.generation.name} has its keys elsewhere"
    return Fault(OTHER_GENERATION, path, what, "move or take out each of its keys, as told below, then the table")


def _table_as_moved(state: Walk, path: KeyPath, value: dict[str, Any], moved: Move) -> dict[str, Any] | None:
    """The table under its present name, its keys renamed; None where they go different ways."""
    if not moved.to or moved.how or lookup(state.values, moved.to) is not None:
        return None
    made: dict[str, Any] = {}
    for name, below in value.items():
        step = move(state.generation, state.root, (*path, name)) or Move("", (*moved.to, name), "", "")
        row = state.generation.find(state.root, step.to) if step.to else None
        if row is None or step.how or step.to[:-1] != moved.to:
            return None
        inside = _table_as_moved(state, (*path, name), below, step) if row.table and isinstance(below, dict) else below
        if inside is None:
            return None
        made[str(step.to[-1])] = inside
    return made


def _moved_fault(state: Walk, path: KeyPath, value: Any, moved: Move) -> Fault:
    name, generation = dotted(path), state.generation.name
    was = f"{name} is a key of prime-rl {moved.was_of}"
    if not moved.to:
        why = moved.why or f"{generation} has nothing in its place"
        empty: Patch = {name: None} if value == {} else {}
        return Fault(OTHER_GENERATION, path, f"{was}; {why}", f"take it out: {why}", empty)
    to = dotted(moved.to)
    what = f"{was}; renamed in {generation}: {to}"
    made = moved_value(moved.how, value)
    if made is not None and lookup(state.values, moved.to) is not None:
        same = lookup(state.values, moved.to) == made
        patch: Patch = {name: None} if same or made == {} else {}
        return Fault(OTHER_GENERATION, path, what, f"take it out: {to} is set already", patch)
    if made is None or not is_shallow(made):
        fix = f"say it as {to}: its value has to be thought over"
        if moved.how == "sources":
            fix = f"[[{to}]] with env.taskset.id, and its args under the names that the taskset has for them"
        return Fault(OTHER_GENERATION, path, what, fix)
    fix = f"[{to}]" if isinstance(made, dict | list) else f"{to} = {describe_short(made)}"
    return Fault(OTHER_GENERATION, path, what, fix, {name: None, to: made})


# --- misspellings, and keys that belong elsewhere ------------------------------------------------


def _meant(state: Walk, table: TableRows, at: KeyPath, key: str, value: Any, slip: str | None) -> Fault:
    path = (*at, key)
    home = None if slip and (len(key) > 3 or _distance(key, slip) == 0) else _home(state, at, key, value)
    if slip and home is None:
        return _renamed_fault(state, path, value, (*at, slip), f"did you mean {slip}?")
    home = home or _home(state, at, key, value)
    if home is not None:
        where = f"[{dotted(home[:-1])}]" if home[:-1] else "the top of the file"
        return _renamed_fault(state, path, value, home, f"it belongs in {where}")
    loose = nearest(key, table.spellings())
    if loose:
        return _renamed_fault(state, path, value, (*at, loose), f"did you mean {loose}?")
    far = _far(state, key, value)
    if far is not None:
        return _renamed_fault(state, path, value, far, f"did you mean {dotted(far)}?")
    legal = ", ".join(table.names())
    return Fault(UNKNOWN_KEY, path, _no_key(state, path, value), f"take it out; {_where(at)} knows {legal}")


def _renamed_fault(state: Walk, path: KeyPath, value: Any, meant: KeyPath, why: str) -> Fault:
    name, to = dotted(path), dotted(meant)
    what = f"{_no_key(state, path, value)}; {why}"
    taken = lookup(state.values, meant)
    if taken is not None and isinstance(value, dict):
        return Fault(UNKNOWN_KEY, path, what, f"move its keys to [{to}]")
    if taken is not None:
        return Fault(UNKNOWN_KEY, path, what, f"take it out: {to} is set already", {name: None})
    fix = f"[{to}]" if isinstance(value, dict | list) else f"{to} = {describe_short(value)}"
    return Fault(UNKNOWN_KEY, path, what, fix, {name: None, to: value} if is_shallow(value) else {})


def _no_key(state: Walk, path: KeyPath, value: Any) -> str:
    kind = "table" if isinstance(value, dict) and len(path) == 1 else "key"
    return f"{dotted(path)} is not a {kind} of {_where(path[:-1])} in {state.name}"


def _where(at: KeyPath) -> str:
    return f"[{dotted(at)}]" if at else "the file"


def _misspelt(table: TableRows, names: Iterable[str], key: str, value: Any) -> str | None:
    """The key that differs from this one in a letter or a few; the one that could have the value first."""
    wanted = key.lower().replace("-", "_")
    best: tuple[int, bool, str] | None = None
    for name in names:
        distance = _distance(wanted, name)
        if distance > max(1, min(len(wanted), len(name)) // 3):
            continue
        row = table.row(name) or table.row(table.alias(name) or "")
        ranked = (distance, row is None or not fits(row, value), name)
        if best is None or ranked < best:
            best = ranked
    return best[2] if best else None


def _distance(key: str, name: str) -> int:
    """Edits between two names; a thousand where their lengths tell already that there are too many."""
    plain = key.lower().replace("-", "_")
    return 1000 if abs(len(plain) - len(name)) > max(1, min(len(plain), len(name)) // 3) else edit_distance(plain, name)


def _home(state: Walk, at: KeyPath, key: str, value: Any) -> KeyPath | None:
    """Another table of the file that has this very key: where the value fits, the closest first."""
    plain = key.replace("-", "_")
    homes = [(path, row) for path, row in state.generation.paths(state.root) if path[-1] == plain and path[:-1] != at]
    ranked = sorted(homes, key=lambda home: (not _holds(state, home[1], value), -_shared(home[0], at), len(home[0])))
    return ranked[0][0] if ranked and _holds(state, ranked[0][1], value) else None


def _holds(state: Walk, row: Row, value: Any) -> bool:
    """Whether a key could have the value; of a table, whether it knows most of the keys."""
    if not isinstance(value, dict):
        return fits(row, value)
    below = state.generation.below(row)
    if below is None:
        return fits(row, value)
    return not value or 2 * sum(below.row(name) is not None for name in value) >= len(value)


def _shared(path: KeyPath, at: KeyPath) -> int:
    return next((depth for depth, (a, b) in enumerate(zip(path, at, strict=False)) if a != b), min(len(path), len(at)))


def _far(state: Walk, key: str, value: Any) -> KeyPath | None:
    """A misspelt key of another table."""
    best: tuple[int, int, KeyPath] | None = None
    for path, row in state.generation.paths(state.root):
        name = str(path[-1])
        distance = _distance(key, name)
        if distance > max(1, min(len(key), len(name)) // 4) or len(name) < 4 or not _holds(state, row, value):
            continue
        if best is None or (distance, len(path)) < best[:2]:
            best = distance, len(path), path
    return best[2] if best else None


# --- keys that pass unread -----------------------------------------------------------------------


def passing(state: Walk, table: TableRows, path: KeyPath, value: Any) -> Iterator[Fault]:
    """A warning for a key that prime-rl hands on unread, where it looks like a slip."""
    if "vllm" in str(path[-2:-1]):
        yield from passing_vllm(state, path, value, table.names())
        return
    key = str(path[-1])
    if len(key) < 3 or len(key) > _MAX_KEY_CHARS:
        return
    close = [name for name in table.names() if len(name) > 3 and _distance(key, name) <= 1]
    if close:
        what = f"{dotted(path)} is handed on unread; {close[0]} is one letter away"
        yield _slipped(state, path, value, close[0], what)


def passing_vllm(state: Walk, path: KeyPath, value: Any, listed: Iterable[str]) -> Iterator[Fault]:
    """A warning for a key that vLLM has no argument for."""
    key = str(path[-1])
    known = vllm_arguments()
    if key.replace("-", "_") in known or len(key) > _MAX_KEY_CHARS:
        return
    meant = nearest(key, [*listed, *sorted(known)])
    what = f"{dotted(path)} goes to vLLM unread, and vLLM has no such argument"
    if meant and _distance(key, meant) <= _SLIP:
        yield _slipped(state, path, value, meant, f"{what}; did you mean {meant}?")
    else:  # a name that has little of this one may want another value, too
        near = f"set {dotted((*path[:-1], meant))} in its place" if meant else "ask vllm serve --help"
        yield Fault(PASSED_THROUGH, path, what, f"take it out, or {near}")


def _slipped(state: Walk, path: KeyPath, value: Any, meant: str, what: str) -> Fault:
    name, home = dotted(path), (*path[:-1], meant)
    to = dotted(home)
    if lookup(state.values, home) is not None:
        return Fault(PASSED_THROUGH, path, what, f"take it out: {to} is set already", {name: None})
    fix = f"[{to}]" if isinstance(value, dict | list) else f"{to} = {describe_short(value)}"
    return Fault(PASSED_THROUGH, path, what, fix, {name: None, to: value} if is_shallow(value) else {})


@cache
def vllm_arguments() -> frozenset[str]:
    with open(shipped("vllm_arguments.json"), encoding="utf-8") as file:
        return frozenset(json.load(file)["arguments"])
