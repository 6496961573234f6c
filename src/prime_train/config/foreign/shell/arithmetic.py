"""Computes the integer arithmetic of bash where every variable in it is known. Pure."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable

_MOST_INTEGER = 2**62  # bash counts in 64 bits and wraps around
_MOST_CHARS = 300
_MOST_BRACKETS = 20
_TERM = re.compile(r"\s+|(?:0|[1-9]\d{0,17})(?![\w.#])|\$?([A-Za-z_]\w*)|\$\{([A-Za-z_]\w*)\}|[-+*/%()]", re.ASCII)
_CHANGES = re.compile(r"\+\+|--|(?<![=!<>])=(?!=)|<<=|>>=")
_NAME = re.compile(r"[A-Za-z_]\w*", re.ASCII)
_DECIMAL = re.compile(r"0|[1-9]\d{0,17}", re.ASCII)


def names_changed(expression: str) -> list[str]:
    """All variables of an expression that changes one, as `n++` does; none for one that only reads."""
    return _NAME.findall(expression) if _CHANGES.search(expression) else []


def compute(expression: str, lookup: Callable[[str], tuple[str, bool] | None]) -> tuple[int, bool] | None:
    """(value, whether it rests on a default) of an expression; None if it is not known.

    `lookup` gives (text, whether it is a default) of a variable, None for one that is not known.
    """
    if len(expression) > _MOST_CHARS or expression.count("(") > _MOST_BRACKETS or _CHANGES.search(expression):
        return None
    terms, at, is_default = [], 0, False
    while at < len(expression):
        found = _TERM.match(expression, at)
        if found is None:
            return None
        at, text, name = found.end(), found.group(), found.group(1) or found.group(2)
        if name:
            known = lookup(name)
            if known is None or _DECIMAL.fullmatch(known[0]) is None:
                return None
            text, is_default = known[0], is_default or known[1]
        terms.append(text)
    number = _evaluate("".join(terms).strip())
    return None if number is None else (number, is_default)


def _evaluate(expression: str) -> int | None:
    try:
        tree = ast.parse(expression, mode="eval")
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None
    return _number(tree.body)


def _number(node: ast.expr) -> int | None:
    if isinstance(node, ast.Constant) and isinstance(node.value, int):
        return node.value
    if not isinstance(node, ast.BinOp):
        return None
    left, right = _number(node.left), _number(node.right)
    if left is None or right is None:
        return None
    match node.op:
        case ast.Add():
            result = left + right
        case ast.Sub():
            result = left - right
        case ast.Mult():
            result = left * right
        case ast.Div() | ast.Mod() if left >= 0 and right > 0:  # bash rounds towards zero, Python down
            result = left // right if isinstance(node.op, ast.Div) else left % right
        case _:
            return None
    return result if abs(result) < _MOST_INTEGER else None
