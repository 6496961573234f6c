"""Tells which lines hold any of some hundred words, at the speed of reading them. Parses none of them.

Python's own `re` tries each word at each place: 80 s for 100 MB. The regex engine of pydantic-core searches for all of
them at once, in linear time whatever the text; pydantic is here anyway. Measured: bench/diagnose.py.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable

from pydantic_core import SchemaValidator, core_schema

_SPECIAL = re.compile(r"([\\.+*?()|\[\]{}^$#&~-])")

# What is looked at although no signature has it: tracebacks, and errors that nobody knows.
ERRORS = (
    r"traceback \(most recent call last",
    r"^[^a-z\n]{0,60}\b(?:error|critical|fatal|exception)\b",  # a level behind a time
    r"\berror \d\d-\d\d ",  # behind the process, as vLLM writes it
    r"[-|\[(]\s{0,9}(?:error|critical|fatal)\s{0,9}[-|\])]",
    r"\be\d{3,4} \d\d:",
    r'"(?:error|critical|fatal)"',
    r"^\S{0,80}(?:error|exception)(?::|$)",
)


def holds_any(literals: Iterable[str], patterns: Iterable[str] = ()) -> Callable[[str], bool]:
    """Whether a text holds one of the literals, or of the (simple) patterns, whose ^ and $ are those of a line.
    Everything is in lower case."""
    # Apart: together they are an automaton that outgrows its cache on texts without words (base64, hexadecimal), and
    # from then on stays at a thousandth of its speed.
    words = _search(_SPECIAL.sub(r"\\\1", literal) for literal in sorted(set(literals)))
    rules = _search(patterns)
    if words is None or rules is None:
        return words or rules or (lambda _: False)
    return lambda text: words(text) or rules(text)


def _search(alternatives: Iterable[str]) -> Callable[[str], bool] | None:
    any_of = "|".join(alternatives)
    if not any_of:
        return None
    schema = core_schema.str_schema(pattern=f"(?m){any_of}", regex_engine="rust-regex")
    return SchemaValidator(schema).isinstance_python


is_error = holds_any((), ERRORS)
