"""Judges the conditions of the tables in registry/foreign on the values of a part. Runs no code of a table.

A condition is an expression in the grammar of Python: and, or, not, comparisons, `in`, + - * / // %, numbers, 'texts',
lists of them, dotted keys, and the functions below. It is true, false or UNKNOWN: a value that only the run knows makes
the part of the condition around it unknown, and arithmetic or an order without two numbers is unknown, too.

given(key)            the key is written, and not null
written(key)          the key is written
count(key, ...)       how many of the keys are given
matches(key, 'regex') the whole text matches, in upper or lower case
length(key)           the length of a list or text
number(key)           the value is written as a number; text(key), table(key), list(key): as one of those
exists(key)           the file that the key names exists
present(ROOT)         the reading has a part of that name

Keys below MODEL are the sizes of the model that the part names; config/foreign/model_sizes.py lists them.

and three that recognise a format: keys(key, ...) how many are written, only(key, ...) no other key is written at the
top, tables(key, 'regex') how many tables at the top have that key with such a text.
"""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

from prime_train.config.foreign.functions import FUNCTIONS, check_call
from prime_train.config.foreign.scope import UNKNOWN, Scope, UnknownTruth, key_of
from prime_train.config.foreign.values import AUTO, Open

_NUMBER = re.compile(r"[-+]?(?:\d[\d_]*\.?\d*|\.\d+)(?:[eE][-+]?\d+)?")
# Each program reads these texts in its own way.
_UNCLEAR = frozenset({"true", "false", "yes", "no", "on", "off", "none", "null", "~"})


def holds(condition: str, scope: Scope) -> bool:
    """Whether a condition is certainly true. Raises ValueError for a condition outside the grammar."""
    return _truth(_evaluate(parse(condition), scope)) is True


def evaluate(condition: str, scope: Scope) -> Any:
    """The value of a condition: UNKNOWN if it depends on what is not known."""
    return _evaluate(parse(condition), scope)


@cache
def parse(condition: str) -> ast.expr:
    """The tree of a condition. Raises ValueError if it is outside the grammar."""
    raw = " ".join(condition.split()).replace("\\", "\\\\")  # a backslash is of a regex, and never an escape
    try:
        tree = ast.parse(raw, mode="eval").body
    except SyntaxError as error:
        raise ValueError(f"{condition}: {error.msg}") from None
    for node in ast.walk(tree):
        if not isinstance(node, _ALLOWED):
            raise ValueError(f"{condition}: a condition has no {type(node).__name__}")
        if isinstance(node, ast.Call):
            check_call(node)
    return tree


_ALLOWED = (
    ast.BoolOp, ast.UnaryOp, ast.BinOp, ast.Compare, ast.Call, ast.Name, ast.Attribute, ast.Constant, ast.List,
    ast.Tuple,
    ast.Load, ast.And, ast.Or, ast.Not, ast.USub, ast.Add, ast.Sub, ast.Mult, ast.Div, ast.FloorDiv, ast.Mod,
    ast.Eq, ast.NotEq, ast.Lt, ast.LtE, ast.Gt, ast.GtE, ast.In, ast.NotIn, ast.Is, ast.IsNot,
)  # fmt: skip
_ARITHMETIC: Mapping[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
}
_ORDER: Mapping[type[ast.cmpop], Callable[[Any, Any], bool]] = {
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
}


def _evaluate(node: ast.AST, scope: Scope) -> Any:
    match node:
        case ast.Constant(value=value):
            return value
        case ast.List(elts=items) | ast.Tuple(elts=items):
            return [_evaluate(item, scope) for item in items]
        case ast.Name() | ast.Attribute():
            return scope.value(key_of(node))
        case ast.BoolOp(op=op, values=parts):
            return _join(isinstance(op, ast.And), parts, scope)
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            truth = _truth(_evaluate(operand, scope))
            return truth if isinstance(truth, UnknownTruth) else not truth
        case ast.UnaryOp(operand=operand):
            value = _number(_evaluate(operand, scope))
            return UNKNOWN if value is None else -value
        case ast.BinOp(left=left, op=op, right=right):
            return _compute(type(op), _evaluate(left, scope), _evaluate(right, scope))
        case ast.Compare():
            return _compare_chain(node, scope)
        case ast.Call(func=ast.Name(id=name)):
            return FUNCTIONS[name](node, scope)
    raise ValueError(f"a condition has no {type(node).__name__}")


def _join(is_and: bool, parts: list[ast.expr], scope: Scope) -> bool | UnknownTruth:
    """`and` is false if one part is false, `or` true if one is true, even beside parts that are not known."""
    found: bool | UnknownTruth = is_and
    for part in parts:
        truth = _truth(_evaluate(part, scope))
        if truth is not UNKNOWN and truth is not is_and:
            return truth
        found = UNKNOWN if truth is UNKNOWN else found
    return found


def _truth(value: Any) -> bool | UnknownTruth:
    """Whether a value counts as true. "false" and "no" in quotes are unknown: programs read them in different ways."""
    if isinstance(value, UnknownTruth | Open):
        return UNKNOWN
    if isinstance(value, str) and value.lower() in _UNCLEAR:
        return UNKNOWN
    return bool(value)


def _number(value: Any) -> int | float | None:
    """A number, also from a text that is one in full; None for anything else."""
    if isinstance(value, bool):
        return None
    if isinstance(value, int | float):
        return value
    if isinstance(value, str) and len(value) < 40 and _NUMBER.fullmatch(value):
        return float(value.replace("_", ""))
    return None


def _compute(op: type[ast.operator], left: Any, right: Any) -> Any:
    a, b = _number(left), _number(right)
    if a is None or b is None:
        return UNKNOWN
    try:
        return _ARITHMETIC[op](a, b)
    except (ArithmeticError, ValueError):
        return UNKNOWN


def _compare_chain(node: ast.Compare, scope: Scope) -> bool | UnknownTruth:
    left = _evaluate(node.left, scope)
    found: bool | UnknownTruth = True
    for op, comparator in zip(node.ops, node.comparators, strict=True):
        right = _evaluate(comparator, scope)
        truth = _compare(op, left, right)
        if truth is False:
            return False
        found = UNKNOWN if truth is UNKNOWN else found
        left = right
    return found


def _compare(op: ast.cmpop, left: Any, right: Any) -> bool | UnknownTruth:
    match op:
        case ast.Eq() | ast.Is():
            return _equal(left, right)
        case ast.NotEq() | ast.IsNot():
            return _negate(_equal(left, right))
        case ast.In():
            return _contains(right, left)
        case ast.NotIn():
            return _negate(_contains(right, left))
    a, b = _number(left), _number(right)
    return UNKNOWN if a is None or b is None else _ORDER[type(op)](a, b)


def _negate(truth: bool | UnknownTruth) -> bool | UnknownTruth:
    return truth if isinstance(truth, UnknownTruth) else not truth


def _equal(left: Any, right: Any) -> bool | UnknownTruth:
    if isinstance(left, UnknownTruth) or isinstance(right, UnknownTruth):
        return UNKNOWN
    if isinstance(left, Open) or isinstance(right, Open):
        # The text of an open value is known, its meaning is not.
        texts = [one.text if isinstance(one, Open) else one for one in (left, right)]
        return True if texts[0] == texts[1] == AUTO else UNKNOWN
    if isinstance(left, bool) or isinstance(right, bool):
        one, other = (left, right) if isinstance(left, bool) else (right, left)
        if isinstance(other, str) and other.lower() in _UNCLEAR:
            return UNKNOWN
        return one is other
    a, b = _number(left), _number(right)
    return a == b if a is not None and b is not None else left == right


def _contains(whole: Any, item: Any) -> bool | UnknownTruth:
    if isinstance(whole, str) and isinstance(item, str):
        return item in whole
    if not isinstance(whole, list):
        return False if whole is None else UNKNOWN
    found: bool | UnknownTruth = False
    for each in whole:
        truth = _equal(each, item)
        if truth is True:
            return True
        found = UNKNOWN if truth is UNKNOWN else found
    return found
