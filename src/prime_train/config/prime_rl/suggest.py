"""Explains a key that prime-rl does not know: a misspelling, a key of another generation, a key of another table.

Changes nothing.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from typing import Any, Protocol

from prime_train.config.parsed_config import OTHER_GENERATION, PASSED_THROUGH, UNKNOWN_KEY, Fault
from prime_train.config.prime_rl.renames import Move, convert_moved, is_shim, move
from prime_train.config.prime_rl.schema import SchemaGeneration, load
from prime_train.config.prime_rl.validate_value import fits
from prime_train.config.schema import Field, Table, may_be, table_below
from prime_train.config.validate_value import (
    assignment,
    describe_short,
    describe_unknown,
    is_shallow,
    misplaced,
    name_table,
)
from prime_train.core.findings import Patch, Severity
from prime_train.core.installation import shipped
from prime_train.toml.did_you_mean import edit_distance, nearest
from prime_train.toml.document import KeyPath, count_shared, dotted, value_at

_GPU_LISTS = ("trainer_gpu_ids", "inference_gpu_ids", "teacher_gpu_ids")
_MAX_GUESSES = 200  # unknown keys that are compared with every legal key; a file with more is not a config
_MAX_DEPTH = 20  # of a table of another generation; deeper keys are not reported one by one
_MAX_SLIP = 2  # letters; a name at a greater distance is another word
_MAX_KEY_CHARS = 100  # a longer key is not a misspelling


class Walked(Protocol):
    """What an explanation reads of a walk through a file."""

    generation: SchemaGeneration
    root: str
    values: Mapping[str, Any]
    unlisted: int  # keys so far that no table lists
    aliased: dict[KeyPath, KeyPath]  # the key in the table -> the alias that the file uses


def explain_unknown(state: Walked, table: Table, path: KeyPath, value: Any) -> Iterator[Fault]:
    """The faults of a key that is not in its table: one, or one per key below it if these have moved apart."""
    key = str(path[-1])
    if state.unlisted > _MAX_GUESSES or len(key) > _MAX_KEY_CHARS:
        what = f"{describe_unknown(path, value)} in prime-rl {state.generation.name}"
        yield Fault(UNKNOWN_KEY, path, what, "take it out")
        return
    slip = _closest(table, key, value)
    moved = move(state.generation, state.root, path)
    if moved is not None and not (slip and not moved.to and _distance(key, slip) == 1 and len(key) > 3):
        yield from _explain_moved(state, path, value, moved)
    else:
        yield _explain_misspelt(state, table, path, value, slip)


# --- keys of another generation ------------------------------------------------------------------


def _explain_moved(state: Walked, path: KeyPath, value: Any, moved: Move, depth: int = 0) -> Iterator[Fault]:
    """The faults of a key of another generation. A table moves as a whole if it can, else key by key."""
    item = state.generation.find(state.root, moved.to) if moved.to else None
    is_free = item is not None and table_below(item.shape)[0] is None  # the user chooses its keys
    if isinstance(value, dict) and value and depth < _MAX_DEPTH and not is_free:
        renamed = _rename_keys(state, path, value, moved)
        if renamed is None:
            faults: list[Fault] = []
            for name, below in value.items():
                step = move(state.generation, state.root, (*path, name)) or Move(moved.was_of, (), "", moved.why)
                faults.extend(_explain_moved(state, (*path, name), below, step, depth + 1))
            if depth == 0 and not all(fault.safe for fault in faults):  # else the patches remove the table, too
                was = f"{dotted(path)} is a table of prime-rl {moved.was_of}"
                what = f"{was}; {state.generation.name} has its keys elsewhere"
                fix = "move or take out each of its keys, as listed below, then the table"
                yield Fault(OTHER_GENERATION, path, what, fix)
            yield from faults
            return
        value = renamed
    yield _moved_fault(state, path, value, moved)


def _rename_keys(state: Walked, path: KeyPath, value: dict[str, Any], moved: Move) -> dict[str, Any] | None:
    """The table with the names that its keys have in this generation; None if the keys have moved apart."""
    if not moved.to or moved.how or value_at(state.values, moved.to) is not None:
        return None
    made: dict[str, Any] = {}
    for name, below in value.items():
        step = move(state.generation, state.root, (*path, name)) or Move("", (*moved.to, name), "", "")
        item = state.generation.find(state.root, step.to) if step.to else None
        if item is None or step.how or step.to[:-1] != moved.to:
            return None
        is_table = may_be(item.shape, Table) and isinstance(below, dict)
        inside = _rename_keys(state, (*path, name), below, step) if is_table else below
        if inside is None:
            return None
        made[str(step.to[-1])] = inside
    return made


def _moved_fault(state: Walked, path: KeyPath, value: Any, moved: Move) -> Fault:
    name, generation = dotted(path), state.generation.name
    was = f"{name} is a key of prime-rl {moved.was_of}"
    if not moved.to:
        why = moved.why or f"{generation} has nothing in its place"
        return Fault(OTHER_GENERATION, path, f"{was}; {why}", f"take it out: {why}", {name: None}, safe=value == {})
    to = dotted(moved.to)
    what = f"{was}; renamed in {generation}: {to}"
    made = convert_moved(moved.how, value)
    present = value_at(state.values, moved.to)
    if made is not None and present is not None:
        same = present == made or made == {}
        patch: Patch = {name: None} if same else {}
        fix = f"take it out: {to} is set already" + ("" if same else f", to {describe_short(present)}")
        return Fault(OTHER_GENERATION, path, what, fix, patch, safe=same)
    if made is None or not is_shallow(made):
        fix = f"set {to}, and choose its value again"
        if moved.how == "sources":
            fix = f"[[{to}]] with env.taskset.id, and its args under the names that the taskset has for them"
        return Fault(OTHER_GENERATION, path, what, fix)
    doubt = _why_unsafe(state, moved, value)
    fix = assignment(moved.to, made) + (f"; {doubt}" if doubt else "")
    item = state.generation.find(state.root, moved.to)
    if item is not None and _holds(item, made) and not moved.how:
        state.aliased[moved.to] = path  # so the rules judge the value at once, where it is written
        _record_renamed(state, path, value_at(state.values, path), made)
    severity = Severity.WARNING if is_shim(state.generation.name, path) else None
    what += f"; {generation} still reads it" if severity is not None else ""
    return Fault(OTHER_GENERATION, path, what, fix, {name: None, to: made}, severity=severity, safe=not doubt)


def _record_renamed(state: Walked, path: KeyPath, written: Any, made: Any) -> None:
    """Records where the keys of a moved table are written that have other names in this generation."""
    if isinstance(written, dict) and isinstance(made, dict) and len(written) == len(made):
        for (old, below), (new, inside) in zip(written.items(), made.items(), strict=True):
            if old != new:
                state.aliased[(*path, new)] = (*path, old)
            _record_renamed(state, (*path, old), below, inside)


def _why_unsafe(state: Walked, moved: Move, value: Any) -> str:
    """What the user has to check, if the converted value may not mean what the value meant; else ""."""
    if moved.how == "sources" and any("args" in item for item in value if isinstance(item, dict)):
        return "compare the names of its args with those of the taskset"
    if moved.how != "count":
        return ""
    before = load(moved.was_of)
    items = {key: before.find("rl", (key,)) for key in _GPU_LISTS}
    lists = {key: state.values.get(key, item.default if item is not None else ()) for key, item in items.items()}
    ids = [number for listed in lists.values() if isinstance(listed, list | tuple) for number in listed]
    shared = sorted({number for number in ids if ids.count(number) > 1}, key=str)
    if shared:
        return f"GPU {', '.join(map(str, shared))} is listed twice, and a count gives each role GPUs of its own"
    if sorted(ids, key=str) != sorted(range(len(ids)), key=str):
        return f"a count takes the first GPUs, not {', '.join(map(str, ids))}: set CUDA_VISIBLE_DEVICES, too"
    return ""


# --- misspellings, and keys that belong elsewhere ------------------------------------------------


def _explain_misspelt(state: Walked, table: Table, path: KeyPath, value: Any, slip: str | None) -> Fault:
    """The fault of a key that no generation has. `slip` is the closest key of its table."""
    at, key = path[:-1], str(path[-1])
    unknown = f"{describe_unknown(path, value)} in prime-rl {state.generation.name}"
    slipped = _distance(key, slip) if slip else _MAX_SLIP + 1  # letters
    is_slip = slipped == 0 or (slipped <= _MAX_SLIP and len(key) > 3)
    home = _home(state, at, key, value)
    # A key that a table below has itself is no misspelling of one that looks like it: `game` is not `name`.
    if is_slip and (slipped == 0 or home is None or not at or home[: len(at)] != at):
        home = None
    safe, is_similar = False, True
    if home is not None:
        where = f"[{dotted(home[:-1])}]" if home[:-1] else "the top of the file"
        if _is_of_another_part(at, home):
            fix = f"take it out; {where} has a key of that name, for something else"
            return Fault(UNKNOWN_KEY, path, unknown, fix, {dotted(path): None}, meant=home)
        meant, why = home, f"it belongs in {where}"
        # above or below the table that it stands in
        is_near = home[:-1] == at[: len(home) - 1] or home[: len(at)] == at
        if others := _as_near(state, at, home, value):
            why += f" or {', '.join(f'[{dotted(path[:-1])}]' for path in others)}, which mean different things"
        safe = is_near and not others
    elif near := slip or nearest(key, _spellings(table)):
        meant, why = (*at, near), f"did you mean {near}?"
        is_similar = slip is not None
        safe = slip is not None and _is_certain(state, table, key, slip, value)
    elif far := _find_elsewhere(state, at, key, value):
        meant, why = far, f"did you mean {dotted(far)}?"
    else:
        return Fault(UNKNOWN_KEY, path, unknown, f"take it out; {name_table(at)} knows {', '.join(table.fields)}")
    fault = Fault(UNKNOWN_KEY, path, f"{unknown}; {why}", "", safe=safe, meant=meant if is_similar else ())
    return misplaced(state.values, fault, value, meant)


_PARTS = ("inference", "train", "eval")


def _is_of_another_part(at: KeyPath, home: KeyPath) -> bool:
    """Whether a table is of the server, or of training or evaluation, and the other is not: a key there is another one.

    Between trainer and orchestrator a key may have been put into the wrong one.
    """
    here, there = ({part for part in path if part in _PARTS} for path in (at, home[:-1]))
    return bool(there) and bool(at) and not there <= here


def _is_certain(state: Walked, table: Table, key: str, slip: str, value: Any) -> bool:
    """Whether a key misspells another one without doubt: few letters of many, and no other table has the key itself."""
    distance, item = _distance(key, slip), table.find(slip)
    if item is None or not _holds(item, value) or 4 * distance > len(key):
        return False
    plain = key.lower().replace("-", "_")
    return distance == 0 or all(str(path[-1]) != plain for path, _ in state.generation.paths(state.root))


def _spellings(table: Table) -> Iterator[str]:
    """All names and aliases of the keys."""
    yield from table.fields
    yield from table.aliases


def _closest(table: Table, key: str, value: Any) -> str | None:
    """The key of the table that differs from `key` in few letters; of equals one that may hold the value."""
    ranked: list[tuple[int, bool, str]] = []
    for name in _spellings(table):
        distance = _distance(key, name)
        if distance <= max(1, min(len(key), len(name)) // 3):
            item = table.find(name)
            ranked.append((distance, item is None or not fits(item, value), name))
    return min(ranked)[2] if ranked else None


def _distance(key: str, name: str) -> int:
    """The edit distance of two names; 1000 if their lengths differ too much to compute it."""
    plain = key.lower().replace("-", "_")
    return 1000 if abs(len(plain) - len(name)) > max(1, min(len(plain), len(name)) // 3) else edit_distance(plain, name)


def _home(state: Walked, at: KeyPath, key: str, value: Any) -> KeyPath | None:
    """The place of the same key in another table, if it may hold the value; the nearest table counts."""
    plain = key.replace("-", "_")
    homes = [
        (path, item)
        for path, item in state.generation.paths_near(state.root, at)
        if path[-1] == plain and path[:-1] != at
    ]
    fitting = [path for path, item in homes if _holds(item, value)]
    return min(fitting, key=lambda path: (-count_shared(path, at), len(path)), default=None)


def _as_near(state: Walked, at: KeyPath, home: KeyPath, value: Any) -> list[KeyPath]:
    """The other places of the key of `home` that are as near: the user may have meant each of them.

    All places below the table `at` are as near as each other.
    """
    is_below = bool(at) and home[: len(at)] == at
    return [
        path
        for path, item in state.generation.paths_near(state.root, at)
        if path[-1] == home[-1] and path not in (home, (*at, home[-1])) and (is_below or len(path) == len(home))
        if count_shared(path, at) == count_shared(home, at) and _holds(item, value)
    ]


def _holds(item: Field, value: Any) -> bool:
    """Whether a key may have the value. For a table: whether it has most of the keys."""
    below, _ = table_below(item.shape)
    if below is None or not isinstance(value, dict):
        return fits(item, value)
    return not value or 2 * sum(name in below.fields for name in value) >= len(value)


def _find_elsewhere(state: Walked, at: KeyPath, key: str, value: Any) -> KeyPath | None:
    """The key of another table that `key` misspells; of equals the one nearest to the table `at`."""
    ranked: list[tuple[int, int, int, KeyPath]] = []
    for path, item in state.generation.paths_near(state.root, at):
        name = str(path[-1])
        distance = _distance(key, name)
        if distance <= max(1, min(len(key), len(name)) // 4) and len(name) >= 4 and _holds(item, value):
            ranked.append((distance, -count_shared(path, at), len(path), path))
    return min(ranked, key=lambda each: each[:3])[3] if ranked else None


# --- keys that prime-rl passes on -----------------------------------------------------------------------


_ALIKE = ("top_k", "top_p", "min_p")  # sampling parameters of vLLM that look like misspellings of each other


def check_passed_key(state: Walked, table: Table, path: KeyPath, value: Any) -> Iterator[Fault]:
    """A warning for a key that prime-rl passes on without reading it, if it looks like a misspelling."""
    if "vllm" in str(path[-2:-1]):
        yield from check_vllm_key(state, path, value, table.fields)
        return
    key = str(path[-1])
    if len(key) < 3 or len(key) > _MAX_KEY_CHARS or key in _ALIKE:
        return
    close = [name for name in table.fields if len(name) > 3 and _distance(key, name) <= 1]
    if close:
        what = f"{dotted(path)} is handed on unread; {close[0]} is one letter away"
        yield misplaced(state.values, Fault(PASSED_THROUGH, path, what, ""), value, (*path[:-1], close[0]))


def check_vllm_key(state: Walked, path: KeyPath, value: Any, listed: Iterable[str]) -> Iterator[Fault]:
    """A warning for a key that vLLM has no argument for."""
    key = str(path[-1])
    known = vllm_arguments()
    if key.replace("-", "_") in known or len(key) > _MAX_KEY_CHARS:
        return
    meant = nearest(key, [*listed, *sorted(known)])
    what = f"{dotted(path)} goes to vLLM unread, and vLLM has no such argument"
    if meant and _distance(key, meant) <= _MAX_SLIP:
        fault = Fault(PASSED_THROUGH, path, f"{what}; did you mean {meant}?", "")
        yield misplaced(state.values, fault, value, (*path[:-1], meant))
    else:  # no patch, because an argument with a different name may need another value
        near = f"set {dotted((*path[:-1], meant))} in its place" if meant else "see vllm serve --help"
        yield Fault(PASSED_THROUGH, path, what, f"take it out, or {near}")


@cache
def vllm_arguments() -> frozenset[str]:
    with open(shipped("vllm_arguments.json"), encoding="utf-8") as file:
        return frozenset(json.load(file)["arguments"])
