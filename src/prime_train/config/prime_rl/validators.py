"""Judges a prime-rl file by the validators of its generation, which registry/prime_rl_validators/ has as data. Pure.

A validator stands in a scope: the tables of a root that its keys are relative to. It fires where each condition in
"if" holds, and none in "need"; conditions.py has their grammar. Where one is undecided, the validator does not fire.
"patch" has the values of keys with which it does not fire, if there are such that suit most files. With "unless", what
a file does not show may make prime-rl accept it, so it is a warning.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from prime_train.config.parsed_config import REFUSED, Fault
from prime_train.config.prime_rl.conditions import NamedList, ValidatorRun
from prime_train.config.prime_rl.resolve import Filled, Held, ResolvedView, Undecided, fill
from prime_train.config.prime_rl.schema import generation_before
from prime_train.config.prime_rl.validate import PrimeRlWalk
from prime_train.config.prime_rl.validate_value import value_fault
from prime_train.config.schema import table_below
from prime_train.core import outside
from prime_train.core.findings import Severity
from prime_train.core.installation import shipped
from prime_train.toml.document import KeyPath, dotted, to_toml, value_at


class Validators(NamedTuple):
    """The validators of one generation, as their file has them."""

    scopes: Mapping[str, Mapping[str, list[str]]]  # name -> root -> the tables
    shared: Mapping[str, Mapping[str, list[tuple[str, list[str]]]]]  # root -> how -> (shared key, keys of the sides)
    lists: Mapping[str, NamedList]
    validators: list[dict[str, Any]]
    not_judged: list[dict[str, str]]  # the validators that a file alone cannot decide: source, reason


@cache
def load_validators(generation: str) -> Validators:
    """The validators of a generation; of the one before it if it has none of its own."""
    folder = Path(shipped("prime_rl_validators"))
    known = [path.stem for path in folder.iterdir()]
    with outside.open_regular(folder / f"{generation_before(generation, known)}.json") as file:
        content = json.load(file)
    lists = {
        name: NamedList(each["source"], each["as_of"], frozenset(each["names"]))
        for name, each in content["lists"].items()
    }
    return Validators(**{name: content[name] for name in Validators._fields} | {"lists": lists})


def judge(walk: PrimeRlWalk) -> Iterator[Fault]:
    """A fault for each validator that fires. `walk` is the finished walk of the file's values."""
    data = load_validators(walk.generation.name)
    filled = fill(walk.values, data.shared.get(walk.root, {}))
    for shared, side in filled.conflicts:
        what = f"{dotted(side)} differs from {dotted(shared)}, which is the value for each side"
        why = "prime-rl refuses a shared value that one side contradicts (utils/validation.py, propagate_shared_fields)"
        yield Fault(REFUSED, side, what, f"take out {dotted(side)}, or {dotted(shared)}", why=why, keys=(side, shared))
    yield from _unfit(walk, filled)
    contradicted = {conflict.side for conflict in filled.conflicts}  # prime-rl stops at these
    fired: set[tuple[str, KeyPath]] = set()
    for evaluation in _evaluate(walk, filled):
        if not evaluation.fires() or (evaluation.entry["id"], evaluation.place) in fired:
            continue
        if contradicted.isdisjoint((*evaluation.read, *(held.at for held in evaluation.read.values()))):
            fired.add((evaluation.entry["id"], evaluation.place))
            yield _fault(walk, evaluation)


def _unfit(walk: PrimeRlWalk, filled: Filled) -> Iterator[Fault]:
    """A fault for each shared value that is legal where it stands, and not as the value of a side."""
    known = {fault.key for fault in walk.faults}
    for side, shared in filled.shared.items():
        item = walk.generation.find(walk.root, side)
        if item is None or shared in known or table_below(item.shape)[0] is not None:
            continue
        fault = value_fault(item, value_at(filled.values, side), side)
        if fault is not None and fault.severity is None:
            known.add(shared)
            what = f"{dotted(shared)} is the value for {dotted(side)} too: {fault.what}"
            yield Fault(fault.code, shared, what, f"give a value that suits {dotted(side)}", keys=(shared, side))


def _evaluate(walk: PrimeRlWalk, filled: Filled) -> Iterator[ValidatorRun]:
    """The evaluations of every validator at every table of its scope.

    Where a shared value wins, prime-rl validates each part with its own values first, so a validator is evaluated with
    these, too.
    """
    data = load_validators(walk.generation.name)
    shared = data.shared.get(walk.root, {})
    faulty = [fault.key for fault in walk.faults if fault.severity is None]
    view = ResolvedView(walk.generation, walk.root, filled, faulty)
    has_earlier = filled.origin and "wins" in shared
    alone = ResolvedView(walk.generation, walk.root, fill(walk.values, {}), faulty) if has_earlier else None
    scopes = {
        name: [place for table in tables.get(walk.root, ()) for place in _places(view, table)]
        for name, tables in data.scopes.items()
    }
    for entry in data.validators:
        for place in scopes[entry["at"]]:
            yield ValidatorRun(entry, place, view, data.lists, walk.whole)
            if alone is not None and place:
                yield ValidatorRun(entry, place, alone, data.lists, walk.whole, alone=True)


def _places(view: ResolvedView, table: str) -> Iterator[KeyPath]:
    """The tables of a scope that exist. "[]" stands for each element of an array or a map."""
    with suppress(Undecided):  # a table that the user imported may not have them
        yield from _places_of(view, table)


@cache
def _split_scope(table: str) -> tuple[KeyPath, str, str]:
    around, brackets, below = table.partition("[]")
    return tuple(around.split(".")) if around else (), brackets, below


def _places_of(view: ResolvedView, table: str) -> Iterator[KeyPath]:
    path, brackets, below = _split_scope(table)
    if path and view.get(path).value is None:
        return
    if not brackets:
        yield path
        return
    for element in view.elements(path):
        place = (*element, *below.removeprefix(".").split(".")) if below else element
        if "[]" in below:
            yield from _places_below(view, element, below.removeprefix("."))
        elif not below or view.get(place).value is not None:
            yield place


def _places_below(view: ResolvedView, element: KeyPath, table: str) -> Iterator[KeyPath]:
    path = (*element, *table.removesuffix("[]").split("."))
    if view.get(path[:-1]).value is not None:
        yield from view.elements(path)


def _fault(walk: PrimeRlWalk, evaluation: ValidatorRun) -> Fault:
    entry, place = evaluation.entry, evaluation.place
    written = [held.at for held in evaluation.read.values() if held.at]
    at = written[-1] if written else place
    values = ", ".join(_describe(path, held) for path, held in evaluation.read.items())
    why = f"{entry['why']}; prime-rl {walk.generation.name} refuses it ({entry['source']})"
    if "unless" in entry:
        why += f", unless {entry['unless']}"
    if evaluation.alone:
        why += f", and validates [{dotted(place)}] before it gives it the shared keys"
    front = f" in [{dotted(place)}]" if place else ""
    keys = (*evaluation.read, *written)
    patch = {dotted((*place, *key.split("."))): value for key, value in entry.get("patch", {}).items()}
    severity = Severity.WARNING if "unless" in entry else None
    what, fix = values or f"[{dotted(place)}]", f"{entry['fix']}{front}"
    return Fault(REFUSED, at, what, fix, patch, why=why, severity=severity, keys=keys)


def _describe(path: KeyPath, held: Held) -> str:
    name = dotted(path)
    if held.value is None:
        return f"{name} is not set"
    if isinstance(held.value, dict):
        return f"[{name}] is set" if held.at else f"[{name}] is set by default"
    value = to_toml(held.value) if len(str(held.value)) < 80 else "..."
    return f"{name} = {value}" + ("" if held.at else " (default)")
