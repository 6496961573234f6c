"""Judges a prime-rl file by the validators of its generation, which registry/prime_rl_validators/ has as data. Pure.

A validator stands in a scope: the tables of a root that its keys are relative to. It fires where each condition in
"if" holds, and none in "need". A condition is `KEY set|unset|on|off|written|unwritten`, or `LEFT OPERATOR RIGHT`. An
operand is a key, a number, true, false, a 'text', `#KEY` for the number of elements, `KEY@` for the text before an "@",
`KEY|KEY` for the first that is set; `+` and `*` join operands. The operators are those of `_TESTS` and `_compare`. A
condition without a value on each side is undecided, and its validator does not fire. "patch" has the values of keys
with which it does not fire, if there are such that suit most files.
"""

# Importing pathlib takes longer than everything here.
# ruff: noqa: PTH118

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from functools import cache
from math import prod
from typing import Any, NamedTuple

from prime_train.config.parsed_config import REFUSED, Fault
from prime_train.config.prime_rl.resolve import Filled, Held, Undecided, View, fill
from prime_train.config.prime_rl.schema import generation_before
from prime_train.config.prime_rl.validate import Walk
from prime_train.config.prime_rl.validate_value import value_fault
from prime_train.core import outside
from prime_train.core.paths import shipped
from prime_train.toml.document import KeyPath, dotted, to_toml, value_at

_TESTS = ("set", "unset", "on", "off", "written", "unwritten")


class NamedList(NamedTuple):
    """Names that a validator accepts, with the place they come from and the day it was read."""

    source: str
    as_of: str
    names: frozenset[str]


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
    folder = shipped("prime_rl_validators")
    known = [name.removesuffix(".json") for name in os.listdir(folder)]
    with outside.open_regular(os.path.join(folder, f"{generation_before(generation, known)}.json")) as file:
        content = json.load(file)
    lists = {
        name: NamedList(each["source"], each["as_of"], frozenset(each["names"]))
        for name, each in content["lists"].items()
    }
    return Validators(**{name: content[name] for name in Validators._fields} | {"lists": lists})


def judge(walk: Walk) -> Iterator[Fault]:
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
    for check, asked in _ask(walk, filled):
        if not asked.fires(check.entry) or (check.entry["id"], check.place) in fired:
            continue
        if contradicted.isdisjoint((*asked.read, *(held.at for held in asked.read.values()))):
            fired.add((check.entry["id"], check.place))
            yield _fault(walk, check.entry, asked)


def _unfit(walk: Walk, filled: Filled) -> Iterator[Fault]:
    """A fault for each shared value that is legal where it stands, and not as the value of a side."""
    known = {fault.key for fault in walk.faults}
    for side, shared in filled.shared.items():
        row = walk.generation.find(walk.root, side)
        value = value_at(filled.values, side)
        fault = value_fault(row, value, side) if row is not None and shared not in known else None
        if fault is not None and fault.severity is None and not (row and (row.table or row.array or row.map)):
            known.add(shared)
            what = f"{dotted(shared)} is the value for {dotted(side)} too: {fault.what}"
            yield Fault(fault.code, shared, what, f"give a value that suits {dotted(side)}", keys=(shared, side))


class Check(NamedTuple):
    """One validator and one table of its scope."""

    entry: Mapping[str, Any]
    place: KeyPath


def keys_read(walk: Walk) -> Iterator[tuple[Check, frozenset[KeyPath]]]:
    """Each check with the keys of the file that it reads. Another file with the same keys, and with the same values of
    these, has the same result of the check."""
    filled = fill(walk.values, load_validators(walk.generation.name).shared.get(walk.root, {}))
    for check, asked in _ask(walk, filled):
        asked.fires(check.entry)
        yield check, frozenset(key for path in asked.sought for key in _set_by(path, filled.origin))


def _set_by(path: KeyPath, origin: Mapping[KeyPath, KeyPath]) -> Iterator[KeyPath]:
    """The keys of the file that a value may come from: its own, and the shared keys that fill it or a part of it."""
    yield path
    for side, shared in origin.items():
        if path[: len(side)] == side:
            yield (*shared, *path[len(side) :])
        elif side[: len(path)] == path:
            yield shared


def any_fires(walk: Walk, checks: Iterable[Check]) -> bool:
    """Whether one of the checks fires, or a shared key contradicts one side."""
    filled = fill(walk.values, load_validators(walk.generation.name).shared.get(walk.root, {}))
    return bool(filled.conflicts) or any(asked.fires(check.entry) for check, asked in _ask(walk, filled, checks))


def _ask(walk: Walk, filled: Filled, checks: Iterable[Check] | None = None) -> Iterator[tuple[Check, _Asked]]:
    """Each check with what it asks. Without `checks`, every validator at every table of its scope.

    Where a shared value wins, prime-rl validates each part with its own values first, so these are asked, too.
    """
    data = load_validators(walk.generation.name)
    shared = data.shared.get(walk.root, {})
    faulty = [fault.key for fault in walk.faults if fault.severity is None]
    view = View(walk.generation, walk.root, filled, faulty)
    has_earlier = filled.origin and "wins" in shared
    alone = View(walk.generation, walk.root, fill(walk.values, {}), faulty) if has_earlier else None
    if checks is None:
        scopes = {
            name: [place for table in tables.get(walk.root, ()) for place in _places(view, table)]
            for name, tables in data.scopes.items()
        }
        checks = (Check(entry, place) for entry in data.validators for place in scopes[entry["at"]])
    for check in checks:
        yield check, _Asked(view, check.place, data.lists, walk.whole)
        if alone is not None and check.place:
            yield check, _Asked(alone, check.place, data.lists, walk.whole, alone=True)


@cache
def _words(condition: str) -> list[str]:
    return condition.split()


def _places(view: View, table: str) -> Iterator[KeyPath]:
    """The tables of a scope that exist. "[]" stands for each element of an array or a map."""
    with suppress(Undecided):  # a table that the user imported may not have them
        yield from _places_of(view, table)


def _places_of(view: View, table: str) -> Iterator[KeyPath]:
    around, brackets, below = table.partition("[]")
    path: KeyPath = tuple(around.split(".")) if around else ()
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


def _places_below(view: View, element: KeyPath, table: str) -> Iterator[KeyPath]:
    path = (*element, *table.removesuffix("[]").split("."))
    if view.get(path[:-1]).value is not None:
        yield from view.elements(path)


class _Asked:
    """One validator at one place, with the keys that its conditions read."""

    def __init__(
        self,
        view: View,
        place: KeyPath,
        lists: Mapping[str, NamedList],
        whole: bool,
        alone: bool = False,
    ) -> None:
        self._view, self.place, self._lists, self._whole = view, place, lists, whole
        self.alone = alone  # whether the shared keys have not reached this part yet
        self.read: dict[KeyPath, Held] = {}
        self.sought: list[KeyPath] = []  # also those without a value that is known

    def fires(self, entry: Mapping[str, Any]) -> bool:
        try:
            if not all(self._holds(condition) for condition in entry.get("if", ())):
                return False
            return not any(self._holds(condition) for condition in entry.get("need", ()))
        except Undecided:
            return False

    def held(self, key: str) -> Held:
        """The value of a key. Raises Undecided where it is faulty or may be set in another file."""
        path = (*self.place, *key.split("."))
        self.sought.append(path)
        found = self._view.get_sound(path)
        if not self._whole and not found.at:
            raise Undecided
        self.read[path] = found
        return found

    def _holds(self, condition: str) -> bool:
        left, operator, *right = _words(condition)
        if operator not in _TESTS:
            return self._compare(left, operator, right)
        held = self.held(left)
        match operator:
            case "set":
                return held.value is not None
            case "unset":
                return held.value is None
            case "written" | "unwritten":
                return bool(held.at) is (operator == "written")
            case "on":
                return bool(held.value) or held.value == {}
            case _:
                return held.value is False or held.value is None

    def _compare(self, left: str, operator: str, right: list[str]) -> bool:
        if operator in ("unique", "any", "all", "each"):
            return self._over_elements(left, operator, right)
        a = self._value(left)
        match operator:
            case "==" | "!=":
                return (a == self._value(right[0])) is (operator == "==")
            case "in":
                return a in (self._lists[right[0][1:]].names if right[0].startswith("@") else right)
            case "keys-in":
                return set(a or ()).issubset(self._lists[right[0][1:]].names)
            case "keys-outside":
                table = (*self.place, *left.split("."))
                named = [(*table, name) for name in self._lists[right[0][1:]].names.intersection(a or ())]
                self.read |= {path: Held(a[path[-1]], path) for path in sorted(named)}
                return not named
            case "ends":
                return bool(re.fullmatch(r"step_\d+", str(a).rstrip("/").rpartition("/")[2]))
        b = self._value(right[0])
        if a is None or b is None or isinstance(a, dict | list) or isinstance(b, dict | list):
            raise Undecided
        match operator:
            case "inside":
                return _folders(str(a))[:-1] == _folders(str(b))
            case "port":
                found = re.match(r"\w+://[^/]*?:(\d+)(?:/|$)", str(a))
                return found is not None and int(found[1]) == b
        if not isinstance(a, int | float) or not isinstance(b, int | float):
            raise Undecided
        match operator:
            case "divides":
                return a != 0 and b % a == 0
            case "<":
                return a < b
            case "<=":
                return a <= b
            case ">":
                return a > b
            case ">=":
                return a >= b
            case _:
                raise ValueError(f"{operator} is no operator")

    def _over_elements(self, left: str, operator: str, right: list[str]) -> bool:
        held = self.held(left)
        if operator == "each":
            limit = self._value(right[1])
            return all(item > limit for item in held.value if isinstance(item, int | float))
        paths = list(self._view.elements((*self.place, *left.split("."))))
        keys = right[0].split("|")
        values = [next((v for key in keys if (v := self._of_element(path, key))), None) for path in paths]
        if operator == "unique":
            given = [value for value in values if value is not None]
            return len(set(given)) == len(given)
        return any(values) if operator == "any" else all(values)

    def _of_element(self, element: KeyPath, key: str) -> Any:
        value = self._view.get_sound((*element, *key.removesuffix("@").split("."))).value
        return value.partition("@")[0] if key.endswith("@") and isinstance(value, str) else value

    def _value(self, operand: str) -> Any:
        """The value of an operand."""
        if operand.startswith("'"):
            return operand[1:-1]
        if operand in ("true", "false"):
            return operand == "true"
        products = [[self._atom(atom) for atom in term.split("*")] for term in operand.split("+")]
        if len(products) == 1 and len(products[0]) == 1:
            return products[0][0]
        if not all(isinstance(value, int | float) for product in products for value in product):
            raise Undecided
        return sum(prod(product) for product in products)

    def _atom(self, atom: str) -> Any:
        if "|" in atom:
            return next((v for each in atom.split("|") if (v := self._atom(each)) not in (None, "")), None)
        if atom.isdigit():
            return int(atom)
        if atom.endswith("@"):
            return str(self.held(atom[:-1]).value).partition("@")[0]
        held = self.held(atom.removeprefix("#"))
        if not atom.startswith("#"):
            return held.value
        return len(held.value) if isinstance(held.value, dict | list | tuple) else 0


def _folders(path: str) -> list[str]:
    """The parts of a path, as pathlib has them."""
    return ["/"] * path.startswith("/") + [part for part in path.split("/") if part not in ("", ".")]


def _fault(walk: Walk, entry: Mapping[str, Any], asked: _Asked) -> Fault:
    written = [held.at for held in asked.read.values() if held.at]
    at = written[-1] if written else asked.place
    told = ", ".join(_describe(path, held) for path, held in asked.read.items())
    why = f"{entry['why']}; prime-rl {walk.generation.name} refuses it ({entry['source']})"
    if asked.alone:
        why += f", and validates [{dotted(asked.place)}] before it gives it the shared keys"
    front = f" in [{dotted(asked.place)}]" if asked.place else ""
    keys = (*asked.read, *written)
    patch = {dotted((*asked.place, *key.split("."))): value for key, value in entry.get("patch", {}).items()}
    return Fault(REFUSED, at, told or f"[{dotted(asked.place)}]", f"{entry['fix']}{front}", patch, why=why, keys=keys)


def _describe(path: KeyPath, held: Held) -> str:
    name = dotted(path)
    if held.value is None:
        return f"{name} is not set"
    if isinstance(held.value, dict):
        return f"[{name}] is set" if held.at else f"[{name}] is set by default"
    value = to_toml(held.value) if len(str(held.value)) < 80 else "..."
    return f"{name} = {value}" + ("" if held.at else " (default)")
