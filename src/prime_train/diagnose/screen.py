"""Finds lines that hold any of several hundred words, about as fast as the lines can be read. Parses nothing.

Python's `re` tries each word at each position: 80 s for 100 MB. The regex engine of pydantic-core searches for all
words at once in linear time, and pydantic is a dependency anyway. Measured: bench/diagnose.py.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable

from pydantic_core import SchemaValidator, core_schema

_SPECIAL = re.compile(r"([\\.+*?()|\[\]{}^$#&~-])")

# Lines that are scanned although no signature has their words: tracebacks and unknown errors.
ERRORS = (
    r"traceback \(most recent call last",
    r"^[^a-z\n]{0,60}\b(?:error|critical|fatal|exception)\b",  # a level after a time
    r"\berror \d\d-\d\d ",  # after the process, as vLLM writes it
    r"[-|\[(]\s{0,9}(?:error|critical|fatal)\s{0,9}[-|\])]",
    r"\be\d{3,4} \d\d:",
    r'"(?:error|critical|fatal)"',
    r"^\S{0,80}(?:error|exception)(?::|$)",
)


def holds_any(literals: Iterable[str], patterns: Iterable[str] = ()) -> Callable[[str], bool]:
    """A function that checks whether a lower-case text holds one of the literals or matches one of the simple
    patterns; ^ and $ match at line ends."""
    # Two searches: as one, the automaton outgrows its cache on texts without words (base64, hexadecimal), and then
    # runs at a thousandth of its speed.
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
