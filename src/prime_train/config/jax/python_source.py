"""Reads a Python text without running it: dotted names, literal values, places, comments. Judges nothing."""

from __future__ import annotations

import ast
import io
import re
import sys
import tokenize
import warnings
from collections.abc import Mapping
from typing import Any, Final

from prime_train.core.findings import TextSpan
from prime_train.toml.document import Comment, Place, SyntaxFault

COMPUTED: Final = object()  # stands for a value that is not a literal
_PYTHON = f"Python {sys.version_info.major}.{sys.version_info.minor}"
_MAX_NAME_PARTS = 8
_MAX_WRITTEN_CHARS = 60
_IGNORE_MARK = "ignore["  # a text without it has no comment that silences a rule


def parse(text: str) -> ast.Module | SyntaxFault:
    """The syntax tree, or the first fault at the place that this interpreter reports."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about invalid escapes, which Python reports at the start of the script
            return ast.parse(text)
    except SyntaxError as error:
        line, column = error.lineno or 1, error.offset or 1
        ends_there = error.end_lineno == error.lineno and (error.end_offset or 0) > column
        end = error.end_offset if ends_there and error.end_offset else column + 1
        return SyntaxFault(f"{error.msg} ({_PYTHON})", TextSpan(line, max(column, 1), line, end))
    except ValueError as error:  # a null byte, an integer of more digits than Python reads
        return SyntaxFault(str(error).partition(";")[0], TextSpan(1, 1, 1, 2))
    except (RecursionError, MemoryError):  # too deep nesting of brackets or operators
        return SyntaxFault(f"it nests too deeply for {_PYTHON}", TextSpan(1, 1, 1, 2))


def read_imports(nodes: list[ast.AST]) -> dict[str, str]:
    """Local name -> full name, such as {"jnp": "jax.numpy"}, for imports anywhere in the script."""
    names: dict[str, str] = {}
    for node in nodes:
        if isinstance(node, ast.Import):
            for alias in node.names:
                top = alias.name.partition(".")[0]
                names[alias.asname or top] = alias.name if alias.asname else top
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            for alias in node.names:
                names[alias.asname or alias.name] = f"{node.module}.{alias.name}"
    return names


def full_name(node: ast.AST, names: Mapping[str, str]) -> str:
    """The dotted name of an expression, through its import: "jax.distributed.initialize"; "" if it has none."""
    parts: list[str] = []
    while isinstance(node, ast.Attribute) and len(parts) < _MAX_NAME_PARTS:
        parts.append(node.attr)
        node = node.value
    if not isinstance(node, ast.Name) or node.id not in names:
        return ""
    return ".".join([names[node.id], *reversed(parts)])


def literal(node: ast.AST) -> Any:
    """The value of a literal: string, number, bool, None, a tuple of integers, a product such as 10 * 60.

    COMPUTED for any other expression.
    """
    match node:
        case ast.Constant(value=str() | bool() | int() | float() | None as value):
            return value
        case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=int() | float() as value)):
            return -value
        case ast.BinOp(left=ast.Constant(value=int() as left), op=ast.Mult(), right=ast.Constant(value=int() as right)):
            return left * right
        case ast.List(elts=items) | ast.Tuple(elts=items):
            values = tuple(item.value for item in items if isinstance(item, ast.Constant) and type(item.value) is int)
            return values if len(values) == len(items) else COMPUTED
        case _:
            return COMPUTED


def comments(text: str, tree: ast.Module) -> tuple[Comment, ...]:
    """The comments of a text, if one of them may silence a rule."""
    if _IGNORE_MARK not in text:
        return ()
    statements = [node for node in tree.body if not _is_docstring(node)]
    first = statements[0].lineno if statements else sys.maxsize
    found: list[Comment] = []
    try:
        for token in tokenize.generate_tokens(io.StringIO(text).readline):
            if token.type == tokenize.COMMENT:
                line, column = token.start
                found.append(Comment(line, token.string, line < first, column + 1))
    except (tokenize.TokenError, SyntaxError):  # stricter than the parser, for example in a last line of blanks
        pass
    return tuple(found)


def _is_docstring(node: ast.stmt) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)


class SourceColumns:
    """Turns the byte columns of syntax nodes into characters from 1."""

    def __init__(self, text: str) -> None:
        self._lines = re.split(r"\r\n|\r|\n", text)  # as the parser counts lines

    def place(self, name: ast.expr | ast.keyword, value: ast.expr, *, hidden: bool = False) -> Place:
        """The place of a name and its value, and the value as written, or "" with `hidden`."""
        span = self._span(value)
        written = "" if hidden else self._written(span)
        return Place(self._span(name), span, written)

    def _span(self, node: ast.expr | ast.keyword) -> TextSpan:
        end_line, end_byte = node.end_lineno or node.lineno, node.end_col_offset or node.col_offset
        return TextSpan(
            node.lineno, self._column(node.lineno, node.col_offset), end_line, self._column(end_line, end_byte)
        )

    def _column(self, line: int, byte: int) -> int:
        text = self._lines[line - 1]
        return (byte if text.isascii() else len(text.encode()[:byte].decode(errors="ignore"))) + 1

    def _written(self, span: TextSpan) -> str:
        first, last = span.line - 1, span.end_line - 1
        lines = self._lines[first : min(last + 1, first + _MAX_WRITTEN_CHARS)]
        if first == last:
            lines = [lines[0][span.column - 1 : span.end_column - 1]]
        else:
            lines[0] = lines[0][span.column - 1 :]
            lines[-1] = lines[-1][: span.end_column - 1] if last - first < _MAX_WRITTEN_CHARS else lines[-1]
        written = " ".join(" ".join(lines).split())
        return written if len(written) <= _MAX_WRITTEN_CHARS else written[: _MAX_WRITTEN_CHARS - 3] + "..."
