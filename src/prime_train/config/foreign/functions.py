"""The functions of conditions; conditions.py lists them. Opens no file: the scope knows which files exist."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Mapping
from typing import Any

from prime_train.config.foreign.scope import UNKNOWN, Scope, UnknownTruth, is_given, key_of
from prime_train.config.foreign.values import Open


def check_call(node: ast.Call) -> None:
    """Raises ValueError for a function that does not exist, or arguments that it does not take."""
    if not isinstance(node.func, ast.Name) or node.func.id not in FUNCTIONS or node.keywords or not node.args:
        raise ValueError(f"no function is called {ast.unparse(node.func)}")
    for argument in node.args:
        key_of(argument)
    if node.func.id in ("matches", "tables"):
        re.compile(_pattern(node))


def _given(node: ast.Call, scope: Scope) -> bool | UnknownTruth:
    return is_given(scope.value(key_of(node.args[0])))


def _written(node: ast.Call, scope: Scope) -> bool | UnknownTruth:
    return scope.is_written(key_of(node.args[0]))


def _count(node: ast.Call, scope: Scope) -> int | UnknownTruth:
    found = [is_given(scope.value(key_of(argument))) for argument in node.args]
    return UNKNOWN if UNKNOWN in found else sum(truth is True for truth in found)


def _keys(node: ast.Call, scope: Scope) -> int:
    return sum(scope.is_written(key_of(argument)) is True for argument in node.args)


def _only(node: ast.Call, scope: Scope) -> bool:
    return scope.values.keys() <= {key_of(argument)[0] for argument in node.args}


def _matches(node: ast.Call, scope: Scope) -> bool | UnknownTruth:
    value = scope.value(key_of(node.args[0]))
    if isinstance(value, UnknownTruth | Open):
        return UNKNOWN
    return isinstance(value, str) and re.fullmatch(_pattern(node), value, re.IGNORECASE) is not None


def _pattern(node: ast.Call) -> str:
    pattern = node.args[1] if len(node.args) == 2 else None
    if not (isinstance(pattern, ast.Constant) and isinstance(pattern.value, str)):
        raise ValueError(f"{ast.unparse(node)}: it takes a key and a 'regex'")
    return pattern.value


def _tables(node: ast.Call, scope: Scope) -> int:
    key, pattern = key_of(node.args[0])[0], _pattern(node)
    found = (str(table.get(key, "")) for table in scope.values.values() if isinstance(table, dict) and key in table)
    return sum(re.fullmatch(pattern, text) is not None for text in found)


def _length(node: ast.Call, scope: Scope) -> int | UnknownTruth:
    value = scope.value(key_of(node.args[0]))
    return len(value) if isinstance(value, str | list | dict) else UNKNOWN


def _has_type(*types: type) -> Callable[[ast.Call, Scope], bool | UnknownTruth]:
    def check(node: ast.Call, scope: Scope) -> bool | UnknownTruth:
        value = scope.value(key_of(node.args[0]))
        if isinstance(value, UnknownTruth | Open):
            return UNKNOWN
        return isinstance(value, types) and (bool in types or not isinstance(value, bool))

    return check


def _exists(node: ast.Call, scope: Scope) -> bool | UnknownTruth:
    value = scope.value(key_of(node.args[0]))
    truth = scope.exists(value) if isinstance(value, str) else None
    return UNKNOWN if truth is None else truth


def _present(node: ast.Call, scope: Scope) -> bool:
    return key_of(node.args[0])[0] in scope.roots


FUNCTIONS: Mapping[str, Callable[[ast.Call, Scope], Any]] = {
    "given": _given,
    "written": _written,
    "count": _count,
    "keys": _keys,
    "only": _only,
    "matches": _matches,
    "tables": _tables,
    "length": _length,
    "number": _has_type(int, float),
    "text": _has_type(str),
    "table": _has_type(dict),
    "list": _has_type(list),
    "exists": _exists,
    "present": _present,
}
