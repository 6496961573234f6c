"""Evaluates the conditions of prime-rl's validators for one file. Pure.

A condition is `KEY set|unset|on|off|written|unwritten`, or `LEFT OPERATOR RIGHT`. An operand is a key, a number, true,
false, a 'text', `#KEY` for the number of elements, `KEY@` for the text before an "@", `KEY|KEY` for the first that is
set, `KEY&KEY` for the texts that are set with a "+" between them; `+` and `*` join operands. The operators are those of
`_TESTS` and `_compare`: `A joined B C` is whether C is the path B below A. A condition without a value on each side is
undecided.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from math import prod
from pathlib import PurePosixPath
from typing import Any, NamedTuple

from prime_train.config.prime_rl.resolve import Held, ResolvedView, Undecided
from prime_train.toml.document import KeyPath

_TESTS = ("set", "unset", "on", "off", "written", "unwritten")


class NamedList(NamedTuple):
    """Names that a validator accepts, with the place they come from and the day it was read."""

    source: str
    as_of: str
    names: frozenset[str]


class _Condition(NamedTuple):
    left: str
    operator: str
    right: list[str]
    is_test: bool  # of the left key alone


@cache
def _parse(condition: str) -> _Condition:
    left, operator, *right = condition.split()
    return _Condition(left, operator, right, operator in _TESTS)


class _Operand(NamedTuple):
    """`kind` is constant, key, length, before_at, first, texts or sum; `of` is the value, the key or the operands."""

    kind: str
    of: Any


@cache
def _parse_operand(text: str) -> _Operand:
    if text.startswith("'"):
        return _Operand("constant", text[1:-1])
    if text in ("true", "false"):
        return _Operand("constant", text == "true")
    if "+" in text or "*" in text:
        return _Operand("sum", [[_parse_operand(each) for each in term.split("*")] for term in text.split("+")])
    if "|" in text:
        return _Operand("first", [_parse_operand(each) for each in text.split("|")])
    if "&" in text:
        return _Operand("texts", [_parse_operand(each) for each in text.split("&")])
    if text.isdigit():
        return _Operand("constant", int(text))
    if text.endswith("@"):
        return _Operand("before_at", text[:-1])
    return _Operand("length", text[1:]) if text.startswith("#") else _Operand("key", text)


@cache
def _parts(key: str) -> KeyPath:
    return tuple(key.split("."))


class ValidatorRun:
    """One validator at one table of its scope, for one file, with the keys that its conditions read."""

    def __init__(
        self,
        entry: Mapping[str, Any],
        place: KeyPath,
        view: ResolvedView,
        lists: Mapping[str, NamedList],
        whole: bool,
        alone: bool = False,
    ) -> None:
        self.entry, self.place = entry, place
        self._view, self._lists, self._whole = view, lists, whole
        self.alone = alone  # whether the shared keys have not reached this part yet
        self.read: dict[KeyPath, Held] = {}

    def fires(self) -> bool:
        """Whether prime-rl refuses the file by this validator; False if that is undecided."""
        entry = self.entry
        try:
            for condition in entry.get("if", ()):
                if not self._holds(condition):
                    return False
            for condition in entry.get("need", ()):
                if self._holds(condition):
                    return False
        except Undecided:
            return False
        return True

    def held(self, key: str) -> Held:
        """The value of a key. Raises Undecided where it is faulty or may be set in another file."""
        path = self.place + _parts(key)
        found = self._view.get_sound(path)
        if not self._whole and not found.at:
            raise Undecided
        self.read[path] = found
        return found

    def _holds(self, condition: str) -> bool:
        left, operator, right, is_test = _parse(condition)
        if not is_test:
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
                table = self.place + _parts(left)
                named = [(*table, name) for name in self._lists[right[0][1:]].names.intersection(a or ())]
                self.read |= {path: Held(a[path[-1]], path) for path in sorted(named)}
                return not named
            case "holds":
                return isinstance(a, list | tuple) and self._value(right[0]) in a
            case "joined":
                below, whole = self._value(right[0]), self._value(right[1])
                if None in (a, below, whole):
                    return False
                return _folders(str(whole)) == _folders(str(PurePosixPath(str(a), str(below))))
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
        paths = list(self._view.elements(self.place + _parts(left)))
        keys = right[0].split("|")
        values = [next((v for key in keys if (v := self._of_element(path, key))), None) for path in paths]
        if operator == "unique":
            given = [value for value in values if value is not None]
            return len(set(given)) == len(given)
        return any(values) if operator == "any" else all(values)

    def _of_element(self, element: KeyPath, key: str) -> Any:
        if "&" in key:
            return _join([self._of_element(element, each) for each in key.split("&")])
        value = self._view.get_sound((*element, *key.removesuffix("@").split("."))).value
        return value.partition("@")[0] if key.endswith("@") and isinstance(value, str) else value

    def _value(self, operand: str) -> Any:
        """The value of an operand."""
        return self._value_of(_parse_operand(operand))

    def _value_of(self, operand: _Operand) -> Any:
        kind, of = operand
        if kind == "key":
            return self.held(of).value
        if kind == "constant":
            return of
        if kind == "length":
            value = self.held(of).value
            return len(value) if isinstance(value, dict | list | tuple) else 0
        if kind == "before_at":
            return str(self.held(of).value).partition("@")[0]
        if kind == "texts":
            return _join([self._value_of(each) for each in of])
        if kind == "first":
            return next((value for each in of if (value := self._value_of(each)) not in (None, "")), None)
        products = [[self._value_of(each) for each in term] for term in of]
        if not all(isinstance(value, int | float) for product in products for value in product):
            raise Undecided
        return sum(prod(product) for product in products)


def _join(texts: list[Any]) -> str:
    """The texts that are set, as the id of an environment is made of several."""
    return "+".join(text for text in texts if isinstance(text, str) and text)


def _folders(path: str) -> list[str]:
    """The parts of a path, as pathlib has them."""
    return ["/"] * path.startswith("/") + [part for part in path.split("/") if part not in ("", ".")]
