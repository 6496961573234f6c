"""Computes an expression of numbers, + - * / // % and parentheses. Runs no code, and is bounded. Pure."""

from __future__ import annotations

import ast
import math
import operator
from collections.abc import Callable

Number = int | float

_MAX_CHARACTERS = 200
_MAX_PARTS = 64  # numbers and operators
_MAX_VALUE = 10**15  # whole numbers up to here are exact in a float

_BINARY: dict[type[ast.operator], Callable[[Number, Number], Number]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
}


class ArithmeticFailed(ValueError):
    """The expression is not one, or is out of bounds. The message is for the model."""


def compute(expression: str) -> str:
    """The value as text: "12", "-0.25". Raises ArithmeticFailed."""
    if len(expression) > _MAX_CHARACTERS:
        raise ArithmeticFailed(f"the expression is longer than {_MAX_CHARACTERS} characters")
    try:
        tree = ast.parse(expression.strip(), mode="eval")
    except (SyntaxError, ValueError, MemoryError, RecursionError):  # ast raises each of them for some text
        raise ArithmeticFailed("this is not an expression") from None
    if sum(isinstance(part, ast.expr) for part in ast.walk(tree)) > _MAX_PARTS:
        raise ArithmeticFailed(f"the expression has more than {_MAX_PARTS} parts")
    value = _compute(tree.body)
    return str(int(value)) if value == int(value) else repr(value)


def _compute(part: ast.expr) -> Number:
    match part:
        case ast.Constant(value=int() | float() as value) if not isinstance(value, bool):
            return _check(value)
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return -_compute(operand)
        case ast.UnaryOp(op=ast.UAdd(), operand=operand):
            return _compute(operand)
        case ast.BinOp(op=sign) if type(sign) in _BINARY:
            left, right = _compute(part.left), _compute(part.right)
            try:
                return _check(_BINARY[type(sign)](left, right))
            except ZeroDivisionError:
                raise ArithmeticFailed("division by zero") from None
    raise ArithmeticFailed("only numbers, + - * / // % and parentheses are allowed")


def _check(value: Number) -> Number:
    if not math.isfinite(value) or abs(value) > _MAX_VALUE:
        raise ArithmeticFailed("a number is too large")
    return value
